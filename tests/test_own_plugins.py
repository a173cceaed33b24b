"""A family and an objective of one's own package; a plug-in that cannot be loaded."""

import pathlib

import pytest

import bertjax
from bertjax import config as config_lib
from bertjax import errors, objectives, plugins, sharding, train
from bertjax.artifact import huggingface
from tests.helpers import corpora

ROOT = pathlib.Path(__file__).resolve().parent.parent

FAMILY = '''
"""BERT without dropout, which learns by an objective of this package."""
import dataclasses
from bertjax.models import bert
from bertjax.models.bert import HEADS, INPUTS, KIND, SMOKE, VARIANTS, flops_per_sequence

OBJECTIVE = {"name": "own_package.own_objective", "mask_rate": 0.4}

@dataclasses.dataclass(frozen=True)
class Config(bert.Config):
    dropout_rate: float = 0.0
    attention_dropout_rate: float = 0.0
    heads: tuple[str, ...] = ("mlm",)

class Model(bert.Model):
    config: Config
'''
OBJECTIVE = '''
"""Masked language modelling with another rate."""
import dataclasses
from bertjax.objectives import mlm
from bertjax.objectives.mlm import (
    KINDS, features, heads, loss, normalizers, predictions, sampling, scales, transform
)

@dataclasses.dataclass(frozen=True)
class Config(mlm.Config):
    pair: str = "none"
'''
FILE = """
from bertjax import config as config_lib

def get_config(arg=""):
    return config_lib.smoke(config_lib.default({!r}, "tiny"))
"""


@pytest.fixture
def own_package(tmp_path, monkeypatch):
    """The name of a package with a family and an objective."""
    folder = tmp_path / "own_package"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "own_bert.py").write_text(FAMILY)
    (folder / "own_objective.py").write_text(OBJECTIVE)
    monkeypatch.syspath_prepend(tmp_path)
    return folder.name


def test_a_family_and_an_objective_of_another_package_are_trained_and_loaded(own_package, tmp_path):
    data = corpora.make(tmp_path)
    (tmp_path / "config.py").write_text(FILE.format(f"{own_package}.own_bert"))
    keys = {"data.path": str(data / "prepared"), "model.vocab_size": "150", "num_steps": "4"}
    keys |= {"optimizer.warmup_steps": "1", "optimizer.decay_steps": "0"}
    config = config_lib.load(str(tmp_path / "config.py"), keys)
    assert config.objective.name == f"{own_package}.own_objective"
    assert config.objective.mask_rate == 0.4 and config.model.dropout_rate == 0.0
    train.train_and_evaluate(config, tmp_path / "run")
    assert bertjax.load(tmp_path / "run").fill_mask("the [MASK]")
    model = bertjax.load(tmp_path / "run").source
    with pytest.raises(errors.UserError, match=r"own_package\.own_bert has no tables.*artifact"):
        huggingface.write(model, tmp_path / "hf")


def test_an_objective_of_another_package_is_chosen_by_one_flag(own_package):
    base = str(ROOT / "configs" / "bert_tiny.py")
    config = config_lib.load(base, {"objective.name": f"{own_package}.own_objective"})
    assert config.objective.pair == "none" and config.model.heads == ("mlm",)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("own_package.absent", "No module named 'own_package.absent'; .*PYTHONPATH"),
        ("absent_package.own", "No module named 'absent_package'; .*PYTHONPATH"),
        ("own_package.", "cannot import the module own_package."),
        ("own_package.own_bert", "own_bert.py must define KINDS, sampling"),
    ],
)
def test_a_module_that_is_no_objective_is_named(own_package, name, message):
    with pytest.raises(errors.UserError, match=f"config.objective.name = {name!r}: .*{message}"):
        config_lib.default("bert", "tiny", name)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("def get(:", "SyntaxError"),
        ("import no_such_library", "No module named 'no_such_library'"),
        ("1 / 0", "ZeroDivisionError"),
        ('KINDS = ("encoder",)', r"unfinished.py must define Config, sampling, .*loss"),
    ],
)
def test_an_unfinished_file_fails_only_who_names_it(tmp_path, monkeypatch, code, message):
    (tmp_path / "unfinished.py").write_text(code)
    monkeypatch.setattr(objectives, "__path__", [*objectives.__path__, str(tmp_path)])
    assert "unfinished" not in plugins.objectives_of("encoder")
    config_lib.load(str(ROOT / "configs" / "bert_tiny.py"))
    with pytest.raises(errors.UserError, match=f"'unfinished': .*{message}"):
        config_lib.load(str(ROOT / "configs" / "bert_tiny.py"), {"objective.name": "unfinished"})


def test_a_line_for_an_own_parameter_name(monkeypatch):
    monkeypatch.setattr(sharding, "PARAM_AXES", [*sharding.PARAM_AXES])
    sharding.PARAM_AXES.insert(0, (r"own_table/values$", ("vocab", None)))
    assert sharding.param_axes("decoder/own_table/values") == ("vocab", None)


@pytest.mark.parametrize("title", ["family", "objective"])
def test_readme_names_every_part_of_a_plug_in(title):
    text = (ROOT / "README.md").read_text()
    start = text.index(f"**A{'n' * (title == 'objective')} {title}**")
    paragraph = text[start : text.index("\n\n", start)]
    for part in getattr(plugins, title.upper()):
        assert f"`{part}`" in paragraph or f"`{part}(" in paragraph, part
