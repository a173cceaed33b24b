"""What a fine-tuning leaves in its folder: of one run, whole, and gone on with after any stop."""

import json

import jax
import numpy as np
import pytest

import bertjax
from bertjax import column_flags, errors, paths, sharding
from bertjax.artifact import artifact, loading
from bertjax.finetuning import job, output_folder, recipe, report, run, training
from bertjax.finetuning.examples import types
from tests.helpers import toy_tasks


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return toy_tasks.toys(tmp_path_factory.mktemp("finetune"), train=24, others=8)


def _config(root, **values):
    values = {"num_epochs": 1, **values}
    return toy_tasks.config("classification", root / "model", root, **values)


@pytest.mark.proof
def test_the_report_is_of_the_artifact_after_any_stop(root, tmp_path, monkeypatch):
    """Killed between the artifact of a new best run and its report, then asked for the old one."""

    def stop(*_):
        raise KeyboardInterrupt

    out = tmp_path / "out"
    first = run.finetune(_config(root, learning_rates="1e-5"), out)
    weights = artifact.fingerprint(first.model.source)
    monkeypatch.setattr(run, "best_rate", lambda runs: max(runs))
    monkeypatch.setattr(report, "write", stop)
    with pytest.raises(KeyboardInterrupt):
        run.finetune(_config(root, learning_rates="1e-5,1e-2"), out)
    assert artifact.fingerprint(bertjax.load(out / "artifact").source) != weights
    assert not (out / "report.json").exists()
    monkeypatch.undo()
    again = run.finetune(_config(root, learning_rates="1e-5"), out)
    assert artifact.fingerprint(again.model.source) == weights
    assert again.report["splits"] == first.report["splits"]


def test_what_a_folder_holds_of_a_run_is_read_or_named(root, tmp_path):
    out = tmp_path / "out"
    run.finetune(_config(root, learning_rates="1e-5,1.0000001e-5"), out)
    assert len(list((out / "runs").glob("*.json"))) == 2, "a file for each rate"
    file = out / "runs" / "lr1e-05-seed0.json"
    for damaged in ("{", "{}", json.dumps(json.loads(file.read_text()) | {"more": 1})):
        file.write_text(damaged)
        with pytest.raises(errors.UserError, match=r"lr1e-05-seed0\.json: .*; remove the file"):
            run.finetune(_config(root, learning_rates="1e-5"), out)


@pytest.mark.proof
def test_another_first_seed_has_the_same_examples(root, tmp_path):
    values = {"data__max_train": 16, "learning_rates": "1e-3"}
    run.finetune(_config(root, **values), tmp_path / "out")
    found = run.finetune(_config(root, seed=7, **values), tmp_path / "out").report
    assert found["best"]["seed"] == 7


@pytest.mark.proof
def test_what_has_no_labels_is_answered_by_the_best_seed_alone(root, tmp_path, monkeypatch):
    bare = tmp_path / "bare.tsv"
    bare.write_text("sentence\ncat ran\n")
    splits, real = [], job.Job.outputs

    def outputs(self, trained, split):
        splits.append(split)
        return real(self, trained, split)

    monkeypatch.setattr(job.Job, "outputs", outputs)
    config = _config(root, seeds=3)
    config.data.test = str(bare)
    run.finetune(config, tmp_path / "out")
    assert splits.count("test") == 1


def test_a_folder_of_something_else_is_left_alone(root, tmp_path):
    (tmp_path / "out" / "predictions").mkdir(parents=True)
    (tmp_path / "out" / "report.md").write_text("mine")
    with pytest.raises(errors.UserError, match=r"contains predictions, report\.md, which would"):
        run.finetune(_config(root), tmp_path / "out")
    assert (tmp_path / "out" / "report.md").read_text() == "mine"
    assert not (tmp_path / "out" / "config.json").exists()


def test_what_will_be_trained_and_what_is_left_out_is_told(root, tmp_path):
    told = []
    run.finetune(_config(root, learning_rates="1e-3"), tmp_path / "out", told.append)
    assert "examples    train 24, dev 8, test 8" in told
    assert any(line.startswith("strategy    full: ") for line in told)
    assert "runs        1, of 3 steps, at rates 0.001; the first run compiles" in told
    for label in ("model ", "devices ", "task ", "writes to "):
        assert any(line.startswith(label) for line in told)
    rows = [line for line in told if line.startswith(("strategy", " "))]
    assert rows and max(map(len, rows)) <= 80 - len("bertjax: ")
    told.clear()
    run.finetune(_config(root, learning_rates="1e-5"), tmp_path / "out", told.append)
    (line,) = [line for line in told if "not compared" in line]
    assert line.endswith("not compared: rate 0.001 seed 0")


