"""Trains a model as a config describes, and evaluates it on held-out data.

    train.train_and_evaluate(config.load("configs/bert_base.py"), "run/")

At every step boundary the order is: evaluate, save, stop if requested; then take a batch and step.
The saved state holds `step`, and `step` determines the next batch. A run that is killed and
restarted therefore computes the same as an uninterrupted one.
"""

import contextlib
import functools
import math
import os
import time
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import jax
import ml_collections
from etils import epath

from bertjax import (
    checkpoint,
    errors,
    evaluate,
    metrics,
    plugins,
    progress,
    run_header,
    run_log,
    sharding,
)
from bertjax import config as config_lib
from bertjax import (
    experiment as experiment_lib,
)
from bertjax import step as step_lib
from bertjax import (
    workdir as workdir_lib,
)
from bertjax.artifact import artifact, loading, vocabulary_transfer
from bertjax.data.prepared import store
from bertjax.objectives.common import hooks
from bertjax.plan import auto
from bertjax.runtime import distributed, signals

UNLOGGED = "unlogged"  # in the meta of a checkpoint: sums of the steps since the last line


def train_and_evaluate(
    config: ml_collections.ConfigDict, workdir: str | os.PathLike
) -> dict[str, float]:
    """Trains to `config.num_steps`, from the newest checkpoint of `workdir` if there is one.

    Returns the last held-out metrics. Raises UserError for errors that the user can fix. After a
    SIGTERM raises Preempted, after a first Ctrl-C KeyboardInterrupt, both with the state saved.
    """
    config_lib.validate(config)
    mesh = make_mesh(config)
    experiment_lib.check_mesh(config, mesh)
    train_data, heldout_data = open_data(config)
    tokenizer = train_data.load_tokenizer()
    vocabulary = tokenizer.vocabulary()
    experiment_lib.check_vocabulary(config, vocabulary)
    experiment_lib.check_data(config, train_data)
    if jax.process_index() == 0:
        for warning in experiment_lib.data_warnings(config, vocabulary, heldout_data):
            errors.tell(f"warning: {warning}")
    frozen = loading.frozen_artifacts(config, train_data)
    identity = workdir_lib.identity(
        config,
        tokenizer.fingerprint,
        train_data.fingerprint,
        {name: artifact.fingerprint(model) for name, model in frozen.items()},
    )
    shared = workdir_lib.without_paths(identity)
    distributed.check_same({**shared, "mesh": dict(mesh.shape)})
    workdir_lib.claim(workdir, identity, tokenizer.save)
    distributed.check_shared(epath.Path(workdir) / workdir_lib.CONFIG)

    experiment = experiment_lib.Experiment(config, frozen_models(config, frozen))
    rows = functools.partial(sharding.local_rows, mesh)
    with contextlib.ExitStack() as stack:
        stack.enter_context(jax.set_mesh(mesh))
        stop = stack.enter_context(signals.StopSignals())
        checkpoints = open_checkpoints(config, workdir)
        stack.callback(checkpoints.close)
        if jax.process_index() == 0:
            run_header.show(experiment, mesh, train_data, heldout_data, vocabulary, workdir)
        saved = checkpoints.latest_step()
        with stage("making the first state" if saved is None else f"reading step {saved:,}"):
            state, meta = first_state(experiment, mesh, checkpoints, train_data, frozen)
        frozen_params = place_frozen(mesh, frozen)
        start = int(state.step)
        if "saved_at" in meta:
            run_log.tell_resumed(workdir, start, meta["saved_at"])
        log = stack.enter_context(StepLog(experiment, workdir, start, checkpoints, meta))
        eval_step = experiment.eval_step()
        with stage("counting the unigram model"):
            unigram = experiment.unigram(train_data, vocabulary)
        batches = experiment.train_batches(train_data, vocabulary, start, rows)
        phases = config_lib.phases(config)
        train_steps = {phase: experiment.train_step(phase, mesh) for phase in phases}

        for step in range(start, config.num_steps + 1):
            phase = next((p for p in phases if step < p.stop), phases[-1])
            last = step == config.num_steps
            asked = stop.reached(step)
            evaluates = last or (step > start and step % config.eval.every == 0)
            saves = evaluates or asked or (step > start and step % config.checkpoint.every == 0)
            with log.paused() if saves else contextlib.nullcontext():
                if evaluates:
                    log.note("evaluating")
                    held = experiment.eval_batches(heldout_data, vocabulary, phase, rows)
                    heldout = evaluate.evaluate(
                        eval_step, state.params, held, mesh, config_lib.forward_size(config, phase),
                        experiment.scales, unigram, frozen_params,
                    )  # fmt: skip
                    if step > start:  # a finished run that is restarted has written it already
                        log.heldout(step, heldout)
                if saves:
                    meta = {**vars(identity), "step": step, "saved_at": time.time()}
                    meta[UNLOGGED] = log.unlogged()
                    # Losses at different lengths cannot be ranked: only the last phase counts.
                    ranked = evaluates and phase == phases[-1]
                    scores = _prefixed("eval", heldout) if ranked else None
                    checkpoints.save(step, state, meta, scores)
            if last or asked:
                break
            batch = sharding.global_batch(mesh, phase.batch_size, next(batches))
            with log.compiling(phase):
                state, report = train_steps[phase](state, batch, frozen_params)
            log.step(step + 1, phase, report)

        checkpoints.wait()
        if asked and not last:
            if stop.requested == "SIGINT":
                raise errors.Interrupted
            raise errors.Preempted(f"asked to stop: saved step {step} in {workdir}; start me again")
    return heldout


