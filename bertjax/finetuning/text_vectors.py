"""Computes the vectors of texts with a model, in chunks that do not keep their activations.

    vectors_BNE = vectors(apply, batch, "mean", task_type.projection, count=4, training=True)

The backward pass of a chunk computes its forward pass again, from the gradient with respect to its
vectors: gradient caching (Gao et al., arXiv 2101.06983). So the memory is that of one chunk, and
the gradients are those of the whole batch. Both passes have the same dropout.

Shapes: B batch, N texts of an example, L length, D model, E vector.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from bertjax import errors, sharding
from bertjax.finetuning import projection, rows
from bertjax.models.common import heads
from bertjax.objectives.common import losses

Apply = Callable[..., losses.Batch]


def vectors(
    apply: Apply,
    batch: losses.Batch,
    pooling: str,
    kinds: tuple[str, ...],
    count: int = 1,
    *,
    training: bool = False,
) -> jax.Array:
    """Returns the vectors of all texts, float32[B, N, E].

    kinds: those of the layers behind the pooling, see `projection.kinds`. They are computed for the
    whole batch at once; count, training: see `pooled`. Pooled vectors in the batch are used instead
    of the model's (see `feature_cache`).
    """
    if projection.POOLED in batch:
        pooled_BND = batch[projection.POOLED]
    else:
        pooled_BND = pooled(apply, batch, pooling, count, training=training)
    if not kinds:
        return pooled_BND
    return apply(pooled=pooled_BND, kinds=kinds, method=projection.project)["vectors"]


def pooled(
    apply: Apply, batch: losses.Batch, pooling: str, count: int = 1, *, training: bool = False
) -> jax.Array:
    """Returns the pooled vectors of all texts, float32[B, N, D], computed in `count` chunks.

    pooling: see `heads.pool`. training: whether the backward pass computes each chunk again;
    otherwise it would need the activations of all chunks. Then the chunks also have different
    dropout.

    Short first texts are computed with their own length, see `rows.computed_length`. Packed rows
    (see `row_packing`) have as many groups for each device as there are chunks.
    """

    def of_texts(apply: Apply, inputs: losses.Batch) -> jax.Array:
        states = rows.flat(apply)(**inputs)["last_hidden_state"]
        mask_BNL = inputs["attention_mask"]
        states_BNLD = states.reshape(*mask_BNL.shape, -1)
        return heads.pool(states_BNLD, mask_BNL, pooling)

    def numbered(part: Any) -> Apply:
        return functools.partial(apply, part=part) if training else apply

    def of_rows(inputs: losses.Batch, part: Any) -> jax.Array:
        firsts = {name: x[:, :1, :first_length] for name, x in inputs.items()}
        others = {name: x[:, 1:] for name, x in inputs.items()}
        vectors = of_texts(numbered(count + part), firsts), of_texts(numbered(part), others)
        return jnp.concatenate(vectors, axis=1)

    inputs = rows.inputs(batch)
    first_length = rows.computed_first_length(batch)
    has_short = first_length < inputs["input_ids"].shape[-1]
    if count == 1:
        return of_rows(inputs, 0) if has_short else of_texts(apply, inputs)

    # Chunk m has the rows m, m + count, m + 2 count ..., so that no row changes device.
    def split(x: jax.Array) -> jax.Array:
        return jnp.swapaxes(x.reshape(-1, count, *x.shape[1:]), 0, 1)

    def of_chunk(part_and_chunk: tuple[jax.Array, losses.Batch]) -> jax.Array:
        part, chunk = part_and_chunk
        return of_rows(chunk, part) if has_short else of_texts(numbered(part), chunk)

    function = jax.checkpoint(of_chunk, prevent_cse=False) if training else of_chunk
    chunks = {name: split(jnp.asarray(x)) for name, x in inputs.items()}
    vectors = jax.lax.map(function, (jnp.arange(count), chunks))
    return jnp.swapaxes(vectors, 0, 1).reshape(-1, *vectors.shape[2:])


def num_chunks(num_rows: int, chunk_size: int) -> int:
    """Returns the number of chunks of a batch in training; 1 if `chunk_size` is 0 or not smaller.

    Raises UserError if the batch, or a chunk on the mesh, cannot be split into equal parts.
    """
    if not 0 < chunk_size < num_rows:
        return 1
    mesh = jax.sharding.get_abstract_mesh()
    shards = 1 if mesh.empty else sharding.batch_shards(mesh)
    errors.check(num_rows % chunk_size == 0 and chunk_size % shards == 0, "kind.chunk_size",
                 chunk_size, f"a divisor of config.batch_size = {num_rows}"
                 + f" and a multiple of {shards}, the number of parts into which the mesh "
                 "splits a batch" * (shards > 1))  # fmt: skip
    return num_rows // chunk_size
