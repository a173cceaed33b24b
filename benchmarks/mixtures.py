"""Checks that a mixture of sources has its shares and epochs, and the same batches on any job.

    python -m benchmarks.mixtures --source=textbooks=0.6=prepared/openstax \\
        --source=speeches=0.3=prepared/presidents --source=wiki=0.1=prepared/wikitext [--steps=18]

Each source is NAME=WEIGHT=FOLDER of prepared data. The batches are those of configs/mini.py:roberta
with these sources. The source of a row is not read from the loader, but found by the row's text:
the masks are undone, and the source is the one that has the most of the row's runs of 5 tokens.
1. Counts of the sources among 10,000 samples, in binomial standard deviations, at several places.
2. Five passes over the smallest source: the samples of each pass, how much of the source's text it
   shows, and the number of epochs that the run would log.
3. `benchmarks/processes.py` with these sources: checksums of all batches for 1, 2 and 4 processes,
   after kills, and after a change of the number of processes.
Exits with 1 if a check fails.
"""

import argparse
import itertools
import math
import sys
from collections.abc import Iterator

import numpy as np

from benchmarks import processes
from bertjax import config as config_lib
from bertjax import experiment, training_data
from bertjax import phases as phases_lib
from bertjax.data.prepared import sources as sources_lib
from bertjax.data.prepared import store

RUN = 5  # tokens
BATCH = 1_000
COUNTED = 10_000
STARTS = (0, 60_000, 1_000_000)  # numbers of first samples; blocks of the order have 65,536
PASSES = 5
SIGMAS = 3  # largest deviation of a count
FIRST, LATER = 0.001, 0.02  # largest share of tokens that the first and later passes lack or repeat


class Texts:
    """The runs of RUN tokens of each source, to find the source of a row by its text."""

    def __init__(self, datasets: dict[str, store.Dataset]):
        self.names = list(datasets)
        self.tokens = {}
        self._runs = {}
        for name, dataset in datasets.items():
            records = dataset.read(range(dataset.num_records))
            parts = [record.tokens.astype(np.int64) for record in records]
            self.tokens[name] = np.concatenate(parts)
            self._runs[name] = np.unique(_runs(self.tokens[name]))

    def sources(self, ids_BL: np.ndarray) -> np.ndarray:
        """Returns int64[B]: the index of the source of each row; -1 if two fit equally well."""
        runs_BR = _runs(ids_BL)
        votes = []
        for name in self.names:
            known = self._runs[name]
            place_BR = np.minimum(np.searchsorted(known, runs_BR), len(known) - 1)
            votes.append((known[place_BR] == runs_BR).sum(axis=1))
        ordered = np.sort(votes, axis=0)
        return np.where(ordered[-1] > ordered[-2], np.argmax(votes, axis=0), -1)


def _runs(ids: np.ndarray) -> np.ndarray:
    """Returns a number for each run of RUN ids along the last axis, below 2**16 each."""
    count = ids.shape[-1] - RUN + 1
    numbers = np.zeros((*ids.shape[:-1], count), np.uint64)
    for offset in range(RUN):  # a product with an odd number and a sum, modulo 2**64
        part = ids[..., offset : offset + count].astype(np.uint64)
        numbers = numbers * np.uint64(0x9E3779B97F4A7C15) + part
    return numbers


def text_of(batch: dict[str, np.ndarray]) -> np.ndarray:
    """Returns int32[B, L]: the ids of a batch before masking."""
    ids_BL = batch["input_ids"].copy()
    row_P, slot_P = np.nonzero(batch["masked_weights"])
    ids_BL[row_P, batch["masked_positions"][row_P, slot_P]] = batch["masked_ids"][row_P, slot_P]
    return ids_BL


