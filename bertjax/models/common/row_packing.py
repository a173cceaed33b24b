"""Packs the rows of a batch into fewer, fuller rows for the layers of a model.

The layers compute every token of a row, padding too. So rows of different lengths are put one after
the other into packed rows, in which a token attends only to the tokens of its own row:

    inputs_QP = pack(inputs_BL, packed_from)            # before the layers
    x_BLD = unpack(x_QPD, packed_from, (B, L))          # behind them

`packed_from`, int32[G, R, P], says where the tokens come from. The rows of a batch form G groups of
equal size, one after the other, and each group is packed on its own, so that a device needs only
its own rows. An entry is the index of a token among the B / G x L places of its group, or -1 where
there is padding.

Shapes: B rows, L length, G groups, R packed rows of a group, Q = G x R packed rows of all groups,
P length of a packed row, D model.
"""

import functools

import jax
import jax.numpy as jnp

NAME = "packed_from"  # of the feature of a batch


def pack(x_BL: jax.Array, packed_from_GRP: jax.Array) -> jax.Array:
    """Returns the values of the tokens in packed rows, [Q, P]; 0 where there is padding."""
    return _taken(x_BL[:, :, None], packed_from_GRP)[:, :, 0]


def segments(packed_from_GRP: jax.Array, length: int) -> jax.Array:
    """Returns int32[Q, P]: a number above 0 for each row in a packed row; 0 where there is padding.

    length: that of the rows before they are packed.
    """
    ids_GRP = jnp.where(packed_from_GRP < 0, 0, packed_from_GRP // length + 1)
    return ids_GRP.reshape(-1, ids_GRP.shape[-1])


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def unpack(x_QPD: jax.Array, packed_from_GRP: jax.Array, shape: tuple[int, int]) -> jax.Array:
    """Returns the states of packed rows at the places of the rows, [B, L, D].

    shape: (B, L). NOTE: places without a token have the state of another token.
    """
    num_groups, *packed = packed_from_GRP.shape
    size = shape[0] // num_groups * shape[1]  # places of a group
    places = jnp.arange(packed[0] * packed[1], dtype=jnp.int32)
    index_GN = packed_from_GRP.reshape(num_groups, -1)
    index_GN = jnp.where(index_GN < 0, size, index_GN)  # `size` is dropped

    def inverse(index_N: jax.Array) -> jax.Array:
        return jnp.zeros(size, jnp.int32).at[index_N].set(places, mode="drop")

    places_GM = jax.vmap(inverse)(index_GN)
    x_GND = x_QPD.reshape(num_groups, len(places), -1)
    x_GMD = jnp.take_along_axis(x_GND, places_GM[:, :, None], axis=1)
    return x_GMD.reshape(*shape, -1)


def _unpack_fwd(
    x_QPD: jax.Array, packed_from_GRP: jax.Array, shape: tuple[int, int]
) -> tuple[jax.Array, jax.Array]:
    return unpack(x_QPD, packed_from_GRP, shape), packed_from_GRP


def _unpack_bwd(
    shape: tuple[int, int], packed_from_GRP: jax.Array, grads_BLD: jax.Array
) -> tuple[jax.Array, None]:
    # A token has one place. So its gradient is taken from there, which is faster than a sum.
    del shape
    return _taken(grads_BLD, packed_from_GRP), None


unpack.defvjp(_unpack_fwd, _unpack_bwd)


def _taken(x_BLD: jax.Array, packed_from_GRP: jax.Array) -> jax.Array:
    """Returns [Q, P, D]: the vectors of the tokens in packed rows; 0 where there is padding."""
    num_groups, _, length = packed_from_GRP.shape
    index_GN = packed_from_GRP.reshape(num_groups, -1)
    x_GMD = x_BLD.reshape(num_groups, -1, x_BLD.shape[-1])
    taken_GND = jnp.take_along_axis(x_GMD, jnp.maximum(index_GN, 0)[:, :, None], axis=1)
    taken_GND = jnp.where(index_GN[:, :, None] < 0, jnp.zeros((), x_BLD.dtype), taken_GND)
    return taken_GND.reshape(-1, length, x_BLD.shape[-1])
