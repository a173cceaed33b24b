"""A sweep trains every combination, chooses by dev, scores the chosen one on test, and resumes."""

import json
import shlex

import pytest

import bertjax
from bertjax import __main__ as command_line
from bertjax import errors
from bertjax.finetuning import recipe, sweep, sweep_page, training
from tests.helpers import toy_tasks, web_pages

SWEPT = ("--sweep.strategy=full,features", "--sweep.num_epochs=1,2")


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return toy_tasks.toys(tmp_path_factory.mktemp("sweep"), train=32, others=8)


def _words(root, *more):
    return (
        "finetune", f"--model={root / 'model'}", "--recipe=spam:smoke", f"--data={root}",
        f"--output={root / 'out'}", "--lr=1e-2", "--config.max_length=40",
        "--config.batch_size=16", "--config.dropout_rate=0", *more,
    )  # fmt: skip


@pytest.fixture(scope="module")
def done(root):
    assert command_line.main(_words(root, *SWEPT, "--seeds=2")) == 0
    return json.loads((root / "out" / "report.json").read_text())


def _members(flags, **values):
    dotted = {key.replace("__", "."): value for key, value in values.items()}
    swept = sweep.parse(flags)
    return sweep.members(swept, dotted, lambda v: recipe.make("classification", None, {}, v))


