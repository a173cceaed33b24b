"""Estimates a step's memory per device without a compiler: state, gradients, activations.

The size of the state is exact, computed from shapes and the sharding table. Activations are the
arrays that automatic differentiation saves for the backward pass. They are obtained by tracing the
step, so they are correct for every family, objective and remat policy. Their sharding is inferred
from their dimensions. The compiler's effects are not modelled: it removes arrays by fusion and adds
temporary buffers.

    >>> sizes = sharding.mesh_sizes("fsdp:16", 16)
    >>> memory.estimate(config, sizes, hardware.parse_topology("v5e-16")).fits
    True
"""

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any

import jax
import ml_collections

from bertjax import experiment as experiment_lib
from bertjax import phases as phases_lib
from bertjax import sharding
from bertjax import step as step_lib
from bertjax.models.common import kernels, layers
from bertjax.planning import abstract
from bertjax.runtime import hardware

PROBE = 97  # rows of the traced batch: a prime that divides no other dimension
SCORE_BYTES = 10  # per attention score in the backward pass: score, exponential, two gradients
# The share of a device's memory that an estimate may fill. For every file in configs/ that needs
# more than a gigabyte, the TPU compiler's figure was at least 4% below the estimate (median: 22%;
# see benchmarks/plans.py).
MARGIN = 0.95


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes on one device at the peak of a step, which is the start of the backward pass.

    params, optimizer: the train state; optimizer includes a moving average of the parameters.
    frozen: parameters of frozen models. gradients: float32 gradients; with micro-batches, both
    their sum and those of one micro-batch. activations: arrays that the forward pass saves.
    workspace: arrays for the backward pass of one layer, and the largest array of the loss. limit:
    the device's memory; None if unknown.
    """

    params: int
    optimizer: int
    frozen: int
    gradients: int
    activations: int
    workspace: int
    limit: int | None = None

    @property
    def total(self) -> int:
        """Returns the sum of all parts."""
        return (
            self.params + self.optimizer + self.frozen
            + self.gradients + self.activations + self.workspace
        )  # fmt: skip

    @property
    def fits(self) -> bool:
        """Returns whether the total fits with a margin; True if the limit is unknown."""
        return self.limit is None or self.total <= MARGIN * self.limit


def estimate(
    config: ml_collections.ConfigDict, mesh_sizes: Mapping[str, int], topology: hardware.Topology
) -> Memory:
    """Estimates the memory of a step per device of `topology` with a mesh of these sizes.

    The estimate is for the phase with the most saved activations, which is normally the phase with
    the longest sequences.
    """
    return on_mesh(config, mesh_sizes, topology.chip.platform, topology.chip.hbm_bytes)


def on_mesh(
    config: ml_collections.ConfigDict,
    mesh_sizes: Mapping[str, int],
    platform: str,
    limit: int | None,
) -> Memory:
    """Like `estimate`, for devices with `limit` bytes of memory each; None if this is unknown.

    platform: the jax platform of the devices: tpu, gpu or cpu.
    """
    state = state_bytes(experiment_on(config, platform), mesh_sizes)
    phases = phases_lib.of(config)
    num_copies = 2 if any(p.micro_batches > 1 for p in phases) else 1
    activations, workspace = max(
        (
            activation_bytes(phase, mesh_sizes, platform),
            _workspace_bytes(phase, mesh_sizes, platform),
        )
        for phase in phases
    )
    gradients = num_copies * state.pop("gradients")
    return Memory(
        **state, gradients=gradients, activations=activations, workspace=workspace, limit=limit
    )


def experiment_on(config: ml_collections.ConfigDict, platform: str) -> experiment_lib.Experiment:
    """Returns the experiment of `config` on a jax platform, with attention "xla".

    The result is cached. Configs that differ only in batch sizes, mesh and attention share the
    experiment and its traces.
    """
    base = config.copy_and_resolve_references()
    base.update(mesh="auto", batch_size=1, micro_batch_size=0, attention="xla")
    base.phase2.batch_size = 1
    base.phases, base.data.sources = (), {}
    return _experiment(ml_collections.FrozenConfigDict(base), platform)


@functools.lru_cache(maxsize=16)
def _experiment(
    config: ml_collections.FrozenConfigDict, platform: str
) -> experiment_lib.Experiment:
    return abstract.experiment(ml_collections.ConfigDict(config), platform)


def state_bytes(
    experiment: experiment_lib.Experiment, mesh_sizes: Mapping[str, int]
) -> dict[str, int]:
    """Returns {part of `Memory`: exact bytes on one device}.

    The parts are params, optimizer, frozen, and gradients (float32, of one micro-batch).
    """
    return dict(_state_bytes(experiment, tuple(sorted(mesh_sizes.items()))))


@functools.lru_cache(maxsize=256)
def _state_bytes(
    experiment: experiment_lib.Experiment, mesh_sizes: tuple[tuple[str, int], ...]
) -> dict[str, int]:
    state, frozen = _state(experiment)
    mesh = abstract.mesh(dict(mesh_sizes))
    shardings = sharding.state_shardings(mesh, state)
    frozen_shardings = sharding.state_shardings(mesh, {"params": frozen})["params"]
    params = _bytes(state.params, shardings.params)
    optimizer = _bytes(state.opt_state, shardings.opt_state)
    if isinstance(state, step_lib.AveragedState):
        optimizer += _bytes(state.ema, shardings.ema)
    return {
        "params": params,
        "optimizer": optimizer,
        "frozen": _bytes(frozen, frozen_shardings),
        "gradients": params,
    }


@functools.lru_cache(maxsize=16)
def _state(experiment: experiment_lib.Experiment) -> tuple[Any, Any]:
    return abstract.state(experiment), abstract.frozen_params(experiment)


def _bytes(shapes: Any, shardings: Any) -> int:
    return sum(jax.tree.leaves(jax.tree.map(_shard_bytes, shapes, shardings)))


def _shard_bytes(leaf: jax.ShapeDtypeStruct, leaf_sharding: jax.sharding.Sharding) -> int:
    return math.prod(leaf_sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize


def activation_bytes(
    phase: phases_lib.Phase,
    mesh_sizes: Mapping[str, int],
    platform: str = "tpu",
) -> int:
    """Returns the bytes per device that the forward pass of a micro-batch saves."""
    experiment, rows = experiment_on(phase.config, platform), device_rows(phase, mesh_sizes)
    residuals = _residuals(experiment, phase.length)
    return round(sum(_device_bytes(experiment, leaf, rows, mesh_sizes) for leaf in residuals))


def _workspace_bytes(
    phase: phases_lib.Phase, mesh_sizes: Mapping[str, int], platform: str
) -> int:
    """Returns the bytes for the backward pass of one layer, plus the largest array of the loss.

    The bytes of a layer are those of all arrays that it would save without remat. Without a kernel
    for attention they include its scores, which are never saved (`models.common.attention`).
    """
    no_remat = phase.config.copy_and_resolve_references()
    no_remat.remat = "none"
    experiment, rows = experiment_on(no_remat, platform), device_rows(phase, mesh_sizes)
    layer, largest = 0.0, 0.0
    model = experiment.model.config
    name = phase.config.attention
    if kernels.in_training(name, model, phase.length, mesh_sizes, platform) == "xla":
        heads = max(_field_sizes(experiment, "num_heads")) / mesh_sizes["tensor"]
        layer = SCORE_BYTES * rows * heads * phase.length**2 / mesh_sizes["sequence"]
    for leaf in _residuals(experiment, phase.length):
        leaf_bytes = _device_bytes(experiment, leaf, rows, mesh_sizes)
        rows_dim = _rows_dim(leaf)
        if rows_dim == 0:
            largest = max(largest, leaf_bytes)
        elif rows_dim:
            # ALBERT's leaves are [groups, uses, rows, ...].
            layer += leaf_bytes / math.prod(leaf.shape[:rows_dim])
    return round(layer + largest)


def device_rows(phase: phases_lib.Phase, mesh_sizes: Mapping[str, int]) -> int:
    """Returns the number of rows of a device in a forward pass."""
    shards = math.prod(mesh_sizes[axis] for axis in sharding.AXIS_RULES["batch"])
    return -(-phase.forward_size // shards)


@functools.lru_cache(maxsize=64)
def _residuals(
    experiment: experiment_lib.Experiment, length: int
) -> tuple[jax.ShapeDtypeStruct, ...]:
    return tuple(abstract.residuals(experiment, PROBE, length))


def _field_sizes(experiment: experiment_lib.Experiment, *suffixes: str) -> set[int]:
    fields = experiment.config.model.items()
    return {size for name, size in fields if name.endswith(suffixes)}


def _rows_dim(leaf: jax.ShapeDtypeStruct) -> int | None:
    """Returns the dimension that contains the batch's rows; None if there is none.

    Other dimensions may be flattened into it.
    """
    return next((dim for dim, size in enumerate(leaf.shape) if size and size % PROBE == 0), None)


def _device_bytes(
    experiment: experiment_lib.Experiment,
    leaf: jax.ShapeDtypeStruct,
    rows: int,
    mesh_sizes: Mapping[str, int],
) -> float:
    """Returns the bytes of a saved array on a device with `rows` rows of the batch.

    Heads, MLP units and vocabulary are sharded over tensor, and tokens over sequence. An array
    without rows is assumed to be a copy of parameters in another dtype, sharded over fsdp and
    tensor.
    """
    size = math.prod(leaf.shape) * leaf.dtype.itemsize
    rows_dim = _rows_dim(leaf)
    if rows_dim is None:
        return size / (mesh_sizes["fsdp"] * mesh_sizes["tensor"])
    tensor_sizes = _field_sizes(experiment, "num_heads", "intermediate_size")
    tensor_sizes.add(layers.padded_vocab_size(experiment.config.model.vocab_size))
    num_shards = mesh_sizes["sequence"]
    if tensor_sizes & set(leaf.shape[rows_dim + 1 :]):
        num_shards *= mesh_sizes["tensor"]
    return size * rows / PROBE / num_shards
