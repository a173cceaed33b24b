"""Compilations of a suite: each task on its own, and with shared programs.

    JAX_ENABLE_COMPILATION_CACHE=0 python -m benchmarks.suite_sharing --model=MODEL --data=DATA

--data: a folder with pairs/wnli, pairs/qnli_part and classification/movie_reviews, which all have
two labels. Prints for each task, alone and shared: programs compiled, CPU seconds to lower and
compile the train step and the prediction step, batch lengths, and tokens of an epoch, padding
included. Nothing is trained.
"""

import argparse
import pathlib
import time

import jax

from bertjax import sharding
from bertjax.finetuning import batching, job, recipe
from bertjax.finetuning import sharing as sharing_lib
from bertjax.runtime import backend

TASKS = {
    "wnli": ("pair", "pairs/wnli"),
    "qnli_part": ("pair", "pairs/qnli_part"),
    "movie_reviews": ("classification", "classification/movie_reviews"),
}


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, help="any model folder")
    parser.add_argument("--data", required=True, type=pathlib.Path, help="folder with the tasks")
    flags = parser.parse_args()
    backend.configure("float32")
    print("| programs | task | compiled | CPU s | lengths | tokens of an epoch |")
    print("|---|---|---:|---:|---|---:|")
    for name in ("own", "shared"):
        shared = sharing_lib.Shared(len(TASKS))
        for task, (kind, folder) in TASKS.items():
            used = shared if name == "shared" else sharing_lib.Shared()
            print(f"| {name} | {task} | {row(flags, kind, folder, used)} |", flush=True)


def row(flags: argparse.Namespace, kind: str, folder: str, shared: sharing_lib.Shared) -> str:
    """Returns the cells of one task."""
    values = {"model": flags.model, "max_length": 128, "data.max_train": 1000}
    config = recipe.make(kind, flags.data / folder, {}, values)
    mesh = sharding.make_mesh("data:1", jax.devices()[:1])
    count = len(shared.programs)
    with jax.set_mesh(mesh):
        made = job.make(config, shared.source(config.model), mesh, shared)
        state = made.first_state(0)
        start = time.process_time()
        made.train_step  # noqa: B018, compiles
        made.compile_predictions(state.params, "dev")
        seconds = time.process_time() - start
    batches = list(made.train_batches.epoch(0, 0))
    lengths = sorted(made.train_batches.tokens_per_length())
    tokens = sum(map(batching.num_tokens, batches))
    compiled = len(shared.programs) - count
    return f"{compiled} | {seconds:.1f} | {', '.join(map(str, lengths))} | {tokens:,}"


if __name__ == "__main__":
    main()
