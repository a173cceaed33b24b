"""What stands on an encoder: the pooler, the heads of pretraining and those of fine-tuning.

The heads of fine-tuning are "classifier", one answer a sequence; "token_classifier", one a token;
"span", where an answer begins and ends. Each has the layers that the classes of transformers have
in that family, a `Layout`, so that a fine-tuned model can be handed over.

Shapes: B batch, L length, P predictions a sequence, D model, C labels, V vocab.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from bertjax import errors, sharding
from bertjax.models.common import activations, layers

# The heads for tasks, and the output of the body that each of them reads.
READS: Mapping[str, str] = MappingProxyType(
    {
        "classifier": "class_features",
        "token_classifier": "last_hidden_state",
        "span": "last_hidden_state",
    }
)
DOWNSTREAM = tuple(READS)
_ACTIVATIONS = {**activations.FUNCTIONS, "tanh": jnp.tanh}


class Layout(NamedTuple):
    """The layers of a head for a task: [dropout, dense, activation, norm,] dropout, dense.

    pooled: the pooler is what comes before the dropout, so the model must have one.
    activation: of the first map, to the model's width; "" where there is no such map.
    norm: after the activation; neither it nor the first map has a bias.
    first_rate, rate: of the dropout before each map; None: `config.dropout_rate`.
    use_bias: of the last map.
    starts_as: the head of pretraining whose first map and norm it starts with.
    """

    pooled: bool = False
    activation: str = ""
    norm: bool = False
    first_rate: float | None = 0.0
    rate: float | None = None
    use_bias: bool = True
    starts_as: str = ""


PLAIN = Layout()
# BERT's; a family that differs says how.
LAYOUTS: Mapping[str, Layout] = MappingProxyType(
    {"classifier": Layout(pooled=True), "token_classifier": PLAIN, "span": Layout(rate=0.0)}
)


def check(config: Any, known: tuple[str, ...]) -> None:
    """Raises UserError unless `config.heads` are some of those known, in their order, and fit."""
    names = config.heads
    ordered = names == tuple(name for name in known if name in names)
    errors.check(ordered, "model.heads", names, f"a tuple of {', '.join(known)}, in this order")
    labelled = {"classifier", "token_classifier"} & set(names)
    errors.check(not labelled or config.num_labels > 0, "model.num_labels", config.num_labels,
                 f"1 or more for the heads {names}")  # fmt: skip


def check_pooled(config: Any, *names: str) -> None:
    """Raises UserError for one of the heads `names`, which read the pooler, without the pooler."""
    for name in names:
        if name in config.heads and "pooler" not in config.heads:
            raise errors.UserError(f"config.model.heads = {config.heads!r}: {name} needs pooler")


def gather_positions(x_BLD: jax.Array, positions_BP: jax.Array) -> jax.Array:
    """The rows of `x_BLD` at `positions_BP`: [B, P, D]."""
    x_BLD = sharding.constrain(x_BLD, ("batch", "key_length", "embed"))
    x_BPD = jnp.take_along_axis(x_BLD, positions_BP[:, :, None], axis=1)
    return sharding.constrain(x_BPD, ("batch", "length", "embed"))


def last_position(mask: jax.Array) -> jax.Array:
    """int32[...]: the place of the last token of mask [..., L]; 0 where there is none."""
    return jnp.max(jnp.arange(mask.shape[-1]) * (mask > 0), axis=-1)


def pool(states: jax.Array, mask: jax.Array, pooling: str) -> jax.Array:
    """One vector a sequence: float32[..., D] of states [..., L, D] and mask [..., L].

    "mean" is over the tokens of the mask, "cls" the first state, "last" that of the last token.
    """
    states = states.astype(jnp.float32)
    if pooling == "cls":
        return states[..., 0, :]
    if pooling == "last":
        place = last_position(mask)[..., None, None]
        return jnp.take_along_axis(states, place, axis=-2)[..., 0, :]
    weights = mask.astype(jnp.float32)
    sums = jnp.einsum("...ld,...l->...d", states, weights)
    return sums / jnp.maximum(weights.sum(axis=-1, keepdims=True), 1.0)


class MlmHead(nn.Module):
    """Transform, norm, and inner products with the word embeddings (BERT, section 3.1, task 1).

    The vocabulary axis of the logits is that of the embedding table; the ids that are only padding
    of the table get a logit that softmax turns into 0, so they are never predicted.

    use_bias: of the transform and its norm; the logits always have one.
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
        # Masking the bias, not the logits, spares the backward pass a select over B * P * V.
        bias_V = jnp.where(jnp.arange(rows) < config.vocab_size, bias_V, layers.MASKED)
        logits_BPV = word_embedding.attend(x_BPD).astype(jnp.float32) + bias_V
        return sharding.constrain(logits_BPV, ("batch", "length", "vocab"))


