"""Compares packed with padded rows: the loss, which must be equal, and tokens of text per second.

    python -m benchmarks.packing [--family=gpt2] [--length=128] [--mean=24]

The documents are synthetic, `mean` tokens long on average and at most half of `length`. The loss is
that of a model with fresh parameters over all documents, in both layouts. The speed is that of
training steps, taking turns, in tokens of text without padding. Exits with 1 if the losses differ.
"""

import argparse
import dataclasses
import statistics
import sys
import time
from typing import Any

import jax
import numpy as np

from bertjax import config as config_lib
from bertjax import experiment as experiment_lib
from bertjax import metrics, sharding
from bertjax import phases as phases_lib
from bertjax.data.batches import loader
from bertjax.data.prepared import store
from bertjax.data.tokenizers import vocabulary

VOCABULARY = 2000
BATCH_SIZE = 32


@dataclasses.dataclass
class MadeUp:
    """Records of short documents of random tokens, in memory."""

    records: list[store.Record]

    @property
    def num_records(self) -> int:
        """The number of records."""
        return len(self.records)

    @property
    def num_tokens(self) -> int:
        """The number of tokens in all records."""
        return sum(len(record.tokens) for record in self.records)

    def read(self, indices: np.ndarray) -> list[store.Record]:
        """Returns the records with these indices."""
        return [self.records[i] for i in indices]


def documents(count: int, mean: int, longest: int, seed: int = 0) -> MadeUp:
    """Returns documents of one sentence each, in records of 100 documents."""
    random = np.random.default_rng(seed)
    records = []
    for first in range(0, count, 100):
        sizes = np.minimum(1 + random.geometric(1 / mean, 100), longest).astype(np.uint32)
        records.append(
            store.Record(
                document_ids=np.arange(first, first + 100, dtype=np.uint64),
                sentences_per_document=np.ones(100, np.uint32),
                tokens_per_sentence=sizes,
                tokens=random.integers(5, VOCABULARY, int(sizes.sum())).astype(np.uint16),
            )
        )
    return MadeUp(records)


def words() -> vocabulary.Vocabulary:
    """Returns a vocabulary of five special tokens and otherwise ordinary ones."""
    specials = vocabulary.Specials(pad=0, unk=1, cls=2, sep=3, mask=4)
    ids = np.arange(VOCABULARY)
    above = vocabulary.sentinels_above(VOCABULARY)
    return vocabulary.Vocabulary(VOCABULARY, specials, ids < 0, ids < 5, above)


class Layout:
    """The model, training step and batches of one layout, packed or padded."""

    def __init__(self, family: str, length: int, data: MadeUp, *, packing: bool):
        config = config_lib.default(family, "mini")
        config.model.update(vocab_size=VOCABULARY + 100)
        for name in config.model:
            if name.endswith("dropout_rate"):
                config.model[name] = 0.0
        config.objective.packing = packing
        config.data.length, config.batch_size = length, BATCH_SIZE
        config.num_steps, config.optimizer.warmup_steps = 1_000, 10
        config.dtype = "float32"
        self.experiment = experiment_lib.Experiment(config)
        self.phase = phases_lib.of(config)[0]
        self.mesh = sharding.make_mesh(devices=jax.devices()[:1])
        self.data = data
        with jax.set_mesh(self.mesh):
            self.state = jax.jit(self.experiment.init_state)(jax.random.key(0))
            self.train_step = self.experiment.train_step(self.phase, self.mesh)
        self.stream = self.experiment.stream(data, words(), self.phase)
        self.rows = self.stream.samples_per_epoch

    def loss(self) -> tuple[float, float]:
        """Returns (mean, weight) of the main loss over all data, with the current parameters."""
        total = None
        step = self.experiment.eval_step()
        sampling, transform = self.experiment.sampling(self.phase.length, words())
        batches = loader.eval_batches(self.data, sampling, transform, batch_size=BATCH_SIZE, seed=0)
        with jax.set_mesh(self.mesh):
            for batch in batches:
                total = metrics.add(total, jax.device_get(step(self.state.params, batch)))
        name = next(iter(self.experiment.scales))
        return float(total[name][0] / total[name][1]), float(total[name][1])

    def steps(self, count: int, first: int) -> float:
        """Returns the seconds of `count` training steps on the batches from `first` on."""
        batches = [self.stream.batch(first + i) for i in range(count)]
        start = time.perf_counter()
        with jax.set_mesh(self.mesh):
            for batch in batches:
                self.state, report = self.train_step(self.state, batch)
                jax.block_until_ready(report["loss"])
        return time.perf_counter() - start


def main() -> int:
    """Prints the comparison; returns 1 if the losses differ by more than 1e-5, else 0."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--family", default="gpt2")
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--mean", type=int, default=24)
    parser.add_argument("--documents", type=int, default=4_000)
    parser.add_argument("--rounds", type=int, default=5)
    flags = parser.parse_args()
    data = documents(flags.documents, flags.mean, flags.length // 2)
    layouts: dict[str, Any] = {
        name: Layout(flags.family, flags.length, data, packing=name == "packed")
        for name in ("packed", "padded")
    }
    losses = {name: layout.loss() for name, layout in layouts.items()}
    seconds: dict[str, list[float]] = {name: [] for name in layouts}
    for layout in layouts.values():
        layout.steps(1, 0)
    for turn in range(flags.rounds):
        for name, layout in layouts.items():
            seconds[name].append(layout.steps(3, 1 + 3 * turn) / 3)
    print(f"{flags.family} mini, {flags.documents:,} documents, {flags.mean} tokens each, "
          f"rows of {flags.length}")  # fmt: skip
    speed = {}
    for name, layout in layouts.items():
        text = data.num_tokens / layout.rows * BATCH_SIZE
        speed[name] = text / statistics.median(seconds[name])
        print(f"  {name:<8}{layout.rows:>8,} rows, {text / BATCH_SIZE:6.1f} tokens of text a row, "
              f"{speed[name]:>8,.0f} a second, loss {losses[name][0]:.6f} "
              f"of {losses[name][1]:,.0f} predictions")  # fmt: skip
    difference = abs(losses["packed"][0] - losses["padded"][0])
    print(f"  packed / padded: {speed['packed'] / speed['padded']:.2f} times the tokens a second; "
          f"losses differ by {difference:.1e}")  # fmt: skip
    return int(difference > 1e-5)


if __name__ == "__main__":
    sys.exit(main())
