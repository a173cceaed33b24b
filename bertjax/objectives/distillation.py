"""Knowledge distillation into a student (DistilBERT, Sanh et al., arXiv 1910.01108, section 2).

The student's loss has three terms. The first is masked language modelling as in `mlm`. The second
is the KL divergence between the teacher's and the student's distributions over the vocabulary, at
the predicted positions; a temperature softens both distributions. The third is the cosine distance
between the last hidden states of student and teacher. The teacher is a frozen model with an MLM
head.

Shapes: B batch, L length, P predictions per sequence, V rows of the word table, D model.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bertjax import errors, metrics
from bertjax.objectives import mlm
from bertjax.objectives.common import hooks, losses

KINDS = mlm.KINDS
predictions, features, sampling = mlm.predictions, mlm.features, mlm.sampling
transform = mlm.transform

FROZEN = ("teacher",)
SCORED_BY = "mlm"  # the evaluation of a student does not need its teacher
# Fields of a model that determine the shapes of its arrays.
_SIZES = ("hidden_size", "num_heads", "intermediate_size", "type_vocab_size", "max_length")


@dataclasses.dataclass(frozen=True)
class Config(mlm.Config):
    """Fields for the masking, the teacher, and the weights of the three losses."""

    pair: str = "none"
    teacher: str = ""  # artifact, workdir, Hugging Face folder or ORG/NAME; with an MLM head
    start_from_teacher: bool = True  # initialise from evenly spread layers of the teacher
    temperature: float = 2.0  # temperature of both softmaxes of soft_loss
    mlm_weight: float = 2.0  # weight of mlm_loss
    soft_weight: float = 5.0  # weight of soft_loss, the divergence from the teacher
    cosine_weight: float = 1.0  # weight of cosine_loss; must be 0 if hidden sizes differ

    def __post_init__(self):
        super().__post_init__()

        def check(ok: bool, name: str, allowed: str) -> None:
            errors.check(ok, f"objective.{name}", getattr(self, name), allowed)

        check(self.pair == "none", "pair", "'none'")
        check(self.temperature > 0, "temperature", "above 0")
        for name in ("mlm_weight", "soft_weight", "cosine_weight"):
            check(getattr(self, name) >= 0, name, "0 or more")


def check_frozen(
    config: Config, name: str, vocab_size: int, length: int, fields: Mapping[str, Any]
) -> None:
    """Raises UserError if the teacher does not fit the student; arguments as in `hooks.Hooks`.

    The teacher needs an MLM head, the student's vocab_size, and a max_length of at least `length`.
    """
    key = f"config.objective.teacher = {config.teacher}"
    if "mlm" not in fields.get("heads", ()):
        raise errors.UserError(
            f"{key} has no masked language model head: give a model that has one"
        )
    if fields["vocab_size"] != vocab_size:
        raise errors.UserError(
            f"{key} has a vocabulary of {fields['vocab_size']} pieces: set "
            f"config.model.vocab_size, which is {vocab_size}, to that number"
        )
    if fields["max_length"] < length:
        raise errors.UserError(
            f"{key} takes at most {fields['max_length']} tokens: reduce config.data.length (and "
            f"config.phase2.length), which is now up to {length}"
        )


def stand_in(name: str, fields: Mapping[str, Any]) -> hooks.StandIn:
    """Returns the teacher that `plan` assumes: a BERT of the student's sizes with twice the layers.

    This is how DistilBERT's teacher differs from DistilBERT (Sanh et al., section 3). fields: the
    student's fields.
    """
    sizes = ("vocab_size", "hidden_size", "num_heads", "intermediate_size", "max_length")
    values = {size: fields[size] for size in sizes}
    values |= {"num_layers": 2 * fields["num_layers"], "heads": ("mlm",)}
    return hooks.StandIn(
        "bert", values, "a BERT with the student's sizes but twice as many layers"
    )


def first_params(
    config: Config,
    params: Mapping[str, Any],
    fields: Mapping[str, Any],
    frozen: Mapping[str, hooks.Frozen],
) -> dict[str, Any] | None:
    """Returns the student's `params`, with each array replaced by the teacher's of the same name.

    Arrays that the teacher lacks are not replaced. Returns None if `start_from_teacher` is off.
    The teacher may be of any family. The student's layers start as evenly spread layers of the
    teacher, including the first and the last. For example, 6 layers start as layers 0, 2, 4, 7, 9
    and 11 of 12, as in DistilBERT. fields: the student's fields. Raises UserError if shapes differ.
    """
    if not config.start_from_teacher:
        return None
    teacher, initial = frozen["teacher"], {}
    for name, leaf in params.items():
        array = teacher.params.get(name, leaf)
        if name in teacher.params and "/layers/" in name:
            array = array[spread_layers(len(array), len(leaf))]
        if array.shape != leaf.shape:
            raise errors.UserError(
                f"config.objective.teacher has {name} of shape {array.shape}, but config.model "
                f"needs {leaf.shape}: {_student_remedy(fields, teacher.fields)}"
            )
        initial[name] = array
    return initial


def _student_remedy(student: Mapping[str, Any], teacher: Mapping[str, Any]) -> str:
    """Returns the advice to set the student's sizes to the teacher's or to start from scratch."""
    mismatches = [s for s in _SIZES if s in student and s in teacher and student[s] != teacher[s]]
    fresh_start = "set config.objective.start_from_teacher to False for a student of other sizes"
    if not mismatches:
        return fresh_start
    settings = ", ".join(f"config.model.{size} to {teacher[size]}" for size in mismatches)
    # If only max_length differs, the only advice is to set it to the teacher's value: unused
    # positions cost the student less than a start from scratch.
    return f"set {settings}" + ("" if mismatches == ["max_length"] else f"; or {fresh_start}")


def spread_layers(teacher_layers: int, student_layers: int) -> np.ndarray:
    """Returns int[student_layers]: the teacher's layer that initialises each student layer."""
    return np.rint(np.linspace(0, teacher_layers - 1, student_layers)).astype(int)


