"""BERT with sinusoidal positions, multiplied by one learned factor, in place of a position table.

The sinusoids are those of the Transformer (Vaswani et al., arXiv 1706.03762, section 3.5), the
factor is that of "scaled positional encoding" (Li et al., arXiv 1809.08895). Everything else is
BERT's: layers, heads and the call.

    config_lib.default("my_package.my_bert", "tiny")

Shapes: B batch, L length, D model.
"""

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from bertjax import sharding
from bertjax.models import bert
from bertjax.models.common import layers

KIND = "encoder"
INPUTS = bert.INPUTS
HEADS = bert.HEADS
OBJECTIVE = {"name": "my_package.my_objective", "mask_rate": 0.2}
SMOKE = bert.SMOKE
VARIANTS = {"tiny": layers.sizes(2, 128), "base": layers.sizes(12, 768)}
flops_per_sequence = bert.flops_per_sequence

# The name of the one new parameter. It is a scalar, so it has no axes to split.
LINE = (r"position_factor$", ())
if LINE not in sharding.PARAM_AXES:
    sharding.PARAM_AXES.insert(0, LINE)


@dataclasses.dataclass(frozen=True)
class Config(bert.Config):
    """BERT's fields, and the wavelength of the slowest sinusoid."""

    heads: tuple[str, ...] = ("mlm",)  # heads on top of the model
    max_wavelength: float = 10_000.0  # in units of 2 pi positions


class Embeddings(nn.Module):
    """The layer-normed sum of word embeddings, scaled sinusoids and token type embeddings."""

    config: Any

    def setup(self):
        config = self.config
        rows = layers.padded_vocab_size(config.vocab_size)
        self.word = layers.Embed(rows, config.hidden_size, config.vocab_size, config.init_std)
        num_types = config.type_vocab_size
        self.token_type = layers.Embed(num_types, config.hidden_size, num_types, config.init_std)
        # At the start, sinusoids and word embeddings are of about the same size.
        start = nn.initializers.constant(config.init_std)
        self.position_factor = self.param("position_factor", start, (), jnp.float32)
        self.norm = layers.LayerNorm(config.layer_norm_eps)
        self.dropout = layers.Dropout(config.dropout_rate)

    def __call__(self, input_ids, token_type_ids, position_ids, deterministic):
        config = self.config
        waves = sinusoids(position_ids, config.hidden_size, config.max_wavelength)
        x_BLD = self.word(input_ids) + self.token_type(token_type_ids)
        x_BLD += self.position_factor * waves
        return self.dropout(self.norm(x_BLD), deterministic).astype(config.dtype)


class Model(bert.Model):
    """BERT's model with the embeddings above."""

    config: Config

    def new_embeddings(self) -> Embeddings:
        """Returns the module for the embeddings."""
        return Embeddings(self.config)


def sinusoids(positions: jax.Array, width: int, max_wavelength: float) -> jax.Array:
    """Returns float32 [..., width]: sines in the first half, cosines in the second.

    positions: int32 [...]. The wavelengths are a geometric series from 2 pi to nearly
    2 pi max_wavelength.
    """
    half = width // 2
    rates = max_wavelength ** -(jnp.arange(half, dtype=jnp.float32) / half)
    angles = jnp.einsum("...,d->...d", positions.astype(jnp.float32), rates)
    return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)
