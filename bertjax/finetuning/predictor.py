"""Predicts with a fine-tuned model.

model = bertjax.load("out/")
model.predict("I loved this movie")        # {"label": "positive", "probabilities": {...}}
model.predict([{"question": "Who?", "context": "Ada wrote it."}])      # [{"answer": "Ada", ...}]
model.evaluate("dev.tsv")                  # {"accuracy": 93.1, ...}
"""

import collections
import functools
import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from bertjax import errors, progress
from bertjax.artifact import artifact
from bertjax.finetuning import answering as answering_lib
from bertjax.finetuning import data_warnings, kind, tasks
from bertjax.finetuning.examples import types as examples_lib
from bertjax.finetuning.kinds import tokens
from bertjax.inference import pretrained
from bertjax.models.common import layers

BATCH_SIZE = 32
Input = str | Sequence[str] | Mapping[str, Any] | examples_lib.Example


class Predictor(pretrained.Pretrained):
    """A `Pretrained` with a task. `answering` defines how it predicts."""

    def __init__(self, source: artifact.Artifact, compute: layers.Compute | None = None):
        super().__init__(source, compute)
        self.answering = answering_lib.from_artifact(source)
        any_texts = not self.answering.num_texts
        self.task = tasks.answered(self.answering.task, any_texts=any_texts)

    def predict(self, inputs: Input | Sequence[Input]) -> Any:
        """Returns the prediction for one input, or a list of them for a list of inputs.

        An input is a text, a pair of texts as a tuple, an example of `finetuning.examples.types`,
        or the fields of one: {"question", "context"}, {"context", "choices"}, {"source"},
        {"words"}. Raises UserError for anything that is not an input of the task.
        """
        if isinstance(inputs, list):
            return self.answer([self.example(each) for each in inputs])[1]
        return self.answer([self.example(inputs)])[1][0]

    def _pooling(self, asked: str) -> str:
        """Returns the pooling for `encode`: `asked`, or the one used in training.

        NOTE: `encode` reads as many tokens as the model can; `predict` as many as in training.
        Raises UserError for embeddings trained with a prompt, which only `predict` inserts.
        """
        trained = getattr(self.answering.config, "pooling", "")
        if trained and self.answering.prompt_ids:
            raise errors.UserError(
                "this model gives vectors behind a trained prompt: take those of `predict`"
            )
        return asked or trained or super()._pooling(asked)

    def evaluate(
        self,
        examples: str | os.PathLike | Sequence[examples_lib.Example],
        on_progress: progress.Done = lambda done, total: None,
    ) -> dict[str, float]:
        """Returns every score of the task's kind, on a labelled file or a list of examples.

        Prints how many damaged rows of a file were skipped. on_progress: as in `answer`.
        """
        if isinstance(examples, str | os.PathLike):
            damaged: collections.Counter[str] = collections.Counter()
            path = os.fspath(examples)
            examples = tasks.read(self.task, path, "dev", skipped=damaged)
            for why, count in damaged.items():
                errors.tell(f"{path}: {count} {why}, left out")
        return self.answering.asked(examples).scores(
            examples, self.answer(examples, on_progress)[1]
        )

    def answer(
        self,
        examples: Sequence[examples_lib.Example],
        on_progress: progress.Done = lambda done, total: None,
    ) -> tuple[kind.Encoded, list[dict[str, Any]]]:
        """Returns (the examples as rows, one prediction per example).

        Prints a warning if examples were truncated. on_progress: called with (rows done, rows in
        all) after each batch; not if a prediction needs many forward passes.
        """
        answering = self.answering.asked(examples)
        if not examples:
            return kind.Encoded([], np.zeros(0, int), np.zeros(0, bool)), []
        encoded = answering.encode(examples)
        for line in data_warnings.unread(encoded.truncated, answering):
            errors.tell(f"warning: {line}")
        if hasattr(answering.kind, "predict_loop"):
            outputs = answering.answer_in_loop(self, encoded)
        else:
            batches = answering.batches(encoded, min(BATCH_SIZE, len(encoded.rows)))
            outputs = answering_lib.forward(
                self._step, self.params, batches, on_progress=on_progress
            )
        return encoded, answering.decode(examples, encoded, outputs)

    def example(self, given: Input) -> examples_lib.Example:
        """Returns an input as an example of the task. Raises UserError if it does not fit."""
        reader = self.task.reader
        if isinstance(given, examples_lib.Example):
            return given
        if isinstance(given, str) and reader in ("sentences", "words", "text_pairs"):
            fields = {
                "sentences": lambda: {"texts": (given,)},
                "words": lambda: examples_lib.cut(given)._asdict(),
                "text_pairs": lambda: {"source": given},
            }[reader]()
        elif isinstance(given, tuple) and reader == "sentences":
            fields = {"texts": given}
        elif isinstance(given, Mapping):
            fields = {name: tuple(v) if isinstance(v, list) else v for name, v in given.items()}
            fields = ({"id": ""} if reader == "questions" else {}) | fields
        else:
            fields = {}
        for name in _LISTS & fields.keys():
            if isinstance(fields[name], str):
                raise errors.UserError(
                    f"{name!r} is a list of texts, not {pretrained.short(given)}"
                )
        try:
            return _TYPES[reader](**fields)
        except TypeError:
            raise errors.UserError(
                f"the task {self.task.name} answers {_NEEDS[reader]}, not {pretrained.short(given)}"
            ) from None

    @functools.cached_property
    def _step(self) -> Callable[..., dict[str, jax.Array]]:
        return jax.jit(self.answering.predict_step(self.model))


