"""Prepares corpora locally and with Apache Beam, and compares the shards and the rates.

    python -m benchmarks.beam --input=pretrain/ --tokenizer=vocab.txt [--part=filters]

There are two parts. Every row is a separate process; the seconds include its start.

    runners    the local runner, Beam's local runner, and Beam with one of its worker processes
               killed when half of the units are finished, and then the same command again. The
               manifests, which have the SHA-256 of every shard, must be equal.
    filters    the local runner with each filter and with all of them, and these with one worker:
               the manifests must be equal. `--decontaminate` looks for `--tests`, by default the
               ends of the last documents of the corpus.

On a busy machine, compare the CPU seconds, which are those of all processes of a row that have
ended regularly. Linux only (reads /proc).
"""

import argparse
import json
import os
import pathlib
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence

from benchmarks import corpora
from bertjax.data.prepared import manifest as manifest_lib
from bertjax.data.prepared import parallel
from bertjax.data.tokenizers import tokenizer

ROOT = pathlib.Path(__file__).resolve().parent.parent
PARTS = ("runners", "filters")
_TESTS = 20  # documents


def start(flags: Sequence[str]) -> subprocess.Popen:
    """Starts `bertjax prepare`."""
    return subprocess.Popen(
        [sys.executable, "-m", "bertjax", "prepare", *flags],
        env=os.environ | {"PYTHONPATH": os.fspath(ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(label: str, process: subprocess.Popen, begin: float, megabytes: float) -> None:
    """Waits for a process and prints a row. Raises SystemExit if it failed."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    errors = process.communicate()[1]
    if process.returncode:
        raise SystemExit(f"{label}: {errors}")
    seconds = time.perf_counter() - begin
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(
        f"{label:<44} {megabytes:8.1f} {seconds:8.1f} {cpu:8.1f} {megabytes / seconds:8.2f}",
        flush=True,
    )


def workers_of(pid: int) -> list[int]:
    """Returns the Beam workers (not their shells) among the descendants of a process."""
    parents, names = {}, {}
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            parents[int(folder.name)] = int(fields[1])
            names[int(folder.name)] = (folder / "cmdline").read_bytes().split(b"\0")
        except (OSError, IndexError):
            continue  # the process ended meanwhile
    found = []
    for worker, words in names.items():
        ancestor = worker
        while ancestor in parents and ancestor != pid:
            ancestor = parents[ancestor]
        if ancestor == pid and b"apache_beam.runners.worker.sdk_worker_main" in words:
            found.append(worker)
    return found


def kill_half_way(process: subprocess.Popen, output: pathlib.Path, units: int) -> str:
    """Kills a worker when half of the units are finished; returns the command's error line."""
    while process.poll() is None and len(list(output.glob("units/*.json"))) < units // 2:
        time.sleep(0.02)
    os.kill(workers_of(process.pid)[-1], signal.SIGKILL)
    message = process.communicate()[1].strip().splitlines()[-1]
    if process.returncode == 0 or (output / manifest_lib.FILE).exists():
        raise SystemExit("the command succeeded although a worker was killed: use more units")
    return message


def check(folders: Sequence[pathlib.Path]) -> None:
    """Raises SystemExit if the manifests are not equal, byte for byte."""
    manifests = {(folder / manifest_lib.FILE).read_bytes() for folder in folders}
    if len(manifests) > 1:
        raise SystemExit(f"the manifests differ: {folders}")
    manifest = manifest_lib.read(folders[0])
    shards = sum(len(split["shards"]) for split in manifest["splits"].values())
    if len(folders) > 1:
        print(f"    all {shards} shards are equal in {len(folders)} folders", flush=True)
    for reason, count in manifest["filtered"].items():
        print(f"    {reason}: {count['documents']:,} documents, {count['bytes'] / 1e6:.1f} MB")


def compare_runners(common: list[str], root: pathlib.Path, megabytes: float, workers: int) -> None:
    folders = [root / name for name in ("local", "beam", "killed")]
    flags = [[*common, f"--output={folder}", f"--workers={workers}"] for folder in folders]
    for i, runner in enumerate(("local", "beam")):
        begin = time.perf_counter()
        process = start([*flags[i], f"--runner={runner}"])
        finish(f"{runner}, {workers} workers", process, begin, megabytes)
    shards = manifest_lib.read(folders[0])["splits"]["train"]["shards"]
    begin = time.perf_counter()
    message = kill_half_way(start([*flags[2], "--runner=beam"]), folders[2], len(shards))
    print(f"    {message}")
    process = start([*flags[2], "--runner=beam"])
    finish("beam, one worker killed, and again", process, begin, megabytes)
    check(folders)


def compare_filters(common: list[str], root: pathlib.Path, megabytes: float, tests: str) -> None:
    filters = {
        "none": [],
        "lengths": ["--min_chars=500", "--max_chars=1000000"],
        "overlap with tests": [f"--decontaminate={tests}"],
        "exact duplicates": ["--deduplicate=exact"],
        "near duplicates": ["--deduplicate=near"],
    }
    filters["all"] = [flag for flags in filters.values() for flag in flags]
    for label, flags in filters.items():
        folders = []
        for workers in (1, parallel.cpus()) if label == "all" else (parallel.cpus(),):
            folders.append(root / f"{label.replace(' ', '_')}_{workers}")
            begin = time.perf_counter()
            output = [f"--output={folders[-1]}", f"--workers={workers}"]
            process = start([*common, *flags, *output])
            finish(f"filters: {label}, {workers} workers", process, begin, megabytes)
        check(folders)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--input", required=True, help="folder of corpora (.jsonl, .txt)")
    parser.add_argument("--tokenizer", required=True, help="folder or file of a tokenizer")
    parser.add_argument("--part", choices=PARTS, action="append", help="default: both")
    parser.add_argument("--tests", help="files of a test set; default: documents of the corpus")
    parser.add_argument("--workers", type=int, default=parallel.cpus(),
                        help="number of processes; default: one per CPU")
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        root = pathlib.Path(temporary)
        tokenizer.load(flags.tokenizer).save(f"{root}/tok")
        texts = [text for _, part in corpora.corpora(flags.input) for text in part]
        megabytes = sum(len(text.encode()) for text in texts) / 1e6
        tests = flags.tests or f"{root}/tests.jsonl"
        with open(f"{root}/tests.jsonl", "w") as file:
            file.writelines(json.dumps({"text": text[-2000:]}) + "\n" for text in texts[-_TESTS:])
        common = [f"--input={flags.input}", f"--tokenizer={root}/tok", "--text_split=blank"]
        print(f"{'':<44} {'text MB':>8} {'s':>8} {'CPU s':>8} {'MB/s':>8}")
        if "runners" in (flags.part or PARTS):
            compare_runners(common, root, megabytes, flags.workers)
        if "filters" in (flags.part or PARTS):
            compare_filters(common, root, megabytes, tests)


if __name__ == "__main__":
    main()
