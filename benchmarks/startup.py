"""Measures the time from a command to its first step, without and with kept programs.

    python -m benchmarks.startup --output=startup/ --runs=2 -- \\
        pretrain --config=configs/demo.py --config.data.path=prepared/
    python -m benchmarks.startup --output=startup/ --runs=2 -- \\
        finetune --model=minilm/ --task=classification --train=snips.tsv

The words after `--` are a command of `bertjax`, without --workdir and --output. It is started
--runs times, each time in a new folder, and stopped after its first step. The first start has an
empty cache of programs and the later ones that of the first. Prints a row for each start:

* first step: seconds from the start of the process to the end of the first step
* CPU: seconds of processor time until then
* imports, tracing, lowering, compiling: seconds in which at least one thread did this; compiling
  includes reading from the cache
* programs: how many programs were compiled or read; cached: how many of them were read
* rest: seconds of everything else, such as reading and tokenizing, initial parameters, the step
"""

import argparse
import importlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any

from bertjax import files
from bertjax.runtime import backend

COLUMNS = (
    "first step", "CPU", "imports", "tracing", "lowering", "compiling", "rest", "programs",
    "cached",
)  # fmt: skip
KINDS = {
    "/jax/core/compile/jaxpr_trace_duration": "tracing",
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "lowering",
    "/jax/core/compile/backend_compile_duration": "compiling",
}
CACHE_HIT = "/jax/compilation_cache/cache_hits"


class FirstStepDone(BaseException):
    """Stops the command. Not an Exception, so that nothing catches it."""


def seconds_of(intervals: Sequence[tuple[float, float]]) -> float:
    """Returns the length of the union of intervals (start, end)."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(intervals):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def figures(
    started: float, imported: float, ended: float, spans: Mapping[str, Sequence[Any]], cached: int
) -> dict[str, float]:
    """Returns the figures of one start, without its CPU time.

    started, imported, ended: when the process began, had imported the command, and had finished
    its first step. spans: {kind: intervals in which this was done}. cached: how many programs were
    read.
    """
    result = {kind: seconds_of(spans[kind]) for kind in KINDS.values()}
    everything = [(started, imported), *(span for kind in KINDS.values() for span in spans[kind])]
    return result | {
        "first step": ended - started,
        "imports": imported - started,
        "rest": ended - started - seconds_of(everything),
        "programs": len(spans["compiling"]),
        "cached": cached,
    }


def child(argv: Sequence[str], started: float, result: str) -> None:
    """Runs the command `argv` in this process until its first step; writes its figures."""
    from bertjax import __main__ as cli
    from bertjax.runtime import compilation_cache

    compilation_cache.use()
    importlib.import_module(f"bertjax.commands.{argv[0]}")
    imported = time.time()

    import jax

    from bertjax import step_log

    spans: dict[str, list[tuple[float, float]]] = {kind: [] for kind in KINDS.values()}
    hits = []

    def on_duration(name: str, seconds: float, **_: Any) -> None:
        if name in KINDS:
            spans[KINDS[name]].append((time.time() - seconds, time.time()))

    jax.monitoring.register_event_duration_secs_listener(on_duration)
    jax.monitoring.register_event_listener(lambda name, **_: hits.append(name))

    def stop(self: Any, number: int, report: Any, *_: Any, **__: Any) -> None:
        jax.block_until_ready(report)
        row = figures(started, imported, time.time(), spans, hits.count(CACHE_HIT))
        times = os.times()
        files.write_json(pathlib.Path(result), row | {"CPU": times.user + times.system})
        raise FirstStepDone

    step_log.StepLog.step = stop  # type: ignore[method-assign]
    try:
        cli.main([*argv])
    except FirstStepDone:
        os._exit(0)


def main(argv: Sequence[str] | None = None) -> None:
    """Starts the command several times and prints the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", required=True, type=pathlib.Path)
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--result", help=argparse.SUPPRESS)
    parser.add_argument("--started", type=float, help=argparse.SUPPRESS)
    parser.add_argument("command", nargs="+")
    flags = parser.parse_args(argv)
    if flags.result:
        child(flags.command, flags.started, flags.result)
        raise SystemExit("the command ended before its first step")
    flags.output.mkdir(parents=True, exist_ok=True)
    folder_flag = "workdir" if flags.command[0] == "pretrain" else "output"
    rows = []
    with tempfile.TemporaryDirectory(dir=flags.output) as folder:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("JAX_")}
        environment["XDG_CACHE_HOME"] = os.path.join(os.path.abspath(folder), "cache")
        environment.setdefault("GLIBC_TUNABLES", backend.memory_options())
        for number in range(flags.runs):
            result = os.path.join(folder, f"{number}.json")
            program = [sys.executable, "-m", "benchmarks.startup", f"--output={flags.output}"]
            program += [f"--started={time.time()}", f"--result={result}", "--", *flags.command]
            program += [f"--{folder_flag}={folder}/run{number}"]
            subprocess.run(program, env=environment, check=True)
            row = json.loads(pathlib.Path(result).read_text())
            name = f"{flags.command[0]}, {'warm' if number else 'cold'}"
            rows.append([name, *(f"{row[column]:.4g}" for column in COLUMNS)])
    for line in [["start", *COLUMNS], ["---", *["---:"] * len(COLUMNS)], *rows]:
        print(f"| {' | '.join(line)} |")


if __name__ == "__main__":
    main()
