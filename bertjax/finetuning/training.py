"""The training of some seeds at one learning rate, top to bottom.

    for run, trained in loop.train(parts, 3e-5, seeds=(0, 1, 2)): ...

At every evaluation a seed's parameters are kept if its dev score is the best so far. Seeds share
the batches' shapes and nothing else: side by side or in turn they end alike.
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

TELL_EVERY = 5.0  # seconds between two lines of progress


@dataclasses.dataclass
class Evaluation:
    """Dev scores after so many epochs.

    loss: the mean over the steps since the last evaluation; None where none was finite.
    """

    epoch: float
    loss: float | None
    dev: dict[str, schema.Score]


@dataclasses.dataclass
class Run:
    """One seed at one learning rate. `others`: scores of splits but dev, of the best evaluation.

    seconds: of training, evaluation and, in the first, compilation, divided among the seeds that
        ran side by side.
    """

    learning_rate: float
    seed: int
    main: str  # name of the score that decides
    evaluations: list[Evaluation] = dataclasses.field(default_factory=list)
    best: int = -1
    skipped: int = 0  # steps until the last evaluation that were not finite
    seconds: float = 0.0
    others: dict[str, dict[str, schema.Score]] = dataclasses.field(default_factory=dict)

    @property
    def dev(self) -> dict[str, float]:
        """Scores of the best evaluation."""
        return self.evaluations[self.best].dev

    @property
    def score(self) -> float:
        """The one that decides; a run that went to pieces has -inf."""
        return _finite(self.dev[self.main])

    def add(self, evaluation: Evaluation) -> bool:
        """Whether this evaluation is the best so far."""
        self.evaluations.append(evaluation)
        gained = self.best < 0 or _finite(evaluation.dev[self.main]) > self.score
        if gained:
            self.best = len(self.evaluations) - 1
        return gained

    def stopped(self, patience: int) -> bool:
        """Whether so many evaluations in a row brought nothing; 0: goes on to the end."""
        return 0 < patience <= len(self.evaluations) - 1 - self.best


def train(
    parts: parts_lib.Parts,
    learning_rate: float,
    seeds: Sequence[int],
    tell: Callable[[str], None] = lambda line: None,
) -> list[tuple[Run, Any]]:
    """Each seed's run, and its best parameters of those that are trained, on the host."""
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
    """The steps after which dev is scored: the ends of epochs and, if asked for, in between."""
    times = parts.config.evals_per_epoch
    epoch = parts.train_batches.steps_per_epoch
    count = parts.config.num_epochs * times
    return {-(-part * epoch // times) for part in range(1, count + 1)}


class Losses:
    """Losses of steps, read late so that the device need not wait."""

    def __init__(self):
        self._losses: list[jax.Array] = []
        self._on_cpu = jax.default_backend() == "cpu"

    def add(self, loss_K: jax.Array) -> None:
        """Of one step, for each seed."""
        self._losses.append(loss_K)
        if self._on_cpu:  # CPU backends before jax 0.12 deadlock when collectives queue up
            jax.block_until_ready(loss_K)

    def means(self) -> list[float | None]:
        """For each seed, over the finite ones of the steps since the last call."""
        losses_KS = np.stack(jax.device_get(self._losses), axis=1)
        self._losses = []
        finite = [losses_S[np.isfinite(losses_S)] for losses_S in losses_KS]
        return [float(losses_S.mean()) if len(losses_S) else None for losses_S in finite]

    def recent(self) -> str:
        """Of the newest step that is done; the last one may still be under way."""
        done = [loss_K for loss_K in self._losses if loss_K.is_ready()] or self._losses[:1]
        return ", ".join(f"{x:.3f}" for x in np.asarray(done[-1]))


@jax.jit
def _keep(best_K: Any, new_K: Any, gained_K: jax.Array) -> Any:
    """The new parameters of the seeds that gained, the old ones of the others."""

    def one(old: jax.Array, new: jax.Array) -> jax.Array:
        return jnp.where(gained_K.reshape(-1, *(1 for _ in new.shape[1:])), new, old)

    return jax.tree.map(one, best_K, new_K)


def _name(runs: Sequence[Run]) -> str:
    return f"rate {runs[0].learning_rate:g}, seed {', '.join(str(run.seed) for run in runs)}"


def _line(runs: Sequence[Run], num_epochs: int, seconds: float) -> str:
    """The last evaluation, in words."""
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
