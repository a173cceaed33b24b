"""Heads on top of an encoder: the pooler, the pretraining heads and the fine-tuning heads.

The fine-tuning heads are "classifier" (one prediction per sequence), "token_classifier" (one per
token) and "span" (start and end of an answer). A `Layout` lists the layers of a head. In each
family these are the layers of the transformers class, so that a fine-tuned model can be exported.

Shapes: B batch, L length, P predictions per sequence, D model, C labels, V vocab.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from bertjax import errors, sharding
from bertjax.models.common import activations, layers

# {fine-tuning head: the output of the model's body that this head takes as input}
HEAD_INPUTS: Mapping[str, str] = MappingProxyType(
    {
        "classifier": "class_features",
        "token_classifier": "last_hidden_state",
        "span": "last_hidden_state",
    }
)
DOWNSTREAM = tuple(HEAD_INPUTS)
POOLINGS = ("mean", "cls", "max", "last")  # see `pool`


class Layout(NamedTuple):
    """The layers of a fine-tuning head: [dropout, dense, activation, norm,] dropout, dense.

    The layers in brackets are optional.

    pooled: whether the head reads the pooler's output; if so, the model must have a pooler.
    activation: the activation after the first of two dense layers, which keeps the width; "" if the
        head has only one dense layer.
    norm: whether a norm follows the activation; if so, neither the norm nor the first dense layer
        has a bias.
    first_rate, rate: dropout rates before the first and before the last dense layer; None means
        `config.dropout_rate`.
    use_bias: whether the last dense layer has a bias.
    starts_as: the pretraining head from which the first dense layer and the norm are initialized;
        "" if they are initialized randomly.
    """

    pooled: bool = False
    activation: str = ""
    norm: bool = False
    first_rate: float | None = 0.0
    rate: float | None = None
    use_bias: bool = True
    starts_as: str = ""


PLAIN = Layout()
# BERT's layouts. A family with other layouts calls `layouts`.
LAYOUTS: Mapping[str, Layout] = MappingProxyType(
    {"classifier": Layout(pooled=True), "token_classifier": PLAIN, "span": Layout(rate=0.0)}
)


def layouts(**overrides: Layout) -> Mapping[str, Layout]:
    """Returns {head: layout} for a family: `overrides`, and BERT's layouts for the other heads."""
    return {**LAYOUTS, **overrides}


def check(config: Any, allowed: tuple[str, ...]) -> None:
    """Raises UserError unless `config.heads` is a subset of `allowed`, in the same order.

    Also raises UserError if a head predicts labels but `config.num_labels` is 0.
    """
    names = config.heads
    ordered = names == tuple(name for name in allowed if name in names)
    errors.check(ordered, "model.heads", names, f"a tuple of {', '.join(allowed)}, in this order")
    label_heads = {"classifier", "token_classifier"} & set(names)
    errors.check(not label_heads or config.num_labels > 0, "model.num_labels", config.num_labels,
                 f"1 or more with the heads {names}")  # fmt: skip


def check_pooled(config: Any, *names: str) -> None:
    """Raises UserError if `config.heads` has one of `names` but lacks "pooler", which they need."""
    for name in names:
        if name in config.heads and "pooler" not in config.heads:
            raise errors.UserError(
                f"config.model.heads = {config.heads!r}: '{name}' needs the head 'pooler'"
            )


def gather_positions(x_BLD: jax.Array, positions_BP: jax.Array) -> jax.Array:
    """Returns the states of `x_BLD` at `positions_BP`: [B, P, D]."""
    x_BLD = sharding.constrain(x_BLD, ("batch", "key_length", "embed"))
    x_BPD = jnp.take_along_axis(x_BLD, positions_BP[:, :, None], axis=1)
    return sharding.constrain(x_BPD, ("batch", "length", "embed"))


