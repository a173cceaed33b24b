"""Masks beside those of T5X (layers_test.py at cc342d4), and how they combine."""

import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.models import masks


def _mask(*rows):
    return np.array([[character == "1" for character in row] for row in rows])


def _row(*ids):
    return jnp.array([ids], jnp.int32)


PACKED_CAUSAL = _mask("100000", "110000", "111000", "000100", "000110", "000000")
PREFIX = _mask("111000", "111000", "111000", "111100", "111110", "000000")
PACKED_PREFIX = _mask(
    "1100000", "1100000", "1110000", "0001100", "0001100", "0001110", "0000000"
)  # fmt: skip


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [((7, 0, 0), _mask("100", "000", "000")), ((8, 5, 0), _mask("110", "110", "000"))],
)
def test_padding(tokens, expected):
    """Theirs hides padding queries too, as segments do here; `padding` alone hides only keys."""
    real = (_row(*tokens) > 0).astype(jnp.int32)
    np.testing.assert_array_equal(masks.segments(real, real)[0], expected)
    assert masks.padding(real).shape == (1, 1, 3)
    np.testing.assert_array_equal(masks.padding(real)[0], expected[:1])


def test_packed_decoder():
    segments = _row(1, 1, 1, 2, 2, 0)
    mask = masks.causal(6) & masks.segments(segments, segments)
    np.testing.assert_array_equal(mask[0], PACKED_CAUSAL)


def test_prefix_of_one_example():
    real = _row(1, 1, 1, 1, 1, 0)
    mask = masks.prefix(_row(1, 1, 1, 0, 0, 0)) & masks.padding(real)
    np.testing.assert_array_equal(mask[0, :5], PREFIX[:5])
    both = mask & masks.segments(real, real)
    np.testing.assert_array_equal(both[0], PREFIX)


def test_prefix_of_packed_examples():
    segments = _row(1, 1, 1, 2, 2, 2, 0)
    mask = masks.prefix(_row(1, 1, 0, 1, 1, 0, 0)) & masks.segments(segments, segments)
    np.testing.assert_array_equal(mask[0], PACKED_PREFIX)


def test_cross_attention_of_packed_examples():
    mask = masks.segments(_row(1, 2, 2, 0), _row(1, 1, 2, 2, 2, 0))
    expected = _mask("110000", "001110", "001110", "000000")
    np.testing.assert_array_equal(mask[0], expected)


def test_causal_is_a_prefix_of_nothing():
    np.testing.assert_array_equal(masks.prefix(jnp.zeros((1, 7), jnp.int32)), masks.causal(7))
    np.testing.assert_array_equal(masks.causal(7)[0], np.tril(np.ones((7, 7), bool)))


def test_local_window_by_positions_that_restart():
    mask = masks.local(_row(0, 1, 2, 3, 0, 1), 4)[0]
    assert mask[0].tolist() == [True, True, True, False, True, True]
    assert mask[3].tolist() == [False, True, True, True, False, True]


def test_of_batch_takes_segments_before_the_attention_mask():
    ids, attention, segments = _row(5, 6, 7), _row(1, 1, 0), _row(1, 2, 0)
    assert masks.of_batch(ids, None, None).all()
    np.testing.assert_array_equal(masks.of_batch(ids, attention, None), masks.padding(attention))
    np.testing.assert_array_equal(
        masks.of_batch(ids, attention, segments), masks.segments(segments, segments)
    )
