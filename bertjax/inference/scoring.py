"""Scores how likely a text is under a model, for zero-shot evaluations such as BLiMP.

    scores = scoring.log_likelihoods(bertjax.load("run/"), ["The cats sleep.", "The cats sleeps."])

The kind of score depends on the model; scores of different kinds cannot be compared:

    encoder with the head mlm    pseudo-log-likelihood (Salazar et al., arXiv 1910.14659): the sum
                                 over the tokens of the log probability of a token when only this
                                 token is masked
    encoder with the head rtd    the discriminator of ELECTRA: the sum over the tokens of the log
                                 probability that a token is the original one, from one pass
    decoder                      log-likelihood of the text and the end-of-text token
    encoder_decoder              pseudo-log-likelihood by span corruption: the sum over the tokens
                                 of the log probability of a token when a sentinel replaces only
                                 this token. If the model was trained by the objective denoisers
                                 with mode tokens, the mode token for regular spans is put in front
                                 of the text
    encoder_decoder trained      log-likelihood of the text and the end-of-text token in the
    by prefix_lm                 decoder, because the model has not seen sentinels; the encoder's
                                 input is only an end-of-text token

When `log_likelihood_of_continuations` scores with a decoder trained by prefix_lm, the decoder
attends bidirectionally within the context.

All logarithms are natural. To limit the number of compilations, texts of similar length are padded
to the same length, and the last batch is filled up with repeated rows.

Shapes: R texts, B batch, L length, T length of the decoder's input, V vocabulary.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from bertjax import errors, plugins
from bertjax.data.tokenizers import special_tokens
from bertjax.inference import batching
from bertjax.models.common import layers
from bertjax.objectives.common import losses

if TYPE_CHECKING:
    from bertjax.inference.pretrained import Pretrained

TOKENS = 2048  # largest number of tokens in a batch; small enough for the caches of a CPU
LOGITS = 1 << 25  # largest number of logits in a batch: 128 MiB

Batch = dict[str, np.ndarray]
Ids = list[np.ndarray]


class Continuations(NamedTuple):
    """Scores of continuations.

    sums: float64[R], the log probabilities of the continuations in nats. counts: int64[R], the
    numbers of scored tokens.
    """

    sums: np.ndarray
    counts: np.ndarray


def log_likelihoods(
    model: "Pretrained", texts: Sequence[str], *, within_word: bool = False
) -> np.ndarray:
    """Returns the score of each text, float64[R]; the module's docstring lists the kinds of scores.

    within_word: whether to mask, together with a token, the later tokens of its word, so that they
        do not reveal it (Kauf & Ivanova, arXiv 2305.10588); only for masked language models.
    Raises UserError if the model has no head that can score texts, or if a text is too long.
    """
    method, _ = _method(model)
    if within_word and method is not _masked_scores:
        raise errors.UserError("within_word needs a masked language model; this model is not one")
    if method is _masked_scores:
        return _masked_scores(model, list(texts), within_word)
    return method(model, list(texts))


def describe(model: "Pretrained") -> str:
    """Returns a name for the score that `log_likelihoods` computes for this model."""
    return _method(model)[1]


def log_likelihood_of_continuations(
    model: "Pretrained", contexts: Sequence[str], continuations: Sequence[str]
) -> Continuations:
    """Returns the log probability of each continuation, given its context.

    For a decoder, context and continuation are joined to one text. White space between the two and
    a token that spans both belong to the continuation. For an encoder-decoder, the context is the
    input of the encoder, and the end-of-text token after the continuation is scored too.

    Raises UserError if the model does not generate text, or if a text is too long.
    """
    kind = plugins.family_of(model.model).KIND
    if kind == "encoder" or "lm" not in model.model.config.heads:
        raise errors.UserError(
            f"this {model.source.family} model cannot generate text: only decoders and "
            "encoder-decoders score continuations"
        )
    specials, encode = model.tokenizer.specials, model.tokenizer.encode_batch
    if kind == "encoder_decoder":
        source_ends = special_tokens.of_encoder_decoder(specials)
        target_ends = special_tokens.of_decoder(specials, model.decoder_start())
        sources = [source_ends.around(ids) for ids in encode(list(contexts))]
        targets = [target_ends.around(ids) for ids in encode(list(continuations))]
        _check(model, contexts, sources, model.max_length)
        _check(model, continuations, targets, model.max_length + 1)
        counts = np.array([len(target) - 1 for target in targets], int)
        return Continuations(_target_scores(model, sources, targets), counts)
    front = model.prompt_start(())
    ends = special_tokens.Ends(head=(special_tokens.start_of_text(specials), *front))
    context_ids = encode([context.rstrip() for context in contexts])
    texts = [a + b for a, b in zip(contexts, continuations, strict=True)]
    encoded = encode(texts)
    offsets = [_common_prefix(a, b) for a, b in zip(context_ids, encoded, strict=True)]
    sequences = [ends.around(ids) for ids in encoded]
    _check(model, texts, sequences, model.max_length + 1)
    counts = np.array([len(ids) - n for ids, n in zip(encoded, offsets, strict=True)], int)
    offsets = [offset + len(front) for offset in offsets]
    return Continuations(_next_token_scores(model, sequences, offsets), counts)


def _method(model: "Pretrained") -> tuple[Callable[..., np.ndarray], str]:
    kind, heads = plugins.family_of(model.model).KIND, model.model.config.heads
    if kind == "decoder" and "lm" in heads:
        return _causal_scores, "log-likelihood"
    if kind == "encoder_decoder" and "lm" in heads:
        if model.objective()[0].PLAIN_TARGETS:
            return _decoder_scores, "log-likelihood"
        return _sentinel_scores, "pseudo-log-likelihood by sentinels"
    if "rtd" in heads:
        return _discriminator_scores, "log probability of being original"
    if "mlm" in heads:
        return _masked_scores, "pseudo-log-likelihood"
    raise errors.UserError(
        f"this {model.source.family} model has no head that scores text (mlm, rtd or lm): load a "
        "model that was saved with such a head"
    )


def _masked_scores(model: "Pretrained", texts: list[str], within_word: bool) -> np.ndarray:
    specials = model.tokenizer.specials
    if specials.mask < 0:
        raise errors.UserError("the tokenizer of this model has no mask token")
    word_starts_V = ~model.tokenizer.continuations()
    scores = np.zeros(len(texts))
    for rows, (ids_RL,), (real_RL,) in _buckets(model, _with_ends(model, texts)):
        text_RL = _text_mask(model, real_RL)
        row, place = np.nonzero(text_RL)
        if not len(row):  # empty texts
            continue
        word_RL = np.cumsum(word_starts_V[ids_RL] | ~text_RL, axis=1)
        places_L = np.arange(ids_RL.shape[1])
        parts = []
        for index in _slices(len(row), len(places_L), _width(model)):
            r, p = row[index], place[index][:, None]
            masked_BL = places_L == p
            if within_word:
                same_BL = word_RL[r] == np.take_along_axis(word_RL[r], p, axis=1)
                masked_BL = same_BL & (places_L >= p)
            features = {
                "input_ids": np.where(masked_BL, specials.mask, ids_RL[r]),
                "attention_mask": real_RL[r],
                "masked_positions": p,
            }
            targets_B1 = np.take_along_axis(ids_RL[r], p, axis=1)
            parts.append(_log_probs(model.model, model.params, "mlm_logits", features, targets_B1))
        scores[rows] = np.bincount(row, np.concatenate(parts)[: len(row), 0], len(rows))
    return scores


def _discriminator_scores(model: "Pretrained", texts: list[str]) -> np.ndarray:
    scores = np.zeros(len(texts))
    for rows, (ids_RL,), (real_RL,) in _buckets(model, _with_ends(model, texts)):
        parts = []
        for index in _slices(len(rows), ids_RL.shape[1], ids_RL.shape[1]):
            features = {"input_ids": ids_RL[index], "attention_mask": real_RL[index]}
            parts.append(_original_log_probs(model.model, model.params, features))
        log_probs_RL = np.concatenate(parts)[: len(rows)]
        scores[rows] = (log_probs_RL * _text_mask(model, real_RL)).sum(axis=1, dtype=np.float64)
    return scores


def _causal_scores(model: "Pretrained", texts: list[str]) -> np.ndarray:
    ends, front = special_tokens.of_decoder(model.tokenizer.specials), model.prompt_start(())
    ends = ends._replace(head=(*ends.head, *front))
    sequences = [ends.around(ids) for ids in model.tokenizer.encode_batch(texts)]
    _check(model, texts, sequences, model.max_length + 1)  # + 1: the last token is not an input
    return _next_token_scores(model, sequences, [len(front)] * len(texts))


def _next_token_scores(model: "Pretrained", sequences: Ids, offsets: Sequence[int]) -> np.ndarray:
    """Returns the sum of a decoder's token log probabilities for each sequence.

    offsets: for each sequence, the number of tokens after the start-of-text token that are not
    scored. In a prefix LM the start-of-text token and these tokens are the prefix.
    """
    scores, offsets, prefix_lm = np.zeros(len(sequences)), np.array(offsets), model.reads_prefixes()
    for rows, (ids_RL,), (real_RL,) in _buckets(model, sequences):
        parts = []
        inputs, length = ids_RL[:, :-1], ids_RL.shape[1] - 1
        context_RL = np.arange(length) <= offsets[rows, None]
        for index in _slices(len(rows), length, length * _width(model)):
            features = {"input_ids": inputs[index], "attention_mask": real_RL[index, :-1]}
            features |= {"prefix_mask": context_RL[index]} if prefix_lm else {}
            targets_BL = ids_RL[index, 1:]
            parts.append(_log_probs(model.model, model.params, "logits", features, targets_BL))
        log_probs_RL = np.concatenate(parts)[: len(rows)]
        scored_RL = real_RL[:, 1:] & (np.arange(length) >= offsets[rows, None])
        scores[rows] = (log_probs_RL * scored_RL).sum(axis=1, dtype=np.float64)
    return scores


def _sentinel_scores(model: "Pretrained", texts: list[str]) -> np.ndarray:
    sentinel, start = int(model.tokenizer.sentinels[0]), model.decoder_start()
    if sentinel >= model.model.config.vocab_size:
        raise errors.UserError(
            f"the model has {model.model.config.vocab_size} embeddings, but sentinel 0 has id "
            f"{sentinel}: load a model with embeddings for sentinels, as in T5"
        )
    ends = special_tokens.of_encoder_decoder(model.tokenizer.specials)
    objective_hooks, config = model.objective()
    front = objective_hooks.input_start(config, model.tokenizer.vocabulary())
    encoded = model.tokenizer.encode_batch(texts)
    sequences = [ends.around([*front, *ids]) for ids in encoded]
    _check(model, texts, sequences, model.max_length)
    scores = np.zeros(len(texts))
    for rows, (ids_RL,), (real_RL,) in _buckets(model, sequences):
        replaced_RL = real_RL[:, 1:].copy()  # tokens to replace: all except the end-of-text token
        replaced_RL[:, : len(front)] = False
        row, place = np.nonzero(replaced_RL)
        if not len(row):
            continue
        parts = []
        for index in _slices(len(row), ids_RL.shape[1], 2 * _width(model)):
            r, p = row[index], place[index][:, None]
            features = {
                "input_ids": np.where(np.arange(ids_RL.shape[1]) == p, sentinel, ids_RL[r]),
                "attention_mask": real_RL[r],
                "decoder_input_ids": np.broadcast_to(np.int32([start, sentinel]), (len(r), 2)),
            }
            targets_B2 = np.hstack([np.full_like(p, sentinel), np.take_along_axis(ids_RL[r], p, 1)])
            parts.append(_log_probs(model.model, model.params, "logits", features, targets_B2))
        scores[rows] = np.bincount(row, np.concatenate(parts)[: len(row), 1], len(rows))
    return scores


def _decoder_scores(model: "Pretrained", texts: list[str]) -> np.ndarray:
    specials = model.tokenizer.specials
    ends = special_tokens.of_decoder(specials, model.decoder_start())
    sequences = [ends.around(ids) for ids in model.tokenizer.encode_batch(texts)]
    _check(model, texts, sequences, model.max_length + 1)  # + 1: the last token is not an input
    source = special_tokens.of_encoder_decoder(specials).around([])
    return _target_scores(model, [source] * len(texts), sequences)


def _target_scores(model: "Pretrained", sources: Ids, targets: Ids) -> np.ndarray:
    """Returns the log probability of each target, without its first token, given its source."""
    scores = np.zeros(len(sources))
    for rows, (ids_RL, ids_RT), (real_RL, real_RT) in _buckets(model, sources, targets):
        parts = []
        inputs, length = ids_RT[:, :-1], ids_RT.shape[1] - 1
        for index in _slices(len(rows), ids_RL.shape[1] + length, length * _width(model)):
            features = {
                "input_ids": ids_RL[index],
                "attention_mask": real_RL[index],
                "decoder_input_ids": inputs[index],
                "decoder_attention_mask": real_RT[index, :-1],
            }
            targets_BT = ids_RT[index, 1:]
            parts.append(_log_probs(model.model, model.params, "logits", features, targets_BT))
        log_probs_RT = np.concatenate(parts)[: len(rows)]
        scores[rows] = (log_probs_RT * real_RT[:, 1:]).sum(axis=1, dtype=np.float64)
    return scores


# Batching


def _with_ends(model: "Pretrained", texts: list[str]) -> Ids:
    """Returns the ids of [CLS] text [SEP] for each text."""
    encoded = model.tokenizer.encode_batch(texts)
    return [model.with_ends(ids, text, False) for ids, text in zip(encoded, texts, strict=True)]


def _check(model: "Pretrained", texts: Sequence[str], sequences: Ids, room: int) -> None:
    """Raises UserError if a sequence has more than `room` tokens."""
    for text, sequence in zip(texts, sequences, strict=True):
        if len(sequence) > room:
            raise errors.UserError(
                f"the text {errors.short(text)} has {len(sequence)} tokens with special "
                f"tokens, but the model takes at most {room}: shorten it"
            )


def _common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Returns the length of the longest common prefix of `a` and `b`."""
    pairs = enumerate(zip(a, b, strict=False))
    return next((i for i, (x, y) in pairs if x != y), min(len(a), len(b)))


