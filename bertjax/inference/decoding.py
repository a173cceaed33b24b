"""Decoding loops on the device, with cached keys and values, for `bertjax.inference.generation`.

The model must have the methods `start_cache` and `decode_step`. The arrays of a cache have shape
[layers, B, ...].

Shapes: B prompts, K beams, R = B * K rows, L length of prompts, S slots of a cache, T new tokens,
C candidates, V vocabulary.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from bertjax import plugins
from bertjax.models.common import layers

_BEAM_ARRAYS = ("key", "value")  # arrays of a cache that differ between the beams of a prompt

Step = Callable[[Any, jax.Array, jax.Array], tuple[jax.Array, Any]]


def is_decoder(model: Any) -> bool:
    """Returns whether the model is a decoder, not an encoder-decoder such as T5."""
    return plugins.family_of(model).KIND == "decoder"


@functools.partial(
    jax.jit, static_argnames=("model", "slots", "num_beams", "sampled", "truncated", "prefix")
)
def decode(
    model: Any,
    params: Any,
    batch: dict[str, jax.Array],
    numbers: dict[str, jax.Array],
    *,
    slots: int,
    num_beams: int,
    sampled: bool,
    truncated: bool,
    prefix: bool,
) -> jax.Array:
    """Returns the new tokens, int32[B, T] with T = slots; after eos they are padding.

    Args:
        model, params: a decoder or encoder-decoder and its parameters.
        batch: input_ids and attention_mask int32[B, L], padded on the left for a decoder; row
            int32[B], the index of each prompt; live bool[B], False for rows that fill up the batch.
        numbers: options and token ids as arrays, made by `generation.generate`.
        slots: the number of new tokens to allocate, at least max_new_tokens.
        num_beams: above 1, beam search with this many beams.
        sampled: whether to sample tokens; if False, the likeliest token is chosen.
        truncated: whether top_k or top_p limits sampling.
        prefix: whether attention within the prompt is bidirectional.
    """
    inputs = model, params, batch, numbers, slots, num_beams
    if is_decoder(model):
        step, cache, first_B = _start_decoder(*inputs, prefix)
    else:
        step, cache, first_B = _start_encoder_decoder(*inputs)
    if num_beams > 1:
        return _beam_search(step, cache, first_B, batch["live"], numbers, slots, num_beams)

    def choose(logits_BV: jax.Array, t: jax.Array) -> jax.Array:
        if not sampled:
            return jnp.argmax(logits_BV, axis=-1)
        # Subtract the maximum first, so that a tiny temperature gives -inf and never inf.
        logits_BV = logits_BV - logits_BV.max(axis=-1, keepdims=True)
        logits_BV = logits_BV / numbers["temperature"]
        if truncated:
            logits_BV = truncate(logits_BV, numbers["top_k"], numbers["top_p"])
        return _draw(logits_BV, numbers["seed"], batch["row"], t)

    return _single_beam(step, cache, first_B, batch["live"], numbers, slots, choose)


def _mask_unknown_ids(logits_RV: jax.Array, numbers: dict[str, jax.Array]) -> jax.Array:
    """Masks the logits of ids that must not be generated: those >= `Ids.vocabulary`."""
    return jnp.where(
        jnp.arange(logits_RV.shape[-1]) < numbers["vocabulary"], logits_RV, layers.MASKED
    )


def _mask_early_eos(scores: jax.Array, t: jax.Array, numbers: dict[str, jax.Array]) -> jax.Array:
    """Masks eos in the scores [..., V] of step t if t is below min_new_tokens."""
    early_V = jnp.arange(scores.shape[-1]) == numbers["eos"]
    return jnp.where(early_V & (t < numbers["min_new_tokens"]), layers.MASKED, scores)


def _start_decoder(
    model: Any,
    params: Any,
    batch: dict[str, jax.Array],
    numbers: dict[str, jax.Array],
    slots: int,
    num_beams: int,
    prefix: bool,
) -> tuple[Step, Any, jax.Array]:
    """Returns (step function, cache of the prompts, last token of each prompt).

    The cache has L slots for the prompts, then one for each new token except the last. The last
    token of a prompt is not in the cache: the first step adds it and computes its logits. A prefix
    LM is an exception: the prompt's other tokens attend to the last token, so it is already in the
    cache, and the first step computes it again.
    """
    apply = functools.partial(model.apply, {"params": params}, method="decode_step")
    ids_BL, mask_BL = batch["input_ids"], batch["attention_mask"]
    count, length = ids_BL.shape
    mask_BS = jnp.pad(mask_BL, ((0, 0), (0, slots - 1)), constant_values=1)
    positions_BS = jnp.maximum(jnp.cumsum(mask_BS, axis=1) - 1, 0)
    cache = model.apply({"params": params}, count, mask_BS.shape[1], method="start_cache")
    size = length if prefix else length - 1
    _, cache = apply(ids_BL[:, :size], cache, 0, mask_BS, positions_BS[:, :size], prefix=prefix)
    mask_RS = jnp.repeat(mask_BS, num_beams, 0)
    positions_RS = jnp.repeat(positions_BS, num_beams, 0)

    def step(cache: Any, ids_R: jax.Array, t: jax.Array) -> tuple[jax.Array, Any]:
        index = length - 1 + t
        positions_R1 = jax.lax.dynamic_slice_in_dim(positions_RS, index, 1, axis=1)
        logits_R1V, cache = apply(ids_R[:, None], cache, index, mask_RS, positions_R1)
        return _mask_unknown_ids(logits_R1V[:, 0], numbers), cache

    return step, _repeat(cache, num_beams), ids_BL[:, -1]


def _start_encoder_decoder(
    model: Any,
    params: Any,
    batch: dict[str, jax.Array],
    numbers: dict[str, jax.Array],
    slots: int,
    num_beams: int,
) -> tuple[Step, Any, jax.Array]:
    """Returns (step function, cache with the encoder's output, the decoder's start tokens)."""
    apply = functools.partial(model.apply, {"params": params})
    cache = apply(batch["input_ids"], slots, batch["attention_mask"], method="start_cache")

    def step(cache: Any, ids_R: jax.Array, t: jax.Array) -> tuple[jax.Array, Any]:
        logits_R1V, cache = apply(ids_R[:, None], cache, t, method="decode_step")
        return _mask_unknown_ids(logits_R1V[:, 0], numbers), cache

    first_B = jnp.full(batch["live"].shape, numbers["start"])
    return step, _repeat(cache, num_beams), first_B


def _repeat(cache: Any, num_beams: int) -> Any:
    """Repeats each row of a cache, whose arrays are [layers, B, ...], `num_beams` times."""
    return jax.tree.map(lambda x: jnp.repeat(x, num_beams, axis=1), cache)


def truncate(logits_BV: jax.Array, top_k: jax.Array, top_p: jax.Array) -> jax.Array:
    """Masks the logits that top-k and then top-p sampling exclude.

    Top-k keeps the `top_k` largest logits, or all if `top_k` is 0. Of these, top-p keeps the fewest
    tokens whose probabilities sum to at least `top_p`. Logits equal to the smallest kept one are
    kept too.
    """
    width = logits_BV.shape[-1]
    ordered_BV = -jnp.sort(-logits_BV, axis=-1)
    limit = jnp.where(top_k > 0, jnp.minimum(top_k, width), width)
    ordered_BV = jnp.where(jnp.arange(width) < limit, ordered_BV, layers.MASKED)
    probabilities_BV = jax.nn.softmax(ordered_BV, axis=-1)
    before_BV = jnp.cumsum(probabilities_BV, axis=-1) - probabilities_BV
    kept_BV = (before_BV < top_p) & (jnp.arange(width)[None] < limit)
    threshold_B1 = jnp.min(jnp.where(kept_BV, ordered_BV, jnp.inf), axis=-1, keepdims=True)
    return jnp.where(logits_BV >= threshold_B1, logits_BV, layers.MASKED)


def _draw(logits_BV: jax.Array, seed: jax.Array, row_B: jax.Array, t: jax.Array) -> jax.Array:
    """Samples a token per row; its random key depends only on seed, prompt index and step."""

    def draw_one(logits_V: jax.Array, row: jax.Array) -> jax.Array:
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), row), t)
        return jax.random.categorical(key, logits_V)

    return jax.vmap(draw_one)(logits_BV, row_B)


def _single_beam(
    step: Step,
    cache: Any,
    first_B: jax.Array,
    live_B: jax.Array,
    numbers: dict[str, jax.Array],
    slots: int,
    choose: Callable[[jax.Array, jax.Array], jax.Array],
) -> jax.Array:
    def unfinished(carry: tuple) -> jax.Array:
        t, _, _, active_B, _ = carry
        return (t < numbers["max_new_tokens"]) & active_B.any()

    def body(carry: tuple) -> tuple:
        t, tokens_BT, last_B, active_B, cache = carry
        logits_BV, cache = step(cache, last_B, t)
        next_B = choose(_mask_early_eos(logits_BV, t, numbers), t).astype(jnp.int32)
        next_B = jnp.where(active_B, next_B, numbers["pad"])
        tokens_BT = jax.lax.dynamic_update_slice(tokens_BT, next_B[:, None], (0, t))
        return t + 1, tokens_BT, next_B, active_B & (next_B != numbers["eos"]), cache

    tokens_BT = jnp.full((len(first_B), slots), numbers["pad"])
    return jax.lax.while_loop(unfinished, body, (0, tokens_BT, first_B, live_B, cache))[1]


def _beam_search(
    step: Step,
    cache: Any,
    first_B: jax.Array,
    live_B: jax.Array,
    numbers: dict[str, jax.Array],
    slots: int,
    num_beams: int,
) -> jax.Array:
    """Returns the best finished beam of each prompt, by the rules of transformers' beam search.

    Each step computes the 2 K best continuations. At most K of them end with eos, so at least K are
    left as running beams. If one of the best K continuations ends, it competes with the K finished
    beams. A prompt is done when it has K finished beams and either early stopping is on, or no
    running beam at its current length is worth more than the worst finished beam.
    """
    count = len(first_B)
    absent = -jnp.inf  # the worth of a finished beam that does not exist yet

    def unfinished(carry: dict) -> jax.Array:
        return (carry["t"] < numbers["max_new_tokens"]) & carry["open"].any()

    def body(carry: dict) -> dict:
        t = carry["t"]
        logits_RV, cache = step(carry["cache"], carry["last"].reshape(-1), t)
        log_p_RV = _mask_early_eos(jax.nn.log_softmax(logits_RV), t, numbers)
        log_p_BKV = log_p_RV.reshape(count, num_beams, -1)
        width = log_p_BKV.shape[-1]
        sums_BC = (log_p_BKV + carry["sums"][:, :, None]).reshape(count, -1)
        best_BC, index_BC = jax.lax.top_k(sums_BC, 2 * num_beams)
        beam_BC, token_BC = index_BC // width, index_BC % width
        tokens_BCT = jnp.take_along_axis(carry["tokens"], beam_BC[:, :, None], axis=1)
        tokens_BCT = jax.lax.dynamic_update_slice(tokens_BCT, token_BC[:, :, None], (0, 0, t))
        ends_BC = (token_BC == numbers["eos"]) | (t + 1 == numbers["max_new_tokens"])

        worth_BC = jnp.where(ends_BC, best_BC / numbers["penalty"][t], absent)
        worth_BC = jnp.where(carry["open"][:, None], worth_BC, absent)[:, :num_beams]
        merged = jnp.concatenate([carry["worth"], worth_BC], axis=1)
        worth_BK, best_BK = jax.lax.top_k(merged, num_beams)
        done = jnp.concatenate([carry["done"], tokens_BCT[:, :num_beams]], axis=1)

        sums_BK, running_BK = jax.lax.top_k(jnp.where(ends_BC, absent, best_BC), num_beams)
        beam_BK = jnp.take_along_axis(beam_BC, running_BK, axis=1)
        row_R = (beam_BK + num_beams * jnp.arange(count)[:, None]).reshape(-1)

        full_B = worth_BK[:, -1] > absent
        promising_B = sums_BK[:, 0] / numbers["penalty"][t] > worth_BK[:, -1]
        return {
            "t": t + 1,
            "cache": {n: x[:, row_R] if n in _BEAM_ARRAYS else x for n, x in cache.items()},
            "last": jnp.take_along_axis(token_BC, running_BK, axis=1),
            "tokens": jnp.take_along_axis(tokens_BCT, running_BK[:, :, None], axis=1),
            "sums": sums_BK,
            "done": jnp.take_along_axis(done, best_BK[:, :, None], axis=1),
            "worth": worth_BK,
            "open": carry["open"] & (~full_B | (promising_B & ~numbers["early_stopping"])),
        }

    tokens_BKT = jnp.full((count, num_beams, slots), numbers["pad"])
    carry = {
        "t": 0,
        "cache": cache,
        "last": jnp.repeat(first_B[:, None], num_beams, axis=1),
        "tokens": tokens_BKT,
        # All beams are equal at the start, so only the first may be extended.
        "sums": jnp.where(jnp.arange(num_beams)[None] == 0, 0.0, absent) + jnp.zeros((count, 1)),
        "done": tokens_BKT,
        "worth": jnp.full((count, num_beams), absent),
        "open": live_B,
    }
    return jax.lax.while_loop(unfinished, body, carry)["done"][:, 0]
