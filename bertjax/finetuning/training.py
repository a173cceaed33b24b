"""Trains one run: one seed at one learning rate.

    run, trained = training.train(job, 3e-5, seed=0, folder="out/runs/lr3e-05-seed0")

At every step boundary the order is: evaluate, save, stop if requested; then take a batch and step.
After an evaluation, a copy of the parameters is kept if their dev score is the best so far. A
checkpoint contains the train state, the best parameters and the evaluations, so a run that is
killed and resumed has exactly the same result, bit for bit, as an uninterrupted one.
"""

import contextlib
import dataclasses
import itertools
import math
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from etils import epath
from ml_collections import ConfigDict

from bertjax import checkpoint, errors, schema, sharding, step_log, trackers
from bertjax import workdir as workdir_lib
from bertjax.finetuning import batching, by_size
from bertjax.finetuning import job as job_lib
from bertjax.runtime import distributed, signals

SMALL_DEV = 100  # examples; in a smaller dev, one example decides nothing


@dataclasses.dataclass
class Evaluation:
    """Dev scores after `epoch` epochs.

    loss: the mean of the finite training losses since the last evaluation; None if none was finite.
    """

    epoch: float
    loss: float | None
    dev: dict[str, schema.Score]


@dataclasses.dataclass
class Run:
    """The results of one seed at one learning rate.

    best: the index of the best evaluation. others: {split: scores of the best parameters} for
    splits other than dev. seconds: the time of training, evaluation and, in the first run,
    compilation.
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
        """The main dev score; -inf if the run diverged; 0 without a dev."""
        return self._score(self.evaluations[self.best])

    def _score(self, evaluation: Evaluation) -> float:
        score = evaluation.dev[self.main] if evaluation.dev else 0.0
        return score if math.isfinite(score) else -math.inf

    def add(self, evaluation: Evaluation, margin: float = 0.0) -> bool:
        """Adds an evaluation, and returns whether it is the best so far.

        The last one whose score is at most `margin` below the highest is the best: a small dev
        often has the same score many times, and longer training at a falling rate makes a model
        more robust (Mosbach et al., arXiv 2006.04884, section 6).
        """
        self.evaluations.append(evaluation)
        highest = max(map(self._score, self.evaluations))
        is_best = self._score(evaluation) >= highest - margin
        if is_best:
            self.best = len(self.evaluations) - 1
        return is_best

    def stopped(self, patience: int) -> bool:
        """Returns whether the last `patience` evaluations had no gain; False if `patience` is 0."""
        scores = [self._score(evaluation) for evaluation in self.evaluations]
        return 0 < patience <= len(scores) - 1 - scores.index(max(scores))


class _Losses:
    """The mean loss of the finite steps since the last evaluation."""

    def __init__(self, total: float = 0.0, count: int = 0):
        self.total, self.count = total, count

    def add(self, loss: float) -> None:
        """Adds the loss of a step."""
        self.total, self.count = self.total + loss, self.count + 1

    def mean(self) -> float | None:
        """Returns the mean since the last call of `mean`; None if there was no loss."""
        mean = self.total / self.count if self.count else None
        self.total, self.count = 0.0, 0
        return mean


def train(
    job: job_lib.Job,
    learning_rate: float,
    seed: int,
    folder: str | os.PathLike,
    tell: Callable[[str], None] = lambda line: None,
    boundaries: Iterator[int] | None = None,
) -> tuple[Run, Any]:
    """Trains a run, or resumes it from the newest checkpoint in `folder`.

    Returns the run and its best trained parameters, on the host. Stops early if the dev score no
    longer improves (`config.early_stopping`). Writes metrics.jsonl and the files of TensorBoard to
    `folder`. tell: called with each line of progress. boundaries: a counter that numbers the step
    boundaries of all runs of this process.

    Raises Preempted after a SIGTERM, and Interrupted, a KeyboardInterrupt, after a first Ctrl-C; in
    both cases it first saves the state.
    """
    config, name = job.config, f"rate {learning_rate:g}, seed {seed}"
    boundaries = itertools.count() if boundaries is None else boundaries
    eval_steps = by_size.evaluation_steps(config, job.train_batches.steps_per_epoch)
    start_time = time.perf_counter()
    with contextlib.ExitStack() as stack:
        stop = stack.enter_context(signals.StopSignals())
        checkpoints = checkpoint.Checkpoints(
            epath.Path(folder) / workdir_lib.CHECKPOINTS, keep_last=1, keep_best=0
        )
        stack.callback(checkpoints.close)
        run, seconds, losses, unlogged = Run(learning_rate, seed, job.main), 0.0, _Losses(), {}
        margin = _margin(len(job.examples.get("dev", ())))
        if checkpoints.latest_step() is None:
            state = job.first_state(seed)
            best = _copy(state.params)
        else:
            abstract_state = job.abstract_state()
            trees, meta = checkpoints.restore(
                {"state": abstract_state, "best": abstract_state.params}
            )
            state, best = trees["state"], trees["best"]
            run = schema.typed(meta["run"], Run, checkpoints.folder, "remove it")
            seconds, unlogged = meta["seconds"], meta[step_log.UNLOGGED]
            losses = _Losses(*meta["losses"])
            tell(f"{name}: resumes from step {int(state.step):,} of {job.num_steps:,}")
        start = int(state.step)
        tell(f"{name}: compiling the train step, {errors.count(job.num_steps, 'step')}")
        compile_start = time.perf_counter()
        train_step = job.train_step
        tell(f"{name}: compiled in {time.perf_counter() - compile_start:.1f} s")
        log = stack.enter_context(
            step_log.StepLog(
                folder,
                start,
                job.num_steps,
                job.scales,
                log_every=config.log_every,
                tracking=_tracking(config, epath.Path(folder), learning_rate, seed),
                unlogged=unlogged,
                on_loss=losses.add,
            )
        )
        batches = job.batches(seed, start)

        for step in range(start, job.num_steps + 1):
            stopping = stop.reached(next(boundaries))
            last = step == job.num_steps
            evaluating = step > start and step in eval_steps
            saving = stopping or (step > start and step % config.checkpoint_every == 0)
            with log.paused() if evaluating or saving else contextlib.nullcontext():
                if evaluating:
                    log.note("evaluating")
                    dev = distributed.of_first(job.on_dev(state.params)[-1])
                    epoch = step / job.train_batches.steps_per_epoch
                    run.skipped = int(state.skipped)
                    if run.add(Evaluation(epoch, losses.mean(), dev), margin):
                        best = _copy(state.params)
                    run.seconds = seconds + time.perf_counter() - start_time
                    if dev:
                        log.heldout(step, dev, "dev")
                    tell(_progress_line(run, config.num_epochs))
                    last = last or run.stopped(config.early_stopping)
                if saving and not last:
                    checkpoints.save(
                        step,
                        {"state": state, "best": best},
                        {
                            "run": dataclasses.asdict(run),
                            "seconds": seconds + time.perf_counter() - start_time,
                            "losses": [losses.total, losses.count],
                            step_log.UNLOGGED: log.unlogged(),
                        },
                        None,
                    )
            if last or stopping:
                break
            with log.waiting():
                batch = next(batches)
            state, report = train_step(state, batch, job.frozen, float(learning_rate))
            log.step(step + 1, report, tokens=batching.num_tokens(batch))

        checkpoints.wait()
        if stopping and not last:
            if stop.requested == "SIGINT":
                raise errors.Interrupted
            raise errors.Preempted(
                f"stopped on request: {name} is saved at step {step} of {job.num_steps}; run the "
                "same command again to resume"
            )
    return run, sharding.fetch(best)


def _margin(num_dev: int) -> float:
    """Returns what one example of a small dev is worth, with room for rounding, in points.

    With 10 examples, one that an early model has right by chance would decide against all later
    models: SNIPS with 100 labels had 82.8% on test so, a bag of words 92.0%. Returns 0 if dev is
    not small, or missing.
    """
    return 150.0 / num_dev if 0 < num_dev < SMALL_DEV else 0.0


@jax.jit
def _copy(params: Any) -> Any:
    """Returns a copy on the devices, which the next step does not overwrite."""
    return jax.tree.map(jnp.copy, params)


def _tracking(
    config: ConfigDict, folder: epath.Path, learning_rate: float, seed: int
) -> trackers.Tracking:
    """Returns what trackers show of a run: its name is OUTPUT/lrRATE-seedSEED."""
    output = folder.resolve().parents[1]
    values = {**config.to_dict(), "learning_rate": learning_rate, "seed": seed}
    return trackers.Tracking(config.log_to, f"{output.name}/{folder.name}", values)


def _progress_line(run: Run, num_epochs: int) -> str:
    """Returns a line of text about the last evaluation."""
    evaluation = run.evaluations[-1]
    loss = "not finite" if evaluation.loss is None else f"{evaluation.loss:.3f}"
    dev = f", dev {run.main} {evaluation.dev[run.main]:.2f}" if evaluation.dev else ""
    return (
        f"rate {run.learning_rate:g}, seed {run.seed}: epoch {evaluation.epoch:g} of {num_epochs}, "
        f"loss {loss}{dev} ({run.seconds:.0f} s)"
    )
