"""Masks beside those of T5X (layers_test.py at cc342d4), and how they combine."""

import functools
import operator

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.models.common import masks


def _mask(*rows):
    return np.array([[character == "1" for character in row] for row in rows])


def _row(*ids):
    return jnp.array([ids], jnp.int32)


PACKED_CAUSAL = _mask("100000", "110000", "111000", "000100", "000110", "000000")
PREFIX = _mask("111000", "111000", "111000", "111100", "111110", "000000")
PACKED_PREFIX = _mask(
    "1100000", "1100000", "1110000", "0001100", "0001100", "0001110", "0000000"
)  # fmt: skip


def _dense(mask, queries, keys=0):
    return np.asarray(mask.dense(queries, keys or queries))[0]


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [((7, 0, 0), _mask("100", "000", "000")), ((8, 5, 0), _mask("110", "110", "000"))],
)
def test_padding(tokens, expected):
    """Theirs hides padding queries too, as segments do here; `padding` alone hides only keys."""
    real = (_row(*tokens) > 0).astype(jnp.int32)
    np.testing.assert_array_equal(_dense(masks.segments(real, real), 3), expected)
    np.testing.assert_array_equal(_dense(masks.padding(real), 3), expected[:1])


def test_packed_decoder():
    segments = _row(1, 1, 1, 2, 2, 0)
    mask = masks.causal() & masks.segments(segments, segments)
    np.testing.assert_array_equal(_dense(mask, 6), PACKED_CAUSAL)


def test_prefix_of_one_example():
    real = _row(1, 1, 1, 1, 1, 0)
    mask = masks.prefix(_row(1, 1, 1, 0, 0, 0)) & masks.padding(real)
    np.testing.assert_array_equal(_dense(mask, 6)[:5], PREFIX[:5])
    both = mask & masks.segments(real, real)
    np.testing.assert_array_equal(_dense(both, 6), PREFIX)


def test_prefix_of_packed_examples():
    segments = _row(1, 1, 1, 2, 2, 2, 0)
    mask = masks.prefix(_row(1, 1, 0, 1, 1, 0, 0)) & masks.segments(segments, segments)
    np.testing.assert_array_equal(_dense(mask, 7), PACKED_PREFIX)


def test_cross_attention_of_packed_examples():
    mask = masks.segments(_row(1, 2, 2, 0), _row(1, 1, 2, 2, 2, 0))
    expected = _mask("110000", "001110", "001110", "000000")
    np.testing.assert_array_equal(_dense(mask, 4, 6), expected)


def test_causal_is_a_prefix_of_nothing():
    nothing = masks.prefix(jnp.zeros((1, 7), jnp.int32))
    np.testing.assert_array_equal(_dense(nothing, 7), _dense(masks.causal(), 7))
    np.testing.assert_array_equal(_dense(masks.causal(), 7), np.tril(np.ones((7, 7), bool)))


def test_queries_that_begin_later_in_the_row():
    whole, part = masks.causal(), masks.causal(jnp.int32(3))
    np.testing.assert_array_equal(_dense(part, 2, 7), _dense(whole, 7)[3:5])


def test_local_window_within_segments():
    segments = _row(1, 1, 1, 1, 2, 2)
    mask = _dense(masks.local(4) & masks.segments(segments, segments), 6)
    assert mask[0].tolist() == [True, True, True, False, False, False]
    assert mask[3].tolist() == [False, True, True, True, False, False]
    assert mask[4].tolist() == [False, False, False, False, True, True]


@pytest.mark.parametrize("everywhere", [True, False])
def test_a_window_that_does_not_count_everywhere(everywhere):
    mask = jax.jit(lambda flag: masks.local(2, flag).dense(5, 5))(everywhere)
    expected = masks.Mask() if everywhere else masks.local(2)
    np.testing.assert_array_equal(mask, np.broadcast_to(expected.dense(5, 5), mask.shape))


def test_and_keeps_all_parts_and_refuses_two_of_one_kind():
    segments = _row(1, 1, 2, 2)
    parts = (
        masks.causal(), masks.local(2), masks.padding(_row(1, 0, 1, 1)),
        masks.segments(segments, segments),
    )  # fmt: skip
    both = functools.reduce(operator.and_, parts)
    expected = np.logical_and.reduce([np.broadcast_to(_dense(m, 4), (4, 4)) for m in parts])
    np.testing.assert_array_equal(_dense(both, 4), expected)
    hidden = masks.padding(_row(1, 0, 1)) & masks.padding(_row(1, 1, 0))
    np.testing.assert_array_equal(_dense(hidden, 3), _mask("100"))
    for part in (parts[0], parts[1], parts[3]):
        with pytest.raises(ValueError, match="both masks have"):
            both & part


def test_of_batch_takes_segments_before_the_attention_mask():
    attention, segments = _row(1, 1, 0), _row(1, 2, 0)
    assert _dense(masks.of_batch(None, None), 3).all()
    np.testing.assert_array_equal(
        _dense(masks.of_batch(attention, None), 3), _dense(masks.padding(attention), 3)
    )
    np.testing.assert_array_equal(
        _dense(masks.of_batch(attention, segments), 3),
        _dense(masks.segments(segments, segments), 3),
    )