def last_position(mask: jax.Array) -> jax.Array:
    """Returns int32[...]: the index of the last token of mask [..., L]; 0 if there is none."""
    indices = jax.lax.broadcasted_iota(jnp.int32, mask.shape, mask.ndim - 1)
    return jnp.max(indices * (mask > 0), axis=-1)


def pool(states: jax.Array, mask: jax.Array, pooling: str) -> jax.Array:
    """Returns one vector per sequence, float32[..., D], for states [..., L, D] and mask [..., L].

    pooling: "mean" averages over the tokens of the mask, "cls" takes the first position's state,
    "max" the maximum over the tokens in each dimension, "last" the last token's state. The mean and
    the maximum of a sequence without tokens are 0.
    """
    states = states.astype(jnp.float32)
    if pooling == "max":
        masked = jnp.where(mask[..., None] > 0, states, layers.MASKED)
        return jnp.where((mask > 0).any(axis=-1)[..., None], masked.max(axis=-2), 0.0)
    if pooling == "cls":
        return states[..., 0, :]
    if pooling == "last":
        index = last_position(mask)[..., None, None]
        return jnp.take_along_axis(states, index, axis=-2)[..., 0, :]
    weights = mask.astype(jnp.float32)
    sums = jnp.einsum("...ld,...l->...d", states, weights)
    return sums / jnp.maximum(weights.sum(axis=-1, keepdims=True), 1.0)


def unit(vectors: jax.Array) -> jax.Array:
    """Returns vectors [..., D] scaled to length 1; a vector of zeros stays zero."""
    squares = (vectors**2).sum(axis=-1, keepdims=True)
    return vectors * jax.lax.rsqrt(jnp.maximum(squares, 1e-24))


class MlmHead(nn.Module):
    """The MLM head: dense, activation, norm, and inner products with the word embeddings.

    See BERT, section 3.1, task 1. The logits have one column per row of the embedding table. The
    padding rows of the table get the logit `layers.MASKED`, which softmax turns into 0, so they are
    never predicted.

    use_bias: whether the dense layer and the norm have biases; the logits always have one.
    """

    config: Any
    use_bias: bool = True

    @nn.compact
    def __call__(self, x_BPD: jax.Array, word_embedding: layers.Embed) -> jax.Array:
        config = self.config
        transform = layers.dense(
            word_embedding.features, config, use_bias=self.use_bias, name="transform"
        )
        x_BPD = transform(x_BPD)
        x_BPD = sharding.constrain(x_BPD, ("batch", "length", "embed"))
        x_BPD = activations.FUNCTIONS[config.activation](x_BPD)
        x_BPD = layers.LayerNorm(config.layer_norm_eps, self.use_bias, name="norm")(x_BPD)
        rows = word_embedding.num_embeddings
        bias_V = self.param("bias", nn.initializers.zeros, (rows,), jnp.float32)
        # Masking the bias, not the logits, avoids a select over B * P * V in the backward pass.
        bias_V = jnp.where(jnp.arange(rows) < config.vocab_size, bias_V, layers.MASKED)
        logits_BPV = word_embedding.attend(x_BPD).astype(jnp.float32) + bias_V[None, None]
        return sharding.constrain(logits_BPV, ("batch", "length", "vocab"))


class Pooler(nn.Module):
    """BERT's pooler: tanh of a dense layer on the first position's state, [B, D]."""

    config: Any

    @nn.compact
    def __call__(self, first_BD: jax.Array) -> jax.Array:
        x_BD = layers.dense(first_BD.shape[-1], self.config, name="dense")(first_BD)
        return jnp.tanh(sharding.constrain(x_BD, ("batch", "embed")))


