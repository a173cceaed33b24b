"""Rows of benchmarks/time_to_loss.py: the training rows of PyTorch, and the rows all are scored on.

    rows = rows_of("prepared/", "train")            # int32 [N, 128], [CLS] 126 tokens [SEP]
    questions = mask(rows[:512], tokenizer)
    score("run/checkpoints/100", questions)         # held-out loss, nats per masked token

The rows are cut from the prepared data that bertjax reads, so text and tokens are the same.
"""

import dataclasses
import functools
import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bertjax import plugins
from bertjax.artifact import loading
from bertjax.data.prepared import store
from bertjax.data.tokenizers import vocabulary as vocabulary_lib

MASK_RATE, SEED, BATCH = 0.15, 0, 64


@dataclasses.dataclass(frozen=True)
class Questions:
    """Masked rows: input_ids int32[N, L]; positions and answers of masked tokens, int32[N, P]."""

    input_ids: np.ndarray
    positions: np.ndarray
    answers: np.ndarray


def rows_of(data: str | os.PathLike, split: str, length: int) -> np.ndarray:
    """Returns int32[N, length], the split's text cut into rows [CLS] text [SEP] without padding.

    As in transformers' example run_mlm.py, the text is one sequence, in which a [SEP] ends each
    document, and its last tokens, which fill no row, are dropped.
    """
    dataset = store.open_dataset(data, split)
    specials = dataset.load_tokenizer().vocabulary().specials
    pieces: list[np.ndarray] = []
    last = None
    for record in dataset.read(range(dataset.num_records)):
        sentence_ends = np.cumsum(record.tokens_per_sentence)
        ends = sentence_ends[np.cumsum(record.sentences_per_document) - 1]
        for document, part in zip(
            record.document_ids, np.split(record.tokens, ends[:-1]), strict=True
        ):
            if last not in (None, document):
                pieces.append(np.array([specials.sep]))
            pieces.append(part)
            last = document
    text = np.concatenate(pieces).astype(np.int32)
    width = length - 2
    text = text[: len(text) // width * width].reshape(-1, width)
    return np.pad(text, ((0, 0), (1, 1)), constant_values=((0, 0), (specials.cls, specials.sep)))


def mask(rows: np.ndarray, vocabulary: vocabulary_lib.Vocabulary) -> Questions:
    """Masks 15% of the tokens of each row, always the same ones: 80% [MASK], 10% random."""
    rng = np.random.default_rng(SEED)
    specials = vocabulary.specials
    count = round(MASK_RATE * (rows.shape[1] - 2))
    scores = rng.random(rows.shape)
    scores[np.isin(rows, (specials.cls, specials.sep))] = 2  # never masked
    positions = np.sort(np.argsort(scores, axis=1)[:, :count], axis=1).astype(np.int32)
    answers = np.take_along_axis(rows, positions, axis=1)
    kind = rng.random(positions.shape)
    random_ids = rng.choice(vocabulary.ordinary_ids, positions.shape)
    replaced = np.where(kind < 0.8, specials.mask, np.where(kind < 0.9, random_ids, answers))
    inputs = rows.copy()
    np.put_along_axis(inputs, positions, replaced.astype(np.int32), axis=1)
    return Questions(inputs, positions, answers)


def score(model: str | os.PathLike, questions: Questions) -> float:
    """Returns the mean loss in nats of the masked tokens, for any model that bertjax reads."""
    source = loading.load(model)
    losses = _losses(source.family, tuple(sorted(source.fields.items())))
    total = 0.0
    for start in range(0, len(questions.input_ids), BATCH):
        part = slice(start, start + BATCH)
        total += float(losses(
            source.params, questions.input_ids[part], questions.positions[part],
            questions.answers[part],
        ))  # fmt: skip
    return total / questions.answers.size


@functools.cache
def _losses(family: str, fields: tuple[tuple[str, Any], ...]) -> Any:
    """Returns a compiled function of parameters and questions: the sum of the losses."""
    model = plugins.model(family, dict(fields))

    @jax.jit
    def losses(params, input_ids, positions, answers):
        outputs = model.apply({"params": params}, input_ids, masked_positions=positions)
        logs = jax.nn.log_softmax(outputs["mlm_logits"].astype(jnp.float32))
        return -jnp.take_along_axis(logs, answers[..., None], axis=-1).sum()

    return losses
