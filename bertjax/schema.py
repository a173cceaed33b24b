"""Reads JSON files and checks their shape: a damaged file gives a one-line error naming the key.

A shape is a type: a dataclass (its fields are the keys; a field with a default may be absent),
list[T], tuple[T, ...], dict[str, T], Literal, unions, str, int, float, bool, None, Any, and
Annotated[T, Between(...)] or Annotated[T, Like(...)] for bounds. Unknown keys are rejected, except
in subclasses of `Open`, for files to which other tools and later versions add keys.

    @dataclasses.dataclass(frozen=True)
    class Shard:
        file: schema.FileName
        records: schema.Count

    shard = schema.read("shard.json", Shard, "write it again")
    # UserError: shard.json: records = -3: must be an integer, 0 or more; write it again

Our own files are written by `write`, which adds a checksum of the content. `read` verifies the
checksum if there is one, so that a changed value is not used.
"""

import dataclasses
import functools
import hashlib
import itertools
import json
import math
import os
import re
import stat
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, TypeVar

from etils import epath

from bertjax import errors, files

MAX_BYTES = 1 << 28  # maximum size of a file; the largest tokenizer.json has a tenth of it
MAX_DEPTH = 64
CHECKSUM = "checksum"

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Between:
    """Bounds of a number, both included."""

    low: float
    high: float = math.inf

    def fits(self, value: float) -> bool:
        """Returns whether `value` lies within the bounds."""
        return self.low <= value <= self.high

    def __str__(self) -> str:
        upper = "or more" if self.high == math.inf else f"to {self.high:,}"
        return f"{self.low:,} {upper}"


@dataclasses.dataclass(frozen=True)
class Like:
    """The form of a string: a regular expression, and its name in error messages."""

    pattern: str
    name: str

    def fits(self, value: str) -> bool:
        """Returns whether the whole of `value` matches the pattern."""
        return re.fullmatch(self.pattern, value) is not None

    def __str__(self) -> str:
        return self.name


class NotFinite:
    """Marks a number that may be NaN or infinite, such as a score of a run that diverged."""


Count = Annotated[int, Between(0)]
Score = Annotated[float, NotFinite]
Sha256 = Annotated[str, Like("[0-9a-f]{64}", "a SHA-256 in hex")]
FileName = Annotated[str, Like(r"(?!\.)[^/\\\0]+", "the name of a file in the same folder")]


class Open:
    """Base class for shapes whose files may contain extra keys, which are ignored."""


@dataclasses.dataclass(frozen=True)
class Form:
    """The keys `format` and `version` at the start of our own files."""

    format: str
    version: int


class _Mismatch(Exception):
    """Raised if a value does not have the shape; has the key, the value and what was expected."""

    def __init__(self, key: str, value: Any, expected: str):
        super().__init__(key, value, expected)
        self.key, self.value, self.expected = key, value, expected


def read(
    file: str | os.PathLike, shape: type[T], remedy: str, *, form: Form | None = None
) -> T:
    """Returns the content of a JSON file as an instance of `shape`. Raises a one-line UserError.

    remedy: what to do about a damaged file, for the end of the error message.
    form: the format and version that the file must have; `shape` has no fields for them.
    """
    content = read_object(file, remedy)
    stored_checksum = content.pop(CHECKSUM, None)
    checksum = _checksum(content) if stored_checksum is not None else None
    if form is not None:
        header = content.pop("format", None), content.pop("version", None)
        if header[0] != form.format:
            raise errors.UserError(f"{file}: its format must be {form.format}; {remedy}")
        if header != (form.format, form.version) or type(header[1]) is not int:
            raise errors.UserError(
                f"{file}: has version {short(header[1])} of {form.format}, but this bertjax reads "
                f"version {form.version}; install the bertjax that wrote it, or {remedy}"
            )
    result = typed(content, shape, file, remedy)
    if stored_checksum != checksum:
        raise errors.UserError(
            f"{file}: its checksum does not match its content, which was damaged or edited; "
            f"{remedy}, or delete the key {CHECKSUM!r} to accept the content"
        )
    return result


def write(
    file: str | os.PathLike, content: Mapping[str, Any], form: Form | None = None
) -> None:
    """Writes `content` atomically as JSON with a checksum, for `read`.

    form: the format and version of the file, which are written first.
    """
    files.write_text(file, text(content, form))


