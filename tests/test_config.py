"""Configs: every file loads, every key is overridden by its type, what cannot be is refused."""

import ast
import pathlib
import re

import pytest

from bertjax import config as config_lib
from bertjax import errors, plugins
from bertjax import phases as phases_lib

CONFIGS = sorted((pathlib.Path(__file__).resolve().parent.parent / "configs").glob("*.py"))
MINI = next(path for path in CONFIGS if path.stem == "mini")
SIZES = ("num_layers", "hidden_size", "num_heads", "intermediate_size")
BASE = str(next(path for path in CONFIGS if path.stem == "bert_base"))


def _load(**overrides):
    return config_lib.load(BASE, {k.replace("__", "."): str(v) for k, v in overrides.items()})


@pytest.mark.parametrize("arg", ["", ":smoke"])
@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_file_loads_and_is_locked(path, arg):
    config = config_lib.load(f"{path}{arg}")
    assert config.is_locked
    with pytest.raises((AttributeError, KeyError)):
        config.optimizer.learning_rte = 1.0
    assert re.fullmatch(r"(v\d+[ep]?|tpu7x)-\d+", config.topology)
    if arg:
        assert config.num_steps <= 100 and config.model.hidden_size <= 64


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_docstring_is_the_lab_notebook(path):
    doc = ast.get_docstring(ast.parse(path.read_text()))
    topology = config_lib.load(str(path)).topology
    assert f"--config=configs/{path.name}" in doc, "the command"
    assert f"TPU {topology}" in doc, "the slice, as config.topology names it"
    if path.stem not in ("demo", "mini"):  # of no paper
        assert re.search(r"arXiv \d{4}\.\d{5}", doc), "the paper"


def _unread(config):
    """Returns keys that have no effect on this run, so its file may leave them out."""
    keys = {"model.num_labels", "model.adapter_size", "model.classifier_pooling"}  # of fine-tuning
    keys |= {"objective.name"}  # decided by `default`
    model, objective, optimizer = config.model, config.objective, config.optimizer
    if "tied_embeddings" in model and not model.tied_embeddings:
        keys |= {"model.scaled_output"}
    if "masking" in objective:
        if objective.masking != "ngram":
            keys |= {"objective.max_ngram"}
        if objective.masking != "span":
            keys |= {"objective.span_p", "objective.max_span_words"}
        if objective.pair != "nsp":
            keys |= {"objective.random_next_rate"}
        if objective.pair != "none":
            keys |= {"objective.cross_documents", "objective.packing"}
    if optimizer.schedule != "wsd":
        keys |= {"optimizer.decay_steps", "optimizer.decay_shape"}
    if optimizer.schedule == "rsqrt":
        keys |= {"optimizer.end_rate"}
    if optimizer.name == "adafactor":
        keys |= {"optimizer.b1", "optimizer.b2", "optimizer.eps"}
    if not config.phase2.num_steps:
        keys |= {"phase2.length", "phase2.batch_size"}
    return keys


def _recipe(config):
    """Returns the keys that make the recipe: not those that say where and how it is computed."""
    groups = ("model.", "objective.", "optimizer.", "phase2.")
    single = ("data.length", "batch_size", "num_steps", "topology")
    keys = (key for key in config_lib.keys(config) if key.startswith(groups) or key in single)
    return set(keys) - _unread(config)


def _other(value):
    """Returns another value of the same type."""
    if isinstance(value, str):
        return value + "?"
    if isinstance(value, tuple):
        return (*value, "?")
    return not value if isinstance(value, bool) else value + 1


def _absent(path, arg, keys, monkeypatch):
    """Returns those of the keys whose values come from `config.default` and not from the file.

    Loads the file once more while `config.default` returns other values for all keys.
    """
    usual = config_lib.default

    def scrambled(*args):
        config = usual(*args)
        for key in config_lib.keys(config):
            *parents, leaf = key.split(".")
            group = config_lib.value_of(config, ".".join(parents)) if parents else config
            if key not in ("family", "objective.name", "data.sources"):
                group[leaf] = _other(group[leaf])
        return config

    expected = config_lib.of_file("config", f"{path}{arg}", config_lib.ConfigDict)
    monkeypatch.setattr(config_lib, "default", scrambled)
    found = config_lib.of_file("config", f"{path}{arg}", config_lib.ConfigDict)
    return {
        key for key in keys
        if config_lib.value_of(found, key) != config_lib.value_of(expected, key)
    }  # fmt: skip