class Downstream(nn.Module):
    """A fine-tuning head. Maps states [..., D] to float32 logits [..., C].

    The standard deviation of its initial kernels is `config.init_std`, as in transformers. NOTE:
    for other kernels it is only 0.88 times the configured value, because truncating the normal
    distribution reduces it, as in BERT's own code. Fine-tuning heads learn more slowly with this
    smaller value.
    """

    config: Any
    num_labels: int
    layout: Layout

    @nn.compact
    def __call__(self, x: jax.Array, deterministic: bool) -> jax.Array:
        config, layout = self.config, self.layout

        def drop(x: jax.Array, rate: float | None, name: str) -> jax.Array:
            rate = config.dropout_rate if rate is None else rate
            return layers.Dropout(rate, name=name)(x, deterministic)

        std = config.init_std / layers.TRUNCATED_STD
        if layout.activation:
            x = drop(x, layout.first_rate, "first_dropout")
            bias = not layout.norm
            x = layers.dense(x.shape[-1], config, use_bias=bias, init_std=std, name="transform")(x)
            x = activations.WITH_TANH[layout.activation](x)
        if layout.norm:
            x = layers.LayerNorm(config.layer_norm_eps, use_bias=False, name="norm")(x)
        x = drop(x, layout.rate, "dropout")
        logits = layers.dense(
            self.num_labels, config, use_bias=layout.use_bias, init_std=std, name="logits"
        )
        return logits(x).astype(jnp.float32)


class Model(nn.Module):
    """Base class of the Models of all families with fine-tuning heads.

    A family calls `setup_downstream` at the end of `setup` and `add_downstream` at the end of
    `__call__`; `layouts` maps each head to its `Layout`.
    """

    config: Any

    layouts = LAYOUTS

    def setup_downstream(self) -> None:
        """Creates the fine-tuning heads listed in `config.heads`."""
        config = self.config
        for name in DOWNSTREAM:
            if name in config.heads:
                layout = self.layouts[name]
                if name == "classifier" and "pooler" in config.heads:
                    # The pooler replaces the head's first dense layer.
                    layout = layout._replace(pooled=True, activation="")
                num_outputs = 2 if name == "span" else config.num_labels
                setattr(self, name, Downstream(config, num_outputs, layout))

    def class_features(self, x_BLD: jax.Array, attention_mask: jax.Array | None) -> jax.Array:
        """Returns [B, D]: the state that represents the sequence, by default the first token's."""
        del attention_mask
        return x_BLD[:, 0]

    def classify(self, features_BD: jax.Array, *, deterministic: bool = True) -> jax.Array:
        """Returns class_logits [B, C] for `class_features`, via the pooler if there is one.

        Does not run the encoder.
        """
        if "pooler" in self.config.heads:
            features_BD = self.pooler(features_BD)
        return self.classifier(features_BD, deterministic)

    def per_token_logits(
        self, x_BLD: jax.Array, *, deterministic: bool = True
    ) -> dict[str, jax.Array]:
        """Returns token_logits and span_logits, each only if the model has the head for it.

        x_BLD: the last_hidden_state. Does not run the encoder.
        """
        outputs = {}
        if "token_classifier" in self.config.heads:
            outputs["token_logits"] = self.token_classifier(x_BLD, deterministic)
        if "span" in self.config.heads:
            outputs["span_logits"] = self.span(x_BLD, deterministic)
        return outputs

    def add_downstream(
        self,
        outputs: dict[str, jax.Array],
        attention_mask: jax.Array | None,
        *,
        deterministic: bool,
    ) -> dict[str, jax.Array]:
        """Returns `outputs` plus the outputs of the fine-tuning heads. Logits are float32.

        classifier: class_logits [B, C] and class_features [B, D], the input of `classify`.
        token_classifier: token_logits [B, L, C].
        span: span_logits [B, L, 2], for the first and for the last token of an answer.
        """
        heads, x_BLD = self.config.heads, outputs["last_hidden_state"]
        head_outputs = self.per_token_logits(x_BLD, deterministic=deterministic)
        if "classifier" in heads:
            features_BD = self.class_features(x_BLD, attention_mask)
            head_input = outputs["pooled_output"] if "pooler" in heads else features_BD
            head_outputs["class_features"] = features_BD
            head_outputs["class_logits"] = self.classifier(head_input, deterministic)
        return outputs | head_outputs
