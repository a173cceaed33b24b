"""The contract of a kind of task: from examples to rows of ids, from outputs to predictions.

A kind is one file of `finetuning/kinds`, loaded by its name (`load`). It defines

    KINDS: tuple of the kinds of models it trains ("encoder", "encoder_decoder", "decoder").
    LIBRARIES: tuple of the modules that `scores` needs and that may not be installed.
    Config: frozen dataclass of its own options, which are `config.kind` in a config.
    Example: the type in `examples` of one labelled line of a file.

    heads(config) -> the heads of the model that it reads, () for the model's own "lm"
    num_labels(config, labels) -> size of the head
    labels(config, examples) -> label names in order, () if there are none
    check(config, examples, labels, where) -> raises UserError for a label that is not in labels
    features(config) -> {name: Feature}: every array of a row
    encode(config, examples, tokenizer, labels, lengths) -> Encoded; examples may lack labels
    normalizers(config, batch) -> {loss name: weight}, like an objective's
    loss(config, apply, batch) -> {name: (sum, weight)}, like an objective's; NAME_loss first
    outputs(config, apply, batch) -> {name: array, batch first}: what `decode` needs (on the device)
    decode(config, examples, encoded, outputs, labels, tokenizer) -> one prediction per example
    scores(config, examples, predictions, labels) -> {name: float}, all scores of the kind;
        0 to 100 where that is usual (accuracy, F1, BLEU); the task names the main one
    tuned (optional): (config, labelled examples of dev, predictions) -> Config with values tuned on
        dev, to use in `decode` from then on and to store (the null threshold of SQuAD 2.0)
    asked (optional): (config, examples to predict) -> Config for them, if they may need more than
        those of training did (questions without an answer)
    predict_loop (optional): (config, pretrained model, encoded, prompt_ids) -> outputs, if a
        prediction needs many forward passes (generation); prompt_ids: of a strategy, () for none
    for_model (optional): (config, artifact) -> the config adapted to the model to start with
    FORMER (optional): {field of Config: value} of fields that configs stored by earlier versions
        lack, and the value that those versions had
    ACROSS_ROWS (optional): True if the loss of a row also depends on other rows of its batch

A row is one input of the model. An example of question answering may have several rows (windows).
A batch has the rows' arrays, stacked and padded to common lengths, and "example_weights"
float32[B], which is 0 for padding rows; every loss multiplies by it. It has "token_type_ids" only
for a model with two token types: `Batches` omits them for RoBERTa, DistilBERT, ModernBERT, GPT-2.
"""

import dataclasses
import importlib
import pkgutil
from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from bertjax import errors
from bertjax.finetuning import kinds


class Feature(NamedTuple):
    """An array of a row: its type, and the length to which its last axis is padded with zeros.

    length: "length" (of the input), "target_length" (of a decoder), or "" for a scalar or an array
    of a fixed shape.
    """

    dtype: type
    length: str = "length"


class Lengths(NamedTuple):
    """The maximum tokens of a row and of a target.

    They include special tokens, but not the prompt of a strategy.
    """

    length: int
    target_length: int = 0


@dataclasses.dataclass(frozen=True)
class Encoded:
    """Examples as rows of a model.

    rows: each {feature: array}; the last axis of features with a length is not padded.
    owners: int[rows], the number of the example that a row belongs to, ascending.
    truncated: bool[examples], whether text was truncated (windows truncate nothing).
    """

    rows: list[dict[str, np.ndarray]]
    owners: np.ndarray
    truncated: np.ndarray


def not_trained(place: str, what: str, known: Sequence[str]) -> errors.UserError:
    """Returns the error for a label or a tag that is not one of the trained ones, `known`."""
    return errors.UserError(
        f"{place}: {what} is not one that is trained: {errors.several(known)}; correct it, or add "
        "examples of it to the training data"
    )


def summed(chances: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Returns {text: probability} in the given order; probabilities of equal texts are added."""
    found: dict[str, float] = {}
    for text, chance in chances:
        found[text] = found.get(text, 0.0) + float(chance)
    return found


def former(module: ModuleType) -> dict[str, Any]:
    """Returns {field: value} for the fields that stored configs of a kind may lack."""
    return getattr(module, "FORMER", {})


def names() -> list[str]:
    """Returns the names of the kinds."""
    return [module.name for module in pkgutil.iter_modules(kinds.__path__)]


def load(name: str) -> ModuleType:
    """Returns the module of a kind. Raises UserError for a name without a file."""
    if name not in names():
        raise errors.UserError(f"kind {name!r}: there are {', '.join(names())}")
    return importlib.import_module(f"{kinds.__name__}.{name}")
