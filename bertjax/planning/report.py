"""Formats a plan as a text report or as JSON, and the results of a search as text."""

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Any

from bertjax import errors
from bertjax.planning import compile, search
from bertjax.planning import cost as cost_lib
from bertjax.planning.plan import USUAL_MFU, PhasePlan, Plan

_LABEL = 26
_COLUMN = 20


_SEARCH_LINE = "{:>9}{:>9}{:>17}{:>13}  {:<10}{}"
SEARCH_HEADER = ("hours", "MFU <=", "HBM of a device", "FLOPs ratio", "by", "flags")


def lines(plan: Plan, price: float | None = None) -> Iterable[str]:
    """Yields the lines of the report. price: the price of a chip-hour, or None to omit the cost."""
    yield from _header(plan)
    yield ""
    for label, *cells in _rows(plan):
        yield f"{label:<{_LABEL}}" + "".join(f"{cell:>{_COLUMN}}" for cell in cells)
    for number, phase in enumerate(plan.phases, 1):
        yield from _collective_lines(phase, f" in phase {number}" if len(plan.phases) > 1 else "")
    yield ""
    yield from (f"{label:<{_LABEL}}{value}" for label, value in _totals(plan, price))
    yield from (f"note: {note}" for note in plan.notes)
    yield from _warnings(plan)


def table(plan: Plan, price: float | None = None) -> tuple[str, list[list[str]]]:
    """Returns (slice and model, rows of a table): a label and a cell for each phase, then totals.

    The collectives and notes are omitted. price: as in `lines`.
    """
    totals = [[label, value] for label, value in _totals(plan, price)]
    return "; ".join(_header(plan)), [*_rows(plan), *totals]


def _rows(plan: Plan) -> list[list[str]]:
    """Returns rows of a label and a cell for each phase."""
    columns = [_column(plan, phase) for phase in plan.phases]
    labels = dict.fromkeys(label for column in columns for label in column)
    return [[label, *(column.get(label, "") for column in columns)] for label in labels]


def _header(plan: Plan) -> Iterable[str]:
    chip, topology, config = plan.topology.chip, plan.topology, plan.config
    peaks = [
        f"{si(chip.peak_flops)}FLOP/s" if chip.peak_flops else "",
        f"{binary(chip.hbm_bytes)} HBM" if chip.hbm_bytes else "",
        f"{si(chip.hbm_bandwidth)}B/s from it" if chip.hbm_bandwidth else "",
        f"{si(chip.ici_bandwidth)}B/s to others" if chip.ici_bandwidth else "",
    ]
    if topology.num_slices > 1 and chip.dcn_bandwidth:
        peaks[-1] += f" of its slice and {si(chip.dcn_bandwidth)}B/s to other slices"
    peaks = [peak for peak in peaks if peak] or ["peaks unknown"]
    chips = f"{topology.num_chips} chips, " if chip.devices_per_chip > 1 else ""
    yield (
        f"{topology.name}: {chips}{errors.count(topology.num_devices, 'device')} on "
        f"{errors.count(topology.num_hosts, 'host')}, each with {', '.join(peaks)}"
    )
    yield (
        f"{config.family}, {si(plan.num_params)} parameters, {plan.dtype}, mesh {config.mesh}, "
        f"remat {config.remat}, micro_batch_size {config.micro_batch_size}"
    )


def _column(plan: Plan, phase: PhasePlan) -> dict[str, str]:
    chip, work, bounds = plan.topology.chip, phase.work, phase.roofline
    cells = {
        "batch x length": f"{phase.phase.batch_size:,} x {phase.phase.length:,}",
        "steps": f"{phase.steps:,}",
        **(_compiled(phase.compiled, chip.hbm_bytes) if phase.compiled else _estimated(plan)),
        "model FLOPs of a step": si(phase.model_flops),
        "FLOPs / model FLOPs": f"{phase.flops_ratio:.3f}",
        "HBM traffic of a device": f"{si(work.hbm_bytes)}B",
    }
    if plan.mesh["slice"] > 1:
        cells["sent within the slice"] = f"{si(work.ici_bytes)}B"
        cells["sent to other slices"] = f"{si(work.dcn_bytes)}B"
    else:
        cells["sent by a device"] = f"{si(work.ici_bytes)}B"
    terms = {name: s for name, s in bounds.terms.items() if s or name != "network"}
    cells |= {f"  {name}": f"{si(seconds)}s" for name, seconds in terms.items()}
    if phase.seconds:
        cells["a step takes at least"] = f"{si(phase.seconds)}s"
        cells["  bound by"] = bounds.bound_by
        cells["MFU at most"] = f"{bounds.mfu_bound:.1%}"
        cells["tokens/s at most"] = si(phase.tokens / phase.seconds)
    return cells


