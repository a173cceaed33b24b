"""Held-out samples with a model's predictions at several checkpoints of its run.

    found = samples.predict("run/", steps=[0, 500, 1000])
    found[0].tokens[0].guesses      # the prediction for the first masked token at each checkpoint

The samples are made by the objective, as in training: masked tokens of an encoder, tokens of the
target of T5, next tokens of a decoder, given the true tokens before.

Shapes: B batch, L length, P predictions per sequence, V vocabulary.
"""

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bertjax import config as config_lib
from bertjax import errors, experiment, metrics, plugins, workdir
from bertjax import phases as phases_lib
from bertjax.artifact import facts, loading
from bertjax.data.batches import loader
from bertjax.data.prepared import store
from bertjax.data.tokenizers import tokenizer as tokenizer_lib
from bertjax.data.tokenizers.vocabulary import Vocabulary
from bertjax.models.common import layers
from bertjax.objectives.common import hooks

SAMPLES, STEPS = 4, 4  # at most so many samples and checkpoints
_SHOWN = 64  # positions of a sample
_PREDICTED = 8  # tokens of a sample whose predictions are shown
_CONTEXT = 24  # tokens before the first predicted one that a decoder's sample shows
_WINDOW_TOKENS = 2**15  # of held-out text from which the samples are drawn


@dataclasses.dataclass(frozen=True)
class Guess:
    """A prediction: the likeliest piece and its probability, and that of the true piece."""

    piece: str
    probability: float
    of_truth: float


@dataclasses.dataclass(frozen=True)
class Token:
    """A token to predict. position: in `Sample.pieces`; guesses: one for each checkpoint."""

    position: int
    truth: str
    guesses: list[Guess]


@dataclasses.dataclass(frozen=True)
class Sample:
    """A held-out sample. pieces: the first input tokens. tokens: the first ones to predict."""

    source: str
    pieces: list[str]
    tokens: list[Token]


def spread(steps: Sequence[int]) -> list[int]:
    """Returns up to STEPS of the steps: the first, the last, and others evenly between them."""
    places = np.linspace(0, len(steps) - 1, min(STEPS, len(steps)))
    return [steps[round(place)] for place in places]


def predict(run: str | os.PathLike, steps: Sequence[int]) -> list[Sample]:
    """Returns samples of the run's held-out data with the predictions at the given checkpoints.

    Raises UserError if the data no longer exists, and if the run's objective needs other models.
    NOTE: call it in one process only, because Orbax synchronises the processes of a job.
    """
    identity = workdir.read(run)
    config = config_lib.from_dict(identity.config)
    objective = plugins.objective(config.objective.name)
    if hooks.of(objective).FROZEN:
        raise errors.UserError(f"the objective {config.objective.name} needs other models")
    phase = phases_lib.at_step(phases_lib.of(config), max(steps))
    part = experiment.Experiment(config).at(phase)
    tokenizer = tokenizer_lib.load(os.fspath(workdir.paths.of(run) / workdir.TOKENIZER))
    batches = _batches(config, part, phase.length, tokenizer.vocabulary())
    batch = {
        name: np.concatenate([one[name] for one in batches.values()])
        for name in next(iter(batches.values()))
    }
    sources = [name for name, one in batches.items() for _ in one["input_ids"]]
    step_fn = _step(part)
    by_step = []
    target = _abstract_params(part.model)
    with loading.open_checkpoints(run) as checkpoints:
        for step in steps:
            params = checkpoints.restore_params(target, step)
            by_step.append(jax.device_get(step_fn(params, batch)))
    return [
        sample
        for row, source in enumerate(sources)
        if (sample := _sample(batch, row, source, by_step, tokenizer)).tokens
    ]


