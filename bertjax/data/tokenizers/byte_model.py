"""ByT5's vocabulary: UTF-8 bytes (Xue et al. 2022, arXiv 2105.13626).

The published models use the last 100 byte ids as sentinels, counting down from 258, the id of byte
255 (section 3.1 of the paper; byt5/tasks.py of google-research/byt5). transformers declares 125
more tokens, <extra_id_0> ..., with ids above the bytes, but the published models were not trained
with them. Earlier versions of bertjax used these 125 as sentinels; a tokenizer saved by such a
version keeps them.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tokenizers

from bertjax import errors
from bertjax.data.tokenizers import added_tokens

FIRST = 3  # the id of byte 0, after <pad>, </s> and <unk>
SIZE = FIRST + 256
SPARE = FIRST + 0xF5  # ids from here on are bytes that never occur in UTF-8
NUM_ABOVE = 125  # ids above the bytes; the published models have 384 = 259 + 125 embeddings
SENTINELS = np.arange(SIZE - 1, SIZE - 101, -1, dtype=np.int32)
KEY = "first_sentinel"  # key of tokenizer_config.json: the id of the first sentinel
# Keys that transformers writes and earlier versions of bertjax did not write: `of_config` uses them
# to recognise a file from such a version.
_TRANSFORMERS_KEYS = {"additional_special_tokens", "added_tokens_decoder", "extra_special_tokens"}
_SPACES = b" \t\n\r\x0b\x0c"
_ROLES = ("pad", "eos", "unk")  # roles of the special tokens with ids 0, 1 and 2


class ByteModel:
    """Encodes a text as its UTF-8 bytes: the id of a byte is the byte + FIRST.

    kind: "bytes".
    pieces: the three special tokens, then each byte as transformers writes it: chr(byte).
    sentinels: int32 ids of the sentinels.
    declared: {id: special token}, only for special tokens whose flags are given in the files.
    """

    kind = "bytes"
    pieces = ("<pad>", "</s>", "<unk>", *map(chr, range(256)))
    special_ids = (0, 1, 2)
    num_sentinels = 0  # `pieces` contains no sentinels

    def __init__(
        self, sentinels: np.ndarray = SENTINELS, declared: added_tokens.Added | None = None
    ):
        self.sentinels = sentinels
        self.declared = declared or {}

    def options(self) -> dict[str, Any]:
        """Returns the model's entries for tokenizer_config.json."""
        above = self.sentinels[0] >= SIZE
        entries = {str(i): added_tokens.entry(token) for i, token in self.declared.items()}
        return {
            **({added_tokens.DECODER: entries} if entries else {}),
            "tokenizer_class": "ByT5Tokenizer",
            "extra_ids": len(self.sentinels) if above else NUM_ABOVE,
            KEY: int(self.sentinels[0]),
        }

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns the ids of each text, without special tokens."""
        return [[byte + FIRST for byte in text.encode()] for text in texts]

    def encode_behind(self, text: str) -> list[int]:
        """Returns the ids of a text that follows a special token: the same as for any text."""
        return self.encode_batch([text])[0]

    def special_tokens(self) -> dict[int, tokenizers.AddedToken]:
        """Returns {id: special token}.

        By default a special token absorbs the white space around it, as in ByT5Tokenizer; flags in
        the files override this.
        """
        defaults = {
            i: tokenizers.AddedToken(self.pieces[i], special=True, lstrip=True, rstrip=True)
            for i in self.special_ids
        }
        return {**defaults, **self.declared}

    def encode_with_offsets(
        self, texts: Sequence[str]
    ) -> list[tuple[list[int], list[tuple[int, int]]]]:
        """Returns the ids of each text, and for each byte the span [start, stop) of its character.
        """
        rows = []
        for text, ids in zip(texts, self.encode_batch(texts), strict=True):
            sizes = [len(char.encode()) for char in text]
            rows.append((ids, [(i, i + 1) for i, size in enumerate(sizes) for _ in range(size)]))
        return rows

    def decode(self, ids: Sequence[int]) -> str:
        """Returns the text of the ids; skips special tokens and invalid UTF-8."""
        return bytes(i - FIRST for i in ids if i >= FIRST).decode("utf-8", "ignore")

    def readable(self, i: int) -> str:
        """Returns the piece in readable form, see `Tokenizer.readable`."""
        return self.pieces[i] if i < FIRST else text_of(bytes([i - FIRST]))

    def continuations(self) -> np.ndarray:
        """Returns bool[size]: False only for white space, which starts a word, as in GPT-2."""
        return np.array([i < FIRST or i - FIRST not in _SPACES for i in range(len(self.pieces))])

    def token_bytes(self) -> np.ndarray:
        """Returns int[size]: 1 for each byte, 0 for the three special tokens."""
        return np.array([int(i >= FIRST) for i in range(len(self.pieces))])

    def rules(self) -> dict:
        """Returns the rules that determine the ids, for the fingerprint."""
        return {"first": FIRST}


def text_of(data: bytes) -> str:
    """Decodes UTF-8, with escapes for control characters and for incomplete characters."""
    text = data.decode("utf-8", "backslashreplace")
    escaped = (c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return "".join(escaped)


def sentinels_above(count: int = NUM_ABOVE) -> np.ndarray:
    """Returns int32[count]: the ids above the bytes, ascending. Earlier versions used them."""
    return np.arange(SIZE, SIZE + count, dtype=np.int32)


def of_config(
    content: Mapping[str, Any], where: Any, added: added_tokens.Added | None = None
) -> ByteModel:
    """Returns the model for a tokenizer_config.json with this content.

    where: the file, for error messages.
    added: the added tokens of the folder; their flags override those in `content`.
    """
    first = content.get(KEY)
    if first is None:
        is_earlier = {"model_input_names", "extra_ids"} <= content.keys()
        first = SIZE if is_earlier and not content.keys() & _TRANSFORMERS_KEYS else SIZE - 1
    declared = {}
    for i, role in enumerate(_ROLES):
        token = (added or {}).get(i)
        value = content.get(f"{role}_token")
        if token is None and isinstance(value, Mapping):
            token = added_tokens.parse(value, f"{where}: {role}_token")
        if token is not None and token.content == ByteModel.pieces[i]:
            declared[i] = token
    if first == SIZE - 1:
        return ByteModel(declared=declared)
    if first != SIZE:
        raise errors.UserError(f"{where}: {KEY} = {first!r}: must be {SIZE - 1} or {SIZE}")
    return ByteModel(sentinels_above(content.get("extra_ids") or NUM_ABOVE), declared)