def _text_mask(model: "Pretrained", real_RL: np.ndarray) -> np.ndarray:
    """Returns bool[R, L]: True for the tokens of [CLS] text [SEP] that belong to the text."""
    ends = special_tokens.of_encoder(model.tokenizer.specials)
    text_RL = real_RL.copy()
    if ends.tail:
        text_RL[:, :-1] &= real_RL[:, 1:]
        text_RL[:, -1] = False
    text_RL[:, : len(ends.head)] = False
    return text_RL


def _buckets(
    model: "Pretrained", *columns: Ids
) -> Iterator[tuple[np.ndarray, list[np.ndarray], list[np.ndarray]]]:
    """Yields (rows, ids, real) for rows of similar length, as `batching.buckets` does."""
    # A decoder's input omits the last token of the sequence, so sequences may be one token longer.
    limit = model.max_length + (plugins.family_of(model.model).KIND != "encoder")
    yield from batching.buckets(columns, limit, special_tokens.padding(model.tokenizer.specials))


def _slices(count: int, length: int, logits: int) -> Iterator[np.ndarray]:
    """Yields the row indices of each batch; the last batch is filled up with rows from the start.

    count: the number of rows. length, logits: the number of tokens and of logits per row.
    """
    limit = max(1, min(TOKENS // length, LOGITS // logits))
    size = min(batching.power_of_two_within(limit), batching.power_of_two(count))
    for start in range(0, count, size):
        yield np.arange(start, start + size) % count


def _width(model: "Pretrained") -> int:
    return layers.padded_vocab_size(model.model.config.vocab_size)


@functools.partial(jax.jit, static_argnames=("model", "name"))
def _log_probs(
    model: Any, params: Any, name: str, features: dict[str, jax.Array], targets: jax.Array
) -> jax.Array:
    """Returns float32 log probabilities of `targets`; `name` is the output with the logits."""
    logits = model.apply({"params": params}, **features)[name]
    return losses.log_probs(logits, targets)


@functools.partial(jax.jit, static_argnames=("model",))
def _original_log_probs(model: Any, params: Any, features: dict[str, jax.Array]) -> jax.Array:
    """Returns float32[B, L]: the log probability that each token is the original one."""
    return jax.nn.log_sigmoid(-model.apply({"params": params}, **features)["rtd_logits"])
