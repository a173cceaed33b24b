"""Saves and restores the resumable state of a run, with Orbax.

Each saved step has a folder, `<folder>/<step>/`, which contains the arrays of the state, `meta`
(JSON), the metrics for ranking, and `checksums.json`. Invariants:

- A folder whose name is a bare number is complete. Orbax writes under a temporary name and renames
  at the end (on gs:// it writes a commit file last), so a killed save is never loaded.
- The restored state equals the saved one bit for bit. Orbax does not detect flipped bytes in an
  array, so every file's checksum is stored before the rename and verified before use.
- A checkpoint is moved into `.deleted` before it is deleted, so that a killed process never leaves
  a half-deleted folder under a bare number (on gs:// Orbax deletes it in place).

In a run of several processes, every process must make every call.

Example:
    checkpoints = checkpoint.Checkpoints("run/checkpoints", keep_last=3, keep_best=1)
    checkpoints.save(100, state, {"config": config}, {"eval/loss": 2.5})
    state, meta = checkpoints.restore(abstract_state)
    params = checkpoint.Reader("run/checkpoints").restore_params(abstract_params)
"""

import contextlib
import errno
import logging
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from etils import epath
from jax.experimental import multihost_utils
from orbax.checkpoint.checkpoint_managers import preservation_policy

from bertjax import checksums, errors, preservation, schema

# How long the processes of a job wait for each other in a save; a longer save fails.
_SAVE_SECONDS = 1200
_DELETED = ".deleted"
_DISK_FAILED = tuple(map(os.strerror, (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)))


def _suppress_duplicate_reports() -> None:
    """Silences duplicate reports of a failed read or write; the raised error is the only report.

    Orbax also logs the failure with a traceback. If several writes fail together, only the first
    error can be caught; asyncio's log and callbacks on a closed event loop report the others.
    """
    logging.getLogger("absl").addFilter(lambda record: "orbax" not in record.pathname)
    logging.getLogger("asyncio").addFilter(lambda record: "OCDBT" not in record.getMessage())
    original_hook = sys.unraisablehook
    sys.unraisablehook = lambda unraisable: (
        None if "Event loop is closed" in str(unraisable.exc_value) else original_hook(unraisable)
    )


_suppress_duplicate_reports()


class _Manager(ocp.CheckpointManager):
    """Orbax's manager, except that it ignores damaged metrics of a checkpoint."""

    def metrics(self, step: int) -> dict[str, float] | None:
        """Returns the metrics of `step`; None if it has none or they are damaged."""
        folder = self.directory / str(step)
        file = folder / "metrics" / "metrics"
        if not file.exists() or checksums.damage(folder, prefix="metrics/"):
            return None
        try:
            return schema.typed(schema.read_object(file, ""), dict[str, schema.Score], file, "")
        except errors.UserError:
            return None

    def delete_unkept(self) -> None:
        """Deletes the checkpoints that the policy does not keep; every process must call it."""
        for step in self._get_old_steps_to_remove():
            self.delete(step)


