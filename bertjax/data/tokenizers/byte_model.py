"""ByT5's vocabulary: UTF-8 bytes (Xue et al. 2022, arXiv 2105.13626).

The published models use the last 100 byte ids as sentinels, counting down from 258 (section 3.1;
byt5/tasks.py of google-research/byt5, whose vocabulary has no extra ids). transformers declares 125
tokens <extra_id_0> ... above the bytes, which those models were not trained with. Earlier versions
of bertjax trained with these; a tokenizer that they wrote keeps them.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tokenizers

from bertjax import errors
from bertjax.data.tokenizers import added_tokens

FIRST = 3  # the id of byte 0, behind <pad>, </s> and <unk>
SIZE = FIRST + 256
SPARE = FIRST + 0xF5  # from here on ids are of bytes that no UTF-8 text has
NUM_ABOVE = 125  # ids above the pieces: with them the published models have 384 embeddings
SENTINELS = np.arange(SIZE - 1, SIZE - 101, -1, dtype=np.int32)
KEY = "first_sentinel"  # of tokenizer_config.json: which of the two
# Keys that transformers writes, and earlier versions of bertjax did not.
_THEIRS = {"additional_special_tokens", "added_tokens_decoder", "extra_special_tokens"}
_SPACES = b" \t\n\r\x0b\x0c"
_ROLES = ("pad", "eos", "unk")  # of the special tokens, by id


class ByteModel:
    """Text to the numbers of its bytes plus FIRST.

    kind: "bytes".
    pieces: the three special tokens, then each byte as transformers writes it: chr(byte).
    sentinels: int32, their ids.
    declared: id -> special token, of those whose flags the files state.
    """

    kind = "bytes"
    pieces = ("<pad>", "</s>", "<unk>", *map(chr, range(256)))
    special_ids = (0, 1, 2)
    num_sentinels = 0  # none of the pieces

    def __init__(
        self, sentinels: np.ndarray = SENTINELS, declared: added_tokens.Added | None = None
    ):
        self.sentinels = sentinels
        self.declared = declared or {}

    def options(self) -> dict[str, Any]:
        """What tokenizer_config.json says of it."""
        above = self.sentinels[0] >= SIZE
        entries = {str(i): added_tokens.entry(token) for i, token in self.declared.items()}
        return {
            **({added_tokens.DECODER: entries} if entries else {}),
            "tokenizer_class": "ByT5Tokenizer",
            "extra_ids": len(self.sentinels) if above else NUM_ABOVE,
            KEY: int(self.sentinels[0]),
        }

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text, without special tokens."""
        return [[byte + FIRST for byte in text.encode()] for text in texts]

    def encode_behind(self, text: str) -> list[int]:
        """Ids of a text that follows a special token: the same."""
        return self.encode_batch([text])[0]

    def special_tokens(self) -> dict[int, tokenizers.AddedToken]:
        """The special tokens by id.

        Each takes the white space around it, as ByT5Tokenizer's do, unless the files state flags.
        """
        usual = {
            i: tokenizers.AddedToken(self.pieces[i], special=True, lstrip=True, rstrip=True)
            for i in self.special_ids
        }
        return usual | self.declared

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

    def readable(self, i: int) -> str:
        """The piece as a person reads it, see `Tokenizer.readable`."""
        return self.pieces[i] if i < FIRST else text_of(bytes([i - FIRST]))

    def continuations(self) -> np.ndarray:
        """bool[size]: all bytes but white space, which begins a word as in byte-level BPE."""
        return np.array([i < FIRST or i - FIRST not in _SPACES for i in range(len(self.pieces))])

    def rules(self) -> dict:
        """What decides the ids."""
        return {"first": FIRST}


def text_of(data: bytes) -> str:
    """UTF-8 as text, with escapes for control characters and for incomplete characters."""
    text = data.decode("utf-8", "backslashreplace")
    escaped = (c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return "".join(escaped)


def sentinels_above(count: int = NUM_ABOVE) -> np.ndarray:
    """int32[count]: the ids above the bytes, counting up, as earlier versions had them."""
    return np.arange(SIZE, SIZE + count, dtype=np.int32)


def of_config(
    content: Mapping[str, Any], where: Any, added: added_tokens.Added | None = None
) -> ByteModel:
    """The model that a tokenizer_config.json describes. UserError names `where`.

    added: the added tokens that the folder lists; their flags go before those of `content`.
    """
    first = content.get(KEY)
    if first is None:
        earlier = {"model_input_names", "extra_ids"} <= content.keys()
        first = SIZE if earlier and not content.keys() & _THEIRS else SIZE - 1
    declared = {}
    for i, role in enumerate(_ROLES):
        token = (added or {}).get(i)
        stated = content.get(f"{role}_token")
        if token is None and isinstance(stated, Mapping):
            token = added_tokens.parse(stated, f"{where}: {role}_token")
        if token is not None and token.content == ByteModel.pieces[i]:
            declared[i] = token
    if first == SIZE - 1:
        return ByteModel(declared=declared)
    if first != SIZE:
        raise errors.UserError(f"{where}: {KEY} = {first!r}: must be {SIZE - 1} or {SIZE}")
    return ByteModel(sentinels_above(content.get("extra_ids") or NUM_ABOVE), declared)
