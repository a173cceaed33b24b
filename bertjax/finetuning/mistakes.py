"""Finds wrong predictions in the predictions that fine-tuning has written, for the report.

    found = mistakes.read("out/", "dev")
    found.wrong[0].predicted, found.wrong[0].truth, found.count

A line of predictions/SPLIT.jsonl is an example and its prediction, see `output_folder`. The fields
of the example determine how both are compared.
"""

import collections
import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from etils import epath

from bertjax import schema
from bertjax.finetuning import output_folder, squad_scores

SHOWN = 20  # wrong predictions
_READ = 20_000  # examples of a split
_REMEDY = "remove the file to have it written again"

Fields = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Mistake:
    """A wrong prediction. size: how wrong it is. measure: the name of the size; "": unknown."""

    text: str
    truth: str
    predicted: str
    size: float = 0.0
    measure: str = ""


@dataclasses.dataclass(frozen=True)
class Mistakes:
    """The wrong predictions of a split.

    wrong: the largest mistakes first, at most SHOWN. count: of all wrong predictions. read: how
    many labelled examples were looked at. confusions: {(true label, predicted label): count}, for
    tasks with one label. are_numbers: whether the labels are numbers, whose predictions are never
    quite right.
    """

    wrong: list[Mistake]
    count: int
    read: int
    confusions: dict[tuple[str, str], int]
    are_numbers: bool


def read(out: epath.Path, split: str) -> Mistakes | None:
    """Returns the mistakes of a split; None if there are no predictions or no labels to compare.

    Raises UserError for a damaged line.
    """
    file = out / output_folder.PREDICTIONS / f"{split}.jsonl"
    if not file.exists():
        return None
    found, count, are_numbers = [], 0, False
    confusions: collections.Counter[tuple[str, str]] = collections.Counter()
    for number, line in enumerate(file.read_bytes().split(b"\n")[:_READ], 1):
        if not line:
            continue
        content = schema.parse(line, file, _REMEDY, number=number)
        judged = _judged(content["example"], content["prediction"])
        if judged is None:
            continue
        count += 1
        if judged.truth != judged.predicted:
            found.append(judged)
        label = content["example"].get("label")
        are_numbers |= isinstance(label, int | float) and "choices" not in content["example"]
        if isinstance(label, str) and isinstance(content["prediction"].get("label"), str):
            confusions[label, content["prediction"]["label"]] += 1
    if not count:
        return None
    found.sort(key=lambda mistake: -mistake.size)
    return Mistakes(found[:SHOWN], len(found), count, dict(confusions), are_numbers)


def _judged(example: Fields, prediction: Fields) -> Mistake | None:
    """Returns the example as a `Mistake`, with equal texts if it is right; None without a label."""
    if "example" in example:  # of a mixture
        return _judged(example["example"], prediction)
    for field, judge in _JUDGES.items():
        if field in example:
            return judge(example, prediction)
    return None


def _of_texts(example: Fields, prediction: Fields) -> Mistake | None:
    text, label = " | ".join(example["texts"]), example["label"]
    if isinstance(label, list) and "labels" in prediction:
        truth, predicted = (sorted(map(str, names)) for names in (label, prediction["labels"]))
        missed = set(truth) ^ set(predicted)
        return Mistake(text, _listed(truth), _listed(predicted), len(missed), "wrong labels")
    if label is None or "label" not in prediction:
        return None
    if isinstance(label, int | float):
        predicted = prediction["label"]
        if not isinstance(predicted, int | float) or not math.isfinite(predicted):
            return Mistake(text, f"{label:.3g}", str(predicted), math.inf, "error")
        return Mistake(text, f"{label:.3g}", f"{predicted:.3g}", abs(label - predicted), "error")
    predicted = prediction["label"]
    if predicted is None:
        predicted = prediction["text"] if "text" in prediction else ""
    return Mistake(text, str(label), str(predicted), *_probability(prediction, predicted))


def _of_words(example: Fields, prediction: Fields) -> Mistake | None:
    tags = example["tags"]
    if tags is None or "tags" not in prediction:
        return None
    triples = list(zip(example["words"], tags, prediction["tags"], strict=True))
    wrong = [(word, tag, other) for word, tag, other in triples if tag != other]
    truth = ", ".join(f"{word} {tag}" for word, tag, _ in wrong)
    predicted = ", ".join(f"{word} {other}" for word, _, other in wrong)
    return Mistake(" ".join(example["words"]), truth, predicted, len(wrong), "wrong words")


def _of_question(example: Fields, prediction: Fields) -> Mistake | None:
    answers = [answer[0] for answer in example["answers"]]
    predicted = prediction["answer"] if "answer" in prediction else prediction["text"]
    if not answers and not example["impossible"]:
        return None
    answers = answers or [""]
    is_right = any(squad_scores.exact_match(answer, predicted) for answer in answers)
    text = f"{example['question']} | {example['context']}"
    truth = predicted if is_right else answers[0]
    return Mistake(text, truth, predicted)


def _of_choices(example: Fields, prediction: Fields) -> Mistake | None:
    label, choices = example["label"], example["choices"]
    if label is None:
        return None
    predicted = prediction["text"]
    size = _probability(prediction, predicted)
    return Mistake(example["context"], choices[label], predicted, *size)


def _of_source(example: Fields, prediction: Fields) -> Mistake | None:
    targets = example["targets"]
    if not targets or "text" not in prediction:
        return None
    predicted = prediction["text"]
    return Mistake(example["source"], predicted if predicted in targets else targets[0], predicted)


def _of_query(example: Fields, prediction: Fields) -> Mistake | None:
    labels = example["labels"]
    if not labels or "scores" not in prediction:
        return None
    documents, scores = example["documents"], prediction["scores"]
    first = max(range(len(scores)), key=scores.__getitem__)
    best = max(range(len(labels)), key=labels.__getitem__)
    if labels[first] == labels[best]:
        best = first
    size = scores[first] - scores[best]
    return Mistake(example["query"], documents[best], documents[first], size, "margin")


# {field that only these examples have: the function that compares them with their prediction}
_JUDGES = {
    "texts": _of_texts,
    "words": _of_words,
    "question": _of_question,
    "choices": _of_choices,
    "source": _of_source,
    "query": _of_query,
}


def _probability(prediction: Fields, predicted: str) -> tuple[float, str]:
    """Returns (probability of the predicted label, its name as a measure); (0, "") if unknown."""
    probabilities = prediction.get("probabilities")
    if not probabilities or predicted not in probabilities:
        return 0.0, ""
    return float(probabilities[predicted]), "probability"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"
