"""Computes a folder's ids and outputs with bertjax, exports it, and compares with transformers."""

import functools
import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from bertjax import errors, plugins
from bertjax.artifact import artifact, hf_config, huggingface
from bertjax.data.tokenizers import special_tokens
from bertjax.inference.pretrained import Pretrained
from tests.zoo import texts, theirs

TOLERANCE = 1e-4


class Result(NamedTuple):
    """The result of comparing a folder.

    refusal: the message of the UserError; "" if the folder was read. differences: descriptions of
    the ids and outputs that are not equal; empty if all are.
    """

    refusal: str = ""
    differences: tuple[str, ...] = ()


def compare(folder: pathlib.Path, export: pathlib.Path, own: Sequence[str] = ()) -> Result:
    """Reads a folder, compares it with the results of `theirs.save`, and writes it to `export`.

    own: parts of the texts whose ids must differ, see `table.Own`.
    """
    try:
        model = huggingface.read(folder)
        tokenized, expected = theirs.load(folder)
        problems = []
        if tokenized:
            differing = _ids(tokenize(model, tokenized["texts"]), tokenized)
            problems += _without(differing, own)
            problems += [
                f"ids of the text with {part!r}: equal, though tests/zoo/table.py has a rule"
                for part in own
                if not any(part in text for text in differing)
            ]
        if expected:
            problems += _outputs(outputs(model, folder), expected)
        huggingface.write(model, export)
    except errors.UserError as error:
        return Result(refusal=str(error))
    return Result(differences=tuple(problems))


def compare_export(
    folder: pathlib.Path, export: pathlib.Path, own: Sequence[str] = ()
) -> tuple[str, ...]:
    """Returns how transformers' ids and outputs of the export differ from those of the folder.

    If the export has another class, outputs that it lacks (such as pooled_output) are skipped. So
    are texts that contain a part in `own`.
    """
    try:
        (tokenized, found), (wanted, expected) = theirs.load(export), theirs.load(folder)
    except RuntimeError as error:
        return (f"export: {error}",)
    if theirs.class_name(export) != theirs.class_name(folder):
        expected = {name: value for name, value in expected.items() if name in found}
    differing = _ids(tokenized, wanted) if wanted else {}
    problems = [*_without(differing, own), *_outputs(found, expected)]
    return tuple(f"export: {problem}" for problem in problems)


def tokenize(model: artifact.Artifact, given: list[str]) -> dict[str, Any]:
    """Returns the same as `theirs.tokenize`; special tokens in the texts are parsed."""
    pretrained = Pretrained(model)
    tokenizer = model.tokenizer

    def ids(text: str) -> list[int]:
        encoded = tokenizer.encode(text, specials_in_text=True)
        return pretrained.with_ends(encoded, text, True).tolist()

    return {"texts": given, "ids": [ids(text) for text in given], "pairs": _pairs(model)}


def _pairs(model: artifact.Artifact) -> list[list[int]]:
    """Returns the ids of each pair as in fine-tuning of an encoder; [] for other models."""
    if plugins.family(model.family).KIND != "encoder":
        return []
    around = special_tokens.of_rows(model.tokenizer)
    encoded = [model.tokenizer.encode_batch(pair) for pair in texts.PAIRS]
    return [[*around.head, *a, *around.between, *b, *around.tail] for a, b in encoded]


@functools.partial(jax.jit, static_argnames="model")
def _forward(model: Any, params: Any, features: dict[str, jax.Array]) -> dict[str, jax.Array]:
    return model.apply({"params": params}, **features, output_hidden_states=True)


def outputs(model: artifact.Artifact, folder: pathlib.Path) -> dict[str, np.ndarray]:
    """Returns the same as `theirs.outputs`, for the model that was read from the folder."""
    vocab_size = model.fields["vocab_size"]
    features = theirs.batch(folder)
    linen = plugins.model(model.family, model.fields)
    found = jax.device_get(_forward(linen, model.params, features))
    for key in ("mlm_logits", "logits"):
        if key in found:
            found[key] = found[key][..., :vocab_size]
    return {key: theirs.real(key, np.asarray(value), features) for key, value in found.items()}


def _ids(found: dict[str, Any], wanted: dict[str, Any]) -> dict[str, str]:
    """Returns text -> description of the difference, for texts and pairs whose ids differ."""
    rows = [*zip(wanted["texts"], found["ids"], wanted["ids"], strict=True)]
    rows += zip(map(str, texts.PAIRS), found["pairs"], wanted["pairs"], strict=False)
    return {text: f"ids of {text!r}: {one}, not {two}" for text, one, two in rows if one != two}


def _without(differing: dict[str, str], own: Sequence[str]) -> list[str]:
    return [
        problem for text, problem in differing.items() if not any(part in text for part in own)
    ]


def _outputs(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> list[str]:
    problems = []
    for name, value in expected.items():
        if name not in found:
            problems.append(f"no {name}")
            continue
        difference = float(np.abs(found[name] - value).max())
        if not difference <= TOLERANCE:
            problems.append(f"{name} differs by {difference:.1e}")
    return problems


def model_types() -> set[str]:
    """Returns every model_type of transformers that can be read."""
    return {name for name, _ in hf_config.readers()} - {"spanbert"}
