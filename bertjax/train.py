"""Trains a model as a config describes, and evaluates it on held-out data.

    train.train_and_evaluate(config.load("configs/bert_base.py"), "run/")

Between two steps the order is: evaluate, save, stop if requested. The saved state contains `step`,
and `step` determines the next batch. A run that is killed and restarted therefore computes the same
as an uninterrupted one.
"""

import contextlib
import functools
import os
import time
from collections.abc import Mapping
from typing import Any

import jax
import ml_collections
import numpy as np
from etils import epath

from bertjax import (
    checkpoint,
    errors,
    evaluate,
    mixing,
    plugins,
    profiler,
    progress,
    run_header,
    run_log,
    run_starts,
    sharding,
    step_log,
    trackers,
    training_data,
)
from bertjax import config as config_lib
from bertjax import experiment as experiment_lib
from bertjax import phases as phases_lib
from bertjax import step as step_lib
from bertjax import workdir as workdir_lib
from bertjax.artifact import artifact, initial, loading
from bertjax.data.prepared import sources, store
from bertjax.objectives.common import hooks
from bertjax.planning import auto
from bertjax.runtime import distributed, signals


def train_and_evaluate(
    config: ml_collections.ConfigDict,
    workdir: str | os.PathLike,
    traced_steps: range = range(0),
    *,
    branch_from: str | os.PathLike | None = None,
    origin: run_starts.Origin | None = None,
) -> dict[str, float]:
    """Trains until step `config.num_steps`; resumes from the newest checkpoint of `workdir` if any.

    traced_steps: the steps to trace with `profiler.StepTrace`, which writes to WORKDIR/profile.
    branch_from: a checkpoint of another run, RUN/checkpoints/STEP, from which a new run starts; its
    first STEP steps must be those that `config` would have computed. origin: the command and the
    recipe, which are recorded in the workdir.

    Returns the last held-out metrics. Raises UserError for errors that the user can fix. After a
    SIGTERM, saves the state and raises Preempted. After a first Ctrl-C, saves the state and raises
    KeyboardInterrupt.
    """
    config_lib.validate(config)
    trackers.check_installed(config.log_to)
    mesh = make_mesh(config)
    experiment_lib.check_mesh(config, mesh)
    train_data, heldout_data = open_data(config)
    source = None
    if config.init_from and branch_from is None and workdir_lib.saved_step(workdir) is None:
        source = loading.load(config.init_from)
        initial.check(source, config, train_data)
    tokenizer = train_data.load_tokenizer()
    vocabulary = tokenizer.vocabulary()
    experiment_lib.check_vocabulary(config, vocabulary)
    experiment_lib.check_data(config, train_data)
    if jax.process_index() == 0:
        for warning in experiment_lib.data_warnings(config, vocabulary, heldout_data):
            errors.tell(f"warning: {warning}")
    frozen = loading.frozen_artifacts(config, train_data)
    config = initial.pinned(config)
    identity = workdir_lib.identity(
        config,
        tokenizer.fingerprint,
        train_data.fingerprint,
        {name: artifact.fingerprint(model) for name, model in frozen.items()},
    )
    shared_identity = workdir_lib.without_paths(identity)
    distributed.check_same({**shared_identity, "mesh": dict(mesh.shape)})
    branch = None
    if branch_from is not None and workdir_lib.saved_step(workdir) is None:
        branch = workdir_lib.branch(branch_from, identity)
    experiment = experiment_lib.Experiment(config, frozen_models(config, frozen))
    data = training_data.TrainingData(experiment, train_data, vocabulary)
    rows = functools.partial(sharding.local_rows, mesh)
    with contextlib.ExitStack() as stack:
        busy = "another process trains in it; wait for it, or give another --workdir"
        stack.enter_context(workdir_lib.locked(workdir, busy))
        workdir_lib.claim(workdir, identity, tokenizer.save)
        distributed.check_shared(epath.Path(workdir) / workdir_lib.CONFIG)
        stack.enter_context(jax.set_mesh(mesh))
        stop = stack.enter_context(signals.StopSignals())
        checkpoints = open_checkpoints(config, workdir)
        stack.callback(checkpoints.close)
        if jax.process_index() == 0:
            run_header.show(experiment, mesh, train_data, heldout_data, data, workdir, source)
        saved_step = checkpoints.latest_step()
        with stage(
            "initialising the state" if saved_step is None else f"restoring step {saved_step:,}"
        ):
            if branch is None:
                state, meta = first_state(
                    experiment, mesh, checkpoints, train_data, frozen, source
                )
                del source
            else:
                state = branch_state(experiment, mesh, *branch)
                meta = {}
        frozen_params = place_frozen(mesh, frozen)
        start = int(state.step)
        run_starts.record(workdir, start, origin)
        if "saved_at" in meta:
            run_log.print_resumed(workdir, start, meta["saved_at"])
        log = stack.enter_context(
            step_log.StepLog(
                workdir,
                start,
                config.num_steps,
                experiment.scales,
                log_every=config.log_every,
                tracking=trackers.Tracking(
                    config.log_to, epath.Path(workdir).resolve().name, config.to_dict()
                ),
                unlogged=meta.get(step_log.UNLOGGED, {}),
                max_bad_steps=config.max_bad_steps,
                diverged=functools.partial(_raise_diverged, checkpoints),
                more=data.metrics,
            )
        )
        trace = stack.enter_context(
            profiler.StepTrace(traced_steps, epath.Path(workdir) / profiler.FOLDER)
        )

        @functools.cache
        def unigram(phase: phases_lib.Phase) -> np.ndarray:
            with stage("computing the unigram baseline"):
                return experiment.unigram(data, phase)

        token_bytes = sharding.replicate(mesh, experiment_lib.token_bytes(config, tokenizer))
        batches = experiment.train_batches(data, start, rows)
        phases = phases_lib.of(config)
        unigram(data.last_alike(phases_lib.at_step(phases, start + 1)))
        parts = {phase: experiment.at(phase) for phase in phases}
        train_steps = {phase: experiment.train_step(phase, mesh) for phase in phases}
        eval_steps = {phase: part.eval_step() for phase, part in parts.items()}
        compiled: set[tuple[Any, ...]] = set()

        def heldout_scores(params: Any, phase: phases_lib.Phase) -> dict[str, float]:
            # The same after a resume, because it does not depend on the phases trained so far.
            baseline = unigram(data.last_alike(phase))
            by_source = {
                name: evaluate.evaluate(
                    eval_steps[phase], params,
                    experiment.eval_batches(dataset, vocabulary, phase, rows),
                    mesh, phase.forward_size, experiment.scales, baseline, frozen_params,
                    token_bytes,
                )
                for name, dataset in sources.by_name(heldout_data).items()
            }  # fmt: skip
            return mixing.mean_scores(by_source, data.weights(phase))

        for step in range(start, config.num_steps + 1):
            trained_phase = phases_lib.at_step(phases, step)
            phase = phases_lib.at_step(phases, step + 1)  # in which the next step is trained
            is_last = step == config.num_steps
            stop_requested = stop.reached(step)
            eval_due = is_last or (step > start and step % config.eval.every == 0)
            save_due = (
                eval_due or stop_requested or (step > start and step % config.checkpoint.every == 0)
            )
            with log.paused() if save_due else contextlib.nullcontext():
                if eval_due:
                    log.note("evaluating")
                    heldout = heldout_scores(state.params, trained_phase)
                    if config.ema_decay:
                        ema_scores = heldout_scores(state.ema, trained_phase)
                        heldout |= step_log.prefixed("ema", ema_scores)
                    if step > start:  # a finished run that is restarted has logged this already
                        log.heldout(step, heldout)
                if save_due:
                    meta = {**vars(identity), "step": step, "saved_at": time.time()}
                    meta[step_log.UNLOGGED] = log.unlogged()
                    # Losses at different lengths are not comparable: only the last phase is ranked.
                    is_ranked = eval_due and trained_phase == phases[-1]
                    scores = step_log.prefixed("eval", heldout) if is_ranked else None
                    checkpoints.save(step, state, meta, scores)
            if is_last or stop_requested:
                break
            with trace.step(step + 1):
                with log.waiting():
                    local_batch = next(batches)
                batch = sharding.global_batch(mesh, phase.batch_size, local_batch)
                program = train_steps[phase], phase.batch_size, phase.length
                is_new = program not in compiled
                if step == phase.start and step and jax.process_index() == 0:
                    errors.tell(phases_lib.described(phases, phase))
                with stage("compiling the train step") if is_new else contextlib.nullcontext():
                    state, report = train_steps[phase](state, batch, frozen_params, token_bytes)
                compiled.add(program)
                tokens = phase.batch_size * phase.length
                flops = phase.batch_size * parts[phase].flops_per_sequence(phase.length)
                log.step(step + 1, report, tokens, flops, timed=not is_new)
            trace.end(step + 1, report)

        checkpoints.wait()
        if stop_requested and not is_last:
            if stop.requested == "SIGINT":
                raise errors.Interrupted
            raise errors.Preempted(
                f"stopped on request: saved step {step} in {workdir}; run the same command again "
                "to resume"
            )
    return heldout


