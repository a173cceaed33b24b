"""ELECTRA (Clark et al., arXiv 2003.10555): a generator and a replaced token discriminator.

Both are BERT encoders. They share embeddings [V, E], which are projected to the width of each
encoder, as in ALBERT. `heads` selects the model: ("mlm", "rtd") is the pair, for training; ("rtd",)
is the discriminator alone and ("mlm",) the generator alone, for export; () is a bare encoder.
Fine-tuning heads are added to the discriminator. Only a pair uses the fields `generator_*`. In a
generator alone, the sizes are the fields without this prefix. `parts` splits a pair into its two
models.

    >>> model = Model(Config(**VARIANTS["small"]))
    >>> params = model.init(jax.random.key(0), jnp.ones((1, 8), jnp.int32))["params"]
    >>> model.apply({"params": params}, jnp.ones((1, 8), jnp.int32))["rtd_logits"].shape
    (1, 8)
"""

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from bertjax import errors, sharding
from bertjax.models import bert
from bertjax.models.common import activations, heads, layers, masks, post_norm

HEADS = ("mlm", "rtd", *heads.DOWNSTREAM)


@dataclasses.dataclass(frozen=True)
class Config(bert.Config):
    """BERT's fields, the width of the embeddings, and the sizes of a pair's generator.

    Both encoders of a pair have `num_layers` layers.
    """

    embedding_size: int = 128  # width of the embeddings
    hidden_size: int = 256
    num_heads: int = 4
    intermediate_size: int = 1024
    generator_hidden_size: int = 64
    generator_num_heads: int = 1
    generator_intermediate_size: int = 256
    heads: tuple[str, ...] = ("mlm", "rtd")

    def __post_init__(self):
        layers.check_fields(self)
        heads.check(self, HEADS)
        if self.generator_hidden_size % self.generator_num_heads:
            raise errors.UserError(
                f"config.model.generator_num_heads = {self.generator_num_heads}: must be a divisor "
                f"of config.model.generator_hidden_size = {self.generator_hidden_size}"
            )

    @property
    def is_pair(self) -> bool:
        """Returns whether the model consists of a generator and a discriminator."""
        return {"mlm", "rtd"} <= set(self.heads)

    @property
    def generator(self) -> "Config":
        """Returns the Config of the pair's generator as a separate model."""
        return dataclasses.replace(
            self,
            hidden_size=self.generator_hidden_size,
            num_heads=self.generator_num_heads,
            intermediate_size=self.generator_intermediate_size,
            heads=("mlm",),
        )


def _variant(
    num_layers: int, hidden_size: int, embedding_size: int, generator_hidden_size: int
) -> dict[str, int]:
    return {
        **layers.sizes(num_layers, hidden_size),
        "embedding_size": embedding_size,
        "generator_hidden_size": generator_hidden_size,
        "generator_num_heads": generator_hidden_size // 64,
        "generator_intermediate_size": 4 * generator_hidden_size,
    }


KIND = "encoder"
INPUTS = ("input_ids",)
OBJECTIVE = {"name": "replaced_token_detection"}  # the published pretraining objective
SMOKE = {
    **layers.SMOKE,
    "embedding_size": 32,
    "generator_hidden_size": 32,
    "generator_num_heads": 1,
    "generator_intermediate_size": 64,
}

# Table 6 of the paper: for small, base and large, the generator is 1/4, 1/3 and 1/4 as wide as the
# discriminator. (The released small generator belongs to another run, ELECTRA-Small++, and is as
# wide as its discriminator.) Mini is our own.
VARIANTS = {
    "mini": _variant(4, 256, 128, 64),
    "small": _variant(12, 256, 128, 64),
    "base": _variant(12, 768, 768, 256),
    "large": _variant(24, 1024, 1024, 256),
}


