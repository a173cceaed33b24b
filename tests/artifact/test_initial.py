"""A run that starts from another model: with its config, with a larger one, or not at all."""

import dataclasses
import functools
import subprocess
import sys

import jax
import numpy as np
import pytest

from bertjax import __main__ as cli
from bertjax import config as config_lib
from bertjax import errors, plugins, train, workdir
from bertjax.artifact import artifact, growth, huggingface, initial, loading
from bertjax.data.prepared import prepare
from bertjax.data.tokenizers import tokenizer as tokenizer_lib
from tests.helpers import children, corpora, tiny_model, tiny_runs
from tests.test_domain_adaptation import make_source

QUICK = {
    "data.length": "32", "batch_size": "8", "num_steps": "1", "optimizer.warmup_steps": "0",
    "optimizer.learning_rate": "1e-9", "eval.every": "1", "eval.max_samples": "8",
    "checkpoint.every": "1",
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A Hugging Face folder of a BERT without the head of NSP, and text prepared with it."""
    folder = tmp_path_factory.mktemp("start")
    texts = corpora.documents(40)
    source = make_source(tokenizer_lib.train("wordpiece", texts, 150), heads=("pooler", "mlm"))
    huggingface.write(source, folder / "hf")
    corpora.write_jsonl(folder / "corpus.jsonl", texts)
    prepare.prepare(
        [str(folder / "corpus.jsonl")], str(folder / "hf"), str(folder / "prepared"),
        workers=1, heldout_fraction=0.1,
    )  # fmt: skip
    return folder


SIZES = {"num_layers": 3, "hidden_size": 96, "num_heads": 3, "max_length": 100}


@pytest.fixture(scope="module")
def run(folder):
    """The workdir of a run of one step, with almost no rate, from the folder without a config.

    Its model is larger and longer than that in the folder.
    """
    overrides = QUICK | {f"model.{name}": size for name, size in SIZES.items()}
    words = [f"--config.{key}={value}" for key, value in overrides.items()]
    words += [f"--config.init_from={folder / 'hf'}", f"--config.data.path={folder / 'prepared'}"]
    words += [f"--workdir={folder / 'run'}", "--config.init_model=extended"]
    assert cli.main(["pretrain", *words]) == 0
    return folder / "run"


def assert_close(params, expected):
    params, expected = artifact.flatten(params), artifact.flatten(expected)
    assert params.keys() == expected.keys()
    for path, leaf in params.items():
        np.testing.assert_allclose(leaf, expected[path], rtol=1e-6, atol=1e-7, err_msg=path)


def load_config(folder, **overrides):
    given = {"init_from": str(folder / "hf"), "data.path": str(folder / "prepared"), **QUICK}
    changed = {key.replace("__", "."): str(value) for key, value in overrides.items()}
    return initial.run_config(None, given | changed)


def test_one_command_extends_and_trains_a_hugging_face_folder(folder, run):
    source, model = loading.load(folder / "hf"), loading.load(run)
    assert model.family == "bert" and model.step == 1
    assert model.fields == {**source.fields, **SIZES}
    module = plugins.model("bert", model.fields)
    init = jax.jit(functools.partial(plugins.init_params, module))
    fresh = jax.device_get(init(jax.random.split(jax.random.key(0))[0]))  # the seed is 0
    assert_close(model.params, growth.grown(source, model.fields, fresh).params)
    assert model.objective["name"] == "mlm" and model.objective["pair"] == "none"
    assert model.tokenizer.fingerprint == source.tokenizer.fingerprint


DESCRIBE = """
import contextlib, io, sys
from jax._src import xla_bridge
from bertjax import __main__ as cli
from bertjax import config
from bertjax.artifact import initial
hf, run = sys.argv[1:]
assert config.load("configs/modernbert_base.py:smoke").phases
initial.run_config(None, {"init_from": hf})
with contextlib.redirect_stdout(io.StringIO()):
    assert cli.main(["inspect", run]) == 0
print(xla_bridge.backends_are_initialized())
"""


def test_configs_and_descriptions_do_not_start_jax_s_backend(folder, run):
    """A process must read its config before it joins a job, and joining needs a fresh backend."""
    command = [sys.executable, "-c", DESCRIBE, folder / "hf", run]
    done = subprocess.run(
        command, cwd=children.ROOT, env=children.environment(), capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, "False\n"), done.stderr


def test_a_model_is_described_without_orbax(run, monkeypatch):
    listed, saved_steps = [], workdir.saved_steps
    monkeypatch.setattr(loading, "open_checkpoints", None)
    monkeypatch.setattr(workdir, "saved_steps", lambda path: listed.append(0) or saved_steps(path))
    assert loading.load(run, with_params=False).step == 1
    assert len(listed) == 1  # else a running job may add a step of another phase in between
    assert loading.load(run / "checkpoints" / "1", with_params=False).step == 1
    with pytest.raises(errors.UserError, match="no checkpoint of step 7"):
        loading.load(run / "checkpoints" / "7", with_params=False)


@pytest.mark.parametrize("family", tiny_runs.FAMILIES)
def test_the_config_has_the_model_s_sizes_and_fits_it(family, tmp_path, monkeypatch):
    """For every family, as bertjax trained it and as it comes from elsewhere."""
    trained = tiny_runs.make_config(family, "mlm" if family == "distilbert" else "")
    trained.objective.update({k: 0.25 for k in ("mask_rate", "noise_density")
                              if k in trained.objective})  # fmt: skip
    model = artifact.Artifact(
        family, trained.model.to_dict(), None, tiny_model.tokenizer(),
        objective=trained.objective.to_dict(),
    )  # fmt: skip
    for source in (model, dataclasses.replace(model, objective=None)):
        monkeypatch.setattr(loading, "load", lambda path, with_params, source=source: source)
        config = initial.config_of(tmp_path)
        config_lib.validate(config)
        dropped = () if source.objective is not None else ("nsp", "sop")  # tasks on pairs
        heads = tuple(head for head in source.fields["heads"] if head not in dropped)
        assert config.model.to_dict() == source.fields | {"heads": heads}
        assert config.data.length == source.fields["max_length"]
        assert config.init_from == str(tmp_path)
        if source.objective is not None:
            assert config.objective.to_dict() == source.objective


def test_a_model_without_the_head_of_its_objective_gets_it(tmp_path, monkeypatch):
    for family, heads in (("bert", ("pooler",)), ("electra", ("rtd",)), ("bert", ("classifier",))):
        fields = tiny_runs.make_config(family).model.to_dict() | {"heads": heads, "num_labels": 2}
        source = artifact.Artifact(family, fields, None, tiny_model.tokenizer())
        monkeypatch.setattr(loading, "load", lambda path, with_params, source=source: source)
        config = initial.config_of(tmp_path)
        config_lib.validate(config)
        assert config.objective.name == "mlm"
        assert config.model.heads == (("pooler", "mlm") if heads == ("pooler",) else ("mlm",))


def test_a_variant_with_its_own_objective_keeps_it(tmp_path, monkeypatch):
    for variant, length in (("byt5_small", 20.0), ("v1_1_small", 3.0)):
        fields = config_lib.default("t5", variant).model.to_dict() | {"max_length": 512}
        source = artifact.Artifact("t5", fields, None, tiny_model.tokenizer())
        monkeypatch.setattr(loading, "load", lambda path, with_params, source=source: source)
        assert initial.config_of(tmp_path).objective.mean_noise_span_length == length


def test_the_recipe_is_that_of_the_config_file_for_bert_base(tmp_path, monkeypatch):
    """Apart from its batches, which are smaller here, with the rate that belongs to them."""
    file = config_lib.load(str(corpora.ROOT / "configs" / "domain_adaptation.py"))
    source = artifact.Artifact("bert", file.model.to_dict(), None, tiny_model.tokenizer())
    monkeypatch.setattr(loading, "load", lambda path, with_params: source)
    config = initial.config_of(tmp_path)
    assert config.model == file.model and config.num_steps == file.num_steps
    file.optimizer.learning_rate = 1e-4
    assert config.optimizer == file.optimizer
    assert config.eval.every == file.eval.every and config.data.length == file.data.length


def test_growth_and_a_new_vocabulary_go_together(folder, tmp_path):
    texts = corpora.documents(40, seed=5)
    other = tokenizer_lib.train("wordpiece", texts, 120)
    source = loading.load(folder / "hf")
    config = load_config(
        folder, init_model="extended", init_vocabulary="shared_pieces", model__vocab_size=120,
        model__hidden_size=96, model__num_heads=3,
    )  # fmt: skip
    abstract = plugins.abstract_params(plugins.model("bert", config.model.to_dict()))
    fresh = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), abstract)

    class Data:
        tokenizer_fingerprint = other.fingerprint

        def load_tokenizer(self):
            return other

    initial.check(source, config, Data())
    params = initial.params(source, config, Data(), fresh)
    piece = next(p for p in ("river", "house", "the") if p in other.pieces(range(other.size)))
    ids = [t.pieces(range(t.size)).index(piece) for t in (source.tokenizer, other)]
    old, new = (p["embeddings"]["word"]["embedding"] for p in (source.params, params))
    assert new.shape == (128, 96)
    np.testing.assert_array_equal(new[ids[1]], old[ids[0]][growth.centered(64, 96)])


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ({"model__num_layers": 3}, r"num_layers = 2, but .*= 3: set it to 2; or, to .*=extended$"),
        ({"model__num_layers": 1}, r"num_layers = 2, but config.model.num_layers = 1: .* to 2$"),
        ({"model__num_layers": 1, "init_model": "extended"},
         r"config.model.num_layers = 1: must be 2 or more.*only from a smaller one$"),
        ({"model__num_heads": 4, "init_model": "extended"}, "heads of width 16, but .* width 32"),
        ({"model__type_vocab_size": 3, "init_model": "extended"}, "set it to 2$"),
        ({"model__max_length": 100}, r"max_length to 64; or, .*init_model=extended$"),
        ({"model__vocab_size": 300}, r"vocab_size = 300: must be 150, .*of config.init_from"),
        ({"model__vocab_size": 300, "init_model": "extended"}, "vocab_size = 300: must be 150"),
        ({"init_model": "larger"}, "init_model = 'larger'.*same, extended"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_before_anything_is_compiled(
    folder, tmp_path, monkeypatch, overrides, expected
):
    monkeypatch.setattr(train, "first_state", None)
    with pytest.raises(errors.UserError, match=expected) as caught:
        train.train_and_evaluate(load_config(folder, **overrides), tmp_path / "run")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_another_family_is_refused_before_anything_is_compiled(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(train, "first_state", None)
    overrides = {"init_from": str(folder / "hf"), "data.path": str(folder / "prepared"),
                 "model.vocab_size": "150"}  # fmt: skip
    config = config_lib.overridden(config_lib.smoke(config_lib.default("gpt2", "small")), overrides)
    with pytest.raises(errors.UserError, match=r"family bert, but config\.family is gpt2"):
        train.train_and_evaluate(config, tmp_path / "run")


def test_another_vocabulary_is_refused_even_if_it_is_larger(folder, tmp_path, monkeypatch):
    """The message must not advise a larger vocab_size, which would not help."""
    monkeypatch.setattr(train, "first_state", None)
    texts = corpora.documents(40)
    tokenizer_lib.train("wordpiece", texts, 151).save(tmp_path / "tokenizer")
    prepare.prepare(
        [str(folder / "corpus.jsonl")], str(tmp_path / "tokenizer"), str(tmp_path / "prepared"),
        workers=1, heldout_fraction=0.1,
    )  # fmt: skip
    config = load_config(folder, data__path=tmp_path / "prepared")
    with pytest.raises(errors.UserError, match=r"tokenizer other than that of config\.init_from"):
        train.train_and_evaluate(config, tmp_path / "run")


def test_neither_a_config_nor_a_model(capsys, tmp_path):
    for verb in ("pretrain", "plan"):
        words = [f"--workdir={tmp_path}"] if verb == "pretrain" else []
        assert cli.main([verb, *words, "--config.batch_size=8"]) == errors.EXIT_BAD_INPUT
        assert "give --config=FILE, or --config.init_from=MODEL" in capsys.readouterr().err
