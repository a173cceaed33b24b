"""Plans a config on a slice of chips: whether it fits, how fast it can be and what it costs.

    plan = make(config, hardware.parse_topology("v5e-16"))
    plan.fits, plan.hours, plan.chip_hours

If libtpu is installed, the numbers for a TPU are taken from the compiled step; otherwise they are
estimates (`plan.memory`, `plan.roofline`). Times are lower bounds, because nothing is executed.
"""

import dataclasses
import functools
from typing import Any

import jax
import ml_collections

from bertjax import errors, plugins, sharding
from bertjax import experiment as experiment_lib
from bertjax import phases as phases_lib
from bertjax.planning import abstract, auto, compile, memory, roofline
from bertjax.runtime import hardware

USUAL_MFU = 0.4  # the MFU assumed for the training times in the files of configs/


@dataclasses.dataclass(frozen=True)
class PhasePlan:
    """The plan of one phase of a run; all numbers are per step.

    model_flops: the FLOPs of all devices, without recomputation. compiled: the compiler's figures;
    None if the compiler was not used. work: the work of one device. It comes from `compiled` if
    this is set and the step fits in memory; otherwise it is estimated.
    """

    phase: phases_lib.Phase
    model_flops: int
    work: roofline.Work
    roofline: roofline.Roofline
    compiled: compile.Compiled | None = None

    @property
    def steps(self) -> int:
        """Returns the number of steps of the phase."""
        return self.phase.num_steps

    @property
    def tokens(self) -> int:
        """Returns the tokens per step, counted as in `bertjax pretrain`: batch size x length."""
        return self.phase.batch_size * self.phase.length

    @property
    def flops_ratio(self) -> float:
        """Returns the ratio of computed FLOPs, with recomputation, to model FLOPs."""
        return self.work.flops / self.work.model_flops

    @property
    def seconds(self) -> float | None:
        """Returns the lower bound on the seconds of a step; None if the chip's peak is unknown."""
        return self.roofline.step_s


@dataclasses.dataclass(frozen=True)
class Plan:
    """The plan of a whole run.

    config: the planned config, with mesh "auto" resolved. mesh: {axis: size} for config.mesh.
    memory: the estimate for the phase with the most activations. notes: the assumptions that were
    made.
    """

    config: ml_collections.ConfigDict
    topology: hardware.Topology
    mesh: dict[str, int]
    num_params: int
    dtype: str
    memory: memory.Memory
    phases: tuple[PhasePlan, ...]
    notes: tuple[str, ...] = ()

    @property
    def fits(self) -> bool:
        """Returns whether the run fits, by the compiler if it was used, else by the estimate."""
        verdicts = [phase.compiled.fits for phase in self.phases if phase.compiled]
        return all(verdicts) if verdicts else self.memory.fits

    @property
    def tokens(self) -> int:
        """Returns the number of tokens of the run."""
        return sum(phase.steps * phase.tokens for phase in self.phases)

    @property
    def flops(self) -> int:
        """Returns the model FLOPs of the run."""
        return sum(phase.steps * phase.model_flops for phase in self.phases)

    @property
    def hours(self) -> float | None:
        """Returns the lower bound on the run's hours; None if the chip's peak is unknown."""
        seconds = [phase.seconds for phase in self.phases]
        if None in seconds:
            return None
        return sum(p.steps * s for p, s in zip(self.phases, seconds, strict=True)) / 3600

    @property
    def usual_hours(self) -> float | None:
        """Returns the run's hours at USUAL_MFU, or at the lower bound if that is longer.

        None if the chip's peak is unknown.
        """
        peak = self.topology.chip.peak_flops
        if self.hours is None or not peak:
            return None
        hours = self.flops / (USUAL_MFU * peak * self.topology.num_devices) / 3600
        return max(hours, self.hours)