def heads(config: Config) -> tuple[str, ...]:
    """Returns the model's heads that `loss` uses."""
    return ("mlm",)


def scales(config: Config) -> dict[str, float]:
    """Returns {loss term: factor}, the main term first; training minimises the weighted sum."""
    factors = {"mlm_loss": config.mlm_weight, "soft_loss": config.soft_weight}
    return factors | ({"cosine_loss": config.cosine_weight} if config.cosine_weight else {})


def normalizers(config: Config, batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """Returns {loss term: total weight in the batch}, by which the term's sum is divided."""
    predicted, tokens = batch["masked_weights"].sum(), losses.token_weights(batch).sum()
    weights = {"mlm_loss": predicted, "soft_loss": predicted, "cosine_loss": tokens}
    return {name: weights[name] for name in scales(config)}


def loss(
    config: Config,
    apply: Callable[..., dict[str, jax.Array]],
    batch: dict[str, jax.Array],
    teacher: Callable[..., dict[str, jax.Array]],
) -> metrics.Terms:
    """Returns {name: (sum, weight)}: the student's three losses and its accuracy at masked tokens.

    soft_loss is T^2 KL(teacher, student) in nats at temperature T. cosine_loss is 1 - cosine of the
    last hidden states, over all tokens.

    apply: the student with its parameters bound. teacher: the teacher with its parameters bound,
    without dropout and gradient. Raises UserError at trace time if cosine_loss is on and the hidden
    sizes of student and teacher differ.
    """
    inputs = losses.inputs(batch, mlm.INPUTS) | {"masked_positions": batch["masked_positions"]}
    student_out, teacher_out = apply(**inputs), teacher(**inputs)
    weights_BP = batch["masked_weights"]
    student_BPV, teacher_BPV = student_out["mlm_logits"], teacher_out["mlm_logits"]
    terms = losses.classification("mlm", student_BPV, batch["masked_ids"], weights_BP)
    divergence_BP = losses.softened_divergence(teacher_BPV, student_BPV, config.temperature)
    terms |= {"soft_loss": ((divergence_BP * weights_BP).sum(), weights_BP.sum())}
    if config.cosine_weight:
        cosine_BL = _cosine(student_out["last_hidden_state"], teacher_out["last_hidden_state"])
        weights_BL = losses.token_weights(batch)
        terms |= {"cosine_loss": (((1 - cosine_BL) * weights_BL).sum(), weights_BL.sum())}
    return terms


def _cosine(student_BLD: jax.Array, teacher_BLD: jax.Array) -> jax.Array:
    """Returns float32[B, L]: for each token, the cosine between the states of the two models."""
    if student_BLD.shape != teacher_BLD.shape:
        raise errors.UserError(
            f"the hidden size of config.objective.teacher is {teacher_BLD.shape[-1]}, but that of "
            f"config.model is {student_BLD.shape[-1]}: set config.objective.cosine_weight to 0"
        )
    a_BLD, b_BLD = student_BLD.astype(jnp.float32), teacher_BLD.astype(jnp.float32)
    # The square root is kept away from 0, where its gradient is not finite.
    squares_BL = jnp.sum(a_BLD * a_BLD, axis=-1) * jnp.sum(b_BLD * b_BLD, axis=-1)
    return jnp.sum(a_BLD * b_BLD, axis=-1) * jax.lax.rsqrt(jnp.maximum(squares_BL, 1e-12))
