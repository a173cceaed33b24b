"""Trains one BERT with transformers and with bertjax: held-out loss over time, in a plot.

    python -m benchmarks.time_to_loss --input=openstax.jsonl --input=novels.jsonl \\
        --output=time_to_loss/ [--minutes=20] [--cores=0,1] [--races=transformers+best] \\
        [--dtype=float32] [--torch_python=PYTHON]

The contenders have the same text, tokens, WordPieces, model and time:

transformers   BertForMaskedLM in a loop of its own (without Trainer, which needs accelerate) with
               DataCollatorForLanguageModeling on full rows and fused AdamW, in bfloat16 autocast;
               --compile adds torch.compile; --torch_python is the Python that has PyTorch
same           `bertjax pretrain` with the same recipe, so the difference is speed
half           the same with half of the time, so its rate has fallen to 0 by then
best           `bertjax pretrain` with the best recipe found; all are in time_to_loss_config.py
modern         the same for a ModernBERT with as many parameters

The contenders of a race run at the same time, each on a core of its own with one thread: the first
one on the first of --cores. In the second race of the default, transformers has the other core,
which shows whether the cores are equal. Before the races each contender is timed for a few steps,
from which its number of steps is computed, so that its schedule ends with its time.

The clock is the CPU time of the process, from its start: imports, compilation and the saving of
models count, evaluation does not. With one thread and no other load it is the wall time, and other
load does not stop it. The wall time is in the table, too. A model is saved POINTS times, and scored
when all races are over, by one program for all, on the same masked tokens of held-out documents.

Existing results in --output are read, so the same command resumes. Writes table.md, losses.png and
a JSON file for each run.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from benchmarks import time_to_loss_config as configs
from benchmarks import time_to_loss_rows as rows_lib
from bertjax import plot
from bertjax.data.prepared import store
from bertjax.runtime import backend

ROOT = pathlib.Path(__file__).resolve().parent.parent


class Contender(NamedTuple):
    """A training. share: of the time that it gets."""

    recipe: str
    label: str
    color: str
    share: float = 1.0


CONTENDERS = {
    "transformers": Contender("same", "transformers", plot.GREY),
    "same": Contender("same", "bertjax, the same recipe", plot.TRAIN),
    "half": Contender("same", "bertjax, the same recipe, half of the time", plot.TRAIN, 0.5),
    "best": Contender("best", "bertjax, its best recipe", plot.HELDOUT),
    "modern": Contender("modern", "bertjax, ModernBERT", plot.REFERENCE),
}
RACES = "transformers+best,same+transformers"
POINTS, TIMED_STEPS, SAMPLES = 10, 20, 512
TICKS = os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Prepares the data, runs the races, scores all models, writes table and plot."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--input", action="append", required=True, help="corpus; may be repeated")
    parser.add_argument("--output", required=True, help="folder for data, runs and results")
    parser.add_argument("--minutes", type=float, default=20.0, help="CPU time of each contender")
    parser.add_argument("--cores", default="0,1", help="cores, one for each contender of a race")
    parser.add_argument("--races", default=RACES, help="contenders that run at the same time")
    parser.add_argument("--compile", action="store_true", help="torch.compile for transformers")
    parser.add_argument("--dtype", default="bfloat16", choices=("float32", "bfloat16"))
    parser.add_argument("--torch_python", default=sys.executable, help="Python with PyTorch")
    parser.add_argument("--timed_steps", type=int, default=TIMED_STEPS)
    flags = parser.parse_args()
    output = pathlib.Path(flags.output).resolve()
    prepare(flags.input, output)
    runs = []
    for number, race in enumerate(flags.races.split(","), start=1):
        names = race.split("+")
        cores = [int(core) for core in flags.cores.split(",")][: len(names)]
        runs += run_race(output, number, dict(zip(names, cores, strict=True)), flags)
    score_all(output, runs)
    text = table(runs)
    print(text)
    (output / "table.md").write_text(text)
    draw(runs, output / "losses.png")


def prepare(inputs: Sequence[str], output: pathlib.Path) -> None:
    """Trains the tokenizer, prepares the data, and writes its rows for PyTorch."""
    words = [f"--input={path}" for path in inputs]
    tokenizer, data, rows = output / "tokenizer", output / "prepared", output / "rows.npy"
    if not tokenizer.exists():
        bertjax("tokenizer", f"--vocab_size={configs.MODEL['vocab_size']}",
                f"--output={tokenizer}", *words)  # fmt: skip
    if not (data / "manifest.json").exists():
        bertjax("prepare", f"--tokenizer={tokenizer}", f"--output={data}",
                "--heldout_fraction=0.03", *words)  # fmt: skip
    if not rows.exists():
        np.save(rows, rows_lib.rows_of(data, "train", configs.LENGTH))


def bertjax(*words: str) -> None:
    """Runs the command line. Raises CalledProcessError if it fails."""
    subprocess.run([sys.executable, "-m", "bertjax", *words], check=True, cwd=ROOT)


def command(
    name: str, output: pathlib.Path, folder: pathlib.Path, steps: Sequence[int], every: int,
    flags: argparse.Namespace,
) -> list[str]:  # fmt: skip
    """Returns the command that trains a contender; it saves `folder`/checkpoints/STEP."""
    if name == "transformers":
        words = [f"--rows={output / 'rows.npy'}", f"--tokenizer={output / 'tokenizer'}",
                 f"--output={folder}", f"--num_steps={sum(steps)}", f"--every={every}",
                 f"--dtype={flags.dtype}", *["--compile"] * flags.compile]  # fmt: skip
        return [flags.torch_python, "-m", "benchmarks.time_to_loss_torch", *words]
    config = ",".join([f"{configs.__file__}:{CONTENDERS[name].recipe}", *map(str, steps)])
    return [sys.executable, "-m", "bertjax", "pretrain", f"--config={config}",
            f"--workdir={folder}", f"--config.data.path={output / 'prepared'}",
            f"--config.dtype={flags.dtype}",
            *(f"--config.checkpoint.{key}={every}" for key in ("every", "keep_every"))]  # fmt: skip


class Process:
    """A contender on a core of its own; `points` are the times at which its models were saved."""

    def __init__(self, words: Sequence[str], folder: pathlib.Path, core: int):
        threads = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "MKL", "OPENBLAS")}
        # Nothing that an earlier run has compiled; and the memory pages that bertjax chooses.
        own = {
            **threads, "JAX_ENABLE_COMPILATION_CACHE": "false", "JAX_PLATFORMS": "cpu",
            "TORCHINDUCTOR_CACHE_DIR": f"{folder}.inductor", "TORCHINDUCTOR_COMPILE_THREADS": "1",
            "GLIBC_TUNABLES": backend.memory_options(), "TOKENIZERS_PARALLELISM": "false",
        }  # fmt: skip
        self.folder, self.core = folder, core
        self.points: list[dict[str, float]] = []
        self._start = time.perf_counter()
        with open(f"{folder}.log", "w") as log:
            self._process = subprocess.Popen(
                words, cwd=ROOT, env={**os.environ, **own}, stdout=log, stderr=log,
                preexec_fn=lambda: os.sched_setaffinity(0, {core}),
            )  # fmt: skip

    def watch(self) -> bool:
        """Notes the models that were saved since the last call; returns whether it still runs."""
        state, cpu = self._usage()
        wall = time.perf_counter() - self._start
        known = {point["step"] for point in self.points}
        for step in sorted(saved_steps(self.folder) - known):
            self.points.append({"step": step, "cpu": cpu, "wall": wall})
        return state != "Z"

    def _usage(self) -> tuple[str, float]:
        """Returns the state of the process, "Z" after its end, and its CPU seconds."""
        stat = pathlib.Path(f"/proc/{self._process.pid}/stat").read_text()
        fields = stat.rpartition(")")[2].split()
        return fields[0], sum(map(int, fields[11:15])) / TICKS  # with those of its children

    def end(self) -> None:
        """Raises RuntimeError if the process has failed; kills it if it still runs."""
        if self._usage()[0] != "Z":
            self._process.kill()
        if self._process.wait():
            raise RuntimeError(f"a contender failed; see {self.folder}.log")


def saved_steps(folder: pathlib.Path) -> set[int]:
    """Returns the steps of the finished checkpoints."""
    checkpoints = folder / "checkpoints"
    names = os.listdir(checkpoints) if checkpoints.exists() else []
    return {int(name) for name in names if name.isdecimal()}


def run_all(processes: Sequence[Process]) -> None:
    """Watches processes until all have ended."""
    try:
        while any([process.watch() for process in processes]):
            time.sleep(0.1)
    finally:
        for process in processes:
            process.end()


def run_race(
    output: pathlib.Path, number: int, cores: dict[str, int], flags: argparse.Namespace
) -> list[dict[str, Any]]:
    """Runs contenders {name: core} at the same time; returns their results."""
    folders = {name: output / f"{number}-{name}" for name in cores}
    files = {name: output / f"{number}-{name}.json" for name in cores}
    if not all(file.exists() for file in files.values()):
        timings = measure(output, cores, flags)
        processes = {}
        for name, core in cores.items():
            seconds = 60 * flags.minutes * CONTENDERS[name].share
            steps = steps_for(name, timings[name], seconds)
            every = max(1, sum(steps) // POINTS)
            print(f"race {number}: {name} on core {core}, {steps} steps", flush=True)
            words = command(name, output, folders[name], steps, every, flags)
            processes[name] = Process(words, folders[name], core), steps
        run_all([process for process, _ in processes.values()])
        for name, (process, steps) in processes.items():
            result = {
                "race": number, "contender": name, "core": process.core, "steps": steps,
                "tokens": tokens(name, steps), **timings[name], "points": process.points,
            }  # fmt: skip
            files[name].write_text(json.dumps(result, indent=1))
    return [json.loads(file.read_text()) for file in files.values()]


def measure(
    output: pathlib.Path, cores: dict[str, int], flags: argparse.Namespace
) -> dict[str, dict[str, Any]]:
    """Returns `timing` of each contender; those that have none yet are timed at the same time.

    Each phase has twice --timed_steps steps; the first half includes compilation. The last phase
    has one step more, which includes the evaluation at the end of a run.
    """
    files = {name: output / f"timing-{name}.json" for name in cores}
    processes = {}
    for name in [name for name, file in files.items() if not file.exists()]:
        steps = [2 * flags.timed_steps] * len(configs.PHASES[CONTENDERS[name].recipe])
        steps[-1] += 1
        folder = output / f"timing-{name}"
        words = command(name, output, folder, steps, flags.timed_steps, flags)
        processes[name] = Process(words, folder, cores[name])
    run_all(list(processes.values()))
    for name, process in processes.items():
        files[name].write_text(json.dumps(timing(process.points)))
    return {name: json.loads(file.read_text()) for name, file in files.items()}


def timing(points: Sequence[dict[str, float]]) -> dict[str, Any]:
    """Returns "seconds" of a step of each phase, and "startup", what was not spent in steps.

    points: one in the middle and one at the end of each phase, and one at the end of the run.
    """
    *cpu, total = [point["cpu"] for point in points]
    count = points[0]["step"]
    seconds = [(b - a) / count for a, b in zip(cpu[::2], cpu[1::2], strict=True)]
    return {"startup": total - 2 * count * sum(seconds), "seconds": seconds}


def steps_for(name: str, timing: dict[str, Any], budget: float) -> list[int]:
    """Returns the number of steps of each phase that fit into `budget` seconds."""
    phases = configs.PHASES[CONTENDERS[name].recipe]
    left = max(budget - timing["startup"], 0.1 * budget)
    pairs = zip(phases, timing["seconds"], strict=True)
    return [max(POINTS, round(share * left / seconds)) for (share, _), seconds in pairs]


def tokens(name: str, steps: Sequence[int]) -> int:
    """Returns the number of tokens, with special ones and padding, that a run trains on."""
    recipe = CONTENDERS[name].recipe
    total, size, length = 0, configs.SAME["batch_size"], configs.LENGTH
    for count, (_, keys) in zip(steps, configs.PHASES[recipe], strict=True):
        size, length = keys.get("batch_size", size), keys.get("data.length", length)
        total += count * size * length
    return total


def score_all(output: pathlib.Path, runs: Sequence[dict[str, Any]]) -> None:
    """Adds "loss" to every point of every run."""
    data = output / "prepared"
    rows = rows_lib.rows_of(data, "heldout", configs.LENGTH)
    chosen = np.random.default_rng(rows_lib.SEED).permutation(len(rows))[:SAMPLES]
    vocabulary = store.open_dataset(data, "heldout").load_tokenizer().vocabulary()
    questions = rows_lib.mask(rows[np.sort(chosen)], vocabulary)
    for run in runs:
        folder = output / f"{run['race']}-{run['contender']}"
        for point in run["points"]:
            if "loss" not in point:
                model = folder / "checkpoints" / str(point["step"])
                point["loss"] = rows_lib.score(model, questions)
        (folder.with_name(f"{folder.name}.json")).write_text(json.dumps(run, indent=1))


def reached(points: Sequence[dict[str, float]], loss: float) -> float | None:
    """Returns the CPU seconds after which the loss is reached; None if it never is.

    Interpolates between two points.
    """
    before = None
    for point in points:
        if point["loss"] <= loss:
            if before is None:
                return point["cpu"]
            share = (before["loss"] - loss) / (before["loss"] - point["loss"])
            return before["cpu"] + share * (point["cpu"] - before["cpu"])
        before = point
    return None


def table(runs: Sequence[dict[str, Any]]) -> str:
    """Returns the results in Markdown; goals are the final losses of transformers' best run."""
    theirs = [run for run in runs if run["contender"] == "transformers"]
    goal = min((run["points"][-1] for run in theirs), key=lambda point: point["loss"], default=None)
    lines = ["| run | core | steps | tokens | tokens per CPU s | CPU min | wall min | final loss | "
             "CPU min to their final loss | of their time |", "|" + "---|" * 10]  # fmt: skip
    for run in runs:
        last = run["points"][-1]
        cells = [CONTENDERS[run["contender"]].label, str(run["core"]),
                 " + ".join(map(str, run["steps"])), f"{run['tokens'] / 1e6:.2f}M",
                 f"{run['tokens'] / last['cpu']:,.0f}", f"{last['cpu'] / 60:.1f}",
                 f"{last['wall'] / 60:.1f}", f"{last['loss']:.3f}"]  # fmt: skip
        seconds = reached(run["points"], goal["loss"]) if goal else None
        cells += ["never", ""] if seconds is None else [
            f"{seconds / 60:.1f}", f"{seconds / goal['cpu']:.0%}"
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def draw(runs: Sequence[dict[str, Any]], file: pathlib.Path) -> None:
    """Plots the held-out losses over the CPU time."""
    from matplotlib import rc_context  # only the plot needs it
    from matplotlib.figure import Figure

    with rc_context(plot.STYLE):
        figure = Figure(figsize=(8, 4.8), dpi=130, layout="constrained")
        axes = figure.add_subplot()
        for run in runs:
            contender = CONTENDERS[run["contender"]]
            minutes = [point["cpu"] / 60 for point in run["points"]]
            losses = [point["loss"] for point in run["points"]]
            style = "-" if run["race"] == 1 or run["contender"] != "transformers" else "--"
            label = f"{contender.label}, core {run['core']}"
            axes.plot(minutes, losses, style, marker="o", color=contender.color, label=label)
        axes.set_xlabel("minutes of CPU time, one core each")
        axes.set_ylabel("held-out MLM loss, nats per masked token")
        axes.set_title("Time to quality: the same text, model and time")
        axes.legend()
        figure.savefig(file)


if __name__ == "__main__":
    main()
