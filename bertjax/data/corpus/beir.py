"""Reads collections in the layout of BEIR: documents, queries, and judgements of their relevance.

    nq/corpus.jsonl      {"_id": "d1", "title": "Ada", "text": "Ada wrote it."} on each line
    nq/queries.jsonl     {"_id": "q1", "text": "Who wrote it?"} on each line
    nq/qrels/test.tsv    the header "query-id corpus-id score", then a judgement on each line

    collection = beir.read("nq/", "test")
    collection.qrels["q1"]              # {"d1": 1}: a score above 0 means that d1 is relevant
    beir.read("nq/qrels/test.tsv", "")  # the same

The layout is that of Thakur et al. (arXiv 2104.08663). The text of a document is its title and its
text with a space in between. Bad input raises a UserError that names the file and the line.
"""

import dataclasses
import os
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from etils import epath

from bertjax import errors, paths, schema
from bertjax.data.corpus import corpus_files

CORPUS, QUERIES, QRELS = "corpus.jsonl", "queries.jsonl", "qrels"
HEADER = ("query-id", "corpus-id", "score")
_ADVICE = "each line is one JSON object with _id and text"


class Text(NamedTuple):
    """A document or a query. where: its place, "file:line", for error messages."""

    text: str
    where: str


@dataclasses.dataclass(frozen=True, eq=False)
class Collection:
    """Documents, queries and judgements.

    folder: the path. documents, queries: {id: Text}, all of the files, in their order.
    qrels: {query id: {document id: score}} of one split; {} if no split was read.
    """

    folder: str
    documents: Mapping[str, Text]
    queries: Mapping[str, Text]
    qrels: Mapping[str, Mapping[str, int]]


def is_collection(path: str | os.PathLike) -> bool:
    """Returns whether a path is a folder with a corpus.jsonl, or a file of its folder qrels."""
    text = os.fspath(path)
    if not text or text.startswith("tfds:") or any(c in text for c in "*?["):
        return False
    return (_folder(paths.of(text)) / CORPUS).exists()


def read(path: str | os.PathLike, split: str) -> Collection:
    """Returns the collection in a folder, with the judgements of qrels/SPLIT.tsv.

    path: the folder, or a file of its folder qrels, which is then read instead of the file of
    `split`. split: "" reads no judgements.
    """
    place = paths.of(path)
    folder = _folder(place)
    documents = _texts(os.fspath(folder / CORPUS), titled=True)
    queries = _texts(os.fspath(folder / QUERIES), titled=False)
    qrels: dict[str, dict[str, int]] = {}
    if place != folder:
        qrels = _qrels(os.fspath(place), documents, queries)
    elif split:
        qrels = _qrels(os.fspath(_file_of(folder, split)), documents, queries)
    return Collection(os.fspath(path), documents, queries, qrels)


def _folder(place: epath.Path) -> epath.Path:
    return place.parent.parent if place.parent.name == QRELS and place.is_file() else place


def _file_of(folder: epath.Path, split: str) -> epath.Path:
    """Returns the file of a split. Raises UserError, with the splits that exist, if it is absent.

    The split "dev" may also be called validation, valid or val.
    """
    qrels = folder / QRELS
    names = (split, "validation", "valid", "val") if split == "dev" else (split,)
    for name in names:
        if (qrels / f"{name}.tsv").exists():
            return qrels / f"{name}.tsv"
    splits = sorted(p.stem for p in qrels.iterdir() if p.suffix == ".tsv") if qrels.is_dir() else []
    there = f"its splits are {errors.several(splits)}" if splits else "there is no such folder"
    raise errors.UserError(f"{qrels / split}.tsv: does not exist; {there}")


def _texts(path: str, *, titled: bool) -> dict[str, Text]:
    """Returns {id: Text}. Queries must not be empty; some published collections have empty
    documents."""
    texts: dict[str, Text] = {}
    for where, content in _objects(path):
        name = _id(content, where)
        if name in texts:
            raise errors.UserError(
                f"{where}: the id {name!r} is also that of {texts[name].where}; ids must differ"
            )
        parts = [_part(content, key, where) for key in (("title", "text") if titled else ("text",))]
        text = " ".join(filter(None, parts))
        if not (text or titled):
            raise errors.UserError(f"{where}: the query is empty; fill 'text' or remove the line")
        texts[name] = Text(text, where)
    if not texts:
        raise errors.UserError(f"{path}: contains no texts")
    return texts


def _objects(path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, line in corpus_files.text_lines(path):
        if line.strip():
            yield f"{path}:{number}", schema.parse(line, path, _ADVICE, number=number)


def _id(content: Mapping[str, Any], where: str) -> str:
    """Returns the id. Raises UserError for white space, which separates the columns of runs."""
    name = content.get("_id")
    if isinstance(name, bool) or not isinstance(name, str | int):
        raise errors.UserError(f"{where}: '_id' must be a string, not {schema.short(name)}")
    if len(str(name).split()) != 1 or str(name) != str(name).strip():
        raise errors.UserError(f"{where}: the id {name!r} is empty or has white space; rename it")
    return str(name)


def _part(content: Mapping[str, Any], key: str, where: str) -> str:
    value = content.get(key)
    if value is None and key == "title":
        return ""
    if not isinstance(value, str):
        raise errors.UserError(f"{where}: {key!r} must be a string, not {schema.short(value)}")
    return value.strip()


def _qrels(
    path: str, documents: Mapping[str, Text], queries: Mapping[str, Text]
) -> dict[str, dict[str, int]]:
    qrels: dict[str, dict[str, int]] = {}
    for number, line in corpus_files.text_lines(path):
        where, cells = f"{path}:{number}", tuple(line.split("\t"))
        if number == 1:
            if cells != HEADER:
                raise errors.UserError(
                    f"{where}: the first line must be {', '.join(HEADER)}, separated by tabs"
                )
            continue
        if not line.strip():
            continue
        if len(cells) != len(HEADER):
            raise errors.UserError(
                f"{where}: has {len(cells)} cells, separated by tabs, but must have {len(HEADER)}"
            )
        query, document, score = cells
        check_ids(query, document, documents, queries, where)
        judged = qrels.setdefault(query, {})
        if document in judged:
            raise errors.UserError(
                f"{where}: {document!r} is judged twice for {query!r}; remove one of the lines"
            )
        judged[document] = _score(score, where)
    if not any(score > 0 for judged in qrels.values() for score in judged.values()):
        raise errors.UserError(f"{path}: contains no relevant document (a score above 0)")
    return qrels


def check_ids(
    query: str,
    document: str,
    documents: Mapping[str, Text],
    queries: Mapping[str, Text],
    where: str,
) -> None:
    """Raises UserError, naming `where`, for an id that is not in the collection."""
    for name, known, kind, file in (
        (query, queries, "query", QUERIES), (document, documents, "document", CORPUS)
    ):  # fmt: skip
        if name not in known:
            raise errors.UserError(
                f"{where}: there is no {kind} {name!r} in {file}; correct the id or remove the line"
            )


def _score(text: str, where: str) -> int:
    try:
        value = float(text)
        if value == int(value):
            return int(value)
    except (ValueError, OverflowError):
        pass
    raise errors.UserError(f"{where}: the score {text!r} is not an integer")
