"""Fine-tuning through the front door: it learns, resumes, gives every seed its due, and answers."""

import dataclasses
import json
import os
import signal
import sys

import jax
import numpy as np
import pytest

import bertjax
from bertjax import __main__ as command_line
from bertjax import config as config_lib
from bertjax import errors, sharding
from bertjax.artifact import loading
from bertjax.finetuning import (
    batching,
    job,
    job_batches,
    keys,
    predictor,
    recipe,
    report,
    run,
    tasks,
    training,
)
from tests.helpers import toy_tasks


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return toy_tasks.toys(tmp_path_factory.mktemp("finetune"))


@pytest.fixture(scope="module")
def done(root):
    """Two seeds at two rates, trained by the command line."""
    words = (
        "finetune", f"--model={root / 'model'}", "--task=classification", f"--data={root}",
        f"--output={root / 'out'}", "--seeds=2", "--lr=1e-2,1e-5", "--config.max_length=40",
        "--config.batch_size=8", "--config.num_epochs=4", "--config.dropout_rate=0",
    )  # fmt: skip
    assert command_line.main(words) == 0
    return json.loads((root / "out" / "report.json").read_text())


def _command(capsys, *words):
    capsys.readouterr()
    code = command_line.main([str(word) for word in words])
    streams = capsys.readouterr()
    return code, streams.out, streams.err


# What comes out


def test_it_learns_and_reports_every_seed(root, done):
    assert done["best"]["learning_rate"] == 1e-2
    accuracy = done["splits"]["dev"]["accuracy"]
    assert len(accuracy["values"]) == 2 and min(accuracy["values"]) > 90.0
    assert accuracy["mean"] == pytest.approx(np.mean(accuracy["values"]))
    assert accuracy["std"] == pytest.approx(np.std(accuracy["values"], ddof=1))
    assert len(done["runs"]) == 4 and len(done["runs"][0]["evaluations"]) == 4
    for each in done["runs"]:
        best = max(e["dev"]["accuracy"] for e in each["evaluations"])
        assert each["scores"]["dev"]["accuracy"] == best
        # Test is scored with the chosen rate alone.
        assert ("test" in each["scores"]) == (each["learning_rate"] == 1e-2)
    table = (root / "out" / "report.md").read_text()
    assert "| test | accuracy |" in table and table.count("\n| 1e-05 |") == 2
    assert (root / "out" / "scores.png").read_bytes().startswith(b"\x89PNG")
    assert not list((root / "out" / "runs").glob("*.safetensors"))
    result = run.Finetuned(done, None)
    assert repr(result).startswith("classification, rate 0.01, best seed")
    assert "<td" in result._repr_html_() and f"{accuracy['mean']:.2f}" in result._repr_html_()


def test_the_artifact_answers_as_the_best_seed_did(root, done):
    model = bertjax.load(root / "out")
    examples = tasks.read(model.task, str(root / "test.tsv"), "test")
    best = next(r for r in done["runs"] if [r["learning_rate"], r["seed"]] == [1e-2, _seed(done)])
    assert model.evaluate(examples) == pytest.approx(best["scores"]["test"])
    lines = (root / "out" / "predictions" / "test.jsonl").read_text().splitlines()
    stored = [json.loads(line)["prediction"]["label"] for line in lines]
    assert [each["label"] for each in model.predict([e.texts[0] for e in examples])] == stored
    assert model.predict("cat on the mat")["probabilities"]["cat"] > 0.5
    before = {k: v for k, v in model.source.task.items() if k != "num_texts"}
    older = predictor.Predictor(dataclasses.replace(model.source, task=before))
    assert older.predict(("cat", "cat"))["label"] == "cat"


def _seed(done):
    return done["best"]["seed"]


