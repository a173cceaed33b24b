"""Finds the span of a context that answers a question (Devlin et al., arXiv 1810.04805, 4.2, 4.3).

A row is [CLS] question [SEP] window [SEP]: a context that is too long is split into overlapping
windows. The head scores each token as the first and as the last token of the answer; if a window
has no answer, both targets are the first token of the row. The score of an answer is the sum of the
scores of its first and its last token. The prediction is the best answer in any window.

With `impossible` (SQuAD 2.0) a question may have no answer. Its null odds are the score of no
answer (the lowest of its windows) minus the score of the best answer. If the null odds are above
`null_threshold`, the prediction is that there is no answer.

Shapes: B batch, L length, T tokens of a window.
"""

import dataclasses
import heapq
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bertjax import errors, metrics
from bertjax.data.tokenizers import tokenizer as tokenizer_lib
from bertjax.finetuning import rows, squad_scores
from bertjax.finetuning.examples import types as examples_lib
from bertjax.finetuning.task_types import base
from bertjax.models.common import layers
from bertjax.objectives.common import losses

Example = examples_lib.Question


@dataclasses.dataclass(frozen=True)
class Config:
    """Options of the windows and of the search for answers."""

    doc_stride: int = 128  # tokens from one window's start to the next; at most half a window
    max_query_length: int = 64  # maximum number of tokens in a question; longer ones are truncated
    max_answer_length: int = 30  # maximum number of tokens in an answer
    n_best: int = 20  # how many answers a prediction lists, with probabilities
    impossible: bool = False  # questions may have no answer
    tune_threshold: bool = True  # choose the null_threshold with the best F1 on dev
    null_threshold: float = 0.0  # null odds above which no answer is predicted; may be tuned

    def __post_init__(self):
        for name in ("doc_stride", "max_query_length", "max_answer_length", "n_best"):
            value = getattr(self, name)
            errors.check(value >= 1, f"kind.{name}", value, "1 or more")


class Tokens(NamedTuple):
    """A tokenized context: ids of its tokens, and the characters [starts, stops) of each token.

    All are int32[tokens].
    """

    ids: np.ndarray
    starts: np.ndarray
    stops: np.ndarray


