"""Times train steps on the CPU beside transformers: on PyTorch, and its last Flax classes.

    python -m benchmarks.train_step [--models=bert_mini,t5_small:8x512] [--dtypes=bfloat16] \\
        [--torch_python=PYTHON] [--flax_python=PYTHON] [--json=FILE] [--table=FILE]

A step is forward, backward, clipping and AdamW, with each model's dropout and published objective
on random tokens: MLM with NSP for BERT and with SOP for ALBERT, replaced token detection for
ELECTRA, span corruption for T5 (a target is about 0.22 times as long as its input). bfloat16 is
autocast in PyTorch. MLM predicts 15% of the positions. transformers computes logits at every
position. We compute them at the predicted positions, which is less work; for equal work, the
contender "ours, every position" computes them at all. T5 and GPT-2 do equal work anyway. ELECTRA
has no such contender. The Flax classes of transformers 4.57 run if --flax_python names an
interpreter that has them (see train_step_flax.py); ELECTRA's pair and ModernBERT never had any.

Every contender runs in a process of its own, and all of a row are in memory at once. In each round,
the contenders of a row take turns, so that other load on the machine affects all of them. Columns:
median tokens/s of the rounds; half the range of the rounds; the ratio of our tokens/s to those of
the faster PyTorch (in "ours / flax" to those of the Flax class), the median of the rounds' ratios;
the same ratio by CPU time, which other load on the machine affects less; model FLOPs of a step,
matmuls only; the share of the peak, which is the best FLOP/s of a 2048 x 2048 matmul in that dtype
in either library; CPU time of a step over all threads; peak memory of the process; and the time of
the first step beyond that of a later one, which is compilation.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
from typing import Any

import numpy as np

from benchmarks import train_step_cases as cases
from bertjax import errors, experiment, files
from bertjax.runtime import backend

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
OURS = ("ours", "every", "kernel")
LESS_WORK = ("ours", "kernel")  # of encoders
TORCH = ("eager", "compiled")
CONTENDERS = ("ours", "every", *TORCH, "flax")  # on a CPU; "kernel" is that of gpu.py
DTYPES = ("float32", "bfloat16")
RATIOS = ("ratio", "cpu_ratio", "flax_ratio")
# {contender: the end of its module's name}
MODULES = dict.fromkeys(OURS, "ours") | dict.fromkeys(TORCH, "torch") | {"flax": "flax"}
LABELS = {
    "ours": "ours",
    "every": "ours, every position",
    "kernel": "ours, cudnn",
    "eager": "transformers, eager",
    "compiled": "transformers, compiled",
    "flax": "transformers 4, Flax",
}


class Worker:
    """A contender in a process of its own, which computes only during `run`."""

    def __init__(self, python: str, name: str, folder: pathlib.Path, dtype: str, device: str):
        module = f"benchmarks.train_step_{MODULES[name]}"
        self._process = subprocess.Popen(
            [python, "-m", module, str(folder), dtype, name, device],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1, cwd=REPOSITORY,
        )  # fmt: skip
        self.name = name
        self.seconds: list[float] = []  # wall time of a step, by round
        self.cpu_seconds: list[float] = []  # CPU time of a step, by round
        self.memory = 0  # bytes; on a GPU, those of the device
        try:
            self.about: dict[str, Any] = json.loads(self._line())
        except BaseException:
            self.close()
            raise

    def _line(self) -> str:
        line = self._process.stdout.readline()
        if not line:
            raise self._ended()
        return line

    def _ended(self) -> errors.UserError:
        code = self._process.wait()
        cause = ": it was killed, perhaps for lack of memory; give fewer --contenders"
        return errors.UserError(f"{self.name} ended with exit code {code}{cause * (code < 0)}")

    def run(self, seconds: float) -> None:
        """Runs steps for about `seconds`, at least one, and records their mean time."""
        count = max(1, round(seconds / self.about["step_seconds"]))
        try:
            print(count, file=self._process.stdin, flush=True)
        except BrokenPipeError:
            raise self._ended() from None
        wall, cpu, memory = self._line().split()
        self.seconds.append(float(wall))
        self.cpu_seconds.append(float(cpu))
        self.memory = int(memory)

    def close(self) -> None:
        """Ends the process."""
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()


def contenders(case: cases.Case, asked: list[str]) -> list[str]:
    """Returns those of the contenders `asked` that the case has."""
    exists = {"every": cases.can_predict_everywhere(case), "kernel": cases.has_kernel(case),
              "flax": cases.has_flax_class(case)}  # fmt: skip
    return [name for name in asked if exists.get(name, True)]


def write_case(case: cases.Case, folder: pathlib.Path) -> dict[str, int]:
    """Writes what the workers read; returns the FLOPs of a step of each contender."""
    (folder / "case.json").write_text(json.dumps(dataclasses.asdict(case)))
    (folder / "transformers.json").write_text(json.dumps(cases.transformers_configs(case)))
    np.savez(folder / "batch.npz", **cases.batch(case))
    flops = {}
    for every_position in (False, True):
        config = cases.config(case, "float32", every_position=every_position)
        flops[every_position] = cases.parts(experiment.Experiment(config, platform="cpu"))[1]
    return {name: flops[name not in LESS_WORK] for name in LABELS}


def compare(
    case: cases.Case, dtype: str, flags: argparse.Namespace, *, device: str = "cpu"
) -> list[dict[str, Any]]:
    """Times every contender of a row; returns the figures of each.

    device: cpu, where the contenders take turns, or cuda, where one runs after the other, so that
    each has the whole memory.
    """
    names, workers = contenders(case, flags.contenders.split(",")), []
    with tempfile.TemporaryDirectory() as folder:
        flops = write_case(case, pathlib.Path(folder))
        for group in [names] if device == "cpu" else [[name] for name in names]:
            workers += _timed(group, pathlib.Path(folder), dtype, flags, device)
    tokens = case.rows * sum(
        shape[0] for feature, (shape, _) in _features(case).items() if feature.endswith("input_ids")
    )
    return [
        {
            "case": case.name, "dtype": dtype, "contender": worker.name,
            "less_work": worker.name in LESS_WORK and cases.has_less_work(case),
            "tokens_per_second": tokens / statistics.median(worker.seconds),
            "flops": flops[worker.name], "memory": worker.memory,
            "seconds": worker.seconds, "cpu_seconds": worker.cpu_seconds,
            **worker.about,
        }
        for worker in workers
    ]  # fmt: skip


def _timed(
    names: list[str], folder: pathlib.Path, dtype: str, flags: argparse.Namespace, device: str
) -> list[Worker]:
    """Starts the workers, lets them run in turns, and ends them."""
    pythons = {"ours": sys.executable, "torch": flags.torch_python, "flax": flags.flax_python}
    workers = []
    try:
        for name in names:
            workers.append(Worker(pythons[MODULES[name]], name, folder, dtype, device))
        for _ in range(flags.rounds):
            for worker in workers:
                worker.run(flags.seconds)
    finally:
        for worker in workers:
            worker.close()
    return workers


def _features(case: cases.Case) -> dict[str, Any]:
    return cases.parts(experiment.Experiment(cases.config(case, "float32"), platform="cpu"))[0]


def add_comparisons(rows: list[dict[str, Any]]) -> None:
    """Adds "peak" and "of_peak" to each row, and ratios to ours.

    "ratio" and "cpu_ratio" are our speed divided by that of the faster PyTorch of the same case,
    "flax_ratio" by that of the Flax class, by CPU time.
    """
    peaks: dict[str, float] = {}
    for row in rows:
        peaks[row["dtype"]] = max(peaks.get(row["dtype"], 0.0), row["matmul"])
    for row in rows:
        row["peak"] = peaks[row["dtype"]]
        row["of_peak"] = row["flops"] / statistics.median(row["seconds"]) / row["peak"]
        if row["contender"] not in OURS:
            continue
        same = [o for o in rows if (o["case"], o["dtype"]) == (row["case"], row["dtype"])]
        for ratio, times, names in (
            ("ratio", "seconds", TORCH), ("cpu_ratio", "cpu_seconds", TORCH),
            ("flax_ratio", "cpu_seconds", ("flax",)),
        ):  # fmt: skip
            theirs = [other[times] for other in same if other["contender"] in names]
            if theirs:
                pairs = zip(min(theirs, key=statistics.median), row[times], strict=True)
                row[ratio] = statistics.median(their / our for their, our in pairs)


def spread(row: dict[str, Any]) -> float:
    """Returns half the range of the rounds as a share of their median."""
    seconds = row["seconds"]
    return (max(seconds) - min(seconds)) / 2 / statistics.median(seconds)


def table(rows: list[dict[str, Any]], machine: str) -> str:
    """Returns the rows in Markdown, below a line about the machine and the libraries."""
    libraries = ", ".join(dict.fromkeys(row["library"] for row in rows))
    peaks = {row["dtype"]: f"{row['peak'] / 1e9:.0f} GFLOP/s in {row['dtype']}" for row in rows}
    lines = [
        f"{machine}; {libraries}; peak {', '.join(peaks.values())}.",
        "",
        "| step | dtype | contender | work | tokens/s | +- | ours / best PyTorch | by CPU time "
        "| ours / flax | GFLOP | of peak | CPU s | memory, MB | compilation, s |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        cells = [
            row["case"], row["dtype"], LABELS[row["contender"]],
            "less" if row["less_work"] else "equal",
            f"{row['tokens_per_second']:,.0f}", f"{spread(row):.0%}",
            *(f"{row[key]:.2f}" if key in row else "" for key in RATIOS),
            f"{row['flops'] / 1e9:,.0f}", f"{row['of_peak']:.0%}",
            f"{statistics.median(row['cpu_seconds']):.2f}",
            f"{row['memory'] / 1e6:,.0f}", f"{row['compile_seconds']:.0f}",
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def machine(num_cores: int) -> str:
    """Returns a line that says what the CPU is."""
    info = pathlib.Path("/proc/cpuinfo")
    content = info.read_text() if info.exists() else ""
    lines = dict(line.partition(":")[::2] for line in content.splitlines())
    facts = {name.strip(): value.strip() for name, value in lines.items()}
    flags = set(facts.get("flags", "").split()) & {"avx512f", "avx512_bf16", "amx_bf16"}
    with_flags = f" ({', '.join(sorted(flags))})" if flags else ""
    model = facts.get("model name", "an unknown processor")
    return f"{errors.count(num_cores, 'core')} of {model}{with_flags}"


def main(args: list[str] | None = None) -> None:
    """Runs all rows; writes and prints the table after each."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--models",
        default=",".join(cases.SIZES),
        help="FAMILY_VARIANT[:ROWSxLENGTH], comma-separated",
    )
    parser.add_argument("--dtypes", default=",".join(DTYPES))
    parser.add_argument("--contenders", help=f"of {', '.join(CONTENDERS)}; default: all")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--seconds", type=float, default=3.0, help="seconds per contender and round"
    )
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--smoke", action="store_true", help="two layers of width 64, for tests")
    parser.add_argument("--torch_python", default=sys.executable, help="PyTorch's interpreter")
    parser.add_argument("--flax_python", help="interpreter with the Flax classes; default: without")
    parser.add_argument("--json", help="file for all figures")
    parser.add_argument("--table", help="file for the table in Markdown")
    flags = parser.parse_args(args)
    usual = CONTENDERS if flags.flax_python else CONTENDERS[:-1]
    flags.contenders = flags.contenders or ",".join(usual)
    for name, allowed in (("dtypes", DTYPES), ("contenders", CONTENDERS)):
        for value in getattr(flags, name).split(","):
            errors.check(value in allowed, name, value, f"one of {', '.join(allowed)}")
    chosen = [cases.parse(text, smoke=flags.smoke) for text in flags.models.split(",")]
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: flags.cores])
    about, rows = machine(flags.cores), []
    for case in chosen:
        for dtype in flags.dtypes.split(","):
            rows += compare(case, dtype, flags)
            add_comparisons(rows)
            if flags.json:
                files.write_json(pathlib.Path(flags.json), {"machine": about, "rows": rows})
            if flags.table:
                pathlib.Path(flags.table).write_text(table(rows, about))
            print(table(rows, about), flush=True)


if __name__ == "__main__":
    backend.start_with_kept_memory()
    main()
