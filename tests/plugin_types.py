"""Assigns each plug-in to its protocol, for mypy; `test_plugin_types.py` looks for missing ones."""

from bertjax import protocols
from bertjax.data.tokenizers import byte_model, library_model, model, sentencepiece_model
from bertjax.finetuning.examples import (
    base,
    candidates,
    choices,
    mixed,
    questions,
    sentences,
    text_pairs,
    words,
)
from bertjax.models import (
    albert,
    bert,
    deberta,
    distilbert,
    electra,
    gpt2,
    modernbert,
    roberta,
    spanbert,
    t5,
)
from bertjax.objectives import (
    causal_lm,
    denoisers,
    distillation,
    mlm,
    prefix_denoisers,
    prefix_lm,
    replaced_token_detection,
    span_boundary,
    span_corruption,
)
from bertjax.objectives.common import hooks

FAMILIES: list[protocols.Family] = [
    albert,
    bert,
    deberta,
    distilbert,
    electra,
    gpt2,
    modernbert,
    roberta,
    spanbert,
    t5,
]
OBJECTIVES: list[protocols.Objective] = [
    causal_lm,
    denoisers,
    distillation,
    mlm,
    prefix_denoisers,
    prefix_lm,
    replaced_token_detection,
    span_boundary,
    span_corruption,
]
HOOKS = {
    "denoisers": hooks.Hooks(input_start=denoisers.input_start),
    "distillation": hooks.Hooks(
        FROZEN=distillation.FROZEN,
        SCORED_BY=distillation.SCORED_BY,
        check_frozen=distillation.check_frozen,
        stand_in=distillation.stand_in,
        first_params=distillation.first_params,
    ),
    "mlm": hooks.Hooks(
        fields_for=mlm.fields_for,
        check_data=mlm.check_data,
        heldout_warnings=mlm.heldout_warnings,
    ),
    "prefix_denoisers": hooks.Hooks(
        SENTINELS=prefix_denoisers.SENTINELS, input_start=prefix_denoisers.input_start
    ),
    "prefix_lm": hooks.Hooks(
        PLAIN_TARGETS=prefix_lm.PLAIN_TARGETS,
        fields_for=prefix_lm.fields_for,
        check_family=prefix_lm.check_family,
    ),
    "span_boundary": hooks.Hooks(
        check_data=span_boundary.check_data, heldout_warnings=span_boundary.heldout_warnings
    ),
}
TOKENIZER_MODELS: list[type[model.Model]] = [
    byte_model.ByteModel,
    library_model.LibraryModel,
    sentencepiece_model.UnigramModel,
]
EXAMPLES: list[type[base.Example]] = [
    sentences.Sentence,
    words.Words,
    questions.Question,
    text_pairs.TextPair,
    choices.Choice,
    candidates.Candidates,
    mixed.Mixed,
]
