"""Computes a lower bound on the time of a step, and estimates a step's work without a compiler.

A device computes, moves bytes to and from its memory, and sends bytes to other devices. At best all
three overlap, so a step takes at least as long as the slowest of them (Williams et al., "Roofline",
CACM 52(4), 2009). The bound is not a prediction: latencies are ignored, and all links are assumed
to be used at their full bandwidth.
"""

import dataclasses
import math
from collections.abc import Mapping

import ml_collections

from bertjax import experiment as experiment_lib
from bertjax import optimizer
from bertjax import phases as phases_lib
from bertjax.planning import memory
from bertjax.runtime import hardware

# The HBM traffic of activations, divided by the bytes that the forward pass saves: these are
# written once and read by the next operation and by the backward pass; some gradients are added.
# In steps that libtpu compiled, traffic without that of parameters and gradients is 3 to 3.6 times
# the saved bytes for BERT, RoBERTa, ALBERT and ELECTRA, up to 4.9 for T5, and 1.6 for GPT-2.
ACTIVATION_PASSES = 3.5


@dataclasses.dataclass(frozen=True)
class Roofline:
    """Lower bounds on the seconds of a step, one per resource; None if a figure is unknown.

    compute_s: for matmuls. memory_s: for HBM traffic. ici_s: for bytes sent within a slice. dcn_s:
    for bytes sent between slices. mfu_bound: the upper bound on the MFU, which is the model FLOPs
    of the step divided by the FLOPs that the chip can do in `step_s` seconds at its peak.
    """

    compute_s: float | None
    memory_s: float | None
    ici_s: float | None
    dcn_s: float | None
    mfu_bound: float | None

    @property
    def terms(self) -> dict[str, float]:
        """Returns {name: seconds} of the known bounds."""
        bounds = {"compute": self.compute_s, "memory": self.memory_s,
                 "interconnect": self.ici_s, "network": self.dcn_s}  # fmt: skip
        return {name: seconds for name, seconds in bounds.items() if seconds is not None}

    @property
    def step_s(self) -> float | None:
        """Returns the largest of the bounds on the time; None if the compute peak is unknown."""
        return None if self.compute_s is None else max(self.terms.values())

    @property
    def bound_by(self) -> str:
        """Returns the name of the largest bound on the time; "unknown" without a compute peak."""
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
    """Returns lower bounds on the time of a step, computed from the work of one device.

    hbm_bytes_per_device: bytes read and written. ici_bytes_per_device, dcn_bytes_per_device: bytes
    that a device sends, within a slice and between slices. model_flops_per_device: FLOPs without
    recomputation; None means flops_per_device.
    """

    def seconds(amount: float, per_second: float | None) -> float | None:
        return 0.0 if amount == 0 else amount / per_second if per_second else None

    model_flops = flops_per_device if model_flops_per_device is None else model_flops_per_device
    compute = flops_per_device / chip.peak_flops if chip.peak_flops else None
    bounds = Roofline(
        compute,
        seconds(hbm_bytes_per_device, chip.hbm_bandwidth),
        seconds(ici_bytes_per_device, chip.ici_bandwidth),
        seconds(dcn_bytes_per_device, chip.dcn_bandwidth),
        None,
    )
    if not bounds.step_s:
        return bounds
    return dataclasses.replace(bounds, mfu_bound=model_flops / chip.peak_flops / bounds.step_s)


@dataclasses.dataclass(frozen=True)
class Work:
    """The work of one device in one step.

    model_flops, flops: without and with recomputation and the optimizer. hbm_bytes: HBM traffic.
    ici_bytes, dcn_bytes: bytes sent by ring algorithms, within a slice and between slices.
    """

    model_flops: float
    flops: float
    hbm_bytes: float
    ici_bytes: float
    dcn_bytes: float

    def roofline(self, chip: hardware.Chip) -> Roofline:
        """Returns lower bounds on the time of a step that does this much work."""
        return roofline(
            self.flops, self.hbm_bytes, self.ici_bytes, chip,
            dcn_bytes_per_device=self.dcn_bytes, model_flops_per_device=self.model_flops,
        )  # fmt: skip


