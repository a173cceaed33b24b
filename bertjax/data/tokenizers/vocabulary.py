"""The parts of a tokenizer that are needed to make batches: size, special ids, masks (NumPy)."""

import dataclasses
import functools

import numpy as np

NUM_SENTINELS = 100  # as in T5, where 32,000 pieces and 100 sentinels make 32,100 ids


@dataclasses.dataclass(frozen=True)
class Specials:
    """Ids of the special tokens; -1 if the vocabulary has no such token.

    A piece may have two roles: RoBERTa's </s> is sep and eos, GPT-2's <|endoftext|> is bos and eos.
    """

    pad: int
    unk: int
    cls: int
    sep: int
    mask: int
    bos: int = -1
    eos: int = -1

    @property
    def start(self) -> int:
        """The id that starts a text: bos, else eos, else cls; -1 if there is none."""
        return next((i for i in (self.bos, self.eos, self.cls) if i >= 0), -1)

    @property
    def end(self) -> int:
        """The id that ends a text: eos, else sep; -1 if there is neither."""
        return self.eos if self.eos >= 0 else self.sep


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """A tokenizer without its rules: cheap to create, to compare and to send to a worker.

    size: number of pieces, specials included; sentinels above the pieces do not count.
    continuations: bool[size], True where a piece continues the word before it.
    special_mask: bool[size], True for special tokens.
    sentinels: int32, the ids of <extra_id_0>, <extra_id_1> ... The tokenizer declares how many;
        default: NUM_SENTINELS. If they are above the pieces, the model needs embeddings for them.
        In ByT5 they are ids of bytes.
    """

    size: int
    specials: Specials
    continuations: np.ndarray
    special_mask: np.ndarray
    sentinels: np.ndarray

    @functools.cached_property
    def ordinary_ids(self) -> np.ndarray:
        """int32, ascending: the ids of the pieces that are not special tokens."""
        return np.flatnonzero(~self.special_mask).astype(np.int32)


def sentinels_above(size: int, count: int = NUM_SENTINELS) -> np.ndarray:
    """Returns int32[count]: the ids just above `size` pieces, highest id first, as in T5."""
    return np.arange(size + count - 1, size - 1, -1, dtype=np.int32)
