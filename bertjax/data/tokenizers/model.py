"""The interface of a tokenizer's model, the part of a `Tokenizer` that turns text into ids.

`LibraryModel`, `UnigramModel` and `ByteModel` implement it.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import tokenizers


class Model(Protocol):
    """Turns text into ids and back, without adding special tokens."""

    @property
    def kind(self) -> str:
        """The kind of model: wordpiece, bpe, unigram or bytes."""

    @property
    def pieces(self) -> Sequence[str]:
        """The vocabulary in id order, without T5's sentinels at its end."""

    @property
    def special_ids(self) -> Sequence[int]:
        """The ids of the special tokens that the model declares."""

    @property
    def num_sentinels(self) -> int:
        """The number of sentinels after the pieces; <extra_id_0> is the last one."""

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns the ids of each text."""

    def encode_with_offsets(
        self, texts: Sequence[str]
    ) -> list[tuple[list[int], list[tuple[int, int]]]]:
        """Returns the ids of each text, and the character span [start, stop) of each id."""

    def encode_behind(self, text: str) -> list[int]:
        """Returns the ids of a text that follows a special token."""

    def special_tokens(self) -> dict[int, tokenizers.AddedToken]:
        """Returns {id: special token}."""

    def decode(self, ids: Sequence[int]) -> str:
        """Returns the text of the ids."""

    def readable(self, i: int) -> str:
        """Returns the piece with id `i` in readable form, see `Tokenizer.readable`."""

    def continuations(self) -> np.ndarray:
        """Returns bool[size]: true for pieces that continue the word before them."""

    def token_bytes(self) -> np.ndarray:
        """Returns int[size]: the bytes of text that each piece stands for, see `piece_bytes`."""

    def rules(self) -> dict[str, Any]:
        """Returns the rules that determine the ids, in a form independent of library versions."""
