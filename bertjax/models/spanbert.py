"""SpanBERT (Joshi et al., arXiv 1907.10529): BERT on single texts, with a span boundary head.

    >>> model = Model(Config(**VARIANTS["mini"]))
    >>> params = model.init(jax.random.key(0), jnp.ones((1, 8), jnp.int32))["params"]
    >>> model.apply({"params": params}, jnp.ones((1, 8), jnp.int32))["mlm_logits"].shape
    (1, 8, 30592)

Shapes: B batch, L length, D model, P predictions per sequence, V vocab.
"""

import dataclasses

from bertjax.models import bert
from bertjax.models.common import encoders, heads

HEADS = encoders.POOLED_HEADS


@dataclasses.dataclass(frozen=True)
class Config(bert.Config):
    """BERT's fields and `max_span_tokens`. The paper's model is cased, with 28,996 pieces."""

    vocab_size: int = 28996
    max_span_tokens: int = 80  # positions in a span that have an embedding; later ones use the last
    heads: tuple[str, ...] = ("mlm", "sbo")

    def __post_init__(self):
        encoders.check(self, HEADS)
        heads.check_pooled(self, "classifier")


KIND = "encoder"
INPUTS = ("input_ids",)
OBJECTIVE = {"name": "span_boundary"}  # the published pretraining objective
SMOKE = bert.SMOKE
VARIANTS = {name: bert.VARIANTS[name] for name in ("mini", "base", "large")}


class Model(bert.Model):
    """SpanBERT. `encoders.Model` describes inputs and outputs."""

    config: Config


flops_per_sequence = bert.flops_per_sequence


# A Hugging Face folder stores SpanBERT as a BERT.
HF_NAMES = bert.HF_NAMES
HF_DROPPED = bert.HF_DROPPED
HF_HEADS = bert.HF_HEADS
HF_TIED = bert.HF_TIED
HF_SKIPPED = bert.HF_SKIPPED
HF_PREFIX = bert.HF_PREFIX
HF_MODEL_TYPES = ("spanbert",)  # model_type values that this family reads
HF_CONFIG = bert.HF_CONFIG
