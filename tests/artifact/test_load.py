"""`--model=` and `bertjax.load`: four kinds of path, and what a loaded model does."""

import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from etils import epath
from ml_collections import ConfigDict

import bertjax
from bertjax import __main__ as command_line
from bertjax import checkpoint, errors, workdir
from bertjax.artifact import artifact, huggingface, loading, weight_files
from bertjax.data.prepared import store
from bertjax.inference import pretrained
from tests.helpers import buckets, corpora, encoders, tiny_model

CONFIG = {
    "family": "bert",
    "objective": {"name": "mlm", "mask_rate": 0.15},
    "data": {"path": "prepared/"},
    "seed": 3,
}


@pytest.fixture(scope="module")
def models():
    """What step 3 and step 10 of the run hold."""
    return {step: tiny_model.make(seed=step) for step in (3, 10)}


@pytest.fixture(scope="module")
def run(tmp_path_factory, models):
    """A workdir as the train loop leaves it."""
    folder = tmp_path_factory.mktemp("load") / "run"
    config = ConfigDict(CONFIG | {"model": models[3].fields})
    tokenizer = tiny_model.tokenizer()
    identity = workdir.identity(config, tokenizer.fingerprint, "data", {})
    workdir.claim(folder, identity, tokenizer.save)
    checkpoints = checkpoint.Checkpoints(folder / "checkpoints", keep_last=5, keep_best=0)
    for step, model in models.items():
        state = {"step": jnp.int32(step), "params": jax.tree.map(jnp.asarray, model.params)}
        checkpoints.save(step, state, {"step": step}, None)
    checkpoints.wait()
    checkpoints.close()
    lines = [{"step": step, "train/loss": 9 - step / 10, "learning_rate": 0.1} for step in (3, 6)]
    lines.append({"step": 9, "train/loss": 7.5, "eval/loss": 8.25})
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return folder


@pytest.fixture(scope="module")
def bert():
    return pretrained.Pretrained(tiny_model.make())


@pytest.mark.parametrize(
    ("path", "step"), [("", 10), ("3", 3), ("checkpoints/3", 3), ("checkpoints/10", 10)]
)
def test_workdir_and_steps_of_it(run, models, path, step):
    model = loading.load(run / path)
    assert (model.step, model.origin) == (step, "workdir")
    assert model.fields == models[step].fields
    assert model.objective == CONFIG["objective"]
    assert model.config["seed"] == 3
    tiny_model.assert_same_params(model.params, models[step].params)


def test_every_form_holds_the_same_model(run, models, tmp_path):
    model = loading.load(run)
    artifact.write(model, tmp_path / "artifact")
    huggingface.write(model, tmp_path / "hf")
    for name, origin in (("artifact", "artifact"), ("hf", "Hugging Face folder")):
        read = loading.load(tmp_path / name)
        assert read.origin == origin
        assert read.tokenizer.fingerprint == model.tokenizer.fingerprint
        tiny_model.assert_same_params(read.params, models[10].params)


@pytest.mark.parametrize(
    ("path", "words"),
    [("nowhere", "not found"), ("4", "3, 10"), ("checkpoints/4", "3, 10"),
     ("checkpoints", "contains no model"), ("tokenizer", "contains no model")],
)  # fmt: skip
def test_paths_that_lead_nowhere(run, path, words):
    with pytest.raises(errors.UserError, match=words):
        loading.load(run / path)


def test_a_run_with_another_tokenizer_is_refused(run, tmp_path):
    (tmp_path / "config.json").write_text((run / "config.json").read_text())
    tiny_model.tokenizer("unigram").save(str(tmp_path / "tokenizer"))
    with pytest.raises(errors.UserError, match=r"tokenizer.*fingerprint"):
        loading.load(tmp_path)


