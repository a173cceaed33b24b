"""Injects faults into bertjax (machine, files, network clients) and counts how many it survives.

    python -m benchmarks.faults --output=faults/ [--seed=0] [--jobs=2] [--only=kill/prepare]
    python -m benchmarks.faults --output=again/ --seed=0 --only=kill/prepare --trial=17

A scenario is a kind of fault and its target; trial I of a scenario depends only on the seed, the
scenario's name and I. GOAL has the number of trials of each scenario; --count=N lowers it to N.
Results are appended to OUTPUT/results.jsonl; a second call runs what is missing there, and --table
only prints. A trial counts as survived:

- kill at a file operation, SIGTERM: the same command, run again, produces the same files, bit for
  bit, and the same arrays, and leaves no other files.
- no space, an I/O error or a short write: the command prints one line and exits with code 2 or 75,
  and run again ends as above; or it exits with code 0 and the right files.
- a damaged file: the command prints one line and exits with code 2, or ends with code 0; for
  folders with checksums with the same result.
- a fuzzed input of a reader: the reader raises UserError or reads it.
- a command line: it prints one line and exits with code 2, or exits with code 0.
- strangers (unknown clients): the job starts, and its members receive each other's messages.
- members: after one is killed or frozen, all others exit with one line and code 75.

In every trial: no traceback, no hang (20 s more than twice the undisturbed time), memory under 6
GiB. Needs gcc and Linux. Exits with 1 if a trial failed.
"""

import argparse
import collections
import importlib
import json
import os
import pathlib
import random
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import time

from benchmarks import faults_child, faults_commands, faults_fuzz, faults_readers
from bertjax import __main__ as cli

FUZZED = 20_000 // len(faults_readers.READERS) + 1
GOAL = {
    "kill/tokenizer": 180, "kill/prepare": 280, "kill/pretrain": 180, "kill/finetune": 70,
    "kill/export": 145, "kill/import": 145,
    "write/tokenizer": 200, "write/prepare": 290, "write/pretrain": 110, "write/finetune": 60,
    "write/export": 170, "write/import": 170,
    "sigterm/tokenizer": 10, "sigterm/prepare": 20, "sigterm/pretrain": 30, "sigterm/finetune": 20,
    **{f"damage/{name}": 112 for name in faults_commands.DAMAGED},
    **{f"fuzz/{name}": FUZZED for name in faults_readers.READERS},
    "commands": 700,
    "strangers": 300,
    "members": 20,
}  # fmt: skip
SLICE = 100  # fuzzed inputs in one unit of work
ROOT = pathlib.Path(__file__).resolve().parent.parent


