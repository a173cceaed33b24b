"""Finds the columns of a record that contain the parts of an example.

    columns = Columns((("premise", "hypothesis"), ("sentence1", "sentence2")))
    record = Record("a.csv:2", {"premise": "A.", "hypothesis": "B.", "label": "no", "date": "1815"})
    text_columns(record, columns)                   # ("premise", "hypothesis")
    unused(record.fields, columns)                  # ["date"]
    named(columns, "s1,s2", "gold").texts           # (("s1", "s2"),), for flags of the user
"""

import difflib
import functools
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from bertjax import column_flags, errors
from bertjax.data.corpus import corpus_files, tables
from bertjax.finetuning.examples import readers

TEXT_FLAG, LABEL_FLAG = (f"--{name}" for name in column_flags.NAMES)


class Columns(NamedTuple):
    """For each part of an example, the column names that are tried, in this order.

    texts: alternatives that are tried in this order; each is a tuple with one column for each text.
    extra: columns that are read if the file has them, besides texts, label and id.
    more: pattern of the names of columns with further texts, each a text or a list of texts; "" if
        an example has no further texts.
    refused: (pattern of column names, advice) of columns that raise an error, because the task
        would otherwise ignore what they say about the texts.
    """

    texts: tuple[tuple[str, ...], ...]
    label: tuple[str, ...] = ("label",)
    id: tuple[str, ...] = ("index", "idx", "id")
    extra: tuple[str, ...] = ()
    more: str = ""
    refused: tuple[tuple[str, str], ...] = ()

    def reads(self, name: str) -> bool:
        """Returns whether a column may be read."""
        texts = any(name in names for names in self.texts)
        return texts or name in (*self.label, *self.id, *self.extra) or self.has_more(name)

    def has_more(self, name: str) -> bool:
        """Returns whether a column has further texts."""
        return bool(self.more) and bool(re.fullmatch(self.more, name, re.IGNORECASE))


def named(columns: Columns, texts: str, label: str) -> Columns:
    """Returns the columns with the names that the user gives; "" keeps the usual names.

    texts: names separated by commas, in the order of `Columns.texts`; those of further texts, if
    the task reads any, come last. If the user names the texts, no column is refused. Raises
    UserError for a wrong number of names, and for a label if the task has none.
    """
    if texts:
        names = split_names(texts)
        counts = sorted({len(alternative) for alternative in columns.texts})
        fits = len(names) in counts or (columns.more and len(names) > counts[-1])
        if not (fits and all(names) and len(set(names)) == len(names)):
            count = " or ".join(map(str, counts)) + " or more" * bool(columns.more)
            usual = " or ".join(",".join(alternative) for alternative in columns.texts[:3])
            raise errors.UserError(
                f"{TEXT_FLAG}={texts}: the task reads {count} text column(s): give as many "
                f"different names, separated by commas, as in {usual}"
            )
        columns = columns._replace(texts=(names,), more="", refused=())
    if label:
        if not columns.label:
            raise errors.UserError(f"{LABEL_FLAG}={label}: the task has no labels; remove the flag")
        columns = columns._replace(label=(label,))
    return columns


def split_names(texts: str) -> tuple[str, ...]:
    """Returns the names of columns that are separated by commas."""
    return tuple(name.strip() for name in texts.split(","))


def is_plain(path: str, columns: Columns) -> bool:
    """Returns whether the path is a .txt file with one text per line.

    The first line of such a file has no tab and is not the name of a text column.
    """
    if corpus_files.suffix(path) != ".txt":
        return False
    _, first = next(corpus_files.text_lines(path))
    return "\t" not in first and (first.strip(),) not in columns.texts


def value(record: readers.Record, names: Sequence[str]) -> Any:
    """Returns the value of the first of these columns that the record has; None if it has none."""
    return next((record.fields[name] for name in names if name in record.fields), None)


def record_id(record: readers.Record, columns: Columns) -> str:
    """Returns the id of a record; "" if it has none."""
    found = value(record, columns.id)
    return "" if found is None else str(found)


def text_columns(record: readers.Record, columns: Columns) -> tuple[str, ...]:
    """Returns the first of `columns.texts` whose columns the record has.

    Raises UserError if there is none.
    """
    for names in columns.texts:
        if all(name in record.fields for name in names):
            return names
    # Name the missing column of the alternative with the most columns present.
    best = max(
        columns.texts, key=lambda names: (sum(n in record.columns for n in names), -len(names))
    )
    name = next(name for name in best if name not in record.fields)
    if name in record.missing:
        raise errors.UserError(f"{record.where}: column {name!r} {record.missing[name]}")
    known = [name for names in columns.texts for name in names]
    example = ",".join(f"NAME{i}" for i in range(1, len(best) + 1)) if len(best) > 1 else "NAME"
    header = " (a TSV or CSV file begins with a line of column names)"
    raise errors.UserError(
        f"{record.where}: has no column {name!r}{described(record, known)}; name yours as "
        f"{TEXT_FLAG}={example}{header * _is_table(record)}"
    )


