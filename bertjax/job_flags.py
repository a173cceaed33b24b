"""Command-line flags for jobs of several processes, shared by `pretrain` and `finetune`."""

import argparse
import contextlib
from collections.abc import Callable

from bertjax.runtime import distributed


def add(parser: argparse.ArgumentParser) -> None:
    """Declares the flags."""
    parser.add_argument("--coordinator", metavar="HOST:PORT", help="address of process 0")
    parser.add_argument("--num_processes", type=int, metavar="N", help="number of processes")
    parser.add_argument(
        "--process_id", type=int, metavar="I", help="index of this process, 0 to N - 1"
    )
    parser.add_argument(
        "--distributed",
        action="store_true",
        help="take the values of the three flags above from TPU metadata or SLURM",
    )
    parser.add_argument(
        "--heartbeat_seconds",
        type=int,
        default=distributed.HEARTBEAT_SECONDS,
        metavar="S",
        help="seconds of silence after which a process counts as dead; default: %(default)s",
    )
    parser.add_argument(
        "--startup_seconds",
        type=int,
        default=distributed.STARTUP_SECONDS,
        metavar="S",
        help="seconds within which all processes must connect; default: %(default)s",
    )


def is_one_of_several(flags: argparse.Namespace) -> bool:
    """Returns whether this process belongs to a job of several processes."""
    place = distributed.place(flags.coordinator, flags.num_processes, flags.process_id)
    return place is not None or flags.distributed or distributed.on_several_hosts()


def joined(
    flags: argparse.Namespace, resume_advice: Callable[[], str]
) -> contextlib.AbstractContextManager[None]:
    """Returns a context manager that joins the job; it does nothing if there is only one process.

    resume_advice: called when another process has died; returns a text that says how to resume.
    """
    if not is_one_of_several(flags):
        return contextlib.nullcontext()
    return distributed.job(
        distributed.place(flags.coordinator, flags.num_processes, flags.process_id),
        restart_hint=resume_advice,
        heartbeat_seconds=flags.heartbeat_seconds,
        startup_seconds=flags.startup_seconds,
    )
