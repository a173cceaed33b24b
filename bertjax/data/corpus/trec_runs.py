"""Reads and writes runs, the results of a search, in the format of TREC.

    q1 Q0 d7 1 12.5 bertjax         query, "Q0", document, rank, score, name of the run

    run = trec_runs.read("first.trec", collection)      # {"q1": {"d7": 12.5, ...}}
    trec_runs.best(run["q1"])                           # ["d7", ...], best first
    trec_runs.write("second.trec", run)

As in trec_eval, the scores decide the order and the ranks are ignored. Documents with equal scores
are ordered by their ids, the last one in the alphabet first.
"""

import math
import os
from collections.abc import Iterator, Mapping

import numpy as np

from bertjax import errors, files
from bertjax.data.corpus import beir, corpus_files

Run = Mapping[str, Mapping[str, float]]
_NAME = "bertjax"
_COLUMNS = 6


def read(path: str, collection: beir.Collection) -> dict[str, dict[str, float]]:
    """Returns {query id: {document id: score}}.

    Raises UserError, with file and line, for an id that is not in the collection, a document that
    occurs twice for a query, and an invalid line.
    """
    run: dict[str, dict[str, float]] = {}
    for number, line in corpus_files.text_lines(path):
        where, cells = f"{path}:{number}", line.split()
        if not cells:
            continue
        if len(cells) != _COLUMNS:
            raise errors.UserError(
                f"{where}: has {len(cells)} columns, but a line of a run has {_COLUMNS}: "
                "query, Q0, document, rank, score and name"
            )
        query, _, document, _, score, _ = cells
        beir.check_ids(query, document, collection.documents, collection.queries, where)
        scores = run.setdefault(query, {})
        if document in scores:
            raise errors.UserError(
                f"{where}: {document!r} occurs twice for {query!r}; remove one of the lines"
            )
        scores[document] = _number(score, where)
    if not run:
        raise errors.UserError(f"{path}: contains no results")
    return run


def _number(text: str, where: str) -> float:
    try:
        score = float(text)
    except ValueError:
        score = math.nan
    if not math.isfinite(score):
        raise errors.UserError(f"{where}: the score {text!r} is not a number")
    return score


def best(scores: Mapping[str, float]) -> list[str]:
    """Returns the document ids, best first, in the order of trec_eval.

    NOTE: trec_eval keeps scores in float32, so scores that differ less are equal.
    """
    return sorted(scores, key=lambda name: (np.float32(scores[name]), name), reverse=True)


def lines(run: Run) -> Iterator[str]:
    """Yields the lines of a run, with nine digits of each score, which are exact for float32."""
    for query, scores in run.items():
        for rank, document in enumerate(best(scores), 1):
            yield f"{query} Q0 {document} {rank} {scores[document]:.9g} {_NAME}\n"


def write(path: str | os.PathLike, run: Run) -> None:
    """Writes a run atomically."""
    with files.replacing(path) as partial, partial.open("w", encoding="utf-8") as file:
        file.writelines(lines(run))
