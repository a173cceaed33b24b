"""What batches need to know of a tokenizer: sizes, special ids and two tables, as plain NumPy."""

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class Specials:
    """Ids of the special tokens; -1 where the vocabulary has none."""

    pad: int
    unk: int
    cls: int
    sep: int
    mask: int


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """A tokenizer without its rules: cheap to make, to compare and to send to a worker.

    size: number of real pieces, specials included.
    continuations: bool[size], True where a piece goes on with the word before it.
    special_mask: bool[size], True for special tokens.
    """

    size: int
    specials: Specials
    continuations: np.ndarray
    special_mask: np.ndarray