def test_an_output_that_is_not_finished_is_named(root, tmp_path, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(training, "train", stop)
    with pytest.raises(KeyboardInterrupt):
        run.finetune(_config(root), tmp_path / "out")
    with pytest.raises(errors.UserError, match="out: contains an unfinished fine-tuning run; run"):
        bertjax.load(tmp_path / "out")


@pytest.mark.proof
def test_a_submission_is_of_the_best_model_or_of_none(root, tmp_path):
    def config(**values):
        found = recipe.make("sst2", None, {}, {**toy_tasks.QUICK, "num_epochs": 1, **values})
        found.model, found.data.train, found.data.dev = str(root / "model"), *files
        return found

    files = [str(tmp_path / f"{split}.tsv") for split in ("train", "dev")]
    for split in ("train", "dev", "test"):
        text = (root / f"{split}.tsv").read_text()
        text = text.replace("\tcat", "\t0").replace("\tdog", "\t1")
        (tmp_path / f"{split}.tsv").write_text(text)
    first = config()
    first.data.test = str(tmp_path / "test.tsv")
    run.finetune(first, tmp_path / "out")
    assert (tmp_path / "out" / "submission" / "SST-2.tsv").exists()
    run.finetune(config(seed=1), tmp_path / "out")
    assert not (tmp_path / "out" / "submission").exists()


@pytest.mark.proof
def test_what_is_trained_again_for_a_new_test_file_is_told(root, tmp_path):
    told, without = [], _config(root, seeds=2)
    without.data.test = ""
    run.finetune(without, tmp_path / "out")
    found = run.finetune(_config(root, seeds=2), tmp_path / "out", told.append)
    again = [line for line in told if "training this run again to score it" in line]
    assert len(again) == 2 and not any("warning: rate" in line for line in told)
    assert len(found.report["splits"]["test"]["accuracy"]["values"]) == 2


@pytest.mark.proof
@pytest.mark.parametrize("task", ["classification", "regression"])
def test_runs_that_went_to_pieces_are_reported(root, tmp_path, task):
    for split in ("train", "dev", "test"):
        lines = (root / f"{split}.tsv").read_text()
        if task == "regression":
            lines = lines.replace("\tcat", "\t1").replace("\tdog", "\t2")
        (tmp_path / f"{split}.tsv").write_text(lines)
    config = toy_tasks.config(
        task, root / "model", tmp_path, num_epochs=2, seeds=2, learning_rates="1e30"
    )
    found = run.finetune(config, tmp_path / "out").report
    assert len(found["runs"]) == 2 and found["splits"]["dev"]
    json.loads((tmp_path / "out" / "report.json").read_text(), parse_constant=pytest.fail)


@pytest.mark.proof
def test_few_steps_of_every_schedule_move_to_what_is_finite(root, tmp_path):
    mesh = sharding.make_mesh("data:1", jax.devices()[:1])
    config = _config(root, optimizer__schedule="rsqrt")
    with jax.set_mesh(mesh):
        made = job.make(config, loading.load(config.model), mesh)
        assert made.num_steps == 3
        _, trained = training.train(made, 1e-2, 0, tmp_path)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(trained))


def test_what_only_the_cut_of_dev_needs_is_not_written():
    one = types.Choice("It rained. Why?", ("a", "b"), 0, passage="It rained.")
    found = json.loads(output_folder.prediction_lines([one], [{"label": 0}]))["example"]
    assert found.keys() == {"context", "choices", "label", "id"}


@pytest.mark.parametrize(
    ("line", "expected"),
    [("[" * 2_000, "is nested more than"), ('{"prediction": ' + "9" * 5_000 + "}", "is not JSON"),
     ('{"example": {}}', "contains no predict"), ('{"prediction": [0]}', "contains no predict")],
)  # fmt: skip
def test_a_damaged_line_of_predictions_is_named(tmp_path, line, expected):
    out = object.__new__(output_folder.Folder)
    out.path = tmp_path
    out.write_predictions({"dev": []}, {"dev": []})
    file = tmp_path / "predictions" / "dev.jsonl"
    file.write_text(f'{{"prediction": {{"label": NaN}}}}\n{line}\n')
    with pytest.raises(errors.UserError) as caught:
        out.predictions("dev")
    assert f"{file}:2: {expected}" in str(caught.value)
    assert "remove the file to have it written again" in str(caught.value)


@pytest.mark.parametrize("done", [0, 1])
def test_a_folder_whose_beginning_was_killed_is_begun_again(root, tmp_path, monkeypatch, done):
    class Killed(BaseException):
        pass

    def mkdir(path, *args, **kwargs):
        calls.append(path)
        if len(calls) > done:
            raise Killed
        return own(path, *args, **kwargs)

    config, out = _config(root), tmp_path / "out"
    kind = type(paths.of(out))
    source, own, calls = loading.load(root / "model"), kind.mkdir, []
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(kind, "mkdir", mkdir)
        output_folder.Folder(out, config, source, {})
    output_folder.Folder(out, config, source, {})
    for name in (".tmpa1B2c3", "lr1e-05-seed0.partial", ".lr1e-05-seed0.json.partial"):
        (out / "runs" / name).touch()
    output_folder.Folder(out, config, source, {})
    assert sorted(path.name for path in out.rglob("*")) == ["config.json", "runs"]


def test_a_model_finds_the_columns_of_its_training(root, tmp_path):
    """By the names that training was given; flags and the usual names find others."""
    examples = [line.split("\t") for line in (root / "train.tsv").read_text().splitlines()[1:]]

    def written(name, header):
        lines = [header, *(f"{text},{label},x" for text, label in examples)]
        (tmp_path / name).write_text("\n".join(lines) + "\n")
        return str(tmp_path / name)

    train = written("train.csv", "body,mood,text")
    files = {"data.train": train, "data.dev": train, "data.test": ""}
    config = _config(root, **files, **{"data.text_column": "body", "data.label_column": "mood"})
    run.finetune(config, tmp_path / "out")
    model = bertjax.load(tmp_path / "out")
    assert [model.source.task[name] for name in column_flags.NAMES] == ["body", "mood"]
    expected = model.evaluate(train)
    for header in ("body,mood,text", "text,label,x", "body,label,x"):
        assert model.evaluate(written("other.csv", header)) == expected
    other = written("other.csv", "review,stars,body")
    assert model.evaluate(other, text_column="review", label_column="stars") == expected
    other = written("other.csv", "review,stars,day")
    with pytest.raises(errors.UserError, match=r"other\.csv:2: has no column 'sentence'"):
        model.evaluate(other)
