"""Runs functions and commands in forked children, with limits and faults in file operations.

A child starts in milliseconds, because the parent has imported the modules of the commands. NOTE:
the parent must never use JAX itself: a backend does not survive a fork.
"""

import ctypes
import dataclasses
import faulthandler
import mmap
import os
import pathlib
import resource
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable

from bertjax import __main__ as cli

MEMORY = 6 << 30  # bytes
MODES = {"off": 0, "count": 1, "kill": 2, "no space": 3, "io error": 4, "short write": 5}
SOURCE = pathlib.Path(__file__).with_name("faults_interposed.c")


class Plan(ctypes.Structure):
    """The interposed library's `struct plan`, in memory that all processes share."""

    _fields_ = [
        ("mode", ctypes.c_long), ("at", ctypes.c_long), ("count", ctypes.c_long),
        ("fired", ctypes.c_long), ("root", ctypes.c_char * 4096),
    ]  # fmt: skip


def build(library: pathlib.Path) -> None:
    """Compiles the interposed library."""
    command = ["gcc", "-shared", "-fPIC", "-O1", "-o", str(library), str(SOURCE), "-ldl"]
    subprocess.run(command, check=True)


def environment(library: pathlib.Path, plan: pathlib.Path) -> dict[str, str]:
    """Writes an empty plan to the file `plan`; returns the environment variables that use it."""
    plan.write_bytes(bytes(ctypes.sizeof(Plan)))
    return {"LD_PRELOAD": str(library), "FAULTS_PLAN": str(plan)}


def plan() -> Plan:
    """Returns this process's plan. Raises KeyError if it was started without one."""
    with open(os.environ["FAULTS_PLAN"], "r+b") as file:
        return Plan.from_buffer(mmap.mmap(file.fileno(), 0))


@dataclasses.dataclass(frozen=True)
class Result:
    """The end of a child. code: exit code, negative for a signal; limit: "hang", "memory" or ""."""

    code: int
    limit: str
    out: str
    err: str
    seconds: float
    memory: int  # bytes, the largest resident size

    def complaint(self, *codes: int) -> str:
        """Returns what is wrong with the end of a command that may exit with `codes`; or ""."""
        if self.limit:
            return self.limit
        if "Traceback (most recent call last)" in self.err:
            return f"traceback: {self.err.strip().splitlines()[-1]}"
        if self.code not in codes:
            last = self.err.strip().splitlines()[-1:]
            return f"exit code {self.code}: {' '.join(last)}"
        lines = [line for line in self.err.splitlines() if line.startswith("bertjax: error: ")]
        if self.code == 2 and len(lines) != 1:
            return f"exit code 2 with {len(lines)} lines of error"
        return ""


def call(
    function: Callable[[], int],
    log: pathlib.Path,
    seconds: float,
    faults: tuple[Plan, str, int, pathlib.Path] | None = None,
    sigterm_after: float | None = None,
) -> Result:
    """Runs `function`, which returns the exit code, in a child; its output goes to `log`.

    seconds: limit of wall time. faults: (plan, mode, number of the operation, folder).
    sigterm_after: seconds after which to send SIGTERM; None: never.
    """
    out, err = log.with_suffix(".out"), log.with_suffix(".err")
    began = time.monotonic()
    child = os.fork()
    if child == 0:
        _run(function, out, err, faults)
    code, limit, sent, peak = None, "", sigterm_after is None, 0
    while code is None:
        pid, status, usage = os.wait4(child, os.WNOHANG)
        if pid:
            code, peak = os.waitstatus_to_exitcode(status), max(peak, usage.ru_maxrss << 10)
            break
        took = time.monotonic() - began
        if not sent and took >= sigterm_after:
            sent = True
            os.kill(child, signal.SIGTERM)
        peak = max(peak, _resident(child))
        limit = limit or ("hang" if took > seconds else "memory" if peak > MEMORY else "")
        if limit:
            os.killpg(child, signal.SIGKILL)
        time.sleep(0.01)
    try:
        os.killpg(child, signal.SIGKILL)  # processes that the child started and left running
    except ProcessLookupError:
        pass
    if faults:
        faults[0].mode = MODES["off"]
    took = time.monotonic() - began
    texts = [path.read_text("utf-8", "replace") if path.exists() else "" for path in (out, err)]
    return Result(code, limit, *texts, took, peak)


def _run(function, out, err, faults) -> None:
    code = 1
    try:
        os.setsid()
        for path, number in ((out, 1), (err, 2)):
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(file, number)
        sys.stdin = open(os.devnull)
        sys.stdout, sys.stderr = os.fdopen(1, "w", errors="replace"), os.fdopen(2, "w")
        sys.stderr.reconfigure(errors="backslashreplace")
        faulthandler.enable()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if faults:
            shared, mode, number, root = faults
            shared.root, shared.at, shared.count = os.fsencode(root), number, 0
            shared.fired, shared.mode = 0, MODES[mode]
        code = function()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        if faults:
            faults[0].mode = MODES["off"]
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)


def _resident(process: int) -> int:
    try:
        with open(f"/proc/{process}/statm") as file:
            return int(file.read().split()[1]) * mmap.PAGESIZE
    except (OSError, IndexError):
        return 0


def command(folder: pathlib.Path, argv: list[str], log: pathlib.Path, seconds: float, **options):
    """Runs `bertjax ARGV` in `folder`; see `call`."""

    def run() -> int:
        os.chdir(folder)
        return cli.main(argv)

    return call(run, log, seconds, **options)
