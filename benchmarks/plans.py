"""Compiles the configs for TPUs: whether they fit, FLOPs, traffic, collectives, lower bounds.

    python -m benchmarks.plans configs --output=plans/ [--only=bert_base --only=t5_small]
    python -m benchmarks.plans large --output=plans/
    python -m benchmarks.plans scaling --output=plans/ [--mesh=fsdp:8]
    python -m benchmarks.plans slices --output=plans/

configs: every file of configs/ on the topology that it names. large: BERT-large and T5-3b on
v5e-256 and v5p-128. scaling: BERT-large on 8 to 256 chips with the same rows per chip. slices:
ModernBERT-base and BERT-large on two slices of 256 chips. Needs libtpu but no TPU; takes about a
minute per model. Each plan is cached as JSON in the output folder, so an interrupted run can be
continued. The tables are configs.md, large.md, scaling.md and slices.md there.

Bytes are per device. `ratio` is compiled FLOPs over model FLOPs, matmuls only. `whole` counts
warnings of involuntary full rematerialization. MFU and hours are the roofline's bounds: no step can
be faster. They are computed, not measured.
"""

import argparse
import json
import pathlib
import sys
from collections.abc import Iterable
from typing import Any

from bertjax import config as config_lib
from bertjax import errors
from bertjax.planning import cost, report
from bertjax.planning import plan as plan_lib
from bertjax.runtime import hardware

ROOT = pathlib.Path(__file__).resolve().parent.parent
ROWS_A_CHIP = 8
CHIPS = (8, 32, 128, 256)
COLUMNS = (
    "plan", "phase", "mesh", "remat", "micro", "fits", "args", "temps", "peak", "of HBM", "ratio",
    "HBM traffic", "sent", "to other slices", "whole", "bound by", "step", "MFU <=", "hours",
    "compiled in",
)  # fmt: skip


def jobs(table: str, flags: argparse.Namespace) -> Iterable[tuple[str, str, str, dict[str, str]]]:
    """Yields (name, config file, topology or "", overrides) for each plan of a table."""
    if table == "configs":
        for file in sorted((ROOT / "configs").glob("*.py")):
            yield file.stem, str(file), "", {}
    elif table == "large":
        for name in ("bert_large", "t5_3b"):
            for topology in ("v5e-256", "v5p-128"):
                yield f"{name}-{topology}", config_file(name), topology, on_slice(name, topology)
    elif table == "slices":
        main_phase = {"phases": "()", "num_steps": "353698", "micro_batch_size": "1536"}
        yield "modernbert_base", config_file("modernbert_base"), "2xv5e-256", main_phase
        long_phase = {"phase2.num_steps": "0", "data.length": "512", "batch_size": "4096"}
        for mesh in ("auto", "data:16,fsdp:16", "fsdp:256"):
            yield f"bert_large {mesh}", config_file("bert_large"), "2xv5e-256", {
                "mesh": mesh, "micro_batch_size": "0", **long_phase,
            }  # fmt: skip
    else:
        for chips in CHIPS:
            batch = str(ROWS_A_CHIP * chips)
            yield f"bert_large-{chips}", config_file("bert_large"), f"v5e-{chips}", {
                "mesh": f"{flags.mesh},data:-1" if flags.mesh else "data:-1",
                "phase2.num_steps": "0", "data.length": "512", "batch_size": batch,
                "micro_batch_size": "0",
            }  # fmt: skip


def config_file(name: str) -> str:
    """Returns the path of a file of configs/."""
    return str(ROOT / "configs" / f"{name}.py")


def on_slice(name: str, topology: str) -> dict[str, str]:
    """Returns the overrides that adapt a recipe to another slice: the mesh and batch sizes."""
    if name == "t5_3b":
        chips = hardware.parse_topology(topology).num_devices
        return {"mesh": f"fsdp:{chips // 4},tensor:4"}
    sizes = {"batch_size": "2048", "phase2.batch_size": "2048", "micro_batch_size": "0"}
    return {"mesh": "auto", **sizes}


def planned(
    name: str, file: str, topology: str, overrides: dict[str, str], folder: pathlib.Path
) -> dict[str, Any]:
    """Returns the plan of a job as JSON, made now or cached; {"error": ...} if it failed."""
    kept = folder / f"{name}.json"
    if not kept.exists():
        try:
            config = config_lib.load(file, overrides)
            where = hardware.parse_topology(topology or config.topology)
            plan = plan_lib.make(config, where, use_compiler=True)
        except errors.UserError as error:
            return {"error": str(error)}
        (folder / f"{name}.txt").write_text("\n".join(report.lines(plan)) + "\n")
        kept.write_text(json.dumps(report.to_json(plan), indent=2) + "\n")
    return json.loads(kept.read_text())


