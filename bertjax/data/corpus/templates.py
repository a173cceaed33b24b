r"""Composes the text of a document from the fields of a record.

    template = templates.of("text", "{title}\n{text}")
    template.fields                                          # ("title", "text")
    template.text_of({"title": "Ants", "text": "An ant is an insect."}, place)
    # "Ants\nAn ant is an insect."

A field without a value (null) counts as empty text. If all fields are empty, so is the document,
whatever stands between the fields, so that it is counted as an empty document.
"""

import dataclasses
import json
import re
import string
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from bertjax import errors
from bertjax.data.corpus import corpus_files

DEFAULT_FIELD = "text"

_ESCAPE = re.compile(r"\\([nt\\])")
_CHARACTERS = {"n": "\n", "t": "\t", "\\": "\\"}


class Document(NamedTuple):
    """A document that was read.

    position: how many of the `size` bytes of its source have been read. language: the value of its
    language field; "" if it has none or if the field is not read.
    """

    text: str
    position: int
    language: str = ""


@dataclasses.dataclass(frozen=True)
class Template:
    """The fields of a record that are the text of a document, and the text around them.

    fields: the names. literals: the text before the first field, between the fields and after the
    last one. flag: the flag that names the fields, for error messages. language_field: the field
    with the language of the document; "" if it is not read.
    """

    fields: tuple[str, ...]
    literals: tuple[str, ...]
    flag: str
    language_field: str = ""

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of all fields that are read."""
        extra = {self.language_field} - {"", *self.fields}
        return (*self.fields, *extra)

    def text_of(self, record: Mapping[str, Any], place: Callable[[], str]) -> str:
        """Returns the text of a record, in which None is empty text.

        place: returns the place of the record for the message. Raises UserError if a field is
        missing or is neither text nor None.
        """
        texts = [self._field(record, name, place) for name in self.fields]
        if not any(texts):
            return ""
        pieces = zip(texts, self.literals[1:], strict=True)
        return self.literals[0] + "".join(text + literal for text, literal in pieces)

    def document(
        self, record: Mapping[str, Any], position: int, place: Callable[[], str]
    ) -> Document:
        """Returns the text of a record with its language. Raises UserError as `text_of` does."""
        text = self.text_of(record, place)
        if not self.language_field:
            return Document(text, position)
        return Document(text, position, self._field(record, self.language_field, place))

    def check_has_fields(self, path: str, form: str) -> None:
        """Raises UserError if a language field is to be read but the format has no fields."""
        if self.language_field and form in ("txt", "arrayrecord", "builtin"):
            raise errors.UserError(
                f"{path}: plain text has no field {self.language_field!r} with a language; remove "
                "--keep_languages, or give files with fields"
            )

    def record_of_json(self, line: bytes, place: Callable[[], str]) -> dict[str, Any]:
        """Returns a record in JSON. Raises UserError if it is not a JSON object."""
        try:
            record = json.loads(line.decode("utf-8"))
        except UnicodeDecodeError as error:
            raise errors.UserError(f"{place()}: is not UTF-8; convert the file to UTF-8") from error
        except (ValueError, RecursionError) as error:
            reason = error.msg if isinstance(error, json.JSONDecodeError) else error
            raise errors.UserError(
                f"{place()}: not valid JSON ({reason}); correct it"
            ) from error
        if not isinstance(record, dict):
            kind = type(record).__name__
            raise errors.UserError(f"{place()}: is a JSON {kind}; each line must be an object")
        return record

    def check_columns(self, path: str, columns: tuple[str, ...]) -> None:
        """Raises UserError unless each field is the name of exactly one of a table's columns."""
        for name in self.columns:
            if name not in columns:
                listed = ", ".join(columns)[:200] or "none"
                raise errors.UserError(
                    f"{path}: has no column {name!r} (its columns: {listed}); {self.advice(name)}"
                )
            if columns.count(name) > 1:
                raise errors.UserError(
                    f"{path}: has the column {name!r} twice; columns are found by their names: "
                    "rename one"
                )

    def advice(self, name: str) -> str:
        """Returns how to give another field than `name`, for the end of an error message."""
        if name not in self.fields:
            return "give the one with the language as --language_field"
        if self.flag == "--text_template":
            return "correct --text_template"
        return "give one of them as --text_field"

    def _field(self, record: Mapping[str, Any], name: str, place: Callable[[], str]) -> str:
        if name not in record:
            listed = ", ".join(record) or "none"
            raise errors.UserError(
                f"{place()}: has no field {name!r} (its fields: {listed}); {self.advice(name)}"
            )
        text = record[name]
        if text is None:
            return ""
        if isinstance(text, bytes):
            return corpus_files.decoded(text, lambda _: place(), 0)
        if not isinstance(text, str):
            raise errors.UserError(
                f"{place()}: field {name!r} must be a string, but is {text!r:.40}"
            )
        if not text.isascii():
            try:
                text.encode("utf-8")
            except UnicodeEncodeError as error:
                raise errors.UserError(f"{place()}: contains an unpaired surrogate") from error
        return text


def of(text_field: str, text_template: str, language_field: str = "") -> Template:
    """Returns the template of the field `text_field` or, if it is not "", of `text_template`.

    language_field: the field with the language of the document; "": it is not read.

    Raises UserError if `text_template` is not a template, and if both are given.
    """
    if not text_template:
        return Template((text_field,), ("", ""), "--text_field", language_field)
    flag = f"--text_template={text_template!r}"
    if text_field != DEFAULT_FIELD:
        raise errors.UserError(f"{flag}: cannot be used with --text_field={text_field}")
    try:
        parsed = list(string.Formatter().parse(text_template))
    except ValueError as error:
        raise errors.UserError(
            f"{flag}: is not a template ({error}); a literal brace is written {{{{ or }}}}"
        ) from error
    fields, literals = [], [""]
    for literal, field, form, conversion in parsed:
        literals[-1] += literal
        if field is not None:
            if not field or form or conversion:
                raise errors.UserError(
                    f"{flag}: braces must contain the name of a field, as in "
                    r"'{title}\n{text}'"
                )
            fields.append(field)
            literals.append("")
    if not fields:
        raise errors.UserError(
            rf"{flag}: names no field; put the names in braces, as in '{{title}}\n{{text}}'"
        )
    return Template(tuple(fields), tuple(literals), "--text_template", language_field)


def unescaped(text_template: str) -> str:
    r"""Returns the template of a flag, with \n, \t and \\ replaced by what they stand for."""
    return _ESCAPE.sub(lambda match: _CHARACTERS[match[1]], text_template)