def test_predict_and_evaluate_by_command(root, done, capsys):
    code, out, _ = _command(
        capsys, "predict", f"--model={root / 'out'}", "--text=dog ran home", "--text=cat on mat"
    )
    assert code == 0 and out.splitlines()[0] == "dog ran home"
    assert out.splitlines()[1].split()[0] == "dog" and out.splitlines()[3].split()[0] == "cat"
    code, out, _ = _command(capsys, "inspect", root / "out")
    lines = [line.split() for line in out.splitlines()]
    assert ["labels", "cat", "dog"] in lines
    assert any(line[:2] == ["task", "classification"] for line in lines)
    code, out, _ = _command(
        capsys, "evaluate", f"--model={root / 'out'}", f"--data={root / 'test.tsv'}"
    )
    assert code == 0 and "accuracy" in out
    plain = root / "texts.txt"
    plain.write_text("dog ran home\n")
    code, _, err = _command(capsys, "evaluate", f"--model={root / 'out'}", f"--data={plain}")
    assert code == 2 and "texts.txt: has no 'label' to score against; predict it" in err
    some = root / "some.tsv"  # labels do not matter: one that is not trained, and none
    some.write_text("sentence\tlabel\ndog ran home\tbird\ncat on mat\t\n")
    words = ("predict", f"--model={root / 'out'}", f"--data={some}")
    found = [json.loads(line) for line in _command(capsys, *words)[1].splitlines()]
    assert [each["prediction"]["label"] for each in found] == ["dog", "cat"]
    assert found[0]["example"]["label"] == "bird"
    named = root / "named.csv"
    named.write_text("body,kind,day\ndog ran home,dog,1\ncat on mat,cat,2\n")
    words = ("--model", root / "out", "--data", named, "--text_column=body", "--label_column=kind")
    code, out, _ = _command(capsys, "evaluate", *words)
    assert code == 0 and f"{named}: columns that are not used: 'day'" in out
    found = [json.loads(line) for line in _command(capsys, "predict", *words)[1].splitlines()]
    assert [e["example"]["label"] for e in found] == ["dog", "cat"]
    plain.write_text("dog ran home\ncat on mat\n")
    words = ("predict", f"--model={root / 'out'}", f"--data={plain}")
    found = [json.loads(line) for line in _command(capsys, *words)[1].splitlines()]
    assert [each["prediction"]["label"] for each in found] == ["dog", "cat"]
    words = ("predict", f"--model={root / 'out'}", f"--data={root / 'dev.tsv'}")
    target = root / "answers.jsonl"
    code, *_ = _command(capsys, *words, f"--output={target}")
    ours, theirs = (
        [json.loads(line) for line in file.read_text().splitlines()]
        for file in (target, root / "out" / "predictions" / "dev.jsonl")
    )
    assert code == 0 and len(ours) == 24
    assert [each["example"] for each in ours] == [each["example"] for each in theirs]
    labels = [[each["prediction"]["label"] for each in lines] for lines in (ours, theirs)]
    assert labels[0] == labels[1]
    assert _command(capsys, *words)[1] == target.read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--text=a", "--data=b"), "give exactly one of --text"),
        (("--question=who",), "the task classification needs --text, or --data"),
        (("--prompt=a",), "the task classification needs --text, or --data"),
        (("--text=a", "--pair=b", "--pair=c"), "one --pair for each --text"),
        (("--text=a", "--pair=b"), "a pair of texts, but the model is trained on a single text"),
        (("--data=.",), ".: is a folder: give a file in it"),
        (("--data=a.tsv", "--pair=b"), "--pair can only be used with --text,"),
        (("--text=a", "--context=b"), "--context can only be used with --question, --choice"),
        (("--text=a", "--output=b.jsonl"), "--output can only be used with --data"),
        (("--data=a.tsv", "--output=none/b.jsonl"), "--output=none/b.jsonl: the parent folder"),
    ],
)
def test_predict_says_what_it_lacks(root, done, capsys, words, message):
    code, _, err = _command(capsys, "predict", f"--model={root / 'out'}", *words)
    assert code == 2 and message in err


# Going on


def test_a_finished_one_trains_nothing_again(root, done, monkeypatch):
    monkeypatch.setattr(training, "train", lambda *_: pytest.fail("trained again"))
    config = toy_tasks.config(
        "classification", root / "model", root, seeds=2, learning_rates="1e-2,1e-5"
    )
    again = run.finetune(config, root / "out").report
    assert again["splits"] == done["splits"] and again["runs"] == done["runs"]


def test_what_was_killed_is_trained_and_the_rest_is_not(root, done, monkeypatch):
    trained, real = [], training.train

    def spy(job, learning_rate, seed, *rest):
        trained.append((learning_rate, seed))
        return real(job, learning_rate, seed, *rest)

    monkeypatch.setattr(training, "train", spy)
    (root / "out" / "runs" / "lr0.01-seed1.json").unlink()
    config = toy_tasks.config(
        "classification", root / "model", root, seeds=2, learning_rates="1e-2,1e-5"
    )
    again = run.finetune(config, root / "out").report
    assert (1e-2, 1) in trained and (1e-5, 0) not in trained and (1e-5, 1) not in trained
    assert again["splits"] == done["splits"]


