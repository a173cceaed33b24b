"""Work of `prepare` in which a worker process is killed once, for runners that start processes."""

import os
import pathlib
import signal
from typing import Any

from bertjax.data.prepared import prepare_unit

UNIT = 7
FILE = "killed"  # beside the output folder; tells that a worker has been killed


def make_work(job: prepare_unit.Job) -> Any:
    """Returns the function that processes a unit. The first process that gets UNIT dies."""
    work = prepare_unit.make_work(job)
    marker = pathlib.Path(job.output).parent / FILE

    def killed_once(unit: prepare_unit.Unit, report: Any) -> Any:
        if unit.index == UNIT and not marker.exists():
            marker.write_text(str(os.getpid()))
            os.kill(os.getpid(), signal.SIGKILL)
        return work(unit, report)

    return killed_once