def test_overlay_params(tmp_path):
    encoder = tiny_model.make(seed=1, heads=("pooler",))
    artifact.write(encoder, tmp_path / "a")
    fresh = tiny_model.make(seed=2).params
    mixed = loading.overlay_params(loading.load(tmp_path / "a"), "bert", fresh)
    tiny_model.assert_same_params(mixed["encoder"], encoder.params["encoder"])
    tiny_model.assert_same_params(mixed["mlm_head"], fresh["mlm_head"])
    assert mixed.keys() == fresh.keys()
    deeper = tiny_model.make(num_layers=3).params
    with pytest.raises(errors.UserError, match=r"encoder/layers.*\(2, .*\(3, "):
        loading.overlay_params(loading.load(tmp_path / "a"), "bert", deeper)
    with pytest.raises(errors.UserError, match=r"the family bert, .*albert"):
        loading.overlay_params(loading.load(tmp_path / "a"), "albert", fresh)


def test_import_is_light():
    code = "import sys, bertjax; sys.exit('jax' in sys.modules or 'numpy' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_load_gives_a_model_to_use(run, models):
    bert = bertjax.load(run)
    tiny_model.assert_same_params(bert.params, models[10].params)
    outputs = jax.jit(bert.model.apply)({"params": bert.params}, jnp.ones((1, 5), jnp.int32))
    assert outputs["last_hidden_state"].shape == (1, 5, 16)
    assert len(bert.fill_mask("the [MASK]")[0]) == 5


def _outputs(bert, text):
    """The model applied to one text alone, without padding."""
    ids = bert.tokenizer.encode(text, specials_in_text=True)
    ids = np.array([[bert.tokenizer.specials.cls, *ids, bert.tokenizer.specials.sep]])
    return ids[0], jax.jit(bert.model.apply)({"params": bert.params}, ids)


def test_encode_is_the_mean_of_the_states(bert):
    texts = ["a dog ran home and saw the cat and made letters", "the cat", "the dog"]
    vectors = bert.encode(texts)
    assert (vectors.shape, vectors.dtype) == ((3, 16), np.float32)
    for text, vector in zip(texts, vectors, strict=True):
        states = np.asarray(_outputs(bert, text)[1]["last_hidden_state"][0])
        np.testing.assert_allclose(vector, states.mean(axis=0), atol=1e-5)
    first = bert.encode(texts, pooling="cls")
    states = np.asarray(_outputs(bert, texts[2])[1]["last_hidden_state"][0])
    np.testing.assert_allclose(first[2], states[0], atol=1e-5)
    np.testing.assert_allclose(bert.encode(texts, "last")[2], states[-1], atol=1e-5)
    lengths = np.linalg.norm(bert.encode(texts, normalize=True), axis=1)
    np.testing.assert_allclose(lengths, 1, atol=1e-6)


def test_a_decoder_encodes_by_the_last_token_or_the_mean():
    gpt2 = pretrained.Pretrained(encoders.make_artifact("gpt2", "bpe"))
    texts = ["the cat sat on the mat", "the dog", "the"]
    last = gpt2.encode(texts, pooling="last")
    for text, vector in zip(texts, last, strict=True):
        ids = gpt2.with_ends(gpt2.tokenizer.encode(text), text, False)[None]
        states = jax.jit(gpt2.model.apply)({"params": gpt2.params}, ids)["last_hidden_state"]
        np.testing.assert_allclose(vector, states[0, -1], atol=1e-4)
    assert abs(last[0] - last[1]).max() > 0.1
    with pytest.raises(errors.UserError, match=r"'cls'.* use 'last' or 'mean'"):
        gpt2.encode(texts, pooling="cls")


def test_encode_keeps_the_order_of_many_texts(bert):
    rng = np.random.default_rng(0)
    words = ["the", "cat", "dog", "mat", "home"]
    texts = [" ".join(rng.choice(words, rng.integers(1, 15))) for _ in range(70)]
    vectors = bert.encode(texts)
    for row in (0, 31, 32, 69):
        np.testing.assert_allclose(vectors[row], bert.encode(texts[row])[0], atol=1e-5)
    assert bert.encode([]).shape == (0, 16)
    assert np.isfinite(bert.encode([""])).all()


