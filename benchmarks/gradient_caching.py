"""Measures the memory of large batches of pairs with and without gradient caching.

    python -m benchmarks.gradient_caching --model=minilm/ [--batch=1024] [--chunk=64] [--length=16]

Each row of the table is a train step of the ranking loss (pairs of random token ids, AdamW) in a
process of its own. Columns: the memory of temporaries as the compiler plans it
(`compiled.memory_analysis()`), and the growth of the process's peak memory while it compiles and
runs the step. The whole batch without chunks is only compiled. Also prints the largest difference
between the gradients of a batch in chunks and as a whole, as a share of the largest gradient, for a
batch of four chunks and without dropout, whose masks depend on the chunks.
"""

import argparse
import dataclasses
import resource
import subprocess
import sys
from typing import Any

import jax
import numpy as np
import optax

from bertjax import step
from bertjax.artifact import loading
from bertjax.finetuning.task_types import embeddings
from bertjax.inference import pretrained
from bertjax.runtime import backend

TOLERANCE = 1e-4


def batch_of(rows: int, length: int, vocab_size: int) -> dict[str, np.ndarray]:
    """Returns a batch of pairs of random token ids, of which a row keeps half to all."""
    rng = np.random.default_rng(0)
    sizes = rng.integers(length // 2, length + 1, (rows, 2, 1))
    return {
        "input_ids": rng.integers(1000, vocab_size, (rows, 2, length)).astype(np.int32),
        "attention_mask": (np.arange(length) < sizes).astype(np.int32),
        "token_type_ids": np.zeros((rows, 2, length), np.int32),
        "label": np.arange(2 * rows, dtype=np.int32).reshape(rows, 2),
        "label_weight": np.ones(rows, np.float32),
        "example_weights": np.ones(rows, np.float32),
    }


def lowered(
    model: pretrained.Pretrained, batch: dict[str, np.ndarray], chunk: int, tx: Any
) -> tuple[Any, step.TrainState]:
    """Returns (the lowered step, the state before it)."""
    task_type = embeddings.TaskType("embeddings", embeddings.Config(chunk_size=chunk))
    train_step = step.make_train_step(
        model.model, task_type.loss, task_type.normalizers, {"ranking_loss": 1.0}, tx,
        optax.constant_schedule(1.0),
    )  # fmt: skip
    state = step.init_state(model.params, tx, jax.random.key(0))
    return jax.jit(train_step, donate_argnums=0).lower(state, batch), state


def peak() -> float:
    """Returns the peak memory of this process in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(flags: argparse.Namespace) -> str:
    """Compiles and, with --run, runs a step; returns a row of the table."""
    model = pretrained.Pretrained(loading.load(flags.model))
    batch = batch_of(flags.batch, flags.length, model.model.config.vocab_size)
    lowered_step, state = lowered(model, batch, flags.chunk, optax.adamw(1e-5))
    before = peak()
    compiled = lowered_step.compile()
    cells = [f"{compiled.memory_analysis().temp_size_in_bytes / 1e6:,.0f}", ""]
    if flags.run:
        jax.block_until_ready(compiled(state, batch))
        cells[1] = f"{peak() - before:,.0f}"
    return f"| {flags.batch:,} | {flags.chunk or 'whole'} | {' | '.join(cells)} |"


def difference(flags: argparse.Namespace) -> float:
    """Returns the largest difference of the gradients of four chunks and of the whole batch."""
    updated = []
    for chunk in (flags.chunk, 0):
        source = loading.load(flags.model)  # anew, because its arrays are donated
        without = dict.fromkeys(("dropout_rate", "attention_dropout_rate"), 0.0)
        model = pretrained.Pretrained(
            dataclasses.replace(source, fields={**source.fields, **without})
        )
        batch = batch_of(4 * flags.chunk, flags.length, model.model.config.vocab_size)
        lowered_step, state = lowered(model, batch, chunk, optax.sgd(1.0))
        before = jax.tree.map(np.array, state.params)  # copies: the state is donated
        state, _ = lowered_step.compile()(state, batch)
        updated.append(jax.tree.map(lambda a, b: a - np.asarray(b), before, state.params))
    leaves = [jax.tree.leaves(gradients) for gradients in updated]
    largest = max(np.abs(x).max() for x in leaves[1])
    return float(max(np.abs(a - b).max() for a, b in zip(*leaves, strict=True)) / largest)


def main() -> int:
    """Prints the table and the difference; returns 1 if the gradients differ, else 0."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", required=True, help="Hugging Face folder or artifact")
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--chunk", type=int, default=64)
    parser.add_argument("--length", type=int, default=16)
    parser.add_argument("--single", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--run", action="store_true", help=argparse.SUPPRESS)
    flags = parser.parse_args()
    backend.configure("float32")
    if flags.single:
        print(measure(flags))
        return 0
    print("| batch | rows of a chunk | planned, MB | peak, MB |\n|---|---|---|---|")
    cases = ((flags.chunk, 0, True), (flags.batch, flags.chunk, True), (flags.batch, 0, False))
    for batch, chunk, runs in cases:
        words = [sys.executable, "-m", "benchmarks.gradient_caching", f"--model={flags.model}",
                 f"--batch={batch}", f"--chunk={chunk}", f"--length={flags.length}", "--single"]
        words += ["--run"] * runs  # fmt: skip
        print(subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip(),
              flush=True)  # fmt: skip
    apart = difference(flags)
    print(f"largest difference of gradients, relative to the largest: {apart:.1e}")
    return int(apart > TOLERANCE)


if __name__ == "__main__":
    sys.exit(main())
