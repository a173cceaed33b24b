"""What a step keeps on each device, estimated without a compiler: state, gradients, activations.

The state is exact: shapes and the sharding table. Activations are what automatic differentiation
keeps for the backward pass, read out of the traced step, so that they hold for every family,
objective and remat policy; how they are split over the mesh is told by their dimensions. What the
compiler fuses away or needs besides is not in it.

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

from bertjax import config as config_lib
from bertjax import experiment as experiment_lib
from bertjax import sharding
from bertjax.models.common import layers
from bertjax.plan import abstract
from bertjax.runtime import hardware

PROBE = 97  # rows of the traced batch: a prime that divides no other size of a model
SCORE_BYTES = 10  # of one score in the backward pass: itself, its exponential, two gradients
# Of a device's memory may be planned. The TPU compiler needed less than the estimate for each file
# of configs/ of more than a gigabyte: by 4% at the least, 22% in the median (benchmarks/plans.py).
MARGIN = 0.95


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes on one device in the worst moment of a step, the start of the backward pass.

    params, optimizer: the state; frozen: of models that nothing trains. gradients: float32, with
    micro-batches their sum and those of one. activations: what the forward pass keeps. workspace:
    one layer's backward pass, and what fsdp gathers for it. limit: what the device has; None where
    it is not known.
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
        """All of it."""
        return (
            self.params + self.optimizer + self.frozen
            + self.gradients + self.activations + self.workspace
        )  # fmt: skip

    @property
    def fits(self) -> bool:
        """Whether it fits with a margin; True where the limit is not known."""
        return self.limit is None or self.total <= MARGIN * self.limit


def estimate(
    config: ml_collections.ConfigDict, mesh_sizes: Mapping[str, int], topology: hardware.Topology
) -> Memory:
    """What a step of the longest phase keeps on a device of `topology` with this mesh."""
    return on_mesh(config, mesh_sizes, topology.chip.platform, topology.chip.hbm_bytes)


def on_mesh(
    config: ml_collections.ConfigDict,
    mesh_sizes: Mapping[str, int],
    platform: str,
    limit: int | None,
) -> Memory:
    """As `estimate`, on devices of a jax platform with `limit` bytes each."""
    state = state_bytes(experiment_on(config, platform), mesh_sizes)
    phases = config_lib.phases(config)
    parts = 2 if any(config_lib.micro_batches(config, p.batch_size) > 1 for p in phases) else 1
    kept, workspace = max(
        (
            activation_bytes(config, phase, mesh_sizes, platform),
            _workspace_bytes(config, phase, mesh_sizes, platform),
        )
        for phase in phases
    )
    gradients = parts * state.pop("gradients")
    return Memory(**state, gradients=gradients, activations=kept, workspace=workspace, limit=limit)


def experiment_on(config: ml_collections.ConfigDict, platform: str) -> experiment_lib.Experiment:
    """The experiment on a jax platform, with attention "xla".

    Configs that differ in batch sizes and mesh share one, and what is traced of it.
    """
    neutral = config.copy_and_resolve_references()
    neutral.update(mesh="auto", batch_size=1, micro_batch_size=0, attention="xla")
    neutral.phase2.batch_size = 1
    return _experiment(ml_collections.FrozenConfigDict(neutral), platform)


@functools.lru_cache(maxsize=16)
def _experiment(
    config: ml_collections.FrozenConfigDict, platform: str
) -> experiment_lib.Experiment:
    return abstract.experiment(ml_collections.ConfigDict(config), platform)


def state_bytes(
    experiment: experiment_lib.Experiment, mesh_sizes: Mapping[str, int]
) -> dict[str, int]:
    """Bytes of "params", "optimizer", "frozen" and float32 "gradients" on one device; exact."""
    state, frozen = _state(experiment)
    mesh = abstract.mesh(mesh_sizes)
    places = sharding.state_shardings(mesh, state)
    frozen_places = sharding.state_shardings(mesh, {"params": frozen})["params"]
    params = _bytes(state.params, places.params)
    return {
        "params": params,
        "optimizer": _bytes(state.opt_state, places.opt_state),
        "frozen": _bytes(frozen, frozen_places),
        "gradients": params,
    }


@functools.lru_cache(maxsize=16)
def _state(experiment: experiment_lib.Experiment) -> tuple[Any, Any]:
    return abstract.state(experiment), abstract.frozen_params(experiment)


def _bytes(shapes: Any, places: Any) -> int:
    return sum(jax.tree.leaves(jax.tree.map(_shard_bytes, shapes, places)))


def _shard_bytes(leaf: jax.ShapeDtypeStruct, place: jax.sharding.Sharding) -> int:
    return math.prod(place.shard_shape(leaf.shape)) * leaf.dtype.itemsize


def _gathered_bytes(experiment: experiment_lib.Experiment, mesh_sizes: Mapping[str, int]) -> int:
    """Parameters whole over fsdp, and their gradients: those outside of layers, and a layer's."""
    if mesh_sizes["fsdp"] == 1:
        return 0
    params = {"params": _state(experiment)[0].params}
    places = sharding.state_shardings(abstract.mesh({**mesh_sizes, "fsdp": 1}), params)

    def one(path, leaf, place):
        return _shard_bytes(leaf, place) // (
            leaf.shape[0] if "/layers/" in sharding.path_name(path) else 1
        )

    whole = jax.tree_util.tree_map_with_path(one, params, places)
    return 2 * sum(jax.tree.leaves(whole))