class TaskType(base.TaskType):
    """Predicts a span of the context with the head "span"."""

    model_kinds = ("encoder",)
    packs = True
    heads = ("span",)
    Config = Config
    output_notes = types.MappingProxyType(
        {"span_logits": "each token's scores as the first and as the last token of the answer"}
    )
    hf_class = "ForQuestionAnswering"
    hf_task = "qa"

    def check(self, examples: Sequence[Example]) -> None:
        """Raises UserError for a question without an answer, unless `impossible`."""
        for example in examples:
            if example.impossible and not self.config.impossible:
                raise errors.UserError(
                    f"{example.where or self.task}: has no answer in its context: use "
                    "--task=squad_v2, or remove the question"
                )

    def features(self) -> dict[str, rows.Feature]:
        """Returns {name: Feature} for the arrays in a row.

        char_starts, char_stops: the characters of the context that a token covers; 0 and 0 for
        other tokens. first, last: 1 at the first and last token of the answer, or both 1 at the
        first token of the row if the window has no answer; all 0 if the answer is unknown.
        """
        names = "char_starts", "char_stops", "first", "last"
        return rows.FEATURES | {name: rows.Feature(np.int32) for name in names}

    def _encode(self, examples: Sequence[Example]) -> rows.Encoded:
        """Encodes each question as one row per window.

        If a question has several answers, the first is the target. If no token covers this answer,
        the target is unknown. Questions longer than max_query_length are marked as truncated.
        Raises UserError if a question leaves no room for its context.
        """
        form = rows.Form(self.tokenizer)
        questions = self.tokenizer.encode_batch([example.question.strip() for example in examples])
        contexts = _contexts(self.tokenizer, examples)
        encoded, owners = [], []
        for i, (example, question) in enumerate(zip(examples, questions, strict=True)):
            question = question[: self.config.max_query_length]
            room = self.lengths.length - form.overhead(2) - len(question)
            if room < 1:
                raise errors.UserError(
                    f"{example.where}: a question of {len(question)} tokens leaves no room for its "
                    f"context in a row of {self.lengths.length}: raise config.max_length, or lower "
                    "config.kind.max_query_length"
                )
            tokens = contexts[example.context]
            first, last = _answer_tokens(example, tokens)
            for start, stop in windows(len(tokens.ids), room, self.config.doc_stride):
                enclosed = form.enclose(
                    [question, tokens.ids[start:stop].tolist()], self.lengths.length
                )
                places = slice(enclosed.starts[1], enclosed.starts[1] + stop - start)
                row = enclosed.row
                for name in ("char_starts", "char_stops", "first", "last"):
                    row[name] = np.zeros_like(row["input_ids"])
                row["char_starts"][places] = tokens.starts[start:stop]
                row["char_stops"][places] = tokens.stops[start:stop]
                inside = start <= first and last < stop
                if example.impossible or first >= 0:
                    row["first"][places.start + first - start if inside else 0] = 1
                    row["last"][places.start + last - start if inside else 0] = 1
                encoded.append(row)
                owners.append(i)
        truncated = np.array([len(ids) > self.config.max_query_length for ids in questions], bool)
        return rows.Encoded(encoded, np.array(owners, int), truncated)

    def normalizers(self, batch: losses.Batch) -> dict[str, jax.Array]:
        """Returns the number of windows with targets, by which the sum of the loss is divided."""
        return {"span_loss": _weights(batch).sum()}

    def loss(self, apply: Callable[..., losses.Batch], batch: losses.Batch) -> metrics.Terms:
        """Returns span_loss, the mean cross entropy of the two ends in nats, and span_accuracy.

        A window counts as accurate if both ends are right.
        """
        logits_B2L = _logits(apply, batch)
        targets_B2L = jnp.stack([batch["first"], batch["last"]], axis=1)
        target_logits_B2 = jnp.sum(jnp.where(targets_B2L > 0, logits_B2L, 0.0), axis=-1)
        nll_B = (jax.nn.logsumexp(logits_B2L, axis=-1) - target_logits_B2).mean(axis=1)
        right_B2 = jnp.argmax(logits_B2L, axis=-1) == jnp.argmax(targets_B2L, axis=-1)
        weights_B = _weights(batch)
        return {
            "span_loss": ((nll_B * weights_B).sum(), weights_B.sum()),
            "span_accuracy": ((right_B2.all(axis=1) * weights_B).sum(), weights_B.sum()),
        }

    def outputs(
        self, apply: Callable[..., losses.Batch], batch: losses.Batch
    ) -> dict[str, jax.Array]:
        """Returns {"span_logits" float32[B, 2, L]}: each token's scores as first and last token."""
        return {"span_logits": _logits(apply, batch)}

    def decode(
        self, examples: Sequence[Example], encoded: rows.Encoded, outputs: dict[str, Any]
    ) -> list[dict[str, Any]]:
        """Returns one prediction per question.

        {"id", "answer", "start", "n_best": [{"answer", "start", "probability"}], "null_odds"}

        start: index of the answer's first character in the context; None if the answer is "".
        n_best: the best non-empty answers, best first. null_odds: only with `impossible`.
        """
        answers: list[dict[tuple[int, int], float]] = [{} for _ in examples]
        null_scores = np.full(len(examples), np.inf)
        for row, owner, logits_2L in zip(
            encoded.rows, encoded.owners, outputs["span_logits"], strict=True
        ):
            null_scores[owner] = min(null_scores[owner], float(logits_2L[:, 0].sum()))
            for span, score in _best_answers(self.config, row, logits_2L):
                answers[owner][span] = max(score, answers[owner].get(span, -np.inf))
        return [
            _prediction(self.config, example, spans, score)
            for example, spans, score in zip(examples, answers, null_scores.tolist(), strict=True)
        ]

    def scores(
        self, examples: Sequence[Example], predictions: Sequence[dict[str, Any]]
    ) -> dict[str, float]:
        """Returns `squad_scores.scores` of the labelled questions.

        With `impossible`, also returns null_threshold, and best_exact_match and best_f1 with their
        thresholds. NOTE: these last two thresholds are chosen on the scored questions themselves.
        The best scores are an upper bound on what a threshold can gain, and not a result to report.
        """
        references, labelled = _labelled(examples, predictions)
        answers = [prediction["answer"] for prediction in labelled]
        result = squad_scores.scores(references, answers, impossible=self.config.impossible)
        if self.config.impossible:
            result["null_threshold"] = self.config.null_threshold
            for name, best in _best_thresholds(references, labelled).items():
                result |= {f"best_{name}": best.score, f"best_{name}_threshold": best.threshold}
        return result

    @property
    def tunes(self) -> bool:
        """Whether questions may have no answer, for which `tuned` chooses a threshold."""
        return self.config.impossible

    def asked(self, examples: Sequence[Example]) -> "TaskType":
        """Returns the task type; sets `impossible` if some examples are known to have no answer.

        Does not change null_threshold.
        """
        impossible = self.config.impossible or any(example.impossible for example in examples)
        return self._with(impossible=impossible)

    def tuned(
        self,
        examples: Sequence[Example],
        predictions: Sequence[dict[str, Any]],
        outputs: Mapping[str, np.ndarray],
    ) -> "TaskType":
        """Returns the task type with the null threshold that has the best F1 on `examples`.

        Returns the task type unchanged unless both `impossible` and `tune_threshold` are true.
        """
        del outputs
        if not (self.config.impossible and self.config.tune_threshold):
            return self
        best = _best_thresholds(*_labelled(examples, predictions))["f1"]
        return self._with(null_threshold=best.threshold)

    def lines(self, prediction: dict[str, Any], top: int) -> list[str]:
        """Returns the answer, and the best answers with their probabilities."""
        lines = [f"{item['answer']} {item['probability']:.3f}" for item in prediction["n_best"]]
        return [prediction["answer"] or _no_answer(prediction), f"best: {'   '.join(lines[:top])}"]

    @property
    def question_length(self) -> int:
        """The maximum number of tokens in a question."""
        return self.config.max_query_length

    def report_notes(self) -> list[str]:
        """Returns a note that the threshold was tuned on dev; [] if it was not."""
        if not (self.config.impossible and self.config.tune_threshold):
            return []
        return ["The threshold for no answer is tuned on dev, so the F1 on dev is too high."]


