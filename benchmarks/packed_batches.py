"""Fine-tuning with packed rows and with rows padded to a few lengths: padding, programs, CPU time.

    JAX_ENABLE_COMPILATION_CACHE=0 python -m benchmarks.packed_batches --model=MODEL --data=DATA \\
        --dtype=bfloat16 [--tasks=wikigold,uner_ewt] [--steps=24]

The tasks are those of finetune.py, with its epochs. For each, prints the lengths of the rows of
train and dev, for each of which a program is compiled, the tokens of an epoch, padding included,
beside those of the text, and CPU seconds: to compile the train step and the prediction of dev, for
an epoch (the mean of STEPS steps, spread over the epoch), and for dev. Both kinds of batches take
turns, step by step. Parameters are trained, but nothing is kept.
"""

import argparse
import pathlib
import sys
import time
from typing import Any

import jax
import numpy as np

from benchmarks import finetune
from bertjax import sharding
from bertjax.artifact import loading
from bertjax.finetuning import batching, job, packed_batches, recipe
from bertjax.runtime import backend


class Contender:
    """One kind of batches, with its compiled programs."""

    def __init__(self, name: str, config: Any, mesh: Any, source: Any):
        self.name, self._seconds = name, []
        kind = {"packed": packed_batches.PackedBatches, "padded": lambda plain, *_: plain}[name]
        packed_batches.cheaper = kind  # type: ignore[assignment]
        self.job = job.make(config, source, mesh)
        self.state = self.job.first_state(0)
        start = time.process_time()
        self._step = self.job.train_step
        self.dev, _ = self.job.compile_predictions(self.state.params, "dev")
        self.compiling = time.process_time() - start

    def steps(self, count: int) -> list[dict[str, np.ndarray]]:
        """Returns `count` batches at equal distances of an epoch."""
        batches = list(self.job.train_batches.epoch(0, 0))
        return [batches[i] for i in np.linspace(0, len(batches) - 1, count).astype(int)]

    def step(self, batch: dict[str, np.ndarray]) -> None:
        """Takes a train step."""
        start = time.process_time()
        self.state, _ = self._step(self.state, self.job.place(batch), self.job.frozen, 1e-4)
        jax.block_until_ready(self.state)
        self._seconds.append(time.process_time() - start)

    def row(self) -> str:
        """Returns the cells of the table."""
        start = time.process_time()
        self.job.outputs(self.state.params, "dev")
        predicting = time.process_time() - start
        train = self.job.train_batches
        lengths = [sorted(each.tokens_per_length()) for each in (train, self.dev)]
        text = sum(batching.row_lengths(self.job.encoded["train"].rows,
                                        self.job.task_type.features(), "length"))  # fmt: skip
        tokens = sum(map(batching.num_tokens, train.epoch(0, 0)))
        epoch = float(np.mean(self._seconds)) * train.steps_per_epoch
        shown = [", ".join(map(str, each)) for each in lengths]
        padding = 100 * (tokens / text - 1)
        return (
            f"{self.name} | {shown[0]} | {shown[1]} | {tokens:,} | {padding:.1f}% "
            f"| {self.compiling:.1f} | {epoch:.1f} | {predicting:.1f} |"
        )


def main() -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", required=True, type=pathlib.Path)
    parser.add_argument("--tasks", default=",".join(finetune.TASKS))
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--steps", type=int, default=24)
    flags = parser.parse_args()
    backend.start_with_kept_memory()
    backend.configure(flags.dtype)
    print("| task | batches | lengths, train | dev | tokens | padding | compiling, s | epoch, s "
          "| dev, s |\n|---|---|---|---|---:|---:|---:|---:|---:|")  # fmt: skip
    mesh, source = sharding.make_mesh("data:1", jax.devices()[:1]), loading.load(flags.model)
    for name in flags.tasks.split(","):
        case = finetune.TASKS[name]
        folder = flags.data / case.folder
        values = {
            "model": flags.model, "max_length": case.max_length, "batch_size": case.batch_size,
            "num_epochs": case.num_epochs, "dtype": flags.dtype, "data.max_train": case.max_train,
        }  # fmt: skip
        files = {"train": folder / case.train, "dev": folder / case.dev}
        config = recipe.make(case.task, None, files, values)
        with jax.set_mesh(mesh):
            both = [Contender(kind, config, mesh, source) for kind in ("padded", "packed")]
            for batches in zip(*(each.steps(flags.steps) for each in both), strict=True):
                for contender, batch in zip(both, batches, strict=True):
                    contender.step(batch)
            for contender in both:
                print(f"| {name} | {contender.row()}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