def text(content: Mapping[str, Any], form: Form | None = None) -> str:
    """Returns the text of the file that `write` writes."""
    document = json.loads(json.dumps({**(vars(form) if form else {}), **content}))
    document[CHECKSUM] = _checksum(document)
    return json.dumps(document, indent=1) + "\n"


def read_object(file: str | os.PathLike, remedy: str) -> dict[str, Any]:
    """Returns the object in a JSON file without checking its shape. Raises a one-line UserError."""
    try:
        if "://" not in os.fspath(file) and not stat.S_ISREG(os.stat(file).st_mode):
            raise errors.UserError(f"{file}: is not a file; {remedy}")
        with epath.Path(file).open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except FileNotFoundError as error:
        raise errors.UserError(f"{file}: not found; {remedy}") from error
    except OSError as error:
        reason = error.strerror or error
        raise errors.UserError(f"{file}: cannot be read ({reason}); {remedy}") from error
    if len(data) > MAX_BYTES:
        raise errors.UserError(f"{file}: contains more than {MAX_BYTES:,} bytes of JSON; {remedy}")
    return parse(data, file, remedy)


def parse(
    data: bytes | str, where: Any, remedy: str, *, number: int | None = None
) -> dict[str, Any]:
    """Returns the object in a JSON text. Raises a one-line UserError that begins with `where`.

    Also rejects repeated keys, nesting beyond MAX_DEPTH, and unpaired surrogates, which are not
    characters.

    number: for a file of JSON lines, the line number of `data`; the error names it.
    """
    try:
        text = data.decode("utf-8") if isinstance(data, bytes) else data
        content = json.loads(text, object_pairs_hook=_reject_repeats)
    except json.JSONDecodeError as error:
        position = f"line {error.lineno} " if number is None else ""
        reason = f"{position}is not JSON: {error.msg}"
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(10) + 1
        reason = f"line {line} is not UTF-8" if number is None else "is not UTF-8"
    except RecursionError:
        reason = f"is nested more than {MAX_DEPTH} levels deep"
    except ValueError as error:  # such as a repeated key, or a number with thousands of digits
        reason = f"is not JSON: {error}"
    else:
        reason = _defect(content)
        if not reason and isinstance(content, dict):
            return content
        reason = reason or f"is a JSON {_JSON_KINDS[type(content)]}, not an object"
    line = "" if number is None else f":{number}"
    raise errors.UserError(f"{where}{line}: {reason}; {remedy}")


def typed(content: Any, shape: Any, where: Any, remedy: str) -> Any:
    """Converts JSON `content` to an instance of `shape`, building its dataclasses and tuples.

    Raises UserError naming `where`, the key and the value."""
    try:
        return _convert(content, shape, "")
    except _Mismatch as mismatch:
        prefix = f"{mismatch.key} = " if mismatch.key else ""
        raise errors.UserError(
            f"{where}: {prefix}{short(mismatch.value)}: must be {mismatch.expected}; {remedy}"
        ) from None


def short(value: Any, width: int = 60) -> str:
    """Returns the repr of a value, truncated to `width` characters, for an error message."""
    if isinstance(value, dict):  # do not print all of a large dict
        value = dict(itertools.islice(value.items(), width))
    text = repr(value[: width + 1] if isinstance(value, str | list) else value)
    return text if len(text) <= width else f"{text[: width - 3]}..."


_JSON_KINDS = {
    dict: "object", list: "list", str: "string", int: "integer", float: "number",
    bool: "boolean", type(None): "null",
}  # fmt: skip
_TYPE_NAMES = {
    dict: "an object", list: "a list", tuple: "a list", str: "a string", int: "an integer",
    float: "a number", bool: "true or false", type(None): "null",
}  # fmt: skip


