"""Builds the parts of a run from a config: model, objective, optimizer, steps and batches."""

import copy
import functools
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import jax
import ml_collections
import numpy as np

from bertjax import errors, evaluate, optimizer, plugins, sharding, training_data
from bertjax import phases as phases_lib
from bertjax import step as step_lib
from bertjax.data.batches import loader, mixture
from bertjax.data.prepared import store
from bertjax.data.tokenizers.vocabulary import Vocabulary
from bertjax.models.common import kernels, layers
from bertjax.objectives.common import hooks

SPARE_ROWS = 1.1  # warn if the embedding has more than about this many rows per piece
Batches = Iterator[dict[str, np.ndarray]]
Rows = Callable[[int], slice | np.ndarray]  # batch size -> this process's rows of the batch


class Experiment:
    """The parts of a run. Contains no arrays, so that everything can be evaluated abstractly.

    frozen_models: {name: Linen module} of the models that the loss uses but that are not trained;
    the name is the keyword argument of the loss. platform: the platform to compute on (cpu, gpu or
    tpu); None means the platform of this machine's devices.
    """

    def __init__(
        self,
        config: ml_collections.ConfigDict,
        frozen_models: Mapping[str, Any] = MappingProxyType({}),
        platform: str | None = None,
    ):
        self.frozen_models = frozen_models
        self.schedule = phases_lib.schedule(config)
        self._platform = platform
        self._parts = [self]  # of all phases; they share this list and the abstract state
        self._abstract_state = functools.cache(self._trace_state)
        self._bind(config)

    def _bind(self, config: ml_collections.ConfigDict) -> None:
        """Sets the parts that may differ between phases."""
        self.config = config
        compute = plugins.compute(config, self._platform)
        self.tx = optimizer.make(config.optimizer, config.num_steps, self.schedule, compute.dtype)
        self.model = plugins.model(config.family, config.model, compute)
        self.objective = plugins.objective(config.objective.name)
        self.objective_config = plugins.objective_config(config)
        self.hooks = hooks.of(self.objective)
        self.loss = functools.partial(self.objective.loss, self.objective_config)
        self.scales = self.objective.scales(self.objective_config)
        self._train_step = functools.cache(self._make_train_step)
        self._eval_step = functools.cache(self._make_eval_step)

    def at(self, phase: phases_lib.Phase) -> "Experiment":
        """Returns the experiment with the phase's values of model, objective and weight decay.

        The learning rate schedule is that of the whole run. Phases with equal values share an
        experiment, so that its steps are compiled once for each shape.
        """

        def values(config: ml_collections.ConfigDict) -> tuple[Any, ...]:
            return config.model, config.objective, config.optimizer.weight_decay

        for part in self._parts:
            if values(phase.config) == values(part.config):
                return part
        part = copy.copy(self)
        part._bind(phase.config)
        self._parts.append(part)
        return part

    def init_state(self, key: jax.Array) -> step_lib.TrainState:
        """Returns the state before the first step; a pure function of the key."""
        params_key, step_key = jax.random.split(key)
        params = plugins.init_params(self.model, params_key)
        with_ema = self.config.ema_decay > 0
        return step_lib.init_state(params, self.tx, step_key, with_ema=with_ema)

    def abstract_state(self, mesh: jax.sharding.Mesh) -> step_lib.TrainState:
        """Returns shapes, dtypes and shardings of the state; nothing is allocated.

        They are the same in all phases, and are traced once for each mesh.
        """
        return self._abstract_state(mesh)

    def _trace_state(self, mesh: jax.sharding.Mesh) -> step_lib.TrainState:
        shapes = jax.eval_shape(lambda: self.init_state(jax.random.key(0)))
        shardings = sharding.state_shardings(mesh, shapes)
        return jax.tree.map(
            lambda leaf, leaf_sharding: jax.ShapeDtypeStruct(
                leaf.shape, leaf.dtype, sharding=leaf_sharding
            ),
            shapes,
            shardings,
        )

    def train_step(self, phase: phases_lib.Phase, mesh: jax.sharding.Mesh) -> Callable:
        """Returns the jitted train step for the batches of a phase; its input state is donated.

        Phases that differ only in the shapes of batches, in rates or in sources share it.
        """
        return self.at(phase)._train_step(phase.micro_batches, mesh)

    def _make_train_step(self, micro_batches: int, mesh: jax.sharding.Mesh) -> Callable:
        normalizers = functools.partial(self.objective.normalizers, self.objective_config)
        step_fn = step_lib.make_train_step(
            self.model,
            self.loss,
            normalizers,
            self.scales,
            self.tx,
            self.schedule,
            micro_batches,
            self.frozen_models,
            ema_decay=self.config.ema_decay,
        )
        # Fixes the shardings of the new state. Otherwise the compiler would shard some biases, and
        # the next step would be recompiled.
        shardings = jax.tree.map(lambda leaf: leaf.sharding, self.abstract_state(mesh))
        return jax.jit(step_fn, donate_argnums=0, out_shardings=(shardings, None))

    def eval_step(self) -> Callable:
        """Returns the jitted evaluation step."""
        return self._eval_step()

    def _make_eval_step(self) -> Callable:
        return jax.jit(step_lib.make_eval_step(self.model, self.loss, self.frozen_models))

    def sampling(self, length: int, vocabulary: Vocabulary) -> tuple[Any, Callable]:
        """Returns (sampler, transform) of the objective for sequences of `length` tokens.

        The sampler cuts text into samples. transform converts a batch of samples to features.
        """
        sampling = self.objective.sampling(self.objective_config, length, vocabulary)
        transform = functools.partial(
            self.objective.transform, self.objective_config, length, vocabulary
        )
        return sampling, transform

    def flops_per_sequence(self, length: int) -> int:
        """Returns the model FLOPs of a training step per sequence.

        The backward pass counts as two forward passes. Frozen models run only the forward pass.
        """
        predictions = self.objective.predictions(self.objective_config, length)

        def forward(model: Any) -> int:
            return plugins.family_of(model).flops_per_sequence(model.config, length, predictions)

        return 3 * forward(self.model) + sum(map(forward, self.frozen_models.values()))

    def muon_shapes(self) -> list[tuple[int, ...]]:
        """Returns [layers, in, out] of each kernel that muon trains; [] for other optimizers."""
        return optimizer.muon_shapes(self.config.optimizer, plugins.abstract_params(self.model))

    def stream(
        self, dataset: loader.Dataset, vocabulary: Vocabulary, phase: phases_lib.Phase
    ) -> mixture.Mixture:
        """Returns the stream of training batches of a phase; batch 0 is for its first step."""
        return training_data.TrainingData(self, dataset, vocabulary).stream(phase)

    def train_batches(
        self, data: training_data.TrainingData, start: int, rows: Rows
    ) -> Batches:
        """Yields the batch of each step from `start` to the end of the last phase.

        rows: selects this process's rows of a batch; the batch contains only these rows.
        """
        for phase in phases_lib.of(self.config):
            if start >= phase.stop:
                continue
            yield from loader.train_batches(
                data.stream(phase),
                max(start, phase.start) - phase.start,
                phase.stop - phase.start,
                rows(phase.batch_size),
            )

    def eval_batches(
        self, dataset: loader.Dataset, vocabulary: Vocabulary, phase: phases_lib.Phase, rows: Rows
    ) -> Batches:
        """Returns the held-out samples in batches of `phase.forward_size` rows.

        rows: selects this process's rows of a batch; the batch contains only these rows. Every
        call returns the same samples in the same order.
        """
        sampling, transform = self.at(phase).sampling(phase.length, vocabulary)
        size = phase.forward_size
        return loader.eval_batches(
            dataset,
            sampling,
            transform,
            batch_size=size,
            seed=0,
            max_samples=self.config.eval.max_samples,
            rows=rows(size),
        )

    def unigram(self, data: training_data.TrainingData, phase: phases_lib.Phase) -> np.ndarray:
        """Returns float32[vocab_size]: the log frequency of each id among predicted tokens.

        Counts the tokens of one epoch of the phase's mixture of sources, but stops early if the
        epoch is long; see `evaluate.unigram_log_probs`.
        """
        stream = data.stream(phase)
        batches = map(stream.batch, range(-(-stream.samples_per_epoch // stream.batch_size)))
        return evaluate.unigram_log_probs(batches, self.config.model.vocab_size)


def token_bytes(config: ml_collections.ConfigDict, tokenizer: Any) -> np.ndarray:
    """Returns float32[vocab_size]: the bytes of text that each id stands for.

    0 for special tokens, and for ids above the tokenizer's pieces, such as T5's sentinels.
    """
    table = np.zeros(config.model.vocab_size, np.float32)
    table[: tokenizer.size] = tokenizer.token_bytes()
    return table


def check_mesh(config: ml_collections.ConfigDict, mesh: Any, platform: str | None = None) -> None:
    """Raises UserError if a batch, its sequences or the heads cannot be split over the mesh.

    platform: the platform on which the attention kernel must run; None means the platform of the
    mesh's devices, for which the mesh must not be abstract.
    """
    shards, sequence_shards = sharding.batch_shards(mesh), mesh.shape["sequence"]
    for phase in phases_lib.of(config):
        size = phase.forward_size
        if size % shards:
            key = "micro_batch_size" if phase.config.micro_batch_size else "batch_size"
            raise errors.UserError(
                f"config.{phase.place(key)} = {size}: must be a multiple of {shards}, the number "
                "of devices on the mesh axes slice x data x fsdp"
            )
        if phase.length % sequence_shards:
            raise errors.UserError(
                f"config.{phase.place('data.length')} = {phase.length}: must be a multiple of "
                f"{sequence_shards}, the number of devices on the mesh axis sequence"
            )
    kernels.check_mesh(config.attention, mesh, platform)
    tensor = mesh.shape["tensor"]
    if config.model.num_heads % tensor:
        raise errors.UserError(
            f"config.mesh = {config.mesh!r}: tensor = {tensor} must divide config.model.num_heads "
            f"= {config.model.num_heads}"
        )


def check_data(config: ml_collections.ConfigDict, dataset: store.Dataset) -> None:
    """Raises UserError if the objective cannot be trained on the data."""
    objective_hooks = hooks.of(plugins.objective(config.objective.name))
    objective_hooks.check_data(
        plugins.objective_config(config), config.data.path, dataset.num_documents
    )


def data_warnings(
    config: ml_collections.ConfigDict,
    vocabulary: Vocabulary,
    heldout: store.Dataset,
) -> list[str]:
    """Returns warnings about unused embedding rows and about held-out data.

    The held-out data may be too small to rank models, or unsuitable for the objective.
    """
    warnings = []
    rows, needed = config.model.vocab_size, _rows_needed(config, vocabulary)[0]
    if rows > SPARE_ROWS * needed + layers.VOCAB_MULTIPLE:
        warnings.append(
            f"config.model.vocab_size = {rows}: the tokenizer of config.data.path has {needed} "
            f"pieces, so {1 - needed / rows:.0%} of the embedding's rows are never trained: set "
            f"--config.model.vocab_size={needed}"
        )
    size_warning = store.too_small_to_rank(heldout.num_documents, heldout.num_tokens)
    if size_warning:
        warnings.append(f"held-out data: {size_warning}")
    objective_hooks = hooks.of(plugins.objective(config.objective.name))
    return warnings + objective_hooks.heldout_warnings(
        plugins.objective_config(config), heldout.num_documents
    )


def _rows_needed(config: ml_collections.ConfigDict, vocabulary: Vocabulary) -> tuple[int, str]:
    """Returns (number of embedding rows that the tokenizer needs, what they represent)."""
    objective_hooks = hooks.of(plugins.objective(config.objective.name))
    if objective_hooks.SENTINELS or plugins.family(config.family).KIND == "encoder_decoder":
        return max(vocabulary.size, *vocabulary.sentinels + 1), "pieces and sentinels"
    return vocabulary.size, "pieces"


def check_vocabulary(config: ml_collections.ConfigDict, vocabulary: Vocabulary) -> None:
    """Raises UserError if the embedding or the model's special ids do not fit the tokenizer.

    The embedding needs a row for each id of the tokenizer. `decoder_start_id` must not be set.
    `pad_id`, from which the model counts positions, must be the tokenizer's padding id.
    """
    needed, units = _rows_needed(config, vocabulary)
    if needed > config.model.vocab_size:
        raise errors.UserError(
            f"the tokenizer of config.data.path = {config.data.path} has {needed} {units}, more "
            f"than config.model.vocab_size = {config.model.vocab_size}: set that to {needed}"
        )
    if "decoder_start_id" in config.model and config.model.decoder_start_id >= 0:
        raise errors.UserError(
            f"config.model.decoder_start_id = {config.model.decoder_start_id}: must be -1, because "
            "decoders are pretrained with padding as their first token"
        )
    pad = vocabulary.specials.pad
    if "pad_id" in config.model and config.model.pad_id != pad:
        raise errors.UserError(
            f"config.model.pad_id = {config.model.pad_id}: must be {pad}, the id of padding in the "
            f"tokenizer of config.data.path = {config.data.path}"
        )