class Reader:
    """Reads the checkpoints of a folder without changing it; safe while a run writes there."""

    def __init__(self, folder: str | os.PathLike):
        # Lightweight: does not load the metrics, which only a writer needs for ranking.
        options = ocp.CheckpointManagerOptions(read_only=True, lightweight_initialize=True)
        self._open(folder, options)

    def _open(self, folder: str | os.PathLike, options: ocp.CheckpointManagerOptions) -> None:
        self.folder = epath.Path(folder)
        # Orbax needs an absolute path; resolve() and absolute() of epath would break gs://.
        remote = "://" in os.fspath(folder)
        self._root = self.folder if remote else epath.Path(os.path.abspath(folder))
        self._manager = _Manager(
            self._root,
            options=options,
            item_handlers={
                "state": ocp.PyTreeCheckpointHandler(),
                "meta": ocp.JsonCheckpointHandler(),
            },
        )

    def steps(self) -> list[int]:
        """Returns the steps of the checkpoints, ascending, including one that is being saved."""
        return sorted(self._manager.all_steps())

    def latest_step(self) -> int | None:
        """Returns the newest finished step; None if there is none."""
        return self._manager.latest_step()

    def restore(self, abstract_state: Any, step: int | None = None) -> tuple[Any, dict[str, Any]]:
        """Returns (state, meta) of `step` (default: the newest).

        abstract_state: pytree of `jax.ShapeDtypeStruct`s with shardings, on any mesh. Floating
        point leaves are cast to the dtypes given there.

        Raises UserError if there is no such checkpoint, if it is damaged, or if its paths, shapes
        or dtypes (other than floating point) differ from those of `abstract_state`.
        """
        step = self._verified_step(step)
        self._check_fit(step, abstract_state, prefix=())
        state = _restore_args(abstract_state)
        items = ocp.args.Composite(state=state, meta=ocp.args.JsonRestore())
        restored = self._manager.restore(step, args=items)
        return restored["state"], restored["meta"]

    def restore_params(
        self, abstract_params: Any, step: int | None = None, name: str = "params"
    ) -> Any:
        """Returns the parameters only; like `restore`, but the rest of the state is not loaded.

        name: the field of the state to load, "params" or "ema".
        """
        step = self._verified_step(step)
        self._check_fit(step, abstract_params, prefix=(name,))
        params = _restore_args({name: abstract_params}, partial_restore=True)
        restored = self._manager.restore(step, args=ocp.args.Composite(state=params))
        return restored["state"][name]

    def meta(self, step: int | None = None) -> dict[str, Any]:
        """Returns the meta of `step` (default: the newest) without reading the state."""
        step = self._verified_step(step, prefix="meta/")
        items = ocp.args.Composite(meta=ocp.args.JsonRestore())
        return self._manager.restore(step, args=items)["meta"]

    def close(self) -> None:
        """Closes Orbax's manager."""
        self._manager.close()

    def _verified_step(self, step: int | None, prefix: str = "") -> int:
        """Returns `step`, by default the newest, after verifying files of its checkpoint.

        prefix: of the names of the files to verify, such as "meta/"; "" means all files.
        Raises UserError if there is no such checkpoint or if a file is damaged.
        """
        self._manager.wait_until_finished()
        steps = self.steps()
        if not steps:
            raise errors.UserError(f"{self.folder}: contains no complete checkpoint; train first")
        if step is None:
            step = steps[-1]
        if step not in steps:
            available = ", ".join(map(str, steps))
            raise errors.UserError(
                f"{self.folder}: contains no checkpoint of step {step}; the steps are {available}"
            )
        damage = self._damage(step, prefix)
        if not damage:
            return step
        earlier = [s for s in reversed(steps) if s < step]
        intact_step = next((s for s in earlier if not self._damage(s)), None)
        if intact_step is None:
            remedy = "no earlier one is intact; delete that folder to start from the beginning"
        else:
            remedy = (
                f"delete that folder to resume from step {intact_step}, "
                f"or give --model={self.folder / str(intact_step)}"
            )
        raise errors.UserError(
            f"checkpoint {self.folder / str(step)} is damaged ({damage}): {remedy}"
        )

    def _damage(self, step: int, prefix: str = "") -> str:
        damage = checksums.damage(
            self._root / str(step),
            prefix=prefix,
            share=jax.process_index(),
            shares=jax.process_count(),
        )
        # If only the process that finds the damage stopped, the others would wait for it.
        if jax.process_count() > 1:
            flags = multihost_utils.process_allgather(np.array(bool(damage)))
            damage = damage or ("found by another process" if flags.any() else "")
        return damage

    def _check_fit(self, step: int, target: Any, prefix: tuple[str, ...]) -> None:
        """Raises UserError unless the stored tree below path `prefix` matches `target`."""
        stored = {
            path: leaf
            for path, leaf in _leaves_by_path(self._manager.item_metadata(step)["state"].tree)
            if path[: len(prefix)] == prefix
        }
        mismatch = _mismatch(
            stored, {prefix + path: _as_stored(leaf) for path, leaf in _leaves_by_path(target)}
        )
        if mismatch:
            raise errors.UserError(
                f"checkpoint {self.folder / str(step)} does not match this config: {mismatch}; use "
                "the config that it was saved with, or another workdir"
            )


