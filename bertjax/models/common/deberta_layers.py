"""DeBERTa's modules: embeddings, layers with disentangled attention, encoder, decoder of masks.

Sources: He et al., arXiv 2006.03654, and the code of version 2 (microsoft/DeBERTa; transformers'
`modeling_deberta_v2.py`). Shapes: B batch, L length, D model, N heads, H head dim, E embedding,
R rows of the table of relative positions.
"""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from bertjax import sharding
from bertjax.models.common import (
    activations,
    attention,
    disentangled,
    layers,
    masks,
    norms,
    post_norm,
)

MASK_DECODER_STEPS = 2  # how often the last layer is applied (EnhancedMaskDecoder in their code)


class Embeddings(nn.Module):
    """Layer-normed word embeddings; most models have neither positions nor token types here.

    is_delta: whether the word table is added to another model's, see `__call__`; it starts as zero.
    """

    config: Any
    is_delta: bool = False

    def setup(self):
        config = self.config
        width = config.embedding_size or config.hidden_size

        def table(num_rows: int, num_used: int, std: float = config.init_std) -> layers.Embed:
            return layers.Embed(num_rows, width, num_used, std)

        rows, std = layers.padded_vocab_size(config.vocab_size), config.init_std
        self.word = table(rows, config.vocab_size, 0.0 if self.is_delta else std)
        if config.position_biased_input:
            self.position = table(config.max_length, config.max_length)
        if config.type_vocab_size:
            self.token_type = table(config.type_vocab_size, config.type_vocab_size)
        if width != config.hidden_size:
            self.project = layers.dense(config.hidden_size, config, use_bias=False)
        self.norm = layers.LayerNorm(config.layer_norm_eps)
        self.dropout = layers.Dropout(config.dropout_rate)

    def __call__(self, input_ids, token_type_ids, position_ids, deterministic, shared=None):
        """Returns the embeddings [B, L, D].

        shared: the word table of a generator, which is added to the own table, but receives no
        gradient ("gradient-disentangled embedding sharing", arXiv 2111.09543, section 3.3).
        """
        config = self.config
        x_BLE = self.word(input_ids)
        if shared is not None:
            x_BLE += jax.lax.stop_gradient(shared(input_ids))
        if config.position_biased_input:
            x_BLE += self.position(position_ids)
        if config.type_vocab_size:
            x_BLE += self.token_type(token_type_ids)
        if x_BLE.shape[-1] != config.hidden_size:
            x_BLE = self.project(x_BLE)
        return self.dropout(self.norm(x_BLE), deterministic).astype(config.dtype)


class Layer(post_norm.Layer):
    """BERT's layer with disentangled attention."""

    def __call__(
        self,
        x_BLD: jax.Array,
        is_first: jax.Array,
        mask: masks.Mask,
        table_RD: jax.Array | None,
        conv: dict[str, jax.Array] | None,
        memory_BLD: jax.Array | None = None,
    ) -> tuple[jax.Array, jax.Array]:
        """Returns (state, state).

        table_RD: the table of relative positions, or None if the attention does not use distances.
        conv: the result of `Conv`, which is added after the first layer, and the parameters of the
        norm of this sum; None if there is no convolution. memory_BLD: the states to attend to; None
        means x_BLD.
        """
        x_BLD, _ = super().__call__(x_BLD, None, mask, table_RD, memory_BLD)
        if conv is not None:
            epsilon = self.config.layer_norm_eps
            sum_BLD = x_BLD + conv["out"]
            normed_BLD = norms.normalize(sum_BLD, conv["scale"], conv["bias"], epsilon, True)
            x_BLD = jnp.where(is_first, normed_BLD, x_BLD)
        return x_BLD, x_BLD

    def attend(self, x_BLD: jax.Array, mask: masks.Mask, *inputs: jax.Array | None) -> jax.Array:
        """Returns the output of the attention. inputs: table_RD and memory_BLD of `__call__`."""
        table_RD, memory_BLD = inputs
        config, deterministic = self.config, self.deterministic
        terms = config.position_terms
        scale = ((1 + len(terms)) * config.head_dim) ** -0.5
        attend = attention.Attention(config, scale=scale, name="attention")
        bias = None
        if terms:
            dropout = layers.Dropout(
                config.dropout_rate, has_rows=False, name="relative_position_dropout"
            )
            tables = self._project(attend, dropout(table_RD, deterministic))
            if "p2c" in terms:  # the queries of c2p are scaled already
                tables["p2c"] = tables["p2c"] * scale
            buckets = config.position_buckets, config.longest_distance
            rows_T = disentangled.rows_of_any_length(x_BLD.shape[1], config.max_length, *buckets)
            bias = disentangled.Terms(tables, rows_T)
        return attend(x_BLD, mask, deterministic, memory=memory_BLD, bias=bias)

    def _project(self, attend: attention.Attention, table_RD: jax.Array) -> dict[str, jax.Array]:
        """Returns {term: table [R, N, H]}: keys of positions for c2p, queries of them for p2c."""
        config = self.config
        shared = {"c2p": attend.key, "p2c": attend.query}
        names = {"c2p": "position_key", "p2c": "position_query"}
        tables = {}
        for term in config.position_terms:
            project = shared[term]
            if not config.shared_position_projections:
                heads = (config.num_heads, config.head_dim)
                project = layers.dense(heads, config, name=names[term])
            axes = (None, "heads", "head_dim")
            tables[term] = sharding.constrain(project(table_RD), axes)
        return tables