def work(
    phase: phases_lib.Phase,
    mesh_sizes: Mapping[str, int],
    platform: str = "tpu",
) -> Work:
    """Returns the work of a device in a step of `phase`, estimated without a compiler.

    platform: the jax platform of the devices: tpu, gpu or cpu.

    FLOPs: the model's, plus those of remat and of muon. Remat "full" recomputes the forward pass,
    and "dots" only the matrix products of attention, which have a batch dimension.

    HBM traffic: in each micro-batch, the weights are read in the forward and the backward pass, in
    the compute dtype; what is gathered over fsdp is also written. Gradients are written, and read
    and written again by every sum: over devices, and with several micro-batches into their total.
    The optimizer reads the gradients, and reads and writes parameters, their moving average and
    moments. The arrays that the forward pass saves cause ACTIVATION_PASSES times their bytes. The
    traffic of muon's products is not counted.

    Bytes sent by each micro-batch, in the compute dtype, along each mesh axis:
        fsdp: the weights are gathered twice, and the gradients are reduce-scattered. NOTE: so are
            vocabulary tables here. The compiled step gathers them once, in float32, and sends
            their gradients whole.
        tensor: the residual is summed twice per layer in the forward pass, and twice in the
            backward pass.
        sequence: keys and values are gathered, and their gradients are reduce-scattered.

    Bytes sent once in a step, in float32 if micro-batches are added up, else in the compute dtype:
        data: the gradients are summed within a slice.
        slice: then they are summed between slices. Each device sends a part of them, as large as
            the gradients divided by the number of devices that sum them within a slice.

    Once in a step, muon also gathers its momenta over fsdp and tensor, and sums the updates
    over all devices of a slice (`sharding.map_layers`), in the compute dtype.
    """
    experiment = memory.experiment_on(phase.config, platform)
    sizes = dict(mesh_sizes)
    devices, slices = math.prod(sizes.values()), sizes["slice"]
    slice_devices = devices // slices
    micro_batches = phase.micro_batches
    state = memory.state_bytes(experiment, sizes)
    width = 4 if experiment.model.config.dtype == "float32" else 2
    model_flops = phase.batch_size * experiment.flops_per_sequence(phase.length) / devices
    saved = memory.activation_bytes(phase, sizes, platform) * micro_batches

    # Parameters gathered over fsdp, and their gradients.
    gathered_state = memory.state_bytes(experiment, {**sizes, "fsdp": 1})
    weights = (2 * gathered_state["params"] + gathered_state["frozen"]) / 4 * width
    weight_passes = 2 if sizes["fsdp"] > 1 else 1
    gradients = gathered_state["gradients"] / 4 * width
    summed_gradients = state["gradients"] / 4 * (4 if micro_batches > 1 else width)
    updates = 2 * (state["params"] + state["optimizer"])
    # Written and added to the total in each micro-batch, summed over devices, read once.
    gradient_passes = (4 * micro_batches if micro_batches > 1 else 1) + 2 * (devices > 1) + 1
    hbm_bytes = (
        weight_passes * weights * micro_batches + updates
        + gradient_passes * state["gradients"] + ACTIVATION_PASSES * saved
    )  # fmt: skip

    def share(count: int) -> float:
        return (count - 1) / count

    fsdp_bytes = share(sizes["fsdp"]) * (weights + gradients)
    data_bytes = 2 * share(sizes["data"]) * summed_gradients
    dcn_bytes = 2 * share(slices) * summed_gradients / sizes["data"]
    tokens = phase.batch_size * phase.length / devices * sizes["tensor"]
    residual = tokens * experiment.config.model.hidden_size * width * _depth(experiment)
    tensor_bytes = 4 * 2 * share(sizes["tensor"]) * residual
    sequence_bytes = 2 * 2 * (sizes["sequence"] - 1) * residual / sizes["tensor"]
    muon_shapes = experiment.muon_shapes()
    muon_flops = sum(optimizer.muon_flops(shape, slice_devices) for shape in muon_shapes)
    momenta = width * sum(math.prod(shape) for shape in muon_shapes)
    muon_bytes = (share(sizes["fsdp"] * sizes["tensor"]) + 2 * share(slice_devices)) * momenta
    return Work(
        model_flops,
        model_flops * recompute_factor(experiment, phase.length) + muon_flops,
        hbm_bytes,
        fsdp_bytes * micro_batches + data_bytes + tensor_bytes + sequence_bytes + muon_bytes,
        dcn_bytes,
    )


def run_seconds(
    config: ml_collections.ConfigDict, mesh_sizes: Mapping[str, int], chip: hardware.Chip
) -> float:
    """Returns the estimated lower bound on the seconds of all steps of a run, without a compiler.

    Raises ValueError if the chip's peak is unknown.
    """
    total = 0.0
    for phase in phases_lib.of(config):
        seconds = work(phase, mesh_sizes, chip.platform).roofline(chip).step_s
        if seconds is None:
            raise ValueError(f"chip {chip.name!r}: its peak is unknown")
        total += phase.num_steps * seconds
    return total


def recompute_factor(experiment: experiment_lib.Experiment, length: int) -> float:
    """Returns the ratio of a step's FLOPs to the model's: above 1 if remat recomputes some.

    With remat "full" the forward pass, a third of a step, is computed twice. With "dots" only its
    attention products are; their FLOPs are the part that grows with the square of the length.
    """
    policy = experiment.config.remat
    if policy == "none":
        return 1.0
    if policy == "full":
        return 4 / 3
    flops, flops_at_double = (experiment.flops_per_sequence(n * length) for n in (1, 2))
    return 1.0 + max(flops_at_double - 2 * flops, 0) / (2 * flops) / 3


def _depth(experiment: experiment_lib.Experiment) -> float:
    """Returns the model's number of layers.

    A decoder layer with cross-attention counts as 1.5 layers, because it adds to the residual three
    times instead of twice.
    """
    fields = experiment.config.model
    decoder = 1.5 * fields.num_decoder_layers if "num_decoder_layers" in fields else 0.0
    return fields.num_layers + decoder