def _project(config: Config) -> layers.Dense | None:
    """Returns the projection of embeddings to the layers' width; None if the widths are equal."""
    same_width = config.embedding_size == config.hidden_size
    return None if same_width else layers.dense(config.hidden_size, config)


class RtdHead(nn.Module):
    """Computes the logit that a token was replaced: dense, activation, dense to one number."""

    config: Config

    @nn.compact
    def __call__(self, x_BLD: jax.Array) -> jax.Array:
        x_BLD = layers.dense(self.config.hidden_size, self.config, name="transform")(x_BLD)
        x_BLD = sharding.constrain(x_BLD, ("batch", "length", "embed"))
        x_BLD = activations.FUNCTIONS[self.config.activation](x_BLD)
        return layers.dense(1, self.config, name="classifier")(x_BLD)[..., 0].astype(jnp.float32)


class Model(heads.Model):
    """ELECTRA. Inputs are int32[B, L]; `masked_positions` is int32[B, P].

    `attention_mask` is 1 on tokens and 0 on padding. Packed rows, which hold several examples, have
    `segment_ids` (0 on padding) and `position_ids` instead.
    """

    config: Config

    layouts = heads.layouts(classifier=heads.Layout(activation="gelu", first_rate=None))

    def setup(self):
        config = self.config
        embed_config = dataclasses.replace(config, hidden_size=config.embedding_size, num_heads=1)
        self.embeddings = bert.Embeddings(embed_config)
        self.project = _project(config)
        self.encoder = post_norm.Encoder(config)
        if "rtd" in config.heads:
            self.rtd_head = RtdHead(config)
        if "mlm" in config.heads:  # this head's activation is always gelu
            self.mlm_head = heads.MlmHead(dataclasses.replace(config, activation="gelu"))
        if config.is_pair:
            self.generator_project = _project(config.generator)
            self.generator_encoder = post_norm.Encoder(config.generator)
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
        active_heads = self.config.heads if heads_to_run is None else heads_to_run
        is_pair = self.config.is_pair
        if token_type_ids is None:
            token_type_ids = jnp.zeros_like(input_ids)
        if position_ids is None:
            position_ids = jnp.arange(input_ids.shape[1])[None, :]
        x_BLE = self.embeddings(input_ids, token_type_ids, position_ids, deterministic)
        inputs = {
            "mask": masks.of_batch(attention_mask, segment_ids),
            "deterministic": deterministic,
        }
        outputs = {}
        if not is_pair or active_heads != ("mlm",):
            first_BLD = self.project(x_BLE) if self.project else x_BLE
            x_BLD, hidden = self.encoder(first_BLD, keep_hidden=output_hidden_states, **inputs)
            outputs["last_hidden_state"] = x_BLD
            if output_hidden_states:
                outputs["hidden_states"] = jnp.concatenate([first_BLD[None], hidden])
            outputs = self.add_downstream(outputs, attention_mask, deterministic=deterministic)
            if "rtd" in active_heads:
                outputs["rtd_logits"] = self.rtd_head(x_BLD)
        if "mlm" in active_heads:
            if is_pair:
                x_BLD = self.generator_project(x_BLE) if self.generator_project else x_BLE
                x_BLD, _ = self.generator_encoder(x_BLD, keep_hidden=False, **inputs)
            if masked_positions is not None:
                x_BLD = heads.gather_positions(x_BLD, masked_positions)
            outputs["mlm_logits"] = self.mlm_head(x_BLD, self.embeddings.word)
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
    generator_modules = ("mlm_head", "generator_project", "generator_encoder")
    generator = {
        name.removeprefix("generator_"): tree
        for name, tree in params.items()
        if name in ("embeddings", *generator_modules)
    }
    discriminator = {name: tree for name, tree in params.items() if name not in generator_modules}
    field_names = [name for name in fields if not name.startswith("generator_")]
    return {
        "discriminator": (
            {name: fields[name] for name in field_names}
            | {"heads": tuple(head for head in config.heads if head != "mlm")},
            discriminator,
        ),
        "generator": ({name: getattr(config.generator, name) for name in field_names}, generator),
    }


