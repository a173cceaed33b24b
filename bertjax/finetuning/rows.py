"""One text or two between the special tokens of a tokenizer, as rows to train on.

`data.tokenizers.special_tokens` says which tokens those are. Token types are 1 on B; a batch leaves
them out for a model without two types.

    form = Form(tokenizer)
    form.enclose([a, b], length).row      # of the ids of two texts
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import numpy as np

from bertjax.data.tokenizers import special_tokens
from bertjax.data.tokenizers import tokenizer as tokenizer_lib
from bertjax.finetuning import kind

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
FEATURES = {name: kind.Feature(np.int32) for name in INPUTS}

Row = dict[str, np.ndarray]


class Enclosed(NamedTuple):
    """Texts as a row: {name of INPUTS: int32[L]}.

    starts, sizes: where each text begins in it, and how many tokens of it there are.
    truncated: whether that is less than all of them.
    """

    row: Row
    starts: tuple[int, ...]
    sizes: tuple[int, ...]
    truncated: bool


class Form:
    """Where the special tokens stand."""

    def __init__(self, tokenizer: tokenizer_lib.Tokenizer):
        self._head, self._between, self._tail = special_tokens.of_rows(tokenizer)

    def overhead(self, num_texts: int) -> int:
        """Tokens of a row that are no text."""
        return len(self._head) + len(self._between) * (num_texts - 1) + len(self._tail)

    def enclose(self, texts: Sequence[Sequence[int]], length: int) -> Enclosed:
        """The row, of at most `length`, of the ids of one text or two.

        The longer text loses its end first. A row that were empty is one special token.
        """
        whole = [len(text) for text in texts]
        sizes = fitting(whole, length - self.overhead(len(texts)))
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
        return Enclosed(row, tuple(starts), tuple(sizes), sum(sizes) < sum(whole))


def fitting(sizes: Sequence[int], room: int) -> list[int]:
    """How much of one text or two is kept in `room` tokens: the longer one is cut first."""
    room = max(room, 0)
    if len(sizes) == 1:
        return [min(sizes[0], room)]
    short = min(*sizes, room // 2)
    long = min(max(sizes), room - short)
    return [long, short] if sizes[0] > sizes[1] else [short, long]


def encode(
    tokenizer: tokenizer_lib.Tokenizer, groups: Sequence[Sequence[str]]
) -> list[list[list[int]]]:
    """The ids of the texts of each group, without special tokens."""
    ids = iter(tokenizer.encode_batch([text for texts in groups for text in texts]))
    return [[next(ids) for _ in texts] for texts in groups]


def stack(made: Sequence[Row], count: int) -> Row:
    """Rows of one example as arrays [count, L], empty behind the last one."""
    length = max(len(row["input_ids"]) for row in made)
    stacked = {name: np.zeros((count, length), np.int32) for name in INPUTS}
    for name, array in stacked.items():
        for i, row in enumerate(made):
            array[i, : len(row[name])] = row[name]
    return stacked


def flat(apply: Callable[..., dict[str, jax.Array]]) -> Callable[..., dict[str, jax.Array]]:
    """The model on inputs [B, N, L], as on B * N rows."""

    def apply_flat(**inputs: jax.Array) -> dict[str, jax.Array]:
        return apply(**{name: x.reshape(-1, x.shape[-1]) for name, x in inputs.items()})

    return apply_flat
