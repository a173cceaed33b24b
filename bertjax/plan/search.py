"""Meshes, micro-batches and remat policies of a config on a slice, the fastest that fit first.

Every combination is estimated, which takes no compiler; the best are compiled.
"""

import dataclasses
from collections.abc import Iterator

import ml_collections

from bertjax import config as config_lib
from bertjax import errors
from bertjax.models.common import layers
from bertjax.plan import auto, compile
from bertjax.plan import plan as plan_lib
from bertjax.runtime import hardware

MAX_MICRO_BATCHES = 64


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A plan and the keys in which it differs from others."""

    plan: plan_lib.Plan

    @property
    def flags(self) -> str:
        """The keys, as `bertjax pretrain` takes them."""
        config = self.plan.config
        keys = ("mesh", "micro_batch_size", "remat")
        return " ".join(f"--config.{key}={config[key]}" for key in keys)

    @property
    def rank(self) -> tuple[float, float]:
        """Least time first; among equals the one that leaves the other limits most room."""
        phases = self.plan.phases
        slowest = self.plan.hours if self.plan.hours is not None else 0.0
        return slowest, sum(p.steps * sum(p.roofline.terms.values()) for p in phases)


def variants(
    config: ml_collections.ConfigDict, num_devices: int
) -> Iterator[ml_collections.ConfigDict]:
    """The config with every mesh, micro-batch size and remat policy that divide what they must."""
    sizes = [phase.batch_size for phase in config_lib.phases(config)]
    for remat in layers.REMAT_POLICIES:
        for micro in _micro_batch_sizes(sizes):
            one = config.copy_and_resolve_references()
            one.remat, one.micro_batch_size = remat, micro
            for mesh in auto.meshes(one, num_devices):
                if _power_of_two(mesh["fsdp"]) or mesh["data"] == 1:
                    variant = one.copy_and_resolve_references()
                    variant.mesh = auto.text(mesh)
                    yield variant


def _micro_batch_sizes(batch_sizes: list[int]) -> list[int]:
    """0, which is the whole batch, and what divides the batches of all phases."""
    counts = [2**n for n in range(1, MAX_MICRO_BATCHES.bit_length())]
    found = [batch_sizes[0] // count for count in counts if batch_sizes[0] % count == 0]
    return [0, *(size for size in found if all(batch % size == 0 for batch in batch_sizes))]


def _power_of_two(number: int) -> bool:
    return number & (number - 1) == 0


def run(
    config: ml_collections.ConfigDict, topology: hardware.Topology, count: int = 4
) -> tuple[list[Candidate], int]:
    """(the `count` best that fit, how many fit by estimate).

    Where there is a TPU compiler it decides of the best, and the ranking is by what it says; one
    that it refuses stays in the list only if nothing fits. Raises UserError when nothing fits by
    estimate either.
    """
    estimated = []
    for variant in variants(config, topology.num_devices):
        plan = plan_lib.make(variant, topology, use_compiler=False)
        if plan.memory.fits:
            estimated.append(Candidate(plan))
    if not estimated:
        raise errors.UserError(
            f"nothing fits {topology.name} by estimate, whatever the mesh, micro-batches and remat:"
            " take a larger slice"
        )
    estimated.sort(key=lambda one: one.rank)
    if not (compile.installed() and topology.chip.platform == "tpu"):
        return estimated[:count], len(estimated)
    compiled = []
    for one in estimated[: 3 * count]:
        if sum(done.plan.fits for done in compiled) == count:
            break
        compiled.append(Candidate(plan_lib.make(one.plan.config, topology, use_compiler=True)))
    fitting = [one for one in compiled if one.plan.fits] or compiled
    return sorted(fitting, key=lambda one: one.rank)[:count], len(estimated)
