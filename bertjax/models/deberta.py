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
HF_MODEL_TYPES, HF_DROPPED = deberta_files.HF_MODEL_TYPES, deberta_files.HF_DROPPED

HEADS = ("mlm", "rtd", *heads.DOWNSTREAM)


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
    position_buckets: int = 256  # buckets of distances in each direction; 0: no buckets
    max_relative_positions: int = 0  # longest distance with an embedding; 0 means max_length
    shared_position_projections: bool = True  # project distances with the kernels of the tokens
    relative_norm: bool = True  # layer norm of the embeddings of distances
    position_biased_input: bool = False  # add embeddings of absolute positions to the input
    enhanced_mask_decoder: bool = False  # predict masked tokens by the mask decoder
    conv_kernel_size: int = 0  # tokens in the window of the convolution of layer 1; 0: none
    conv_activation: str = "gelu"
    layer_norm_eps: float = 1e-7
    heads: tuple[str, ...] = ("mlm", "rtd")

    def __post_init__(self):
        layers.check_fields(self)
        heads.check(self, HEADS)
        errors.check(self.attention == "xla", "attention", self.attention,
                     "'xla', because no kernel adds DeBERTa's position terms")  # fmt: skip
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
    def is_pair(self) -> bool:
        """Returns whether the model consists of a generator and a discriminator."""
        return {"mlm", "rtd"} <= set(self.heads)

    @property
    def generator(self) -> "Config":
        """Returns the Config of the pair's generator as a separate model."""
        return dataclasses.replace(self, num_layers=self.generator_num_layers, heads=("mlm",))

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


class Model(heads.Model):
    """DeBERTa. Inputs are int32[B, L]; `masked_positions` is int32[B, P].

    `attention_mask` is 1 on tokens and 0 on padding. Packed rows, which hold several examples, have
    `segment_ids` (0 on padding) and `position_ids` instead.
    """

    config: Config

    layouts = heads.layouts(classifier=heads.Layout(activation="gelu"))

    def setup(self):
        config = self.config
        self.embeddings = deberta_layers.Embeddings(config, is_delta=config.is_pair)
        self.encoder = deberta_layers.Encoder(config)
        if "rtd" in config.heads:
            self.rtd_head = deberta_layers.RtdHead(config)
        if "mlm" in config.heads:
            self.mlm_head = heads.MlmHead(config)
        if config.decodes_masks:
            rows, width = config.max_length, config.hidden_size
            self.decoder_position = layers.Embed(rows, width, rows, config.init_std)
        if config.is_pair:
            self.generator_embeddings = deberta_layers.Embeddings(config)
            self.generator_encoder = deberta_layers.Encoder(config.generator)
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
        heads_to_run: tuple[str, ...] | None = None,
        deterministic: bool = True,
        output_hidden_states: bool = False,
    ) -> dict[str, jax.Array]:
        """Returns a dict of the outputs of the encoder and of its heads.

        Head rtd: rtd_logits [B, L], float32; above 0 where a token is predicted to be replaced.
        Head mlm: mlm_logits [B, P, rows of the word table], float32, at `masked_positions`; if
        these are None, at every position (P = L).
        Fine-tuning heads: the outputs of `heads.Model.add_downstream`.
        Always, except if only a pair's generator runs: last_hidden_state [B, L, D] and, if
        `output_hidden_states`, hidden_states [1 + num_layers, B, L, D]. A pair returns the
        discriminator's states.

        heads_to_run: which of the heads "mlm" and "rtd" to run; None means all of `config.heads`. A
        pair runs only the encoders that these heads need.
        """
        config = self.config
        active_heads = config.heads if heads_to_run is None else heads_to_run
        if token_type_ids is None:
            token_type_ids = jnp.zeros_like(input_ids)
        if position_ids is None:
            position_ids = jnp.arange(input_ids.shape[1])[None, :]
        features = (input_ids, token_type_ids, position_ids, deterministic)
        inputs = {
            "mask": masks.of_batch(attention_mask, segment_ids),
            "deterministic": deterministic,
        }
        decodes = config.decodes_masks and "mlm" in active_heads
        places_BLD = self.decoder_position(position_ids) if decodes else None
        embeddings, outputs = self.embeddings, {}
        if not config.is_pair or active_heads != ("mlm",):
            shared = self.generator_embeddings.word if config.is_pair else None
            first_BLD = embeddings(*features, shared)
            x_BLD, hidden, decoded_BLD = self.encoder(
                first_BLD,
                keep_hidden=output_hidden_states,
                places_BLD=None if config.is_pair else places_BLD,
                **inputs,
            )
            outputs["last_hidden_state"] = x_BLD
            if output_hidden_states:
                outputs["hidden_states"] = jnp.concatenate([first_BLD[None], hidden])
            outputs = self.add_downstream(outputs, attention_mask, deterministic=deterministic)
            if "rtd" in active_heads:
                start_BLD = x_BLD[:, :1]
                if segment_ids is not None:  # each example in a row has a first token
                    start_BL = jnp.arange(input_ids.shape[1])[None, :] - position_ids
                    start_BLD = heads.gather_positions(x_BLD, start_BL)
                outputs["rtd_logits"] = self.rtd_head(x_BLD, start_BLD)
        if "mlm" in active_heads:
            if config.is_pair:
                embeddings = self.generator_embeddings
                x_BLD, _, decoded_BLD = self.generator_encoder(
                    embeddings(*features), keep_hidden=False, places_BLD=places_BLD, **inputs
                )
            x_BLD = x_BLD if decoded_BLD is None else decoded_BLD
            if masked_positions is not None:
                x_BLD = heads.gather_positions(x_BLD, masked_positions)
            outputs["mlm_logits"] = self.mlm_head(x_BLD, embeddings.word)
        return outputs