def stage(what: str) -> contextlib.AbstractContextManager[progress.Done]:
    """Returns a context manager that prints `what` on process 0 while its block runs."""
    return progress.stage(what, shown=jax.process_index() == 0)


def make_mesh(config: ml_collections.ConfigDict) -> jax.sharding.Mesh:
    """Returns the mesh of `config.mesh`; for "auto", prints the chosen mesh."""
    mesh = auto.mesh_of(config, jax.devices())
    if config.mesh == "auto" and mesh != "data:1" and jax.process_index() == 0:
        errors.tell(f"mesh {mesh} of {jax.device_count()} devices")
    return sharding.make_mesh(mesh)


def open_data(config: ml_collections.ConfigDict) -> tuple[store.Dataset, store.Dataset]:
    """Returns the train split and the held-out split of the prepared data.

    Raises UserError if data.path is not set, if nothing is held out, or if the two splits were
    prepared with different tokenizers.
    """
    if not config.data.path:
        raise errors.UserError(
            "config.data.path is not set: give --config.data.path=FOLDER, as `bertjax prepare` "
            "wrote it"
        )
    train = store.open_dataset(config.data.path, "train")
    if config.data.heldout_path:
        heldout = store.open_heldout(config.data.heldout_path)
    else:
        heldout = store.open_dataset(config.data.path, "heldout")
    if not heldout.num_records:
        raise errors.UserError(
            f"config.data.path = {config.data.path} holds nothing out: prepare it with "
            "--heldout_fraction above 0, or set config.data.heldout_path"
        )
    if heldout.tokenizer_fingerprint != train.tokenizer_fingerprint:
        raise errors.UserError(
            f"config.data.heldout_path = {config.data.heldout_path} was prepared with another "
            f"tokenizer than config.data.path = {config.data.path}"
        )
    return train, heldout


def open_checkpoints(
    config: ml_collections.ConfigDict, workdir: str | os.PathLike
) -> checkpoint.Checkpoints:
    """Opens the checkpoints of a workdir for reading and writing."""
    return checkpoint.Checkpoints(
        epath.Path(workdir) / workdir_lib.CHECKPOINTS,
        keep_last=config.checkpoint.keep_last,
        keep_best=config.checkpoint.keep_best,
        regular=lambda step: (
            step == config.num_steps
            or (step > 0 and 0 in (step % config.checkpoint.every, step % config.eval.every))
        ),
    )