def _batches(
    config: Any, part: experiment.Experiment, length: int, vocabulary: Vocabulary
) -> dict[str, dict[str, np.ndarray]]:
    """Returns {source: a batch of samples of its held-out text}, without an example's weight."""
    paths = facts.folders_of(config.to_dict())
    if config.data.heldout_path:
        paths = {"": config.data.heldout_path}
    sampling, transform = part.sampling(length, vocabulary)
    batches = {}
    for name in list(paths)[:SAMPLES]:
        count = max(1, SAMPLES // len(paths))
        dataset = store.open_heldout(paths[name])
        batches[name] = next(
            loader.eval_batches(
                dataset, sampling, transform,
                batch_size=count, seed=0, max_samples=count, window_tokens=_WINDOW_TOKENS,
            )
        )  # fmt: skip
    return batches


def _abstract_params(model: Any) -> Any:
    sharding = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
        plugins.abstract_params(model),
    )


def _step(part: experiment.Experiment) -> Callable[..., tuple[jax.Array, ...]]:
    """Returns step(params, batch) -> (ids, probabilities, probabilities of the truth), all [B, P].

    Runs the objective's loss and records the outputs of the model, so that it works for every
    objective whose loss has logits over the vocabulary.
    """
    rows = layers.padded_vocab_size(part.config.model.vocab_size)

    def step(params: Any, batch: Mapping[str, jax.Array]) -> tuple[jax.Array, ...]:
        recorded: list[jax.Array] = []
        truth_BP, _ = metrics.predicted(batch)

        def apply(**inputs: Any) -> dict[str, jax.Array]:
            outputs = part.model.apply({"params": params}, deterministic=True, **inputs)
            recorded.extend(
                value for value in outputs.values() if value.shape == (*truth_BP.shape, rows)
            )
            return outputs

        part.loss(apply, batch)
        if not recorded:
            raise errors.UserError(
                f"the loss of {part.config.objective.name} has no logits over the vocabulary"
            )
        logits_BPV = recorded[0].astype(jnp.float32)
        is_piece_V = jnp.arange(rows) < part.config.model.vocab_size
        chances_BPV = jax.nn.softmax(jnp.where(is_piece_V, logits_BPV, layers.MASKED))
        of_truth_BP = jnp.take_along_axis(chances_BPV, truth_BP[..., None], axis=-1)[..., 0]
        return chances_BPV.argmax(-1), chances_BPV.max(-1), of_truth_BP

    return jax.jit(step)


def _sample(
    batch: Mapping[str, np.ndarray],
    row: int,
    source: str,
    by_step: Sequence[tuple[np.ndarray, ...]],
    tokenizer: tokenizer_lib.Tokenizer,
) -> Sample:
    truth_BP, weights_BP = metrics.predicted(batch)
    slots = np.flatnonzero(weights_BP[row] > 0)
    is_masked = "masked_positions" in batch
    ids = batch["input_ids"][row]
    if "attention_mask" in batch:
        ids = ids[: max(1, int(batch["attention_mask"][row].sum()))]
    shown = ids[:_SHOWN]
    if is_masked:
        positions = batch["masked_positions"][row]
        slots = slots[np.argsort(positions[slots], kind="stable")]
        slots = slots[positions[slots] < len(shown)]
    elif "decoder_input_ids" not in batch:  # the target of a decoder's input i is the token i + 1
        positions = np.arange(len(ids))
        later = slots[slots >= _CONTEXT]
        slots = later if later.size >= _PREDICTED else slots
        shown = ids[: int(slots[: _PREDICTED][-1]) + 1] if slots.size else shown
    else:  # the tokens to predict are not in the input
        positions = np.full(truth_BP.shape[1], -1)
    tokens = []
    for slot in slots[:_PREDICTED]:
        guesses = [
            Guess(tokenizer.readable([ids_BP[row, slot]])[0], float(best_BP[row, slot]),
                  float(truth[row, slot]))
            for ids_BP, best_BP, truth in by_step
        ]  # fmt: skip
        (piece,) = tokenizer.readable([truth_BP[row, slot]])
        tokens.append(Token(int(positions[slot]), piece, guesses))
    return Sample(source, tokenizer.readable(shown), tokens)
