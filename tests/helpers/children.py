"""The environment of the processes that tests start."""

import os
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[2]


def environment(devices: int = 1) -> dict[str, str]:
    """That of the tests, quick compiles included, with so many devices; bertjax is found."""
    flags = os.environ["XLA_FLAGS"].replace("device_count=8", f"device_count={devices}")
    return os.environ | {"PYTHONPATH": str(ROOT), "XLA_FLAGS": flags}
