"""Fine-tuning with packed rows and with rows padded to a few lengths: padding, programs, CPU time.

    JAX_ENABLE_COMPILATION_CACHE=0 python -m benchmarks.packed_batches --model=MODEL --data=DATA \\
        --dtype=bfloat16 [--tasks=wikigold,uner_ewt] [--steps=24]

The tasks are those of finetune.py, with its epochs, and tasks of search, with 1,800 pairs for train
and 200 for dev: squad_vectors and tatoeba_vectors train vectors of pairs (questions and paragraphs,
sentences and their translations), squad_rerank a cross-encoder on the questions, each with its
paragraph and three others. For each, prints the lengths of the rows of train and dev, for each of
which a program is compiled, the tokens of an epoch, padding included, beside those of the text, and
CPU seconds: to compile the train step and the prediction of dev, for an epoch (the mean of STEPS
steps, spread over the epoch), and for dev. Both kinds of batches take turns, step by step.
Parameters are trained, but nothing is kept.
"""

import argparse
import json
import pathlib
import random
import sys
import tempfile
import time
from typing import Any

import jax
import numpy as np

from benchmarks import finetune, retrieval
from bertjax import sharding
from bertjax.artifact import loading
from bertjax.finetuning import batching, job, packed_batches, recipe
from bertjax.runtime import backend

SEARCH = ("squad_vectors", "tatoeba_vectors", "squad_rerank")
NUM_PAIRS = 2000


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
        text = self.job.task_type.batches(self.job.encoded["train"], 32).text_lengths.sum()
        tokens = sum(map(batching.num_tokens, train.epoch(0, 0)))
        epoch = float(np.mean(self._seconds)) * train.steps_per_epoch
        shown = [", ".join(map(str, each)) for each in lengths]
        padding = 100 * (tokens / text - 1)
        return (
            f"{self.name} | {shown[0]} | {shown[1]} | {tokens:,} | {padding:.1f}% "
            f"| {self.compiling:.1f} | {epoch:.1f} | {predicting:.1f} |"
        )


def _search(name: str, data: pathlib.Path, folder: pathlib.Path) -> finetune.Case:
    """Returns the case of a task of search, whose files it writes to `folder`."""
    if name == "tatoeba_vectors":
        lines = (data / "text2text/tatoeba_en_es/train.jsonl").read_text().splitlines()
        found = [json.loads(line) for line in lines[:NUM_PAIRS]]
        pairs = [(each["source"], each["target"]) for each in found]
    else:
        pairs, _ = retrieval.pairs(str(data / "qa/squad11_train.json"), NUM_PAIRS)
    records: list[dict[str, Any]] = [{"query": query, "positive": text} for query, text in pairs]
    if name == "squad_rerank":
        draw, texts = random.Random(0), sorted({text for _, text in pairs})
        for each in records:
            others = [text for text in texts if text != each["positive"]]
            each["negatives"] = draw.sample(others, 3)
    retrieval.write_lines(folder / "train.jsonl", records[NUM_PAIRS // 10 :])
    retrieval.write_lines(folder / "dev.jsonl", records[: NUM_PAIRS // 10])
    task, size = ("rerank", 8) if name == "squad_rerank" else ("embeddings", 32)
    return finetune.Case(task, str(folder), "train.jsonl", "dev.jsonl", 0, 2, batch_size=size)


def recipe_of(name: str, flags: argparse.Namespace, temporary: pathlib.Path) -> Any:
    """Returns the recipe of a task. temporary: a folder for files."""
    in_search = name in SEARCH
    case = _search(name, flags.data, temporary) if in_search else finetune.TASKS[name]
    folder = flags.data / case.folder
    values = {
        "model": flags.model, "max_length": case.max_length, "batch_size": case.batch_size,
        "num_epochs": case.num_epochs, "dtype": flags.dtype, "data.max_train": case.max_train,
    }  # fmt: skip
    return recipe.make(case.task, None, {"train": folder / case.train, "dev": folder / case.dev},
                       values)  # fmt: skip


def main() -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", required=True, type=pathlib.Path)
    parser.add_argument("--tasks", default=",".join((*finetune.TASKS, *SEARCH)))
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--steps", type=int, default=24)
    flags = parser.parse_args()
    backend.start_with_kept_memory()
    backend.configure(flags.dtype)
    print("| task | batches | lengths, train | dev | tokens | padding | compiling, s | epoch, s "
          "| dev, s |\n|---|---|---|---|---:|---:|---:|---:|---:|")  # fmt: skip
    with tempfile.TemporaryDirectory() as temporary:
        _measure(flags, pathlib.Path(temporary))
    return 0


def _measure(flags: argparse.Namespace, temporary: pathlib.Path) -> None:
    """Prints the rows of the table."""
    mesh, source = sharding.make_mesh("data:1", jax.devices()[:1]), loading.load(flags.model)
    for name in flags.tasks.split(","):
        config = recipe_of(name, flags, temporary)
        with jax.set_mesh(mesh):
            both = [Contender(kind, config, mesh, source) for kind in ("padded", "packed")]
            for batches in zip(*(each.steps(flags.steps) for each in both), strict=True):
                for contender, batch in zip(both, batches, strict=True):
                    contender.step(batch)
            for contender in both:
                print(f"| {name} | {contender.row()}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