class Run:
    """The batches of a run on the sources.

    data: how many epochs a step is, see `training_data`. texts: the texts of the sources.
    """

    def __init__(self, sources: dict[str, tuple[float, str]]):
        named = {name: {"path": path, "weight": weight} for name, (weight, path) in sources.items()}
        config = config_lib.load(f"{processes.ROOT}/configs/mini.py:roberta", {
            "data.sources": str(named), "batch_size": str(BATCH), "num_steps": "1000000",
        })  # fmt: skip
        train = sources_lib.open_split({name: path for name, (_, path) in sources.items()}, "train")
        vocabulary = train.load_tokenizer().vocabulary()
        run = experiment.Experiment(config)
        self.data = training_data.TrainingData(run, train, vocabulary)
        self.texts = Texts(dict(train.datasets))
        self.vocab_size = config.model.vocab_size
        (self.phase,) = phases_lib.of(config)
        self._stream = self.data.stream(self.phase)

    def rows(self, first: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yields the batches from sample `first` on: ids before masking, and their sources."""
        for step in itertools.count(first // BATCH):
            text_BL = text_of(self._stream.batch(step))
            yield text_BL, self.texts.sources(text_BL)


def shares(sources: dict[str, tuple[float, str]], run: Run, report: processes.Report) -> None:
    """Counts the sources of COUNTED samples at several places."""
    print(f"1. sources of {COUNTED:,} samples, found by their text")
    total = sum(weight for weight, _ in sources.values())
    for first in STARTS:
        batches = itertools.islice(run.rows(first), COUNTED // BATCH)
        found = np.concatenate([source_B for _, source_B in batches])
        cells, largest = [], 0.0
        for index, name in enumerate(run.texts.names):
            share, count = sources[name][0] / total, (found == index).sum()
            deviation = (count - COUNTED * share) / math.sqrt(COUNTED * share * (1 - share))
            largest = max(largest, abs(deviation))
            cells.append(f"{name} {count:,} ({deviation:+.2f})")
        unclear = (found < 0).sum()
        report.claim(
            largest <= SIGMAS and unclear <= COUNTED // 1000,
            f"from sample {first:,}: {', '.join(cells)}; unclear {unclear}",
        )


def passes(run: Run, report: processes.Report) -> None:
    """Reads until the smallest source has been passed PASSES times, and compares the passes."""
    name = min(run.texts.names, key=lambda name: len(run.texts.tokens[name]))
    index, samples = run.texts.names.index(name), run.data._num_samples(name, run.phase)
    print(f"2. {PASSES} passes over {name}")
    parts, unclear = [], 0
    for step, (text_BL, source_B) in enumerate(run.rows(0), 1):
        parts.append(text_BL[source_B == index])
        unclear += (source_B < 0).sum()
        logged = run.data.epochs(step)[name]
        if logged >= PASSES:
            break
    text_RL = np.concatenate(parts)
    epochs = len(text_RL) / samples
    report.claim(
        0 <= logged - epochs <= unclear / samples,
        f"after {step * BATCH:,} samples of the mixture, {unclear} of them unclear: "
        f"{len(text_RL):,} rows of {name}, {epochs:.3f} times its {samples:,} samples; logged: "
        f"{logged:.3f} epochs",
    )
    wanted = np.bincount(run.texts.tokens[name], minlength=run.vocab_size)
    for number in range(PASSES):
        part = text_RL[number * samples : (number + 1) * samples]
        shown = np.bincount(part.ravel(), minlength=run.vocab_size)
        shown[wanted == 0] = 0  # special tokens
        missing = np.maximum(wanted - shown, 0).sum() / wanted.sum()
        repeated = np.maximum(shown - wanted, 0).sum() / wanted.sum()
        report.claim(
            max(missing, repeated) <= (LATER if number else FIRST),
            f"pass {number + 1}: {len(part):,} samples, {len(np.unique(part, axis=0)):,} of them "
            f"different; {missing:.2%} of the tokens of {name} missing, {repeated:.2%} repeated",
        )


def main() -> int:
    """Runs all parts; returns 0 if all checks hold, else 1."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--source", action="append", metavar="NAME=WEIGHT=FOLDER", required=True,
                        help="prepared data; may be repeated")
    parser.add_argument("--steps", type=int, default=18,
                        help="steps of the runs in real processes; default: %(default)s")
    flags = parser.parse_args()
    sources = {
        name: (float(weight), path)
        for name, weight, path in (source.split("=", 2) for source in flags.source)
    }
    report = processes.Report()
    run = Run(sources)
    shares(sources, run, report)
    passes(run, report)
    print("3. real processes", flush=True)
    words = [f"--source={source}" for source in flags.source]
    failed = processes.main([*words, f"--steps={flags.steps}", "--parts=124"])
    return int(failed or not report.good)


if __name__ == "__main__":
    sys.exit(main())
