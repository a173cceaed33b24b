"""Continued pretraining: with the checkpoint's tokenizer, or with a new one that shares pieces."""

import dataclasses
import pathlib

import numpy as np
import pytest

from bertjax import config, errors, plugins, train
from bertjax.artifact import artifact, loading, vocabulary_transfer
from bertjax.data.prepared import prepare
from bertjax.data.tokenizers import tokenizer as tokenizer_lib
from bertjax.models.common import layers
from tests.helpers import corpora, tiny_model

ROOT = pathlib.Path(__file__).resolve().parent.parent
SMOKE = str(ROOT / "configs" / "domain_adaptation.py") + ":smoke"
OLD_TEXTS = ["the old sailor found the small house by the river where a lamp was", "zebras jump"]


def make_source(tokenizer, seed=0, **fields):
    """A BERT of the config's smoke size with random parameters."""
    module = plugins.family("bert")
    whole = module.Config(
        **{**module.SMOKE, "vocab_size": tokenizer.size, "heads": ("mlm",), **fields}
    )
    compute = {field.name for field in dataclasses.fields(layers.Compute)}
    kept = {k: v for k, v in dataclasses.asdict(whole).items() if k not in compute}
    rng = np.random.default_rng(seed)
    shapes = artifact.flatten(plugins.abstract_params(plugins.model("bert", kept)))
    params = {path: rng.standard_normal(leaf.shape, np.float32) for path, leaf in shapes.items()}
    return artifact.Artifact("bert", kept, artifact.unflatten(params), tokenizer)