def _compiled(compiled: compile.Compiled, hbm_bytes: int | None) -> dict[str, str]:
    if compiled.error:
        return {"fits": "not compiled"}
    capacity = compiled.capacity or hbm_bytes
    share = f" ({compiled.peak / capacity:.0%})" if capacity else ""
    cells = {"fits": "yes" if compiled.fits else "NO"}
    if compiled.fits:
        cells |= {
            "  arguments": binary(compiled.arguments),
            "  temporaries": binary(compiled.temporaries),
            "  program": binary(compiled.code),
        }
    return cells | {"  peak of a device": binary(compiled.peak) + share}


def _estimated(plan: Plan) -> dict[str, str]:
    estimate = plan.memory
    share = f" ({estimate.total / estimate.limit:.0%})" if estimate.limit else ""
    return {
        "fits (longest phase)": ("yes" if estimate.fits else "NO") if estimate.limit else "unknown",
        "  state": binary(estimate.params + estimate.optimizer + estimate.frozen),
        "  gradients": binary(estimate.gradients),
        "  activations": binary(estimate.activations + estimate.workspace),
        "  total of a device": binary(estimate.total) + share,
    }


def _collective_lines(phase: PhasePlan, suffix: str) -> Iterable[str]:
    if not (phase.compiled and phase.compiled.collectives):
        return
    yield ""
    yield f"collectives of a step{suffix}: count x bytes of the array, bytes sent by a device"
    for collective in merged(phase.compiled.collectives):
        axes = "+".join(collective.axes) or "-"
        size = f"{collective.count:,} x {si(collective.bytes)}B"
        yield f"  {collective.kind:<20}over {axes:<14}{collective.group:>6} devices{size:>22}" + (
            f"{si(collective.sent_bytes):>12}B"
        )


def merged(collectives: Sequence[cost_lib.Collective]) -> list[cost_lib.Collective]:
    """Merges collectives of the same kind, axes and group size, by descending bytes sent.

    The `bytes` of a merged Collective are the mean over its runs.
    """
    groups: dict[cost_lib.Collective, list[cost_lib.Collective]] = {}
    for collective in collectives:
        key = dataclasses.replace(collective, bytes=0, count=1)
        groups.setdefault(key, []).append(collective)
    result = []
    for key, members in groups.items():
        count = sum(collective.count for collective in members)
        mean = sum(collective.count * collective.bytes for collective in members) // count
        result.append(dataclasses.replace(key, bytes=mean, count=count))
    return sorted(result, key=lambda collective: -collective.sent_bytes)


def _totals(plan: Plan, price: float | None) -> Iterable[tuple[str, str]]:
    ratio = plan.tokens / plan.num_params
    yield ("run", f"{si(plan.tokens)} tokens, {ratio:,.1f} a parameter, {si(plan.flops)}FLOPs")
    for label, hours in (
        ("at the bound", plan.hours),
        (f"at an MFU of {USUAL_MFU}", plan.usual_hours),
    ):
        if hours is None:
            yield (label, "unknown: the peak FLOP/s of the chip is not in the table")
        else:
            chip_hours = hours * plan.topology.num_chips
            money = "" if price is None else f", {chip_hours * price:,.2f} at {price:g} each"
            yield (label, f"{_decimal(hours)} hours, {_decimal(chip_hours)} chip-hours{money}")


def _warnings(plan: Plan) -> Iterable[str]:
    for phase in plan.phases:
        if phase.compiled is None:
            continue
        yield from (f"warning: {text}" for text in phase.compiled.rematerialized)
        if phase.compiled.error:
            yield f"error: not compiled: {phase.compiled.error}"
        if phase.compiled.open_loops:
            yield f"warning: {phase.compiled.open_loops} loops of unknown length are counted once"
        if phase.compiled.silent_kernels:
            ratio = phase.compiled.flops / phase.work.model_flops
            yield (
                f"note: {phase.compiled.silent_kernels} kernel calls do not report their FLOPs; "
                f"the other FLOPs are {ratio:.3f} of the model's"
            )
    if not plan.fits:
        yield "it does not fit: --search looks for a mesh, micro-batch size and remat that fit"


