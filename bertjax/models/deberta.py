"""DeBERTa-v2 and v3 (He et al., arXiv 2006.03654 and 2111.09543): disentangled attention.

Attention scores depend on the distance between tokens; absolute positions are not added to the
embeddings. `models.common.disentangled` computes the scores. The MLM head may read the enhanced
mask decoder, which adds absolute positions after the encoder.

    >>> model = Model(Config(**VARIANTS["mini"]))
    >>> params = model.init(jax.random.key(0), jnp.ones((1, 8), jnp.int32))["params"]
    >>> model.apply({"params": params}, jnp.ones((1, 8), jnp.int32))["mlm_logits"].shape
    (1, 8, 128128)

Shapes: B batch, L length, D model, P predictions per sequence.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from bertjax import errors
from bertjax.models import bert
from bertjax.models.common import deberta_files, deberta_layers, disentangled, heads, layers, masks

# Import from and export to Hugging Face read these names from the family's module.
HF_NAMES, HF_TIED = deberta_files.HF_NAMES, deberta_files.HF_TIED
HF_RENAMED, HF_SKIPPED = deberta_files.HF_RENAMED, deberta_files.HF_SKIPPED
HF_PREFIX, HF_HEADS, HF_CONFIG = (
    deberta_files.HF_PREFIX, deberta_files.HF_HEADS, deberta_files.HF_CONFIG
)  # fmt: skip
HF_MODEL_TYPES = deberta_files.HF_MODEL_TYPES

HEADS = ("mlm", *heads.DOWNSTREAM)


@dataclasses.dataclass(frozen=True)
class Config(bert.Config):
    """BERT's fields, with the defaults of version 3, and DeBERTa's additional fields."""

    vocab_size: int = 128100
    embedding_size: int = 0  # width of the embeddings; 0: hidden_size
    type_vocab_size: int = 0
    position_terms: tuple[str, ...] = disentangled.TERMS  # terms of the scores for distances
    position_buckets: int = 256  # buckets for distances in each direction; 0: one per distance
    max_relative_positions: int = 0  # longest distance with an embedding; 0: max_length
    shared_position_projections: bool = True  # project distances with the kernels of the tokens
    relative_norm: bool = True  # layer norm of the embeddings of distances
    position_biased_input: bool = False  # add embeddings of absolute positions to the input
    enhanced_mask_decoder: bool = False  # predict masked tokens by the mask decoder
    conv_kernel_size: int = 0  # tokens in the window of the convolution of layer 1; 0: none
    conv_activation: str = "gelu"
    layer_norm_eps: float = 1e-7
    heads: tuple[str, ...] = ("mlm",)

    def __post_init__(self):
        layers.check_fields(self)
        heads.check(self, HEADS)
        errors.check(self.attention == "xla", "attention", self.attention,
                     "xla, because no kernel adds deberta's bias to the scores")  # fmt: skip
        terms = tuple(term for term in disentangled.TERMS if term in self.position_terms)
        errors.check(self.position_terms == terms, "model.position_terms", self.position_terms,
                     f"a tuple of {', '.join(disentangled.TERMS)}, in this order")  # fmt: skip
        errors.check(self.position_buckets % 2 == 0 and self.position_buckets != 2,
                     "model.position_buckets", self.position_buckets,
                     "0, or an even number from 4 on")  # fmt: skip
        errors.check(self.conv_kernel_size in (0, *range(1, 64, 2)), "model.conv_kernel_size",
                     self.conv_kernel_size, "0 or an odd number below 64")  # fmt: skip
        errors.check(self.conv_activation in deberta_layers.ACTIVATIONS, "model.conv_activation",
                     self.conv_activation,
                     f"one of {', '.join(deberta_layers.ACTIVATIONS)}")  # fmt: skip
        if self.enhanced_mask_decoder and self.position_biased_input:
            raise errors.UserError(
                "config.model.enhanced_mask_decoder = True: must be False if "
                "config.model.position_biased_input is True; positions are added once"
            )

    @property
    def longest_distance(self) -> int:
        """Returns the longest distance that has an embedding, or the end of the last bucket."""
        return self.max_relative_positions or self.max_length

    @property
    def decodes_masks(self) -> bool:
        """Returns whether the model has the enhanced mask decoder."""
        return self.enhanced_mask_decoder and "mlm" in self.heads


KIND = "encoder"
INPUTS = ("input_ids",)
OBJECTIVE = {"name": "mlm", "pair": "none"}
SMOKE = {**layers.SMOKE, "position_buckets": 4}

# xsmall to large are version 3 (microsoft/DeBERTa, experiments/language_model/rtd_*.json), the
# xlarge sizes version 2 (config.json of microsoft/deberta-v2-xlarge and -xxlarge). Mini is our own.
VARIANTS: dict[str, dict[str, Any]] = {
    "mini": layers.sizes(4, 256),
    "xsmall": layers.sizes(12, 384),
    "small": layers.sizes(6, 768),
    "base": layers.sizes(12, 768),
    "large": layers.sizes(24, 1024),
    "v2_xlarge": {**layers.sizes(24, 1536), "conv_kernel_size": 3},
    "v2_xxlarge": {**layers.sizes(48, 1536), "conv_kernel_size": 3},
}


class Model(heads.Model):
    """DeBERTa. Inputs are int32[B, L]; `masked_positions` is int32[B, P].

    `attention_mask` is 1 on tokens and 0 on padding. Packed rows, which hold several examples, have
    `segment_ids` (0 on padding) and `position_ids` instead.
    """

    config: Config

    layouts = heads.layouts(classifier=heads.Layout(activation="gelu"))

    def setup(self):
        config = self.config
        self.embeddings = deberta_layers.Embeddings(config)
        self.encoder = deberta_layers.Encoder(config)
        if "mlm" in config.heads:
            self.mlm_head = heads.MlmHead(config)
        if config.decodes_masks:
            rows, width = config.max_length, config.hidden_size
            self.decoder_position = layers.Embed(rows, width, rows, config.init_std)
        self.setup_downstream()

    def __call__(
        self,
        input_ids: jax.Array,
        attention_mask: jax.Array | None = None,
        token_type_ids: jax.Array | None = None,
        position_ids: jax.Array | None = None,
        segment_ids: jax.Array | None = None,
        masked_positions: jax.Array | None = None,
        *,
        deterministic: bool = True,
        output_hidden_states: bool = False,
    ) -> dict[str, jax.Array]:
        """Returns a dict of the outputs of the encoder and of its heads.

        Always: last_hidden_state [B, L, D] and, if `output_hidden_states`, hidden_states
        [1 + num_layers, B, L, D].
        Head mlm: mlm_logits [B, P, rows of the word table], float32, at `masked_positions`; if
        these are None, at every position (P = L).
        Fine-tuning heads: the outputs of `heads.Model.add_downstream`.
        """
        config = self.config
        if token_type_ids is None:
            token_type_ids = jnp.zeros_like(input_ids)
        if position_ids is None:
            position_ids = jnp.arange(input_ids.shape[1])[None, :]
        first_BLD = self.embeddings(input_ids, token_type_ids, position_ids, deterministic)
        places_BLD = self.decoder_position(position_ids) if config.decodes_masks else None
        x_BLD, hidden, decoded_BLD = self.encoder(
            first_BLD,
            masks.of_batch(attention_mask, segment_ids),
            deterministic=deterministic,
            keep_hidden=output_hidden_states,
            places_BLD=places_BLD,
        )
        outputs = {"last_hidden_state": x_BLD}
        if output_hidden_states:
            outputs["hidden_states"] = jnp.concatenate([first_BLD[None], hidden])
        if "mlm" in config.heads:
            x_BLD = x_BLD if decoded_BLD is None else decoded_BLD
            if masked_positions is not None:
                x_BLD = heads.gather_positions(x_BLD, masked_positions)
            outputs["mlm_logits"] = self.mlm_head(x_BLD, self.embeddings.word)
        return self.add_downstream(outputs, attention_mask, deterministic=deterministic)


def flops_per_sequence(config: Config, length: int, predictions: int) -> int:
    """Returns the FLOPs of all matmuls in the forward pass of one sequence: two per multiply-add.

    predictions: the number of positions with vocabulary logits. The projections of the table of
    relative positions are not counted, because all sequences of a batch share them.
    """
    width, mlp = config.hidden_size, config.intermediate_size
    embedding = config.embedding_size or width
    distances = len(config.position_terms) * (2 * length - 1)
    attention = 4 * length * width * width + (2 * length + distances) * length * width
    layer = attention + 2 * length * width * mlp
    num_layers = config.num_layers + deberta_layers.MASK_DECODER_STEPS * config.decodes_masks
    conv = config.conv_kernel_size * length * width * width
    project = length * embedding * width * (embedding != width)
    rows = layers.padded_vocab_size(config.vocab_size)
    head = predictions * embedding * (width + rows) * ("mlm" in config.heads)
    return 2 * (num_layers * layer + conv + project + head)