def test_sigterm_says_start_me_again(root, tmp_path, capsys, monkeypatch):
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(training, "train", lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    words = (f"--model={root / 'model'}", "--task=classification", f"--data={root}")
    code, _, err = _command(capsys, "finetune", *words, f"--output={tmp_path / 'out'}")
    assert code == 75 and "finished runs are kept; run the same command again" in err
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_folder_of_another_fine_tuning_is_refused(root, done):
    config = toy_tasks.config("classification", root / "model", root, num_epochs=2)
    with pytest.raises(errors.UserError, match=r"num_epochs = 2 \(there 4\).*another --output"):
        run.finetune(config, root / "out")
    config = toy_tasks.config("classification", root / "model", root, strategy__name="lora")
    with pytest.raises(errors.UserError) as caught:
        run.finetune(config, root / "out")
    assert "fine-tuning: strategy.name = 'lora' (there 'full'); give" in str(caught.value)


@pytest.mark.proof
def test_splits_come_and_go(root, tmp_path):
    def call(seeds=1, **files):
        values = {"seeds": seeds, "num_epochs": 1, "model": str(root / "model")}
        given = {"train": root / "train.tsv", "dev": root / "dev.tsv", **files}
        config = recipe.make("classification", None, given, {**toy_tasks.QUICK, **values})
        return run.finetune(config, tmp_path / "out").report

    answers = tmp_path / "out" / "predictions" / "test.jsonl"
    assert "test" not in call()["splits"] and not answers.exists()
    bare = tmp_path / "bare.tsv"
    bare.write_text("sentence\ncat ran\ndog sat on the mat\n")
    assert "test" not in call(test=bare)["splits"]
    assert len(answers.read_text().splitlines()) == 2
    with pytest.raises(errors.UserError, match="other test data"):
        call(test=root / "test.tsv")

    file = tmp_path / "out" / "config.json"
    content = json.loads(file.read_text())
    del content["data"]["test"], content["checksum"]  # as if bare.tsv had never been given
    file.write_text(json.dumps(content))
    first = call(test=root / "test.tsv")["splits"]["test"]
    content = call(seeds=2)
    assert "test" not in content["splits"] and "test" not in content["runs"][0]["scores"]
    last = call(seeds=2, test=root / "test.tsv")["splits"]["test"]["accuracy"]["values"]
    assert last[:1] == first["accuracy"]["values"] and len(last) == 2


def test_what_scores_need_is_asked_for_before_training(root, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.setattr(training, "train", lambda *_: pytest.fail("trained"))
    with pytest.raises(errors.UserError, match="sklearn is not installed"):
        run.finetune(toy_tasks.config("classification", root / "model", root), tmp_path / "out")


# Seeds and evaluations


@pytest.mark.proof
@pytest.mark.parametrize("across_rows", [False, True])
def test_a_cpu_takes_large_batches_in_parts(root, tmp_path, monkeypatch, across_rows):
    config = toy_tasks.config(
        "classification", root / "model", root, dropout_rate=0.0, num_epochs=1, batch_size=16
    )
    mesh = sharding.make_mesh("data:1", jax.devices()[:1])
    counts, losses = [], []
    for tokens in (10_000, 64):
        monkeypatch.setattr(batching, "_CPU_TOKENS", tokens)
        with jax.set_mesh(mesh):
            made = job.make(config, loading.load(config.model), mesh)
            monkeypatch.setattr(type(made.task_type), "across_rows", across_rows)
            monkeypatch.setattr(type(made.task_type), "packs", not across_rows)
            (batch, *_) = made.train_batches.one_of_each_shape(in_order=False)
            counts.append(job_batches.micro_batches(made, batch))
            trained, _ = training.train(made, 1e-2, 0, tmp_path / str(tokens))
        losses.append(trained.evaluations[0].loss)
    assert counts[0] == 1 and (counts[1] == 1) == across_rows
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)


def test_a_run_keeps_its_best_and_stops():
    def evaluation(score):
        return training.Evaluation(1.0, 0.5, {"f1": score})

    ours = training.Run(1e-3, 0, "f1")
    gained = [ours.add(evaluation(score)) for score in (50.0, 70.0, 70.0, float("nan"))]
    assert gained == [True, True, True, False] and ours.best == 2 and ours.dev == {"f1": 70.0}
    assert not ours.stopped(0) and not ours.stopped(3) and ours.stopped(2)
    small = training.Run(1e-3, 0, "f1")  # one of ten examples is worth 10 points
    gained = [small.add(evaluation(score), margin=15.0) for score in (100.0, 80.0, 90.0)]
    assert gained == [True, False, True] and small.score == 90.0
    lost = training.Run(1e-3, 0, "f1")
    lost.add(evaluation(float("nan")))
    assert lost.score == -np.inf and lost.add(evaluation(0.0))


def test_summaries_of_seeds():
    found = report.summaries([{"f1": 1.0, "mcc": 2.0}, {"f1": 4.0}, {"f1": 7.0, "mcc": 1.0}])
    assert found == {"f1": {"median": 4.0, "mean": 4.0, "std": 3.0, "values": [1.0, 4.0, 7.0]}}
    assert report.summary([5.0])["std"] is None


# The recipe


def test_the_task_is_no_key_of_the_config():
    with pytest.raises(errors.UserError, match="give the task as --task=ner"):
        recipe.make("sst2", None, {}, {"task": "ner"})
    assert "task" not in keys.names()
    with pytest.raises(errors.UserError, match=r"\.lr: give the learning rates as --lr=1e-4"):
        recipe.make("sst2", None, {}, {"optimizer.lr": "1e-4"})


def test_warm_up_is_a_share_of_the_steps():
    config = recipe.default("sst2")
    made = recipe.run_optimizer(config, 3e-5, 200)
    assert (made.learning_rate, made.warmup_steps) == (3e-5, 20)
    assert recipe.run_optimizer(config, 3e-5, 1).warmup_steps == 0
    config.optimizer.schedule = "rsqrt"  # which is of the scale of its warm-up
    assert recipe.run_optimizer(config, 3e-5, 3).warmup_steps == 1


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("num_epochs", -1, "config.num_epochs = -1: must be 0 or more"),
        ("learning_rates", (1e-5, 1e-5), "different rates"),
        ("dropout_rate", 1.5, r"in \[0, 1\), or -1"),
        ("learning_rates", (1e-5, float("inf")), "rates above 0"),
        ("mesh", "rows:2", "config.mesh = 'rows:2'"),
        ("head_rate_factor", 0.0, "config.head_rate_factor = 0.0: must be above 0"),
        ("optimizer.schedule", "wsd", "'wsd' does not decay"),
        ("strategy.rank", 0, "config.strategy.rank = 0: must be 1 or more"),
        ("kind.max_target_length", 0, "config.kind.max_target_length = 0"),
    ],
)
def test_impossible_recipes_are_named(key, value, message):
    config = recipe.default("translation", "lora")
    config.update_from_flattened_dict({key: value})
    with pytest.raises(errors.UserError, match=message):
        recipe.validate(config)


