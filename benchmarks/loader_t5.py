"""Compares batches of T5's span corruption with those of peers, in rows/s of one core.

    python benchmarks/loader_t5.py [--length=512] [--seqio_python=VENV/bin/python]

Ours is the complete loader from records to features: reading, cutting, shuffling, packing of texts
into rows, noise, padding. The peers only corrupt rows of text that are already cut to the right
size. All take turns in one run, and the rates divide by the CPU time of all threads. The table has
the median of the rounds; one of ours is an epoch. 1,000 records are about one window of text.

One peer is the published algorithm of T5 in plain NumPy, one row at a time, as data collators do
it: transformers has no such collator. With --seqio_python, a Python that has the packages seqio and
t5, the other peer is T5's own preprocessors (`loader_t5_seqio.py`).
"""

import argparse
import functools
import pathlib
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import numpy as np

from benchmarks import loader as benchmark
from bertjax.data.batches import mixture, spans
from bertjax.objectives import span_corruption

CONFIG = span_corruption.Config()
END, PAD = benchmark.SPECIALS.sep, benchmark.SPECIALS.pad
NUMPY, SEQIO = "NumPy, one row at a time", "t5 in seqio"


def random_segments(random: np.random.Generator, num_items: int, num_segments: int) -> np.ndarray:
    """Returns the sizes of segments of `num_items` items; all divisions are equally likely."""
    starts = np.arange(num_items - 1) < num_segments - 1
    random.shuffle(starts)
    return np.bincount(np.cumsum(np.append(False, starts)), minlength=num_segments)


def noise_mask(random: np.random.Generator, length: int) -> np.ndarray:
    """Returns bool[length], true at noise tokens: random_spans_noise_mask of T5."""
    num_noise = min(max(round(length * CONFIG.noise_density), 1), length - 1)
    num_spans = max(round(num_noise / CONFIG.mean_noise_span_length), 1)
    noise = random_segments(random, num_noise, num_spans)
    text = random_segments(random, length - num_noise, num_spans)
    starts = np.cumsum(np.stack([text, noise], axis=1).ravel())[:-1]
    is_start = np.zeros(length, np.int8)
    is_start[starts] = 1
    return np.cumsum(is_start) % 2 == 1


def with_sentinels(tokens: np.ndarray, mask: np.ndarray, sentinels: np.ndarray) -> np.ndarray:
    """Returns the tokens, with a sentinel in place of each run in the mask, and an EOS."""
    first = mask & ~np.append(False, mask[:-1])
    replaced = np.where(first, sentinels[np.cumsum(first) - 1], tokens)
    return np.append(replaced[first | ~mask], END)


def collate(
    rows: np.ndarray, lengths: tuple[int, int], sentinels: np.ndarray, random: np.random.Generator
) -> dict[str, np.ndarray]:
    """Returns a batch of corrupted rows, as collators for T5 in PyTorch and Flax make it."""
    inputs, targets = (np.full((len(rows), length), PAD, np.int32) for length in lengths)
    for number, row in enumerate(rows):
        mask = noise_mask(random, len(row))
        for padded, hidden in ((inputs, mask), (targets, ~mask)):
            corrupted = with_sentinels(row, hidden, sentinels)
            padded[number, : len(corrupted)] = corrupted
    decoder_inputs = np.full_like(targets, PAD)
    decoder_inputs[:, 1:] = targets[:, :-1]
    return {"input_ids": inputs, "targets": targets, "decoder_input_ids": decoder_inputs}


def seqio_child(python: str, rows: np.ndarray, numbers: list[int]) -> subprocess.Popen:
    """Starts the peer that needs another Python; returns it when it is ready."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "rows.npy"
        np.save(path, rows)
        script = pathlib.Path(__file__).with_name("loader_t5_seqio.py")
        child = subprocess.Popen(
            [python, script, path, *map(str, numbers)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        if child.stdout.readline() != "ready\n":
            raise SystemExit(f"{python}: cannot run {script.name}; it needs seqio and t5")
    return child


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--batch_size", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--records", type=int, default=1000, help="number of synthetic records")
    parser.add_argument("--seqio_python", help="a Python with seqio and t5; default: not compared")
    flags = parser.parse_args()

    dataset, words = benchmark.MadeUp(flags.records), benchmark.made_up_vocabulary()
    sampling = span_corruption.sampling(CONFIG, flags.length, words)
    transform = functools.partial(span_corruption.transform, CONFIG, flags.length, words)
    stream = benchmark.stream_of(dataset, sampling, seed=0)
    ours = mixture.Mixture(
        {"": stream}, mixture.Order({"": 1.0}, 0), transform, batch_size=flags.batch_size
    )
    tokens_length, targets_length = spans.random_spans_lengths(
        flags.length, CONFIG.noise_density, CONFIG.mean_noise_span_length
    )
    random = np.random.default_rng(0)
    num_rows = 2 * flags.batch_size
    rows = random.integers(1000, benchmark.VOCAB_SIZE, (num_rows, tokens_length), np.int32)

    def one_by_one() -> int:
        for start in range(0, num_rows, flags.batch_size):
            part = rows[start : start + flags.batch_size]
            collate(part, (flags.length, targets_length), words.sentinels, random)
        return num_rows

    contenders: dict[str, Callable[[], tuple[float, float]]] = {
        "bertjax, Mixture.batch": functools.partial(benchmark.timed, benchmark.epochs(ours)),
        NUMPY: functools.partial(benchmark.timed, one_by_one),
    }
    child = None
    if flags.seqio_python:
        child = seqio_child(
            flags.seqio_python, rows, [flags.length, targets_length, flags.batch_size]
        )

        def next_round() -> tuple[float, float]:
            child.stdin.write("\n")
            child.stdin.flush()
            clock, cpu = map(float, child.stdout.readline().split())
            return clock, cpu

        contenders[SEQIO] = next_round

    rates: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(flags.rounds + 1):
        for name, work in contenders.items():
            _, cpu = work()
            if turn:  # the first turn warms up
                rates[name].append(cpu)
    if child is not None:
        child.stdin.close()
        child.wait()

    print(f"span corruption, {flags.length} + {targets_length} tokens, rows/s of one core")
    first = statistics.median(rates["bertjax, Mixture.batch"])
    for name, values in rates.items():
        rate = statistics.median(values)
        print(f"{name:28}{rate:12,.0f}{first / rate:10.1f} times slower than ours")


if __name__ == "__main__":
    main()
