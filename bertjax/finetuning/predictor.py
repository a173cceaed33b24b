"""Predicts with a fine-tuned model.

model = bertjax.load("out/")
model.predict("I loved this movie")        # {"label": "positive", "probabilities": {...}}
model.predict([{"question": "Who?", "context": "Ada wrote it."}])      # [{"answer": "Ada", ...}]
model.evaluate("dev.tsv")                  # {"accuracy": 93.1, ...}
"""

import collections
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bertjax import column_flags, errors, html_tables, progress
from bertjax.artifact import artifact, text_encoding
from bertjax.finetuning import batching, data_warnings, projection, rows, task_types, tasks
from bertjax.finetuning.examples import columns
from bertjax.finetuning.examples import types as examples_lib
from bertjax.inference import pretrained
from bertjax.models.common import layers

BATCH_SIZE = 32
_LIST_FIELDS = {name for kind in examples_lib.TYPES.values() for name in kind.LISTS}
Input = str | Sequence[str] | Mapping[str, Any] | examples_lib.Example


class Predictor(pretrained.Pretrained):
    """A `Pretrained` model that is fine-tuned on `task`; `task_type` defines how it predicts.

    `params` has the dense layers of text vectors too, see `projection`.
    """

    def __init__(self, source: artifact.Artifact, compute: layers.Compute | None = None):
        super().__init__(source, compute)
        self.task_type = task_types.of_artifact(source)
        self.params = jax.tree.map(
            jnp.asarray, projection.joined(self.params, self.task_type, source)
        )
        any_texts = not self.task_type.num_texts
        self.task = tasks.answered(self.task_type.task, any_texts=any_texts)

    def predict(self, inputs: Input | Sequence[Input]) -> Any:
        """Returns the prediction for one input, or a list of them for a list of inputs.

        An input is a text, a pair of texts as a tuple, an example of `finetuning.examples.types`,
        or a dict of its fields: {"question", "context"}, {"context", "choices"}, {"source"},
        {"words"}. A notebook shows the list as a table. Raises UserError for anything that is not
        an input of the task.
        """
        if isinstance(inputs, list):
            return html_tables.Records(self.answer([self.example(value) for value in inputs])[1])
        return self.answer([self.example(inputs)])[1][0]

    def encoding(
        self, pooling: str = "", *, normalize: bool | None = None
    ) -> text_encoding.Encoding:
        """Returns how `encode` turns a text into a vector.

        Raises UserError for embeddings trained with a prompt of the strategy "prompts", which only
        `predict` inserts.
        """
        if self.task_type.pooling and self.task_type.prompt_ids:
            raise errors.UserError(
                "the model was trained with a prompt, which only `predict` inserts: use the "
                "vectors that `predict` returns"
            )
        return super().encoding(pooling, normalize=normalize)

    def evaluate(
        self,
        examples: str | os.PathLike | Sequence[examples_lib.Example],
        on_progress: progress.Done = lambda done, total: None,
        *,
        text_column: str = "",
        label_column: str = "",
    ) -> dict[str, float]:
        """Returns all scores of the predictions for a labelled file or a list of examples.

        Prints how many damaged rows of a file were skipped, and which columns are not used.
        on_progress: as in `answer`. text_column, label_column: see `task_of`.
        """
        if isinstance(examples, str | os.PathLike):
            skipped: collections.Counter[str] = collections.Counter()
            path = os.fspath(examples)
            task = self.task_of(path, text_column, label_column)
            examples = tasks.read(task, path, "dev", skipped=skipped)
            lines = [f"{count} {reason}, left out" for reason, count in skipped.items()]
            for line in filter(None, [*lines, tasks.unused_columns(task, [path])]):
                errors.tell(f"{path}: {line}")
        predictions = self.answer(examples, on_progress)[1]
        return html_tables.Numbers(self.task_type.asked(examples).scores(examples, predictions))

    def task_of(self, path: str, text_column: str = "", label_column: str = "") -> tasks.Task:
        """Returns the task with the columns of a file.

        text_column, label_column: names, as in `bertjax.finetune`. Without one, it is the name that
        training was given, if the file has that column, and otherwise one of the usual names.
        """
        stored = self.source.task or {}
        trained = [stored.get(name, "") for name in column_flags.NAMES]
        present = set(tasks.column_names(self.task, path)) if any(trained) else set()
        trained = [name * present.issuperset(columns.split_names(name)) for name in trained]
        return tasks.with_columns(
            self.task, [path], text_column or trained[0], label_column or trained[1]
        )

    def answer(
        self,
        examples: Sequence[examples_lib.Example],
        on_progress: progress.Done = lambda done, total: None,
    ) -> tuple[rows.Encoded, list[dict[str, Any]]]:
        """Returns (the examples as rows, one prediction per example).

        Prints a warning if examples were truncated. on_progress: called with (number of
        finished rows, total number of rows) after each batch; it is not called if a prediction
        needs many forward passes.
        """
        task_type = self.task_type.asked(examples)
        if not examples:
            return rows.Encoded([], np.zeros(0, int), np.zeros(0, bool)), []
        encoded = task_type.encode(examples)
        for line in data_warnings.unread(encoded.truncated, task_type):
            errors.tell(f"warning: {line}")
        if task_type.loops:
            outputs = task_type.predict_loop(self, encoded)
        else:
            batches = task_type.batches(encoded, min(BATCH_SIZE, len(encoded.rows)))
            outputs = batching.forward(self._step, self.params, batches, on_progress=on_progress)
        return encoded, task_type.decode(examples, encoded, outputs)

    def example(self, value: Input) -> examples_lib.Example:
        """Converts an input to an example of the task. Raises UserError if it does not fit."""
        if isinstance(value, tuple(examples_lib.TYPES.values())):
            return value
        fields = {}
        if isinstance(value, Mapping):
            fields = {name: tuple(v) if isinstance(v, list) else v for name, v in value.items()}
        for name in _LIST_FIELDS & fields.keys():
            if isinstance(fields[name], str):
                raise errors.UserError(
                    f"{name!r} must be a list of texts, not {errors.short(fields[name])}"
                )
        kind = examples_lib.TYPES[self.task.reader]
        try:
            return kind.from_input(fields if isinstance(value, Mapping) else value)
        except TypeError:
            raise errors.UserError(
                f"an input to the task {self.task.name} must be {kind.INPUT}, "
                f"not {errors.short(value)}"
            ) from None

    @functools.cached_property
    def _step(self) -> Callable[..., dict[str, jax.Array]]:
        return jax.jit(self.task_type.predict_step(self.model))
