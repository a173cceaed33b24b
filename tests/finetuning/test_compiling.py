"""Compilation for several shapes at once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.finetuning import compiling


def _batch(length):
    return {"x": np.arange(float(length), dtype=np.float32)}


def test_every_shape_is_compiled_once_and_before_the_first_call():
    traced = []

    def function(factor, batch, added):
        traced.append(batch["x"].shape)
        return factor * batch["x"].sum() + added

    looks = jax.ShapeDtypeStruct((), jnp.float32)
    calls = [(looks, _batch(length), 1.0) for length in (2, 3, 5)]
    (compiled,) = compiling.for_calls([(jax.jit(function), calls)])
    assert sorted(traced) == [(2,), (3,), (5,)]
    for _ in range(2):
        for length in (5, 2, 3):
            found = compiled(jnp.float32(2), _batch(length), 0.5)
            assert found == 2 * sum(range(length)) + 0.5
    assert len(traced) == 3
    with pytest.raises(KeyError):
        compiled(jnp.float32(2), _batch(4), 0.5)


def test_what_cannot_be_compiled_is_raised():
    def function(factor, batch):
        raise ValueError(f"no {batch['x'].shape[0]}")

    with pytest.raises(ValueError, match="no 2"):
        compiling.for_calls([(jax.jit(function), [(1.0, _batch(2)), (1.0, _batch(3))])])


def test_equal_programs_are_compiled_once_and_others_are_not():
    programs = {}

    def compiled(constants):
        def function(factor, batch):
            return factor * batch["x"] + constants

        return compiling.for_calls([(jax.jit(function), [(1.0, _batch(2000))])], programs)[0]

    one, other = np.zeros(2000, np.float32), np.zeros(2000, np.float32)
    other[1000] = 7.0  # in the middle of a constant that is too long to be printed as a whole
    assert compiled(one)(2.0, _batch(2000))[1000] == 2000.0
    assert compiled(other)(2.0, _batch(2000))[1000] == 2007.0 and len(programs) == 2
    assert compiled(one.copy())(2.0, _batch(2000))[1000] == 2000.0 and len(programs) == 2


def test_an_argument_that_is_not_used_may_have_several_shapes():
    """As the tokens have when the head is trained on features that were computed before."""

    def function(factor, batch):
        return factor * batch["used"]

    calls = [(1.0, _batch(length) | {"used": np.float32(length)}) for length in (3, 5)]
    (compiled,) = compiling.for_calls([(jax.jit(function), calls)], {})
    assert [float(compiled(*call)) for call in calls] == [3.0, 5.0]