def test_fill_mask_gives_the_likeliest_pieces(bert):
    texts = ["the [MASK] sat", "[MASK] dog [MASK] home and saw the [MASK]"]
    both = bert.fill_mask(texts, top=4)
    assert [len(masks) for masks in both] == [1, 3]
    special = bert.tokenizer.special_mask()
    for text, masks in zip(texts, both, strict=True):
        ids, outputs = _outputs(bert, text)
        logits = np.asarray(outputs["mlm_logits"][0, :, : bert.tokenizer.size], np.float64)
        places = np.flatnonzero(ids == bert.tokenizer.specials.mask)
        for place, fills in zip(places, masks, strict=True):
            shares = np.exp(logits[place]) / np.exp(logits[place]).sum()
            best = np.argsort(-np.where(special, -1, shares))[:4]
            assert [fill.id for fill in fills] == best.tolist()
            assert [fill.piece for fill in fills] == bert.tokenizer.pieces(best)
            np.testing.assert_allclose([f.probability for f in fills], shares[best], atol=1e-5)
    assert bert.fill_mask(texts[0], top=4)[0][0].id == both[0][0][0].id


def test_fill_mask_never_gives_special_or_padding_ids():
    model = tiny_model.make(seed=5)
    specials = [i for i, s in enumerate(model.tokenizer.special_mask()) if s]
    model.params["mlm_head"]["bias"][specials] = 50.0
    model.params["mlm_head"]["bias"][model.fields["vocab_size"] :] = 100.0
    bert = pretrained.Pretrained(model)
    fills = bert.fill_mask("the [MASK] sat", top=1000)[0]
    assert len(fills) == model.tokenizer.size - len(specials)
    assert not {fill.id for fill in fills} & set(specials)
    assert max(fill.id for fill in fills) < model.tokenizer.size
    assert sum(fill.probability for fill in fills) < 0.5  # the specials keep their share


def test_few_shapes_are_compiled(monkeypatch):
    bert = pretrained.Pretrained(tiny_model.make(hidden_size=20))
    shapes = set()
    apply = type(bert.model).apply

    def counting(self, variables, input_ids, **rest):
        shapes.add(input_ids.shape)
        return apply(self, variables, input_ids, **rest)

    monkeypatch.setattr(type(bert.model), "apply", counting)
    for count in range(1, 30):
        bert.encode(["cat " * count])
    assert shapes == {(1, 32)}


@pytest.mark.parametrize(
    ("text", "words"),
    [("no hidden word", r"no \[MASK\]"), ("cat " * 60 + "[MASK]", "has 61 tokens.* at most 38")],
)
def test_texts_that_cannot_be_filled(bert, text, words):
    with pytest.raises(errors.UserError, match=words):
        bert.fill_mask(text)
    with pytest.raises(errors.UserError, match=words):
        bert.fill_mask(["the [MASK]", text])


def test_other_impossible_wishes(bert):
    with pytest.raises(errors.UserError, match="top = 0"):
        bert.fill_mask("[MASK]", top=0)
    with pytest.raises(errors.UserError, match="pooling = 'median'"):
        bert.encode(["a"], pooling="median")
    with pytest.raises(errors.UserError, match="has 50 tokens"):
        bert.encode(["cat " * 50])
    assert bert.encode(["cat " * 50], truncate=True).shape == (1, 16)
    with pytest.raises(errors.UserError, match="no masked language model head"):
        pretrained.Pretrained(tiny_model.make(heads=("pooler",))).fill_mask("[MASK]")


def _command(capsys, *argv):
    code = command_line.main([str(word) for word in argv])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_export_import_and_predict(run, models, tmp_path, capsys):
    hf, art = tmp_path / "hf", tmp_path / "art"
    code, out, _ = _command(capsys, "export", f"--model={run}", f"--output={hf}")
    assert code == 0 and "step 10" in out
    code, out, _ = _command(capsys, "import", f"--input={hf}", f"--output={art}")
    assert code == 0 and "pooler, mlm, nsp" in out
    tiny_model.assert_same_params(artifact.read(art).params, models[10].params)
    again = tmp_path / "again"
    options = (f"--model={run / '3'}", f"--output={again}", "--format=artifact")
    assert _command(capsys, "export", *options)[0] == 0
    assert artifact.read(again).step == 3
    texts = ("--text=the [MASK] sat on the [MASK]", "--text=a [MASK]")
    code, out, _ = _command(capsys, "predict", f"--model={art}", *texts, "--top=3")
    lines = out.splitlines()
    assert code == 0 and len(lines) == 5
    assert lines[0] == "the [MASK] sat on the [MASK]"
    assert all(len(line.split()) == 6 for line in (lines[1], lines[2], lines[4]))
    code, _, err = _command(capsys, "predict", f"--model={art}", "--text=nothing hidden")
    _reading, error = err.splitlines()
    assert code == 2 and "contains no [MASK]" in error


