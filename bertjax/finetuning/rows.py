"""Makes rows, the inputs of a model: one or two texts with a tokenizer's special tokens.

An example of question answering may have several rows (windows). If an example has several inputs,
such as choices, `stack` combines them into one row. `data.tokenizers.special_tokens` defines the
special tokens. Token types are 0 on the first text and 1 on the second; a batch omits them for a
model without two token types.

    form = Form(tokenizer)
    form.enclose([a, b], length).row      # a, b: the ids of two texts
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from bertjax.artifact import artifact
from bertjax.data.tokenizers import special_tokens
from bertjax.data.tokenizers import tokenizer as tokenizer_lib
from bertjax.models.common import row_packing

TEACHER = "teacher_targets"  # a teacher's outputs in a row, see `distillation`
FIRST_MASK = "first_mask"  # attention mask of a row's first text, padded for first texts alone
INPUTS = ("input_ids", "attention_mask", "token_type_ids")

Row = dict[str, np.ndarray]


class Feature(NamedTuple):
    """Describes an array of a row: its type, and how its last axis is padded with zeros.

    length: the field of `batching.Shape` with the padded length: "length" for an input of the
    model, "target_length" for the target of an encoder-decoder, "first_length" for the first of
    several texts. "" for a scalar or an array of a fixed shape, which is not padded.
    """

    dtype: type
    length: str = "length"


FEATURES = {name: Feature(np.int32) for name in INPUTS}


def absent(fields: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the features that a model with these fields does not read.

    A model with fewer than two token types does not read token_type_ids. Every model reads all
    other features.
    """
    return () if artifact.has_token_types(fields) else ("token_type_ids",)


class Lengths(NamedTuple):
    """The maximum numbers of tokens of a row and of a target.

    They include special tokens, but not the prompt of a strategy. target_length: 0 if the task type
    has no targets.
    """

    length: int
    target_length: int = 0


@dataclasses.dataclass(frozen=True)
class Encoded:
    """Examples as rows of a model.

    rows: {feature: array} for each row, not yet padded.
    owners: int[rows], the index of the example that each row belongs to, ascending.
    truncated: bool[examples], whether text was truncated. Windows do not truncate a text.
    """

    rows: list[Row]
    owners: np.ndarray
    truncated: np.ndarray


class Enclosed(NamedTuple):
    """One or two texts as a row.

    row: {name of INPUTS: int32[L]}.
    starts, sizes: where each text begins in the row, and how many of its tokens are there.
    truncated: whether any tokens were left out.
    """

    row: Row
    starts: tuple[int, ...]
    sizes: tuple[int, ...]
    truncated: bool


class Form:
    """Puts the special tokens of a tokenizer around texts."""

    def __init__(self, tokenizer: tokenizer_lib.Tokenizer):
        self._head, self._between, self._tail = special_tokens.of_rows(tokenizer)

    def overhead(self, num_texts: int) -> int:
        """Returns the number of special tokens in a row of `num_texts` texts."""
        return len(self._head) + len(self._between) * (num_texts - 1) + len(self._tail)

    def enclose(self, texts: Sequence[Sequence[int]], length: int) -> Enclosed:
        """Returns the row, of at most `length` tokens, for the ids of one or two texts.

        The longer text is truncated first, at its end. A row that would be empty gets one
        special token.
        """
        full_sizes = [len(text) for text in texts]
        sizes = fitting(full_sizes, length - self.overhead(len(texts)))
        ids, starts = [*self._head], []
        for text, size in zip(texts, sizes, strict=True):
            ids += self._between if starts else []
            starts.append(len(ids))
            ids += text[:size]
        ids = np.array([*ids, *self._tail] or self._between, np.int32)
        in_second = np.arange(len(ids)) >= (starts[1] if len(texts) == 2 else len(ids))
        row = {
            "input_ids": ids,
            "attention_mask": np.ones_like(ids),
            "token_type_ids": in_second.astype(np.int32),
        }
        return Enclosed(row, tuple(starts), tuple(sizes), sum(sizes) < sum(full_sizes))


def fitting(sizes: Sequence[int], room: int) -> list[int]:
    """Returns how many tokens of each text fit into `room`; truncates the longer text first."""
    room = max(room, 0)
    if len(sizes) == 1:
        return [min(sizes[0], room)]
    short = min(*sizes, room // 2)
    long = min(max(sizes), room - short)
    return [long, short] if sizes[0] > sizes[1] else [short, long]


def encode(
    tokenizer: tokenizer_lib.Tokenizer, groups: Sequence[Sequence[str]]
) -> list[list[list[int]]]:
    """Returns the ids of each text in each group, without special tokens."""
    ids = iter(tokenizer.encode_batch([text for texts in groups for text in texts]))
    return [[next(ids) for _ in texts] for texts in groups]


def stack(rows: Sequence[Row], count: int) -> Row:
    """Returns the rows of one example stacked as arrays [count, L]; missing rows are zeros."""
    length = max(len(row["input_ids"]) for row in rows)
    stacked = {name: np.zeros((count, length), np.int32) for name in INPUTS}
    for name, array in stacked.items():
        for i, row in enumerate(rows):
            array[i, : len(row[name])] = row[name]
    return stacked


def computed_length(first_length: int, length: int) -> int:
    """Returns the length of the rows in which the first of several texts are computed.

    It is their own if it is at most half of `length`, that of the others: as a rule, a query is
    much shorter than the documents.
    """
    return first_length if 0 < 2 * first_length <= length else length


def computed_first_length(batch: Mapping[str, jax.Array]) -> int:
    """Returns the `computed_length` of the first texts of a batch, whose inputs are [B, N, L]."""
    _, num_texts, length = batch["input_ids"].shape
    if num_texts == 1 or FIRST_MASK not in batch:
        return length
    return computed_length(batch[FIRST_MASK].shape[-1], length)


def inputs(batch: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
    """Returns the inputs of a model in a batch, as arguments for `apply`."""
    return {name: batch[name] for name in (*INPUTS, row_packing.NAME) if name in batch}


def flat(apply: Callable[..., dict[str, jax.Array]]) -> Callable[..., dict[str, jax.Array]]:
    """Wraps `apply` to accept inputs [B, N, L] as B * N rows; its outputs have B * N rows."""

    def apply_flat(**inputs: jax.Array) -> dict[str, jax.Array]:
        rows = {name: x.reshape(-1, x.shape[-1]) for name, x in inputs.items() if name in INPUTS}
        return apply(**inputs | rows)

    return apply_flat