def _imports_only_the_config_module(path):
    nodes = ast.walk(ast.parse(path.read_text()))
    imports = [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]
    return {ast.unparse(node) for node in imports} == {
        "from ml_collections import ConfigDict",
        "from bertjax import config as config_lib",
    }


@pytest.mark.parametrize("path", [path for path in CONFIGS if path != MINI], ids=lambda p: p.stem)
def test_a_file_shows_every_value_of_its_recipe(path, monkeypatch):
    keys = _recipe(config_lib.load(str(path)))
    assert {"batch_size", "optimizer.warmup_steps", "model.num_heads", "data.length"} <= keys
    absent = _absent(path, "", keys, monkeypatch)
    assert not absent, f"configs/{path.name} must set these keys itself"
    assert _imports_only_the_config_module(path)


@pytest.mark.parametrize("family", plugins.families())
def test_mini_shows_its_recipe_for_every_family(family, monkeypatch):
    config = config_lib.load(f"{MINI}:{family}")
    rates = ("mask_rate", "mask_token_rate", "noise_density", "mean_noise_span_length")
    fields = {f"model.{name}" for name in (*SIZES, "vocab_size", "max_length")}
    fields |= {f"objective.{name}" for name in rates if name in config.objective}
    keys = {key for key in _recipe(config) if not key.startswith(("model.", "objective."))} | fields
    absent = _absent(MINI, f":{family}", keys, monkeypatch)
    assert not absent, "configs/mini.py must set these keys itself"
    assert _imports_only_the_config_module(MINI)


def test_a_file_knows_no_other_argument():
    with pytest.raises(errors.UserError, match=r"smoke.*'smal'"):
        config_lib.load(BASE + ":smal")


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("batch_size", "64", 64),
        ("num_steps", "2e6", 2_000_000),
        ("num_steps", "2_000_000", 2_000_000),
        ("optimizer.weight_decay", "1", 1.0),
        ("optimizer.learning_rate", "3e-4", 3e-4),
        ("objective.cross_documents", "true", True),
        ("objective.cross_documents", "False", False),
        ("model.heads", "('pooler', 'mlm', 'nsp')", ("pooler", "mlm", "nsp")),
        ("model.activation", "relu", "relu"),
        ("data.path", "2024", "2024"),
    ],
)
def test_override_reads_the_type_of_the_key(key, text, value):
    got = config_lib.value_of(config_lib.load(BASE, {key: text}), key)
    assert got == value and type(got) is type(value)


def test_sources_are_set_and_replaced_as_a_whole_and_their_weights_are_floats():
    one = {"data.sources": "{'web': {'path': 'a', 'weight': 1}}", "data.sources.web.weight": "0.5"}
    config = config_lib.load(BASE, one)
    assert config.data.sources.to_dict() == {"web": {"path": "a", "weight": 0.5}}
    with config.unlocked():
        config.phases = ({"num_steps": config.num_steps, "data.sources.books.weight": 0.5},)
        config.phase2.num_steps = 0
    config = config_lib.overridden(
        config, {"data.sources": "{'books': {'path': 'b', 'weight': 1}}"}
    )
    assert config.data.sources.to_dict() == {"books": {"path": "b", "weight": 1.0}}
    assert [p.config.data.sources.books.weight for p in config_lib.phases.of(config)] == [0.5]
    with pytest.raises(errors.UserError, match=r"config.data.sources = 'web': must be of type"):
        config_lib.overridden(config, {"data.sources": "web"})