def stage(label: str) -> contextlib.AbstractContextManager[progress.Done]:
    """Returns a context manager that prints `label` on process 0 while its block runs."""
    return progress.stage(label, shown=jax.process_index() == 0)


def make_mesh(config: ml_collections.ConfigDict) -> jax.sharding.Mesh:
    """Returns the mesh of `config.mesh`; for "auto", prints the chosen mesh."""
    mesh = auto.mesh_of(config, jax.devices())
    if config.mesh == "auto" and mesh != "data:1" and jax.process_index() == 0:
        errors.tell(f"using mesh {mesh} on {jax.device_count()} devices")
    return sharding.make_mesh(mesh)


def open_data(config: ml_collections.ConfigDict) -> tuple[sources.Data, sources.Data]:
    """Returns the train split and the held-out split of the prepared data.

    Raises UserError if data.path is not set, if nothing is held out, or if the two splits were
    prepared with different tokenizers.
    """
    if config.data.sources:
        paths = mixing.paths(config)
        return sources.open_split(paths, "train"), sources.open_split(paths, "heldout")
    if not config.data.path:
        raise errors.UserError(
            "config.data.path is not set: give --config.data.path=FOLDER, a folder written by "
            "`bertjax prepare`"
        )
    train = store.open_dataset(config.data.path, "train")
    if config.data.heldout_path:
        heldout = store.open_heldout(config.data.heldout_path)
    else:
        heldout = store.open_dataset(config.data.path, "heldout")
    if not heldout.num_records:
        raise errors.UserError(
            f"config.data.path = {config.data.path}: has no held-out documents; prepare it with "
            "--heldout_fraction above 0, or set config.data.heldout_path"
        )
    if heldout.tokenizer_fingerprint != train.tokenizer_fingerprint:
        raise errors.UserError(
            f"config.data.heldout_path = {config.data.heldout_path}: has a different "
            f"tokenizer from config.data.path = {config.data.path}; prepare both with the same one"
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
        keep_every=config.checkpoint.keep_every,
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
    return {
        name: plugins.model(model.family, model.fields, compute) for name, model in frozen.items()
    }


def place_frozen(
    mesh: jax.sharding.Mesh, frozen: Mapping[str, artifact.Artifact]
) -> dict[str, Any]:
    """Returns the frozen models' parameters, sharded over the mesh like the model's own."""
    params = {name: {"params": model.params} for name, model in frozen.items()}
    sharded = jax.device_put(params, sharding.state_shardings(mesh, params))
    return {name: tree["params"] for name, tree in sharded.items()}


def first_state(
    experiment: experiment_lib.Experiment,
    mesh: jax.sharding.Mesh,
    checkpoints: checkpoint.Checkpoints,
    data: sources.Data,
    frozen: Mapping[str, artifact.Artifact],
    source: artifact.Artifact | None = None,
) -> tuple[step_lib.TrainState, dict[str, Any]]:
    """Returns the newest checkpoint's state and its meta, or a fresh state and an empty meta.

    Each array is created with its sharding. The parameters of a fresh state are copied from
    `source`, the model at `config.init_from`, if it is given; parameters that it lacks are random.
    If it is not given, the objective's hook `first_params` may copy parameters from the frozen
    models.
    """
    abstract_state = experiment.abstract_state(mesh)
    if checkpoints.latest_step() is not None:
        return checkpoints.restore(abstract_state)
    shardings = jax.tree.map(lambda leaf: leaf.sharding, abstract_state)
    key = jax.random.key(experiment.config.seed)
    state = jax.jit(experiment.init_state, out_shardings=shardings)(key)
    if source is not None:
        params = initial.params(source, experiment.config, data, state.params)
        state = step_lib.with_params(state, jax.device_put(params, shardings.params))
    elif frozen:
        models = {n: hooks.Frozen(a.fields, artifact.flatten(a.params)) for n, a in frozen.items()}
        fresh_params, fields = artifact.flatten(state.params), experiment.config.model
        params = experiment.hooks.first_params(
            experiment.objective_config, fresh_params, fields, models
        )
        if params is not None:
            params = jax.device_put(artifact.unflatten(params), shardings.params)
            state = step_lib.with_params(state, params)
    return state, {}


def branch_state(
    experiment: experiment_lib.Experiment, mesh: jax.sharding.Mesh, run: epath.Path, step: int
) -> step_lib.TrainState:
    """Returns the state that the run in the workdir `run` saved at `step`."""
    with loading.open_checkpoints(run) as checkpoints:
        return checkpoints.restore(experiment.abstract_state(mesh), step)[0]


def _raise_diverged(checkpoints: checkpoint.Checkpoints, step: int, in_row: int) -> None:
    """Raises UserError, because the last `in_row` steps up to `step` were not finite."""
    checkpoints.wait()
    good_step = checkpoints.latest_step()
    status = "no checkpoint has been saved: lower config.optimizer.learning_rate and start again"
    if good_step is not None:
        path = checkpoints.folder / str(good_step)
        status = (
            "lower config.optimizer.learning_rate and start in a new workdir, with "
            f"--config.init_from={path} to keep the parameters of the last good checkpoint"
        )
    raise errors.UserError(
        f"the loss or the gradient was not finite in {in_row} steps in a row, up to step {step}; "
        f"{status}"
    )
