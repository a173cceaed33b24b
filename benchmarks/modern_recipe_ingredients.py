"""The part `ingredients` of benchmarks/modern_recipe.py: what each one is worth at equal tokens."""

import pathlib
from collections.abc import Callable, Mapping, Sequence

from benchmarks import modern_recipe_runs as runs_lib
from bertjax import workdir

# Learning rates, of which each optimizer gets the best one; stable_adamw gets that of adamw.
RATES = {"adamw": (1e-3, 2e-3, 4e-3), "muon": (2e-3, 4e-3, 8e-3)}
OPTIMIZERS = {  # the keys that differ from those of the config file
    "adamw": ("--config.optimizer.name=adamw", "--config.optimizer.clip_norm=1"),
    "stable_adamw": (),
    "muon": ("--config.optimizer.name=muon", "--config.optimizer.clip_norm=1"),
}


def stable(runs: runs_lib.Runs, name: str, rate: float, seed: int, *more: str) -> pathlib.Path:
    """Trains a run at a constant rate with the optimizer `name`; more: further flags."""
    folder = "-".join([name, f"{rate:g}", *(word.partition("=")[2] for word in more), str(seed)])
    return runs.pretrain(folder, f"stable,{runs.steps}", *words(name, rate, seed), *more)


def words(name: str, rate: float, seed: int) -> list[str]:
    """Returns the flags for an optimizer, a learning rate and a seed."""
    return [*OPTIMIZERS[name], f"--config.optimizer.learning_rate={rate}", f"--config.seed={seed}"]


def search(runs: runs_lib.Runs, name: str) -> dict[float, float]:
    """Returns {learning rate: held-out loss} of whole runs with the first seed."""
    models = {rate: stable(runs, name, rate, 0) for rate in RATES[name]}
    return {rate: runs.score(run, "english")["mlm_loss"] for rate, run in models.items()}


def run(runs: runs_lib.Runs, given: Mapping[str, float], chosen: Sequence[str]) -> bool:
    """Trains and scores the variants with every seed, and writes their table; returns True.

    given: {optimizer: learning rate} of the optimizers whose rate is not searched. chosen: names of
    variants, besides the baseline; () means all.
    """
    found = {name: search(runs, name) for name in RATES if name not in given}
    text = "".join(
        f"{name}: {', '.join(f'{loss:.4f} at {rate:g}' for rate, loss in losses.items())}\n"
        for name, losses in found.items()
    )
    rates = dict(given)
    for name, losses in found.items():
        rates[name] = min(losses, key=losses.__getitem__)
    rates.setdefault("stable_adamw", rates["adamw"])
    by_seed = [variants(runs, rates, seed) for seed in range(runs.seeds)]
    baseline, *others = by_seed[0]
    names = [baseline, *(name for name in others if not chosen or name in chosen)]
    models = {name: [makers[name]() for makers in by_seed] for name in names}
    rows = []
    scores = {n: [runs.score(path, "english") for path in paths] for n, paths in models.items()}
    for name, values in scores.items():
        pairs = zip(values, scores[baseline], strict=True)
        rows.append([
            name,
            *(f"{value['mlm_loss']:.4f}" for value in values),
            *(f"{value['mlm_loss'] - other['mlm_loss']:+.4f}" for value, other in pairs),
            *(f"{value['bits_per_byte']:.3f}" for value in values),
        ])  # fmt: skip
    columns = ("loss", "difference", "bits per byte")
    head = ["run", *(f"{column}, seed {i}" for column in columns for i in range(runs.seeds))]
    text += f"\n{runs_lib.table(head, rows)}"
    for name in (baseline, "mask rate 15%") if "mask rate 15%" in models else ():
        again = [runs.score(path, "english", 0.3)["mlm_loss"] for path in models[name]]
        text += f"scored with a mask rate of 30%: {name}: {', '.join(f'{x:.4f}' for x in again)}\n"
    runs.write("ingredients", text)
    return True


def variants(
    runs: runs_lib.Runs, rates: Mapping[str, float], seed: int
) -> dict[str, Callable[[], pathlib.Path]]:
    """Returns {name: function that trains the variant and returns it}, first the baseline."""
    steps, start = runs.steps, runs.steps - runs.steps // 5

    def constant(name: str, *more: str) -> pathlib.Path:
        return stable(runs, name, rates[name], seed, *more)

    def decay(name: str, mask_rate: float = 0.3) -> pathlib.Path:
        run = constant(name)
        return runs.pretrain(f"{run.name}-decay-{mask_rate:g}", f"decay,{steps},{mask_rate}",
                             *words(name, rates[name], seed),
                             f"--branch_from={run / workdir.CHECKPOINTS / str(start)}")  # fmt: skip

    def mean() -> pathlib.Path:
        run = constant("adamw")
        if not (run / "mean").exists():
            last = [run / workdir.CHECKPOINTS / str(steps - i * (steps // 20)) for i in range(5)]
            inputs = [f"--input={path}" for path in last]
            runs.run("average", "average", *inputs, f"--output={run / 'mean'}")
        return run / "mean"

    return {
        "adamw, mask rate 30%, constant rate": lambda: constant("adamw"),
        "stable_adamw": lambda: constant("stable_adamw"),
        "muon": lambda: constant("muon"),
        "mask rate 15%": lambda: constant("adamw", "--config.objective.mask_rate=0.15"),
        "moving average": lambda: constant("adamw") / "ema",
        "mean of five checkpoints": mean,
        "decay in the last fifth": lambda: decay("adamw"),
        "decay, moving average": lambda: decay("adamw") / "ema",
        "decay with mask rate 15%": lambda: decay("adamw", 0.15),
        "muon and decay": lambda: decay("muon"),
    }
