"""Reads, matches and writes added tokens: tokens added to a vocabulary after its training.

Wherever an added token occurs in a text, the text is split there first; the rules of the vocabulary
apply only to the parts between these tokens. A special token is an exception: it matches only if
special tokens in texts are enabled. The flags of `tokenizers.AddedToken` define where a token
matches: single_word, lstrip, rstrip, normalized.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import tokenizers
from etils import epath
from tokenizers import models, normalizers

from bertjax import errors, schema

DECODER = "added_tokens_decoder"  # key of tokenizer_config.json; its value is {id: token}
FILE = "added_tokens.json"  # {content: id}, as transformers wrote it before version 4.34
REMEDY = "copy the tokenizer's files again"
MAX_ID = 1 << 24

Id = Annotated[int, schema.Between(0, MAX_ID)]
Added = Mapping[int, tokenizers.AddedToken]


@dataclasses.dataclass(frozen=True)
class _Entry(schema.Open):
    content: str
    special: bool = False
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool | None = None

    def token(self) -> tokenizers.AddedToken:
        normalized = not self.special if self.normalized is None else self.normalized
        return tokenizers.AddedToken(**vars(self) | {"normalized": normalized})


@dataclasses.dataclass(frozen=True)
class _Numbered(_Entry):
    id: Id = 0

    def token(self) -> tokenizers.AddedToken:
        fields = {name: value for name, value in vars(self).items() if name != "id"}
        return _Entry(**fields).token()


def read(folder: epath.Path, config: Mapping[str, Any], pipeline: Mapping[str, Any]) -> Added:
    """Returns {id: added token} from the files of a folder.

    If several files list a token, the flags in tokenizer.json override those in
    tokenizer_config.json, and these override the flags derived from added_tokens.json.

    config: content of tokenizer_config.json. pipeline: content of tokenizer.json; empty if absent.
    Raises UserError if a token has two ids, if an id has two tokens, or if a token is empty.
    """
    lists = []
    entries = pipeline.get("added_tokens") or []
    where = folder / "tokenizer.json"
    numbered = schema.typed(entries, list[_Numbered], f"{where}: added_tokens", REMEDY)
    lists.append((where, [(entry.id, entry.token()) for entry in numbered]))
    where = folder / "tokenizer_config.json"
    by_id = schema.typed(
        config.get(DECODER) or {}, dict[str, _Entry], f"{where}: {DECODER}", REMEDY
    )
    lists.append((where, [(_number(i, where), entry.token()) for i, entry in by_id.items()]))
    where = folder / FILE
    if where.exists():
        special = _special_contents(config)
        by_content = schema.typed(schema.read_object(where, REMEDY), dict[str, Id], where, REMEDY)
        plain = [(i, _Entry(name, special=name in special)) for name, i in by_content.items()]
        lists.append((where, [(i, entry.token()) for i, entry in plain]))
    added: dict[int, tokenizers.AddedToken] = {}
    ids: dict[str, int] = {}
    for where, tokens in lists:
        for i, token in tokens:
            if not token.content:
                raise errors.UserError(f"{where}: the added token {i} is empty; {REMEDY}")
            if ids.setdefault(token.content, i) != i or (
                added.setdefault(i, token).content != token.content
            ):
                other = ids[token.content] if ids[token.content] != i else added[i].content
                raise errors.UserError(
                    f"{where}: the added token {token.content!r} has id {i}, which conflicts with "
                    f"{other!r} in the folder's lists of added tokens; {REMEDY}"
                )
    return dict(sorted(added.items()))


def parse(fields: Mapping[str, Any], where: Any) -> tokenizers.AddedToken:
    """Returns the special token that the JSON object `fields` describes.

    where: the file and key of the object, for error messages.
    """
    return schema.typed({**fields, "special": True}, _Entry, where, REMEDY).token()


def declare(library: tokenizers.Tokenizer, added: Added, where: Any) -> None:
    """Adds the tokens to `library`. Raises UserError if a token's id in it differs from `added`.

    where: the file that lists the tokens, for the error message.
    """
    contents = {token.content for token in library.get_added_tokens_decoder().values()}
    for i, token in sorted(added.items()):
        if token.content not in contents:
            library.add_tokens([token])
        actual_id = library.token_to_id(token.content)
        if actual_id != i:
            raise errors.UserError(
                f"{where}: the added token {token.content!r} has id {i}, but {actual_id} in the "
                f"vocabulary; {REMEDY}"
            )


def entry(token: tokenizers.AddedToken) -> dict[str, Any]:
    """Returns the JSON object for the token under the key DECODER of tokenizer_config.json."""
    return {field.name: getattr(token, field.name) for field in dataclasses.fields(_Entry)}


class Splitter:
    """Splits texts at the given tokens, as the `tokenizers` library does at added tokens.

    tokens: pairs (id, token).
    normalizer: the normalizer of the vocabulary. Tokens with the flag `normalized` are matched in
        the text that it returns.
    """

    def __init__(
        self,
        tokens: Iterable[tuple[int, tokenizers.AddedToken]],
        normalizer: normalizers.Normalizer | None = None,
    ):
        # With this model, text between added tokens is one unknown piece.
        self._library = tokenizers.Tokenizer(models.WordLevel({"": 0}, unk_token=""))
        if normalizer is not None:
            self._library.normalizer = normalizer
        tokens = list(tokens)
        self._library.add_tokens([token for _, token in tokens])
        self._ids = {self._library.token_to_id(token.content): i for i, token in tokens}

    def split(self, text: str) -> list[tuple[int, int, int]]:
        """Returns (start, stop, id) of each part of the text; the id of plain text is -1."""
        encoding = self._library.encode(text, add_special_tokens=False)
        parts, end = [], 0
        for i, (start, stop) in zip(encoding.ids, encoding.offsets, strict=True):
            if i not in self._ids:
                continue
            if start > end:
                parts.append((end, start, -1))
            parts.append((start, stop, self._ids[i]))
            end = stop
        return [*parts, (end, len(text), -1)] if end < len(text) else parts


def _number(text: str, where: Any) -> int:
    if not (text.isascii() and text.isdigit()) or int(text[:20]) > MAX_ID:
        raise errors.UserError(f"{where}: {DECODER}: {schema.short(text)} is not an id; {REMEDY}")
    return int(text)


def _special_contents(config: Mapping[str, Any]) -> set[str]:
    """Returns the contents of the special tokens in a config."""
    values = [value for key, value in config.items() if key.endswith("_token")]
    for key in ("additional_special_tokens", "extra_special_tokens"):
        entries = config.get(key)
        values += entries if isinstance(entries, list) else []
    contents = (value.get("content") if isinstance(value, dict) else value for value in values)
    return {content for content in contents if isinstance(content, str)}