@pytest.mark.proof
def test_every_combination_is_in_the_report(root, done):
    values = [row["values"] for row in done["combinations"]]
    assert values == [
        {"strategy.name": strategy, "num_epochs": epochs}
        for strategy in ("full", "features")
        for epochs in (1, 2)
    ]
    assert [row["steps"] for row in done["combinations"]] == [2, 4, 2, 4]
    assert done["config"]["kind"]["class_weights"]  # the recipe's
    means = []
    for row in done["combinations"]:
        (rate,) = row["rates"]
        means.append(rate["dev"]["accuracy"]["mean"])
        assert len(rate["dev"]["accuracy"]["values"]) == 2 and rate["learning_rate"] == 1e-2
    assert done["best"]["values"] == values[means.index(max(means))]
    table = (root / "out" / "report.md").read_text()
    assert "| strategy | num_epochs | rate | mean | std |" in table
    assert table.count("\n| full | ") == 2 and table.count("\n| features | ") == 2
    assert table.count("**") == 2  # around the mean of the chosen one
    # A warning that concerns all combinations is there once.
    assert table.count("in train too") == 1 and "- strategy=full, num_epochs=1; strat" in table
    assert (root / "out" / "scores.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.proof
def test_only_the_chosen_combination_is_scored_on_test_and_kept(root, done):
    assert "test" in done["splits"]
    for row in done["combinations"]:
        folder, is_best = root / "out" / row["folder"], row["folder"] == done["best"]["folder"]
        assert (folder / "report.json").exists() == (folder / "artifact").exists() == is_best
        runs = [json.loads(path.read_text()) for path in (folder / "runs").glob("*.json")]
        assert len(runs) == 2 and all(("test" in run["others"]) == is_best for run in runs)
        assert not list((folder / "runs").glob("*.safetensors"))
    model = bertjax.load(root / "out")
    best = max(run for run in done["splits"]["test"]["accuracy"]["values"])
    assert model.evaluate(root / "test.tsv")["accuracy"] <= best


def test_the_page_has_the_choice_and_every_run(root, done, capsys):
    page = web_pages.Page(root / "out" / "report.html")
    assert page.loads() == [] and len(page.source) < 200_000
    best, rows = done["best"], done["combinations"]
    assert {*page.links} == {f"{row['folder']}/report.html" for row in rows}
    for link in {*page.links}:
        own = web_pages.Page(root / "out" / link)
        assert own.loads() == [] and len(own.tables["All runs"]) == 3  # two seeds
    # the header is the first line
    assert len(page.tables["Means over seeds"]) == 5 and len(page.tables["All runs"]) == 9
    header, *runs = page.tables["All runs"]
    scored = [run for run in runs if run[header.index("accuracy on test")]]
    assert [run[:2] for run in scored] == [[str(v) for v in best["values"].values()]] * 2
    assert page.source.count('<tr class="marked">') == 2
    assert "at the rate 0.01 has the best mean" in page.sections["Choice"]
    assert "standard errors" in page.sections["Choice"]
    assert "bag of words" in page.sections["Baselines"]
    (chart,) = page.charts  # one rate makes no chart by rate
    assert chart == "accuracy on dev of each seed at the best rate, and the mean"
    assert command_line.main(["inspect", str(root / "out"), "--report"]) == 0
    assert (root / "out" / "report.html").read_text() == page.source
    words = [word for word in shlex.split(page.sections["Command"])[1:] if word.strip()]
    capsys.readouterr()
    assert command_line.main([*words, "--print_config"]) == 0
    printed = capsys.readouterr().out
    assert "4 combinations" in printed and "strategy=features, num_epochs=2" in printed
    assert "dropout_rate=0.0" in printed and "learning_rates=0.01" in printed


def test_rates_make_a_chart_and_many_combinations_one_for_each_strategy(root, done):
    (only,) = done["combinations"][0]["rates"]
    rates = [{**only, "learning_rate": rate} for rate in (1e-3, 1e-2)]
    rows = [{**row, "rates": rates} for row in done["combinations"]]
    text = sweep_page.document(root / "out", {**done, "combinations": rows})
    assert text.count("accuracy on dev by learning rate</figcaption>") == 1
    text = sweep_page.document(root / "out", {**done, "combinations": rows * 3})
    assert text.count("by learning rate, full</figcaption>") == 1
    assert text.count("by learning rate, features</figcaption>") == 1
    del rows[0]["runs"]
    with pytest.raises(errors.UserError, match="earlier version; run the same"):
        sweep_page.document(root / "out", {**done, "combinations": rows})


def test_a_sweep_resumes_and_grows(root, done, monkeypatch, capsys):
    trained = []
    real = training.train

    def spy(job, learning_rate, seed, *rest):
        trained.append((job.config.strategy.name, job.config.num_epochs, seed))
        return real(job, learning_rate, seed, *rest)

    monkeypatch.setattr(training, "train", spy)
    assert command_line.main(_words(root, *SWEPT, "--seeds=2")) == 0 and not trained
    lost = root / "out" / "strategy=features,num_epochs=1" / "runs" / "lr0.01-seed1.json"
    lost.unlink()
    words = _words(root, "--sweep.strategy=features", "--sweep.num_epochs=1,2,3", "--seeds=2")
    assert command_line.main(words) == 0
    assert trained == [("features", 1, 1), ("features", 3, 0), ("features", 3, 1)]
    assert "accuracy on dev of 3 combinations" in capsys.readouterr().out
    # Other values of the other keys are another sweep, and a fine-tuning is none.
    assert command_line.main(_words(root, *SWEPT, "--config.batch_size=8")) == 2
    assert "belongs to another fine-tuning: batch_size = 8 (there 16)" in capsys.readouterr().err
    words = (*_words(root, *SWEPT), f"--output={root / 'out' / 'strategy=full,num_epochs=1'}")
    assert command_line.main(words) == 2
    assert "contains a fine-tuning without a sweep" in capsys.readouterr().err


def test_options_of_a_strategy_apply_to_that_strategy():
    found = _members({"strategy": "full,lora", "partial_layers": "0,6", "num_epochs": "2,3"})
    assert [member.label for member in found] == [
        f"{strategy}, num_epochs={epochs}"
        for strategy in (
            "strategy=full",
            "strategy=lora",
            "strategy=partial, strategy.frozen_layers=0",
            "strategy=partial, strategy.frozen_layers=6",
        )
        for epochs in (2, 3)
    ]
    assert len({member.folder for member in found}) == 8
    ranks = [m.config.strategy.rank for m in _members({"strategy.rank": "4,8"})]
    assert ranks == [4, 8]  # the strategy lora is implied
    full, lora = _members({"strategy": "full,lora"}, strategy__rank="2")
    assert lora.config.strategy.rank == 2 and full.config.strategy.name == "full"
    one, two = _members({"strategy.targets": "query,value; key"}, strategy__name="lora")
    assert [m.label for m in _members({"num_epochs": (2, 3)})] == ["num_epochs=2", "num_epochs=3"]
    assert (one.config.strategy.targets, two.config.strategy.targets) == ("query,value", "key")
    assert all("/" not in m.folder for m in _members({"model": "a/b,a/c"}))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"num_epochs": "2,2"}, "--sweep.num_epochs=2,2: give different values"),
        ({"num_epochs": "2,2.0"}, "num_epochs=2 occurs twice"),
        ({"num_epochs": "2,"}, "give different values"),
        ({"num_epoch": "2"}, r"unknown config key \(did you mean --sweep.num_epochs\?\)|unknown"),
        ({"lr": "1e-5,2e-5"}, "give the learning rates as --lr"),
        ({"seeds": "1,2"}, "give the number of seeds as --seeds"),
        ({"task": "ner,pair"}, "--suite runs several tasks"),
        ({"num_epochs": "2,x"}, "config.num_epochs = 'x': must be of type int"),
        ({"strategy": "full,lore"}, "config.strategy.name = 'lore'"),
        ({"batch_size": "0,8"}, "config.batch_size = 0: must be 1 or more"),
    ],
)
def test_impossible_sweeps_are_one_line(flags, message):
    with pytest.raises(errors.UserError, match=message):
        _members(flags)


def test_a_key_is_given_once_and_belongs_to_the_strategy():
    with pytest.raises(errors.UserError, match="num_epochs has a value and is swept"):
        _members({"num_epochs": "2,3"}, num_epochs="4")
    with pytest.raises(errors.UserError, match=r"give --sweep.strategy=bitfit,lora"):
        _members({"strategy.rank": "2,3"}, strategy__name="bitfit")


def test_print_config_lists_the_combinations(capsys):
    words = ("finetune", "--task=classification", "--print_config", *SWEPT)
    assert command_line.main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("  num_epochs=1 ") and "passes over" in line for line in lines)
    assert lines[-5].startswith("4 combinations") and lines[-1] == (
        "  strategy=features, num_epochs=2"
    )