class Conv(nn.Module):
    """A convolution over the tokens, activated ("nGiE" of version 2): [B, L, D] to [B, L, D].

    A token's window contains only tokens of its own example, and no padding.
    """

    config: Any

    @nn.compact
    def __call__(self, x_BLD: jax.Array, mask: masks.Mask, deterministic: bool) -> jax.Array:
        config = self.config
        size, width = config.conv_kernel_size, config.hidden_size
        init = nn.initializers.truncated_normal(config.init_std)
        kernel_KDD = self.param("kernel", init, (size, width, width), jnp.float32)
        bias_D = self.param("bias", nn.initializers.zeros, (width,), jnp.float32)
        x_BLD = sharding.constrain(x_BLD, ("batch", "key_length", "embed"))
        length = x_BLD.shape[1]
        visible_BLL = jnp.broadcast_to(mask.dense(length, length), (len(x_BLD), length, length))
        out_BLD = jnp.zeros_like(x_BLD) + bias_D[None, None].astype(x_BLD.dtype)
        for k in range(size):
            shift = k - (size - 1) // 2  # the neighbour's place, relative to the token
            places = np.arange(length) + shift
            inside = (places >= 0) & (places < length)
            visible_BL = visible_BLL[:, np.arange(length), np.clip(places, 0, length - 1)]
            seen_BL1 = (visible_BL & inside[None])[..., None]
            near_BLD = jnp.where(seen_BL1, jnp.roll(x_BLD, -shift, 1), 0)
            kernel_DD = kernel_KDD[k].astype(x_BLD.dtype)
            out_BLD += jnp.einsum("bld,de->ble", near_BLD, kernel_DD)
        out_BLD = sharding.constrain(out_BLD, ("batch", "length", "embed"))
        dropout = layers.Dropout(config.dropout_rate, name="dropout")
        return activations.WITH_TANH[config.conv_activation](dropout(out_BLD, deterministic))


class RtdHead(nn.Module):
    """Computes the logit that a token was replaced, from its state and that of the first token.

    Source: LMMaskPredictionHead in microsoft/DeBERTa (apps/models/replaced_token_detection_model).
    """

    config: Any

    @nn.compact
    def __call__(self, x_BLD: jax.Array, first_BLD: jax.Array) -> jax.Array:
        """Returns float32 [B, L].

        first_BLD: the state of the first token of each token's example; its length may be 1.
        """
        config = self.config
        x_BLD = layers.LayerNorm(config.layer_norm_eps, name="norm")(x_BLD + first_BLD)
        x_BLD = layers.dense(config.hidden_size, config, name="transform")(x_BLD)
        x_BLD = sharding.constrain(x_BLD, ("batch", "length", "embed"))
        x_BLD = activations.FUNCTIONS[config.activation](x_BLD)
        return layers.dense(1, config, name="classifier")(x_BLD)[..., 0].astype(jnp.float32)


