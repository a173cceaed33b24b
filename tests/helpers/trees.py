"""Compares trees of arrays."""

from typing import Any

import jax
import numpy as np


def assert_close(found: Any, expected: Any, rtol: float) -> None:
    """Asserts that each array differs from the expected one by `rtol` of its largest value."""
    for (path, a), b in zip(
        jax.tree_util.tree_leaves_with_path(found), jax.tree.leaves(expected), strict=True
    ):
        scale = float(np.abs(b).max())
        np.testing.assert_allclose(
            a, b, rtol=0, atol=rtol * scale, err_msg=jax.tree_util.keystr(path)
        )
