"""Inference with a loaded model: text vectors, mask filling and text generation.

    bert = bertjax.load("run/")
    bert.fill_mask("The [MASK] sat on the mat.")     # [[("cat", 4937, 0.21), ...]]
    bert.encode(["A cat sat.", "A dog ran."])        # float32[2, D]

    gpt = bertjax.load("gpt2/")
    gpt.generate(["The cat sat on"], max_new_tokens=8, num_beams=4)      # [" the mat and ..."]

To limit the number of compilations, sequences are sorted by length, their lengths are rounded up,
and the number of rows of a batch is a power of two (`inference.batching`).

Shapes: B batch, L length, T length of the decoder, R texts, D model.
"""

import dataclasses
import hashlib
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bertjax import errors, plugins
from bertjax.artifact import artifact, text_encoding
from bertjax.data.tokenizers import special_tokens
from bertjax.inference import filling, generation, internals, scoring, text_vectors
from bertjax.models.common import heads, layers
from bertjax.objectives.common import hooks


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
        texts = _listed(texts)
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
    ) -> filling.Fills | list[filling.Fills]:
        """Returns a list with the `top` likeliest pieces, best first, for each mask token in order.

        Each piece is a `filling.Fill`, a tuple (piece, id, probability).

        If `text` is a list, returns a list of such results. Special tokens are never predicted, but
        the probabilities of all pieces, including special tokens, sum to 1.

        Raises UserError if a text has no mask token or is too long for the model, if `top` is below
        1, or if the model has no "mlm" head or no mask token.
        """
        fills = filling.fill(self, _listed(text), top)
        return fills[0] if isinstance(text, str) else fills

    def score(self, texts: str | Sequence[str], *, within_word: bool = False) -> Any:
        """Returns how likely a text is, a float; for a list of texts, float64[R].

        The score is a log-likelihood, or for a masked language model a pseudo-log-likelihood, in
        nats: see `inference.scoring`. Scores of different kinds of models cannot be compared.
        within_word: for a masked language model, whether to mask the later tokens of a word with
        each of its tokens. Raises UserError if the model has no head that can score texts, or if a
        text is too long.
        """
        scores = scoring.log_likelihoods(self, _listed(texts), within_word=within_word)
        return float(scores[0]) if isinstance(texts, str) else scores

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
        results = internals.hidden_states(
            self, _listed(texts), None if targets is None else _listed(targets)
        )
        return results[0] if isinstance(texts, str) else results

    def attentions(
        self, texts: str | Sequence[str], targets: str | Sequence[str] | None = None
    ) -> internals.Attentions | list[internals.Attentions]:
        """Returns the attention weights of every head for a text, or a list of them for a list.

        texts, targets: as in `hidden_states`. The weights are computed only here: all other methods
        are as fast as without them. Raises UserError if a text is too long for the model.

            bert.attentions("The cat sat.").weights[3, 5]      # float32[L, L]: layer 3, head 5
        """
        results = internals.attentions(
            self, _listed(texts), None if targets is None else _listed(targets)
        )
        return results[0] if isinstance(texts, str) else results

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
        sequences = [self._prompt(text, settings.max_new_tokens) for text in _listed(prompts)]
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
                f"the prompt {errors.short(text)} has {len(ids)} tokens and max_new_tokens is "
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
                f"the text {errors.short(text)} has {len(ids)} tokens, but the model takes at most "
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
                f"the text {errors.short(text)} contains {piece} with id {above}, but this model "
                f"has only {self.model.config.vocab_size} ids and no sentinels: remove {piece}"
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
                f"the text {errors.short(text)} has {len(ids)} tokens, but the model takes at most "
                f"{room}: shorten it"
            )
        return ends.around(ids[:room])


def _listed(texts: str | Sequence[str]) -> list[str]:
    return [texts] if isinstance(texts, str) else list(texts)
