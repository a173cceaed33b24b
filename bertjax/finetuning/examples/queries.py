"""The queries of a retrieval collection as examples, to score embeddings by the search for answers.

    examples = read("nq/", "test")          # one example per query; see `data.corpus.beir`
    vectors = model.encode(examples.texts())
    examples.scores(examples.search(vectors))       # {"ndcg_at_10": 41.2, ...}

Shapes: Q queries, N documents, D model.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bertjax import errors
from bertjax.data.corpus import beir, trec_runs
from bertjax.finetuning import ranking_scores
from bertjax.finetuning.examples import sentences
from bertjax.inference import search as search_lib

DEPTH = 100  # documents that are kept for each query


class Queries(list[sentences.Sentence]):
    """The judged queries of a collection, or all of them if no judgements were read.

    depth: how many documents a search keeps for each query.
    """

    def __init__(self, collection: beir.Collection, depth: int = DEPTH):
        names = collection.qrels or collection.queries
        super().__init__(
            sentences.Sentence((query.text,), id=name, where=query.where)
            for name, query in ((name, collection.queries[name]) for name in names)
        )
        self.collection, self.depth = collection, depth

    def documents(self) -> list[sentences.Sentence]:
        """Returns the documents as examples."""
        return [
            sentences.Sentence((document.text,), id=name, where=document.where)
            for name, document in self.collection.documents.items()
        ]

    def texts(self) -> list[str]:
        """Returns the texts of the queries, then those of all documents."""
        return [
            *(query.texts[0] for query in self),
            *(document.text for document in self.collection.documents.values()),
        ]

    def search(self, vectors_QND: np.ndarray) -> dict[str, dict[str, float]]:
        """Returns the run {query id: {document id: cosine}} of an exact search, best first.

        A document with the id of the query is not a result, as in BEIR.
        vectors_QND: [Q + N, D], of length 1, in the order of `texts`. A vector that is not finite,
        from a model that diverged, counts as 0.
        """
        vectors = np.where(np.isfinite(vectors_QND).all(axis=1, keepdims=True), vectors_QND, 0.0)
        names = list(self.collection.documents)
        hits = search_lib.top_k(vectors[: len(self)], vectors[len(self) :], self.depth + 1)
        run = {}
        for query, scores, indices in zip(self, hits.scores_QK, hits.indices_QK, strict=True):
            results = {names[i]: float(s) for i, s in zip(indices, scores, strict=True)}
            results.pop(query.id, None)
            run[query.id] = dict(list(results.items())[: self.depth])
        return run

    def predictions(self, vectors_QND: np.ndarray) -> list[dict[str, Any]]:
        """Returns {"documents": {id: cosine}} for each query; see `search`."""
        return [{"documents": found} for found in self.search(vectors_QND).values()]

    def run(self, predictions: Sequence[Mapping[str, Any]]) -> trec_runs.Run:
        """Returns the predictions as a run."""
        return {q.id: p["documents"] for q, p in zip(self, predictions, strict=True)}

    def scores(self, run: trec_runs.Run) -> dict[str, float]:
        """Returns the scores of a run; see `ranking_scores`."""
        return ranking_scores.scores(self.collection.qrels, run)

    def content(self) -> tuple[Any, ...]:
        """Returns all that the scores depend on besides the queries."""
        documents = {name: text for name, (text, _) in self.collection.documents.items()}
        return documents, self.collection.qrels, self.depth


def read(path: str | os.PathLike, split: str, depth: int = DEPTH) -> Queries:
    """Returns the queries of a collection. split: see `beir.read`. Raises UserError for bad input.
    """
    return Queries(beir.read(path, split), depth)


def check_same_form(examples: Mapping[str, Sequence[Any]]) -> None:
    """Raises UserError if dev is a collection and another split but train is not, or reversed."""
    forms = {split: isinstance(found, Queries) for split, found in examples.items()}
    for split in forms.keys() - {"train"}:
        if forms[split] != forms["dev"]:
            raise errors.UserError(
                f"--{'dev' if forms['dev'] else split} is a collection for retrieval, so "
                f"--{split if forms['dev'] else 'dev'} must be one too: the same score is reported "
                "for both"
            )
