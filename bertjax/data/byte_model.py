"""ByT5's vocabulary: UTF-8 bytes (Xue et al. 2022, arXiv 2105.13626)."""

from collections.abc import Sequence

import numpy as np

FIRST = 3  # the id of byte 0, behind <pad>, </s> and <unk>
NUM_SENTINELS = 125  # 259 pieces and they are the 384 embeddings of the published models
_SPACES = b" \t\n\r\x0b\x0c"


class ByteModel:
    """Text to the numbers of its bytes plus FIRST.

    kind: "bytes".
    pieces: the three special tokens, then each byte as transformers writes it: chr(byte).
    """

    kind = "bytes"
    pieces = ("<pad>", "</s>", "<unk>", *map(chr, range(256)))
    special_ids = (0, 1, 2)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text, without special tokens."""
        return [[byte + FIRST for byte in text.encode()] for text in texts]

    def encode_with_offsets(
        self, texts: Sequence[str]
    ) -> list[tuple[list[int], list[tuple[int, int]]]]:
        """Ids of each text, and the character [start, stop) that each byte is of."""
        rows = []
        for text, ids in zip(texts, self.encode_batch(texts), strict=True):
            sizes = [len(char.encode()) for char in text]
            rows.append((ids, [(i, i + 1) for i, size in enumerate(sizes) for _ in range(size)]))
        return rows

    def decode(self, ids: Sequence[int]) -> str:
        """The text of the ids; special tokens and what is no UTF-8 are left out."""
        return bytes(i - FIRST for i in ids if i >= FIRST).decode("utf-8", "ignore")

    def continuations(self) -> np.ndarray:
        """bool[size]: all bytes but white space, which begins a word as in byte-level BPE."""
        return np.array([i < FIRST or i - FIRST not in _SPACES for i in range(len(self.pieces))])

    def rules(self) -> dict:
        """What decides the ids."""
        return {"first": FIRST}