def make(
    config: ml_collections.ConfigDict,
    topology: hardware.Topology,
    *,
    use_compiler: bool | None = None,
) -> Plan:
    """Plans a config on a slice. The data need not exist.

    use_compiler: whether to compile the step; None means only for a TPU and if libtpu is installed.
    Raises UserError if the mesh does not fit the slice, or does not divide the batch, its sequences
    or the heads, or if `use_compiler` is True and libtpu is not installed.
    """
    chip = topology.chip
    config = config.copy_and_resolve_references()
    if config.mesh == "auto":
        config.mesh = auto.choose(
            config, topology.num_devices, chip.hbm_bytes, chip.platform, topology.num_slices, chip
        )
    hardware_slices = topology.num_slices if chip.platform == "tpu" else None
    sizes = sharding.mesh_sizes(config.mesh, topology.num_devices, hardware_slices)
    experiment_lib.check_mesh(config, abstract.mesh(sizes), chip.platform)
    if use_compiler is None:
        use_compiler = chip.platform == "tpu" and compile.installed()
    experiment = memory.experiment_on(config, chip.platform)
    phases = phases_lib.of(config)
    compiled = _compiled(phases, topology) if use_compiler else [None] * len(phases)
    return Plan(
        config=config,
        topology=topology,
        mesh=sizes,
        num_params=_num_params(experiment),
        dtype=experiment.model.config.dtype,
        memory=memory.estimate(config, sizes, topology),
        phases=tuple(
            _phase(phase, sizes, topology, step)
            for phase, step in zip(phases, compiled, strict=True)
        ),
        notes=tuple(_notes(config, topology, use_compiler)),
    )


def _compiled(
    phases: list[phases_lib.Phase], topology: hardware.Topology
) -> list[compile.Compiled]:
    """Returns the compiler's figures for each phase.

    Phases that differ only in rates, weight decay or sources share one compiled step.
    """
    steps: dict[tuple[Any, ...], compile.Compiled] = {}
    keys = []
    for phase in phases:
        config = ml_collections.FrozenConfigDict(phase.config)
        sizes = phase.batch_size, phase.forward_size, phase.length
        keys.append((*sizes, config.model, config.objective))
        if keys[-1] not in steps:
            errors.tell(
                f"compiling the step of {phase.batch_size:,} x {phase.length:,} tokens for "
                f"{topology.name} on mesh {config.mesh}; this takes up to several minutes"
            )
            steps[keys[-1]] = compile.compile_step(phase.config, topology)
    return [steps[key] for key in keys]


def _phase(
    phase: phases_lib.Phase,
    sizes: dict[str, int],
    topology: hardware.Topology,
    compiled: compile.Compiled | None,
) -> PhasePlan:
    experiment = memory.experiment_on(phase.config, topology.chip.platform)
    model_flops = phase.batch_size * experiment.flops_per_sequence(phase.length)
    work = roofline.work(phase, sizes, topology.chip.platform)
    if compiled and compiled.fits:
        # Kernels without a cost estimate count 0 FLOPs, so the model's FLOPs are a lower bound.
        min_flops = work.model_flops if compiled.silent_kernels else 0.0
        work = dataclasses.replace(
            work,
            flops=max(compiled.flops, min_flops),
            hbm_bytes=compiled.hbm_bytes,
            ici_bytes=compiled.ici_bytes,
            dcn_bytes=compiled.dcn_bytes,
        )
    return PhasePlan(phase, model_flops, work, work.roofline(topology.chip), compiled)


@functools.lru_cache(maxsize=16)
def _num_params(experiment: experiment_lib.Experiment) -> int:
    shapes = plugins.abstract_params(experiment.model)
    return sum(leaf.size for leaf in jax.tree.leaves(shapes))


def _notes(
    config: ml_collections.ConfigDict, topology: hardware.Topology, use_compiler: bool
) -> list[str]:
    notes = []
    if not use_compiler:
        notes.append("all numbers are estimates, nothing is compiled")
        if topology.chip.platform == "tpu" and not compile.installed():
            notes[-1] += f"; to use the TPU compiler: {compile.INSTALL}"
    for name, stand_in in abstract.stand_ins(config).items():
        notes.append(f"config.objective.{name} is not set: the plan assumes {stand_in.description}")
    if topology.num_slices > 1 and topology.chip.dcn_bandwidth:
        notes.append(
            f"a device sends at most {topology.chip.dcn_bandwidth / 1e9:g} GB/s to other slices: "
            f"docs.cloud.google.com/tpu/docs/{topology.chip.name}"
        )
    elif topology.num_slices > 1:
        notes.append(
            f"the bound ignores bytes sent to other slices: the bandwidth of {topology.chip.name} "
            "between slices is not published"
        )
    return notes
