"""The part `context` of benchmarks/modern_recipe.py: loss by how much of a document a model sees.

A masked model sees both sides of a token, so every position of a row profits from a longer row.
Therefore the same masked tokens are scored in pieces of 126, 504 and 1,008 tokens (each between
[CLS] and [SEP]), and in the longest pieces also by position.

Shapes: R rows, K masked tokens of a row, T tokens of a row.
"""

import functools
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

import bertjax
from benchmarks import modern_recipe_config as configs
from benchmarks import modern_recipe_runs as runs_lib
from bertjax import workdir
from bertjax.data.batches import packing
from bertjax.data.prepared import store
from bertjax.objectives.common import losses as losses_lib

PIECES = (126, 504, 1008)  # tokens, without [CLS] and [SEP]
ROW = PIECES[-1]
BLOCK_MASKED = 19  # masked tokens in each 126 tokens: 15%
ROWS_PER_DOCUMENT = 4  # so that no document dominates
ROWS = 240  # drawn from all of them
TOKENS_PER_BATCH = 8 * (ROW + 2)
BINS = {"1-126": (0, 126), "127-504": (126, 504), "505-1,008": (504, ROW)}
COLUMNS = tuple(f"seen in pieces of {size:,}" for size in PIECES) + tuple(
    f"{name} of 1,008" for name in BINS
)


def run(runs: runs_lib.Runs) -> bool:
    """Trains other second phases from the end of the first one and writes the table; True."""
    steps = runs.steps
    whole = runs.pretrain("recipe", f"recipe,{steps}")
    start = whole / workdir.CHECKPOINTS / str(steps * 3 // 5)

    def branch(length: int, theta: float) -> pathlib.Path:
        return runs.pretrain(f"extension-{length}-{theta:g}", f"extension,{steps},{length},{theta}",
                             f"--branch_from={start}")  # fmt: skip

    models = {
        "before": start,
        "after phase 2 (512 tokens, theta raised)": start.with_name(str(steps * 4 // 5)),
        "phase 2 in rows of 128": branch(128, 10_000.0),
        "phase 2 in rows of 512, theta not raised": branch(512, 10_000.0),
        "phase 2 in rows of 1,024, theta raised": branch(1024, configs.THETA),
        "after phase 3": whole,
    }
    rows = rows_of([runs.data(name) for name in configs.ENGLISH])
    places = masked(rows)
    found = {name: losses(path, rows, places) for name, path in models.items()}
    text = f"{len(rows)} rows, {places.size:,} masked tokens\n\n"
    lines = [[name, *cells(values, places)] for name, values in found.items()]
    text += f"{runs_lib.table(['model', *COLUMNS], lines)}\n{comparisons(found)}"
    runs.write("context", text)
    return True


def rows_of(folders: Sequence[pathlib.Path]) -> np.ndarray:
    """Returns int[R, T]: beginnings of held-out documents of more than 1,024 tokens.

    A document gives at most ROWS_PER_DOCUMENT rows, of which ROWS are drawn in all. (A document
    that continues in another record counts as two.)
    """
    rows = []
    for folder in folders:
        dataset = store.open_dataset(folder, "heldout")
        for record in dataset.read(range(dataset.num_records)):
            window = packing.join([record])
            for start, stop in zip(window.edges[:-1], window.edges[1:], strict=True):
                if stop - start > 1024:
                    count = min((stop - start) // ROW, ROWS_PER_DOCUMENT)
                    rows.append(window.tokens[start : start + count * ROW].reshape(count, ROW))
    every = np.concatenate(rows).astype(np.int32)
    return np.random.default_rng(0).permutation(every)[:ROWS]


def masked(rows_RT: np.ndarray) -> np.ndarray:
    """Returns int[R, K]: the masked positions, ascending; each 126 tokens have the same number."""
    blocks = rows_RT.shape[0], ROW // PIECES[0]
    scores = np.random.default_rng(0).random((*blocks, PIECES[0]))
    places = np.sort(np.argsort(scores, axis=-1)[..., :BLOCK_MASKED], axis=-1)
    return (places + PIECES[0] * np.arange(blocks[1])[:, None]).reshape(len(rows_RT), -1)


def losses(path: pathlib.Path, rows_RT: np.ndarray, masked_RK: np.ndarray) -> dict[int, np.ndarray]:
    """Returns {size of the pieces: float[R, K], the loss of each masked token, in nats}."""
    model = bertjax.load(path)
    specials = model.tokenizer.specials
    targets_RK = np.take_along_axis(rows_RT, masked_RK, axis=1)
    hidden_RT = rows_RT.copy()
    np.put_along_axis(hidden_RT, masked_RK, specials.mask, axis=1)
    found = {}
    for size in PIECES:
        ids = np.pad(hidden_RT.reshape(-1, size), ((0, 0), (1, 1)))
        ids[:, 0], ids[:, -1] = specials.cls, specials.sep
        positions = (masked_RK % size + 1).reshape(len(ids), -1)
        targets = targets_RK.reshape(positions.shape)
        count = TOKENS_PER_BATCH // (size + 2)
        parts = [
            _negative_log_probs(model.model, model.params, *batch)
            for batch in _batches(count, ids, positions, targets)
        ]
        found[size] = np.concatenate(parts)[: len(ids)].reshape(masked_RK.shape)
    return found


def cells(values: Mapping[int, np.ndarray], masked_RK: np.ndarray) -> list[str]:
    """Returns the cells of COLUMNS for the losses of a model."""
    means = [values[size].mean() for size in PIECES]
    for low, high in BINS.values():
        means.append(values[ROW][(masked_RK >= low) & (masked_RK < high)].mean())
    return [f"{mean:.3f}" for mean in means]


def comparisons(values: Mapping[str, Mapping[int, np.ndarray]]) -> str:
    """Returns lines with the gain of each model by the longer pieces, with standard errors.

    The errors are of the mean over rows.
    """
    lines = []
    for name, by_size in values.items():
        short = by_size[PIECES[0]].mean(axis=1)
        gains = []
        for size in PIECES[1:]:
            gain = short - by_size[size].mean(axis=1)
            error = gain.std() / len(gain) ** 0.5
            gains.append(f"{gain.mean():+.3f} +- {error:.3f} in {size:,}")
        lines.append(f"{name}: {', '.join(gains)}\n")
    return "gain over pieces of 126 tokens, nats:\n" + "".join(lines)


def _batches(count: int, *arrays: np.ndarray) -> Iterator[list[np.ndarray]]:
    """Yields `count` rows of the arrays at a time; the last batch is filled with the first rows."""
    for start in range(0, len(arrays[0]), count):
        index = np.arange(start, start + count) % len(arrays[0])
        yield [array[index] for array in arrays]


@functools.partial(jax.jit, static_argnames=("model",))
def _negative_log_probs(
    model: Any, params: Any, ids: jax.Array, positions: jax.Array, targets: jax.Array
) -> jax.Array:
    logits = model.apply({"params": params}, ids, masked_positions=positions)["mlm_logits"]
    return -losses_lib.log_probs(logits, targets)
