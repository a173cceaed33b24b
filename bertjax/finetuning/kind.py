"""What a kind of task is: from labelled examples to rows of ids, and from outputs to answers.

A kind is one file of `finetuning/kinds`, found by its name (`load`). It has

    KINDS: tuple of the kinds of models it trains ("encoder", "encoder_decoder", "decoder").
    LIBRARIES: tuple of the modules that `scores` needs and that may not be installed.
    Config: frozen dataclass of its own knobs, which a config shows as `config.kind`.
    Example: one of `examples`, what one labelled line of a file says.

    heads(config) -> the heads of the model that it reads, () for the model's own "lm"
    num_labels(config, labels) -> size of the head
    labels(config, examples) -> label names in order, () where there are none
    check(config, examples, labels, where) -> raises UserError for a label that is not one of them
    features(config) -> {name: Feature}: every array of a row
    encode(config, examples, tokenizer, labels, lengths) -> Encoded; examples may lack labels
    normalizers(config, batch) -> {loss name: weight}, as an objective's
    loss(config, apply, batch) -> {name: (sum, weight)}, as an objective's; NAME_loss first
    outputs(config, apply, batch) -> {name: array, batch first}: what `decode` needs (on the device)
    decode(config, examples, encoded, outputs, labels, tokenizer) -> one prediction an example
    scores(config, examples, predictions, labels) -> {name: float}, all that the kind can say;
        0 to 100 where the field does so (accuracy, F1, BLEU); the task names the main one
    tuned (optional): (config, labelled examples of dev, predictions) -> Config with what is chosen
        on dev, to `decode` with from then on and to keep (the null threshold of SQuAD 2.0)
    asked (optional): (config, examples to answer) -> Config for them, which may ask for more than
        those of training did (questions without an answer)
    predict_loop (optional): (config, pretrained model, encoded, prompt_ids) -> outputs, where an
        answer is not one forward pass (generation); prompt_ids: of a strategy, () for none
    for_model (optional): (config, artifact) -> the config as the model that starts needs it
    FORMER (optional): {field of Config: value} of fields that configs stored by earlier versions
        lack, and the value that those versions had
    ACROSS_ROWS (optional): True where the loss of a row is of the other rows of its batch too

Rows are what the model sees: an example of question answering may be several (windows). A batch has
the rows' arrays stacked and padded to common lengths, and "example_weights" float32[B], 0 for rows
that only fill it up; every loss multiplies by it. It has "token_type_ids" only where the model has
two types of tokens: who makes batches leaves them out for RoBERTa, DistilBERT, ModernBERT, GPT-2.
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
    """An array of a row: its type, and to which length its last axis is padded with zeros.

    length: "length" (of the input), "target_length" (of a decoder), or "" for a scalar or an array
    of a fixed shape.
    """

    dtype: type
    length: str = "length"


class Lengths(NamedTuple):
    """The most tokens of a row: special tokens included, the prompt of a strategy not."""

    length: int
    target_length: int = 0


@dataclasses.dataclass(frozen=True)
class Encoded:
    """Examples as rows of a model.

    rows: each {feature: array}; the last axis of those with a length is as long as it needs to be.
    owners: int[rows], the number of the example that a row belongs to, ascending.
    truncated: bool[examples], whether text was cut off (windows cut nothing).
    """

    rows: list[dict[str, np.ndarray]]
    owners: np.ndarray
    truncated: np.ndarray


def not_trained(place: str, what: str, known: Sequence[str]) -> errors.UserError:
    """The error for a label or a tag that the model does not know. known: those that it does."""
    return errors.UserError(
        f"{place}: {what} is not one that is trained: {errors.several(known)}; correct it, or add "
        "examples of it to the training data"
    )


def summed(chances: Iterable[tuple[str, float]]) -> dict[str, float]:
    """{text: probability} in the order given; equal texts have theirs together."""
    found: dict[str, float] = {}
    for text, chance in chances:
        found[text] = found.get(text, 0.0) + float(chance)
    return found


def former(module: ModuleType) -> dict[str, Any]:
    """Returns the fields that stored configs of a kind may lack, with the values that they mean."""
    return getattr(module, "FORMER", {})


def names() -> list[str]:
    """The kinds there are."""
    return [module.name for module in pkgutil.iter_modules(kinds.__path__)]


def load(name: str) -> ModuleType:
    """The module of a kind. UserError for a name without a file."""
    if name not in names():
        raise errors.UserError(f"kind {name!r}: there are {', '.join(names())}")
    return importlib.import_module(f"{kinds.__name__}.{name}")
