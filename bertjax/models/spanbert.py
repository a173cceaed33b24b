"""SpanBERT (Joshi et al., arXiv 1907.10529): BERT on single texts, with a span boundary head.

    >>> model = Model(Config(**VARIANTS["mini"]))
    >>> params = model.init(jax.random.key(0), jnp.ones((1, 8), jnp.int32))["params"]
    >>> model.apply({"params": params}, jnp.ones((1, 8), jnp.int32))["mlm_logits"].shape
    (1, 8, 30592)

Shapes: B batch, L length, D model, P predictions per sequence, V vocab.
"""

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from bertjax import sharding
from bertjax.models import bert
from bertjax.models.common import activations, heads, layers

HEADS = ("pooler", "mlm", "sbo", *heads.DOWNSTREAM)


@dataclasses.dataclass(frozen=True)
class Config(bert.Config):
    """BERT's fields and `max_span_tokens`. The paper's model is cased, with 28,996 pieces."""

    vocab_size: int = 28996
    max_span_tokens: int = 80  # positions in a span that have an embedding; later ones use the last
    heads: tuple[str, ...] = ("mlm", "sbo")

    def __post_init__(self):
        layers.check_fields(self)
        heads.check(self, HEADS)
        heads.check_pooled(self, "classifier")


KIND = "encoder"
INPUTS = ("input_ids",)
OBJECTIVE = {"name": "span_boundary"}  # the published pretraining objective
SMOKE = bert.SMOKE
VARIANTS = {name: bert.VARIANTS[name] for name in ("mini", "base", "large")}


class SboHead(nn.Module):
    """Predicts each token of a masked span from the states at the span's boundaries (section 2.2).

    For token i of a span from s to e: h = norm(gelu(W1 [x at s - 1; x at e + 1; p of i - s + 1])),
    where x are the encoder's states and p the embeddings of positions in a span. An MLM head maps h
    to logits: norm(gelu(W2 h)), then inner products with the word embeddings.
    """

    config: Any

    @nn.compact
    def __call__(
        self,
        x_BLD: jax.Array,
        masked_positions: jax.Array,
        span_boundaries: jax.Array,
        word_embedding: layers.Embed,
    ) -> jax.Array:
        config = self.config
        num_rows = config.max_span_tokens
        left_BP, right_BP = span_boundaries[..., 0], span_boundaries[..., 1]
        table = layers.Embed(
            num_rows, config.hidden_size, num_rows, config.init_std, name="position"
        )
        offset_BP = jnp.clip(masked_positions - left_BP - 1, 0, num_rows - 1)
        left_BPD, right_BPD = (heads.gather_positions(x_BLD, i_BP) for i_BP in (left_BP, right_BP))
        features_BPC = jnp.concatenate(
            [left_BPD, right_BPD, table(offset_BP).astype(config.dtype)], axis=-1
        )
        features_BPC = sharding.constrain(features_BPC, ("batch", "length", "embed"))
        h_BPD = layers.dense(config.hidden_size, config, name="dense")(features_BPC)
        h_BPD = sharding.constrain(h_BPD, ("batch", "length", "embed"))
        h_BPD = activations.FUNCTIONS[config.activation](h_BPD)
        h_BPD = layers.LayerNorm(config.layer_norm_eps, name="norm")(h_BPD)
        return heads.MlmHead(config, name="mlm_head")(h_BPD, word_embedding)


class Model(bert.Model):
    """SpanBERT. The inputs are those of `bert.Model` and `span_boundaries` int32[B, P, 2].

    `span_boundaries` has, for each prediction, the positions just before and just after its span.
    """

    config: Config

    def setup(self):
        super().setup()
        if "sbo" in self.config.heads:
            self.sbo_head = SboHead(self.config)

    def __call__(
        self,
        input_ids: jax.Array,
        *args,
        masked_positions: jax.Array | None = None,
        span_boundaries: jax.Array | None = None,
        **kwargs,
    ) -> dict[str, jax.Array]:
        """Returns the outputs of `bert.Model` and, if `span_boundaries` is given, sbo_logits.

        sbo_logits [B, P, rows of the word table] are float32. They also need `masked_positions`.
        """
        kwargs |= {"masked_positions": masked_positions}
        outputs = super().__call__(input_ids, *args, **kwargs)
        if "sbo" not in self.config.heads:
            return outputs
        if self.is_initializing():  # init passes input_ids only
            masked_positions = jnp.zeros((len(input_ids), 1), jnp.int32)
            span_boundaries = jnp.zeros((len(input_ids), 1, 2), jnp.int32)
        if span_boundaries is not None:
            outputs["sbo_logits"] = self.sbo_head(
                outputs["last_hidden_state"],
                masked_positions,
                span_boundaries,
                self.embeddings.word,
            )
        return outputs


def flops_per_sequence(config: Config, length: int, predictions: int) -> int:
    """Returns the FLOPs of all matmuls in the forward pass of one sequence: two per multiply-add.

    predictions: the number of positions at which each head computes vocabulary logits.
    """
    width, rows = config.hidden_size, layers.padded_vocab_size(config.vocab_size)
    head = predictions * width * (3 * width + width + rows) * ("sbo" in config.heads)
    return bert.flops_per_sequence(config, length, predictions) + 2 * head


# A Hugging Face folder stores SpanBERT as a BERT, without tensors for the span boundary head.
HF_NAMES = bert.HF_NAMES
HF_DROPPED = ("sbo_head/",)
HF_HEADS = bert.HF_HEADS
HF_TIED = bert.HF_TIED
HF_SKIPPED = bert.HF_SKIPPED
HF_PREFIX = bert.HF_PREFIX
HF_MODEL_TYPES = ("spanbert",)  # model_type values that this family reads
HF_CONFIG = {
    **bert.HF_CONFIG,
    "architectures": {
        (): "BertModel",
        ("sbo",): "BertModel",
        ("pooler",): "BertModel",
        ("pooler", "sbo"): "BertModel",
        ("mlm",): "BertForMaskedLM",
        ("mlm", "sbo"): "BertForMaskedLM",
        ("pooler", "mlm"): "BertForPreTraining",
        ("pooler", "mlm", "sbo"): "BertForPreTraining",
    },
}
