"""Ids and outputs of a folder by bertjax, its export, and how they differ from transformers'."""

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
    """What became of a folder.

    refusal: the message of the UserError, "" where there is none. differences: what is not equal,
    in words; empty where ids and outputs are equal, in the folder and in its export.
    """

    refusal: str = ""
    differences: tuple[str, ...] = ()


def compare(folder: pathlib.Path, export: pathlib.Path, own: Sequence[str] = ()) -> Result:
    """Reads a folder that `theirs.save` has seen, compares it, and exports it to another.

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
    """How transformers' ids and outputs of the export differ from those of the folder.

    An output that only another class has, such as pooled_output, is not compared, and neither are
    the texts with a part that is in `own`.
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
    """As `theirs.tokenize`; special tokens in the texts count as such."""
    pretrained = Pretrained(model)
    tokenizer = model.tokenizer

    def ids(text: str) -> list[int]:
        encoded = tokenizer.encode(text, specials_in_text=True)
        return pretrained.with_ends(encoded, text, True).tolist()

    return {"texts": given, "ids": [ids(text) for text in given], "pairs": _pairs(model)}


def _pairs(model: artifact.Artifact) -> list[list[int]]:
    """Ids of each pair of texts as an encoder is fine-tuned on them; other models read no pairs."""
    if plugins.family(model.family).KIND != "encoder":
        return []
    around = special_tokens.of_rows(model.tokenizer)
    encoded = [model.tokenizer.encode_batch(pair) for pair in texts.PAIRS]
    return [[*around.head, *a, *around.between, *b, *around.tail] for a, b in encoded]


@functools.partial(jax.jit, static_argnames="model")
def _forward(model: Any, params: Any, features: dict[str, jax.Array]) -> dict[str, jax.Array]:
    return model.apply({"params": params}, **features, output_hidden_states=True)


def outputs(model: artifact.Artifact, folder: pathlib.Path) -> dict[str, np.ndarray]:
    """As `theirs.outputs`, of the model that was read from the folder."""
    vocab_size = model.fields["vocab_size"]
    features = theirs.batch(folder)
    linen = plugins.model(model.family, model.fields)
    found = jax.device_get(_forward(linen, model.params, features))
    for key in ("mlm_logits", "logits"):
        if key in found:
            found[key] = found[key][..., :vocab_size]
    return {key: theirs.real(key, np.asarray(value), features) for key, value in found.items()}


def _ids(found: dict[str, Any], wanted: dict[str, Any]) -> dict[str, str]:
    """Text -> how its ids differ, for the texts and pairs whose ids do."""
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
    """Every model_type of a config.json that is read."""
    own = {plugins.family(name).HF_CONFIG["model_type"] for name in plugins.families()}
    return own | set(hf_config.MODEL_TYPES)
