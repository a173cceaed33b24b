"""The dense layers behind the pooling of text vectors, trained with the model."""

import dataclasses
import json

import jax
import numpy as np
import optax
import pytest

import bertjax
from bertjax import __main__ as command_line
from bertjax import errors, sharding
from bertjax.artifact import artifact, averaging, huggingface, loading, text_encoding
from bertjax.finetuning import job, projection, run
from tests.helpers import downstream, tiny_model, toy_tasks

RNG = np.random.default_rng(0)
LAYERS = (
    text_encoding.Dense("tanh", RNG.standard_normal((16, 6), np.float32) / 4,
                        RNG.standard_normal(6, np.float32)),
    text_encoding.NORMALIZE,
    text_encoding.Dense("identity", RNG.standard_normal((6, 5), np.float32), None),
)  # fmt: skip
NAMES = {"0/kernel", "0/bias", "2/kernel"}
QUERIES, ANSWERS = toy_tasks.WORDS[:4], toy_tasks.WORDS[4:8]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A folder of sentence-transformers, model/, and pairs in train.tsv and dev.tsv."""
    root = tmp_path_factory.mktemp("projection")
    encoding = text_encoding.Encoding("mean", 40, layers=(*LAYERS, text_encoding.NORMALIZE))
    source = downstream.soft(tiny_model.make(num_layers=1))
    huggingface.write(dataclasses.replace(source, encoding=encoding), root / "model")
    lines = [f"{a} {word}\t{b} cat" for word in ("cat", "dog")
             for a, b in zip(QUERIES, ANSWERS, strict=True)]  # fmt: skip
    for split in ("train", "dev"):
        (root / f"{split}.tsv").write_text("\n".join(["sentence1\tsentence2", *lines]) + "\n")
    return root


def _arrays(model):
    return text_encoding.tensors(model.encoding)


def _config(root, task="embeddings", **values):
    values = {"num_epochs": 2, "optimizer__clip_norm": 0.0, **values}
    return toy_tasks.config(task, root / "model", root, **values)


def _step(root, num_devices=1, **values):
    """Returns (loss, {path: gradient}) of the first step, which has all pairs."""
    config = _config(root, **values)
    mesh = sharding.make_mesh("data:-1", jax.devices()[:num_devices])
    with jax.set_mesh(mesh):
        made = job.make(config, loading.load(config.model), mesh)
        batch = made.place(made.train_batches.one_of_each_shape(in_order=False)[-1])
        state, report = made.train_step(made.first_state(0), batch, made.frozen, 1e-3)
        moments = jax.device_get(optax.tree_utils.tree_get(state.opt_state, "mu"))
    gradients = {path: array / 0.1 for path, array in artifact.flatten(moments).items()}
    return float(report["loss"]), gradients


def _assert_same(found, expected):
    (loss, gradients), (expected_loss, expected_gradients) = found, expected
    assert loss == pytest.approx(expected_loss, rel=1e-5)
    assert gradients.keys() == expected_gradients.keys()
    limit = 1e-5 * max(np.abs(gradient).max() for gradient in expected_gradients.values())
    for path, gradient in gradients.items():
        np.testing.assert_allclose(
            gradient, expected_gradients[path], rtol=0, atol=limit, err_msg=path
        )


def test_gradients_are_those_of_chunks_and_of_several_devices(root):
    expected = _step(root)
    assert {f"projection/{name}" for name in NAMES} < expected[1].keys()
    _assert_same(_step(root, kind__chunk_size=2), expected)
    _assert_same(_step(root, num_devices=4), expected)


def test_micro_batches_have_the_gradients_of_the_whole_batch(root, tmp_path):
    lines = (root / "train.tsv").read_text().splitlines()
    scored = [f"{line}\t{number % 6}" for number, line in enumerate(lines[1:])]
    text = "\n".join([f"{lines[0]}\tscore", *scored]) + "\n"
    (tmp_path / "train.tsv").write_text(text)
    (tmp_path / "model").symlink_to(root / "model")
    expected = _step(tmp_path, task="similarity", data__dev="")
    found = _step(tmp_path, task="similarity", data__dev="", micro_batch_size=2)
    _assert_same(found, expected)


def test_gradients_are_those_of_sentence_transformers(root, tmp_path):
    """For four pairs with different answers: with us, equal ones are no negatives of each other."""
    library = pytest.importorskip("sentence_transformers")
    from sentence_transformers.sentence_transformer import losses

    header, *lines = (root / "train.tsv").read_text().splitlines()[:5]
    for split in ("train", "dev"):
        (tmp_path / f"{split}.tsv").write_text("\n".join([header, *lines]) + "\n")
    (tmp_path / "model").symlink_to(root / "model")
    found_loss, gradients = _step(tmp_path, batch_size=4)

    model = library.SentenceTransformer(str(root / "model"), device="cpu", local_files_only=True)
    model.eval()  # without dropout
    columns = zip(*(line.split("\t") for line in lines), strict=True)
    features = [model.preprocess(list(column)) for column in columns]
    loss = losses.MultipleNegativesRankingLoss(model)(features, None)
    loss.backward()
    expected = {}
    for index, module in ((0, model[2]), (2, model[4])):
        expected[f"projection/{index}/kernel"] = module.linear.weight.grad.numpy().T
        if module.linear.bias is not None:
            expected[f"projection/{index}/bias"] = module.linear.bias.grad.numpy()
    dense = {path: array for path, array in gradients.items() if path in expected}
    _assert_same((found_loss, dense), (loss.item(), expected))


@pytest.mark.parametrize("strategy", ["full", "features", "lora"])
def test_what_is_trained_is_in_the_artifact(root, tmp_path, strategy):
    """Its vectors are those of the report, of the export and of sentence-transformers."""
    out = tmp_path / "out"
    config = _config(root, strategy__name=strategy, num_epochs=6, seeds=1)
    report = run.finetune(config, out).report
    losses = [each["loss"] for each in report["runs"][0]["evaluations"]]
    assert losses[-1] < losses[0]
    before, after = loading.load(root / "model"), loading.load(out)
    assert after.encoding.width(16) == 5 and projection.NAME not in after.params
    changed = {name for name, array in _arrays(after).items()
               if np.abs(array - _arrays(before)[name]).max() > 1e-3}  # fmt: skip
    assert changed == _arrays(after).keys() == NAMES
    model = bertjax.load(out)
    texts = [f"{word} cat" for word in toy_tasks.WORDS]
    vectors = model.encode(texts)
    predicted = [answer["vector"] for answer in model.predict(texts)]
    np.testing.assert_allclose(predicted, vectors, atol=1e-5)
    words = ["export", f"--model={out}", f"--output={tmp_path / 'hf'}"]
    assert command_line.main(words) == 0
    np.testing.assert_allclose(bertjax.load(tmp_path / "hf").encode(texts), vectors, atol=1e-5)
    library = pytest.importorskip("sentence_transformers")
    folder = str(tmp_path / "hf")
    theirs = library.SentenceTransformer(folder, device="cpu", local_files_only=True)
    np.testing.assert_allclose(theirs.encode(texts), vectors, atol=1e-5)


def test_no_place_for_them_in_the_layout_of_peft(root, tmp_path, capsys):
    run.finetune(_config(root, strategy__name="lora", num_epochs=1), tmp_path / "out")
    words = ["export", f"--model={tmp_path / 'out'}", f"--output={tmp_path / 'peft'}"]
    assert command_line.main([*words, "--format=peft"]) == 2
    assert "no place for the dense layers behind the pooling" in capsys.readouterr().err


def test_a_task_without_text_vectors_leaves_them_out(root, tmp_path):
    toy_tasks.sentences(tmp_path, train=8, others=8)
    config = toy_tasks.config("classification", root / "model", tmp_path, num_epochs=1)
    run.finetune(config, tmp_path / "out")
    model = loading.load(tmp_path / "out")
    assert projection.NAME not in model.params


def test_sizes_are_those_of_the_last_dense_layer(root):
    config = _config(root, kind__matryoshka=(3, 8))
    with pytest.raises(errors.UserError, match=r"\(3, 8\): must be sizes of at most 5"):
        mesh = sharding.make_mesh("data:1", jax.devices()[:1])
        job.make(config, loading.load(config.model), mesh)
    assert _step(root, kind__matryoshka=(3, 5))[0] > _step(root)[0]


def test_the_mean_of_models(root, tmp_path):
    """Models with other kinds of layers are refused."""
    first = loading.load(root / "model")
    other = {name: array + 2.0 for name, array in _arrays(first).items()}
    second = dataclasses.replace(first, encoding=first.encoding.with_tensors(other))
    kinds = [dataclasses.replace(layer, activation="relu")
             if isinstance(layer, text_encoding.Dense) else layer
             for layer in first.encoding.layers]  # fmt: skip
    third = dataclasses.replace(
        first, encoding=dataclasses.replace(first.encoding, layers=tuple(kinds))
    )
    for name, model in (("first", first), ("second", second), ("third", third)):
        artifact.write(model, tmp_path / name)
    mean = averaging.average([tmp_path / "first", tmp_path / "second"])
    for name, array in _arrays(mean).items():
        np.testing.assert_allclose(array, _arrays(first)[name] + 1.0, atol=1e-5, err_msg=name)
    with pytest.raises(errors.UserError, match="text encoding's layers"):
        averaging.average([tmp_path / "first", tmp_path / "third"])


@pytest.mark.proof
def test_the_report_counts_them(root, tmp_path):
    run.finetune(_config(root, strategy__name="features"), tmp_path / "out")
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["parameters"]["trained"] == 16 * 6 + 6 + 6 * 5