class Checkpoints(Reader):
    """Reads and writes the checkpoints of one run.

    `save` returns once the state is copied off the devices, and writes in the background. An error
    in the background is raised by the next `save`, `wait` or `close`.
    """

    def __init__(
        self,
        folder: str | os.PathLike,
        *,
        keep_last: int,
        keep_best: int,
        keep_every: int = 0,
        best_metric: str = "eval/loss",
        regular: Callable[[int], bool] = lambda step: True,
    ):
        """Creates `folder` if it is absent; removes half-written and half-deleted checkpoints.

        Keeps the newest checkpoint, the newest `keep_last` checkpoints of the steps for which
        `regular` returns True, all of these whose step is a multiple of `keep_every` (if it is not
        0), and the `keep_best` checkpoints with the lowest `best_metric`. A checkpoint that was
        saved without a finite value of that metric is not ranked. A checkpoint whose metrics are
        damaged cannot be ranked, and is always kept.
        """
        self._best_metric = best_metric
        self._save_step: int | None = None
        best = preservation_policy.BestN(
            get_metric_fn=self._rank,
            reverse=True,  # sorts in descending order; Orbax keeps the end of the list
            n=keep_best,
            keep_checkpoints_without_metrics=False,
        )
        pinned: set[int] = set()
        keep = preservation.Keep(keep_last, regular, keep_every, pinned)
        options = ocp.CheckpointManagerOptions(
            cleanup_tmp_directories=True,
            best_fn=self._rank,  # without it Orbax does not store the metrics
            preservation_policy=preservation_policy.AnyPreservationPolicy([keep, best]),
            todelete_subdir=_DELETED,
            async_options=ocp.AsyncOptions(
                timeout_secs=_SAVE_SECONDS, post_finalization_callback=self._write_checksums
            ),
        )
        self.folder = epath.Path(folder)
        with self._writing():
            self._open(folder, options)
            self._remove_deleted()
        for step in self.steps():
            damage = checksums.damage(self._root / str(step), prefix="metrics/")
            if damage:
                pinned.add(step)
                if jax.process_index() == 0:
                    errors.tell(
                        f"warning: checkpoint {self.folder / str(step)} is damaged ({damage}): it "
                        "is not ranked, and is kept until you delete it"
                    )

    def save(
        self, step: int, state: Any, meta: Mapping[str, Any], metrics: Mapping[str, float] | None
    ) -> None:
        """Starts to save `state` as step `step`, unless that step is saved already.

        The caller may donate the arrays as soon as this returns. Raises UserError, here or at a
        later call, if the disk is full or not writable.
        """
        if step in self.steps():
            with self._writing():
                self._remove_unkept()
            return
        if metrics is not None and not math.isfinite(metrics.get(self._best_metric, math.nan)):
            metrics = None
        items = ocp.args.Composite(
            state=ocp.args.PyTreeSave(state), meta=ocp.args.JsonSave(dict(meta))
        )
        self.wait()
        self._save_step = step
        with self._writing():
            # force: the train loop decides when to save, not Orbax.
            scores = metrics and {name: float(value) for name, value in metrics.items()}
            self._manager.save(step, args=items, metrics=scores, force=True)

    def wait(self) -> None:
        """Blocks until the running save is complete on disk."""
        with self._writing():
            self._manager.wait_until_finished()
            self._remove_deleted()

    def close(self) -> None:
        """Waits for the running save, then ends the background threads."""
        with self._writing():
            self._manager.close()
            self._remove_deleted()

    def _remove_unkept(self) -> None:
        """Deletes superfluous checkpoints that remain because a save was killed."""
        self._manager.wait_until_finished()
        self._manager.delete_unkept()
        self._remove_deleted()

    def _remove_deleted(self) -> None:
        folder = self._root / _DELETED
        if jax.process_index() == 0 and folder.exists():
            folder.rmtree()

    def _rank(self, metrics: Mapping[str, float]) -> float:
        return metrics[self._best_metric]

    def _write_checksums(self) -> None:
        """Writes checksums.json. Orbax calls this on process 0 just before the commit."""
        partial = self._root / f"{self._save_step}{ocp.utils.TMP_DIR_SUFFIX}"
        checksums.write(partial if partial.exists() else self._root / str(self._save_step))

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            # TensorStore raises ValueError if the disk fails, so only the error text identifies it.
            failure = next((text for text in _DISK_FAILED if text in str(error)), "")
            if not failure and not isinstance(error, OSError):
                raise
            if self._save_step is None:
                reason = failure or error
                raise errors.UserError(f"cannot write to {self.folder}: {reason}") from error
            self._manager.reload()
            latest = self.latest_step()
            status = "no step is saved yet" if latest is None else f"step {latest} is complete"
            raise errors.UserError(
                f"cannot write checkpoint {self.folder / str(self._save_step)}: {failure or error}"
                f"; {status}: free space or repair the disk, then run the same command again"
            ) from error


def _restore_args(target: Any, **options: Any) -> ocp.args.PyTreeRestore:
    if any(leaf.sharding is None for leaf in jax.tree.leaves(target)):
        raise ValueError("restore needs a sharding on every leaf of its target")
    arguments = ocp.checkpoint_utils.construct_restore_args(target)
    return ocp.args.PyTreeRestore(target, restore_args=arguments, **options)


def _leaves_by_path(tree: Any) -> list[tuple[tuple[str, ...], Any]]:
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    name = jax.tree_util.keystr
    return [(tuple(name((key,), simple=True) for key in path), leaf) for path, leaf in leaves]


def _as_stored(leaf: Any) -> Any:
    """Returns the leaf as Orbax stores it, which is an integer array for a typed PRNG key."""
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct(leaf.shape, leaf.dtype))
    return leaf


def _mismatch(stored: Mapping[tuple[str, ...], Any], target: Mapping[tuple[str, ...], Any]) -> str:
    """Returns a description of the first difference between the trees; "" if they match."""
    for path, leaf in target.items():
        if path not in stored:
            return f"it has no {'/'.join(path)}, expected {_describe(leaf)}"
        saved = stored[path]
        if tuple(saved.shape) != tuple(leaf.shape) or not _is_castable(saved.dtype, leaf.dtype):
            return f"its {'/'.join(path)} is {_describe(saved)}, expected {_describe(leaf)}"
    unexpected = ("/".join(path) for path in stored if path not in target)
    return next((f"it has an unexpected {path}" for path in unexpected), "")


def _is_castable(stored: Any, target: Any) -> bool:
    return stored == target or all(jnp.issubdtype(d, jnp.floating) for d in (stored, target))


def _describe(leaf: Any) -> str:
    return f"{jnp.dtype(leaf.dtype).name}[{','.join(map(str, leaf.shape))}]"
