"""Binds a kind of task to one task: its labels, the model's tokenizer and the length of rows.

An artifact stores the `Answering` of a fine-tuning beside the model:

    answering = from_artifact(source)
    encoded = answering.encode(examples)
    step = jax.jit(answering.predict_step(model))
    outputs = forward(step, params, answering.batches(encoded, 32))
    answering.decode(examples, encoded, outputs)        # one prediction an example
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bertjax import errors, progress, schema
from bertjax.artifact import artifact, weight_files
from bertjax.data.tokenizers import tokenizer as tokenizer_lib
from bertjax.finetuning import batching as batches_lib
from bertjax.finetuning import feature_cache
from bertjax.finetuning import kind as kind_lib
from bertjax.finetuning.examples import types as examples_lib
from bertjax.inference import pretrained

Apply = Callable[..., dict[str, jax.Array]]
# Outputs of an encoder or a decoder with one position per token of the input.
_BY_TOKEN = ("last_hidden_state", "token_logits", "span_logits", "logits")


@dataclasses.dataclass(frozen=True)
class Answering:
    """How a model predicts the examples of a task.

    task: its name. config: the kind's Config. prompt_ids: inserted after the first token of each
    row. absent: features that the model does not read. num_texts: texts per example of type
    Sentence; 0: any number.
    """

    task: str
    kind_name: str
    config: Any
    labels: tuple[str, ...]
    tokenizer: tokenizer_lib.Tokenizer
    lengths: kind_lib.Lengths
    prompt_ids: tuple[int, ...] = ()
    absent: tuple[str, ...] = ()
    num_texts: int = 0

    @property
    def kind(self) -> ModuleType:
        """The module of the kind."""
        return kind_lib.load(self.kind_name)

    def encode(self, examples: Sequence[examples_lib.Example]) -> kind_lib.Encoded:
        """Returns the examples as rows.

        Raises UserError for a label that the task does not have, or for a wrong number of texts.
        """
        for example in examples:
            if not self._fits(example):
                raise errors.UserError(
                    f"{example.where or f'task {self.task}'}: {_texts(len(example.texts))}, where "
                    f"the model is trained on {_texts(self.num_texts)}"
                )
        self.kind.check(self.config, examples, self.labels, self.task)
        return self.kind.encode(self.config, examples, self.tokenizer, self.labels, self.lengths)

    def _fits(self, example: examples_lib.Example) -> bool:
        sentence = self.num_texts and isinstance(example, examples_lib.Sentence)
        return not sentence or len(example.texts) == self.num_texts

    def batches(
        self, encoded: kind_lib.Encoded, batch_size: int, passes: int = 0
    ) -> batches_lib.Batches:
        """Returns the rows in batches. passes: how often they will be read; 0: unknown."""
        table = self.kind.features(self.config) | feature_cache.features(encoded.rows[0])
        read = {name: feature for name, feature in table.items() if name not in self.absent}
        return batches_lib.Batches(encoded.rows, read, self.lengths, batch_size, passes)

    def asked(self, examples: Sequence[examples_lib.Example]) -> "Answering":
        """Returns an `Answering` for `examples`, which may need more than training did.

        Most kinds need no change. One that does: questions without an answer.
        """
        if not hasattr(self.kind, "asked"):
            return self
        return dataclasses.replace(self, config=self.kind.asked(self.config, examples))

    def tuned(
        self, examples: Sequence[examples_lib.Example], predictions: Sequence[Any]
    ) -> "Answering":
        """Returns an `Answering` with what the kind tunes on dev, such as a threshold.

        Most kinds tune nothing.
        """
        if not hasattr(self.kind, "tuned"):
            return self
        config = self.kind.tuned(self.config, examples, predictions)
        return dataclasses.replace(self, config=config)

    def loss(self, apply: Apply, batch: dict[str, jax.Array]) -> dict[str, tuple[Any, Any]]:
        """Returns the kind's loss: {name: (sum, weight)}."""
        return self.kind.loss(self.config, prompted(apply, self.prompt_ids), batch)

    def outputs(self, apply: Apply, batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
        """Returns the kind's outputs, which `decode` needs: {name: array, batch first}."""
        return self.kind.outputs(self.config, prompted(apply, self.prompt_ids), batch)

    def predict_step(self, model: Any) -> Callable[..., dict[str, jax.Array]]:
        """Returns step(params, batch) -> outputs, without dropout."""

        def step(params: Any, batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
            apply = functools.partial(model.apply, {"params": params}, deterministic=True)
            return self.outputs(apply, batch)

        return step

    def answer_in_loop(
        self, model: pretrained.Pretrained, encoded: kind_lib.Encoded
    ) -> dict[str, np.ndarray]:
        """Returns the outputs of a kind that needs many forward passes, as for generation."""
        return self.kind.predict_loop(self.config, model, encoded, self.prompt_ids)

    def decode(
        self,
        examples: Sequence[examples_lib.Example],
        encoded: kind_lib.Encoded,
        outputs: dict[str, np.ndarray],
    ) -> list[Any]:
        """Returns one prediction per example."""
        return self.kind.decode(
            self.config, examples, encoded, outputs, self.labels, self.tokenizer
        )

    def scores(
        self, examples: Sequence[examples_lib.Example], predictions: Sequence[Any]
    ) -> dict[str, float]:
        """Returns every score of the kind."""
        return self.kind.scores(self.config, examples, predictions, self.labels)

    def to_json(self) -> dict[str, Any]:
        """Returns what an artifact stores for `from_artifact`."""
        return {
            "name": self.task,
            "kind": self.kind_name,
            "config": dataclasses.asdict(self.config),
            "labels": list(self.labels),
            "max_length": self.lengths.length,
            "prompt_ids": list(self.prompt_ids),
            "num_texts": self.num_texts,
        }


def from_artifact(source: artifact.Artifact) -> Answering:
    """Returns the `Answering` of an artifact. Raises UserError if the model is not fine-tuned."""
    task = source.task
    if task is None:
        raise errors.UserError(
            "this model is not fine-tuned, so it answers no task: fine-tune it with "
            "`bertjax finetune`"
        )
    module = kind_lib.load(task["kind"])
    fields = {**kind_lib.former(module), **task["config"]}
    config = schema.typed(fields, module.Config, "task: config", weight_files.AGAIN)
    return Answering(
        task["name"],
        task["kind"],
        config,
        tuple(task["labels"]),
        source.tokenizer,
        lengths(config, task["max_length"]),
        tuple(task["prompt_ids"]) if "prompt_ids" in task else (),
        absent(source.fields),
        task["num_texts"] if "num_texts" in task else 0,
    )


def _texts(number: int) -> str:
    return {1: "a single text", 2: "a pair of texts"}.get(number, f"{number} texts")


def lengths(config: Any, max_length: int) -> kind_lib.Lengths:
    """Returns the maximum tokens of a row, and of its target if the kind has one."""
    return kind_lib.Lengths(max_length, getattr(config, "max_target_length", 0))


def absent(fields: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the features that a model with these fields does not read.

    That is token_type_ids for a model without two token types, otherwise none.
    """
    return () if artifact.has_token_types(fields) else ("token_type_ids",)


def prompted(apply: Apply, ids: Sequence[int]) -> Apply:
    """Wraps `apply` so that each row has the prompt after its first token.

    The prompt's positions are removed from the outputs.
    """
    if not ids:
        return apply

    def insert(x_BL: jax.Array, values: Any) -> jax.Array:
        values = jnp.asarray(values).astype(x_BL.dtype)
        middle = jnp.broadcast_to(values, (*x_BL.shape[:-1], len(ids)))
        return jnp.concatenate([x_BL[..., :1], middle, x_BL[..., 1:]], axis=-1)

    def with_prompt(**inputs: Any) -> dict[str, jax.Array]:
        values = {"input_ids": np.array(ids, np.int32), "attention_mask": 1, "token_type_ids": 0,
                  "prefix_mask": 1}  # fmt: skip
        longer = {name: insert(inputs[name], v) for name, v in values.items() if name in inputs}
        outputs = apply(**{**inputs, **longer})
        decodes = "decoder_input_ids" in inputs

        def cut(x_BL: jax.Array) -> jax.Array:
            return jnp.concatenate([x_BL[:, :1], x_BL[:, 1 + len(ids) :]], axis=1)

        by_token = () if decodes else _BY_TOKEN
        return {name: cut(x) if name in by_token else x for name, x in outputs.items()}

    return with_prompt


def forward(
    step: Callable[..., dict[str, jax.Array]],
    params: Any,
    batches: batches_lib.Batches,
    place: Callable[[dict[str, np.ndarray]], dict[str, Any]] = dict,
    axis: int = 0,
    on_progress: progress.Done = lambda done, total: None,
) -> dict[str, np.ndarray]:
    """Returns the outputs of `step` for every row, in the order of the rows, which are on `axis`.

    Arrays that differ in length between batches are padded with zeros. place: puts a batch on the
    device.
    on_progress: called with (rows done, rows in all) after each batch.
    """
    parts: list[tuple[np.ndarray, Mapping[str, np.ndarray]]] = []
    rows_done = 0
    for numbers, outputs in by_batch(step, params, batches, place):
        parts.append((numbers, outputs))
        rows_done += len(numbers)
        on_progress(rows_done, batches.num_rows)
    joined = {}
    for name in parts[0][1]:
        shapes = [outputs[name].shape for _, outputs in parts]
        whole = list(np.max(shapes, axis=0))
        whole[axis] = sum(len(numbers) for numbers, _ in parts)
        joined[name] = np.zeros(whole, parts[0][1][name].dtype)
        for numbers, outputs in parts:
            found = np.moveaxis(outputs[name], axis, 0)[: len(numbers)]
            rows = np.moveaxis(joined[name], axis, 0)
            rows[(numbers, *(slice(n) for n in found.shape[1:]))] = found
    return joined


def by_batch(
    step: Callable[..., dict[str, jax.Array]],
    params: Any,
    batches: batches_lib.Batches,
    place: Callable[[dict[str, np.ndarray]], dict[str, Any]] = dict,
) -> Iterator[tuple[np.ndarray, Mapping[str, np.ndarray]]]:
    """Yields (row numbers of a batch, the outputs of `step` for it, with those of padding rows)."""
    for numbers, batch in batches.in_order():
        # Fetching each batch's outputs also avoids a deadlock in collectives of old CPU backends.
        yield numbers, jax.device_get(step(params, place(batch)))
