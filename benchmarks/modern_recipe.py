"""Trains a ModernBERT mini by the whole modern recipe, and measures what each ingredient is worth.

    python -m benchmarks.modern_recipe --input=pretrain/ --output=modern_recipe/ \\
        [--only=recipe|ingredients|context] [--steps=1000] [--seeds=2] [--rate=muon=0.008]

--input has the corpora FILES. Everything is run by `bertjax VERB` with the configs of
modern_recipe_config.py. The same command resumes: it skips what is in --output. Parts:

recipe       A run of three phases, undisturbed, and the same run killed (SIGKILL) once in each
             phase and resumed. Both must end with the same state and the same metrics, bit for
             bit, except for times. The table has the held-out loss of each source at the end of
             each phase, at one length and mask rate.
ingredients  Runs with the same tokens that differ in optimizer, mask rate, decay or averages, all
             scored at one mask rate. The learning rate is the best of some with the first seed.
context      The model before and after the extension of its context, scored on the same masked
             tokens of long documents, seen in pieces of several lengths.

The tables are written to --output as Markdown; commands and their output are in --output/logs.
Exits with 1 if the killed run differs.
"""

import argparse
import functools
import pathlib
import sys
import time
from collections.abc import Sequence

import jax
import numpy as np

from benchmarks import modern_recipe_config as configs
from benchmarks import modern_recipe_context as context
from benchmarks import modern_recipe_ingredients as ingredients
from benchmarks import modern_recipe_runs as runs_lib
from bertjax import checkpoint, experiment, sharding, workdir
from bertjax import config as config_lib

PARTS = ("recipe", "ingredients", "context")
TIMES = ("tokens_per_second", "mfu", "data_wait")


def recipe(runs: runs_lib.Runs) -> bool:
    """Runs the recipe twice and writes its table; returns whether the two runs are equal."""
    arg = f"recipe,{runs.steps}"
    whole = runs.pretrain("recipe", arg)
    runs.run("inspect", "inspect", str(whole), "--plot")
    config = config_lib.load(f"{configs.__file__}:{arg}")
    ends = np.cumsum([phase["num_steps"] for phase in config.phases])
    killed = killed_run(runs, arg, [0, *ends.tolist()])
    first, second = ends_of(whole), ends_of(killed)
    different = [name for name in first | second if not equal(first.get(name), second.get(name))]
    rows = []
    for source in runs_lib.FILES:
        models = [whole / workdir.CHECKPOINTS / str(end) for end in ends]
        scores = [runs.score(model, source) for model in [*models, whole / "ema"]]
        losses = [f"{score['mlm_loss']:.3f}" for score in scores]
        bits = [f"{score['bits_per_byte']:.3f}" for score in scores[:3]]
        rows.append([source, *losses, *bits, f"{scores[2]['unigram_loss']:.3f}"])
    phases = [f"phase {number}" for number in (1, 2, 3)]
    head = ["source", *phases, "its average", *(f"{p}, bits per byte" for p in phases), "unigram"]
    kills = (runs.folder / "kills.txt").read_text()
    text = f"{len(first)} arrays and lines of metrics compared, {len(different)} differ\n{kills}"
    text += f"{runs_lib.speed(whole):,.0f} tokens/s\n\n{runs_lib.table(head, rows)}"
    runs.write("recipe", text)
    return not different


def killed_run(runs: runs_lib.Runs, arg: str, borders: Sequence[int]) -> pathlib.Path:
    """Runs the recipe, killed once in each phase and resumed; returns the workdir.

    The kills come when a step near the middle of the phase is logged; kills.txt has a line for
    each.
    """
    run, record = runs.folder / "killed", runs.folder / "kills.txt"
    command = runs.command("killed", arg)
    for number in range(len(borders) - 1):
        done = record.read_text().splitlines() if record.exists() else []
        if number < len(done):
            continue
        target = borders[number] + (borders[number + 1] - borders[number]) * 53 // 100
        process = runs.start("killed", *command)
        while process.poll() is None and last_step(run) < target:
            time.sleep(0.05)
        if process.poll() is not None:
            raise RuntimeError(f"the run ended before the kill at step {target}; see logs/")
        process.kill()
        process.wait()
        line = f"SIGKILL after step {last_step(run)}, checkpoint {workdir.saved_step(run)}"
        record.write_text("".join(f"{text}\n" for text in [*done, line]))
    return runs.pretrain("killed", arg)


def last_step(run: pathlib.Path) -> int:
    """Returns the last logged step of a run; 0 if there is none."""
    return max((int(line["step"]) for line in runs_lib.metrics(run)), default=0)


def ends_of(run: pathlib.Path) -> dict[str, object]:
    """Returns all arrays of a run's last state by path, and all lines of its metrics."""
    config = config_lib.from_dict(workdir.read(run).config)
    abstract = experiment.Experiment(config).abstract_state(sharding.make_mesh())
    with_arrays, _ = checkpoint.Reader(run / workdir.CHECKPOINTS).restore(abstract)
    found: dict[str, object] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(with_arrays):
        is_key = jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        found[sharding.path_name(path)] = np.asarray(jax.random.key_data(leaf) if is_key else leaf)
    for number, line in enumerate(runs_lib.metrics(run)):
        found[f"metrics {number}"] = {k: v for k, v in line.items() if k not in TIMES}
    return found


def equal(a: object, b: object) -> bool:
    """Returns whether two arrays or lines are equal, bit for bit."""
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    return repr(a) == repr(b)  # NaN equals NaN


def main() -> int:
    """Runs the parts; returns 1 if the killed run differs from the undisturbed one, else 0."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--input", required=True, help="folder with the corpora")
    parser.add_argument("--output", required=True, help="folder for data, runs and tables")
    parser.add_argument("--only", choices=PARTS, action="append",
                        help="part to run; may be repeated; default: all of them")
    parser.add_argument("--steps", type=int, default=1000, help="of a run; a multiple of 20")
    parser.add_argument("--seeds", type=int, default=2, help="of the ingredients")
    parser.add_argument("--rate", action="append", default=[], metavar="OPTIMIZER=RATE",
                        help="learning rate of an optimizer, which is then not searched")
    parser.add_argument("--variant", action="append", default=[], metavar="NAME",
                        help="row of the table of ingredients to run; default: all of them")
    flags = parser.parse_args()
    given = {name: float(rate) for name, _, rate in (word.partition("=") for word in flags.rate)}
    runs = runs_lib.Runs(flags.input, flags.output, steps=flags.steps, seeds=flags.seeds)
    runs.prepare()
    parts = {
        "recipe": recipe,
        "ingredients": functools.partial(ingredients.run, given=given, chosen=flags.variant),
        "context": context.run,
    }
    return int(not all([parts[name](runs) for name in flags.only or PARTS]))


if __name__ == "__main__":
    sys.exit(main())
