"""Every kind of task and strategy from files to answers, and suites of them."""

import dataclasses
import json
import pathlib
import random
import tempfile

import jax
import numpy as np
import pytest

import bertjax
from bertjax import __main__ as command_line
from bertjax import errors, sharding
from bertjax.artifact import artifact, loading
from bertjax.finetuning import feature_cache, job, predictor, recipe, run, suite, tasks, training
from bertjax.finetuning.task_types import extractive_qa
from tests.helpers import encoders, proofs, toy_tasks, web_pages
from tests.helpers.task_types import bind

GLUE = pathlib.Path(__file__).resolve().parents[2] / "configs" / "suites" / "glue.py"


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return toy_tasks.toys(tmp_path_factory.mktemp("kinds"), train=40, others=16)


def _stored(out, split="dev"):
    lines = (out / "predictions" / f"{split}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


# Kinds


@pytest.mark.proof
def test_pairs_are_no_single_texts(root, tmp_path, capsys):
    lines = ["sentence1\tsentence2\tscore", *["the cat sat\ta dog ran\t1.0", "a dog\tcat\t2.0"] * 4]
    for split in ("train", "dev"):
        (tmp_path / f"{split}.tsv").write_text("\n".join(lines) + "\n")
    config = toy_tasks.config("regression", root / "model", tmp_path, num_epochs=1)
    run.finetune(config, tmp_path / "out")
    words = ["predict", f"--model={tmp_path / 'out'}", "--text=the cat sat"]
    assert command_line.main(words) == errors.EXIT_BAD_INPUT
    said = "regression: has a single text, but the model is trained on a pair of texts"
    assert said in capsys.readouterr().err
    assert command_line.main([*words, "--pair=a dog ran"]) == 0


def test_entities(root, tmp_path, capsys):
    data = toy_tasks.entities(tmp_path)
    config = toy_tasks.config("ner", root / "model", data, num_epochs=5)
    done = run.finetune(config, tmp_path / "out")
    assert done.report["labels"] == ["O", "B-ANIMAL", "I-ANIMAL"]
    assert done.report["splits"]["dev"]["f1"]["mean"] > 90.0
    assert "| dev | f1/ANIMAL |" in (tmp_path / "out" / "report.md").read_text()
    assert command_line.main(["predict", f"--model={tmp_path / 'out'}", "--text=the dog ran"]) == 0
    assert "ANIMAL: dog" in capsys.readouterr().out
    (found,) = done.model.predict("  the dog-ran")["entities"]
    assert (found["text"], found["characters"], found["start"]) == ("dog", [6, 9], 1)


def test_answers_and_the_threshold_of_none(root, tmp_path, capsys):
    data = toy_tasks.questions(tmp_path)
    config = toy_tasks.config("squad_v2", root / "model", data, num_epochs=2)
    done = run.finetune(config, tmp_path / "out")
    model = bertjax.load(tmp_path / "out")
    stored = _stored(tmp_path / "out")
    asked = [{k: each["example"][k] for k in ("question", "context")} for each in stored]
    tuned = model.source.task["config"]["null_threshold"]
    answers = [each["prediction"]["answer"] for each in stored]
    assert [each["answer"] for each in model.predict(asked)] == answers
    for wrong in (None, 7, {"question": "who"}):
        with pytest.raises(errors.UserError, match="must be a question about a context, not "):
            model.predict(wrong)
    assert model.predict([{"id": "q7", **asked[0]}])[0]["id"] == "q7"
    foreign = {**model.source.task, "name": "qa", "config": {}}  # as of transformers
    other = predictor.Predictor(dataclasses.replace(model.source, task=foreign))
    assert "no_answer_accuracy" in other.evaluate(data / "dev.json")
    assert other.predict(asked[0]).keys() == stored[0]["prediction"].keys() - {"null_odds"}
    assert tuned != 0.0 and done.report["splits"]["dev"]["f1"]["mean"] == pytest.approx(
        done.report["splits"]["dev"]["best_f1"]["mean"]
    )
    words = ("--question=who ran home", "--context=dog ran home.")
    assert command_line.main(["predict", f"--model={tmp_path / 'out'}", *words]) == 0
    assert "best: " in capsys.readouterr().out
    table = (tmp_path / "out" / "report.md").read_text()
    assert "is tuned on dev" in table
    assert "| dev | has_answer_f1 |" in table and "| dev | no_answer_accuracy |" in table
    words = ["evaluate", f"--model={tmp_path / 'out'}", f"--data={tmp_path / 'dev.json'}"]
    assert command_line.main(words) == 0
    lines = capsys.readouterr().out.splitlines()[1:]
    assert "  best_exact_match_threshold " in "\n".join(lines) and len(set(map(len, lines))) == 1


@pytest.mark.proof
def test_texts_for_texts(tmp_path):
    source = encoders.make_artifact(
        "t5", "unigram", num_decoder_layers=2, head_dim=8, max_length=64
    )
    artifact.write(source, tmp_path / "t5")
    for split in ("train", "dev"):
        lines = [{"source": "the cat sat", "target": "a dog"}, {"source": "a dog", "target": "cat"}]
        text = "\n".join(json.dumps(line) for line in lines * 4)
        (tmp_path / f"{split}.jsonl").write_text(text)
    config = toy_tasks.config(
        "translation", tmp_path / "t5", tmp_path, kind__max_target_length=8, num_epochs=1
    )
    done = run.finetune(config, tmp_path / "out")
    stored = [each["prediction"]["text"] for each in _stored(tmp_path / "out")]
    assert "bleu" in done.report["splits"]["dev"]
    found = done.model.predict(["the cat sat", "a dog"])
    assert [each["text"] for each in found] == stored[:2]


@pytest.mark.proof
def test_the_choice_that_fits(root, tmp_path, capsys):
    toy_tasks.choices(tmp_path)
    config = toy_tasks.config("multiple_choice", root / "model", tmp_path, num_epochs=2)
    done = run.finetune(config, tmp_path / "out")
    assert done.report["splits"]["dev"]["accuracy"]["mean"] > 80
    stored = _stored(tmp_path / "out")
    found = done.model.predict([each["example"] for each in stored])
    assert [each["text"] for each in found] == [each["prediction"]["text"] for each in stored]
    words = ["evaluate", f"--model={tmp_path / 'out'}", f"--data={tmp_path / 'dev.jsonl'}"]
    assert command_line.main(words) == 0
    assert "accuracy" in capsys.readouterr().out


@pytest.mark.proof
def test_vectors_of_texts_that_match(root, tmp_path, capsys):
    words = [*toy_tasks.WORDS, "cat", "dog"]
    for split, seed in (("train", 0), ("dev", 1)):
        draw, lines = random.Random(seed), ["sentence1\tsentence2"]
        for _ in range(60):
            shared = draw.sample(words, 3)
            lines.append("\t".join(" ".join(draw.sample(shared, 3)) for _ in range(2)))
        (tmp_path / f"{split}.tsv").write_text("\n".join(lines) + "\n")
    values = {"num_epochs": 6, "kind__pooling": "cls", "kind__matryoshka": "8,16",
              "batch_size": 16, "kind__chunk_size": 8}  # fmt: skip
    config = toy_tasks.config("embeddings", root / "model", tmp_path, **values)
    done = run.finetune(config, tmp_path / "out")
    scores = done.report["splits"]["dev"]
    assert scores["accuracy_at_1"]["mean"] > 50  # of 60 texts
    assert scores["accuracy_at_1/16"] == scores["accuracy_at_1"]
    assert "| dev | accuracy_at_1/8 |" in (tmp_path / "out" / "report.md").read_text()
    loaded = bertjax.load(tmp_path / "out")
    examples = tasks.read(tasks.find("embeddings"), str(tmp_path / "dev.tsv"), "dev")
    assert loaded.evaluate(examples) == pytest.approx(
        {name: each["mean"] for name, each in scores.items()}, rel=1e-3
    )
    assert command_line.main(["predict", f"--model={tmp_path / 'out'}", "--text=the dog ran"]) == 0
    vector = json.loads(capsys.readouterr().out.splitlines()[1])
    assert vector == [float(f"{x:.6g}") for x in loaded.predict("the dog ran")["vector"]]
    assert loaded.encode("the dog ran")[0] == pytest.approx(vector, abs=1e-5)
    loaded.predict("the dog ran home " * 20)
    assert "1 of 1 inputs are cut: the model" in capsys.readouterr().err
    loaded.task_type = dataclasses.replace(loaded.task_type, prompt_ids=(5,))
    with pytest.raises(errors.UserError, match="a prompt, which only `predict` inserts"):
        loaded.encode("the dog ran")
    loaded = bertjax.load(tmp_path / "out")
    with pytest.raises(errors.UserError, match="all examples must be pairs"):
        loaded.predict(["the dog ran", ("the dog", "the cat")])
    (tmp_path / "test.txt").write_text("the dog ran\n")  # given vectors, and not scored
    config.data.test = str(tmp_path / "test.txt")
    assert "test" not in run.finetune(config, tmp_path / "out").report["splits"]
    assert (tmp_path / "out" / "predictions" / "test.jsonl").read_text().count("vector") == 1
    words = ["evaluate", f"--model={tmp_path / 'out'}", f"--data={tmp_path / 'test.txt'}"]
    assert command_line.main(words) == 2
    assert "contains single texts, but only pairs can be scored" in capsys.readouterr().err


def test_a_wrong_family_is_named(root):
    config = recipe.make("translation", None, {}, {"model": str(root / "model")})
    with pytest.raises(errors.UserError, match="of the kind encoder_decoder or decoder, but"):
        job.make(config, loading.load(config.model), sharding.make_mesh())


def test_a_question_without_an_answer_says_so():
    silent = {"answer": "", "n_best": [{"answer": "a", "probability": 0.25}]}
    bound = bind(extractive_qa, extractive_qa.Config())
    assert bound.lines(silent, 5) == ["(no answer)", "best: a 0.250"]
    assert bound.lines({**silent, "null_odds": 1.0}, 5)[0] == "(no answer) 0.750"


# Strategies


def _trained(root, task, data, **values):
    config = toy_tasks.config(task, root / "model", data, **{"num_epochs": 2, **values})
    mesh = sharding.make_mesh("data:1", jax.devices()[:1])
    with jax.set_mesh(mesh):
        made = job.make(config, loading.load(config.model), mesh)
        with tempfile.TemporaryDirectory() as folder:
            found, trained = training.train(made, 1e-2, 3, folder)
        return made, found, made.artifact(trained)


@pytest.mark.parametrize(
    ("task", "data", "heads", "kept"),
    [
        pytest.param("classification", None, ("pooler", "classifier"),
                     {"class_features": (8, 1, 16)}, marks=pytest.mark.proof),
        ("multiple_choice", toy_tasks.choices, ("pooler", "classifier"),
         {"class_features": (8, 2, 16)}),
        pytest.param("ner", toy_tasks.entities, ("token_classifier",),
                     {"last_hidden_state": (8, 16, None)}, marks=pytest.mark.proof),
        pytest.param("squad_v2", toy_tasks.questions, ("span",),
                     {"last_hidden_state": (8, 16, None)}, marks=pytest.mark.proof),
    ],
)  # fmt: skip
def test_features_are_computed_once_and_change_nothing(
    root, task, data, heads, kept, tmp_path, monkeypatch
):
    given = (task, data(tmp_path) if data else root)
    # The body has no dropout, or its features could not be kept; the head has its own.
    values = {"strategy__name": "features", "dropout_rate": 0.5}
    cached, first, model = _trained(root, *given, **values)
    batch = next(cached.train_batches.epoch(0, 0))
    for name, shape in kept.items():
        length = batch["input_ids"].shape[-1]
        assert batch[name].shape == tuple(size or length for size in shape)
    monkeypatch.setattr(feature_cache, "MAX_BYTES", 0)
    computed, second, other = _trained(root, *given, **values)
    assert not kept.keys() & next(computed.train_batches.epoch(0, 0)).keys()
    assert any("every step computes them again" in note for note in computed.notes)
    for a, b in zip(first.evaluations, second.evaluations, strict=True):
        assert a.loss == pytest.approx(b.loss, rel=1e-4) and a.dev == pytest.approx(b.dev)
    source = artifact.flatten(loading.load(root / "model").params)
    for name, leaf in artifact.flatten(model.params).items():
        np.testing.assert_allclose(leaf, artifact.flatten(other.params)[name], atol=1e-4)
        frozen = not name.startswith(heads)
        assert not frozen or (leaf == source[name]).all(), name
    assert model.fields["dropout_rate"] == 0.5


@pytest.mark.proof
def test_a_body_that_stays_has_no_dropout(root, tmp_path):
    data = toy_tasks.questions(tmp_path)
    curves = []
    for rate in (0.0, 0.5):  # of the body: the head for answers never has any
        config = toy_tasks.config(
            "squad_v2", root / "model", data,
            strategy__name="features", num_epochs=1, dropout_rate=rate,
        )  # fmt: skip
        done = run.finetune(config, tmp_path / f"{rate}")
        curves.append(done.report["runs"][0]["evaluations"])
        assert done.model.source.fields["dropout_rate"] == rate
    assert curves[0] == curves[1]


@pytest.mark.proof
def test_the_head_on_a_body_that_stays_has_dropout(root):
    losses = [
        _trained(root, "classification", root, strategy__name="features", dropout_rate=rate)[1]
        .evaluations[0]
        .loss
        for rate in (0.0, 0.5)
    ]
    assert losses[0] != pytest.approx(losses[1], rel=1e-3)


@pytest.mark.proof
def test_a_model_that_evaluates_stays_split(root):
    config = toy_tasks.config("classification", root / "model", root, mesh="fsdp:8")
    mesh = sharding.make_mesh("fsdp:8")
    with jax.set_mesh(mesh):
        made = job.make(config, loading.load(config.model), mesh)
        loaded = made.pretrained(made.first_state(0).params)
        table = loaded.params["embeddings"]["word"]["embedding"]
    assert table.addressable_shards[0].data.size * 8 == table.size


@pytest.mark.parametrize(
    "name", proofs.all_but(["layerwise", "lora", "prompts", "adapters"], "lora")
)
def test_a_strategy_by_its_flag(root, tmp_path, name):
    out, scores = tmp_path / "out", tmp_path / "scores.json"
    keys = {"max_length": 40, "batch_size": 8, "num_epochs": 1}
    keys |= {"strategy.frozen_layers": 1} if name == "partial" else {}
    words = ["--task=classification", f"--model={root / 'model'}", f"--data={root}"]
    words += ["--lr=1e-2", f"--strategy={name}", f"--output={out}"]
    words += [f"--config.{key}={value}" for key, value in keys.items()]
    assert command_line.main(["finetune", *words]) == 0
    report = json.loads((out / "report.json").read_text())
    trained, total = report["parameters"]["trained"], report["parameters"]["total"]
    assert trained == total if name == "layerwise" else 0 < trained < total
    assert not any("lora" in path for path in artifact.flatten(bertjax.load(out).params))
    words = [f"--model={out}", f"--data={root / 'dev.tsv'}", f"--json={scores}"]
    assert command_line.main(["evaluate", *words]) == 0
    found = {score: each["mean"] for score, each in report["splits"]["dev"].items()}
    assert json.loads(scores.read_text()) == pytest.approx(found, abs=1e-3)


# Suites


SUITE = """
from bertjax.finetuning import suite

def get_suite(arg=""):
    return suite.Suite(
        "Toys",
        [suite.Item("classification", {"num_epochs": 1}), suite.Item("ner", {}, "ner")],
        [suite.Published("others", "a paper", {"classification": {"dev": 88.5}})],
    )
"""


def test_a_suite_runs_what_it_lacks_and_reports_all(root, tmp_path, monkeypatch, capsys):
    file = tmp_path / "toys.py"
    file.write_text(SUITE)
    words = [
        "finetune", f"--suite={file}", f"--output={tmp_path / 'out'}", f"--data={root}",
        f"--model={root / 'model'}", "--lr=1e-2", "--config.max_length=40",
        "--config.data.max_train=16",
    ]  # fmt: skip
    assert command_line.main(words) == 0
    table = capsys.readouterr().out
    assert "| classification | dev | accuracy |" in table and "| 88.5 |" in table
    assert f"Without files:\n\n- ner: {root / 'ner'}: no such folder\n" in table
    assert "- others: a paper" in table
    assert (tmp_path / "out" / "report.md").read_text() in table
    assert (tmp_path / "out" / "scores.png").read_bytes().startswith(b"\x89PNG")
    page = web_pages.Page(tmp_path / "out" / "report.html")
    assert page.loads() == [] and {*page.links} == {"classification/report.html"}
    assert (tmp_path / "out" / page.links[0]).exists() and "others: a paper" in page.source
    row = next(row for row in page.tables["Scores"] if row[:2] == ["classification", "dev"])
    assert row[-1] == "88.5" and len(page.tables["All runs"]) == 2
    assert "no such folder" in page.sections["Tasks without files"]
    monkeypatch.setattr(training, "train", lambda *_: pytest.fail("trained again"))
    assert command_line.main(words) == 0 and capsys.readouterr().out == table
    assert command_line.main(["inspect", str(tmp_path / "out"), "--report"]) == 0
    assert (tmp_path / "out" / "report.html").read_text() == page.source
    capsys.readouterr()
    assert command_line.main([*words, "--data=glu/"]) == 2
    assert "for example classification: glu/: no such folder" in capsys.readouterr().err
    file.write_text(SUITE.replace('Item("ner"', 'Item("nre"'))
    assert command_line.main(words) == 2
    assert "--task=nre: did you mean rte? the tasks are" in capsys.readouterr().err


@pytest.mark.proof
def test_items_of_a_suite_have_a_name_each(root, tmp_path):
    file = tmp_path / "two.py"
    items = [("", "again"), ("again", "again"), ("", "")]
    for (first, second), fine in zip(items, (True, False, False), strict=True):
        file.write_text(
            "from bertjax.finetuning import suite\n"
            "def get_suite(arg=''):\n"
            f"    items = [suite.Item('classification', name=n) for n in {(first, second)}]\n"
            "    return suite.Suite('two', items)\n"
        )
        values = {**toy_tasks.QUICK, "num_epochs": 1, "model": str(root / "model")}
        if fine:
            found = suite.run(str(file), tmp_path / "out", root, values)
            assert "| classification | dev |" in found and "| again | dev |" in found
        else:
            with pytest.raises(errors.UserError, match="the suite 'two' has two '"):
                suite.run(str(file), tmp_path / "out", root, values)


def test_the_suite_of_glue_is_one():
    found = suite.load(str(GLUE))
    assert [item.task for item in found.items][:2] == ["cola", "sst2"]
    assert dataclasses.asdict(found)["published"][0]["scores"]["rte"] == {"test": 66.4}
    with pytest.raises(errors.UserError, match=r"the file none\.py does not exist"):
        suite.load("none.py")
