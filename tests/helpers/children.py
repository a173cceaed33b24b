"""The environment variables of the processes that tests start."""

import os
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[2]


def environment(devices: int = 1) -> dict[str, str]:
    """Returns the tests' own environment, with `devices` virtual devices and bertjax importable.

    It keeps the tests' XLA flags for quick compilation.
    """
    flags = os.environ["XLA_FLAGS"].replace("device_count=8", f"device_count={devices}")
    return os.environ | {"PYTHONPATH": str(ROOT), "XLA_FLAGS": flags}