def activation_bytes(
    config: ml_collections.ConfigDict,
    phase: config_lib.Phase,
    mesh_sizes: Mapping[str, int],
    platform: str = "tpu",
) -> int:
    """Bytes that the forward pass of one micro-batch keeps on a device for the backward pass."""
    experiment, rows = experiment_on(config, platform), _rows(config, phase, mesh_sizes)
    kept = _kept(experiment, phase.length)
    return round(sum(_share(experiment, leaf, rows, mesh_sizes) for leaf in kept))


def _workspace_bytes(
    config: ml_collections.ConfigDict,
    phase: config_lib.Phase,
    mesh_sizes: Mapping[str, int],
    platform: str,
) -> int:
    """The backward pass of one layer: all that the layer computes, as if nothing were recomputed.

    With attention "xla" its scores too, which are never kept (`models.common.attention`). And of
    the loss, its largest array once more.
    """
    whole = config.copy_and_resolve_references()
    whole.remat = "none"
    experiment, rows = experiment_on(whole, platform), _rows(config, phase, mesh_sizes)
    layer, largest = 0.0, 0.0
    if config.attention == "xla":
        heads = max(_sizes_of(experiment, "num_heads")) / mesh_sizes["tensor"]
        layer = SCORE_BYTES * rows * heads * phase.length**2 / mesh_sizes["sequence"]
    for leaf in _kept(experiment, phase.length):
        share = _share(experiment, leaf, rows, mesh_sizes)
        place = _rows_dim(leaf)
        if place == 0:
            largest = max(largest, share)
        elif place:
            layer += share / math.prod(leaf.shape[:place])  # ALBERT has groups and their uses
    return round(layer + largest)


def _rows(
    config: ml_collections.ConfigDict, phase: config_lib.Phase, mesh_sizes: Mapping[str, int]
) -> int:
    shards = mesh_sizes["data"] * mesh_sizes["fsdp"]
    return -(-config_lib.forward_size(config, phase) // shards)


@functools.lru_cache(maxsize=64)
def _kept(experiment: experiment_lib.Experiment, length: int) -> tuple[jax.ShapeDtypeStruct, ...]:
    return tuple(abstract.residuals(experiment, PROBE, length))


def _sizes_of(experiment: experiment_lib.Experiment, *endings: str) -> set[int]:
    fields = experiment.config.model.items()
    return {size for name, size in fields if name.endswith(endings)}


def _rows_dim(leaf: jax.ShapeDtypeStruct) -> int | None:
    """The dimension that the rows of the batch are in, alone or with others behind them."""
    return next((i for i, size in enumerate(leaf.shape) if size and size % PROBE == 0), None)


def _share(
    experiment: experiment_lib.Experiment,
    leaf: jax.ShapeDtypeStruct,
    rows: int,
    mesh_sizes: Mapping[str, int],
) -> float:
    """Bytes of a kept array on a device with `rows` rows of the batch.

    Heads, units of the MLP and pieces of the vocabulary are split over tensor, tokens over
    sequence. What has no rows is a cast of the parameters and split as they are.
    """
    size = math.prod(leaf.shape) * leaf.dtype.itemsize
    place = _rows_dim(leaf)
    if place is None:
        return size / (mesh_sizes["fsdp"] * mesh_sizes["tensor"])
    split = _sizes_of(experiment, "num_heads", "intermediate_size")
    split.add(layers.padded_vocab_size(experiment.config.model.vocab_size))
    parts = mesh_sizes["sequence"]
    if split & set(leaf.shape[place + 1 :]):
        parts *= mesh_sizes["tensor"]
    return size * rows / PROBE / parts