def test_inspect_models(run, tmp_path, capsys):
    code, out, _ = _command(capsys, "inspect", run)
    assert code == 0
    count = artifact.num_params(tiny_model.make().params, tiny_model.tokenizer().size)
    for words in ("step 10", "3, 10", "eval/loss=8.25", "num_layers=2", "mask_rate=0.15",
                  "wordpiece, 60 pieces", "prepared/", "60 x 16", f"{count:,}"):  # fmt: skip
        assert words in out
    out = _command(capsys, "inspect", run / "checkpoints" / "3")[1]
    assert "step 3" in out and "train/loss=8.7" in out and "eval/loss" not in out
    huggingface.write(loading.load(run), tmp_path / "hf")
    out = _command(capsys, "inspect", tmp_path / "hf")[1]
    assert "Hugging Face folder" in out and f"{count:,}" in out
    assert max(map(len, out.splitlines())) <= 100
    assert _command(capsys, "inspect", tmp_path)[0] == 2


def test_inspect_draws_curves(run, tmp_path, capsys):
    file = tmp_path / "curves.png"
    code, out, _ = _command(capsys, "inspect", run, f"--plot={file}")
    assert code == 0 and str(file) in out
    assert file.read_bytes().startswith(b"\x89PNG")


def test_inspect_prepared_data(tmp_path, capsys):
    folder = corpora.make(tmp_path, count=30) / "prepared"
    train = store.open_dataset(folder, "train")
    code, out, _ = _command(capsys, "inspect", folder)
    assert code == 0
    for words in ("wordpiece, 150 pieces", "corpus.jsonl", "0.0 MB", f"{train.num_tokens:,}",
                  "heldout", "splitter=rules", train.tokenizer_fingerprint[:12]):  # fmt: skip
        assert words in out


def test_inspect_a_tokenizer(tmp_path, capsys):
    tiny_model.tokenizer("bpe").save(tmp_path / "tok")
    code, out, _ = _command(capsys, "inspect", tmp_path / "tok")
    assert code == 0
    for words in ("tok: tokenizer", "bpe, 280 pieces", "mask <mask>=4", "example     Jos\u00e9"):
        assert words in out
    (tmp_path / "empty").mkdir()
    code, _, err = _command(capsys, "inspect", tmp_path / "empty")
    assert code == 2 and "contains no model" in err and "or prepared data or a tokenizer" in err


def test_a_remote_model_is_described_by_the_header_of_its_weights(models, tmp_path, monkeypatch):
    artifact.write(models[3], tmp_path / "model")
    bucket = buckets.install(monkeypatch)
    for path in (tmp_path / "model").rglob("*"):
        if path.is_file():
            remote = epath.Path(f"gs://bucket/{path.relative_to(tmp_path)}")
            remote.parent.mkdir(parents=True, exist_ok=True)
            remote.write_bytes(path.read_bytes())
    whole = loading.load("gs://bucket/model")
    tiny_model.assert_same_params(whole.params, models[3].params)
    (name,) = (name for name in bucket if name.endswith(".safetensors"))
    end = 8 + int.from_bytes((tmp_path / name.removeprefix("bucket/")).read_bytes()[:8], "little")

    copied = []

    def copy_header(source, target):
        copy(source, target)
        copied.append(target.read_bytes() if target.suffix == ".safetensors" else b"")

    copy = weight_files.copy_header
    monkeypatch.setattr(weight_files, "copy_header", copy_header)
    shapes = artifact.flatten(loading.load("gs://bucket/model", with_params=False).params)
    expected = artifact.flatten(models[3].params)
    assert {k: v.shape for k, v in shapes.items()} == {k: v.shape for k, v in expected.items()}
    (header,) = filter(None, copied)
    assert any(header[:end]) and not any(header[end:])  # the tensors were not downloaded
