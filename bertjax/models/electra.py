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

import jax

from bertjax import errors
from bertjax.models import bert
from bertjax.models.common import encoders, heads, layers

HEADS = encoders.HEADS


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
        encoders.check(self, HEADS)
        if self.generator_hidden_size % self.generator_num_heads:
            raise errors.UserError(
                f"config.model.generator_num_heads = {self.generator_num_heads}: must be a divisor "
                f"of config.model.generator_hidden_size = {self.generator_hidden_size}"
            )

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


class Model(bert.Model):
    """ELECTRA. `encoders.Model` describes inputs and outputs."""

    config: Config

    layouts = heads.layouts(classifier=heads.Layout(activation="gelu", first_rate=None))

    def new_embeddings(self) -> bert.Embeddings:
        """Returns the module for the embeddings."""
        embed_config = dataclasses.replace(
            self.config, hidden_size=self.config.embedding_size, num_heads=1
        )
        return bert.Embeddings(embed_config)

    def new_mlm_head(self) -> heads.MlmHead:
        """Returns the MLM head, whose activation is always gelu."""
        return heads.MlmHead(dataclasses.replace(self.config, activation="gelu"))

    def setup(self):
        super().setup()
        self.project = _project(self.config)
        if self.config.is_pair:
            self.generator_project = _project(self.config.generator)

    def project_embeddings(self, x_BLD: jax.Array, *, of_generator: bool) -> jax.Array:
        """Returns the input of the first layer."""
        project = self.generator_project if of_generator else self.project
        return project(x_BLD) if project else x_BLD


def parts(fields: dict[str, Any], params: dict[str, Any]) -> encoders.Parts:
    """Returns the models in a pair, which lack the fields `generator_*`; see `encoders.parts`."""
    config = Config(**fields)
    pair_fields = [name for name in fields if name.startswith("generator_")]
    return encoders.parts(config, fields, params, pair_fields)


def _body_flops(config: Config, length: int) -> int:
    embedding, width = config.embedding_size, config.hidden_size
    project = length * embedding * width * (embedding != width)
    return bert.body_flops(config, length) + 2 * project


def flops_per_sequence(config: Config, length: int, predictions: int) -> int:
    """Returns the FLOPs of a forward pass; see `encoders.flops_per_sequence`."""
    return encoders.flops_per_sequence(_body_flops, config, length, predictions)


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
HF_DROPPED = ("nsp_head/", "sop_head/", "sbo_head/")  # no class of transformers has them
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
