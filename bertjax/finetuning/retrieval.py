"""Searches a collection with an encoder, or reranks the results of a search with a cross-encoder.

    examples = queries.read("nq/", "test")
    first = retrieval.run(bertjax.load("minilm/"), examples)
    second = retrieval.run(bertjax.load("rerank/"), examples, first)
    examples.scores(second)                 # {"ndcg_at_10": 57.1, ...}

An encoder is a pretrained model, or one that is fine-tuned for embeddings. A cross-encoder is a
model of the task `rerank`, or a model that predicts a number for a pair of texts, which a folder of
sentence-transformers' CrossEncoder is read as.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bertjax import errors, progress
from bertjax.data.corpus import trec_runs
from bertjax.finetuning import predictor
from bertjax.finetuning.examples import queries as queries_lib
from bertjax.finetuning.examples import types as examples_lib
from bertjax.inference import pretrained

_TEXTS = 1024  # texts that are encoded at once
_PAIRS = 20_000  # pairs that are scored at once


def run(
    model: pretrained.Pretrained,
    examples: queries_lib.Queries,
    first: trec_runs.Run | None = None,
    on_progress: progress.Done = lambda done, total: None,
) -> trec_runs.Run:
    """Returns the run of an exact search, or of reranking the run `first`.

    Reranking scores the `examples.depth` best documents of each query; the others follow them in
    their order. on_progress: called with (number of finished texts or pairs, their number).

    Raises UserError if a cross-encoder has no run to rerank, or an encoder has one, and if the
    model is fine-tuned for something else.
    """
    task = model.task_type if isinstance(model, predictor.Predictor) else None
    if task is not None and (task.name == "rerank" or _is_regression(task)):
        if first is None:
            raise errors.UserError(
                f"the model is a cross-encoder (task {task.task}), which reranks the results of a "
                "search: give a run of an encoder as --run=FILE"
            )
        return _reranked(model, examples, first, on_progress)
    if task is not None and not task.searches:
        raise errors.UserError(
            f"the model is fine-tuned for the task {task.task}, which gives neither vectors to "
            "search with nor scores of pairs: use a model of the task embeddings or rerank"
        )
    if first is not None:
        raise errors.UserError(
            "only a cross-encoder reranks a run, but the model is an encoder: remove --run, or "
            "fine-tune a model with --task=rerank"
        )
    if isinstance(model, predictor.Predictor):
        return examples.run(model.answer(examples, on_progress)[1])
    return examples.search(_vectors(model, examples.texts(), on_progress))


def _is_regression(task: Any) -> bool:
    return task.name == "classification" and task.config.regression


def _vectors(
    model: pretrained.Pretrained, texts: Sequence[str], on_progress: progress.Done
) -> np.ndarray:
    """Returns the vectors of length 1. Encodes texts of similar length together."""
    order = np.argsort([-len(text) for text in texts], kind="stable")
    vectors: np.ndarray | None = None
    for start in range(0, len(texts), _TEXTS):
        part = order[start : start + _TEXTS]
        found = model.encode([texts[i] for i in part], normalize=True, truncate=True)
        if vectors is None:
            vectors = np.zeros((len(texts), found.shape[1]), np.float32)
        vectors[part] = found
        on_progress(min(start + _TEXTS, len(texts)), len(texts))
    return vectors


def _reranked(
    model: predictor.Predictor,
    examples: queries_lib.Queries,
    first: trec_runs.Run,
    on_progress: progress.Done,
) -> dict[str, dict[str, float]]:
    ranked = {q.id: trec_runs.best(first[q.id]) for q in examples if q.id in first}
    if not ranked:
        raise errors.UserError("the run has no results for these queries: is it of another split?")
    total = sum(min(len(names), examples.depth) for names in ranked.values())
    result: dict[str, dict[str, float]] = {}
    done = 0
    for group in _groups(examples, ranked):
        scores = iter(_pair_scores(model, examples, group))
        for query, names in group.items():
            found = {name: next(scores) for name in names}
            worst = min(found.values())
            rest = ranked[query][len(names) :]
            behind = {name: worst - rank for rank, name in enumerate(rest, 1)}
            result[query] = {name: found[name] for name in trec_runs.best(found)} | behind
        done += sum(map(len, group.values()))
        on_progress(done, total)
    return result


def _groups(
    examples: queries_lib.Queries, ranked: Mapping[str, Sequence[str]]
) -> Iterator[dict[str, Sequence[str]]]:
    """Yields {query id: documents to rerank} for several queries, about _PAIRS pairs at once."""
    group: dict[str, Sequence[str]] = {}
    for query, names in ranked.items():
        group[query] = names[: examples.depth]
        if sum(map(len, group.values())) >= _PAIRS:
            yield group
            group = {}
    if group:
        yield group


def _pair_scores(
    model: predictor.Predictor, examples: queries_lib.Queries, group: Mapping[str, Sequence[str]]
) -> list[float]:
    """Returns the scores of all pairs of a group, in its order."""
    collection = examples.collection
    pairs = [
        (collection.queries[query].text, collection.documents[name].text)
        for query, names in group.items()
        for name in names
    ]
    if model.task_type.name == "rerank":
        of_rerank = [examples_lib.Candidates(query, (text,)) for query, text in pairs]
        return [p["scores"][0] for p in model.answer(of_rerank)[1]]
    of_regression = [examples_lib.Sentence(pair) for pair in pairs]
    return [p["label"] for p in model.answer(of_regression)[1]]
