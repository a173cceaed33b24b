"""Attention masks, stored as parts, so that a kernel need not build the dense mask.

The parts are padding, segments, causality and a local window. A query may attend to a key if every
part allows it. The place of a query or key is its index in the row. Segments are the examples
packed into a row: 0 is padding, the examples are numbered from 1.

    mask = masks.causal() & masks.segments(segment_ids, segment_ids)
    mask.dense(length, length)  # bool [B or 1, L or 1, S]

Shapes: B batch, L queries, S keys.
"""

import dataclasses
import functools
import operator
from typing import Any

import jax
import jax.numpy as jnp

# The parts of a `Mask`, each with its fields. A mask has a part if the part's first field
# is set.
_PARTS = (
    ("keys",),
    ("query_segments", "key_segments"),
    ("causal", "prefix", "start"),
    ("window", "everywhere", "everywhere_share"),
)


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=("keys", "query_segments", "key_segments", "prefix", "start", "everywhere"),
    meta_fields=("causal", "window", "everywhere_share"),
)
@dataclasses.dataclass(frozen=True, eq=False)
class Mask:
    """An attention mask, whose parts restrict the keys that a query attends to.

    Build one with the functions below. A mask without parts does not restrict anything.

    keys: [B or 1, S]; where it is 0, the key is hidden from all queries.
    query_segments [B or 1, L], key_segments [B or 1, S]: a query sees only keys of its segment.
    causal: a query sees only keys at its place or before it. prefix: [B or 1, S]; where it is not
    0, the key is exempt from `causal`. start: int32[], the place of the first query; None means 0.
    window: a query sees only keys at most window / 2 places away; 0 means no limit. everywhere:
    bool[], True disables the window; it is an array so that it can differ between the layers of one
    loop. everywhere_share: the share of these layers in which it is True, for estimates of cost.
    """

    keys: jax.Array | None = None
    query_segments: jax.Array | None = None
    key_segments: jax.Array | None = None
    prefix: jax.Array | None = None
    start: jax.Array | None = None
    everywhere: jax.Array | None = None
    causal: bool = False
    window: int = 0
    everywhere_share: float = 1.0

    def __and__(self, other: "Mask") -> "Mask":
        """Returns the intersection. Raises ValueError if both have the same part (except keys)."""
        fields: dict[str, Any] = {}
        for part in _PARTS:
            owners = [mask for mask in (self, other) if mask._has(part[0])]
            if len(owners) == 2 and part != ("keys",):
                raise ValueError(f"both masks have {part[0]}")
            if len(owners) == 2:
                fields["keys"] = self.keys.astype(bool) & other.keys.astype(bool)
            else:
                fields |= {name: getattr(owner, name) for owner in owners for name in part}
        return Mask(**fields)

    def _has(self, name: str) -> bool:
        value = getattr(self, name)
        return value is not None and not (isinstance(value, int) and value == 0)

    def dense(self, num_queries: int, num_keys: int) -> jax.Array:
        """Returns bool [B or 1, L or 1, S]: True where a query may attend to a key.

        num_queries, num_keys: L and S.
        """
        parts = [jnp.ones((1, 1, num_keys), bool)]
        if self.keys is not None:
            parts.append(self.keys.astype(bool)[:, None, :])
        if self.query_segments is not None:
            queries_BL1, keys_B1S = self.query_segments[:, :, None], self.key_segments[:, None, :]
            parts.append((queries_BL1 == keys_B1S) & (keys_B1S > 0))
        if self.causal or self.window:
            start = 0 if self.start is None else self.start
            places_1L1 = start + jnp.arange(num_queries)[None, :, None]
            distance_1LS = jnp.arange(num_keys)[None, None] - places_1L1
        if self.causal:
            past_1LS = distance_1LS <= 0
            parts.append(
                past_1LS if self.prefix is None else past_1LS | self.prefix.astype(bool)[:, None, :]
            )
        if self.window:
            near_1LS = jnp.abs(distance_1LS) <= self.window // 2
            parts.append(near_1LS if self.everywhere is None else near_1LS | self.everywhere)
        return functools.reduce(operator.and_, parts)


def padding(attention_mask_BS: jax.Array) -> Mask:
    """Returns the mask in which each query attends to the keys where attention_mask is not 0."""
    return Mask(keys=attention_mask_BS)


def segments(queries_BL: jax.Array, keys_BS: jax.Array) -> Mask:
    """Returns the mask in which each query attends to the keys of the query's segment.

    Queries of padding (segment 0) attend to nothing, and no query attends to keys of padding.
    """
    return Mask(query_segments=queries_BL, key_segments=keys_BS)


def causal(start: jax.Array | None = None) -> Mask:
    """Returns the mask in which each query attends to the keys at its place and before it.

    start: int32[], the place of the first query; None means 0.
    """
    return Mask(causal=True, start=start)


def prefix(prefix_mask_BS: jax.Array) -> Mask:
    """Returns the mask of a prefix LM: causal, except for keys where prefix_mask is not 0.

    All queries attend to these keys.
    """
    return Mask(causal=True, prefix=prefix_mask_BS)


def local(window: int, everywhere: jax.Array | None = None, everywhere_share: float = 1.0) -> Mask:
    """Returns the mask in which each query attends to keys at most window / 2 places away.

    The window extends to both sides. Places are indices in the row. Within a segment, which is
    contiguous, distances between places equal distances between position ids. everywhere: bool[],
    True disables the window. everywhere_share: see `Mask`.
    """
    return Mask(window=window, everywhere=everywhere, everywhere_share=everywhere_share)


def of_batch(attention_mask: jax.Array | None, segment_ids: jax.Array | None) -> Mask:
    """Returns a bidirectional mask, from segment_ids if given, else from attention_mask."""
    if segment_ids is not None:
        return segments(segment_ids, segment_ids)
    return Mask(keys=attention_mask)