def flops_per_sequence(config: Config, length: int, predictions: int) -> int:
    """Returns the FLOPs of all matmuls in the forward pass of one sequence: two per multiply-add.

    predictions: the number of positions with vocabulary logits. The result for a pair is the sum
    over generator and discriminator.
    """
    if config.is_pair:
        discriminator = dataclasses.replace(config, heads=("rtd",))
        return sum(
            flops_per_sequence(part, length, predictions)
            for part in (config.generator, discriminator)
        )
    embedding, width = config.embedding_size, config.hidden_size
    encoder = bert.flops_per_sequence(dataclasses.replace(config, heads=()), length, 0)
    project = length * embedding * width * (embedding != width)
    rtd = length * width * (width + 1) * ("rtd" in config.heads)
    rows = layers.padded_vocab_size(config.vocab_size)
    mlm = predictions * embedding * (width + rows) * ("mlm" in config.heads)
    return encoder + 2 * (project + rtd + mlm)


# models/bert.py explains these tables. They are for a generator or a discriminator alone, because
# Hugging Face has no class for a pair.
_RTD = "discriminator_predictions."
_ELECTRA_NAMES = (
    ("project/kernel", "electra.embeddings_project.weight", "transpose"),
    ("project/bias", "electra.embeddings_project.bias", "same"),
    ("rtd_head/transform/kernel", _RTD + "dense.weight", "transpose"),
    ("rtd_head/transform/bias", _RTD + "dense.bias", "same"),
    ("rtd_head/classifier/kernel", _RTD + "dense_prediction.weight", "transpose"),
    ("rtd_head/classifier/bias", _RTD + "dense_prediction.bias", "same"),
    ("mlm_head/transform/kernel", "generator_predictions.dense.weight", "transpose"),
    ("mlm_head/transform/bias", "generator_predictions.dense.bias", "same"),
    ("mlm_head/norm/scale", "generator_predictions.LayerNorm.weight", "same"),
    ("mlm_head/norm/bias", "generator_predictions.LayerNorm.bias", "same"),
    ("mlm_head/bias", "generator_lm_head.bias", "vocab_rows"),
)
HF_NAMES = _ELECTRA_NAMES + tuple(
    (ours, theirs.replace("bert.", "electra.", 1), rule)
    for ours, theirs, rule in bert.HF_NAMES
    if ours.startswith(("embeddings/", "encoder/"))
)
HF_TIED = {"generator_lm_head.weight": "electra.embeddings.word_embeddings.weight"}
HF_SKIPPED = ("electra.embeddings.position_ids", "electra.embeddings.token_type_ids")
HF_PREFIX = "electra."
HF_HEADS = bert.HF_HEADS | {
    "ForSequenceClassification": {
        "classifier/transform": "classifier.dense",
        "classifier/logits": "classifier.out_proj",
    },
    "ForMultipleChoice": {
        "classifier/transform": "sequence_summary.summary",
        "classifier/logits": "classifier",
    },
}

HF_MODEL_TYPES = ("electra",)  # model_type values that this family reads
HF_CONFIG = {
    "model_type": "electra",
    "fields": {**bert.HF_CONFIG["fields"], "embedding_size": "embedding_size"},
    "fixed": bert.HF_CONFIG["fixed"],
    # These keys describe layers before the classifier that only this class has.
    "fixed_in_class": {
        "ForMultipleChoice": {
            "summary_type": "first",
            "summary_use_proj": True,
            "summary_proj_to_labels": False,
            "summary_activation": "gelu",
        }
    },
    "import_heads": (("rtd",), ("mlm",)),
    "architectures": {
        (): "ElectraModel",
        ("mlm",): "ElectraForMaskedLM",
        ("rtd",): "ElectraForPreTraining",
    },
}
