"""Who may see whom, kept as what it is made of, so that a kernel need not build it whole.

A mask has parts; query l may see key s where every part that it has allows it. Row and column
numbers are places in the row, segments are examples that were packed into it: 0 is padding, 1 and
on are the examples.

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

# Which fields belong together; a mask has the part if it has the first of them.
_PARTS = (
    ("keys",),
    ("query_segments", "key_segments"),
    ("causal", "prefix", "start"),
    ("window", "everywhere"),
)


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=("keys", "query_segments", "key_segments", "prefix", "start", "everywhere"),
    meta_fields=("causal", "window"),
)
@dataclasses.dataclass(frozen=True, eq=False)
class Mask:
    """The parts; without any, everyone sees everyone. The functions below make them.

    keys: [B or 1, S], 0 where a key is hidden from all. query_segments [B or 1, L], key_segments
    [B or 1, S]: a query sees the keys of its own segment.
    causal: a query sees itself and what stands before it; prefix: [B or 1, S], but for the keys
    where it is not 0, which all see; start: int32[], the place of the first query (None: 0).
    window: a query sees keys at most window / 2 places away (0: any); everywhere: bool[], the
    window does not count where it is True, which the layers of one loop may differ in.
    """

    keys: jax.Array | None = None
    query_segments: jax.Array | None = None
    key_segments: jax.Array | None = None
    prefix: jax.Array | None = None
    start: jax.Array | None = None
    everywhere: jax.Array | None = None
    causal: bool = False
    window: int = 0

    def __and__(self, other: "Mask") -> "Mask":
        """Both. ValueError where both have the same part, unless that is hidden keys."""
        fields: dict[str, Any] = {}
        for part in _PARTS:
            sides = [mask for mask in (self, other) if mask._has(part[0])]
            if len(sides) == 2 and part != ("keys",):
                raise ValueError(f"both masks have {part[0]}")
            if len(sides) == 2:
                fields["keys"] = self.keys.astype(bool) & other.keys.astype(bool)
            else:
                fields |= {name: getattr(side, name) for side in sides for name in part}
        return Mask(**fields)

    def _has(self, name: str) -> bool:
        value = getattr(self, name)
        return value is not None and not (isinstance(value, int) and value == 0)

    def dense(self, queries: int, keys: int) -> jax.Array:
        """bool [B or 1, L or 1, S], True where a key may be seen; L queries, S keys."""
        parts = [jnp.ones((1, 1, keys), bool)]
        if self.keys is not None:
            parts.append(self.keys.astype(bool)[:, None, :])
        if self.query_segments is not None:
            queries_BL1, keys_B1S = self.query_segments[:, :, None], self.key_segments[:, None, :]
            parts.append((queries_BL1 == keys_B1S) & (keys_B1S > 0))
        if self.causal or self.window:
            first = 0 if self.start is None else self.start
            distance_1LS = (jnp.arange(keys) - (first + jnp.arange(queries))[:, None])[None]
        if self.causal:
            before = distance_1LS <= 0
            parts.append(
                before if self.prefix is None else before | self.prefix.astype(bool)[:, None, :]
            )
        if self.window:
            near = jnp.abs(distance_1LS) <= self.window // 2
            parts.append(near if self.everywhere is None else near | self.everywhere)
        return functools.reduce(operator.and_, parts)


def padding(attention_mask_BS: jax.Array) -> Mask:
    """Every query sees the keys where the mask is not 0."""
    return Mask(keys=attention_mask_BS)


def segments(queries_BL: jax.Array, keys_BS: jax.Array) -> Mask:
    """A query sees the keys of its own segment; padding sees and is seen by nothing."""
    return Mask(query_segments=queries_BL, key_segments=keys_BS)


def causal(start: jax.Array | None = None) -> Mask:
    """A query sees itself and what stands before it. start: the place of the first query."""
    return Mask(causal=True, start=start)


def prefix(prefix_mask_BS: jax.Array) -> Mask:
    """Causal, but every query sees the keys where the mask is not 0 (prefix LM)."""
    return Mask(causal=True, prefix=prefix_mask_BS)


def local(window: int, everywhere: jax.Array | None = None) -> Mask:
    """A query sees keys at most window / 2 places away, to either side.

    Since a segment lies in one piece, the places of two of its tokens are as far apart as their
    positions. everywhere: bool[], True where the window does not count.
    """
    return Mask(window=window, everywhere=everywhere)


def of_batch(attention_mask: jax.Array | None, segment_ids: jax.Array | None) -> Mask:
    """The mask of a bidirectional encoder: by segment if there are any, else by padding."""
    if segment_ids is not None:
        return segments(segment_ids, segment_ids)
    return Mask(keys=attention_mask)