def members(rng: random.Random) -> tuple[str, str]:
    """Kills or freezes one process of a job of three; returns (what, complaint)."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.faults", "--member", port, str(process), "3"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
            env=os.environ | {"LD_PRELOAD": ""},
        )
        for process in range(3)
    ]  # fmt: skip
    fated, fate = rng.randrange(3), rng.choice([signal.SIGKILL, signal.SIGSTOP])
    what, wrong = f"{fate.name} to process {fated} of 3", ""
    try:
        started[fated].stdout.readline()
        time.sleep(rng.uniform(0, 0.5))
        started[fated].send_signal(fate)
        for i in {0, 1, 2} - {fated}:
            _, err = started[i].communicate(timeout=40)
            lines = [line for line in err.splitlines() if line.startswith("bertjax: ")]
            if started[i].returncode != 75 or len(lines) != 1 or "Traceback" in err:
                wrong = f"process {i}: exit code {started[i].returncode}, {lines or err[-200:]}"
    except subprocess.TimeoutExpired:
        wrong = "hang"
    finally:
        for process in started:
            process.kill()
            process.communicate()
    return what, wrong


def trials(scenario: str, seed: str, numbers: range, bench) -> list[tuple[int, str, str]]:
    """Runs trials of a scenario; returns [(number, what was done, complaint or "")]."""
    kind, _, name = scenario.partition("/")
    if kind == "fuzz":
        return faults_fuzz.fuzz(name, seed, numbers, bench)
    run = {
        "kill": lambda rng: bench.kill(name, rng),
        "write": lambda rng: bench.fault(name, rng),
        "sigterm": lambda rng: bench.sigterm(name, rng),
        "damage": lambda rng: bench.damage(name, rng),
        "commands": lambda rng: faults_fuzz.commands(bench, rng),
        "strangers": lambda rng: faults_fuzz.stranger(rng),
        "members": lambda rng: members(rng),
    }[kind]
    return [(number, *run(random.Random(f"{seed}/{number}"))) for number in numbers]


def work(output: pathlib.Path, worker: int, seconds: float) -> int:
    """Runs the slices read from stdin, one line of JSON each; prints their results."""
    for verb in cli.VERBS:
        importlib.import_module(f"bertjax.commands.{verb}")
    inputs = output / "inputs"
    if not inputs.exists():
        made = output / "inputs.part"
        shutil.rmtree(made, ignore_errors=True)
        made.mkdir(parents=True)
        faults_commands.write_inputs(made, faults_child.plan())
        done = faults_child.call(lambda: faults_readers.write_inputs(made), made / "log", 300)
        if done.code:
            raise RuntimeError(done.err)
        for path in made.glob("log.*"):
            path.unlink()
        made.rename(inputs)
    bench = faults_commands.Bench(inputs, output / f"worker{worker}", seconds)
    print("ready", flush=True)
    for line in sys.stdin:
        scenario, seed, first, last = json.loads(line)
        began = time.monotonic()
        try:
            done = trials(scenario, f"{seed}/{scenario}", range(first, last), bench)
        except Exception as error:
            done = [(first, "the benchmark itself failed", f"{type(error).__name__}: {error}")]
        took = (time.monotonic() - began) / max(1, len(done))
        for number, what, wrong in done:
            row = {"scenario": scenario, "seed": seed, "trial": number, "what": what,
                   "wrong": wrong, "seconds": round(took, 3)}  # fmt: skip
            print(json.dumps(row), flush=True)
        print("done", flush=True)
    return 0


def start(output: pathlib.Path, worker: int, seconds: float) -> subprocess.Popen:
    """Starts a worker with the interposed library, and waits until it is ready."""
    library = output / "faults.so"
    if not library.exists():
        faults_child.build(library)
    environment = os.environ | faults_child.environment(library, output / f"plan{worker}")
    environment |= {
        "JAX_PLATFORMS": "cpu", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1",
        "XLA_FLAGS": "--xla_backend_optimization_level=0", "OMP_NUM_THREADS": "1",
        "JAX_COMPILATION_CACHE_DIR": str(output / "compiled"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }  # fmt: skip
    command = [sys.executable, "-m", "benchmarks.faults", f"--output={output}",
               f"--worker={worker}", f"--seconds={seconds}"]  # fmt: skip
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment,
                               cwd=ROOT)  # fmt: skip
    if process.stdout.readline() != "ready\n":
        raise SystemExit("a worker did not start")
    return process


def table(results: pathlib.Path) -> int:
    """Prints the number of trials and each failure; returns the number of failures."""
    rows = {}
    if results.exists():
        for line in results.read_text().splitlines():
            row = json.loads(line)
            rows[row["scenario"], row["seed"], row["trial"]] = row
    tried, failed, took = (collections.Counter() for _ in range(3))
    for row in rows.values():
        tried[row["scenario"]] += 1
        failed[row["scenario"]] += bool(row["wrong"])
        took[row["scenario"]] += row["seconds"]
    print("| scenario | trials | survived | s per trial |\n|---|---|---|---|")
    for name in tried:
        survived = tried[name] - failed[name]
        print(f"| {name} | {tried[name]:,} | {survived:,} | {took[name] / tried[name]:.2f} |")
    print(f"| all | {tried.total():,} | {tried.total() - failed.total():,} | |\n")
    for row in rows.values():
        if row["wrong"]:
            print(f"--only={row['scenario']} --seed={row['seed']} --trial={row['trial']}\n"
                  f"    {row['what']}\n    {row['wrong']}")  # fmt: skip
    return failed.total()


def main() -> int:
    """Runs the missing trials and prints the table; returns 1 if a trial failed, else 0."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=pathlib.Path, help="folder for the results")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", action="append", help="scenario or kind to run; may be repeated")
    parser.add_argument("--count", type=int,
                        help="number of trials per scenario; default: the goal")
    parser.add_argument("--trial", type=int, help="number of the only trial to run")
    parser.add_argument("--seconds", type=float, default=20,
                        help="seconds after which a trial counts as hanging")
    parser.add_argument("--table", action="store_true", help="print the table only")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--member", nargs=3, help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.member:
        faults_fuzz.member(flags.member[0], *map(int, flags.member[1:]))
        return 0
    flags.output = flags.output.resolve()
    if flags.worker is not None:
        return work(flags.output, flags.worker, flags.seconds)
    results = flags.output / "results.jsonl"
    if not flags.table:
        flags.output.mkdir(parents=True, exist_ok=True)
        run(flags, results)
    return int(table(results) > 0)


def run(flags: argparse.Namespace, results: pathlib.Path) -> None:
    """Distributes the missing slices to the workers and appends their output to `results`."""
    known = set()
    if results.exists():
        for line in results.read_text().splitlines():
            row = json.loads(line)
            known.add((row["scenario"], row["seed"], row["trial"]))
    slices: list[tuple[str, int, int, int]] = []
    for name, goal in GOAL.items():
        if flags.only and not any(name == o or name.startswith(f"{o}/") for o in flags.only):
            continue
        count = goal if flags.count is None else min(flags.count, goal)
        numbers = range(count) if flags.trial is None else range(flags.trial, flags.trial + 1)
        size = SLICE if name.startswith("fuzz") else 10
        for first in range(numbers.start, numbers.stop, size):
            last = min(first + size, numbers.stop)
            if any((name, flags.seed, i) not in known for i in range(first, last)):
                slices.append((name, flags.seed, first, last))
    if not slices:
        return
    workers = [start(flags.output, i, flags.seconds) for i in range(flags.jobs)]
    selector = selectors.DefaultSelector()
    busy = 0
    for process in workers:
        selector.register(process.stdout, selectors.EVENT_READ, process)
        if slices:
            process.stdin.write(json.dumps(slices.pop(0)) + "\n")
            process.stdin.flush()
            busy += 1
    with results.open("a") as file:
        while busy:
            for key, _ in selector.select():
                process = key.data
                line = process.stdout.readline()
                while line and line != "done\n":
                    file.write(line)
                    file.flush()
                    line = process.stdout.readline()
                if line and slices:
                    process.stdin.write(json.dumps(slices.pop(0)) + "\n")
                    process.stdin.flush()
                    print(f"{len(slices)} slices left", file=sys.stderr)
                else:
                    selector.unregister(process.stdout)
                    process.stdin.close()
                    busy -= 1
    for process in workers:
        process.stdin.close()
        process.wait()


if __name__ == "__main__":
    sys.exit(main())
