"""Losses of vectors: both directions, margins, and the same gradients in chunks and on a mesh."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from bertjax import errors, step
from bertjax.finetuning import rows, vector_losses
from bertjax.finetuning.examples import types as examples_lib
from bertjax.finetuning.task_types import embeddings
from bertjax.models.common import heads
from bertjax.objectives.common import losses
from tests.helpers import meshes, task_types, tiny_model

TEXTS = (
    ("the cat", "the mat", "a dog"), ("a dog ran", "ran home", "the cat", "letters"),
    ("letters", "many words"), ("the mat", "sat on", "home"), ("words", "make many", "a cat"),
    ("home", "a dog"), ("saw", "the cat sat", "on the mat"), ("many", "letters make"),
)  # fmt: skip


def _random(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_both_directions_are_averaged():
    vectors = heads.unit(jnp.asarray(_random(4, 2, 8)))
    numbers, weights = np.arange(8).reshape(4, 2), np.array([1, 1, 1, 0], np.float32)

    def loss(vectors, *, symmetric):
        terms = vector_losses.ranking(vectors, numbers, weights, 20.0, symmetric=symmetric)
        return float(terms["ranking_loss"][0])

    forward, backward = loss(vectors, symmetric=False), loss(vectors[:, ::-1], symmetric=False)
    assert abs(forward - backward) > 0.1
    assert loss(vectors, symmetric=True) == pytest.approx((forward + backward) / 2, rel=1e-5)


def test_margins_are_those_of_inner_products():
    vectors = _random(3, 4, 8)
    margins, weights = _random(3, 2, seed=1), np.array([[1, 1], [1, 0], [0, 0]], np.float32)
    terms = vector_losses.margin_mse(jnp.asarray(vectors), margins, weights)
    total = 0.0
    for i, j in ((0, 0), (0, 1), (1, 0)):
        query, positive, negative = vectors[i, 0], vectors[i, 1], vectors[i, 2 + j]
        total += (query @ positive - query @ negative - margins[i, j]) ** 2
    assert [float(x) for x in terms["margin_mse_loss"]] == [pytest.approx(total, rel=1e-5), 3]


@functools.cache
def _model(dropout_rate):
    return task_types.make(embeddings, embeddings.Config(), num_layers=1, hidden_size=8,
                           num_heads=2, dropout_rate=dropout_rate)  # fmt: skip


@functools.cache
def _batch():
    examples = [examples_lib.Sentence(texts) for texts in TEXTS]
    bound = task_types.bind(embeddings, embeddings.Config(), tokenizer=tiny_model.tokenizer(),
                            lengths=rows.Lengths(12))  # fmt: skip
    encoded = bound.encode(examples)
    batch = task_types.batch_of(embeddings, embeddings.Config(), encoded)
    batch["example_weights"][-1] = 0
    return batch


def _gradients(config, dropout_rate=0.0, batch=None, loss=None):
    """Returns the loss and the gradients of one step of plain gradient descent."""
    bound = task_types.bind(embeddings, config)
    model, params = _model(dropout_rate)
    batch = _batch() if batch is None else batch
    train_step = step.make_train_step(model, loss or bound.loss, bound.normalizers,
                                      {"ranking_loss": 1.0}, optax.sgd(1.0),
                                      optax.constant_schedule(1.0))  # fmt: skip
    state, report = jax.jit(train_step)(
        step.init_state(params, optax.sgd(1.0), jax.random.key(3)), batch
    )
    gradients = jax.tree.map(lambda a, b: np.asarray(a) - np.asarray(b), params, state.params)
    assert max(abs(x).max() for x in jax.tree.leaves(gradients)) > 1e-3
    return float(report["loss"]), gradients


def _assert_equal(one, other):
    assert one[0] == pytest.approx(other[0], rel=1e-5)
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=2e-5), one[1], other[1])


@pytest.mark.proof
def test_both_passes_of_a_chunk_have_the_same_dropout_and_chunks_have_different_ones():
    """Beside the loss of chunks that are encoded once, with their activations kept."""
    config, seen = embeddings.Config(chunk_size=4), []

    def plain(apply, batch):
        inputs, parts = losses.inputs(batch, rows.INPUTS), []
        for part in range(2):
            chunk = {name: x[part::2] for name, x in inputs.items()}
            states = rows.flat(functools.partial(apply, part=part))(**chunk)["last_hidden_state"]
            mask = chunk["attention_mask"]
            states = states.reshape(*mask.shape, -1)
            sums = jnp.einsum("bnld,bnl->bnd", states, mask.astype(jnp.float32))
            parts.append(sums / jnp.maximum(mask.sum(axis=-1, keepdims=True), 1))
        vectors = jnp.stack(parts, axis=1).reshape(len(TEXTS), *parts[0].shape[1:])
        seen.append(vectors.shape)
        weights = losses.label_weights(batch)
        vectors = heads.unit(vectors)
        return vector_losses.ranking(vectors, batch["label"], weights, 20.0, symmetric=False)

    _assert_equal(_gradients(config, 0.3), _gradients(config, 0.3, loss=plain))
    assert seen == [(8, 4, 8)]


def test_chunks_and_devices_have_the_gradients_of_the_whole_batch_on_one_device():
    """The texts of all devices and of all chunks are negatives."""
    options = {"symmetric": True, "matryoshka": (4, 8)}
    single = _gradients(embeddings.Config(**options))
    mesh = meshes.of(4)
    with jax.set_mesh(mesh):
        rows_of_devices = NamedSharding(mesh, PartitionSpec("data"))
        batch = {name: jax.device_put(x, rows_of_devices) for name, x in _batch().items()}
        for chunk_size in (0, 4):
            config = embeddings.Config(**options, chunk_size=chunk_size)
            _assert_equal(_gradients(config, batch=batch), single)
        with pytest.raises(errors.UserError, match=r"a divisor of .* = 8 and a multiple of 4, the"):
            _gradients(embeddings.Config(chunk_size=2), batch=batch)


@pytest.mark.parametrize("chunk_size", [0, 4])
def test_short_first_texts_are_computed_with_their_own_length(chunk_size):
    batch, shapes = _batch(), []
    longest = int(batch["first_mask"].sum(axis=-1).max())
    short = {**batch, "first_mask": batch["first_mask"][:, :longest]}
    config = embeddings.Config(chunk_size=chunk_size)
    _assert_equal(_gradients(config, batch=short), _gradients(config))

    def apply(input_ids, part, **inputs):
        shapes.append(input_ids.shape)
        return {"last_hidden_state": jnp.zeros((*input_ids.shape, 8))}

    task_types.bind(embeddings, config).loss(apply, short)
    rows_of_a_chunk = chunk_size or 8
    length = batch["input_ids"].shape[-1]
    assert set(shapes) == {(rows_of_a_chunk, longest), (3 * rows_of_a_chunk, length)}


def test_only_the_ranking_loss_and_chunks_need_the_whole_batch():
    def needs_it(**options):
        return task_types.bind(embeddings, embeddings.Config(**options)).across_rows

    assert needs_it() and needs_it(loss="cosine", chunk_size=4)
    assert not needs_it(loss="cosine") and not needs_it(loss="margin_mse")


def test_chunks_must_divide_the_batch():
    with pytest.raises(errors.UserError, match=r"chunk_size = 3: must be a divisor of .* = 8"):
        _gradients(embeddings.Config(chunk_size=3))