def further_texts(
    record: readers.Record, columns: Columns, named: Sequence[str], *, needed: bool = False
) -> list[str]:
    """Returns the further texts of a record, see `Columns.more`.

    named: columns of further texts that the user named. A null and an empty cell are no text,
    because examples may have different numbers of further texts. Raises UserError for a value that
    is neither a text nor a list of texts, and for a blank text in a list. needed: whether to raise
    it also if the record has such columns, but all of them are null or empty.
    """
    texts = []
    names = (*named, *_more(record.columns, columns))
    for name in names:
        if record.missing.get(name) == readers.BYTES:
            raise errors.UserError(f"{record.where}: column {name!r} {readers.BYTES}")
        found = record.fields.get(name) or []
        for text in found if isinstance(found, list) else [found]:
            if not (isinstance(text, str) and text.strip()):
                raise errors.UserError(
                    f"{record.where}: {name!r} must be a non-empty text or a list of such texts, "
                    f"but contains {text!r:.40}"
                )
            texts.append(text)
    if needed and names and not any(record.fields.get(name) not in (None, "") for name in names):
        raise errors.UserError(
            f"{record.where}: {errors.several(map(repr, names))} is empty: fill it or remove the "
            "row; pairs without such texts belong in a file without the column"
        )
    return texts


@functools.lru_cache(maxsize=64)
def _more(names: tuple[str, ...], columns: Columns) -> tuple[str, ...]:
    """Returns the columns of further texts. Cached, because records share their names."""
    return tuple(filter(columns.has_more, names))


def _is_table(record: readers.Record) -> bool:
    path, _, line = record.where.rpartition(":")
    return line.isdigit() and not readers.has_fields(path)


def described(record: readers.Record, names: Iterable[str]) -> str:
    """Returns the columns of a record for an error message, with those that are close to `names`.

    For example "; its columns are 'reveiw', 'stars'; did you mean 'reveiw'?".
    """
    there = ", ".join(map(repr, record.columns[:12]))[:200]
    lower = [name.lower() for name in names]
    near = [c for c in record.columns if difflib.get_close_matches(c.lower(), lower, n=1)]
    hint = errors.hint([repr(name) for name in near[:3]])
    only = record.columns[0] if len(record.columns) == 1 else ""
    for separator, word in tables.SEPARATORS.items():
        if separator in only:
            hint = f", so its cells may be separated by {word}: .csv needs commas, .tsv tabs"
    return f"; its columns are {there}{hint}"


def label_gap(record: readers.Record, columns: Columns) -> str:
    """Returns why a record has no label, as the end of a message that says that it has none."""
    name = next((name for name in columns.label if name in record.columns), None)
    if name is None:
        return f"{described(record, columns.label)}; name yours as {LABEL_FLAG}=NAME"
    reason = record.missing.get(name, "is empty: fill it or remove the row")
    return f": column {name!r} {reason}"


def check_refused(record: readers.Record, columns: Columns) -> None:
    """Raises UserError if the record has a column that the task refuses."""
    for name, advice in _refused(record.columns, columns.refused):
        raise errors.UserError(
            f"{record.where}: this task does not use the column {name!r}; {advice}"
        )


@functools.lru_cache(maxsize=64)
def _refused(
    names: tuple[str, ...], refused: tuple[tuple[str, str], ...]
) -> tuple[tuple[str, str], ...]:
    """Returns (name, advice) of the refused columns. Cached, because records share their names."""
    return tuple(
        (name, advice)
        for pattern, advice in refused
        for name in names
        if re.fullmatch(pattern, name, re.IGNORECASE)
    )


def unused(names: Iterable[str], columns: Columns) -> list[str]:
    """Returns those of a file's columns that are not read."""
    names = list(names)
    texts = next((t for t in columns.texts if set(t) <= set(names)), ())
    label, ids = (
        [name for name in group if name in names][:1] for group in (columns.label, columns.id)
    )
    used = (*texts, *label, *ids, *columns.extra)
    return [name for name in names if name not in used and not columns.has_more(name)]