def parts(
    fields: dict[str, Any], params: dict[str, Any]
) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """Returns the models to export: {"discriminator": (fields, params), "generator": ...}.

    fields, params: the fields of the Config and the nested dict of parameters of the whole model.
    If the model is not a pair, the result has only one entry, the model itself.
    """
    config = Config(**fields)
    if not config.is_pair:
        name = "generator" if config.heads == ("mlm",) else "discriminator"
        return {name: (fields, params)}
    own = ("mlm_head", "decoder_position", "generator_embeddings", "generator_encoder")
    generator = {name.removeprefix("generator_"): params[name] for name in own if name in params}
    discriminator = {name: tree for name, tree in params.items() if name not in own}
    embeddings = discriminator["embeddings"]
    delta = embeddings["word"]["embedding"]
    if not isinstance(delta, jax.ShapeDtypeStruct):
        delta = delta + generator["embeddings"]["word"]["embedding"]
    discriminator["embeddings"] = {**embeddings, "word": {"embedding": delta}}
    other_heads = tuple(head for head in config.heads if head != "mlm")
    return {
        "discriminator": ({**fields, "heads": other_heads}, discriminator),
        "generator": (
            {**fields, "num_layers": config.generator_num_layers, "heads": ("mlm",)},
            generator,
        ),
    }


def flops_per_sequence(config: Config, length: int, predictions: int) -> int:
    """Returns the FLOPs of all matmuls in the forward pass of one sequence: two per multiply-add.

    predictions: the number of positions with vocabulary logits. The result for a pair is the sum
    over generator and discriminator. The projections of the table of relative positions are not
    counted, because all sequences of a batch share them.
    """
    if config.is_pair:
        discriminator = dataclasses.replace(config, heads=("rtd",))
        return sum(
            flops_per_sequence(part, length, predictions)
            for part in (config.generator, discriminator)
        )
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
    rtd = length * width * (width + 1) * ("rtd" in config.heads)
    return 2 * (num_layers * layer + conv + project + head + rtd)
