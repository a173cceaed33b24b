"""Every plug-in of the package is in the file that mypy compares with the protocols."""

from bertjax import plugins
from bertjax.finetuning.examples import types
from bertjax.objectives.common import hooks
from tests import plugin_types


def _names(modules):
    return [module.__name__.rpartition(".")[2] for module in modules]


def test_every_family_and_objective_is_compared():
    assert _names(plugin_types.FAMILIES) == sorted(plugins.families())
    assert _names(plugin_types.OBJECTIVES) == sorted(plugins.objective_names())


def test_every_type_of_example_is_compared_and_named_as_its_file():
    assert list(types.TYPES.values()) == plugin_types.EXAMPLES
    names = ["sentences", "words", "questions", "text_pairs", "choices", "candidates", "mixed"]
    assert list(types.TYPES) == names


def test_every_hook_of_an_objective_is_compared():
    there = {name: hooks.of(plugins.objective(name)) for name in plugins.objective_names()}
    defined = {name: found for name, found in there.items() if found != hooks.Hooks()}
    assert defined == plugin_types.HOOKS
