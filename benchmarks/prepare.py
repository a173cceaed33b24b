"""Compares `bertjax prepare` with its lower bound, the tokenizer library alone, on the same text.

Checks two claims. Prepare (reading, sentences, tokens, records) reaches at least 0.7 of the rate in
MB/s of `tokenizers.encode_batch` alone, both on all cores. Its peak memory for ten times a corpus
is that for the corpus, within 20%.

    python benchmarks/prepare.py --input=eltec_eng.jsonl --tokenizer=vocab.txt [--times=10]

Every row of the table is a separate process. The times of prepare include the start of Python,
those of the library alone do not. Linux only (reads /proc).
"""

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

import tokenizers

from bertjax.data.prepared import parallel
from bertjax.data.tokenizers import tokenizer

ROOT = pathlib.Path(__file__).resolve().parent.parent
BATCH = 200  # documents per call: enough for all cores, few enough for the memory


def texts(path: str) -> list[str]:
    with open(path, encoding="utf-8") as file:
        return [json.loads(line)["text"] for line in file]


def encode_alone(path: str, tokenizer_file: str) -> float:
    """Returns the seconds that the library takes for the text, already read into memory."""
    library = tokenizers.Tokenizer.from_file(tokenizer_file)
    documents = texts(path)
    begin = time.perf_counter()
    for i in range(0, len(documents), BATCH):
        library.encode_batch(documents[i : i + BATCH], add_special_tokens=False)
    return time.perf_counter() - begin


def peaks(process: subprocess.Popen) -> dict[int, int]:
    """Returns the peak resident bytes of every process of a session, by process id.

    Polls until the session's leader `process` ends.
    """
    found: dict[int, int] = {}
    while process.poll() is None:
        for status in pathlib.Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = status.read_text().rpartition(")")[2].split()
                if int(fields[3]) == process.pid:
                    lines = (status.parent / "status").read_text().splitlines()
                    peak = next(line for line in lines if line.startswith("VmHWM"))
                    found[int(status.parent.name)] = int(peak.split()[1]) * 1024
            except (OSError, StopIteration):
                continue  # the process ended meanwhile
        time.sleep(0.05)
    return found


def measure(label: str, command: list[str], megabytes: float) -> dict:
    environment = os.environ | {"PYTHONPATH": os.fspath(ROOT), "TOKENIZERS_PARALLELISM": "true"}
    begin = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, *command],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    memory = peaks(process)
    wall = time.perf_counter() - begin
    output = process.communicate()[0]
    if process.returncode:
        raise SystemExit(f"{label} failed: {' '.join(command)}")
    seconds = float(output) if "--alone" in command else wall
    row = {
        "rate": megabytes / seconds,
        "seconds": seconds,
        "largest": max(memory.values()) / 1e6,
        "all": sum(memory.values()) / 1e6,
    }
    print(
        f"{label:<34} {megabytes:8.1f} {seconds:8.1f} {row['rate']:8.2f}"
        f" {row['largest']:12.0f} {row['all']:12.0f}",
        flush=True,
    )
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--input", required=True, help="JSON lines with a text field")
    parser.add_argument("--tokenizer", required=True,
                        help="folder or file of a WordPiece or BPE tokenizer")
    parser.add_argument("--workers", type=int, default=parallel.cpus(),
                        help="number of processes; default: one per CPU")
    parser.add_argument("--times", type=int, default=10,
                        help="factor by which the larger corpus is larger")
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.alone:
        print(encode_alone(flags.input, flags.tokenizer))
        return
    megabytes = sum(len(text.encode()) for text in texts(flags.input)) / 1e6
    print(f"{flags.workers} workers on {parallel.cpus()} CPUs")
    print(f"{'':<34} {'text MB':>8} {'s':>8} {'MB/s':>8} {'largest, MB':>12} {'together, MB':>12}")
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.load(flags.tokenizer).save(f"{folder}/tok")
        larger = f"{folder}/larger.jsonl"
        with open(larger, "wb") as target:
            for _ in range(flags.times):
                with open(flags.input, "rb") as source:
                    shutil.copyfileobj(source, target)

        def ours(path: str, name: str) -> list[str]:
            return [
                "-m", "bertjax", "prepare", f"--input={path}", f"--tokenizer={folder}/tok",
                f"--output={folder}/{name}", f"--workers={flags.workers}",
            ]  # fmt: skip

        alone = [__file__, "--alone", f"--input={flags.input}"]
        alone.append(f"--tokenizer={folder}/tok/tokenizer.json")
        before = measure("tokenizers.encode_batch alone", alone, megabytes)
        small = measure("bertjax prepare", ours(flags.input, "small"), megabytes)
        after = measure("tokenizers.encode_batch alone", alone, megabytes)
        large = measure(
            f"bertjax prepare, {flags.times} x", ours(larger, "large"), megabytes * flags.times
        )
    rate = small["rate"] / ((before["rate"] + after["rate"]) / 2)
    memory = large["largest"] / small["largest"]
    print(f"rate: {rate:.2f} of the library alone (claim: at least 0.7)")
    print(f"peak memory of the largest process: {memory:.2f} x (claim: 0.8 to 1.2)")


if __name__ == "__main__":
    main()
