"""Reads questions and answers in SQuAD's format (Rajpurkar et al., arXiv 1606.05250, 1806.03822).

    {"version": "v2.0", "data": [{"title": ..., "paragraphs": [{"context": ..., "qas": [
        {"id": ..., "question": ..., "answers": [{"text": ..., "answer_start": 17}],
         "is_impossible": false}]}]}]}

or one question per record, in JSON lines or TFDS: id, question, context, answers: {"text": [...],
"answer_start": [...]}. Raises UserError unless every answer is in its context at answer_start.
"""

from collections.abc import Iterator
from typing import Any

from bertjax import errors, schema
from bertjax.data.corpus import corpus_files
from bertjax.finetuning.examples import readers, types


def read(path: str, *, impossible: bool) -> list[types.Question]:
    """Returns the questions of a file, in its order.

    impossible: whether questions without an answer are allowed (v2.0). In records, as published
    ones do, an empty list of answers means that the question has no answer. In SQuAD's own format,
    where "is_impossible" says this, it means that the answer is unknown.

    Raises UserError for bad files, files without questions, and repeated ids.
    """
    records = path.startswith("tfds:") or corpus_files.suffix(path) in (".jsonl", ".ndjson")
    found = list(_flat(path) if records else _nested(path))
    if not found:
        raise errors.UserError(f"{path}: holds no question")
    seen: set[str] = set()
    for question in found:
        if question.id in seen:
            raise errors.UserError(f"{question.where}: the id stands twice in the file")
        seen.add(question.id)
        if question.impossible and not impossible:
            raise errors.UserError(
                f"{question.where}: has no answer in its context; such files are --task=squad_v2"
            )
    return found


def _nested(path: str) -> Iterator[types.Question]:
    content = "\n".join(line for _, line in corpus_files.text_lines(path))
    whole = schema.parse(content, path, "questions are JSON in SQuAD's form")
    for a, article in enumerate(_get(whole, "data", list, path)):
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
                yield _question(
                    where, qa["id"], _get(qa, "question", str, where), context, starts, unanswerable
                )


def _flat(path: str) -> Iterator[types.Question]:
    for record in readers.records(path):
        place = record.where
        name, question, context = (
            _get(record.fields, key, str, place) for key in ("id", "question", "context")
        )
        where = f"{place} question {name}"
        starts: list[tuple[str, int]] = []
        given = "answers" in record.fields
        if given:
            answers = _get(record.fields, "answers", dict, where)
            texts = _get(answers, "text", list, where)
            numbers = _get(answers, "answer_start", list, where)
            if len(texts) != len(numbers):
                raise errors.UserError(f"{where}: {len(texts)} answers, {len(numbers)} starts")
            starts = [
                (_get({"text": text}, "text", str, where), _get({"at": at}, "at", int, where))
                for text, at in zip(texts, numbers, strict=True)
            ]
        unanswerable = given and not starts
        if "is_impossible" in record.fields:
            unanswerable = _get(record.fields, "is_impossible", bool, where)
        yield _question(where, name, question, context, starts, unanswerable)


def _get(value: Any, key: str, kind: type, where: str) -> Any:
    """Returns value[key]. Raises UserError if it is missing or not of type `kind`."""
    if not isinstance(value, dict) or key not in value:
        raise errors.UserError(f"{where}: no {key!r}; the file is not in SQuAD's form")
    if not isinstance(value[key], kind) or (kind is int and isinstance(value[key], bool)):
        raise errors.UserError(f"{where}: {key!r} is not a JSON {_NAMES[kind]}")
    return value[key]


_NAMES = {str: "string", int: "integer", list: "list", dict: "object", bool: "true or false"}


def _question(
    where: str,
    name: str,
    question: str,
    context: str,
    answers: list[tuple[str, int]],
    unanswerable: bool,
) -> types.Question:
    for what, text in (("question", question), ("context", context)):
        if not text.strip():
            raise errors.UserError(f"{where}: the {what} is empty")
    if unanswerable and answers:
        raise errors.UserError(f"{where}: is_impossible, and has an answer; one of them is wrong")
    for text, start in answers:
        if not text.strip():
            raise errors.UserError(f"{where}: an answer is empty; is_impossible says there is none")
        if start < 0 or context[start : start + len(text)] != text:
            at = context.find(text)
            found = f"it stands at {at}" if at >= 0 else "it stands nowhere in it"
            raise errors.UserError(
                f"{where}: the answer {text!r:.60} is not in its context at character {start}, "
                f"where {context[max(0, start) :][: len(text)]!r:.60} is; {found}"
            )
    return types.Question(name, question, context, tuple(answers), unanswerable, where)
