"""Trains a tiny model of every family on every matching objective, with a run's own step.

All of them use the same dataset and vocabulary. Dropout is off, so that nothing is random.

    run = tiny_runs.Run(tiny_runs.make_config("t5", "span_corruption"))
    report, state = run.step(run.batch(0))
"""

import dataclasses
import functools
import math
import os
from collections.abc import Callable
from typing import Any

import jax
import ml_collections
import numpy as np

from bertjax import config as config_lib
from bertjax import experiment, plugins, sharding, train
from bertjax import phases as phases_lib
from bertjax import step as step_lib
from bertjax.artifact import artifact, loading
from bertjax.data.batches import loader, mixture
from bertjax.objectives import mlm
from tests.helpers import meshes, synthetic, tiny_model

BATCH_SIZE = 8
WEIGHTS = ("masked_weights", "loss_weights")  # of the predictions
VOCABULARY = synthetic.make_vocabulary()
VOCAB_SIZE = int(VOCABULARY.sentinels.max()) + 1  # 200 pieces and T5's 100 sentinels
FAMILIES = plugins.families()


class Dataset(synthetic.Dataset):
    """Adds the attributes that loading a teacher requires."""

    path = "synthetic"
    tokenizer_fingerprint = tiny_model.tokenizer().fingerprint


DATA = Dataset(synthetic.records(60))


def lacking_heads(family: str, objective: str) -> set[str]:
    """Returns the heads that the objective needs and the family lacks."""
    config = config_lib.default(family, "mini", objective)
    read = plugins.objective(objective).heads(plugins.objective_config(config))
    return set(read) - set(plugins.family(family).Config().heads)


def pairs() -> list[tuple[str, str]]:
    """Returns every (family, objective) that can be trained."""
    return [
        (family, objective)
        for family in FAMILIES
        for objective in plugins.objectives_of(plugins.family(family).KIND)
        if not lacking_heads(family, objective)
    ]


def make_config(family: str, objective: str = "", teacher: str = "") -> ml_collections.ConfigDict:
    """Returns the smoke config for `VOCABULARY`, with only the heads that the objective needs."""
    config = config_lib.smoke(config_lib.default(family, "mini", objective))
    for name in config.model:
        if name.endswith("dropout_rate"):
            config.model[name] = 0.0
    if config.model.init_std < 0.05:
        config.model.init_std = 0.05  # 0.02 is meant for a width of 768
    config.model.vocab_size = VOCAB_SIZE
    if "pad_id" in config.model:
        config.model.pad_id = VOCABULARY.specials.pad
    read = plugins.objective(config.objective.name).heads(plugins.objective_config(config))
    if set(read) & set(mlm.LABELS):
        read = ("pooler", *read)
    config.model.heads = tuple(head for head in config.model.heads if head in read)
    if "teacher" in config.objective:
        config.objective.teacher = teacher
    config.batch_size = BATCH_SIZE
    config_lib.validate(config)
    experiment.check_vocabulary(config, VOCABULARY)
    return config


def write_teacher(folder: str | os.PathLike) -> str:
    """Writes an artifact of a BERT of the same size as the students. Returns its path."""
    config = make_config("bert", "mlm")
    fields = config.model.to_dict() | {"init_std": 0.2}  # large, for confident predictions
    params = _first_params("bert", tuple(fields.items()))
    artifact.write(artifact.Artifact("bert", fields, params, tiny_model.tokenizer()), folder)
    return os.fspath(folder)


@functools.cache
def _first_params(family: str, fields: tuple[tuple[str, Any], ...]) -> Any:
    model = plugins.model(family, dict(fields))
    return jax.device_get(plugins.init_params(model, jax.random.key(0)))