@pytest.fixture(scope="module")
def old_tokenizer():
    return tokenizer_lib.train("wordpiece", OLD_TEXTS * 30, 80)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The corpus of the domain, prepared with a tokenizer of its own."""
    return corpora.make(tmp_path_factory.mktemp("domain"), 60)


def pairs(old, new, old_size=None, new_size=None):
    rows = vocabulary_transfer.shared_rows(old, new, old_size or old.size, new_size or new.size)
    return list(zip(*(array.tolist() for array in rows), strict=True))


def test_shared_pieces_are_those_written_alike(old_tokenizer, folder):
    new = tokenizer_lib.load(folder / "tokenizer")
    found = pairs(old_tokenizer, new)
    for i, j in found:
        assert old_tokenizer.pieces([i]) == new.pieces([j])
    both = set(old_tokenizer.pieces(range(80))) & set(new.pieces(range(new.size)))
    assert len(found) == len(both) > 20 and new.size > len(both)
    assert {"river", "[MASK]"} <= both


def test_special_tokens_are_shared_by_their_role():
    bert, roberta = tiny_model.tokenizer("wordpiece"), tiny_model.tokenizer("bpe")
    found = dict(pairs(bert, roberta))
    for role in ("pad", "unk", "cls", "sep", "mask"):
        assert found[getattr(bert.specials, role)] == getattr(roberta.specials, role)
    words = {bert.pieces([i])[0]: roberta.pieces([j])[0] for i, j in found.items() if i > 4}
    assert words["##t"] == "t" and any(b.startswith("\u0120") for b in words.values())
    assert all(a.startswith("##") != b.startswith("\u0120") for a, b in words.items())


def test_a_piece_without_an_embedding_is_not_shared(old_tokenizer):
    assert all(i < 50 for i, _ in pairs(old_tokenizer, old_tokenizer, old_size=50))
    assert len(pairs(old_tokenizer, old_tokenizer, old_size=50)) == 50


def test_sentinels_are_shared_where_both_models_have_them(old_tokenizer, folder):
    new = tokenizer_lib.load(folder / "tokenizer")
    found = dict(pairs(old_tokenizer, new, old_size=180, new_size=new.size + 100))
    assert [found[i] for i in old_tokenizer.sentinels] == new.sentinels.tolist()
    assert max(dict(pairs(old_tokenizer, new, new_size=new.size + 100))) < old_tokenizer.size


def test_rows_of_shared_pieces_are_carried_over_and_the_others_are_fresh(old_tokenizer, folder):
    new = tokenizer_lib.load(folder / "tokenizer")
    source = make_source(old_tokenizer)
    fresh = make_source(new, seed=1, heads=("pooler", "mlm")).params
    moved = vocabulary_transfer.carry_over(source, new, fresh, new.size)
    assert moved.tokenizer is new
    params = loading.overlay_params(moved, "bert", fresh)
    table, before = params["embeddings"]["word"]["embedding"], source.params["embeddings"]["word"]
    bias, bias_before = params["mlm_head"]["bias"], source.params["mlm_head"]["bias"]
    shared = {}
    for i, j in pairs(old_tokenizer, new):
        np.testing.assert_array_equal(table[j], before["embedding"][i])
        assert bias[j] == bias_before[i]
        shared[j] = i
    others = [j for j in range(len(table)) if j not in shared]
    np.testing.assert_array_equal(
        np.asarray(table)[others], fresh["embeddings"]["word"]["embedding"][others]
    )
    tiny_model.assert_same_params(params["encoder"], source.params["encoder"])
    tiny_model.assert_same_params(params["pooler"], fresh["pooler"])


def test_another_width_is_named(old_tokenizer, folder):
    new = tokenizer_lib.load(folder / "tokenizer")
    fresh = make_source(new, hidden_size=32).params
    moved = vocabulary_transfer.carry_over(make_source(old_tokenizer), new, fresh, new.size)
    with pytest.raises(errors.UserError, match=r"config.init_from has embeddings/.*\(.*64"):
        loading.overlay_params(moved, "bert", fresh)


def test_tokenizers_that_share_nothing_are_refused(old_tokenizer):
    other = tokenizer_lib.train("wordpiece", ["\u0434\u043e\u043c \u043a\u043e\u0442"] * 30, 18)
    with pytest.raises(errors.UserError, match="shares no piece"):
        vocabulary_transfer.shared_rows(old_tokenizer, other, old_tokenizer.size, other.size)


def load_config(folder, source, **overrides):
    keys = {
        "data.path": str(folder / "prepared"),
        "init_from": str(source),
        "model.vocab_size": "150",
        "num_steps": "2",
        "optimizer.warmup_steps": "0",
        "optimizer.decay_steps": "0",
        "optimizer.learning_rate": "1e-7",
        "checkpoint.every": "2",
        "eval.every": "2",
    }
    return config.load(SMOKE, keys | {k.replace("__", "."): v for k, v in overrides.items()})


def test_a_run_with_a_new_vocabulary_starts_from_the_checkpoint(old_tokenizer, folder, tmp_path):
    source = make_source(old_tokenizer)
    artifact.write(source, tmp_path / "old")
    message = r"prepared with a tokenizer other than.*config.init_vocabulary=shared_pieces$"
    with pytest.raises(errors.UserError, match=message):
        train.train_and_evaluate(load_config(folder, tmp_path / "old"), tmp_path / "refused")
    conf = load_config(folder, tmp_path / "old", init_vocabulary="shared_pieces")
    train.train_and_evaluate(conf, tmp_path / "run")
    trained = loading.load(tmp_path / "run")
    assert trained.step == 2
    table = trained.params["embeddings"]["word"]["embedding"]
    old, new = zip(*pairs(old_tokenizer, trained.tokenizer), strict=True)
    before = source.params["embeddings"]["word"]["embedding"]
    np.testing.assert_allclose(table[list(new)], before[list(old)], atol=1e-5)
    wi = trained.params["encoder"]["layers"]["mlp"]["wi"]["kernel"]
    np.testing.assert_allclose(
        wi, source.params["encoder"]["layers"]["mlp"]["wi"]["kernel"], atol=1e-5
    )


@pytest.mark.proof
def test_a_run_with_the_checkpoint_s_own_tokenizer(old_tokenizer, tmp_path):
    source = make_source(old_tokenizer)
    artifact.write(source, tmp_path / "old")
    corpora.write_jsonl(tmp_path / "corpus.jsonl", corpora.documents(60))
    prepare.prepare(
        [str(tmp_path / "corpus.jsonl")], str(tmp_path / "old" / "tokenizer"),
        str(tmp_path / "prepared"), workers=1, heldout_fraction=0.1,
    )  # fmt: skip
    conf = load_config(tmp_path, tmp_path / "old", model__vocab_size="80")
    train.train_and_evaluate(conf, tmp_path / "run")
    trained = loading.load(tmp_path / "run")
    np.testing.assert_allclose(
        trained.params["embeddings"]["word"]["embedding"],
        source.params["embeddings"]["word"]["embedding"],
        atol=1e-5,
    )


def test_the_key_has_two_values():
    with pytest.raises(errors.UserError, match=r"init_vocabulary = 'new'.*same, shared_pieces"):
        config.load(SMOKE, {"init_vocabulary": "new"})
