"""Inference with a loaded model: text vectors, mask filling and text generation.

    bert = bertjax.load("run/")
    bert.fill_mask("The [MASK] sat on the mat.")     # [[Fill("cat", 4937, 0.21), ...]]
    bert.encode(["A cat sat.", "A dog ran."])        # float32[2, D]

    gpt = bertjax.load("gpt2/")
    gpt.generate(["The cat sat on"], max_new_tokens=8, num_beams=4)      # [" the mat and ..."]

To limit the number of compilations, sequences are sorted by length, their lengths are rounded up,
and the number of rows of a batch is a power of two (`inference.batching`).

Shapes: B batch, L length, P mask tokens of a text, D model, V vocabulary, K likeliest pieces.
"""

import dataclasses
import functools
import hashlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bertjax import errors, plugins
from bertjax.artifact import artifact, text_encoding
from bertjax.data.tokenizers import special_tokens
from bertjax.inference import batching, generation, internals, text_vectors
from bertjax.models.common import heads, layers
from bertjax.objectives.common import hooks

BATCH_SIZE = 32


class Fill(NamedTuple):
    """One prediction for a mask token. piece: the text, as returned by `Tokenizer.readable`."""

    piece: str
    id: int
    probability: float


class Pretrained:
    """A model with its parameters and tokenizer.

    model: the Linen module; `model.apply({"params": params}, input_ids, ...)` returns all outputs.
    params: nested dict of arrays; arrays that are already on a device are not moved.
    tokenizer: a `bertjax.data.tokenizers.tokenizer.Tokenizer`.
    source: the artifact that the model was built from (family, fields, step, config of the run).
    """

    def __init__(self, source: artifact.Artifact, compute: layers.Compute | None = None):
        self.source = source
        self.model = plugins.model(source.family, source.fields, compute)
        self.params = jax.tree.map(jnp.asarray, source.params)
        self.tokenizer = source.tokenizer
        self.max_length: int = source.fields["max_length"]
        real = np.zeros(layers.padded_vocab_size(source.fields["vocab_size"]), bool)
        real[: self.tokenizer.size] = True
        self._real_V = real
        self._words_V = real.copy()
        self._words_V[: self.tokenizer.size] &= ~self.tokenizer.special_mask()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.source.summary()}>"

    @property
    def config(self) -> Any:
        """Returns the Config of the model: a frozen dataclass with the family's fields."""
        return self.model.config

    def encode(
        self,
        texts: Sequence[str],
        pooling: str = "",
        *,
        normalize: bool | None = None,
        truncate: bool | None = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = text_vectors.BATCH_SIZE,
    ) -> np.ndarray:
        """Returns one vector for each text: float32[B, D].

        A model that was trained for vectors, here or with sentence-transformers, has its own
        pooling, dense layers, normalisation, prompts and maximum length. For any other model, the
        vector is the mean of the hidden states, without normalisation.

        pooling: how a vector is computed from the hidden states of the last layer. "mean": their
            mean over all tokens, including [CLS] and [SEP]; "cls": the state of the first token;
            "max": their maximum; "last": the state of the last token; "": the model's own pooling.
        normalize: whether to scale the vectors to length 1; None: as the model was trained.
        truncate: whether to truncate texts that are too long. None: only for a model that was
            trained for vectors; prints a warning if a text was truncated.
        prompt_name: the name of one of the model's prompts, which is put in front of each text.
        prompt: the prompt itself. By default, it is the model's default prompt, if it has one.

        Raises UserError if a text is too long and is not truncated, or if `pooling` or
        `prompt_name` is unknown. Raises it also if `pooling` is "cls" for a decoder, whose first
        token attends only to itself.
        """
        encoding = self.encoding(pooling, normalize=normalize)
        if truncate is None:
            truncate = text_encoding.of(self.source) is not None
        texts = [texts] if isinstance(texts, str) else list(texts)
        prompt = encoding.prompt(prompt_name, prompt)
        encoder = text_vectors.Encoder(
            self, encoding, prompt=prompt, batch_size=batch_size, truncate=truncate
        )
        vectors, num_truncated = encoder(texts)
        if num_truncated:
            errors.tell(text_vectors.truncation(num_truncated, len(texts), encoding))
        return vectors

    def encoding(
        self, pooling: str = "", *, normalize: bool | None = None
    ) -> text_encoding.Encoding:
        """Returns how `encode` turns a text into a vector; its arguments are those of `encode`."""
        base = text_encoding.of(self.source)
        base = base or text_encoding.Encoding("mean", self.max_length)
        pooling = pooling or base.pooling
        if pooling not in heads.POOLINGS:
            raise errors.UserError(
                f"pooling = {pooling!r}: must be one of {', '.join(heads.POOLINGS)}"
            )
        if pooling == "cls" and plugins.family_of(self.model).KIND == "decoder":
            raise errors.UserError(
                f"pooling = 'cls': the first token of {self.source.family} attends only to itself, "
                "so all texts would have almost the same vector; use 'last' or 'mean'"
            )
        if normalize is not None:
            base = base.normalized(normalize)
        limit = min(base.max_length, self.max_length)
        return dataclasses.replace(base, pooling=pooling, max_length=limit)

    def vectors_fingerprint(self, encoding: text_encoding.Encoding | None = None) -> str:
        """Returns a hex sha256 of all that the vector of a text depends on, except its prompt.

        encoding: the result of the method `encoding`, if it was called with options.
        """
        parts = (
            artifact.fingerprint(self.source),
            self.tokenizer.fingerprint,
            text_encoding.digest(encoding or self.encoding()),
        )
        return hashlib.sha256(" ".join(parts).encode()).hexdigest()

    def compares_cosines(self) -> bool:
        """Returns whether texts are compared by the cosine of their vectors.

        If not, the model was trained to compare them by the inner product.
        """
        return self.encoding().similarity != "dot"

    def fill_mask(
        self, text: str | Sequence[str], top: int = 5
    ) -> list[list[Fill]] | list[list[list[Fill]]]:
        """Returns a list with the `top` likeliest pieces, best first, for each mask token in order.

        If `text` is a list, returns a list of such results. Special tokens are never predicted, but
        the probabilities of all pieces, including special tokens, sum to 1.

        Raises UserError if a text has no mask token or is too long for the model, if `top` is below
        1, or if the model has no "mlm" head or no mask token.
        """
        self._check_can_fill(top)
        texts = [text] if isinstance(text, str) else list(text)
        sequences = [self.with_ends(self._encode(t), t, False) for t in texts]
        positions = [np.flatnonzero(s == self.tokenizer.specials.mask) for s in sequences]
        mask = self.tokenizer.pieces([self.tokenizer.specials.mask])[0]
        for t, mask_positions in zip(texts, positions, strict=True):
            if not len(mask_positions):
                raise errors.UserError(
                    f"the text {short(t)} contains no {mask}: insert one for each word to predict"
                )
        top = min(top, int(self._words_V.sum()))
        fills: list[list[list[Fill]]] = [[] for _ in texts]
        for rows, batch in self._batches(sequences):
            num_slots = batching.power_of_two(max(len(positions[row]) for row in rows))
            shape = len(batch["input_ids"]), num_slots
            masked_positions, _ = batching.padded([positions[row] for row in rows], shape, pad=0)
            best = _fill(
                self.model, self.params, {**batch, "masked_positions": masked_positions},
                self._real_V, self._words_V, top,
            )  # fmt: skip
            probabilities, ids = jax.device_get(best)
            for i, row in enumerate(rows):
                fills[row] = [
                    self._fills(ids[i, k], probabilities[i, k]) for k in range(len(positions[row]))
                ]
        return fills[0] if isinstance(text, str) else fills

    def hidden_states(
        self, texts: str | Sequence[str], targets: str | Sequence[str] | None = None
    ) -> internals.HiddenStates | list[internals.HiddenStates]:
        """Returns the hidden states of every layer for a text, or a list of them for a list.

        The names of special tokens in a text, such as [MASK], are encoded as these tokens, and the
        special tokens of the model are put around the text. targets: for an encoder-decoder, the
        text that the decoder reads, or a list of them; without it, only the encoder runs. Raises
        UserError if a text is too long for the model.

            bert.hidden_states("The cat sat.").states[-1]      # float32[L, D], the last layer
        """
        if isinstance(texts, str):
            return internals.hidden_states(self, [texts], None if targets is None else [targets])[0]
        return internals.hidden_states(self, list(texts), targets)

    def attentions(
        self, texts: str | Sequence[str], targets: str | Sequence[str] | None = None
    ) -> internals.Attentions | list[internals.Attentions]:
        """Returns the attention weights of every head for a text, or a list of them for a list.

        texts, targets: as in `hidden_states`. The weights are computed only here: all other methods
        are as fast as without them. Raises UserError if a text is too long for the model.

            bert.attentions("The cat sat.").weights[3, 5]      # float32[L, L]: layer 3, head 5
        """
        if isinstance(texts, str):
            return internals.attentions(self, [texts], None if targets is None else [targets])[0]
        return internals.attentions(self, list(texts), targets)

    def generate(self, prompts: str | Sequence[str], **options: Any) -> list[str]:
        """Returns each prompt's continuation (decoder) or output text (encoder-decoder).

        options: fields of `generation.Options` (max_new_tokens, num_beams, temperature, top_p, seed
        ...); by default decoding is greedy. The names of special tokens in a prompt are encoded as
        these tokens. The start-of-text token is inserted before the prompt if the model is a
        decoder pretrained with bertjax and the prompt lacks it. For other decoders it is inserted
        only if the prompt is empty, as in transformers.

        Raises UserError if the model does not generate text, if an option is invalid, or if prompt
        and max_new_tokens exceed the model's maximum length: together for a decoder, each alone for
        an encoder-decoder.
        """
        settings = generation.Options(**options)
        texts = [prompts] if isinstance(prompts, str) else list(prompts)
        sequences = [self._prompt(text, settings.max_new_tokens) for text in texts]
        continuations = generation.generate(
            self.model, self.params, sequences, settings, self._ids(), prefix=self.reads_prefixes()
        )
        return [self.tokenizer.decode(ids) for ids in continuations]

    def _prompt(self, text: str, max_new_tokens: int) -> np.ndarray:
        """Returns a prompt's ids. Raises UserError if prompt or new tokens are too many."""
        kind = plugins.family_of(self.model).KIND
        if kind == "encoder" or "lm" not in self.model.config.heads:
            raise errors.UserError(
                f"this {self.source.family} model cannot generate text: load a gpt2 or t5 model, "
                "or use fill_mask"
            )
        ids = self._with_start_or_end(self._encode(text))
        room = self.max_length - (0 if kind == "encoder_decoder" else max_new_tokens)
        if len(ids) > room or max_new_tokens > self.max_length:
            raise errors.UserError(
                f"the prompt {short(text)} has {len(ids)} tokens and max_new_tokens is "
                f"{max_new_tokens}, but the model takes at most {self.max_length}: shorten the "
                "prompt or lower max_new_tokens"
            )
        return ids

    def _with_start_or_end(self, ids: Sequence[int]) -> np.ndarray:
        """Returns int32[L]: `ids` with the special tokens of a decoder or an encoder-decoder."""
        specials = self.tokenizer.specials
        if plugins.family_of(self.model).KIND == "encoder_decoder":
            return special_tokens.of_encoder_decoder(specials).around(ids)
        start = special_tokens.start_of_text(specials)
        if not ids or (artifact.starts_texts(self.source) and ids[0] != start):
            return special_tokens.Ends(head=(start, *self.prompt_start(ids))).around(ids)
        return np.array(ids, np.int32)

    def input_ids(self, text: str) -> np.ndarray:
        """Returns int32[L]: the ids that the model reads for a text, with its special tokens.

        The names of special tokens in the text are encoded as these tokens. Raises UserError if the
        text is too long for the model.
        """
        ids = self._encode(text)
        if plugins.family_of(self.model).KIND == "encoder":
            return self.with_ends(ids, text, False)
        return self._checked(self._with_start_or_end(ids), text)

    def target_ids(self, text: str) -> np.ndarray:
        """Returns int32[T]: the ids that the decoder of an encoder-decoder reads for a text.

        They are the start token and the text. Raises UserError if the text is too long.
        """
        ids = np.array([self.decoder_start(), *self._encode(text)], np.int32)
        return self._checked(ids, text)

    def _checked(self, ids: np.ndarray, text: str) -> np.ndarray:
        """Returns `ids`. Raises UserError if there are more than the model takes."""
        if len(ids) > self.max_length:
            raise errors.UserError(
                f"the text {short(text)} has {len(ids)} tokens, but the model takes at most "
                f"{self.max_length}: shorten it"
            )
        return ids

    def _encode(self, text: str) -> list[int]:
        """Returns a text's ids, with special tokens. Raises UserError if an id >= vocab_size."""
        ids = self.tokenizer.encode(text, specials_in_text=True)
        above = next((i for i in ids if i >= self.model.config.vocab_size), None)
        if above is not None:
            (piece,) = self.tokenizer.pieces([above])
            raise errors.UserError(
                f"the text {short(text)} contains {piece} with id {above}, but this model has only "
                f"{self.model.config.vocab_size} ids and no sentinels: remove {piece}"
            )
        return ids

    def prompt_start(self, ids: Sequence[int]) -> list[int]:
        """Returns a decoder's ids between the start-of-text token and the `ids` of a prompt.

        These are the objective's `input_start`; [] if the prompt begins with a sentinel, such as
        the token of a mode.
        """
        if not artifact.starts_texts(self.source) or (ids and ids[0] in self.tokenizer.sentinels):
            return []
        objective_hooks, config = self.objective()
        return objective_hooks.input_start(config, self.tokenizer.vocabulary())

    def objective(self) -> tuple[hooks.Hooks, Any]:
        """Returns (hooks, Config) of the model's objective; (default hooks, None) if unknown."""
        module, config = artifact.objective(self.source)
        return hooks.of(module), config

    def reads_prefixes(self) -> bool:
        """Returns whether the model is a decoder trained as a prefix LM."""
        return artifact.reads_prefixes(self.source)

    def _ids(self) -> generation.Ids:
        specials = self.tokenizer.specials
        return generation.Ids(
            special_tokens.end_of_text(specials),
            special_tokens.padding(specials),
            artifact.top_of_text(self.source),
            self.decoder_start(),
        )

    def decoder_start(self) -> int:
        """Returns the first input id of an encoder-decoder's decoder."""
        start_id = self.source.fields.get("decoder_start_id", -1)
        return special_tokens.decoder_start(self.tokenizer.specials, start_id)

    def _fills(self, ids_K: np.ndarray, probabilities_K: np.ndarray) -> list[Fill]:
        pieces = self.tokenizer.readable(ids_K)
        return [
            Fill(piece, int(i), float(p))
            for piece, i, p in zip(pieces, ids_K, probabilities_K, strict=True)
        ]

    def _check_can_fill(self, top: int) -> None:
        if "mlm" not in self.model.config.heads:
            raise errors.UserError(
                "this model has no masked language model head, so it cannot fill masks: load a "
                "model that was saved with this head"
            )
        if self.tokenizer.specials.mask < 0:
            raise errors.UserError("the tokenizer of this model has no mask token")
        if top < 1:
            raise errors.UserError(f"top = {top}: must be 1 or more")

    def with_ends(
        self, ids: Sequence[int], text: str, truncate: bool, max_length: int | None = None
    ) -> np.ndarray:
        """Returns `ids` with special tokens around them, [CLS] text [SEP].

        If the result would be longer than `max_length` (default: the model's), truncates the text,
        or raises UserError if `truncate` is False. text: the text of `ids`, for the error message.
        """
        ends = special_tokens.of_encoder(self.tokenizer.specials)
        room = (max_length or self.max_length) - len(ends.around([]))
        if len(ids) > room and not truncate:
            raise errors.UserError(
                f"the text {short(text)} has {len(ids)} tokens, but the model takes at most "
                f"{room}: shorten it"
            )
        return ends.around(ids[:room])

    def _batches(
        self, sequences: Sequence[np.ndarray]
    ) -> Iterator[tuple[list[int], dict[str, np.ndarray]]]:
        """Yields (indices of the sequences, batch); a batch may end with padding rows."""
        pad = special_tokens.padding(self.tokenizer.specials)
        for rows in batching.longest_first(sequences, lambda longest: BATCH_SIZE):
            members = [sequences[row] for row in rows]
            length = min(batching.round_up(len(members[0])), self.max_length)
            shape = batching.power_of_two(len(rows)), length
            ids_BL, real_BL = batching.padded(members, shape, pad)
            yield rows, {"input_ids": ids_BL, "attention_mask": real_BL.astype(np.int32)}


def short(value: Any) -> str:
    """Returns the repr of `value`, truncated to about 40 characters, for an error message."""
    text = value if isinstance(value, str) else repr(value)
    text = text if len(text) <= 40 else text[:37] + "..."
    return repr(text) if isinstance(value, str) else text


@functools.partial(jax.jit, static_argnames=("model", "top"))
def _fill(
    model: Any,
    params: Any,
    batch: dict[str, jax.Array],
    real_V: jax.Array,
    words_V: jax.Array,
    top: int,
) -> tuple[jax.Array, jax.Array]:
    """Returns (probabilities, ids) of the `top` likeliest pieces per mask token, both [B, P, K].

    real_V is False for ids without a piece; words_V is False for these and for special tokens.
    """
    logits_BPV = model.apply({"params": params}, **batch)["mlm_logits"]
    probabilities_BPV = jax.nn.softmax(jnp.where(real_V, logits_BPV, layers.MASKED))
    return jax.lax.top_k(jnp.where(words_V, probabilities_BPV, -1.0), top)