class Run:
    """The parts of a run of `config` on the first devices; `step` starts anew without a state."""

    def __init__(self, config: ml_collections.ConfigDict, mesh_shape: tuple[int, ...] = (1, 1, 1)):
        self.mesh = meshes.of(*mesh_shape)
        experiment.check_mesh(config, self.mesh)
        frozen = loading.frozen_artifacts(config, DATA)
        self.experiment = experiment.Experiment(config, train.frozen_models(config, frozen))
        self.frozen = train.place_frozen(self.mesh, frozen)
        self.phase = phases_lib.of(config)[0]
        self.vocab_rows = plugins.layers.padded_vocab_size(VOCAB_SIZE)

    @functools.cached_property
    def stream(self) -> mixture.Mixture:
        return self.experiment.stream(DATA, VOCABULARY, self.phase)

    def batch(self, number: int) -> dict[str, np.ndarray]:
        """Returns a training batch."""
        return self.stream.batch(number)

    def eval_batch(self, samples: int) -> dict[str, np.ndarray]:
        """Returns the first batch of an evaluation on `samples` samples."""
        return next(
            loader.eval_batches(
                DATA,
                *self.experiment.sampling(self.phase.length, VOCABULARY),
                batch_size=BATCH_SIZE,
                seed=0,
                max_samples=samples,
            )
        )

    def params(self) -> Any:
        """Returns the initial parameters, on the host."""
        config = self.experiment.config
        return _first_params(config.family, tuple(config.model.to_dict().items()))

    def first_state(self) -> step_lib.TrainState:
        """Returns a new state before the first step, whose buffers a step may donate."""
        made = step_lib.init_state(self.params(), self.experiment.tx, jax.random.key(1))
        return jax.device_put(made, sharding.state_shardings(self.mesh, made))

    @functools.cached_property
    def train_step(self) -> Callable:
        return self.experiment.train_step(self.phase, self.mesh)

    def step(
        self, batch: dict[str, np.ndarray], state: step_lib.TrainState | None = None
    ) -> tuple[dict[str, float], step_lib.TrainState]:
        """Returns (report, new state) of one step; the first step if `state` is None."""
        state = self.first_state() if state is None else state
        with jax.set_mesh(self.mesh):
            placed = sharding.global_batch(self.mesh, self.phase.batch_size, batch)
            state, report = self.train_step(state, placed, self.frozen)
        return {name: float(value) for name, value in report.items() if name != "terms"}, state

    @functools.cached_property
    def traced_eval(self) -> jax.stages.Traced:
        """The traced evaluation step, which also returns all logits over the vocabulary."""

        def loss(apply, batch, **frozen):
            said = []

            def spy(**inputs):
                said.append(apply(**inputs))
                return said[-1]

            terms = self.experiment.loss(spy, batch, **frozen)
            outputs = [value for outputs in said for value in outputs.values()]
            return terms, [x for x in outputs if x.shape[-1] == self.vocab_rows]

        of = self.experiment
        function = jax.jit(step_lib.make_eval_step(of.model, loss, of.frozen_models))
        with jax.set_mesh(self.mesh):
            return function.trace(self.params(), self.eval_batch(BATCH_SIZE), self.frozen)

    @functools.cached_property
    def _compiled_eval(self) -> Callable:
        return self.traced_eval.lower().compile()

    def evaluate(self, batch: dict[str, np.ndarray]) -> tuple[dict[str, np.ndarray], list]:
        """Returns ({name: [sum, weight]}, logits [.., rows of the word table]) of an eval batch."""
        terms, logits = jax.device_get(self._compiled_eval(self.params(), batch, self.frozen))
        return {name: np.array(term) for name, term in terms.items()}, logits


def gradients(state: step_lib.TrainState) -> dict[str, np.ndarray]:
    """Returns Adam's first moments by parameter path.

    After a first step these are (1 - b1) times the clipped gradients.
    """
    flat = jax.tree_util.tree_leaves_with_path(jax.device_get(state.opt_state))
    named = {sharding.path_name(path): leaf for path, leaf in flat}
    return {name.split("/mu/")[1]: leaf for name, leaf in named.items() if "/mu/" in name}


def uneven(batch: dict[str, np.ndarray]) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Returns (batch, predictions left in each row) after removing some predictions.

    Row r of B keeps about r/B of its slots, so that the first row has none.
    """
    (name,) = (name for name in WEIGHTS if name in batch)
    rows, slots = batch[name].shape
    kept = np.arange(rows)[:, None] / rows > np.arange(slots) / slots
    return batch | {name: batch[name] * kept}, (batch[name] * kept).sum(axis=1)


def matmul_flops(jaxpr: Any) -> int:
    """Returns the FLOPs of all matmuls in a jaxpr; a scan's body counts once per iteration."""
    total = 0
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "dot_general":
            (contracted, _), _ = eqn.params["dimension_numbers"]
            sizes = [eqn.invars[0].aval.shape[axis] for axis in contracted]
            total += 2 * math.prod(eqn.outvars[0].aval.shape) * math.prod(sizes)
        times = eqn.params["length"] if eqn.primitive.name == "scan" else 1
        for value in jax.tree.leaves(eqn.params, is_leaf=lambda x: hasattr(x, "eqns")):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                total += times * matmul_flops(inner)
    return total


def with_whole_windows(config: Any) -> Any:
    """Returns `config` with a local window, if it has one, that covers the whole sequence.

    XLA computes all scores of a local layer, but `flops_per_sequence` counts only its window.
    """
    if not hasattr(config, "local_window"):
        return config
    return dataclasses.replace(config, local_window=2 * config.max_length)