def test_the_help_lists_every_key_with_what_it_says(capsys):
    assert command_line.main(["finetune", "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("  num_epochs=0   ") and "by the size" in line for line in lines)
    text = " ".join(" ".join(lines).split())
    assert "special tokens included; 384 with squad, squad_v2, qa; 512 with summarization" in text
    assert "questions may have no answer; True with squad_v2" in text
    config = recipe.default("classification")
    for key in keys.names():
        of_key = [line for line in lines if line.startswith(f"  {key}=")]
        line = of_key[0]  # several task types may have an option of this name
        assert all(len(x.split(maxsplit=1)) == 2 for x in of_key), f"{key} has no comment"
        if key in ("batch_size", "optimizer.b1", "strategy.name"):
            assert line.startswith(f"  {key}={config_lib.value_of(config, key)} ")


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("--epochs=3", "did you mean --config.num_epochs=...? (see `bertjax finetune --help`)"),
        ("--batch=4", "did you mean --config.batch_size=...?"),
        ("--sed=3", "did you mean --seeds or "),
        ("3e-5", "separate several numbers by commas"),
    ],
)
def test_unknown_flags_have_a_hint(capsys, word, hint):
    assert command_line.main(["finetune", "--output=out", "--lr=2e-5", word]) == 2
    assert hint in capsys.readouterr().err


def test_a_key_of_another_strategy_is_named():
    values = {"strategy.rank": 3}
    with pytest.raises(errors.UserError, match=r"rank is a key of the strategy lora, .* full:"):
        recipe.make("sst2", None, {}, values)
    assert recipe.make("sst2", None, {}, {"strategy.name": "lora", **values}).strategy.rank == 3


@pytest.mark.proof
def test_the_package_is_the_function(root, tmp_path):
    tuned = bertjax.finetune(
        model=root / "model", task="classification", train=root / "train.tsv",
        output=tmp_path / "out", max_length=40, num_epochs=1, learning_rates=1e-2,
        overrides={"data.max_train": 20, "kind.class_weights": True},
    )  # fmt: skip
    assert tuned.report["examples"] == {"train": 20, "dev": 12}
    assert tuned.report["config"]["kind"]["class_weights"] is True
    assert set(tuned.model.predict("dog ran")["probabilities"]) == {"cat", "dog"}
