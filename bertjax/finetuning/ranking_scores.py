"""Scores of rankings, by trec_eval (through pytrec_eval), as percentages.

    scores({"q1": {"d1": 1}}, {"q1": {"d1": 0.9, "d2": 0.7}})       # {"ndcg_at_10": 100.0, ...}

Documents with equal scores are ordered as in trec_eval: by their ids, the last one in the alphabet
first. A judged query without results counts as 0, as with `trec_eval -c`.
"""

import math
from collections.abc import Mapping

from bertjax.data.corpus import trec_runs
from bertjax.finetuning import scores as scores_lib

NAMES = ("ndcg_at_10", "mrr_at_10", "map_at_100", "recall_at_10", "recall_at_100")
_MEASURES = {
    "ndcg_at_10": "ndcg_cut_10",
    "map_at_100": "map_cut_100",
    "recall_at_10": "recall_10",
    "recall_at_100": "recall_100",
}


def scores(qrels: Mapping[str, Mapping[str, int]], run: trec_runs.Run) -> dict[str, float]:
    """Returns {name of NAMES: its mean over the queries of `qrels`, 0 to 100}.

    qrels: {query: {document: score}}; a score above 0 means that the document is relevant.
    run: {query: {document: score}}, the results. A score that is not a number ranks last.
    """
    library = scores_lib.library("pytrec_eval")
    measures = {"ndcg_cut.10", "map_cut.100", "recall.10,100", "recip_rank"}
    evaluator = library.RelevanceEvaluator({q: dict(qrels[q]) for q in qrels}, measures)
    totals = dict.fromkeys(NAMES, 0.0)
    for query in qrels:  # one by one: the library copies all that it is given
        results = {name: _number(score) for name, score in run.get(query, {}).items()}
        found = evaluator.evaluate({query: results})[query] if results else {}
        for name, measure in _MEASURES.items():
            totals[name] += found.get(measure, 0.0)
        reciprocal = found.get("recip_rank", 0.0)
        totals["mrr_at_10"] += reciprocal * (reciprocal > 1 / 10.5)
    return {name: 100.0 * total / len(qrels) for name, total in totals.items()}


def _number(score: float) -> float:
    return -math.inf if math.isnan(score) else float(score)
