"""Whether a step may be dispatched before the steps before it are done."""

import jax


def one_at_a_time() -> bool:
    """Returns whether to wait for each step's result before the next step is dispatched.

    True on a CPU: its backends before jax 0.12 deadlock when collectives of several steps queue up.
    A loop that fetches each step's result anyway, as evaluations do, needs no check. On an
    accelerator a loop should fetch late, so that the device does not wait for the host.
    """
    return jax.default_backend() == "cpu"
