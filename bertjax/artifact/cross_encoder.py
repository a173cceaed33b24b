"""The metadata with which sentence-transformers' CrossEncoder gives the scores of a model.

A CrossEncoder with one output applies an activation to its logit. The name of the activation is in
config.json, and in folders that version 6 wrote in config_sentence_transformers.json. Without a
name, CrossEncoder applies the sigmoid. `transformers` returns the logit itself, so a folder that no
CrossEncoder wrote has scores without an activation here.

    content |= cross_encoder.keys("sigmoid")
    cross_encoder.activation(content, "model/config.json")      # "sigmoid"
"""

from collections.abc import Mapping
from typing import Any

from bertjax import errors

KIND = "CrossEncoder"  # the kind of the model in config_sentence_transformers.json
KEY, ACTIVATION = "sentence_transformers", "activation_fn"
OLD_KEY = "sbert_ce_default_activation_function"  # before version 4
DEFAULT = "torch.nn.modules.activation.Sigmoid"
ACTIVATIONS = {"identity": "torch.nn.modules.linear.Identity", "sigmoid": DEFAULT}


def keys(activation: str) -> dict[str, Any]:
    """Returns the keys of config.json for a model whose score is `activation` of its only logit."""
    return {KEY: {ACTIVATION: ACTIVATIONS[activation]}}


def name_in(content: Mapping[str, Any]) -> Any:
    """Returns the class of the activation that config.json names; None if it names none."""
    section = content.get(KEY)
    name = section.get(ACTIVATION) if isinstance(section, dict) else None
    return name or content.get(OLD_KEY)


def activation(content: Mapping[str, Any], where: Any) -> str:
    """Returns a key of ACTIVATIONS for the content of config.json; "identity" if it names none.

    Raises UserError naming `where` for any other activation.
    """
    name = name_in(content)
    if name is None:
        return "identity"
    class_name = str(name).rpartition(".")[2].lower()
    if class_name not in ACTIVATIONS:
        raise errors.UserError(
            f"{where}: the activation {name!r} of the scores is not supported; must be one of "
            f"{', '.join(ACTIVATIONS.values())}"
        )
    return class_name
