"""Programs for other runtimes: they compute the same without bertjax, for any batch and length."""

import dataclasses
import functools
import json
import os
import pathlib
import subprocess
import sys

import jax
import numpy as np
import pytest

from bertjax import __main__, errors, plugins
from bertjax.artifact import artifact, text_encoding
from bertjax.finetuning import predictor, projection, stablehlo, task_types
from bertjax.inference import pretrained
from tests.helpers import children, downstream, encoders, proofs, tiny_model

pytest.importorskip("flatbuffers", reason="flatbuffers, a dependency of bertjax, is not installed")

TEXTS = ["the cat sat on the mat", "a dog ran home and saw the cat", "letters", "many words"]
RUNNER = pathlib.Path(children.ROOT, "tests", "helpers", "program_runner.py")
CLASSIFIER = "ForSequenceClassification"


def _model(family, ending, kind="", **config):
    """A fine-tuned model with random parameters; kind replaces that of the class."""
    model = downstream.make(
        family, ending, config=config, prompt_ids=[], num_texts=1, name="classification"
    )
    task = model.task | {"kind": kind or model.task["kind"]}
    return dataclasses.replace(model, task=task)


def _embedder():
    source = downstream.soft(encoders.make_artifact("modernbert", "bpe", heads=()))
    task = {"name": "embeddings", "kind": "embeddings", "config": {}, "labels": [],
            "max_length": 11, "prompt_ids": [], "num_texts": 0}  # fmt: skip
    kernel_DE = np.random.default_rng(0).standard_normal((source.fields["hidden_size"], 6))
    dense = text_encoding.Dense("tanh", kernel_DE.astype(np.float32), None)
    encoding = text_encoding.Encoding("mean", 11, layers=(dense, text_encoding.NORMALIZE))
    return dataclasses.replace(source, task=task, encoding=encoding)


MODELS = {
    "classification": lambda: _model("bert", CLASSIFIER),
    "multi_label": lambda: _model("deberta", CLASSIFIER, "multi_label"),
    "tokens": lambda: _model("roberta", "ForTokenClassification"),
    "extractive_qa": lambda: _model("electra", "ForQuestionAnswering"),
    "embeddings": _embedder,
    "encoder": lambda: downstream.soft(encoders.make_artifact("bert", "bpe", heads=())),
}


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """{case: (model, folder)}, each run in one process without bertjax."""
    folder = tmp_path_factory.mktemp("programs")
    cases = {}
    for name, make in MODELS.items():
        model = make()
        if model.task is not None:
            config = task_types.load(model.task["kind"]).Config()
            model = dataclasses.replace(
                model, task=model.task | {"config": dataclasses.asdict(config)}
            )
        platforms = ("cpu", "tpu", "cuda") if name == "classification" else ("cpu",)
        stablehlo.write(model, folder / name, platforms)
        cases[name] = model, folder / name
    (folder / "texts.json").write_text(json.dumps(TEXTS))
    words = [sys.executable, RUNNER, folder / "texts.json", *(path for _, path in cases.values())]
    environment = children.environment() | {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    done = subprocess.run(
        words, env=environment, cwd=folder, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return cases


@pytest.mark.parametrize("case", proofs.all_but(MODELS, "tokens", "embeddings"))
def test_outputs_are_equal_without_bertjax(exported, case):
    model, folder = exported[case]
    found = dict(np.load(folder / "outputs.npz"))
    description = json.loads((folder / "description.json").read_text())
    inputs = {name: found[name] for name in description["inputs"]}
    expected = _outputs(model, inputs)
    assert description["outputs"].keys() == expected.keys()
    for name, values in expected.items():
        described = description["outputs"][name]
        assert described["dtype"] == str(values.dtype) == str(found[name].dtype)
        sizes = {"batch": len(TEXTS), "length": inputs["input_ids"].shape[1]}
        assert [sizes.get(n, n) for n in described["shape"]] == list(found[name].shape)
        real = np.ones(values.shape, bool)
        if "length" in described["shape"]:  # states of padding have no meaning
            mask = inputs["attention_mask"] > 0
            real &= mask[:, None] if values.ndim == 3 else mask
        np.testing.assert_allclose(found[name][real], values[real], atol=1e-5)
        alone = found[f"{name}/alone"]
        part = found[name][(slice(1), *map(slice, alone.shape[1:]))]
        np.testing.assert_allclose(alone, part, atol=1e-4)


def _outputs(model, inputs):
    module = plugins.model(model.family, model.fields)
    if model.task is None:
        return {"vectors": pretrained.Pretrained(model).encode(TEXTS)}
    task_type = task_types.of_artifact(model)
    params = projection.joined(model.params, task_type, model)
    apply = functools.partial(module.apply, {"params": params}, deterministic=True)
    return jax.device_get(jax.jit(functools.partial(task_type.single_outputs, apply))(inputs))


def test_the_program_predicts_what_predict_does(exported):
    """With the tokenizer of the folder alone, from the text to the label."""
    for case in ("classification", "embeddings"):
        model, folder = exported[case]
        found = dict(np.load(folder / "outputs.npz"))
        description = json.loads((folder / "description.json").read_text())
        predictions = predictor.Predictor(model).predict(list(TEXTS))
        if case == "embeddings":
            vectors = [prediction["vector"] for prediction in predictions]
            np.testing.assert_allclose(found["vectors"], vectors, atol=1e-5)
            continue
        for scores, prediction in zip(found["scores"], predictions, strict=True):
            by_label = dict(zip(description["labels"], scores.tolist(), strict=True))
            assert by_label == pytest.approx(prediction["probabilities"], abs=1e-5)


def test_the_command_exports_and_describes(tmp_path, capsys):
    artifact.write(_model("bert", CLASSIFIER, regression=False, class_weights=False),
                   tmp_path / "model")  # fmt: skip
    words = ["export", f"--model={tmp_path / 'model'}", f"--output={tmp_path / 'served'}"]
    assert __main__.main([*words, "--format=stablehlo", "--platforms=cpu,tpu"]) == 0
    description = json.loads((tmp_path / "served" / "description.json").read_text())
    assert description["platforms"] == ["cpu", "tpu"]
    assert description["labels"] == downstream.LABELS
    assert description["tokenizer"]["max_length"] == downstream.L
    assert "tokenizer.json" in description["tokenizer"]["files"]
    capsys.readouterr()
    assert __main__.main([*words, "--format=stablehlo", "--platforms=cpu,abacus"]) == 2
    assert "--platforms=abacus: must be among cpu, tpu" in capsys.readouterr().err
    assert __main__.main([*words, "--platforms=cpu"]) == 2
    assert "--platforms needs --format=stablehlo" in capsys.readouterr().err


@pytest.mark.parametrize("case", ["multiple_choice", "decoder"])
def test_what_has_no_program_is_refused_in_a_line(case, tmp_path):
    source = encoders.make_artifact("gpt2", "bpe", heads=("lm",))
    if case == "multiple_choice":
        source = dataclasses.replace(tiny_model.make(), task=_task(case))
    with pytest.raises(errors.UserError, match=r"cannot export a .*exported are encoders, and"):
        stablehlo.write(source, tmp_path / "served")
    assert not (tmp_path / "served").exists()


def _task(kind):
    return {"name": kind, "kind": kind, "config": {}, "labels": [], "max_length": 11,
            "prompt_ids": [], "num_texts": 0}  # fmt: skip