class NormParams(nn.Module):
    """The parameters of a layer norm that `norms.normalize` computes: {"scale", "bias"}."""

    width: int

    @nn.compact
    def __call__(self) -> dict[str, jax.Array]:
        inits = {"scale": nn.initializers.ones, "bias": nn.initializers.zeros}
        return {n: self.param(n, init, (self.width,), jnp.float32) for n, init in inits.items()}


class Encoder(nn.Module):
    """A stack of layers that share one table of relative positions, and a decoder of masks.

    The enhanced mask decoder (section 3.2) has no layers of its own: it applies the last layer
    again, `MASK_DECODER_STEPS` times. Its queries start as the input of the last layer plus
    embeddings of absolute positions; its keys and values are that input.
    """

    config: Any

    @nn.compact
    def __call__(
        self,
        first_BLD: jax.Array,
        mask: masks.Mask,
        *,
        deterministic: bool,
        keep_hidden: bool,
        places_BLD: jax.Array | None = None,
    ) -> tuple[jax.Array, jax.Array | None, jax.Array | None]:
        """Returns (last state, states after every layer, state of the mask decoder).

        The states after every layer, [num_layers, B, L, D], are None unless `keep_hidden`, and the
        state of the mask decoder is None if it does not run.
        places_BLD: embeddings of absolute positions; the mask decoder runs only if given.
        """
        config = self.config
        table_RD = self._table() if config.position_terms else None
        conv = None
        if config.conv_kernel_size:
            out_BLD = Conv(config, name="conv")(first_BLD, mask, deterministic)
            conv = {"out": out_BLD, **NormParams(config.hidden_size, name="conv_norm")()}
        is_first = jnp.arange(config.num_layers) == 0
        stack = layers.stack(Layer, config, config.num_layers, 3)
        x_BLD, hidden = stack(config, deterministic, name="layers")(
            first_BLD, is_first, mask, table_RD, conv
        )
        decoded_BLD = None
        if places_BLD is not None:
            memory_BLD = hidden[-2] if config.num_layers > 1 else first_BLD
            decoded_BLD = memory_BLD + places_BLD.astype(memory_BLD.dtype)
            apply_last = self._last_layer(mask, table_RD, memory_BLD, deterministic)
            for _ in range(MASK_DECODER_STEPS):
                rng = None if deterministic else self.make_rng("dropout")
                decoded_BLD = apply_last(decoded_BLD, rng)
        return x_BLD, hidden if keep_hidden else None, decoded_BLD

    def _last_layer(
        self,
        mask: masks.Mask,
        table_RD: jax.Array | None,
        memory_BLD: jax.Array,
        deterministic: bool,
    ) -> Callable[[jax.Array, jax.Array | None], jax.Array]:
        """Returns the last layer as a function of (state, dropout key) that attends to a memory."""
        params = jax.tree.map(lambda leaf: leaf[-1], self.variables["params"]["layers"])
        layer = Layer(self.config, deterministic, parent=None)

        def apply_last(x_BLD: jax.Array, rng: jax.Array | None) -> jax.Array:
            rngs = {} if rng is None else {"dropout": rng}
            inputs = (x_BLD, False, mask, table_RD, None, memory_BLD)
            return layer.apply({"params": params}, *inputs, rngs=rngs)[0]

        remat = self.config.remat
        if remat == "none":
            return apply_last
        return jax.checkpoint(apply_last, policy=layers.REMAT_POLICIES[remat])

    def _table(self) -> jax.Array:
        """Returns the table of relative positions, float32 [R, D]."""
        config = self.config
        rows = 2 * (config.position_buckets or config.longest_distance)
        table = layers.Embed(
            rows, config.hidden_size, rows, config.init_std, name="relative_position"
        )
        if not config.relative_norm:
            return table.embedding
        return layers.LayerNorm(config.layer_norm_eps, name="relative_norm")(table.embedding)