def frozen_models(
    config: ml_collections.ConfigDict, frozen: Mapping[str, artifact.Artifact]
) -> dict[str, Any]:
    """Returns the Linen modules of the frozen models, with the run's own compute settings."""
    compute = plugins.compute(config)
    return {name: plugins.model(a.family, a.fields, compute) for name, a in frozen.items()}


def place_frozen(
    mesh: jax.sharding.Mesh, frozen: Mapping[str, artifact.Artifact]
) -> dict[str, Any]:
    """Returns the frozen models' parameters, sharded over the mesh like the model's own."""
    params = {name: {"params": model.params} for name, model in frozen.items()}
    placed = jax.device_put(params, sharding.state_shardings(mesh, params))
    return {name: tree["params"] for name, tree in placed.items()}


def first_state(
    experiment: experiment_lib.Experiment,
    mesh: jax.sharding.Mesh,
    checkpoints: checkpoint.Checkpoints,
    data: store.Dataset,
    frozen: Mapping[str, artifact.Artifact],
) -> tuple[step_lib.TrainState, dict[str, Any]]:
    """Returns the newest checkpoint's state and its meta, or a fresh state and an empty meta.

    Each array is created with its sharding. A fresh state starts from `config.init_from`, or from
    what the objective takes over from its frozen models.

    Raises UserError if `config.init_vocabulary` is "same" and `config.init_from` was trained with
    another tokenizer than the data's.
    """
    abstract = experiment.abstract_state(mesh)
    if checkpoints.latest_step() is not None:
        return checkpoints.restore(abstract)
    places = jax.tree.map(lambda leaf: leaf.sharding, abstract)
    key = jax.random.key(experiment.config.seed)
    state = jax.jit(experiment.init_state, out_shardings=places)(key)
    if experiment.config.init_from:
        model = loading.load(experiment.config.init_from)
        if experiment.config.init_vocabulary == "same":
            loading.check_data(
                model,
                data,
                f"config.init_from = {experiment.config.init_from}",
                "; or, to keep the embeddings of the pieces that both tokenizers have, add "
                "--config.init_vocabulary=shared_pieces",
            )
        else:
            tokenizer = data.load_tokenizer()
            size = experiment.config.model.vocab_size
            model = vocabulary_transfer.carry_over(model, tokenizer, state.params, size)
        loading.check_fields(model, experiment.config.model)
        params = loading.overlay_params(model, experiment.config.family, state.params)
        state = state.replace(params=jax.device_put(params, places.params))
    elif frozen:
        models = {n: hooks.Frozen(a.fields, artifact.flatten(a.params)) for n, a in frozen.items()}
        fresh, fields = artifact.flatten(state.params), experiment.config.model
        found = experiment.hooks.first_params(experiment.objective_config, fresh, fields, models)
        if found is not None:
            state = state.replace(params=jax.device_put(artifact.unflatten(found), places.params))
    return state, {}


def _prefixed(prefix: str, values: dict[str, Any]) -> dict[str, float]:
    return {f"{prefix}/{name}": float(value) for name, value in values.items()}


