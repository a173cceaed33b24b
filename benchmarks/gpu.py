"""Times train steps on a GPU beside compiled PyTorch, in calls of less than ten minutes.

    python -m benchmarks.gpu --output=gpu/ [--minutes=9] [--models=bert_large:32x512,...] \\
        [--torch_python=PYTHON]

The steps are those of train_step.py, in bfloat16, without dropout of the attention weights, which
the kernel does not have. "ours" computes attention plainly, and "ours, cudnn" by the kernel; T5,
which adds a bias to its scores, has no kernel. PyTorch's attention is the one that transformers
chooses by default, with flash attention where the model allows it: the rows have no padding, so it
gets no mask. transformers computes logits at every position, which is more work.

Each contender has the GPU for itself. "MFU" is the share of the peak, the best of ten matmuls of
8192 x 8192 in either library, that the step's own model FLOPs make up. "ratio" is that of our
tokens/s to PyTorch's. Memory is the peak that the library has allocated.

A finished case leaves OUTPUT/CASE.json and is not run again. A case only begins if the time of the
slowest one so far is left, so run the same command again for the rest. Prints the table of all
finished cases, and writes it to OUTPUT/table.md. --device=cpu runs the same on a CPU, in float32,
without the kernel and without torch.compile, for tests.
"""

import argparse
import os
import pathlib
import statistics
import subprocess
import sys
import time

import jax

from benchmarks import train_step
from benchmarks import train_step_cases as cases
from bertjax import errors, files, schema

# The largest model at full length comes first: its MFU has a goal.
MODELS = (
    "bert_large:32x512", "bert_base:64x512", "modernbert_base:16x1024", "t5_v1_1_base:32x512",
    "bert_large:128x128", "bert_base:256x128",
)  # fmt: skip
CONTENDERS = {"cuda": ("ours", "kernel", "compiled"), "cpu": ("ours", "eager")}
DTYPES = {"cuda": "bfloat16", "cpu": "float32"}  # many CPUs are slow in bfloat16


def file_of(case: cases.Case, output: pathlib.Path) -> pathlib.Path:
    """Returns the file with the figures of a finished case."""
    return output / f"{case.name.replace(':', '-')}.json"


def run(chosen: list[cases.Case], output: pathlib.Path, flags: argparse.Namespace) -> list[str]:
    """Runs the cases that are not finished, as long as there is time; returns those that failed."""
    about = machine(flags.device)
    start, slowest, failed = time.perf_counter(), 0.0, []
    for case in chosen:
        begun = time.perf_counter()
        if file_of(case, output).exists():
            continue
        if begun - start + slowest > 60 * flags.minutes:
            errors.tell(f"no time is left for {case.name}: run the same command again")
            break
        try:
            rows = train_step.compare(case, DTYPES[flags.device], flags, device=flags.device)
        except errors.UserError as error:
            errors.tell(f"{case.name}: {errors.one_line(error)}")
            failed.append(case.name)
        else:
            train_step.add_comparisons(rows)
            files.write_json(file_of(case, output), {"machine": about, "rows": rows})
            print(table(chosen, output), flush=True)
        slowest = max(slowest, time.perf_counter() - begun)
    return failed


def machine(device: str) -> str:
    """Returns a line that says what the device is."""
    if device == "cpu":
        return train_step.machine(len(os.sched_getaffinity(0)))
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    line = subprocess.run(query, check=True, capture_output=True, text=True).stdout
    return line.partition("\n")[0].replace(",", " with driver")


def table(chosen: list[cases.Case], output: pathlib.Path) -> str:
    """Returns the finished cases in Markdown."""
    found = [
        schema.read_object(file_of(case, output), "remove it")
        for case in chosen
        if file_of(case, output).exists()
    ]
    rows = [row for content in found for row in content["rows"]]
    facts = [content["machine"] for content in found]
    facts += [row[key] for row in rows for key in ("library", "dtype")]
    lines = [
        f"{', '.join(dict.fromkeys(facts))}.",
        "",
        "| step | contender | work | tokens/s | +- | ratio | TFLOP | MFU | ms | memory, GB "
        "| compilation, s |",
        "|---|---|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        cells = [
            row["case"], train_step.LABELS[row["contender"]],
            "less" if row["less_work"] else "equal",
            f"{row['tokens_per_second']:,.0f}",
            f"{train_step.spread(row):.1%}",
            f"{row['ratio']:.2f}" if "ratio" in row else "",
            f"{row['flops'] / 1e12:.3g}", f"{row['of_peak']:.1%}",
            f"{1e3 * statistics.median(row['seconds']):,.1f}",
            f"{row['memory'] / 1e9:,.1f}", f"{row['compile_seconds']:.0f}",
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main(args: list[str] | None = None) -> int:
    """Runs the cases; returns 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", required=True, help="folder for the figures and the table")
    parser.add_argument("--models", default=",".join(MODELS), help="FAMILY_VARIANT:ROWSxLENGTH")
    parser.add_argument("--device", default="cuda", choices=tuple(CONTENDERS))
    parser.add_argument("--contenders", help="by default all of the device")
    parser.add_argument("--minutes", type=float, default=9.0, help="time for this call")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="seconds of a round")
    parser.add_argument("--smoke", action="store_true", help="two layers of width 64, for tests")
    parser.add_argument("--torch_python", default=sys.executable, help="PyTorch's interpreter")
    parser.set_defaults(flax_python=None)
    flags = parser.parse_args(args)
    allowed = CONTENDERS[flags.device]
    flags.contenders = flags.contenders or ",".join(allowed)
    for name in flags.contenders.split(","):
        errors.check(name in allowed, "contenders", name, f"one of {', '.join(allowed)}")
    jax.config.update("jax_platforms", "cpu")  # of this process, so that the workers have the GPU
    chosen = [
        cases.parse(text, smoke=flags.smoke, attention_dropout=False)
        for text in flags.models.split(",")
    ]
    output = pathlib.Path(flags.output)
    output.mkdir(parents=True, exist_ok=True)
    failed = run(chosen, output, flags)
    files.write_text(output / "table.md", table(chosen, output))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