def cost(plan: Plan, price: float | None) -> float | None:
    """Returns the price of the run at the lower bound on its hours; None if either is unknown.

    price: the price of one chip for one hour.
    """
    if plan.hours is None or price is None:
        return None
    return plan.hours * plan.topology.num_chips * price


def to_json(plan: Plan, price: float | None = None) -> dict[str, Any]:
    """Returns all numbers of a plan as a JSON object, in bytes, FLOPs, seconds and hours.

    price: the price of one chip for one hour. If it is None, "cost" is null.
    """
    chips = plan.topology.num_chips
    return {
        "topology": plan.topology.name,
        "num_devices": plan.topology.num_devices,
        "num_chips": chips,
        "mesh": plan.mesh,
        "remat": plan.config.remat,
        "micro_batch_size": plan.config.micro_batch_size,
        "dtype": plan.dtype,
        "num_params": plan.num_params,
        "tokens": plan.tokens,
        "tokens_per_param": plan.tokens / plan.num_params,
        "fits": plan.fits,
        "estimated_memory": dataclasses.asdict(plan.memory),
        "phases": [_phase_json(phase) for phase in plan.phases],
        "hours": plan.hours,
        "chip_hours": None if plan.hours is None else plan.hours * chips,
        "cost": cost(plan, price),
        "usual_mfu": USUAL_MFU,
        "usual_hours": plan.usual_hours,
        "notes": list(plan.notes),
    }


def _phase_json(phase: PhasePlan) -> dict[str, Any]:
    compiled = phase.compiled
    return {
        "start": phase.phase.start,
        "stop": phase.phase.stop,
        "length": phase.phase.length,
        "batch_size": phase.phase.batch_size,
        "model_flops": phase.model_flops,
        "flops_ratio": phase.flops_ratio,
        "device": dataclasses.asdict(phase.work),
        "roofline": dataclasses.asdict(phase.roofline) | {"bound_by": phase.roofline.bound_by},
        "step_seconds": phase.seconds,
        "tokens_per_second": phase.tokens / phase.seconds if phase.seconds else None,
        "compiled": dataclasses.asdict(compiled) | {"fits": compiled.fits} if compiled else None,
    }


def search_lines(candidates: Sequence[search.Candidate], num_fitting: int) -> Iterable[str]:
    """Yields lines with the best candidates of a search, best first.

    tried: the number of combinations that fit by estimate.
    """
    yield f"{num_fitting:,} combinations fit by estimate; the best of them:"
    yield _SEARCH_LINE.format(*SEARCH_HEADER)
    for candidate in candidates:
        yield _SEARCH_LINE.format(*search_row(candidate))


def search_row(candidate: search.Candidate) -> list[str]:
    """Returns the cells of a candidate, under SEARCH_HEADER."""
    plan = candidate.plan
    bound = min((phase.roofline.mfu_bound or 0.0 for phase in plan.phases), default=0.0)
    compiled = [phase.compiled for phase in plan.phases if phase.compiled]
    peak = max((step.peak for step in compiled), default=plan.memory.total)
    ratio = max(phase.flops_ratio for phase in plan.phases)
    return [
        "unknown" if plan.hours is None else f"{plan.hours:,.2f}",
        f"{bound:.1%}",
        binary(peak),
        f"{ratio:.3f}",
        ("compiler" if plan.fits else "NO ROOM") if compiled else "estimate",
        candidate.flags,
    ]


def _decimal(number: float) -> str:
    return f"{number:,.1f}" if number >= 100 else f"{number:.3g}"


def si(number: float) -> str:
    """Returns the number with an SI prefix and without a unit, such as "1.23 T" or "4.5 m"."""
    if not number:
        return "0 "
    rounded = float(f"{abs(number):.2e}")  # 999.9 becomes 1 k
    power = min(max(math.floor(math.log10(rounded) / 3), -3), 8)
    return f"{number / 1000**power:.3g} {'num kMGTPEZY'[power + 3].strip()}"


def binary(size: float) -> str:
    """Returns a size in bytes with a binary prefix (powers of 1024), such as "11.7 GiB"."""
    power = min(max(math.floor(math.log2(max(size, 1)) / 10), 0), 5)
    return (
        f"{size / 1024**power:.{1 if power else 0}f} {('', 'Ki', 'Mi', 'Gi', 'Ti', 'Pi')[power]}B"
    )
