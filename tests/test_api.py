"""The functions of `import bertjax`."""

import argparse
import importlib
import inspect
import pathlib

import jax
import jax.numpy as jnp
import pytest

import bertjax
from bertjax import __main__, errors, html_tables, train
from bertjax import config as config_lib
from bertjax.inference import pretrained
from bertjax.planning import compile
from tests.helpers import corpora, preparing, tiny_model

SMOKE = str(pathlib.Path(__file__).resolve().parent.parent / "configs" / "bert_tiny.py:smoke")


def test_a_family_is_built_with_fields_of_ones_own():
    model = bertjax.build("bert", "mini", num_layers=2, vocab_size=64, dropout_rate=0.0)
    assert (model.config.num_layers, model.config.hidden_size) == (2, 256)
    ids = jnp.ones((1, 4), jnp.int32)
    params = model.init(jax.random.key(0), ids, ids, ids)
    assert "params" in params


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("brt",), "family = 'brt'"),
        (("bert", "enormous"), "bert has no variant 'enormous'; its variants are tiny, "),
    ],
)
def test_a_name_that_there_is_not_is_one_line(words, message):
    with pytest.raises(errors.UserError, match=message):
        bertjax.build(*words)
    with pytest.raises(errors.UserError, match="the Config of bert has no field 'num_layer'; did"):
        bertjax.build("bert", num_layer=2)


def test_pretrain_takes_a_file_or_a_config(monkeypatch):
    seen = []

    def trained(*args, origin):
        seen.append((*args, origin))
        return {"loss": 1}

    monkeypatch.setattr(train, "train_and_evaluate", trained)
    config = config_lib.load(SMOKE)
    for given in (SMOKE, config):
        assert bertjax.pretrain(given, "run", {"data.path": "here", "seed": 3}) == {"loss": 1}
    assert [workdir for _, workdir, _ in seen] == ["run", "run"]
    assert seen[0][2].recipe == SMOKE and seen[0][2].changed == {"data.path": "", "seed": "0"}
    assert seen[1][2] is None, "the recipe of a config in memory is unknown"
    assert seen[0][0] == seen[1][0] and seen[0][0].data.path == "here" and seen[0][0].seed == 3
    assert config.seed == 0 and seen[0][0].is_locked
    with pytest.raises(errors.UserError, match="unknown config key 'sed'; did you mean seed"):
        bertjax.pretrain(config, "run", {"sed": 1})


def test_pretrain_returns_a_dict_that_a_notebook_shows(monkeypatch):
    monkeypatch.setattr(train, "train_and_evaluate", lambda *args, **kwargs: {"mlm_loss": 1.5})
    heldout = bertjax.pretrain(SMOKE, "run")
    assert heldout == {"mlm_loss": 1.5} and heldout.pop("mlm_loss") == 1.5
    assert "<td" in html_tables.Numbers({"a<b": 2.0})._repr_html_()
    assert "a<b" not in html_tables.Numbers({"a<b": 2.0})._repr_html_()
    predictions = [{"label": "cat", "probabilities": {"cat": 0.75, "dog": 0.25}}, {"span": None}]
    shown = html_tables.Records(predictions)
    assert shown == predictions
    assert ">cat 0.75, dog 0.25</td>" in shown._repr_html_() and ">None</td>" in shown._repr_html_()


def test_plan_gives_what_the_command_prints(monkeypatch, capsys):
    monkeypatch.setattr(compile, "installed", lambda: False)
    planned = bertjax.plan(SMOKE, topology="v5e-4", mesh="fsdp:4", price=2.0)
    assert planned.fits and planned.plan.mesh["fsdp"] == 4
    assert planned.cost == pytest.approx(planned.hours * 4 * 2.0)
    flags = ["--topology=v5e-4", "--mesh=fsdp:4", "--price=2"]
    assert __main__.main(["plan", f"--config={SMOKE}", *flags]) == 0
    assert capsys.readouterr().out == f"{planned!r}\n"
    assert "fsdp:4" in planned._repr_html_() and planned.to_json()["cost"] == planned.cost

    config = config_lib.load(SMOKE)
    found = bertjax.plan(config, topology="v5e-1", search=True, overrides={"batch_size": 64})
    assert found.best.plan.config.batch_size == 64
    assert found.best.hours == found.candidates[0].plan.hours and found.best.cost is None
    assert f"{found.num_fitting:,} combinations" in found._repr_html_()
    with pytest.raises(errors.UserError, match="unknown config key 'bach'"):
        bertjax.plan(SMOKE, overrides={"bach": 1})


def test_text_becomes_prepared_data(tmp_path, capsys):
    corpus = corpora.write_jsonl(tmp_path / "corpus.jsonl", preparing.TEXTS)
    trained = bertjax.train_tokenizer(corpus, tmp_path / "tok", vocab_size=150)
    assert trained.documents == len(preparing.TEXTS) and not trained.already_present
    again = bertjax.train_tokenizer([corpus], tmp_path / "tok", vocab_size=150)
    assert again.already_present and again.tokenizer.fingerprint == trained.tokenizer.fingerprint
    flags = [f"--input={corpus}", f"--output={tmp_path / 'tok'}", "--vocab_size=150"]
    assert __main__.main(["tokenizer", *flags]) == 0
    assert capsys.readouterr().out == f"{again!r}\n"

    data = bertjax.prepare(corpus, tmp_path / "tok", tmp_path / "data", workers=1, min_chars=5)
    assert data.documents + data.filtered.get("too_short", (0, 0))[0] == len(preparing.TEXTS)
    assert data.heldout_documents >= 1 and data.manifest["splits"]["train"]["shards"]
    assert f"{data.tokens:,}" in repr(data) and f"{data.tokens:,}" in data._repr_html_()
    assert trained.tokenizer.fingerprint in trained._repr_html_()
    with pytest.raises(errors.UserError, match="kind = 'words': must be one of wordpiece, bpe"):
        bertjax.train_tokenizer(corpus, tmp_path / "other", vocab_size=150, kind="words")
    with pytest.raises(errors.UserError, match="runner = 'spark': must be one of local, beam"):
        bertjax.prepare(corpus, tmp_path / "tok", tmp_path / "other", runner="spark")


# {function: flags of the command that are no arguments of the function}
COMMANDS = {
    "train_tokenizer": ("tokenizer", set()),
    "prepare": ("prepare", set()),
    "plan": ("plan", {"json", "print_config"}),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_arguments_are_the_flags_of_the_command(name):
    command, left_out = COMMANDS[name]
    module = importlib.import_module(f"bertjax.commands.{command}")
    parser = argparse.ArgumentParser()
    module.add_flags(parser)
    flags = {action.dest for action in parser._actions} - {"help"} - left_out
    arguments = inspect.signature(getattr(bertjax, name)).parameters
    assert set(arguments) - {"beam", "overrides"} == flags
    for action in parser._actions:
        default = arguments[action.dest].default if action.dest in flags else None
        if isinstance(action.default, str | int | float) and action.dest in flags:
            assert default == action.default or (default, action.default) == ((), "")


def test_what_a_model_answers_is_shown_as_a_table():
    bert = pretrained.Pretrained(tiny_model.make())
    fills = bert.fill_mask("a [MASK] sat on the [MASK]", top=2)
    assert fills == [list(fill) for fill in fills] and len(fills) == 2
    assert all(fill.piece in fills._repr_html_() for mask in fills for fill in mask)
    one, many = bert.score("a cat sat"), bert.score(["a cat sat", "a dog ran"])
    assert isinstance(one, float) and many.shape == (2,) and many[0] == pytest.approx(one)
    assert bert.config is bert.model.config
