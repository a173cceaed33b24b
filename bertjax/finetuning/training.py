"""Trains several seeds at one learning rate, top to bottom.

    for run, trained in training.train(parts, 3e-5, seeds=(0, 1, 2)): ...

At every evaluation a seed's parameters are kept if its dev score is the best so far. Seeds share
nothing but the shapes of batches, so training them side by side or in turn has the same result.
"""

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bertjax import schema
from bertjax.finetuning import parts as parts_lib

TELL_EVERY = 5.0  # minimum seconds between two lines of progress


@dataclasses.dataclass
class Evaluation:
    """Dev scores after `epoch` epochs.

    loss: the mean of finite losses since the last evaluation; None if none was finite.
    """

    epoch: float
    loss: float | None
    dev: dict[str, schema.Score]


@dataclasses.dataclass
class Run:
    """One seed at one learning rate.

    others: {split: scores} of the best evaluation, for splits other than dev. seconds: of training,
    evaluation and (in the first run) compilation, divided by the number of seeds side by side.
    """

    learning_rate: float
    seed: int
    main: str  # name of the score that selects the best
    evaluations: list[Evaluation] = dataclasses.field(default_factory=list)
    best: int = -1
    skipped: int = 0  # steps before the last evaluation that were not finite
    seconds: float = 0.0
    others: dict[str, dict[str, schema.Score]] = dataclasses.field(default_factory=dict)

    @property
    def dev(self) -> dict[str, float]:
        """The dev scores of the best evaluation."""
        return self.evaluations[self.best].dev

    @property
    def score(self) -> float:
        """The main dev score; -inf if the run diverged."""
        return _finite(self.dev[self.main])

    def add(self, evaluation: Evaluation) -> bool:
        """Adds an evaluation, and returns whether it is the best so far."""
        self.evaluations.append(evaluation)
        gained = self.best < 0 or _finite(evaluation.dev[self.main]) > self.score
        if gained:
            self.best = len(self.evaluations) - 1
        return gained

    def stopped(self, patience: int) -> bool:
        """Returns whether at least the last `patience` evaluations had no gain; 0: never."""
        return 0 < patience <= len(self.evaluations) - 1 - self.best


def train(
    parts: parts_lib.Parts,
    learning_rate: float,
    seeds: Sequence[int],
    tell: Callable[[str], None] = lambda line: None,
) -> list[tuple[Run, Any]]:
    """Trains the seeds; returns each seed's run and best trained parameters, on the host.

    Stops early if all seeds have stopped improving (`config.early_stopping`).
    """
    runs = [Run(learning_rate, seed, parts.main) for seed in seeds]
    patience, evaluates = parts.config.early_stopping, evaluation_steps(parts)
    steps_per_epoch = parts.train_batches.steps_per_epoch
    started = told = time.perf_counter()
    tell(f"{_name(runs)}: compiling the train step, {parts.num_steps:,} steps")
    train_step = parts.train_step(len(seeds))
    tell(f"{_name(runs)}: compiled in {time.perf_counter() - started:.1f} s")
    state = parts.first_state(seeds)
    best = jax.tree.map(jnp.copy, state.params)
    losses = Losses()

    for step, batch in enumerate(parts.batches(seeds), 1):
        state, report = train_step(state, batch, parts.frozen, float(learning_rate))
        losses.add(report["loss"])
        if time.perf_counter() - told > TELL_EVERY:
            told = time.perf_counter()
            tell(f"{_name(runs)}: step {step} of {parts.num_steps}, loss {losses.recent()}")
        if step not in evaluates:
            continue
        means = losses.means()
        outputs = parts.outputs(state.params, "dev")
        gained = np.zeros(len(runs), bool)
        skipped = np.asarray(state.skipped)
        for k, run in enumerate(runs):
            if not run.stopped(patience):
                run.skipped = int(skipped[k])
                _, _, dev = parts.on_dev(outputs[k])
                gained[k] = run.add(Evaluation(step / steps_per_epoch, means[k], dev))
        if gained.any():
            best = _keep(best, state.params, gained)
        seconds = time.perf_counter() - started
        for run in runs:
            run.seconds = seconds / len(runs)
        tell(_line(runs, parts.config.num_epochs, seconds))
        if all(run.stopped(patience) for run in runs):
            break

    found = jax.device_get(best)
    return [(run, jax.tree.map(lambda x, k=k: x[k], found)) for k, run in enumerate(runs)]


def evaluation_steps(parts: parts_lib.Parts) -> set[int]:
    """Returns the steps after which dev is scored.

    They are the ends of epochs, and steps in between if `config.evals_per_epoch` is above 1.
    """
    times = parts.config.evals_per_epoch
    epoch = parts.train_batches.steps_per_epoch
    count = parts.config.num_epochs * times
    return {-(-part * epoch // times) for part in range(1, count + 1)}


class Losses:
    """Losses of steps, fetched late so that the device does not wait."""

    def __init__(self):
        self._losses: list[jax.Array] = []
        self._on_cpu = jax.default_backend() == "cpu"

    def add(self, loss_K: jax.Array) -> None:
        """Adds one step's loss of each seed."""
        self._losses.append(loss_K)
        if self._on_cpu:  # CPU backends before jax 0.12 deadlock when collectives queue up
            jax.block_until_ready(loss_K)

    def means(self) -> list[float | None]:
        """Returns each seed's mean finite loss since the last call; None if none was finite."""
        losses_KS = np.stack(jax.device_get(self._losses), axis=1)
        self._losses = []
        finite = [losses_S[np.isfinite(losses_S)] for losses_S in losses_KS]
        return [float(losses_S.mean()) if len(losses_S) else None for losses_S in finite]

    def recent(self) -> str:
        """Returns the losses of the newest finished step, as text; a later one may still run."""
        done = [loss_K for loss_K in self._losses if loss_K.is_ready()] or self._losses[:1]
        return ", ".join(f"{x:.3f}" for x in np.asarray(done[-1]))


@jax.jit
def _keep(best_K: Any, new_K: Any, gained_K: jax.Array) -> Any:
    """Returns the new parameters for seeds that gained, and the old ones for the others."""

    def one(old: jax.Array, new: jax.Array) -> jax.Array:
        return jnp.where(gained_K.reshape(-1, *(1 for _ in new.shape[1:])), new, old)

    return jax.tree.map(one, best_K, new_K)


def _name(runs: Sequence[Run]) -> str:
    return f"rate {runs[0].learning_rate:g}, seed {', '.join(str(run.seed) for run in runs)}"


def _line(runs: Sequence[Run], num_epochs: int, seconds: float) -> str:
    """Returns the last evaluation as a line of text."""
    last = max((run.evaluations[-1] for run in runs), key=lambda e: e.epoch)
    losses = [run.evaluations[-1].loss for run in runs]
    shown = ", ".join("not finite" if loss is None else f"{loss:.3f}" for loss in losses)
    scores = ", ".join(f"{run.evaluations[-1].dev[run.main]:.2f}" for run in runs)
    return (
        f"{_name(runs)}: epoch {last.epoch:g} of {num_epochs}, loss {shown}, dev {runs[0].main} "
        f"{scores} ({seconds:.0f} s)"
    )


def _finite(score: float) -> float:
    return score if math.isfinite(score) else -math.inf
