"""Rows that are copied from flat arrays: whole rows are copied faster than single values are
gathered or computed.

Shapes: B rows, L length, N values of an array.
"""

import functools

import numpy as np


def sliding(values: np.ndarray, length: int) -> np.ndarray:
    """Returns a view [N - L + 1, L] of values [N]: row i has the L values from the i-th on."""
    shape = len(values) - length + 1, length
    return np.ndarray(shape, values.dtype, values, strides=values.strides * 2)


def copied(tokens: np.ndarray, starts_B: np.ndarray, length: int) -> np.ndarray:
    """Returns int32[B, L]: `length` tokens from each start on.

    An index outside `tokens` gives the nearest token.
    """
    if len(starts_B) and 0 <= starts_B.min() and starts_B.max() + length <= len(tokens):
        return sliding(tokens, length)[starts_B].astype(np.int32)
    indices_BL = starts_B[:, None].astype(np.intp) + np.arange(length)
    return tokens.take(indices_BL, mode="clip").astype(np.int32)


def before(stops_B: np.ndarray, length: int) -> np.ndarray:
    """Returns int32[B, L]: -1 (all bits set) in the first stops_B columns of each row, then 0."""
    return sliding(_bits_then_zeros(length), length)[length - np.minimum(stops_B, length)]


@functools.cache
def _bits_then_zeros(length: int) -> np.ndarray:
    """Returns int32[2 L]."""
    return np.repeat(np.array([-1, 0], np.int32), length)
