"""Defines the special tokens around texts, for all other modules.

    of_encoder(specials)             [CLS] A [SEP]    [CLS] A [SEP] B [SEP]
    of_decoder(specials)             <start> A <end>
    of_encoder_decoder(specials)     A <end>
    of_rows(tokenizer)               the inputs of a fine-tuned model: see its docstring
    of_source(tokenizer, "\\n")       <start> A SEPARATOR

    ends = special_tokens.of_encoder(tokenizer.specials)
    ends.around(tokenizer.encode("A cat sat."))      # int32[L]
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from bertjax import errors
from bertjax.data.tokenizers import vocabulary

if TYPE_CHECKING:
    from bertjax.data.tokenizers.tokenizer import Tokenizer


class Ends(NamedTuple):
    """Ids of the special tokens before a text, between two texts, and after the last one."""

    head: tuple[int, ...] = ()
    between: tuple[int, ...] = ()
    tail: tuple[int, ...] = ()

    def around(self, ids: Sequence[int]) -> np.ndarray:
        """Returns int32[L]: the ids of one text between its special tokens."""
        return np.array([*self.head, *ids, *self.tail], np.int32)


def end_of_text(specials: vocabulary.Specials) -> int:
    """Returns the id that ends a text: eos, else sep. Raises UserError if neither exists."""
    if specials.end < 0:
        raise errors.UserError(
            "the tokenizer has no end-of-text token and no sep token, but language modelling needs "
            "one: train or choose another tokenizer"
        )
    return specials.end


def start_of_text(specials: vocabulary.Specials) -> int:
    """Returns the first input id of a decoder: bos, else eos, else cls.

    Raises UserError if there is none of these.
    """
    if specials.start < 0:
        raise errors.UserError(
            "the tokenizer has no bos, eos or cls token to start a text with, which language "
            "modelling needs: train or choose another tokenizer"
        )
    return specials.start


def padding(specials: vocabulary.Specials) -> int:
    """Returns the pad id; 0 if there is none, as padding is never attended to."""
    return max(specials.pad, 0)


def decoder_start(specials: vocabulary.Specials, start_id: int) -> int:
    """Returns the first input id of an encoder-decoder's decoder.

    start_id: the id in the model's config; if it is -1, the pad id is returned.
    """
    return padding(specials) if start_id < 0 else start_id


def encoder_ends(cls: int, sep: int, *, between: int = 1) -> Ends:
    """Returns the special tokens of [CLS] A [SEP] B [SEP], without those whose id is -1.

    between: how many [SEP] tokens to put between A and B.
    """
    tail = (sep,) if sep >= 0 else ()
    return Ends((cls,) if cls >= 0 else (), tail * between, tail)


def of_encoder(specials: vocabulary.Specials) -> Ends:
    """Returns the special tokens of an encoder's input: [CLS] A [SEP]."""
    return encoder_ends(specials.cls, specials.sep)


def of_encoder_decoder(specials: vocabulary.Specials) -> Ends:
    """Returns the special tokens of the input of an encoder-decoder's encoder: A <end>."""
    return Ends(tail=(end_of_text(specials),))


def of_decoder(specials: vocabulary.Specials, start: int | None = None) -> Ends:
    """Returns the special tokens of a whole text that a decoder predicts: <start> A <end>.

    start: the first id. For an encoder-decoder, pass `decoder_start`; None means `start_of_text`.
    """
    start = start_of_text(specials) if start is None else start
    return Ends(head=(start,), tail=(end_of_text(specials),))


def of_rows(tokenizer: "Tokenizer") -> Ends:
    """Returns the special tokens around the text, or pair of texts, that a fine-tuned model reads.

        [CLS] A [SEP] B [SEP]      as in BERT
        <s> A </s></s> B </s>      as in RoBERTa and XLM-R: if the cls token is <s>
        A <end> B                  if there is no cls and no sep token, as in GPT-2

    The tokenizer that is exported with the model adds the same tokens (`Tokenizer.save`). NOTE: in
    pretraining with two token types, a single </s> separates two texts, even for RoBERTa. Raises
    UserError if the tokenizer has no token to put between two texts.
    """
    specials = tokenizer.specials
    roberta = specials.cls >= 0 and tokenizer.pieces([specials.cls]) == ["<s>"]
    ends = encoder_ends(specials.cls, specials.sep, between=1 + roberta)
    return ends if ends.tail else ends._replace(between=(end_of_text(specials),))


def of_source(tokenizer: "Tokenizer", separator: str) -> Ends:
    """Returns the tokens around the source text that a decoder reads: <start> source SEPARATOR.

    The separator is encoded as text; if this yields no ids, `end_of_text` is used instead. Raises
    UserError if the tokenizer has no token to start a text, or no end-of-text token where needed.
    """
    specials = tokenizer.specials
    separator_ids = tuple(tokenizer.encode(separator)) or (end_of_text(specials),)
    return Ends(head=(start_of_text(specials),), tail=separator_ids)
