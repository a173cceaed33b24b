"""Scores of generated text against reference texts, 0 to 100: BLEU, ROUGE, named entities, labels.

    bleu([["the cat sat on the mat"]], ["the cat sat on the mat"])      # 100.0

Each prediction has one or more references.
"""

import collections
from collections.abc import Sequence
from typing import Any

import numpy as np

from bertjax.finetuning import scores

ROUGES = ("rouge1", "rouge2", "rougeL")

References = Sequence[Sequence[str]]
Entities = Sequence[Sequence[tuple[str, str]]]


def bleu(references: References, predictions: Sequence[str]) -> float:
    """Returns corpus BLEU by sacrebleu's defaults: cased, tokenizer 13a, exponential smoothing.

    Papineni et al. 2002; Post, arXiv 1804.08771.
    """
    library = scores.library("sacrebleu")
    count = max(map(len, references))
    streams = [[texts[i] if i < len(texts) else None for texts in references] for i in range(count)]
    return float(library.corpus_bleu(list(predictions), streams).score)


def rouge(references: References, predictions: Sequence[str]) -> dict[str, float]:
    """Returns rouge1, rouge2 and rougeL: the F1 with the best reference, averaged over predictions.

    Lin 2004, computed by the package rouge-score without its stemmer, as in T5. The package is made
    for English: every character except a to z and digits separates words.
    """
    scorer = scores.library("rouge_score.rouge_scorer").RougeScorer(list(ROUGES))
    rows = [
        scorer.score_multi(list(texts), prediction)
        for texts, prediction in zip(references, predictions, strict=True)
    ]
    return {name: 100.0 * float(np.mean([row[name].fmeasure for row in rows])) for name in ROUGES}


def spans(targets: Entities, predictions: Entities) -> dict[str, float]:
    """Returns precision, recall and f1 of named entities, as in mT5's span_f1, and accuracy.

    An entity is a type and a text. accuracy: the share of sentences with all entities right.
    """
    right = num_targets = num_predicted = num_exact = 0
    for target, prediction in zip(targets, predictions, strict=True):
        num_exact += sorted(target) == sorted(prediction)
        common = collections.Counter(target) & collections.Counter(prediction)
        right, num_targets, num_predicted = (
            right + common.total(),
            num_targets + len(target),
            num_predicted + len(prediction),
        )
    return {
        "precision": 100.0 * right / max(num_predicted, 1),
        "recall": 100.0 * right / max(num_targets, 1),
        "f1": 200.0 * right / max(num_predicted + num_targets, 1),
        "accuracy": 100.0 * num_exact / max(len(targets), 1),
    }


def of_labels(
    targets: Sequence[Any], predictions: Sequence[Any], labels: Sequence[str]
) -> dict[str, float]:
    """Returns the scores of labels; of numbers, if the targets are floats and `labels` is empty.

    found: the predictions; None for a prediction that is not a label or not a number.
    """
    if not labels and isinstance(targets[0], float):
        numbers = [0.0 if value is None else value for value in predictions]
        return scores.correlations(targets, numbers)
    result = {"accuracy": scores.accuracy(targets, predictions)}
    if labels:
        names = ["" if name is None else name for name in predictions]
        result["macro_f1"] = scores.macro_f1(targets, names, labels)
        result["mcc"] = scores.mcc(targets, names)
        if len(labels) == 2:
            result["f1"] = scores.f1(targets, names, labels)
    return result