class Pooler(nn.Module):
    """tanh of a dense map of the first position's state, [B, D]."""

    config: Any

    @nn.compact
    def __call__(self, first_BD: jax.Array) -> jax.Array:
        x_BD = layers.dense(first_BD.shape[-1], self.config, name="dense")(first_BD)
        return jnp.tanh(sharding.constrain(x_BD, ("batch", "embed")))


class Downstream(nn.Module):
    """A head for a task: [..., D] -> [..., C], float32.

    Fresh kernels have the standard deviation `config.init_std`, as in transformers. Those of
    pretraining have 0.88 of it, as in BERT's own code, and fine-tuning then lags behind.
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
            x = _ACTIVATIONS[layout.activation](x)
        if layout.norm:
            x = layers.LayerNorm(config.layer_norm_eps, use_bias=False, name="norm")(x)
        x = drop(x, layout.rate, "dropout")
        logits = layers.dense(
            self.num_labels, config, use_bias=layout.use_bias, init_std=std, name="logits"
        )
        return logits(x).astype(jnp.float32)


class Model(nn.Module):
    """What the Models of all families that have heads for tasks share.

    A family calls `setup_downstream` at the end of `setup` and `add_downstream` at the end of
    `__call__`; `layouts` says what its heads look like.
    """

    config: Any

    layouts = LAYOUTS

    def setup_downstream(self) -> None:
        """Makes those of the heads for tasks that the config names."""
        config = self.config
        for name in DOWNSTREAM:
            if name in config.heads:
                layout = self.layouts[name]
                if name == "classifier" and "pooler" in config.heads:  # for a map of its own
                    layout = layout._replace(pooled=True, activation="")
                size = 2 if name == "span" else config.num_labels
                setattr(self, name, Downstream(config, size, layout))

    def class_features(self, x_BLD: jax.Array, attention_mask: jax.Array | None) -> jax.Array:
        """[B, D]: the state that stands for the whole sequence, that of the first token."""
        del attention_mask
        return x_BLD[:, 0]

    def classify(self, features_BD: jax.Array, *, deterministic: bool = True) -> jax.Array:
        """class_logits [B, C] of `class_features`, the pooler's part included; no encoder runs."""
        if "pooler" in self.config.heads:
            features_BD = self.pooler(features_BD)
        return self.classifier(features_BD, deterministic)

    def tell_tokens(self, x_BLD: jax.Array, *, deterministic: bool = True) -> dict[str, jax.Array]:
        """Of last_hidden_state token_logits and span_logits, by the heads; no encoder runs."""
        found = {}
        if "token_classifier" in self.config.heads:
            found["token_logits"] = self.token_classifier(x_BLD, deterministic)
        if "span" in self.config.heads:
            found["span_logits"] = self.span(x_BLD, deterministic)
        return found

    def add_downstream(
        self,
        outputs: dict[str, jax.Array],
        attention_mask: jax.Array | None,
        *,
        deterministic: bool,
    ) -> dict[str, jax.Array]:
        """The outputs with those of the heads for tasks, float32, by what last_hidden_state says.

        class_logits [B, C] and class_features [B, D], which `classify` makes them of; token_logits
        [B, L, C]; span_logits [B, L, 2], of an answer's first and of its last token.
        """
        heads, x_BLD = self.config.heads, outputs["last_hidden_state"]
        found = self.tell_tokens(x_BLD, deterministic=deterministic)
        if "classifier" in heads:
            features_BD = self.class_features(x_BLD, attention_mask)
            read = outputs["pooled_output"] if "pooler" in heads else features_BD
            found["class_features"] = features_BD
            found["class_logits"] = self.classifier(read, deterministic)
        return outputs | found
