"""Reads questions and answers in SQuAD's format (Rajpurkar et al., arXiv 1606.05250, 1806.03822).

    {"version": "v2.0", "data": [{"title": ..., "paragraphs": [{"context": ..., "qas": [
        {"id": ..., "question": ..., "answers": [{"text": ..., "answer_start": 17}],
         "is_impossible": false}]}]}]}

JSON lines, Parquet, Arrow and TFDS data sets have one question per record instead, with the fields
id, question, context and answers: {"text": [...], "answer_start": [...]}. Without an id, a question
has the number of its record. `questions` checks that the answers are in their contexts.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from bertjax import errors, schema
from bertjax.data.corpus import corpus_files
from bertjax.finetuning.examples import columns as columns_lib
from bertjax.finetuning.examples import readers

_RECORDS = (".jsonl", ".ndjson", ".parquet", ".arrow")
COLUMNS = columns_lib.Columns(
    (("question", "context"),), ("answers",), ("id",), extra=("is_impossible",)
)


class Entry(NamedTuple):
    """A question as it is in a file. answers: (text, start in the context) of each answer."""

    where: str
    id: str
    question: str
    context: str
    answers: list[tuple[str, int]]
    impossible: bool


def has_records(path: str) -> bool:
    """Returns whether a file has one question per record."""
    return path.startswith("tfds:") or corpus_files.suffix(path) in _RECORDS


def entries(path: str, columns: columns_lib.Columns = COLUMNS) -> Iterator[Entry]:
    """Yields the questions of a file, in the order of the file.

    columns: of records. Raises UserError for other file formats.

    In records, an empty list of answers means that the question has no answer. In SQuAD's own
    format, an empty list means that the answer is unknown; "is_impossible" marks a question without
    an answer.
    """
    yield from _flat(path, columns) if has_records(path) else _nested(path)


def _nested(path: str) -> Iterator[Entry]:
    content = "\n".join(line for _, line in corpus_files.text_lines(path))
    document = schema.parse(content, path, "questions are JSON in SQuAD's form")
    for a, article in enumerate(_get(document, "data", list, path)):
        place = f"{path} article {a}"
        for p, paragraph in enumerate(_get(article, "paragraphs", list, place)):
            place = f"{path} article {a} paragraph {p}"
            context = _get(paragraph, "context", str, place)
            for qa in _get(paragraph, "qas", list, place):
                where = f"{path} question {_get(qa, 'id', str, place)}"
                starts = []
                if "answers" in qa:
                    for answer in _get(qa, "answers", list, where):
                        text = _get(answer, "text", str, where)
                        starts.append((text, _get(answer, "answer_start", int, where)))
                unanswerable = "is_impossible" in qa and _get(qa, "is_impossible", bool, where)
                question = _get(qa, "question", str, where)
                yield Entry(where, qa["id"], question, context, starts, unanswerable)


def _flat(path: str, columns: columns_lib.Columns) -> Iterator[Entry]:
    for number, record in enumerate(readers.records(path, reads=columns.reads)):
        names = columns_lib.text_columns(record, columns)
        question_id = columns_lib.record_id(record, columns) or str(number)
        where = f"{record.where} question {question_id}"
        question, context = (_get(record.fields, name, str, where) for name in names)
        starts: list[tuple[str, int]] = []
        label = next((name for name in columns.label if name in record.fields), "")
        if label:
            answers = _get(record.fields, label, dict, where)
            texts = _get(answers, "text", list, where)
            positions = _get(answers, "answer_start", list, where)
            if len(texts) != len(positions):
                raise errors.UserError(
                    f"{where}: the number of answers is {len(texts)} in 'text', but "
                    f"{len(positions)} in 'answer_start'"
                )
            starts = [
                (_get({"text": text}, "text", str, where), _get({"at": at}, "at", int, where))
                for text, at in zip(texts, positions, strict=True)
            ]
        unanswerable = bool(label) and not starts
        if "is_impossible" in record.fields:
            unanswerable = _get(record.fields, "is_impossible", bool, where)
        yield Entry(where, question_id, question, context, starts, unanswerable)


def _get(value: Any, key: str, kind: type, where: str) -> Any:
    """Returns value[key]. Raises UserError if it is missing or not of type `kind`."""
    if not isinstance(value, dict) or key not in value:
        raise errors.UserError(f"{where}: no {key!r}; the file is not in SQuAD's form")
    if not isinstance(value[key], kind) or (kind is int and isinstance(value[key], bool)):
        raise errors.UserError(f"{where}: {key!r} is not a JSON {_JSON_NAMES[kind]}")
    return value[key]


_JSON_NAMES = {str: "string", int: "integer", list: "list", dict: "object", bool: "true or false"}
