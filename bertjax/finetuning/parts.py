"""Builds what a config describes: examples as rows, the model, its strategy and the steps.

All of it is the same for every learning rate and seed. Arrays that differ by seed are stacked:
states are [K, ...], batches [K, B, ...], and each step trains K seeds side by side.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from bertjax import errors, optimizer, plugins, sharding
from bertjax import step as step_lib
from bertjax.artifact import artifact
from bertjax.finetuning import answering as answering_lib
from bertjax.finetuning import batching as batches_lib
from bertjax.finetuning import (
    compiling,
    feature_cache,
    initial_model,
    kind,
    recipe,
    strategies,
    tasks,
)
from bertjax.finetuning import scores as scores_lib
from bertjax.finetuning.examples import splits
from bertjax.inference import pretrained as pretrained_lib
from bertjax.models.common import kernels


class Parts:
    """A fine-tuning, ready to train.

    answering: how the model predicts. examples, encoded: of every split. strategy: what is trained;
    frozen: the other parameters. main: the score that selects the best. notes: warnings.
    """

    def __init__(self, config: ml_collections.ConfigDict, source: artifact.Artifact, mesh: Mesh):
        self.config, self.mesh = config, mesh
        self.source = artifact.part(source)
        self.task = tasks.find(config.task)
        self.main: str = self.task.metrics[0]
        self.notes: list[str] = []
        self._compiled: dict[tuple[str, int], Callable] = {}
        module, kind_config = kind.load(self.task.kind), recipe.kind_config(config)
        self._check_family(module)
        self._check_mesh()
        for name in module.LIBRARIES:  # fails now, not after hours of training
            scores_lib.library(name)
        if hasattr(module, "for_model"):
            kind_config = module.for_model(kind_config, self.source)
        self.examples = splits.read(config, self.notes)
        train = self.examples["train"]
        labels = tuple(self.task.labels or module.labels(kind_config, train))
        self.examples["train"] = splits.sample(train, config.data.max_train)
        self.strategy = strategies.make(
            config.strategy, self._fields(module, kind_config, labels), config.head_rate_factor
        )
        self.answering = answering_lib.Answering(
            config.task,
            self.task.kind,
            kind_config,
            labels,
            self.source.tokenizer,
            answering_lib.lengths(kind_config, self._max_length()),
            self.strategy.prompt_ids(),
            answering_lib.absent(self.source.fields),
            0 if self.task.any_texts else len(train[0].texts),
        )
        self.encoded = {name: self.answering.encode(e) for name, e in self.examples.items()}
        self.heads = module.heads(kind_config)
        self.head = self.heads[-1] if self.heads else ""  # a pooler comes before it
        self.family, self.fields, self._first = self._first_params(0)
        self.model = plugins.model(self.family, self.fields, plugins.compute(config))
        self._check_attention()
        trained, frozen = self.split()
        self.counts = strategies.counts(trained, frozen, self.fields["vocab_size"])
        self.frozen = self._put(frozen)
        if self.strategy.body_stays:
            self._keep_features(trained)
        self.train_batches = self.batches_of("train")
        self.num_steps = config.num_epochs * self.train_batches.steps_per_epoch
        self.memory = strategies.memory(trained, frozen, self.tx(1.0))
        self.notes += self.strategy.notes(trained, config.num_epochs)

    # The model

    def _check_family(self, module: Any) -> None:
        found = plugins.family(self.source.family).KIND
        if found not in module.KINDS:
            raise errors.UserError(
                f"config.task = {self.config.task!r} is for models of the kind "
                f"{' or '.join(module.KINDS)}, and config.model = {self.config.model} is a "
                f"{self.source.family}, of the kind {found}"
            )

    def _fields(self, module: Any, kind_config: Any, labels: Sequence[str]) -> dict[str, Any]:
        """Returns the fields of the model, without those that the strategy adds."""
        fields = dict(self.source.fields)
        if module.heads(kind_config):
            fields["num_labels"] = module.num_labels(kind_config, labels)
        if self.config.dropout_rate >= 0:
            rates = [name for name in fields if name.endswith("dropout_rate")]
            fields |= dict.fromkeys(rates, self.config.dropout_rate)
        return fields

    @property
    def longest(self) -> int:
        """The maximum tokens of a row that the model can read beside a trained prompt."""
        return self.source.fields["max_length"] - len(self.strategy.prompt_ids())

    def _max_length(self) -> int:
        prompt = len(self.strategy.prompt_ids())
        if prompt:
            reads = self.longest + prompt
            allowed = f"{reads - recipe.SHORTEST} or less: the model reads {reads} tokens"
            errors.check(self.longest >= recipe.SHORTEST, "strategy.length", prompt, allowed)
        if self.config.max_length > self.longest:
            beside = f" beside the prompt of {prompt}" if prompt else ""
            self.notes.append(
                f"max_length is {self.longest}, not {self.config.max_length}: the model reads no "
                f"more tokens{beside}"
            )
        return min(self.config.max_length, self.longest)

    def _first_params(self, seed: int) -> tuple[str, dict[str, Any], Any]:
        fields, key = self.strategy.fields(), _key(seed, "heads")
        kind_name, labels = self.answering.kind_name, self.answering.labels
        return initial_model.model(self.source, self.heads, fields, key, kind_name, labels)

    def split(self) -> tuple[Any, Any]:
        """Returns (trained, frozen) before the first step, for seed 0."""
        return self.strategy.split(self._first, jax.random.key(0))

    def _finished(
        self, params: Any, answering: answering_lib.Answering | None = None
    ) -> artifact.Artifact:
        return dataclasses.replace(
            self.source,
            family=self.family,
            fields=self.fields,
            params=params,
            step=None,
            objective=None,
            config=None,
            task=(answering or self.answering).to_json(),
        )

    def pretrained(self, trained: Any) -> pretrained_lib.Pretrained:
        """Returns the model of one seed, as `bertjax.load` does, sharded over the mesh."""
        params = self._put(self.strategy.combine(trained, self.frozen))
        return pretrained_lib.Pretrained(self._finished(params), plugins.compute(self.config))

    def artifact(
        self, trained: Any, answering: answering_lib.Answering | None = None
    ) -> artifact.Artifact:
        """Returns the whole fine-tuned model with its task, on the host. trained: of one seed."""
        params = self.strategy.combine(jax.device_get(trained), jax.device_get(self.frozen))
        return self._finished(jax.device_get(params), answering)

    # States and steps. The rate is an argument, so that all rates share one compilation.

    def tx(self, learning_rate: Any) -> optax.GradientTransformation:
        """Returns the optimizer of the trained parameters."""
        config = recipe.run_optimizer(self.config, learning_rate, self.num_steps)
        steps_per_epoch = self.train_batches.steps_per_epoch
        return self.strategy.optimizer(config, self.num_steps, steps_per_epoch)

    def place_trained(self, trained: Any) -> Any:
        """Puts the trained parameters of one seed on the device, stacked as in a state."""
        stacked = jax.tree.map(lambda x: x[None], trained)
        return jax.device_put(stacked, self._state_places().params)

    def first_state(self, seeds: Sequence[int]) -> step_lib.TrainState:
        """Returns the stacked states before the first step; each depends on its seed alone."""
        trained = [
            self.strategy.split(self._first_params(seed)[2], _key(seed, "strategy"))[0]
            for seed in seeds
        ]
        stacked = jax.tree.map(lambda *leaves: np.stack(jax.device_get(leaves)), *trained)
        keys = jnp.stack([_key(seed, "steps") for seed in seeds])
        if ("init", len(seeds)) not in self._compiled:
            init = over_seeds(self._init, len(seeds), (True, True))
            jitted = jax.jit(init, out_shardings=self._state_places())
            self._compiled["init", len(seeds)] = jitted
        return self._compiled["init", len(seeds)](stacked, keys)

    def train_step(self, seeds: int) -> Callable[..., tuple[step_lib.TrainState, dict]]:
        """Returns step(state, batch, frozen, learning rate), compiled for every batch shape.

        seeds: how many the state and the batch hold. NOTE: the step donates its state.
        """
        if ("train", seeds) not in self._compiled:
            state = self._state_looks(seeds)
            calls = [
                (state, self.place_stacked(_stacked(batch, seeds)), self.frozen, 1.0)
                for batch in self.train_batches.one_of_each_shape(in_order=False)
            ]
            compiled = compiling.for_calls(self.jitted_train_step(seeds), calls)
            self._compiled["train", seeds] = compiled
        return self._compiled["train", seeds]

    def jitted_train_step(self, seeds: int) -> Any:
        """Returns the train step of `seeds` seeds, jitted but not yet compiled."""
        step = over_seeds(self._step, seeds, (True, True, False, False))
        return jax.jit(step, donate_argnums=0, out_shardings=(self._state_places(), None))

    def _init(self, trained: Any, key: jax.Array) -> step_lib.TrainState:
        return step_lib.init_state(trained, self.tx(1.0), key)

    def _step(
        self, state: step_lib.TrainState, batch: step_lib.Batch, frozen: Any, rate: jax.Array
    ) -> tuple[step_lib.TrainState, dict[str, jax.Array]]:
        normalizers = functools.partial(self.answering.kind.normalizers, self.answering.config)
        options = recipe.run_optimizer(self.config, rate, self.num_steps)
        step = step_lib.make_train_step(
            self.model,
            lambda apply, batch: self.answering.loss(self._reading(apply, batch), batch),
            normalizers,
            dict.fromkeys(jax.eval_shape(normalizers, batch), 1.0),
            self.tx(rate),
            optimizer.make_schedule(options, self.num_steps),
            self._micro_batches(batch),
            combine=self.strategy.combine,
        )
        return step(state, batch, frozen)

    def _micro_batches(self, batch: step_lib.Batch) -> int:
        """Returns the number of micro-batches into which a step splits a batch."""
        if getattr(self.answering.kind, "ACROSS_ROWS", False) or feature_cache.is_kept(batch):
            return 1
        return batches_lib.micro_batches(batch, sharding.batch_shards(self.mesh))

    def batches(self, seeds: Sequence[int]) -> Iterator[dict[str, jax.Array]]:
        """Yields the batches of all epochs, [K, B, ...], on the device."""
        for epoch in range(self.config.num_epochs):
            yield from map(self.place_stacked, self.train_batches.epoch(seeds, epoch))

    def place_stacked(self, batch: dict[str, np.ndarray]) -> dict[str, jax.Array]:
        """Puts the stacked batches of the seeds on the device, rows split over the mesh."""
        spec = PartitionSpec(None, *sharding.batch_sharding(self.mesh).spec)
        return jax.device_put(batch, NamedSharding(self.mesh, spec))

    def batches_of(self, split: str) -> batches_lib.Batches:
        """Returns the rows of a split in batches; train and dev have fitted buckets."""
        times = {"train": 1, "dev": self.config.evals_per_epoch}
        passes = self.config.num_epochs * times[split] if split in times else 0
        return self.answering.batches(self.encoded[split], self.config.batch_size, passes)

    def place(self, batch: dict[str, np.ndarray]) -> dict[str, jax.Array]:
        """Puts a batch that all seeds share on the device, rows split over the mesh."""
        return jax.device_put(batch, sharding.batch_sharding(self.mesh))

    # Predictions

    def can_be_scored(self, split: str) -> bool:
        """Returns whether predictions for a split can be scored; see `tasks`."""
        return tasks.can_be_scored(self.task, self.examples[split])

    def outputs(self, trained_K: Any, split: str) -> list[dict[str, np.ndarray]]:
        """Returns for each seed the outputs for a split, which the kind's `decode` needs."""
        answering, encoded = self.answering, self.encoded[split]
        seeds = range(jax.tree.leaves(trained_K)[0].shape[0])
        if hasattr(answering.kind, "predict_loop"):
            each = (jax.tree.map(lambda x, k=k: x[k], trained_K) for k in seeds)
            return [answering.answer_in_loop(self.pretrained(one), encoded) for one in each]
        batches, what = self.batches_of(split), (f"predict {split}", len(seeds))
        if what not in self._compiled:
            step = jax.jit(over_seeds(self._predict, len(seeds), (True, False, False)))
            shapes = map(self.place, batches.one_of_each_shape(in_order=True))
            calls = [(trained_K, batch, self.frozen) for batch in shapes]
            self._compiled[what] = compiling.for_calls(step, calls)
        compiled = self._compiled[what]
        stacked = answering_lib.forward(
            lambda trained, batch: compiled(trained, batch, self.frozen),
            trained_K, batches, self.place, axis=1,
        )  # fmt: skip
        return [{name: x[k] for name, x in stacked.items()} for k in seeds]

    def predictions(
        self, outputs: dict[str, np.ndarray], split: str, answering: answering_lib.Answering
    ) -> list[Any]:
        """Returns one prediction per example of a split, from the outputs of one seed."""
        return answering.decode(self.examples[split], self.encoded[split], outputs)

    def on_dev(
        self, outputs: dict[str, np.ndarray]
    ) -> tuple[answering_lib.Answering, list[Any], dict[str, float]]:
        """Returns (tuned answering, predictions, scores) from the dev outputs of one seed."""
        examples, answering = self.examples["dev"], self.answering
        found = self.predictions(outputs, "dev", answering)
        tuned = answering.tuned(examples, found)
        if tuned != answering:
            found = self.predictions(outputs, "dev", tuned)
        return tuned, found, tuned.scores(examples, found)

    def _predict(self, trained: Any, batch: step_lib.Batch, frozen: Any) -> dict[str, jax.Array]:
        params = {"params": self.strategy.combine(trained, frozen)}
        apply = functools.partial(self.model.apply, params, deterministic=True)
        return self.answering.outputs(self._reading(apply, batch), batch)

    def _reading(self, apply: Callable, batch: step_lib.Batch) -> Callable:
        """Returns the `apply` to pass to the kind; of a frozen encoder only the head runs."""
        if not self.strategy.body_stays:
            return apply
        return feature_cache.head_alone(apply, self.head, batch)

    def _keep_features(self, trained: Any) -> None:
        """Caches what the head reads in the rows of train and dev, if it fits into MOST."""
        rows = [row for split in ("train", "dev") for row in self.encoded[split].rows]
        size = feature_cache.size(self.head, self.model, rows)
        most = feature_cache.MOST
        if size > most:
            self.notes.append(
                f"what the head reads takes {size / 2**30:,.1f} GiB, and {most / 2**30:g} "
                "are kept at most: every step computes it again"
            )
            return
        step = jax.jit(feature_cache.step(self.answering, self.model, self.head))
        params = self._put(self.strategy.combine(trained, jax.device_get(self.frozen)))
        for split in ("train", "dev"):
            batches = self.batches_of(split)
            for numbers, found in answering_lib.by_batch(step, params, batches, self.place):
                feature_cache.keep(self.encoded[split].rows, numbers, found)

    # Placement, and checks of the config

    def _put(self, params: Any) -> Any:
        """Puts parameters on the device, sharded over the mesh by the rules of `sharding`."""
        tree = {"params": params}
        return jax.device_put(tree, sharding.state_shardings(self.mesh, tree))["params"]

    def _state_looks(self, seeds: int) -> step_lib.TrainState:
        """Returns the stacked state of `seeds` seeds, abstract, with its shardings."""
        one = jax.eval_shape(self._init, self.split()[0], jax.random.key(0))

        def stacked(x: jax.ShapeDtypeStruct, place: NamedSharding) -> jax.ShapeDtypeStruct:
            place = NamedSharding(self.mesh, PartitionSpec(None, *place.spec))
            return jax.ShapeDtypeStruct((seeds, *x.shape), x.dtype, sharding=place)

        return jax.tree.map(stacked, one, sharding.state_shardings(self.mesh, one))

    def _state_places(self) -> step_lib.TrainState:
        """Returns the shardings of the stacked state."""
        return jax.tree.map(lambda x: x.sharding, self._state_looks(1))

    def _check_attention(self) -> None:
        name, model = self.config.attention, self.model.config
        if name == "xla":
            return
        errors.check(model.attention_dropout_rate == 0, "dropout_rate", self.config.dropout_rate,
                     f"0 with config.attention = {name!r}, which has no dropout")  # fmt: skip
        kernels.check(name, model, model.dtype, {}, ())

    def _check_mesh(self) -> None:
        name, platform = self.config.attention, self.mesh.devices.flat[0].platform
        errors.check(name == "xla" or platform == "gpu", "attention", name, f"xla on a {platform}")
        kernels.check_mesh(name, self.mesh)
        shards = sharding.batch_shards(self.mesh)
        if self.config.batch_size % shards:
            raise errors.UserError(
                f"config.batch_size = {self.config.batch_size} does not divide over data x fsdp = "
                f"{shards} devices: take a multiple of {shards}"
            )


def over_seeds(function: Callable, seeds: int, mapped: Sequence[bool]) -> Callable:
    """Maps `function` over the first axis, that of seeds; arguments not `mapped` are shared.

    A single seed is computed without vmap.
    """
    if seeds > 1:
        return jax.vmap(function, in_axes=tuple(0 if each else None for each in mapped))

    def alone(*args: Any) -> Any:
        parts = (
            jax.tree.map(lambda x: x[0], a) if each else a
            for a, each in zip(args, mapped, strict=True)
        )
        return jax.tree.map(lambda x: x[None], function(*parts))

    return alone


def _stacked(batch: dict[str, np.ndarray], seeds: int) -> dict[str, np.ndarray]:
    return {name: np.stack([x] * seeds) for name, x in batch.items()}


def _key(seed: int, what: str) -> jax.Array:
    """Returns a separate key for each use of a seed."""
    number = {"heads": 0, "strategy": 1, "steps": 2}[what]
    return jax.random.fold_in(jax.random.key(seed), number)
