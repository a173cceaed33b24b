"""Runs tasks in worker processes. The first failure stops all workers; none outlives the parent.

    for task, result in parallel.run(tasks, make_work, (path,), processes=4, on_progress=print):
        ...

`make_work(*arguments)` is called once in each process and returns the function
`work(task, report)`, which returns a result. `report(amount)` calls `on_progress` in the parent.
Processes are spawned, not forked, because JAX's threads do not survive a fork. Functions,
arguments, tasks and results are sent by pickle.
"""

import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable, Generator, Iterator, Sequence
from multiprocessing import connection, resource_tracker
from typing import Any

from bertjax import errors

Report = Callable[[int], None]
Work = Callable[[Any, Report], Any]
# Runs (tasks, make_work, arguments, on_progress=...) as `run` does. Yields (task, result), or
# nothing if the results are only in files.
Runner = Callable[..., Generator[tuple[Any, Any], None, None]]


def run(
    tasks: Sequence[Any],
    make_work: Callable[..., Work],
    arguments: tuple[Any, ...],
    *,
    processes: int,
    on_progress: Callable[[Any, int], None],
) -> Iterator[tuple[Any, Any]]:
    """Yields (task, result) as tasks finish; calls `on_progress(task, amount)` for each report.

    With one process or one task, runs in this process. An exception in a worker is raised here. If
    a worker process dies, UserError is raised. In both cases all other workers are stopped at once.
    """
    if min(processes, len(tasks)) <= 1:
        work = make_work(*arguments) if tasks else None
        for task in tasks:
            yield task, work(task, lambda amount, task=task: on_progress(task, amount))
        return
    queue = list(reversed(tasks))
    workers = _start(min(processes, len(tasks)), make_work, arguments)
    busy: dict[connection.Connection, Any] = {}
    try:
        for pipe in workers:
            busy[pipe] = queue.pop()
            _send(pipe, busy[pipe], workers)
        while busy:
            for pipe in connection.wait(list(busy)):
                kind, value = _receive(pipe, busy[pipe], workers)
                if kind == "progress":
                    on_progress(busy[pipe], value)
                elif kind == "failed":
                    raise value
                else:
                    yield busy.pop(pipe), value
                    if queue:
                        busy[pipe] = queue.pop()
                        _send(pipe, busy[pipe], workers)
    finally:
        for pipe, process in workers.items():
            process.terminate()
            process.join()
            pipe.close()


def _start(
    processes: int, make_work: Callable[..., Work], arguments: tuple[Any, ...]
) -> dict[connection.Connection, Any]:
    context = multiprocessing.get_context("spawn")
    workers = {}
    # Ctrl-C sends SIGINT to the whole process group. Workers inherit the blocked SIGINT, so only
    # the parent receives it and then stops the workers. The resource tracker of multiprocessing
    # must be started before SIGINT is blocked, because starting it unblocks SIGINT.
    resource_tracker.ensure_running()
    old_mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        for _ in range(processes):
            parent_end, child_end = context.Pipe()
            process = context.Process(
                target=_worker, args=(child_end, make_work, arguments), daemon=True
            )
            process.start()
            child_end.close()  # so that the pipe closes when the worker dies
            workers[parent_end] = process
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, old_mask)
    return workers


def _send(
    pipe: connection.Connection, task: Any, workers: dict[connection.Connection, Any]
) -> None:
    try:
        pipe.send(task)
    except BrokenPipeError:
        raise _death_error(pipe, workers) from None


def _receive(
    pipe: connection.Connection, task: Any, workers: dict[connection.Connection, Any]
) -> tuple[str, Any]:
    try:
        return pipe.recv()
    except (EOFError, ConnectionResetError):
        raise _death_error(pipe, workers) from None


def _death_error(
    pipe: connection.Connection, workers: dict[connection.Connection, Any]
) -> Exception:
    workers[pipe].join()
    code = workers[pipe].exitcode
    cause = f"was killed by signal {-code} (out of memory?)" if code < 0 else f"exited with {code}"
    return errors.UserError(
        f"a worker process {cause}; run the same command again to resume; fewer --workers need "
        "less memory"
    )


def _worker(
    pipe: connection.Connection, make_work: Callable[..., Work], arguments: tuple[Any, ...]
) -> None:
    # There is one process per core already: threads inside `tokenizers` would compete for cores.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    try:
        work = make_work(*arguments)
        while True:
            task = pipe.recv()
            pipe.send(("done", work(task, lambda amount: pipe.send(("progress", amount)))))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return  # the parent has exited
    except Exception as error:
        if not isinstance(error, (errors.UserError, OSError)):
            error.add_note("".join(traceback.format_exception(error)))
        pipe.send(("failed", error))


def cpus() -> int:
    """Returns the number of CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