def rows(name: str, plan: dict[str, Any]) -> Iterable[tuple[str, ...]]:
    """Yields one table row per phase of a plan; a single row if it failed."""
    if "error" in plan:
        yield (name, plan["error"], *[""] * (len(COLUMNS) - 2))
        return
    limit = plan["estimated_memory"]["limit"]
    mesh = ",".join(f"{axis}:{size}" for axis, size in plan["mesh"].items() if size > 1)
    for number, phase in enumerate(plan["phases"], 1):
        said = phase["compiled"]
        step, hours = phase["step_seconds"], plan["hours"] if number == 1 else None
        yield (
            f"{name} on {plan['topology']}",
            f"{phase['batch_size']} x {phase['length']}",
            mesh or "1",
            plan["remat"],
            str(plan["micro_batch_size"] or "-"),
            "yes" if said["fits"] else said["error"] or "NO",
            report.binary(said["arguments"]),
            report.binary(said["temporaries"]),
            report.binary(said["peak"]),
            f"{said['peak'] / (said['capacity'] or limit):.0%}",
            f"{phase['flops_ratio']:.3f}" if said["fits"] else "",
            f"{report.si(phase['device']['hbm_bytes'])}B",
            f"{report.si(phase['device']['ici_bytes'])}B",
            f"{report.si(phase['device']['dcn_bytes'])}B",
            str(len(said["rematerialized"])),
            phase["roofline"]["bound_by"],
            f"{report.si(step)}s",
            f"{phase['roofline']['mfu_bound']:.0%}",
            "" if hours is None else f"{hours:,.1f}",
            f"{said['seconds']:.0f} s",
        )


def scaling(plans: dict[str, dict[str, Any]]) -> str:
    """Returns a Markdown table of a device's FLOPs, temporaries and bytes sent.

    Relative to those of the smallest slice; bytes sent also in absolute numbers.
    """
    lines = ["| chips | FLOPs | temporaries | sent | sent / smallest |", "|---|---|---|---|---|"]
    done = [plan for plan in plans.values() if "error" not in plan]
    first = None
    for plan in done:
        phase = plan["phases"][0]
        sizes = phase["compiled"]["flops"], phase["compiled"]["temporaries"]
        sent = phase["device"]["ici_bytes"]
        first = first or (*sizes, sent)
        ratios = [f"{now / then:.3f}" for now, then in zip(sizes, first, strict=False)]
        cells = (str(plan["num_chips"]), *ratios, f"{report.si(sent)}B", f"{sent / first[2]:.3f}")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def collectives(plans: dict[str, dict[str, Any]]) -> str:
    """Returns a Markdown table of the bytes a device sends per step, by collective and axes."""
    lines = ["| plan | phase | sent by a device |", "|---|---|---|"]
    for name, plan in plans.items():
        for number, phase in enumerate(plan.get("phases", ()), 1):
            sums: dict[str, int] = {}
            for one in phase["compiled"]["collectives"]:
                key = f"{one['kind']} over {'+'.join(one['axes']) or '-'}"
                sent = cost.Collective(**one).sent_bytes
                sums[key] = sums[key] + sent if key in sums else sent
            said = ", ".join(
                f"{key} {report.si(size)}B"
                for key, size in sorted(sums.items(), key=lambda i: -i[1])
            )
            lines.append(f"| {name} | {number} | {said or 'nothing'} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Makes the missing plans, and writes the table after each."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("table", choices=("configs", "large", "scaling", "slices"))
    parser.add_argument("--output", required=True, help="folder for the plans")
    parser.add_argument("--only", action="append", help="plan to make; may be repeated")
    parser.add_argument("--mesh", default="fsdp:8",
                        help="mesh of the scaling plans, without the axis data")
    flags = parser.parse_args()
    folder = pathlib.Path(flags.output) / flags.table
    folder.mkdir(parents=True, exist_ok=True)
    plans = {}
    for name, file, topology, overrides in jobs(flags.table, flags):
        if not flags.only or name in flags.only:
            plans[name] = planned(name, file, topology, overrides, folder)
            lines = ["| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
            for done, plan in plans.items():
                lines += ["| " + " | ".join(row) + " |" for row in rows(done, plan)]
            text = "\n".join(lines) + "\n\n" + collectives(plans)
            if flags.table == "scaling":
                text += "\n" + scaling(plans)
            (folder.parent / f"{flags.table}.md").write_text(text)
            print(lines[-1], flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
