"""What the workers of benchmarks/train_step.py share: a loop that runs steps when told to.

NOTE: imports only the standard library, because the interpreters may have different packages.
"""

import json
import resource
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

MATMUL = {"cpu": 2048, "cuda": 8192}  # {device: size of the square matmul for the peak}


def peak(product: Callable[[], object], size: int) -> float:
    """Returns the FLOP/s of the best of ten calls of a matmul of size x size matrices.

    product: computes it, and waits for the result.
    """
    seconds = []
    for _ in range(11):  # the first one compiles
        start = time.perf_counter()
        product()
        seconds.append(time.perf_counter() - start)
    return 2 * size**3 / min(seconds[1:])


def resident() -> int:
    """Returns the peak memory of the process in bytes."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def serve(
    facts: dict[str, Any], step: Callable[[], Any], memory: Callable[[], int] = resident
) -> None:
    """Prints `facts` with those of the first steps as JSON; then runs steps as stdin requests.

    Each line of stdin is a number of steps; the response is a line with the mean of a step's wall
    time and of its CPU time over all threads, in seconds, and with the peak memory in bytes. step:
    starts a step and returns its loss; float(loss) waits for it. memory: returns the peak so far.
    """
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        loss = float(step())
        seconds.append(time.perf_counter() - start)
    compile_seconds = seconds[0] - statistics.fmean(seconds[1:])
    about = {**facts, "compile_seconds": compile_seconds, "step_seconds": seconds[-1], "loss": loss}
    print(json.dumps(about), flush=True)
    for line in sys.stdin:
        count, start, cpu_start = int(line), time.perf_counter(), time.process_time()
        for _ in range(count):
            loss = step()
        float(loss)
        wall, cpu = time.perf_counter() - start, time.process_time() - cpu_start
        print(wall / count, cpu / count, memory(), flush=True)
