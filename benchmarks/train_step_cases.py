"""The cases of benchmarks/train_step.py: models, batches, and transformers' configs of the models.

A case is written FAMILY_VARIANT[:ROWSxLENGTH], such as bert_base:16x128. In the cases of `SIZES`,
the size of the batch may be omitted. For T5, LENGTH is the encoder's length.
"""

import copy
import dataclasses
import types
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from bertjax import config as config_lib
from bertjax import errors, experiment, plugins
from bertjax.artifact import hf_config
from bertjax.models.common import layers

# {case: (rows, length)}. bert_mini has 4 layers of width 256.
SIZES = {
    "bert_mini": (64, 128),
    "bert_base": (16, 128),
    "t5_small": (8, 512),
    "albert_base": (16, 128),
    "electra_small": (32, 128),
    "modernbert_base": (8, 128),
    "gpt2_small": (4, 256),
}
FAMILIES = ("bert", "albert", "electra", "modernbert", "t5", "gpt2")
MASK_RATE = 0.15
FIRST_ID = 5  # random tokens have at least this id; the ids below are special


@dataclasses.dataclass(frozen=True)
class Case:
    """A model and the size of its batches.

    smoke: two layers of width 64, for tests. attention_dropout: whether the attention weights have
    the model's dropout; T5 has one rate for all.
    """

    family: str
    variant: str
    rows: int
    length: int
    smoke: bool = False
    attention_dropout: bool = True

    @property
    def name(self) -> str:
        """Returns the case as users write it."""
        return f"{self.family}_{self.variant}:{self.rows}x{self.length}"


def parse(text: str, **fields: bool) -> Case:
    """Returns the case that `text` names. Raises UserError if there is no such case.

    fields: further fields of the case.
    """
    name, _, size = text.partition(":")
    family, _, variant = name.partition("_")
    errors.check(family in FAMILIES, "models", text, f"FAMILY_VARIANT of {', '.join(FAMILIES)}")
    plugins.variant(family, variant)
    if not size:
        errors.check(name in SIZES, "models", text, f"{name}:ROWSxLENGTH, such as {name}:8x128")
        return Case(family, variant, *SIZES[name], **fields)
    numbers = size.split("x")
    valid = len(numbers) == 2 and all(number.isdecimal() for number in numbers)
    errors.check(valid, "models", text, f"{name}:ROWSxLENGTH, such as {name}:8x128")
    return Case(family, variant, int(numbers[0]), int(numbers[1]), **fields)


def config(case: Case, dtype: str, *, every_position: bool = False) -> ConfigDict:
    """Returns the config of the case's run: the family's published objective, without packing.

    every_position: whether the model predicts at all positions, and not only at the masked ones.
    """
    result = config_lib.default(case.family, case.variant)
    if case.smoke:
        result.model.update(plugins.family(case.family).SMOKE)
    result.data.length, result.batch_size, result.dtype = case.length, case.rows, dtype
    result.model.max_length = max(result.model.max_length, case.length)
    if not case.attention_dropout and "attention_dropout_rate" in result.model:
        result.model.attention_dropout_rate = 0.0
    if "packing" in result.objective:
        result.objective.packing = False
    if "mask_rate" in result.objective:
        result.objective.mask_rate = 1.0 if every_position else MASK_RATE
    return result


def has_less_work(case: Case) -> bool:
    """Returns whether our step predicts fewer positions than transformers' step."""
    return plugins.family(case.family).KIND == "encoder"


def can_predict_everywhere(case: Case) -> bool:
    """Returns whether our step can do the same work as transformers' step.

    NOTE: ELECTRA's cannot, because it samples a token at every position that it predicts.
    """
    return config(case, "float32").objective.name == "mlm"


def has_flax_class(case: Case) -> bool:
    """Returns whether transformers 4 has the model in Flax, with the heads of our step."""
    return case.family in ("bert", "albert", "t5", "gpt2")


def has_kernel(case: Case) -> bool:
    """Returns whether the attention kernel for GPUs computes our step: not with T5's bias."""
    return plugins.family(case.family).Config.score_bias == "none"


def parts(run: experiment.Experiment) -> tuple[dict[str, Any], int]:
    """Returns (features of a batch, model FLOPs of a step)."""
    length, rows = run.config.data.length, run.config.batch_size
    features = run.objective.features(run.objective_config, length)
    return features, rows * run.flops_per_sequence(length)


def batch(case: Case) -> dict[str, np.ndarray]:
    """Returns random tokens without padding, with `MASK_RATE` of the positions of a row masked."""
    run = experiment.Experiment(config(case, "float32"), platform="cpu")
    rng, arrays = np.random.default_rng(0), {}
    for name, (shape, dtype) in parts(run)[0].items():
        shape = (case.rows, *shape)
        if name.endswith(("mask", "weights")):
            array = np.ones(shape)
        elif name == "masked_positions":
            order = rng.permuted(np.tile(np.arange(1, case.length), (case.rows, 1)), axis=1)
            array = np.sort(order[:, : shape[1]], axis=1)
        elif name == "token_type_ids":
            array = np.broadcast_to(np.arange(case.length) >= case.length // 2, shape)
        elif name.endswith("_label"):
            array = rng.integers(0, 2, shape)
        else:  # tokens, and the seeds of ELECTRA's samples
            array = rng.integers(FIRST_ID, run.config.model.vocab_size, shape)
        arrays[name] = array.astype(dtype)
    if case.family == "gpt2":  # transformers shifts the targets itself
        arrays["targets"][:, :-1] = arrays["input_ids"][:, 1:]
        arrays["loss_weights"][:, -1] = 0.0
    return arrays


def at_every_position(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns the batch with slots for predictions at all positions; the new ones have weight 0."""
    positions_BP, shape = arrays["masked_positions"], arrays["input_ids"].shape
    changed = {"masked_positions": np.broadcast_to(np.arange(shape[1]), shape).astype(np.int32)}
    for name in ("masked_ids", "masked_weights"):
        changed[name] = np.zeros(shape, arrays[name].dtype)
        np.put_along_axis(changed[name], positions_BP, arrays[name], axis=1)
    return arrays | changed


def transformers_configs(case: Case) -> list[dict[str, Any]]:
    """Returns the content of config.json of the case's model; of a pair, of both its models.

    The generator of a pair is the first.
    """
    run = experiment.Experiment(config(case, "float32"), platform="cpu")
    module, ours = plugins.family(case.family), run.model.config
    models = [ours.generator, ours.discriminator] if getattr(ours, "is_pair", False) else [ours]
    specials = types.SimpleNamespace(pad=0, bos=1, eos=1, end=1, start=1)
    contents = []
    for each in models:
        stand_in: Any = types.SimpleNamespace(
            family=case.family, fields=copy.deepcopy(layers.fields_of(each)), task=None,
            objective=None, tokenizer=types.SimpleNamespace(specials=specials),
        )  # fmt: skip
        contents.append(hf_config.of_model(module, stand_in, ""))
    return contents
