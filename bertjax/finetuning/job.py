"""Prepares fine-tuning from a config: reads the files, encodes the examples, builds the model.

    labelled = reading.read(config, source)                    # files -> examples, labels
    encoded = reading.encode(config, source, labelled)         # examples -> rows of ids
    job = build(config, source, mesh, labelled, encoded, shared)   # rows -> model, steps, batches

All learning rates and seeds use the same job.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import ml_collections
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from bertjax import column_flags, plugins, sharding
from bertjax import step as step_lib
from bertjax.artifact import artifact
from bertjax.finetuning import (
    batching,
    by_size,
    compiling,
    distillation,
    feature_cache,
    first_params,
    initial_model,
    job_batches,
    job_checks,
    packed_batches,
    plans,
    projection,
    reading,
    rows,
    sharing,
    strategies,
    tasks,
)
from bertjax.finetuning.examples import types as examples_lib
from bertjax.finetuning.strategies import base as strategies_base
from bertjax.finetuning.task_types import base
from bertjax.inference import pretrained as pretrained_lib


@dataclasses.dataclass(frozen=True, eq=False)
class Job:
    """The model, steps and batches of a config, ready to train.

    examples, encoded: the examples and the rows of each split. longest: see `reading.longest`.
    first: the initial parameters of the model for seed 0, on the host. frozen: the parameters that
    the strategy does not train, on the devices. notes: warnings. shared: has the programs
    that other jobs compiled.
    """

    config: ml_collections.ConfigDict
    source: artifact.Artifact
    mesh: Mesh
    task: tasks.Task
    task_type: base.TaskType
    strategy: strategies_base.Strategy
    examples: Mapping[str, Sequence[examples_lib.Example]]
    encoded: Mapping[str, rows.Encoded]
    longest: int
    family: str
    fields: Mapping[str, Any]
    first: Any
    frozen: Any
    notes: tuple[str, ...]
    shared: sharing.Shared
    _predictions: dict[str, tuple[Any, Callable]] = dataclasses.field(default_factory=dict)

    @property
    def main(self) -> str:
        """The name of the score that selects the best model."""
        return self.task.metrics[0]

    @functools.cached_property
    def train_batches(self) -> packed_batches.AnyBatches:
        """The batches of train."""
        return self.batches_of("train")

    @property
    def head(self) -> str:
        """The last of the task type's heads, which gives its predictions; "" if there is none.

        The dense layers behind the pooling of text vectors are a head, too.
        """
        heads = self.task_type.heads or (projection.NAME,) * bool(self.task_type.projection)
        return heads[-1] if heads else ""

    @property
    def num_steps(self) -> int:
        """The number of steps of a run."""
        return self.config.num_epochs * self.train_batches.steps_per_epoch

    # The model

    @functools.cached_property
    def model(self) -> Any:
        """The Linen module."""
        compute = by_size.compute(self.config, self.fields, self.train_batches, self.shared.tasks)
        return plugins.model(self.family, self.fields, compute)

    @functools.cached_property
    def trained(self) -> Any:
        """The trained parameters before the first step, for seed 0, on the host."""
        return first_params.split(self.strategy, self.first, 0)[0]

    @functools.cached_property
    def counts(self) -> dict[str, int]:
        """The numbers of trained and of all parameters, see `strategies.counts`."""
        return strategies.counts(self.trained, self.frozen, self.fields["vocab_size"])

    @functools.cached_property
    def memory(self) -> dict[str, int]:
        """The bytes of memory that one run takes, see `strategies.memory`."""
        return strategies.memory(self.trained, self.frozen, self._plans.tx)

    def _artifact(self, params: Any, task_type: Any = None, trained: Any = None) -> Any:
        params, encoding = projection.split(params, self.source.encoding)
        model = {"family": self.family, "fields": self.fields, "params": params}
        return dataclasses.replace(
            self.source,
            **model,
            **dict.fromkeys(("step", "objective", "config")),
            encoding=encoding,
            task=(task_type or self.task_type).to_json() | self._named_columns(),
            source=self.config.model,
            lora=None if trained is None else self.strategy.lora(trained),
        )

    def _named_columns(self) -> dict[str, str]:
        """Returns the names of columns that the user gave, which the model's files may have too."""
        data = self.config.data
        return {name: data[name] for name in column_flags.NAMES if data[name]}

    def artifact(self, trained: Any, task_type: base.TaskType | None = None) -> artifact.Artifact:
        """Returns the whole fine-tuned model with its task, on the host."""
        trained, frozen = sharding.fetch(trained), sharding.fetch(self.frozen)
        with sharding.alone():
            params = sharding.fetch(self.strategy.combine(trained, frozen))
        return self._artifact(params, task_type, trained)

    def pretrained(self, trained: Any) -> pretrained_lib.Pretrained:
        """Returns the model, sharded over the mesh if there is one process, otherwise unsharded."""
        if jax.process_count() > 1:
            params = self.strategy.combine(*sharding.fetch((trained, self.frozen)))
        else:
            params = _put(self.mesh, self.strategy.combine(trained, self.frozen))
        return pretrained_lib.Pretrained(self._artifact(params), plugins.compute(self.config))

    # States and steps. The learning rates are an argument, so that all runs share a compilation.

    @functools.cached_property
    def _plans(self) -> plans.Plans:
        """The learning rates and the optimizer of the runs."""
        steps_per_epoch = self.train_batches.steps_per_epoch
        return plans.Plans(self.config, self.strategy, self.mesh, self.num_steps, steps_per_epoch)

    def place_trained(self, trained: Any) -> Any:
        """Puts trained parameters on the devices, sharded as in a train state."""
        return jax.device_put(trained, self._state_shardings().params)

    def first_state(self, seed: int) -> step_lib.TrainState:
        """Returns the train state before the first step."""
        *_, params = first_params.of(self.source, self.task_type, self.strategy, seed)
        trained, _ = first_params.split(self.strategy, params, seed)
        return self._jitted_init(trained, first_params.key(seed, "steps"))

    def abstract_state(self) -> step_lib.TrainState:
        """Returns shapes, dtypes and shardings of the train state; allocates nothing."""
        shapes = jax.eval_shape(self._init, self.trained, jax.random.key(0))
        shardings = sharding.state_shardings(self.mesh, shapes)
        return jax.tree.map(
            lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), shapes, shardings
        )

    def _state_shardings(self) -> step_lib.TrainState:
        """Returns the shardings of the state."""
        return jax.tree.map(lambda x: x.sharding, self.abstract_state())

    @functools.cached_property
    def scales(self) -> dict[str, float]:
        """{name of a loss: its factor in the minimised sum of losses}."""
        batch = self.train_batches.one_of_each_shape(in_order=False)[0]
        return distillation.scales(self.config, self.task_type, batch)

    @functools.cached_property
    def train_step(self) -> Callable[..., tuple[step_lib.TrainState, dict]]:
        """The function step(state, batch, frozen, learning_rate), compiled for every batch shape.

        The gradients depend on the shape of the batch, the update of the parameters does not, so
        it is a program of its own, which is compiled once.

        NOTE: the step donates its state, so the caller must not use that state again.
        """
        state, shardings = self.abstract_state(), self._state_shardings()
        shapes = self.train_batches.one_of_each_shape(in_order=False)
        calls = [(state, self.place(batch), self.frozen) for batch in shapes]
        replicated = NamedSharding(self.mesh, PartitionSpec())
        between = step_lib.Gradients(replicated, replicated, shardings.params)
        jitted_gradients = jax.jit(self._gradients, out_shardings=between)
        jitted_update = jax.jit(
            self._plans.update,
            donate_argnums=0,
            in_shardings=(shardings, between, None),
            out_shardings=(shardings, None),
        )
        update_call = (state, jitted_gradients.eval_shape(*calls[0]), self._plans.of(1.0))
        update, gradients = compiling.for_calls(
            [(jitted_update, [update_call]), (jitted_gradients, calls)], self.shared.programs
        )

        def step(state, batch, frozen, learning_rate):
            return update(state, gradients(state, batch, frozen), self._plans.of(learning_rate))

        return step

    def batches(self, seed: int, start: int = 0) -> Iterator[dict[str, jax.Array]]:
        """Yields the batches of all epochs, placed on the devices, beginning with step `start`."""
        steps = self.train_batches.steps_per_epoch
        for epoch in range(start // steps, self.config.num_epochs):
            first = max(start - epoch * steps, 0)
            yield from map(self.place, self.train_batches.epoch(seed, epoch, first))

    def batches_of(self, split: str, size: int | None = None) -> packed_batches.AnyBatches:
        """Returns the batches of a split, see `job_batches.of_split`."""
        return job_batches.of_split(self, split, size)

    @property
    def forward_size(self) -> int:
        """The number of rows of a forward pass, over all devices."""
        return self.config.micro_batch_size or self.config.batch_size

    def place(self, batch: dict[str, np.ndarray]) -> dict[str, jax.Array]:
        """Puts a batch on the devices, its rows split over the mesh."""
        return job_batches.place(self.mesh, batch)

    def _init(self, trained: Any, key: jax.Array) -> step_lib.TrainState:
        return step_lib.init_state(trained, self._plans.tx, key)

    @functools.cached_property
    def _jitted_init(self) -> Callable[[Any, jax.Array], step_lib.TrainState]:
        return jax.jit(self._init, out_shardings=self._state_shardings())

    def _gradients(
        self, state: step_lib.TrainState, batch: step_lib.Batch, frozen: Any
    ) -> step_lib.Gradients:
        gradients = step_lib.make_gradients(
            self.model,
            functools.partial(distillation.loss, self.config, self.task_type, self._task_apply),
            functools.partial(distillation.normalizers, self.task_type),
            self.scales,
            job_batches.micro_batches(self, batch),
            combine=self.strategy.combine,
        )
        return gradients(state, batch, frozen)

    # Predictions

    def can_be_scored(self, split: str) -> bool:
        """Returns whether predictions of the split can be scored."""
        return tasks.can_be_scored(self.task, self.examples[split])

    def outputs(self, trained: Any, split: str) -> dict[str, np.ndarray]:
        """Returns the task type's outputs for all rows of a split, on the host."""
        encoded = self.encoded[split]
        if self.task_type.loops:
            model = self.pretrained(trained)
            with sharding.alone():
                return self.task_type.predict_loop(model, encoded)
        batches, step = self.compile_predictions(trained, split)
        return batching.forward(
            lambda trained, batch: step(trained, batch, self.frozen), trained, batches, self.place
        )

    def compile_predictions(
        self, trained: Any, split: str
    ) -> tuple[packed_batches.AnyBatches, Callable[..., dict[str, jax.Array]]]:
        """Returns (batches, function (trained, batch, frozen) -> outputs) of a split, compiled."""
        if split not in self._predictions:
            batches = self.batches_of(split)
            shapes = map(self.place, batches.one_of_each_shape(in_order=True))
            calls = [(trained, batch, self.frozen) for batch in shapes]
            jitted = jax.jit(self._predict)
            (step,) = compiling.for_calls([(jitted, calls)], self.shared.programs)
            self._predictions[split] = batches, step
        return self._predictions[split]

    def predictions(
        self, outputs: dict[str, np.ndarray], split: str, task_type: base.TaskType
    ) -> list[Any]:
        """Returns one prediction per example of a split."""
        return task_type.decode(self.examples[split], self.encoded[split], outputs)

    def on_dev(self, trained: Any) -> tuple[base.TaskType, list[Any], dict[str, float]]:
        """Returns (task type with options tuned on dev, predictions on dev, their scores).

        Without a dev, returns (the task type, [], {}).
        """
        if "dev" not in self.examples:
            return self.task_type, [], {}
        outputs = self.outputs(trained, "dev")
        predictions = self.predictions(outputs, "dev", self.task_type)
        task_type = self.task_type.tuned(self.examples["dev"], predictions, outputs)
        if task_type != self.task_type:
            predictions = self.predictions(outputs, "dev", task_type)
        return task_type, predictions, task_type.scores(self.examples["dev"], predictions)

    def _predict(self, trained: Any, batch: step_lib.Batch, frozen: Any) -> dict[str, jax.Array]:
        params = {"params": self.strategy.combine(trained, frozen)}
        apply = functools.partial(self.model.apply, params, deterministic=True)
        return self.task_type.outputs(self._task_apply(apply, batch), batch)

    def _task_apply(self, apply: Callable, batch: step_lib.Batch) -> Callable:
        """Returns the `apply` for the task type; it uses the batch's cached features, if any."""
        if self.strategy.body_stays:
            apply = feature_cache.head_alone(apply, self.head, batch)
        return self.task_type.prompted(apply)


def build(
    config: ml_collections.ConfigDict,
    source: artifact.Artifact,
    mesh: Mesh,
    labelled: reading.Labelled,
    encoded: reading.Encoded,
    shared: sharing.Shared,
) -> Job:
    """Returns the job; initializes the parameters that the source lacks.

    If the encoder is frozen, caches its output for the head, unless it takes too much memory.
    """
    task_type, strategy = encoded.task_type, encoded.strategy
    family, fields, first = first_params.of(source, task_type, strategy, 0)
    job_checks.micro_batches(config, task_type)
    trained, frozen = first_params.split(strategy, first, 0)
    notes = (*labelled.notes, *encoded.notes)
    task = tasks.measured(tasks.find(config.task), labelled.splits.get("dev", ()))
    job = Job(
        config, source, mesh, task, task_type, strategy, labelled.splits, encoded.splits,
        encoded.longest, family, fields, first, _put(mesh, frozen), notes, shared,
    )  # fmt: skip
    job_checks.attention(config, job.model.config)
    cache_notes = _cache_features(job) if strategy.body_stays else ()
    notes = (*notes, *cache_notes, *strategy.notes(trained, config.num_epochs))
    return dataclasses.replace(job, notes=notes)


def make(
    config: ml_collections.ConfigDict,
    source: artifact.Artifact,
    mesh: Mesh,
    shared: sharing.Shared | None = None,
) -> Job:
    """Reads, encodes and builds a job; its config has a value for every key, see `by_size`.

    shared: has the data and programs of other jobs, which are used again if they are the same.
    Raises UserError for an invalid config, model or file.
    """
    source = initial_model.shallower(artifact.part(source), config.num_layers)
    shared = shared or sharing.Shared()
    job_checks.mesh(config, mesh)
    labelled, encoded = distillation.read_and_encode(config, source, shared)
    config = by_size.completed(config, source, len(encoded.splits["train"].rows))
    return build(config, source, mesh, labelled, encoded, shared)


def _put(mesh: Mesh, params: Any) -> Any:
    """Puts parameters on the devices, sharded over the mesh by the rules of `sharding`."""
    tree = {"params": params}
    return jax.device_put(tree, sharding.state_shardings(mesh, tree))["params"]


def _cache_features(job: Job) -> tuple[str, ...]:
    """Caches the encoder's output in the rows of train and dev; returns notes."""
    batches = {s: job.batches_of(s, job.forward_size) for s in ("train", "dev") if s in job.encoded}
    rows_by_split = {split: job.encoded[split].rows for split in batches}
    step = feature_cache.step(job.task_type, job.model, job.head)
    note = feature_cache.excess(job.head, job.model, rows_by_split)
    if not note:
        feature_cache.fill(step, _put(job.mesh, job.first), rows_by_split, batches, job.place)
    return (note,) if note else ()
