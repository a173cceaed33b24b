"""Searches meshes, micro-batch sizes and remat policies for the fastest plan that fits a slice.

All combinations are estimated without a compiler. Then the best of them are compiled.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence

import ml_collections

from bertjax import errors
from bertjax import phases as phases_lib
from bertjax.models.common import layers
from bertjax.planning import auto, compile, memory
from bertjax.planning import plan as plan_lib
from bertjax.runtime import hardware

MAX_MICRO_BATCHES = 64
MIN_TOKENS = 2_048  # of a device in a micro-batch; fewer do not keep its matrix units busy


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A plan that fits by estimate."""

    plan: plan_lib.Plan

    @property
    def flags(self) -> str:
        """Returns mesh, micro-batch size and remat as flags for `bertjax pretrain`."""
        config = self.plan.config
        keys = ("mesh", "micro_batch_size", "remat")
        return " ".join(f"--config.{key}={config[key]}" for key in keys)

    @property
    def rank(self) -> tuple[float, float]:
        """Returns the key to sort by: the run's hours, then its summed time bounds.

        The sum is over all resources. Among equally fast plans, the plan with the lowest sum comes
        first, because its other resources have the most slack.
        """
        phases = self.plan.phases
        hours = self.plan.hours if self.plan.hours is not None else 0.0
        return hours, sum(phase.steps * sum(phase.roofline.terms.values()) for phase in phases)

    @property
    def tokens(self) -> int:
        """Returns how many tokens of a micro-batch a device has, in the phase with the fewest."""
        phases, mesh = phases_lib.of(self.plan.config), self.plan.mesh
        return min(memory.device_rows(phase, mesh) * phase.length for phase in phases)


def variants(
    config: ml_collections.ConfigDict, num_devices: int, num_slices: int = 1
) -> Iterator[ml_collections.ConfigDict]:
    """Yields copies of the config with every valid mesh, micro-batch size and remat policy.

    Micro-batch sizes divide the batches of all phases. Meshes are those of `auto.meshes`, except
    that an fsdp size that is not a power of two is yielded only if the size of data is 1.
    """
    batch_sizes = [phase.batch_size for phase in phases_lib.of(config)]
    for remat in layers.REMAT_POLICIES:
        for micro_batch_size in _micro_batch_sizes(batch_sizes):
            base = config.copy_and_resolve_references()
            base.remat, base.micro_batch_size = remat, micro_batch_size
            for mesh in auto.meshes(base, num_devices, num_slices):
                if _power_of_two(mesh["fsdp"]) or mesh["data"] == 1:
                    variant = base.copy_and_resolve_references()
                    variant.mesh = auto.text(mesh)
                    yield variant


def _micro_batch_sizes(batch_sizes: list[int]) -> list[int]:
    """Returns the micro-batch sizes to search: 0 (the whole batch) and divisors of the batches.

    These split the first phase's batch into 2, 4, 8 ... MAX_MICRO_BATCHES parts, and divide the
    batches of all phases.
    """
    counts = [2**n for n in range(1, MAX_MICRO_BATCHES.bit_length())]
    sizes = [batch_sizes[0] // count for count in counts if batch_sizes[0] % count == 0]
    return [0, *(size for size in sizes if all(batch % size == 0 for batch in batch_sizes))]


def _power_of_two(number: int) -> bool:
    return number & (number - 1) == 0


def run(
    config: ml_collections.ConfigDict, topology: hardware.Topology, count: int = 4
) -> tuple[list[Candidate], int]:
    """Returns (the best candidates, at most `count`; how many combinations fit by estimate).

    For a TPU, if libtpu is installed, candidates are compiled and ranked by the compiler's figures:
    those of `_to_compile`, until twice `count` fit, but no more than three times `count`.
    Candidates that do not fit according to the compiler are returned only if none fits. Raises
    UserError if no combination fits by estimate.
    """
    estimated = []
    for variant in variants(config, topology.num_devices, topology.num_slices):
        plan = plan_lib.make(variant, topology, use_compiler=False)
        if plan.memory.fits:
            estimated.append(Candidate(plan))
    if not estimated:
        raise errors.UserError(
            f"config.topology = {topology.name!r}: by estimate no combination of mesh, "
            "micro-batch size and remat fits: use a larger slice"
        )
    estimated.sort(key=lambda candidate: candidate.rank)
    if not (compile.installed() and topology.chip.platform == "tpu"):
        return estimated[:count], len(estimated)
    compiled = []
    for candidate in _to_compile(estimated)[: 3 * count]:
        if sum(candidate.plan.fits for candidate in compiled) == 2 * count:
            break
        compiled.append(
            Candidate(plan_lib.make(candidate.plan.config, topology, use_compiler=True))
        )
    fitting = [candidate for candidate in compiled if candidate.plan.fits] or compiled
    return sorted(fitting, key=lambda candidate: candidate.rank)[:count], len(estimated)


def _to_compile(estimated: Sequence[Candidate]) -> list[Candidate]:
    """Returns all candidates, those first for which a compilation is worth its time.

    estimated: the best first. Every second one is, as long as there are any, the best without remat
    of another micro-batch size, the smallest first. The estimate ranks them too low: it does not
    know that activations of small micro-batches stay in the vector memory of a TPU core. In BERT
    mini, sixteen of them move 38% of the bytes that two move (benchmarks/README.md, section
    plans.py).
    """
    by_size: dict[float, Candidate] = {}
    for candidate in estimated:
        config = candidate.plan.config
        if config.remat == "none" and candidate.tokens >= MIN_TOKENS:
            by_size.setdefault(config.micro_batch_size or math.inf, candidate)
    sizes = [by_size[size] for size in sorted(by_size)]
    turns = itertools.chain.from_iterable(itertools.zip_longest(estimated, sizes))
    return list({candidate.flags: candidate for candidate in turns if candidate}.values())