_TYPES: dict[str, type] = {
    "sentences": examples_lib.Sentence,
    "words": examples_lib.Words,
    "questions": examples_lib.Question,
    "text_pairs": examples_lib.TextPair,
    "choices": examples_lib.Choice,
}
_LISTS = {"texts", "words", "tags", "targets", "choices", "answers"}
_NEEDS = {
    "sentences": "a text, or a pair of texts",
    "words": "a text, or words",
    "questions": "a question on a context",
    "text_pairs": "a text",
    "choices": "a context with choices",
}


def lines(prediction: Mapping[str, Any], top: int = 5) -> list[str]:
    """Returns a prediction as lines of text to print.

    top: how many labels, or further answers, to list.
    """
    if "entities" in prediction and (prediction["entities"] or not prediction["tags"]):
        return [f"{entity['type']}: {entity['text']}" for entity in prediction["entities"]]
    if "tags" in prediction:
        outside = set(prediction["tags"]) == {tokens.OUTSIDE}
        return ["no entity"] if outside else [" ".join(prediction["tags"])]
    if "probabilities" in prediction:
        best = list(prediction["probabilities"].items())[:top]
        return ["   ".join(f"{label} {p:.3f}" for label, p in best)]
    if "n_best" in prediction:
        others = [f"{each['answer']} {each['probability']:.3f}" for each in prediction["n_best"]]
        return [prediction["answer"] or _silence(prediction), f"best: {'   '.join(others[:top])}"]
    if "vector" in prediction:
        return [f"[{', '.join(f'{value:.6g}' for value in prediction['vector'])}]"]
    if "similarity" in prediction:
        return [f"cosine {prediction['similarity']:.4f}"]
    for name in ("text", "label"):
        if name in prediction:
            value = prediction[name]
            return [f"{value:.4f}" if isinstance(value, float) else str(value)]
    return [json.dumps(prediction)]


def _silence(prediction: Mapping[str, Any]) -> str:
    """Returns "(no answer)" and its probability: 1 minus the sum over `n_best`."""
    if "null_odds" not in prediction:
        return "(no answer)"
    rest = 1 - sum(each["probability"] for each in prediction["n_best"])
    return f"(no answer) {abs(rest):.3f}"
