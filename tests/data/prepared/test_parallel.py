"""Spawned workers: results and progress arrive, the first failure stops all, none outlives us."""

import contextlib
import errno
import os
import signal

import pytest

from bertjax import errors
from bertjax.data.prepared import parallel


def make_square(scale: int):
    def work(task: int, report) -> tuple[int, int]:
        report(task)
        return os.getpid(), scale * task * task

    return work


def make_failing(error: Exception):
    def work(task: int, report) -> int:
        if task == 3:
            raise error
        return task

    return work


def make_dying():
    def work(task: int, report) -> int:
        if task == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return task

    return work


def make_exiting():
    os._exit(7)


def _run(make_work, *arguments, processes=2, tasks=6, heard=None):
    heard = {} if heard is None else heard
    work = parallel.run(
        range(tasks), make_work, arguments, processes=processes, on_progress=heard.__setitem__
    )
    with contextlib.closing(work):
        return dict(work)


@pytest.mark.parametrize("processes", [1, 2, 9])
def test_every_task_is_done_once_and_heard_of(processes):
    heard = {}
    found = _run(make_square, 10, processes=processes, heard=heard)
    assert {task: value for task, (_, value) in found.items()} == {i: 10 * i * i for i in range(6)}
    assert heard == {i: i for i in range(6)}
    here = os.getpid() in {pid for pid, _ in found.values()}
    assert here == (processes == 1)


def test_no_task_is_no_work():
    assert _run(make_square, 1, tasks=0) == {}


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize(
    "error",
    [
        errors.UserError("a.txt line 3: bad"),
        OSError(errno.ENOSPC, "disk full", "out"),
        ZeroDivisionError("a bug"),
    ],
)
def test_a_failure_is_raised_here_as_it_was(processes, error):
    with pytest.raises(type(error)) as caught:
        _run(make_failing, error, processes=processes)
    assert str(caught.value) == str(error)
    assert getattr(caught.value, "errno", None) == getattr(error, "errno", None)


def test_the_traceback_of_a_bug_in_a_worker_is_kept():
    with pytest.raises(ZeroDivisionError) as caught:
        _run(make_failing, ZeroDivisionError("a bug"))
    assert "in work" in caught.value.__notes__[0]


@pytest.mark.parametrize(
    ("make_work", "message"),
    [(make_dying, r"was killed by signal 9 \(out of memory\?\)"), (make_exiting, "exited with 7")],
)
def test_a_dead_worker_is_one_line(make_work, message):
    with pytest.raises(errors.UserError, match=message) as caught:
        _run(make_work)
    assert "\n" not in str(caught.value)


def test_closing_early_ends_the_workers():
    work = parallel.run(
        range(6), make_square, (1,), processes=2, on_progress=lambda task, amount: None
    )
    _, (pid, _) = next(work)
    work.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
