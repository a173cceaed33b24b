"""DeBERTa-v2 and v3 (He et al., arXiv 2006.03654 and 2111.09543): disentangled attention.

Attention scores depend on the distance between tokens; absolute positions are not added to the
embeddings. `models.common.disentangled` computes the scores. The MLM head may read the enhanced
mask decoder, which adds absolute positions after the encoder.

As in ELECTRA, `heads` selects the model: ("mlm", "rtd") is a pair of a generator and a
discriminator, for training; ("rtd",) is the discriminator alone, ("mlm",) the generator or a model
trained by MLM, and () a bare encoder. The generator of a pair is as wide as the discriminator, but
has fewer layers. The discriminator's word embeddings are those of the generator, which the
discriminator's loss does not change, plus a table of its own. `parts` splits a pair into its two
models and adds the two tables.

    >>> model = Model(Config(**VARIANTS["mini"]))
    >>> params = model.init(jax.random.key(0), jnp.ones((1, 8), jnp.int32))["params"]
    >>> model.apply({"params": params}, jnp.ones((1, 8), jnp.int32))["mlm_logits"].shape
    (1, 8, 128128)

Shapes: B batch, L length, D model, P predictions per sequence.
"""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from bertjax import errors
from bertjax.models import bert
from bertjax.models.common import (
    activations,
    deberta_files,
    deberta_layers,
    disentangled,
    encoders,
    heads,
    layers,
)

# Import from and export to Hugging Face read these names from the family's module.
HF_NAMES, HF_TIED = deberta_files.HF_NAMES, deberta_files.HF_TIED
HF_RENAMED, HF_SKIPPED = deberta_files.HF_RENAMED, deberta_files.HF_SKIPPED
HF_PREFIX, HF_HEADS, HF_CONFIG = (
    deberta_files.HF_PREFIX, deberta_files.HF_HEADS, deberta_files.HF_CONFIG
)  # fmt: skip
HF_MODEL_TYPES, HF_DROPPED = deberta_files.HF_MODEL_TYPES, deberta_files.HF_DROPPED

HEADS = encoders.HEADS


@dataclasses.dataclass(frozen=True)
class Config(bert.Config):
    """BERT's fields, with the defaults of version 3, and DeBERTa's additional fields.

    Only a pair uses `generator_num_layers`.
    """

    vocab_size: int = 128100
    generator_num_layers: int = 6  # layers of a pair's generator
    embedding_size: int = 0  # width of the embeddings; 0 means hidden_size
    type_vocab_size: int = 0
    position_terms: tuple[str, ...] = disentangled.TERMS  # terms of the scores for distances
    position_buckets: int = layers.optional(256)  # buckets of distances in each direction; 0: none
    max_relative_positions: int = 0  # longest distance with an embedding; 0 means max_length
    shared_position_projections: bool = True  # project distances with the kernels of the tokens
    relative_norm: bool = True  # layer norm of the embeddings of distances
    position_biased_input: bool = False  # add embeddings of absolute positions to the input
    enhanced_mask_decoder: bool = False  # predict masked tokens by the mask decoder
    conv_kernel_size: int = 0  # tokens in the window of the convolution of layer 1; 0: none
    conv_activation: str = "gelu"
    layer_norm_eps: float = 1e-7
    heads: tuple[str, ...] = ("mlm", "rtd")

    score_bias: ClassVar[str] = "distances"

    def __post_init__(self):
        encoders.check(self, HEADS)
        errors.check(self.attention in ("auto", "xla", "rows"), "attention", self.attention,
                     "'auto', 'xla' or 'rows': no other kernel adds position terms")  # fmt: skip
        terms = tuple(term for term in disentangled.TERMS if term in self.position_terms)
        errors.check(self.position_terms == terms, "model.position_terms", self.position_terms,
                     f"a tuple of {', '.join(disentangled.TERMS)}, in this order")  # fmt: skip
        errors.check(self.position_buckets % 2 == 0 and self.position_buckets != 2,
                     "model.position_buckets", self.position_buckets,
                     "0, or an even number from 4 on")  # fmt: skip
        errors.check(self.conv_kernel_size in (0, *range(1, 64, 2)), "model.conv_kernel_size",
                     self.conv_kernel_size, "0 or an odd number below 64")  # fmt: skip
        errors.check(self.conv_activation in activations.WITH_TANH, "model.conv_activation",
                     self.conv_activation,
                     f"one of {', '.join(activations.WITH_TANH)}")  # fmt: skip
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
OBJECTIVE = {"name": "replaced_token_detection"}  # the published objective of version 3
SMOKE = {**layers.SMOKE, "generator_num_layers": 1, "position_buckets": 4}


