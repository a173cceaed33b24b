"""Who may see whom: boolean masks [B or 1, L or 1, S], True where query l may see key s.

They combine with & and |. Row and column numbers are places in the row, segments are examples that
were packed into it: 0 is padding, 1 and on are the examples.

    mask = masks.causal(length) & masks.segments(segment_ids, segment_ids)
"""

import jax
import jax.numpy as jnp


def padding(attention_mask_BS: jax.Array) -> jax.Array:
    """Every query sees the keys where the mask is not 0: [B, 1, S]."""
    return attention_mask_BS.astype(bool)[:, None, :]


def segments(queries_BL: jax.Array, keys_BS: jax.Array) -> jax.Array:
    """A query sees the keys of its own segment; padding sees and is seen by nothing: [B, L, S]."""
    queries_BL1, keys_B1S = queries_BL[:, :, None], keys_BS[:, None, :]
    return (queries_BL1 == keys_B1S) & (keys_B1S > 0)


def causal(length: int) -> jax.Array:
    """A query sees itself and what stands before it: [1, L, L]."""
    return jnp.tril(jnp.ones((1, length, length), bool))


def prefix(prefix_mask_BS: jax.Array) -> jax.Array:
    """Causal, but every query sees the keys where the mask is not 0 (prefix LM): [B, L, S]."""
    return causal(prefix_mask_BS.shape[1]) | padding(prefix_mask_BS)


def local(position_ids_BL: jax.Array, window: int) -> jax.Array:
    """A query sees keys at most window / 2 positions away, to either side: [B, L, L]."""
    distance_BLL = position_ids_BL[:, :, None] - position_ids_BL[:, None, :]
    return jnp.abs(distance_BLL) <= window // 2


def of_batch(
    input_ids: jax.Array, attention_mask: jax.Array | None, segment_ids: jax.Array | None
) -> jax.Array:
    """The mask of a bidirectional encoder: by segment if there are any, else by padding."""
    if segment_ids is not None:
        return segments(segment_ids, segment_ids)
    return padding(jnp.ones_like(input_ids) if attention_mask is None else attention_mask)
