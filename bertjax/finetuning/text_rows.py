"""Makes a row from a source and a target. Its layout depends on what reads the source (`reader`).

    encoder    the encoder reads source </s>; the decoder reads <start> target
    causal     the model reads <start> source SEPARATOR target
    prefix     as causal, but all tokens of <start> source SEPARATOR attend to each other

In all three layouts, the model is trained to predict target </s>.

The rows equal those of seqio's feature converters, except for the separator (Radford et al. 2018,
section 3.3; `data.tokenizers.special_tokens`).
"""

from collections.abc import Sequence

import numpy as np

from bertjax import errors
from bertjax.data.tokenizers import special_tokens
from bertjax.data.tokenizers import tokenizer as tokenizer_lib
from bertjax.finetuning import rows

READERS = ("encoder", "causal", "prefix")

Row = dict[str, np.ndarray]


def features(reader: str) -> dict[str, rows.Feature]:
    """Returns {name: Feature} for the arrays in a row.

    loss_weights is 1 where a token of the target or its end token is predicted, else 0.
    """
    length = "target_length" if reader == "encoder" else "length"
    table = {"input_ids": rows.Feature(np.int32), "attention_mask": rows.Feature(np.int32)}
    if reader == "encoder":
        table["decoder_input_ids"] = rows.Feature(np.int32, length)
    if reader == "prefix":
        table["prefix_mask"] = rows.Feature(np.int32)
    return table | {
        "targets": rows.Feature(np.int32, length),
        "loss_weights": rows.Feature(np.float32, length),
    }


class Form:
    """Builds rows: adds the special tokens to a source and a target.

    form = Form(tokenizer, "causal", separator="\\n", target_length=64)
    row = form.row(form.prompt(source[: form.room(128)]), *form.targets(["A cat."]))
    """

    def __init__(
        self,
        tokenizer: tokenizer_lib.Tokenizer,
        reader: str,
        separator: str,
        target_length: int,
        decoder_start_id: int = -1,
    ):
        specials = tokenizer.specials
        self.start = special_tokens.decoder_start(specials, decoder_start_id)
        self.end, self.pad = special_tokens.end_of_text(specials), special_tokens.padding(specials)
        self._tokenizer, self._reader, self._target_length = tokenizer, reader, target_length
        self._front, self._back, self._space = (), (self.end,), ""
        if reader != "encoder":
            self._front, _, self._back = special_tokens.of_source(tokenizer, separator)
            if self._back != (self.end,) and not separator[-1].isspace():
                self._space = " "

    def room(self, length: int) -> int:
        """Returns the maximum number of source tokens in a row of `length` tokens.

        Raises UserError if there is no room for a source.
        """
        overhead = len(self._front) + len(self._back)
        overhead += self._target_length * (self._reader != "encoder")
        if length <= overhead:
            raise errors.UserError(
                f"config.max_length = {length} leaves no room for the source beside {overhead} "
                "other tokens; raise it or lower config.kind.max_target_length"
            )
        return length - overhead

    def prompt(self, source: Sequence[int]) -> np.ndarray:
        """Returns int32[L]: the source and the special tokens around it, without a target."""
        return np.array([*self._front, *source, *self._back], np.int32)

    def prompt_of(self, row: Row) -> np.ndarray:
        """Returns the prompt from which a row was made."""
        positions = np.flatnonzero(row["loss_weights"])
        if self._reader == "encoder" or not len(positions):
            return row["input_ids"]
        return row["input_ids"][: positions[0] + 1]

    def targets(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Returns int32[T] for each text: its ids and the end token, not truncated."""
        encoded = self._tokenizer.encode_batch([self._space + text for text in texts])
        return [np.array([*ids, self.end], np.int32) for ids in encoded]

    def row(self, prompt: np.ndarray, target: np.ndarray | None) -> Row:
        """Returns the row of a prompt and a target.

        A target that is too long is truncated but keeps its end token. Without a target, all loss
        weights are 0.
        """
        weight = np.float32(target is not None)
        target = np.array([self.end], np.int32) if target is None else target
        target = np.append(target[:-1][: self._target_length - 1], target[-1])
        weights = np.full(len(target), weight)
        if self._reader == "encoder":
            return {
                "input_ids": prompt,
                "attention_mask": np.ones_like(prompt),
                "decoder_input_ids": np.insert(target[:-1], 0, self.start),
                "targets": target,
                "loss_weights": weights,
            }
        ids = np.concatenate([prompt, target[:-1]])
        row = {
            "input_ids": ids,
            "attention_mask": np.ones_like(ids),
            "targets": np.append(ids[1:], target[-1]),
            "loss_weights": np.concatenate([np.zeros(len(prompt) - 1, np.float32), weights]),
        }
        if self._reader == "prefix":
            row["prefix_mask"] = (np.arange(len(ids)) < len(prompt)).astype(np.int32)
        return row


def prompted(row: Row, ids: Sequence[int]) -> Row:
    """Returns the row with `ids` inserted after its first token; they are never predicted."""
    if not ids:
        return row
    values = {"input_ids": ids, "attention_mask": 1, "prefix_mask": 1}
    if "decoder_input_ids" not in row:
        values |= {"targets": 0, "loss_weights": 0}
    arrays = {
        name: np.insert(row[name], 1, np.broadcast_to(value, len(ids)))
        for name, value in values.items()
        if name in row
    }
    return row | arrays
