"""Every named recipe is valid and cites its source; flags override it."""

import ast
import pathlib
import re

import pytest

from bertjax import __main__ as command_line
from bertjax import config as config_lib
from bertjax import errors
from bertjax.finetuning import named, recipe

FOLDER = pathlib.Path(__file__).parents[2] / "configs" / "finetune"


def _config(name, **values):
    found = named.load(name)
    dotted = {key.replace("__", "."): value for key, value in values.items()}
    return recipe.make(found.task, None, {}, named.under(found, dotted))


def test_the_recipes_are_those_that_people_ask_for():
    assert named.names() == [
        "completion", "custom_qa", "dialogue", "domain_ner", "ner", "qa", "sentiment", "spam",
        "summarization", "topics",
    ]  # fmt: skip
    assert [line.split()[0] for line in named.table()] == named.names()


@pytest.mark.parametrize("name", named.names())
def test_a_recipe_is_valid_and_every_value_is_in_its_file(name):
    found, config = named.load(name), _config(name)
    recipe.validate(config)
    for key, value in found.values.items():
        assert config_lib.value_of(config, key) == value
    keys = {"num_epochs", "batch_size", "learning_rates", "max_length", "seeds", "strategy.name"}
    assert keys <= found.values.keys()
    text = (FOLDER / f"{name}.py").read_text()
    doc = ast.get_docstring(ast.parse(text))
    assert re.search(r"^Source: .*(arXiv \d{4}\.\d{5}|\d{4})", doc, re.MULTILINE)
    assert f"bertjax finetune --recipe={name} " in doc
    smoke = _config(f"{name}:smoke")
    recipe.validate(smoke)
    assert (smoke.num_epochs, smoke.data.max_train, len(smoke.learning_rates)) == (1, 64, 1)


def test_flags_override_a_recipe():
    assert _config("spam", num_epochs="4").num_epochs == 4
    assert _config("ner").learning_rates == (2e-5, 3e-5, 5e-5)
    # Rates for the whole model are not those of another strategy.
    assert _config("ner", strategy__name="lora").learning_rates == ()
    assert _config("ner", strategy__name="full").learning_rates == (2e-5, 3e-5, 5e-5)


def test_a_recipe_that_is_absent_is_one_line(tmp_path):
    with pytest.raises(errors.UserError, match=r"--recipe=spams: did you mean spam.*completion"):
        named.load("spams")
    with pytest.raises(errors.UserError, match="must be smoke or absent, not 'big'"):
        named.load("spam:big")
    own = tmp_path / "own.py"
    own.write_text((FOLDER / "spam.py").read_text().replace("20", "7"))
    assert named.load(str(own)).values["num_epochs"] == 7
    own.write_text("def get_recipe(arg): return {}")
    with pytest.raises(errors.UserError, match="get_recipe must return a Recipe"):
        named.load(str(own))


def test_the_help_lists_the_recipes_and_print_config_shows_one(capsys):
    assert command_line.main(("finetune", "--recipe=ner", "--print_config")) == 0
    out = capsys.readouterr().out
    assert "learning_rates=2e-05,3e-05,5e-05" in out and "config of the task ner" in out
    assert command_line.main(["finetune", "--help"]) == 0
    text = capsys.readouterr().out
    assert "  dialogue       Replies to a dialogue" in text and "--sweep.KEY V1,V2" in text
