"""Packed rows give every output, and every gradient, that the rows give one by one."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax import plugins
from bertjax.models.common import heads, row_packing
from tests.helpers import encoders, proofs

FAMILIES = [name for name in plugins.families() if plugins.family(name).KIND == "encoder"]
some_families = pytest.mark.parametrize(
    "family", proofs.all_but(FAMILIES, "bert", "roberta", "deberta", "modernbert")
)
L, SIZES = 12, (3, 12, 7, 5, 4, 9)
# {(group, packed row): (row of the group, its first place there)}; a group has three rows
PLACES = {
    (0, 0): ((1, 0), (0, 12)), (0, 1): ((2, 3),), (1, 0): ((2, 0), (1, 10)), (1, 1): ((0, 9),)
}  # fmt: skip
P = 15


def _packed_from():
    made = np.full((2, 2, P), -1, np.int32)
    for (group, packed_row), rows in PLACES.items():
        for row, start in rows:
            size = SIZES[3 * group + row]
            made[group, packed_row, start : start + size] = row * L + np.arange(size)
    return made


def _batch():
    rng, real = np.random.default_rng(0), np.arange(L) < np.array(SIZES)[:, None]
    ids, types = rng.integers(5, 100, real.shape), rng.integers(0, 2, real.shape)
    names = ("input_ids", "token_type_ids", "attention_mask")
    return {n: (x * real).astype(np.int32) for n, x in zip(names, (ids, types, 1), strict=True)}


@functools.cache
def _results(family, is_packed):
    """(outputs at the tokens, gradients of the sum of their squares)."""
    model, params = encoders.make(family, heads=_heads(family), num_labels=3)
    batch = _batch()
    mask = jnp.asarray(batch["attention_mask"])
    if is_packed:
        batch["packed_from"] = _packed_from()

    def loss(params):
        outputs = model.apply({"params": params}, **batch)
        outputs = {
            name: x * mask[:, :, None] if x.shape[:2] == mask.shape else x
            for name, x in outputs.items()
        }
        return sum((x**2).mean() for x in outputs.values()), outputs

    gradients, outputs = jax.jit(jax.grad(loss, has_aux=True))(params)
    return jax.device_get((outputs, gradients))


def _heads(family):
    known = plugins.family(family).HEADS
    return tuple(name for name in known if name in ("pooler", *heads.DOWNSTREAM))


@some_families
def test_packed_rows_have_the_outputs_and_the_gradients_of_single_rows(family):
    (alone, their_grads), (packed, grads) = _results(family, False), _results(family, True)
    assert alone.keys() == packed.keys() >= {"class_logits", "token_logits", "span_logits"}
    for name, x in alone.items():
        assert abs(x).max() > 0.01
        np.testing.assert_allclose(packed[name], x, atol=2e-5 * abs(x).max(), err_msg=name)
    largest = max(abs(x).max() for x in jax.tree.leaves(their_grads))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5 * largest), grads, their_grads
    )


def test_packing_and_back_loses_nothing():
    packed_from = _packed_from()
    ids = jnp.asarray(_batch()["input_ids"])
    packed = row_packing.pack(ids, packed_from)
    assert packed.shape == (4, P)
    assert sorted(packed[packed > 0].tolist()) == sorted(ids[ids > 0].tolist())
    back = row_packing.unpack(packed[:, :, None], packed_from, ids.shape)[:, :, 0]
    assert (np.where(ids > 0, back, 0) == ids).all()
    segments = row_packing.segments(packed_from, L)
    assert segments[0].tolist() == [2] * 12 + [1] * 3
    assert segments[1].tolist() == [0] * 3 + [3] * 7 + [0] * 5