@pytest.mark.parametrize(
    ("key", "text", "kind"),
    [
        ("batch_size", "64.5", "int"),
        ("batch_size", "true", "int"),
        ("batch_size", "many", "int"),
        ("batch_size", "", "int"),
        ("optimizer.learning_rate", "fast", "float"),
        ("optimizer.learning_rate", "nan", "float"),
        ("objective.cross_documents", "1", "bool"),
        ("model.heads", "mlm", "tuple"),
        ("model.heads", "('mlm'", "tuple"),
    ],
)
def test_override_of_another_type_is_refused(key, text, kind):
    with pytest.raises(errors.UserError) as caught:
        config_lib.load(BASE, {key: text})
    assert f"config.{key} = {text!r}" in str(caught.value) and kind in str(caught.value)


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("learning_rate", "optimizer.learning_rate"),
        ("optimizer.learning_rat", "optimizer.learning_rate"),
        ("batchsize", "batch_size"),
        ("model.num_head", "model.num_heads"),
    ],
)
def test_unknown_key_suggests_the_near_one(key, near):
    with pytest.raises(errors.UserError, match=f"unknown config key '{key}'.*{re.escape(near)}"):
        config_lib.load(BASE, {key: "1"})


def test_a_group_of_keys_is_no_key():
    with pytest.raises(errors.UserError, match="unknown config key 'optimizer'"):
        config_lib.load(BASE, {"optimizer": "adamw"})


