"""A kind of task bound to one task: its labels, the model's tokenizer, how long rows may be.

It is what an artifact keeps of a fine-tuning besides the model:

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
from bertjax.artifact import artifact, files
from bertjax.data.tokenizers import tokenizer as tokenizer_lib
from bertjax.finetuning import batching as batches_lib
from bertjax.finetuning import feature_cache
from bertjax.finetuning import kind as kind_lib
from bertjax.finetuning.examples import types as examples_lib
from bertjax.inference import pretrained

Apply = Callable[..., dict[str, jax.Array]]
# Outputs of an encoder or a decoder that have a place for every token of the input.
_BY_TOKEN = ("last_hidden_state", "token_logits", "span_logits", "logits")


@dataclasses.dataclass(frozen=True)
class Answering:
    """How a model answers the examples of a task.

    task: its name. config: of the kind. prompt_ids: put after the first token of every row.
    absent: features that the model does not read. num_texts: of every sentence example; 0 for any.
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
        """The rows of examples. UserError for labels, or for a number of texts, of another task."""
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
        """The rows in batches; passes: how often they will be read, 0 where nobody knows."""
        table = self.kind.features(self.config) | feature_cache.features(encoded.rows[0])
        read = {name: feature for name, feature in table.items() if name not in self.absent}
        return batches_lib.Batches(encoded.rows, read, self.lengths, batch_size, passes)

    def asked(self, examples: Sequence[examples_lib.Example]) -> "Answering":
        """For examples that may ask for more than training did; most kinds answer all alike."""
        if not hasattr(self.kind, "asked"):
            return self
        return dataclasses.replace(self, config=self.kind.asked(self.config, examples))

    def tuned(
        self, examples: Sequence[examples_lib.Example], predictions: Sequence[Any]
    ) -> "Answering":
        """With what the kind chooses on dev, such as a threshold; most kinds choose nothing."""
        if not hasattr(self.kind, "tuned"):
            return self
        config = self.kind.tuned(self.config, examples, predictions)
        return dataclasses.replace(self, config=config)

    def loss(self, apply: Apply, batch: dict[str, jax.Array]) -> dict[str, tuple[Any, Any]]:
        """The kind's loss."""
        return self.kind.loss(self.config, prompted(apply, self.prompt_ids), batch)

    def outputs(self, apply: Apply, batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
        """The kind's outputs."""
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
        """The outputs of a kind whose answers take many forward passes."""
        return self.kind.predict_loop(self.config, model, encoded, self.prompt_ids)

    def decode(
        self,
        examples: Sequence[examples_lib.Example],
        encoded: kind_lib.Encoded,
        outputs: dict[str, np.ndarray],
    ) -> list[Any]:
        """One prediction an example."""
        return self.kind.decode(
            self.config, examples, encoded, outputs, self.labels, self.tokenizer
        )

    def scores(
        self, examples: Sequence[examples_lib.Example], predictions: Sequence[Any]
    ) -> dict[str, float]:
        """Every score that the kind has."""
        return self.kind.scores(self.config, examples, predictions, self.labels)

    def to_json(self) -> dict[str, Any]:
        """What an artifact keeps of it."""
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
    """How a fine-tuned model answers. UserError for a model that is not fine-tuned."""
    task = source.task
    if task is None:
        raise errors.UserError(
            "this model is not fine-tuned, so it answers no task: fine-tune it with "
            "`bertjax finetune`"
        )
    module = kind_lib.load(task["kind"])
    fields = {**kind_lib.former(module), **task["config"]}
    config = schema.typed(fields, module.Config, "task: config", files.AGAIN)
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
    """The most tokens of a row, and of its target where the kind has one."""
    return kind_lib.Lengths(max_length, getattr(config, "max_target_length", 0))


def absent(fields: Mapping[str, Any]) -> tuple[str, ...]:
    """Features that a model with these fields does not read: types where it has not two."""
    return () if artifact.has_token_types(fields) else ("token_type_ids",)


def prompted(apply: Apply, ids: Sequence[int]) -> Apply:
    """`apply` of rows with the prompt after their first token; its outputs are without it."""
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
    """Outputs of `step` for every row, in the order of the rows, which are on `axis`.

    Arrays whose batches differ in length are padded with zeros. place: puts a batch on the device.
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
    """(numbers of the rows of a batch, what `step` says of them and of what fills it up)."""
    for numbers, batch in batches.in_order():
        # Reading each one also keeps old CPU backends from deadlock in collectives.
        yield numbers, jax.device_get(step(params, place(batch)))
