"""What batches need to know of a tokenizer: sizes, special ids and tables, as plain NumPy."""

import dataclasses

import numpy as np

NUM_SENTINELS = 100  # of T5, where 32,000 pieces and 100 sentinels are 32,100 ids


@dataclasses.dataclass(frozen=True)
class Specials:
    """Ids of the special tokens; -1 where the vocabulary has none.

    A piece may have two roles: </s> of RoBERTa is sep and eos, <|endoftext|> of GPT-2 bos and eos.
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
        """What stands in front of a text: bos, else eos, else cls; -1 if all lack."""
        return next((i for i in (self.bos, self.eos, self.cls) if i >= 0), -1)

    @property
    def end(self) -> int:
        """What ends a text: eos, or sep where there is none; -1 if both lack."""
        return self.eos if self.eos >= 0 else self.sep


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """A tokenizer without its rules: cheap to make, to compare and to send to a worker.

    size: number of real pieces, specials included.
    continuations: bool[size], True where a piece goes on with the word before it.
    special_mask: bool[size], True for special tokens.
    sentinels: int32[NUM_SENTINELS, or as many as the tokenizer declares], the ids of <extra_id_0>,
        <extra_id_1> ...; they may lie above the pieces, where a model needs embeddings for them.
        ByT5's are ids of bytes.
    """

    size: int
    specials: Specials
    continuations: np.ndarray
    special_mask: np.ndarray
    sentinels: np.ndarray


def sentinels_above(size: int, count: int = NUM_SENTINELS) -> np.ndarray:
    """int32[count]: the ids just above `size` pieces, the first sentinel topmost, as in T5."""
    return np.arange(size + count - 1, size - 1, -1, dtype=np.int32)