@pytest.mark.parametrize(
    ("overrides", "key", "allowed"),
    [
        ({"model.num_heads": 7}, "num_heads = 7", "divisor of config.model.hidden_size = 768"),
        ({"model.num_layers": 0}, "model.num_layers = 0", "1 or more"),
        ({"model.dropout_rate": 1.0}, "model.dropout_rate = 1.0", "in [0, 1)"),
        ({"model.layer_norm_eps": -1e-6}, "model.layer_norm_eps = -1e-06", "0 or more"),
        ({"model.activation": "swish"}, "model.activation = 'swish'", "gelu_tanh"),
        ({"model.heads": "('mlm', 'lm')"}, "model.heads = ('mlm', 'lm')", "pooler, mlm, nsp"),
        ({"model.heads": "('mlm', 'sop')"}, "model.heads = ('mlm', 'sop')", "'sop' needs"),
        ({"model.heads": "('mlm', 'nsp')"}, "model.heads = ('mlm', 'nsp')", "pooler"),
        ({"model.heads": "('pooler', 'mlm')"}, "model.heads = ('pooler', 'mlm')", "'nsp'"),
        ({"model.heads": "('pooler', 'nsp')"}, "model.heads = ('pooler', 'nsp')", "'mlm'"),
        ({"objective.mask_rate": 1.5}, "objective.mask_rate", "between 0 and 1"),
        ({"objective.pair": "sos"}, "objective.pair = 'sos'", "nsp, sop, none"),
        ({"objective.name": "clm"}, "objective.name = 'clm'", "mlm"),
        ({"family": "bort"}, "family = 'bort'", "bert"),
        ({"data.length": 513}, "data.length = 513", "config.model.max_length = 512"),
        ({"phase2.length": 1024}, "phase2.length = 1024", "config.model.max_length = 512"),
        ({"data.length": 4}, "data.length = 4", "between 8 and"),
        ({"batch_size": 0}, "batch_size = 0", "1 or more"),
        ({"micro_batch_size": 48}, "micro_batch_size = 48", "divisor of the batch size 256"),
        ({"micro_batch_size": -1}, "micro_batch_size = -1", "divisor of the batch size 256"),
        ({"phase2.num_steps": 2_000_000}, "phase2.num_steps = 2000000", "num_steps = 1000000"),
        ({"num_steps": 0}, "num_steps = 0", "1 or more"),
        ({"seed": -1}, "seed = -1", "between 0 and"),
        ({"seed": 2**32}, "seed = 4294967296", "between 0 and"),
        ({"dtype": "float16"}, "dtype = 'float16'", "auto, float32, bfloat16"),
        ({"remat": "some"}, "remat = 'some'", "none, full, dots"),
        ({"eval.every": 0}, "eval.every = 0", "1 or more"),
        ({"checkpoint.keep_last": 0}, "checkpoint.keep_last = 0", "1 or more"),
        ({"checkpoint.keep_best": -1}, "checkpoint.keep_best = -1", "0 or more"),
        ({"max_bad_steps": 0}, "max_bad_steps = 0", "1 or more"),
        ({"optimizer.name": "sgd"}, "optimizer.name = 'sgd'", "adamw, adamw_rms, lamb"),
        ({"optimizer.schedule": "step"}, "optimizer.schedule = 'step'", "one_cycle"),
        ({"optimizer.learning_rate": 0}, "optimizer.learning_rate = 0.0", "above 0"),
        ({"optimizer.warmup_steps": 1_000_000}, "optimizer.warmup_steps = 1000000", "num_steps"),
        ({"optimizer.schedule": "rsqrt", "optimizer.warmup_steps": 0}, "warmup_steps = 0", "rsqrt"),
        ({"optimizer.decay_steps": 995_000}, "optimizer.decay_steps = 995000", "990000"),
        ({"optimizer.weight_decay": -0.1}, "optimizer.weight_decay = -0.1", "0 or more"),
        ({"optimizer.b2": 1}, "optimizer.b2 = 1.0", "in [0, 1)"),
        ({"optimizer.eps": 0}, "optimizer.eps = 0.0", "above 0"),
        ({"optimizer.clip_norm": -1}, "optimizer.clip_norm = -1.0", "0 or more"),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else "",
)
def test_impossible_value_is_refused_by_key_value_and_what_is_allowed(overrides, key, allowed):
    with pytest.raises(errors.UserError) as caught:
        config_lib.load(BASE, {k: str(v) for k, v in overrides.items()})
    message = str(caught.value)
    assert key in message and allowed in message and "\n" not in message


def test_a_run_of_phase_2_alone_is_named_by_the_keys_of_phase_2():
    run = {"num_steps": 100, "phase2__num_steps": 100, "optimizer__warmup_steps": 10}
    with pytest.raises(errors.UserError, match=r"config.phase2.length = 600"):
        _load(**run, phase2__length=600)
    only = phases_lib.of(_load(**run, phase2__batch_size=32))
    assert [(p.start, p.stop, p.length, p.batch_size) for p in only] == [(0, 100, 512, 32)]


def test_phases_cover_every_step_once():
    first, second = phases_lib.of(_load())
    assert (first.start, first.stop, first.length) == (0, 900_000, 128)
    assert (second.start, second.stop, second.length) == (900_000, 1_000_000, 512)
    assert len(phases_lib.of(_load(phase2__num_steps=0))) == 1


def test_micro_batches_of_each_phase():
    config = _load(micro_batch_size=32, phase2__batch_size=64)
    counts = [p.micro_batches for p in phases_lib.of(config)]
    assert counts == [8, 2]
    assert phases_lib.of(_load())[0].micro_batches == 1


def test_stored_config_comes_back_as_it_was():
    config = _load(model__heads="('mlm',)", objective__pair="none", optimizer__name="lamb")
    stored = {**config.to_dict(), "model": {**config.model.to_dict(), "heads": ["mlm"]}}  # JSON
    back = config_lib.from_dict(stored)
    assert back.to_dict() == config.to_dict() and back.is_locked
    config_lib.validate(back)


def test_stored_config_of_another_version_is_refused():
    stored = _load().to_dict() | {"batch_sise": 3}
    with pytest.raises(errors.UserError, match="batch_sise"):
        config_lib.from_dict(stored)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("def get_config(arg", "SyntaxError"),
        ("CONFIG = 3", "no function get_config"),
        (
            "from bertjax import config\n"
            "def get_config(arg=''):\n"
            "    made = config.default()\n"
            "    made.batchsize = 3\n"
            "    return made\n",
            "batchsize",
        ),
    ],
)
def test_broken_file_is_refused_by_name(tmp_path, text, says):
    file = tmp_path / "mine.py"
    file.write_text(text)
    with pytest.raises(errors.UserError, match=f"mine.py: .*{says}|{says}"):
        config_lib.load(str(file))


def test_absent_file_is_refused_by_name(tmp_path):
    with pytest.raises(errors.UserError, match=r"the file .*none\.py does not exist"):
        config_lib.load(f"{tmp_path}/none.py:smoke")
    with pytest.raises(errors.UserError, match="not a Python file"):
        (tmp_path / "notes.txt").write_text("x")
        config_lib.load(f"{tmp_path}/notes.txt")
