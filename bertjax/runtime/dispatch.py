"""Decides whether a step may be dispatched before earlier steps have finished."""

import jax


def one_at_a_time() -> bool:
    """Returns whether to wait for each step's result before the next step is dispatched.

    True on a CPU, where jax before 0.12 deadlocks if collectives of several steps are queued. A
    loop that fetches each step's result anyway, as evaluations do, need not call this function. On
    an accelerator a loop should fetch results late, so that the device does not wait for the host.
    """
    return jax.default_backend() == "cpu"