def windows(length: int, room: int, stride: int) -> Iterator[tuple[int, int]]:
    """Yields [start, stop) of the windows over `length` tokens, at least one.

    A window has at most `room` tokens and starts `stride` tokens after the one before. `stride` is
    limited to half of `room`, so some window contains all of an answer of at most this length.
    """
    stride = min(stride, max(room // 2, 1))
    start = 0
    while start + room < length:
        yield start, start + room
        start += stride
    yield start, length


def _contexts(tokenizer: tokenizer_lib.Tokenizer, examples: Sequence[Example]) -> dict[str, Tokens]:
    """Returns {context: Tokens}; tokenizes each distinct context once."""
    texts = list(dict.fromkeys(example.context for example in examples))
    contexts = {}
    for text, (ids, offsets) in zip(texts, tokenizer.encode_with_offsets(texts), strict=True):
        starts, stops = np.array(offsets, np.int32).reshape(-1, 2).T
        contexts[text] = Tokens(np.array(ids, np.int32), starts, stops)
    return contexts


def _answer_tokens(example: Example, tokens: Tokens) -> tuple[int, int]:
    """Returns the indices of the first and last tokens of the first answer.

    Returns (-1, -1) if there is no answer.
    """
    if not example.answers:
        return -1, -1
    text, start = example.answers[0]
    covered = (tokens.stops > start) & (tokens.starts < start + len(text))
    places = np.flatnonzero(covered & (tokens.stops > tokens.starts))
    return (int(places[0]), int(places[-1])) if len(places) else (-1, -1)


def _logits(apply: Callable[..., losses.Batch], batch: losses.Batch) -> jax.Array:
    """Returns [B, 2, L]; padding is masked out."""
    logits_BL2 = apply(**rows.inputs(batch))["span_logits"]
    real_BL = batch["attention_mask"] > 0
    return jnp.swapaxes(jnp.where(real_BL[:, :, None], logits_BL2, layers.MASKED), 1, 2)


def _weights(batch: losses.Batch) -> jax.Array:
    return losses.example_weights(batch) * batch["first"].sum(axis=1)


def _best_answers(
    config: Config, row: dict[str, np.ndarray], logits_2L: np.ndarray
) -> list[tuple[tuple[int, int], float]]:
    """Returns up to n_best answers of a window, unordered, as ((start, stop), score).

    start, stop: characters of the context.
    """
    places_T = np.flatnonzero(row["char_stops"] > row["char_starts"])
    size = len(places_T)
    if not size:
        return []
    lasts_TA = np.arange(size)[:, None] + np.arange(min(config.max_answer_length, size))
    first_T, last_T = np.asarray(logits_2L, np.float64)[:, places_T]
    scores_TA = first_T[:, None] + last_T[np.minimum(lasts_TA, size - 1)]
    flat = np.where(lasts_TA < size, scores_TA, -np.inf).ravel()
    best = np.argpartition(-flat, min(config.n_best, flat.size) - 1)[: config.n_best]
    best = best[flat[best] > -np.inf]
    starts = row["char_starts"][places_T[best // lasts_TA.shape[1]]]
    stops = row["char_stops"][places_T[lasts_TA.ravel()[best]]]
    spans = zip(starts.tolist(), stops.tolist(), strict=True)
    return list(zip(spans, flat[best].tolist(), strict=True))


def _prediction(
    config: Config, example: Example, spans: dict[tuple[int, int], float], null_score: float
) -> dict[str, Any]:
    best = heapq.nsmallest(config.n_best, spans.items(), key=lambda item: (-item[1], item[0]))
    scores = [score for _, score in best] + [null_score] * (config.impossible or not best)
    weights = np.exp(np.array(scores) - max(scores))
    n_best = [
        {"answer": example.context[start:stop], "start": start, "probability": float(p)}
        for ((start, stop), _), p in zip(best, weights / weights.sum(), strict=False)
    ]
    prediction = {"id": example.id, "answer": "", "start": None, "n_best": n_best}
    null_odds = null_score - best[0][1] if best else -layers.MASKED
    if best and not (config.impossible and null_odds > config.null_threshold):
        prediction |= {"answer": n_best[0]["answer"], "start": n_best[0]["start"]}
    return prediction | ({"null_odds": null_odds} if config.impossible else {})


def _labelled(
    examples: Sequence[Example], predictions: Sequence[dict[str, Any]]
) -> tuple[list[list[str]], list[dict[str, Any]]]:
    """Returns (answers, prediction) of each labelled question, as two lists."""
    pairs = [
        ([text for text, _ in example.answers], prediction)
        for example, prediction in zip(examples, predictions, strict=True)
        if example.is_labelled()
    ]
    return [answers for answers, _ in pairs], [prediction for _, prediction in pairs]


def _best_thresholds(
    references: Sequence[Sequence[str]], predictions: Sequence[dict[str, Any]]
) -> dict[str, squad_scores.Threshold]:
    """Returns the best null threshold for each of the scores "exact_match" and "f1"."""
    answers = [p["n_best"][0]["answer"] if p["n_best"] else "" for p in predictions]
    scores = squad_scores.of_answers(references, answers, impossible=True)
    values = zip(("exact_match", "f1"), scores, strict=True)
    answered_Q = squad_scores.has_answer(references)
    odds_Q = np.array([p["null_odds"] for p in predictions])
    return {
        name: squad_scores.best_threshold(scores_Q, answered_Q, odds_Q) for name, scores_Q in values
    }


def _no_answer(prediction: dict[str, Any]) -> str:
    """Returns "(no answer)" and its probability: 1 minus the sum over `n_best`."""
    if "null_odds" not in prediction:
        return "(no answer)"
    rest = 1 - sum(item["probability"] for item in prediction["n_best"])
    return f"(no answer) {abs(rest):.3f}"
