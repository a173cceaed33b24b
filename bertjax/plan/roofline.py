"""The least time that a step can take on a chip, and how it is reached without a compiler.

A device computes, moves bytes to and from its memory, and sends bytes to others. At best all three
go on at once, so a step takes at least as long as the slowest of them (Williams et al., "Roofline",
CACM 52(4), 2009). No latencies are counted and every link is taken as busy: a bound, no prediction.
"""

import dataclasses
import math
from collections.abc import Mapping

import ml_collections

from bertjax import config as config_lib
from bertjax import experiment as experiment_lib
from bertjax.plan import memory
from bertjax.runtime import hardware


@dataclasses.dataclass(frozen=True)
class Roofline:
    """Seconds of a step by each limit; None where the chip's figure is not known.

    compute_s, memory_s, ici_s, dcn_s: of matmuls, of memory traffic, of what is sent within a slice
    and between slices. mfu_bound: the model FLOPs of a step over what the chip could do in step_s.
    """

    compute_s: float | None
    memory_s: float | None
    ici_s: float | None
    dcn_s: float | None
    mfu_bound: float | None

    @property
    def terms(self) -> dict[str, float]:
        """The known limits by name."""
        found = {"compute": self.compute_s, "memory": self.memory_s,
                 "interconnect": self.ici_s, "network": self.dcn_s}  # fmt: skip
        return {name: seconds for name, seconds in found.items() if seconds is not None}

    @property
    def step_s(self) -> float | None:
        """The longest of them; None where even the compute peak is not known."""
        return None if self.compute_s is None else max(self.terms.values())

    @property
    def bound_by(self) -> str:
        """Which limit that is."""
        terms = self.terms
        return max(terms, key=terms.__getitem__) if self.compute_s is not None else "unknown"


def roofline(
    flops_per_device: float,
    hbm_bytes_per_device: float,
    ici_bytes_per_device: float,
    chip: hardware.Chip,
    *,
    dcn_bytes_per_device: float = 0.0,
    model_flops_per_device: float | None = None,
) -> Roofline:
    """The bound on a step in which a device computes, moves and sends this much.

    ici_bytes_per_device, dcn_bytes_per_device: bytes that a device sends, as `hardware.Chip` counts
    them. model_flops_per_device: without what is computed twice; None is flops_per_device.
    """

    def seconds(amount: float, per_second: float | None) -> float | None:
        return 0.0 if amount == 0 else amount / per_second if per_second else None

    useful = flops_per_device if model_flops_per_device is None else model_flops_per_device
    compute = flops_per_device / chip.peak_flops if chip.peak_flops else None
    line = Roofline(
        compute,
        seconds(hbm_bytes_per_device, chip.hbm_bandwidth),
        seconds(ici_bytes_per_device, chip.ici_bandwidth),
        seconds(dcn_bytes_per_device, chip.dcn_bandwidth),
        None,
    )
    if not line.step_s:
        return line
    return dataclasses.replace(line, mfu_bound=useful / chip.peak_flops / line.step_s)


@dataclasses.dataclass(frozen=True)
class Work:
    """What one device does in one step, by formula; bytes sent are those of ring algorithms."""

    model_flops: float
    flops: float
    hbm_bytes: float
    ici_bytes: float
    dcn_bytes: float

    def roofline(self, chip: hardware.Chip) -> Roofline:
        """The bound on a step that does it."""
        return roofline(
            self.flops, self.hbm_bytes, self.ici_bytes, chip,
            dcn_bytes_per_device=self.dcn_bytes, model_flops_per_device=self.model_flops,
        )  # fmt: skip


def work(
    config: ml_collections.ConfigDict,
    phase: config_lib.Phase,
    mesh_sizes: Mapping[str, int],
    topology: hardware.Topology,
) -> Work:
    """What a device does in a step of `phase`, estimated without a compiler.

    FLOPs: the model's, times what remat recomputes: "full" the forward pass, "dots" the products of
    attention, which have a batch dimension. Memory: weights read forward and backward in the
    compute type by each micro-batch; parameters, moments and gradients read and written by the
    optimizer; what the backward pass keeps, written and read. Sent, each by every micro-batch: over
    fsdp the weights gathered twice and the gradients scattered; over data the gradients summed,
    within a slice and then, in parts, between slices; over tensor the residual summed twice a layer
    forward and twice backward; over sequence keys and values gathered, their gradients scattered.
    """
    experiment = memory.experiment_on(config, topology.chip.platform)
    sizes = {axis: mesh_sizes[axis] for axis in ("data", "fsdp", "tensor", "sequence")}
    devices = math.prod(sizes.values())
    micro_batches = config_lib.micro_batches(config, phase.batch_size)
    state = memory.state_bytes(experiment, sizes)
    width = 4 if experiment.model.config.dtype == "float32" else 2
    model_flops = phase.batch_size * experiment.flops_per_sequence(phase.length) / devices
    kept = memory.activation_bytes(config, phase, sizes, topology.chip.platform) * micro_batches

    # What a device uses whole over fsdp, in the compute type, and its float32 gradients.
    whole = memory.state_bytes(experiment, {**sizes, "fsdp": 1})
    gradients = whole["gradients"]
    read = (2 * whole["params"] + whole["frozen"]) / 4 * width
    optimizer = 2 * (state["params"] + state["optimizer"]) + 2 * state["gradients"]
    hbm = read * micro_batches + optimizer + 2 * kept

    # Slices hold whole copies of the state: the data axis goes over them.
    slices = topology.num_slices
    sizes["data"] = max(sizes["data"] // slices, 1)

    def share(count: int) -> float:
        return (count - 1) / count

    gathered = share(sizes["fsdp"]) * (read + gradients)
    summed = 2 * share(sizes["data"]) * state["gradients"]
    between_slices = 2 * share(slices) * state["gradients"] / sizes["data"]
    tokens = phase.batch_size * phase.length / devices * sizes["tensor"]
    residual = tokens * experiment.config.model.hidden_size * width * _depth(experiment)
    by_tensor = 4 * 2 * share(sizes["tensor"]) * residual
    by_sequence = 2 * 2 * (sizes["sequence"] - 1) * residual / sizes["tensor"]
    return Work(
        model_flops,
        model_flops * recomputed(experiment, phase.length),
        hbm,
        (gathered + summed) * micro_batches + by_tensor + by_sequence,
        between_slices * micro_batches,
    )


def recomputed(experiment: experiment_lib.Experiment, length: int) -> float:
    """FLOPs of a step over those of the model: 1, or more by what remat makes twice.

    Forward is a third of a step. The products of attention are the part of it that grows with the
    square of the length, which is how they are told from the others.
    """
    policy = experiment.config.remat
    if policy == "none":
        return 1.0
    if policy == "full":
        return 4 / 3
    at, twice = (experiment.flops_per_sequence(n * length) for n in (1, 2))
    return 1.0 + max(twice - 2 * at, 0) / (2 * at) / 3


def _depth(experiment: experiment_lib.Experiment) -> float:
    """Layers of the model; a decoder that reads an encoder has three sums a layer, not two."""
    fields = experiment.config.model
    decoder = 1.5 * fields.num_decoder_layers if "num_decoder_layers" in fields else 0.0
    return fields.num_layers + decoder
