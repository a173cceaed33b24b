"""BERT's post-norm layer and a stack of such layers, used by most encoder families."""

from typing import Any

import flax.linen as nn
import jax

from bertjax import sharding
from bertjax.models.common import attention, layers, masks


def _constrain(x_BLD: jax.Array) -> jax.Array:
    return sharding.constrain(x_BLD, ("batch", "length", "embed"))


class Layer(nn.Module):
    """One encoder layer of BERT, with a norm after each residual sum (arXiv 1810.04805)."""

    config: Any
    deterministic: bool

    @nn.compact
    def __call__(
        self, x_BLD: jax.Array, _: Any, mask: masks.Mask, *inputs: Any
    ) -> tuple[jax.Array, jax.Array]:
        config, deterministic = self.config, self.deterministic
        out_BLD = self.attend(x_BLD, mask, *inputs)
        dropout = layers.Dropout(config.dropout_rate, name="attention_dropout")
        out_BLD = dropout(out_BLD, deterministic)
        x_BLD = layers.LayerNorm(config.layer_norm_eps, name="attention_norm")(x_BLD + out_BLD)
        x_BLD = _constrain(x_BLD)
        out_BLD = layers.Mlp(config, name="mlp")(x_BLD)
        out_BLD = layers.Dropout(config.dropout_rate, name="mlp_dropout")(out_BLD, deterministic)
        x_BLD = layers.LayerNorm(config.layer_norm_eps, name="mlp_norm")(x_BLD + out_BLD)
        x_BLD = _constrain(x_BLD)
        return x_BLD, x_BLD

    def attend(self, x_BLD: jax.Array, mask: masks.Mask, *inputs: Any) -> jax.Array:
        """Returns the output of the attention; a family may override this and use `inputs`."""
        del inputs
        attend = attention.Attention(self.config, name="attention")
        return attend(x_BLD, mask, self.deterministic)


class Encoder(nn.Module):
    """A stack of `config.num_layers` layers with the same mask; their parameters are stacked."""

    config: Any
    layer: type[nn.Module] = Layer

    @nn.compact
    def __call__(
        self, x_BLD: jax.Array, mask: masks.Mask, *, deterministic: bool, keep_hidden: bool
    ) -> tuple[jax.Array, jax.Array | None]:
        """Returns (last hidden state, states after every layer [num_layers, B, L, D] or None).

        The second is None unless `keep_hidden`.
        """
        stack = layers.stack(self.layer, self.config, self.config.num_layers, 1)
        x_BLD, hidden = stack(self.config, deterministic, name="layers")(x_BLD, None, mask)
        return x_BLD, hidden if keep_hidden else None
