"""Generates text with decoders and T5: greedy decoding, sampling and beam search, with a cache.

    options = Options(max_new_tokens=20, num_beams=4)
    generate(model, params, [prompt_ids, other_ids], options, Ids(eos=2, pad=0, vocabulary=32000))

The continuation of a prompt depends only on the prompt, its index in the list and the options, not
on the other prompts. For a decoder, prompts are padded on the left, and positions are counted from
the start of the prompt. For an encoder-decoder, the prompts are the input of the encoder, and the
decoder starts with the token `Ids.start`. Greedy decoding and beam search choose the same tokens as
transformers 5.

To limit the number of compilations, lengths are rounded up and the number of rows is padded to a
power of two. Numerical options, except num_beams, are array arguments of the compiled function.

Shapes: B prompts, L length of prompts, T new tokens.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from bertjax import errors
from bertjax.inference import batching, decoding

NEW_MULTIPLE = 32
MAX_ROWS = 32  # largest number of rows in a batch, counting each beam
MAX_TOKENS = 8192  # largest number of tokens in these rows


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of decoding; by default it is greedy: each step picks the likeliest token.

    max_new_tokens: maximum length of a continuation, including the end-of-text token.
    min_new_tokens: number of tokens that must precede the end-of-text token.
    temperature: if above 0, tokens are sampled from softmax(logits / temperature); 0 means greedy.
    top_k: sampling is limited to this many of the likeliest tokens; 0 means no limit.
    top_p: after top_k, sampling is limited to the fewest tokens whose probabilities sum to at least
        top_p (Holtzman et al., arXiv 1904.09751); 1 means no limit.
    seed: the random seed of sampling.
    num_beams: the number of beams in beam search; 1 means no beam search.
    length_penalty: a finished beam is worth (sum of log probabilities) / length ** length_penalty.
    early_stopping: whether beam search stops as soon as `num_beams` beams have finished. If False,
        it then continues while any running beam, at its current length, is worth more than the
        worst finished beam.
    """

    max_new_tokens: int = 64
    min_new_tokens: int = 0
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    num_beams: int = 1
    length_penalty: float = 1.0
    early_stopping: bool = False

    def __post_init__(self):
        def check(valid: bool, name: str, allowed: str) -> None:
            if not valid:
                raise errors.UserError(f"{name} = {getattr(self, name)!r}: must be {allowed}")

        check(self.max_new_tokens >= 1, "max_new_tokens", "1 or more")
        check(0 <= self.min_new_tokens <= self.max_new_tokens, "min_new_tokens",
              f"between 0 and max_new_tokens = {self.max_new_tokens}")  # fmt: skip
        check(0.0 <= self.temperature < float("inf"), "temperature", "0 (greedy) or more")
        check(self.top_k >= 0, "top_k", "0 (off) or more")
        check(0.0 < self.top_p <= 1.0, "top_p", "above 0 and at most 1 (off)")
        check(0 <= self.seed < 2**32, "seed", "between 0 and 2**32 - 1")
        check(1 <= self.num_beams <= MAX_ROWS, "num_beams", f"between 1 and {MAX_ROWS}")
        check(abs(self.length_penalty) < float("inf"), "length_penalty", "finite")
        if not self.sampled:
            check(self.top_k == 0, "top_k", "0 unless temperature is above 0")
            check(self.top_p == 1.0, "top_p", "1 unless temperature is above 0")
        check(not (self.sampled and self.num_beams > 1), "temperature",
              "0 if num_beams is above 1, because beams are not sampled")  # fmt: skip

    @property
    def sampled(self) -> bool:
        """Whether tokens are sampled."""
        return self.temperature > 0.0


class Ids(NamedTuple):
    """Token ids for decoding.

    eos: the id that ends a text; -1 if there is none. pad: the id that fills up rows. vocabulary:
    only ids below this number are generated. start: the first input of an encoder-decoder's
    decoder.
    """

    eos: int
    pad: int
    vocabulary: int
    start: int


def generate(
    model: Any,
    params: Any,
    prompts: Sequence[np.ndarray],
    options: Options,
    ids: Ids,
    *,
    prefix: bool = False,
) -> list[np.ndarray]:
    """Returns each prompt's continuation: int32 ids, up to the first eos or max_new_tokens.

    A continuation includes the eos.

    prompts: arrays of at least one token id each: the inputs of a decoder, or of an
    encoder-decoder's encoder.
    prefix: whether a decoder attends bidirectionally within a prompt, as in a prefix LM.
    NOTE: the caller must check that prompts and new tokens fit the model's maximum length.
    """
    slots = batching.round_up(options.max_new_tokens, NEW_MULTIPLE)
    # Computed in float64, as in Python. Options are arrays, so that new values do not cause a
    # recompilation.
    penalty_T = np.arange(1, slots + 1, dtype=np.float64) ** options.length_penalty
    numbers = {
        "max_new_tokens": np.int32(options.max_new_tokens),
        "min_new_tokens": np.int32(options.min_new_tokens),
        "temperature": np.float32(options.temperature),
        "top_k": np.int32(options.top_k),
        "top_p": np.float32(options.top_p),
        "seed": np.uint32(options.seed),
        "penalty": penalty_T.astype(np.float32),
        "early_stopping": np.bool_(options.early_stopping),
        **{name: np.int32(value) for name, value in ids._asdict().items()},
    }
    continuations: list[np.ndarray] = [np.zeros(0, np.int32)] * len(prompts)

    def batch_size(longest: int) -> int:
        return _batch_size(longest + slots, options.num_beams)

    for rows in batching.longest_first(prompts, batch_size):
        batch = _batch(
            [prompts[row] for row in rows], rows, ids.pad, left=decoding.is_decoder(model)
        )
        tokens_BT = decoding.decode(
            model, params, batch, numbers, slots=slots, num_beams=options.num_beams,
            sampled=options.sampled, truncated=options.top_k > 0 or options.top_p < 1.0,
            prefix=prefix,
        )  # fmt: skip
        tokens_BT = np.asarray(jax.device_get(tokens_BT))[:, : options.max_new_tokens]
        for row, tokens_T in zip(rows, tokens_BT, strict=False):
            ends = np.flatnonzero(tokens_T == ids.eos)
            continuations[row] = tokens_T[: ends[0] + 1] if len(ends) else tokens_T
    return continuations


def _batch_size(length: int, num_beams: int) -> int:
    """Returns the prompts per batch: a power of two, so that full batches have no padding rows."""
    rows = min(MAX_ROWS, MAX_TOKENS // length)
    return batching.power_of_two_within(max(rows // num_beams, 1))


def _batch(
    prompts: Sequence[np.ndarray], rows: Sequence[int], pad: int, *, left: bool
) -> dict[str, np.ndarray]:
    """Builds a batch of `prompts`, in which `live` is False for padding rows.

    rows: the index of each of these prompts in the list of all prompts.
    """
    count = batching.power_of_two(len(prompts))
    shape = count, batching.round_up(max(map(len, prompts)))
    ids_BL, real_BL = batching.padded(prompts, shape, pad, left=left)
    row_B = np.zeros(count, np.int32)
    row_B[: len(rows)] = rows
    live_B = np.arange(count) < len(rows)
    mask_BL = real_BL.astype(np.int32)
    return {"input_ids": ids_BL, "attention_mask": mask_BL, "row": row_B, "live": live_B}