def _variant(num_layers: int, hidden_size: int, **fields: Any) -> dict[str, Any]:
    generator = {"generator_num_layers": num_layers // 2}
    return {**layers.sizes(num_layers, hidden_size), **generator, **fields}


# xsmall to large are version 3 (microsoft/DeBERTa, experiments/language_model/rtd_*.json), the
# xlarge sizes version 2 (config.json of microsoft/deberta-v2-xlarge and -xxlarge). Mini is our own.
VARIANTS: dict[str, dict[str, Any]] = {
    "mini": _variant(4, 256),
    "xsmall": _variant(12, 384),
    "small": _variant(6, 768),
    "base": _variant(12, 768),
    "large": _variant(24, 1024),
    "v2_xlarge": _variant(24, 1536, conv_kernel_size=3),
    "v2_xxlarge": _variant(48, 1536, conv_kernel_size=3),
}


class Model(encoders.Model):
    """DeBERTa. `encoders.Model` describes inputs and outputs."""

    config: Config

    layouts = heads.layouts(classifier=heads.Layout(activation="gelu"))

    def setup(self):
        config = self.config
        self.embeddings = deberta_layers.Embeddings(config, is_delta=config.is_pair)
        self.encoder = deberta_layers.Encoder(config)
        if config.decodes_masks:
            rows, width = config.max_length, config.hidden_size
            self.decoder_position = layers.Embed(rows, width, rows, config.init_std)
        if config.is_pair:
            self.generator_embeddings = deberta_layers.Embeddings(config)
            self.generator_encoder = deberta_layers.Encoder(config.generator)
        self.setup_heads()

    def new_rtd_head(self) -> deberta_layers.RtdHead:
        """Returns the module for the head "rtd"."""
        return deberta_layers.RtdHead(self.config)

    def states(
        self, inputs: encoders.Inputs, *, of_generator: bool = False, keep_hidden: bool = False
    ) -> encoders.States:
        """Returns the states of the encoder, or of the generator's encoder of a pair."""
        config, shared = self.config, None
        embeddings, encoder = self.embeddings, self.encoder
        if of_generator:
            embeddings, encoder = self.generator_embeddings, self.generator_encoder
        elif config.is_pair:
            shared = self.generator_embeddings.word
        first_BLD = embeddings(
            inputs.input_ids,
            inputs.token_type_ids,
            inputs.position_ids,
            inputs.deterministic,
            shared,
        )
        has_mlm_head = of_generator == config.is_pair
        decodes = config.decodes_masks and has_mlm_head
        x_BLD, hidden, decoded_BLD = encoder(
            first_BLD,
            inputs.mask,
            deterministic=inputs.deterministic,
            keep_hidden=keep_hidden,
            places_BLD=self.decoder_position(inputs.position_ids) if decodes else None,
        )
        if keep_hidden:
            hidden = jnp.concatenate([first_BLD[None], hidden])
        masked_BLD = x_BLD if decoded_BLD is None else decoded_BLD
        return encoders.States(x_BLD, hidden, masked_BLD, embeddings.word)

    def rtd_logits(self, x_BLD: jax.Array, inputs: encoders.Inputs) -> jax.Array:
        """Returns float32 [B, L], the output of the head "rtd"."""
        start_BLD = x_BLD[:, :1]
        if inputs.segment_ids is not None:  # each example in a row has a first token
            start_BL = jnp.arange(x_BLD.shape[1])[None, :] - inputs.position_ids
            start_BLD = heads.gather_positions(x_BLD, start_BL)
        return self.rtd_head(x_BLD, start_BLD)


def parts(fields: dict[str, Any], params: dict[str, Any]) -> encoders.Parts:
    """Returns the models in a pair; see `encoders.parts`. Adds the two word tables."""
    config = Config(**fields)
    pair = encoders.parts(config, fields, params)
    if config.is_pair:
        _, discriminator = pair["discriminator"]
        embeddings = discriminator["embeddings"]
        delta = embeddings["word"]["embedding"]
        if not isinstance(delta, jax.ShapeDtypeStruct):
            delta = delta + params["generator_embeddings"]["word"]["embedding"]
        discriminator["embeddings"] = {**embeddings, "word": {"embedding": delta}}
    return pair


def _body_flops(config: Config, length: int) -> int:
    width, mlp = config.hidden_size, config.intermediate_size
    embedding = config.embedding_size or width
    distances = len(config.position_terms) * (2 * length - 1)
    attention = 4 * length * width * width + (2 * length + distances) * length * width
    layer = attention + 2 * length * width * mlp
    num_layers = config.num_layers + deberta_layers.MASK_DECODER_STEPS * config.decodes_masks
    conv = config.conv_kernel_size * length * width * width
    project = length * embedding * width * (embedding != width)
    return 2 * (num_layers * layer + conv + project)


def flops_per_sequence(config: Config, length: int, predictions: int) -> int:
    """Returns the FLOPs of a forward pass; see `encoders.flops_per_sequence`.

    The projections of the table of relative positions are not counted, because all sequences of a
    batch share them.
    """
    return encoders.flops_per_sequence(_body_flops, config, length, predictions)