class StepLog:
    """Logs the steps without making the device wait: reads a step's metrics while the next runs.

    The logged losses are means over the steps since the last line: the sum of sums divided by the
    sum of weights, without skipped steps. A checkpoint between two lines holds the sums so far, so
    that a run that is killed and restarted writes the same lines.

    Raises UserError after `config.max_bad_steps` non-finite steps in a row.
    """

    def __init__(
        self,
        experiment: experiment_lib.Experiment,
        workdir: str | os.PathLike,
        start: int,
        checkpoints: checkpoint.Checkpoints,
        meta: Mapping[str, Any] = MappingProxyType({}),
    ):
        """meta: the meta of the checkpoint that the run resumes from."""
        self._sums: metrics.Terms = dict(meta[UNLOGGED]) if UNLOGGED in meta else {}
        self._experiment, self._config = experiment, experiment.config
        self._checkpoints = checkpoints
        self._writers = run_log.Writers(workdir, start_step=start, num_steps=self._config.num_steps)
        self._unread: tuple[int, dict[str, jax.Array]] | None = None
        self._phase: config_lib.Phase | None = None
        self._on_cpu = jax.default_backend() == "cpu"
        self._restart_clock()

    def __enter__(self) -> "StepLog":
        return self

    def __exit__(self, *_: object) -> None:
        self._writers.close()

    def step(self, number: int, phase: config_lib.Phase, report: dict[str, jax.Array]) -> None:
        """Logs the step before `number`, which was just dispatched; on a CPU, `number` itself."""
        if not self._on_cpu:
            self._read()
        self._unread = number, report
        self._tokens += phase.batch_size * phase.length
        self._flops += phase.batch_size * self._experiment.flops_per_sequence(phase.length)
        if phase != self._phase:  # do not count the compilation of its first step in the speed
            self._phase = phase
            jax.block_until_ready(report["loss"])
            self._restart_clock()
        if self._on_cpu:  # CPU backends before jax 0.12 deadlock when collectives queue up
            self._read()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Logs the last step and stops the clock during the block, which does no training."""
        self._read()
        self._writers.flush()
        self._seconds += time.perf_counter() - self._since
        yield
        self._since = time.perf_counter()

    def compiling(self, phase: config_lib.Phase) -> contextlib.AbstractContextManager[Any]:
        """Prints "compiling the train step" around the first call of a phase."""
        if phase == self._phase:
            return contextlib.nullcontext()
        return stage("compiling the train step")

    def note(self, what: str) -> None:
        """Shows `what` on the terminal: the work that is done between two steps."""
        self._writers.note(what)

    def unlogged(self) -> dict[str, list[float]]:
        """Returns sums and weights of the steps since the last line, for a checkpoint's meta."""
        return {name: list(term) for name, term in self._sums.items()}

    def heldout(self, step: int, values: dict[str, float]) -> None:
        """Writes held-out metrics."""
        self._writers.write(step, _prefixed("eval", values))
        self._writers.flush()

    def _read(self) -> None:
        if self._unread is None:
            return
        (number, report), self._unread = self._unread, None
        read = jax.device_get({name: report[name] for name in ("skipped_in_row", "terms")})
        in_row = int(read["skipped_in_row"])
        if not in_row:
            self._sums = metrics.add(self._sums or None, jax.tree.map(float, read["terms"]))
        if number % self._config.log_every == 0 or number == self._config.num_steps:
            self._write(number, report)
        else:
            self._writers.advance(number)
        if in_row >= self._config.max_bad_steps:
            self._diverged(number, in_row)

    def _write(self, number: int, report: dict[str, jax.Array]) -> None:
        names = ("learning_rate", "grad_norm", "skipped")
        general = {name: float(jax.device_get(report[name])) for name in names}
        values = metrics.means(self._sums)
        loss = metrics.total_loss(values, self._experiment.scales) if values else math.nan
        if number % self._config.log_every == 0:  # the last step may be logged off the period
            self._sums = {}
        seconds = self._seconds + time.perf_counter() - self._since
        line = {**_prefixed("train", {"loss": loss, **values}), **general}
        if self._tokens:
            line["tokens_per_second"] = self._tokens / seconds
            mfu = metrics.mfu(self._flops / seconds)
            if mfu is not None:
                line["mfu"] = mfu
        self._writers.write(number, line)
        self._restart_clock()

    def _restart_clock(self) -> None:
        self._seconds = self._tokens = self._flops = 0.0
        self._since = time.perf_counter()

    def _diverged(self, number: int, in_row: int) -> None:
        self._checkpoints.wait()
        good = self._checkpoints.latest_step()
        kept = "there is no checkpoint yet"
        if good is not None:
            kept = f"the last good checkpoint is {self._checkpoints.folder / str(good)}"
        raise errors.UserError(
            f"loss or gradient was not finite in {in_row} steps in a row, up to step {number}; "
            f"{kept}: lower config.optimizer.learning_rate and start in a new workdir, with "
            "--config.init_from=CHECKPOINT to keep what was learned"
        )