def _checksum(content: Mapping[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _reject_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {short(repeated)} occurs twice")
    return result


def _defect(content: Any) -> str:
    """Returns what makes `content` invalid for every shape; "" if nothing does."""
    for depth, value in _walk(content):
        if depth > MAX_DEPTH:
            return f"is nested more than {MAX_DEPTH} levels deep"
        if isinstance(value, str) and not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError:
                return f"{short(value)} contains an unpaired surrogate, which is not a character"
    return ""


def _walk(content: Any) -> Iterator[tuple[int, Any]]:
    """Yields (depth, value) for a value and all keys and values in it."""
    stack = [(0, content)]
    while stack:
        depth, value = stack.pop()
        yield depth, value
        if depth > MAX_DEPTH:
            return
        children = [*value, *value.values()] if isinstance(value, dict) else value
        if isinstance(children, list):
            stack += [(depth + 1, child) for child in children]


@functools.cache
def _fields(shape: type) -> dict[str, tuple[Any, bool]]:
    """Returns {key: (shape, whether it is required)} of a dataclass."""
    hints = typing.get_type_hints(shape, include_extras=True)
    missing = dataclasses.MISSING
    return {
        field.name: (
            hints[field.name], field.default is missing and field.default_factory is missing
        )
        for field in dataclasses.fields(shape)
        if field.init
    }  # fmt: skip


def _convert(value: Any, shape: Any, key: str) -> Any:
    origin = typing.get_origin(shape)
    if shape is Any:
        for _, child in _walk(value):
            _check_number(child, key)
        return value
    if origin is Annotated:
        return _convert_annotated(value, shape, key)
    if origin in (typing.Union, types.UnionType):
        return _convert_union(value, typing.get_args(shape), key)
    if origin is Literal:
        if any(type(value) is type(arg) and value == arg for arg in typing.get_args(shape)):
            return value
        raise _Mismatch(key, value, _describe(shape))
    if dataclasses.is_dataclass(shape):
        return _convert_dataclass(value, shape, key)
    kind = origin or shape
    accepted = {float: (float, int), tuple: (list, tuple)}.get(kind, (kind,))
    if type(value) not in accepted:
        raise _Mismatch(key, value, _describe(shape))
    _check_number(value, key)
    args = typing.get_args(shape)
    if kind is float:
        return float(value)
    if kind in (list, tuple) and args:
        return kind(_convert(item, args[0], f"{key}[{i}]") for i, item in enumerate(value))
    if kind is dict and args:
        return {name: _convert(item, args[1], _join(key, name)) for name, item in value.items()}
    return value


def _check_number(value: Any, key: str) -> None:
    if type(value) is float and not math.isfinite(value):
        raise _Mismatch(key, value, "a finite number")
    if type(value) is int and not -(2**63) <= value < 2**64:
        raise _Mismatch(key, value, "an integer of at most 64 bits")


def _convert_annotated(value: Any, shape: Any, key: str) -> Any:
    inner, *bounds = typing.get_args(shape)
    if NotFinite in bounds and type(value) is float:
        return value
    result = _convert(value, inner, key)
    if not all(bound is NotFinite or bound.fits(result) for bound in bounds):
        raise _Mismatch(key, value, _describe(shape))
    return result


def _convert_union(value: Any, shapes: tuple[Any, ...], key: str) -> Any:
    nested = None
    for shape in shapes:
        try:
            return _convert(value, shape, key)
        except _Mismatch as mismatch:
            nested = mismatch if mismatch.key != key else nested
    raise nested or _Mismatch(key, value, " or ".join(map(_describe, shapes)))


def _convert_dataclass(value: Any, shape: type, key: str) -> Any:
    if type(value) is not dict:
        raise _Mismatch(key, value, _TYPE_NAMES[dict])
    fields = _fields(shape)
    for name, (_, required) in fields.items():
        if required and name not in value:
            raise _Mismatch(key, sorted(value), f"an object with the key {name!r}")
    unknown = [name for name in value if name not in fields]
    if unknown and not issubclass(shape, Open):
        hint = errors.hint(errors.near(unknown[0], list(fields)))
        raise _Mismatch(_join(key, unknown[0]), value[unknown[0]], f"absent: unknown key{hint}")
    return shape(**{
        name: _convert(value[name], field_shape, _join(key, name))
        for name, (field_shape, _) in fields.items()
        if name in value
    })  # fmt: skip


def _join(key: str, name: str) -> str:
    name = short(name, 40)[1:-1]
    return f"{key}.{name}" if key else name


def _describe(shape: Any) -> str:
    origin, args = typing.get_origin(shape), typing.get_args(shape)
    if origin is Annotated:
        bounds = [str(bound) for bound in args[1:] if bound is not NotFinite]
        has_name = isinstance(args[1], Like)
        return bounds[0] if has_name else ", ".join([_describe(args[0]), *bounds])
    if origin is Literal:
        return " or ".join(map(repr, args))
    if origin in (typing.Union, types.UnionType):
        return " or ".join(map(_describe, args))
    if dataclasses.is_dataclass(shape):
        return _TYPE_NAMES[dict]
    return _TYPE_NAMES.get(origin or shape, "another value")
