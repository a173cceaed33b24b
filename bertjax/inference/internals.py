"""Returns the hidden states and the attention weights that a model computes for texts.

    bert = bertjax.load("run/")
    bert.hidden_states("The cat sat.").states           # float32[1 + num_layers, L, D]
    bert.attentions("The cat sat.").weights[3, 5]       # float32[L, L]: layer 3, head 5

The results are NumPy arrays without padding. Nothing is stored by a model that is not asked for
it: the attention weights are a Linen collection (`layers.WEIGHTS`) that only `attentions` makes
mutable.

Shapes: B rows of a batch, L length, T length of the decoder, D model, N heads.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from bertjax import errors, html_tables, plugins
from bertjax.artifact import artifact
from bertjax.data.tokenizers import special_tokens
from bertjax.inference import batching
from bertjax.models.common import layers

BATCH_SIZE = 32
BATCH_BYTES = 256 << 20  # size of the results of a batch, unless one text needs more
_SHOWN = 24  # tokens of a table in a notebook


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class HiddenStates:
    """The hidden states of one text.

    tokens: the L pieces, including special tokens. ids: int32[L]. states: float32[1 + num_layers,
    L, D], the input of the first layer and the output of every layer. Where a norm follows the last
    layer, as in GPT-2, T5 and ModernBERT, the last state is normed.
    decoder_tokens, decoder_ids, decoder_states: those of the decoder of an encoder-decoder, if a
    target was given; otherwise empty and None.
    """

    tokens: tuple[str, ...]
    ids: np.ndarray
    states: np.ndarray
    decoder_tokens: tuple[str, ...] = ()
    decoder_ids: np.ndarray | None = None
    decoder_states: np.ndarray | None = None

    def __repr__(self) -> str:
        num_states, length, width = self.states.shape
        return f"<HiddenStates: {length} tokens, {num_states} states of width {width}>"

    def _repr_html_(self) -> str:
        """Returns a table of the norm of each state, for notebooks."""
        norms = np.linalg.norm(self.states, axis=-1)[:, :_SHOWN]
        rows = [[str(layer), *(f"{norm:.1f}" for norm in row)] for layer, row in enumerate(norms)]
        return html_tables.table(
            ["layer", *self.tokens[:_SHOWN]],
            rows,
            f"norms of the states of {len(self.tokens)} tokens; 0 is the input of the first layer",
        )


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Attentions:
    """The attention weights of one text; each row of weights sums to 1.

    tokens: the L pieces, including special tokens. ids: int32[L]. weights: float32[num_layers, N,
    L, L]; weights[layer, head, i, j] is how much token i attends to token j.
    decoder_tokens, decoder_ids: those of the decoder of an encoder-decoder, if a target was given;
    otherwise empty and None. decoder_weights: float32[num_decoder_layers, N, T, T]. cross_weights:
    float32[num_decoder_layers, N, T, L], from the tokens of the decoder to those of the encoder.
    """

    tokens: tuple[str, ...]
    ids: np.ndarray
    weights: np.ndarray
    decoder_tokens: tuple[str, ...] = ()
    decoder_ids: np.ndarray | None = None
    decoder_weights: np.ndarray | None = None
    cross_weights: np.ndarray | None = None

    def __repr__(self) -> str:
        num_layers, num_heads, length, _ = self.weights.shape
        return f"<Attentions: {num_layers} layers x {num_heads} heads, {length} tokens>"

    def _repr_html_(self) -> str:
        """Returns a shaded table of the mean weights over layers and heads, for notebooks."""
        num_layers, num_heads, length, _ = self.weights.shape
        means = self.weights.mean(axis=(0, 1))[:_SHOWN, :_SHOWN]
        rows = [
            [token, *(f"{weight:.2f}" for weight in row)]
            for token, row in zip(self.tokens, means, strict=False)
        ]
        return html_tables.table(
            ["from \\ to", *self.tokens[:_SHOWN]],
            rows,
            f"attention of {length} tokens, mean of {num_layers} layers x {num_heads} heads",
            shades=means,
        )


def hidden_states(
    model: Any, texts: Sequence[str], targets: Sequence[str] | None = None
) -> list[HiddenStates]:
    """Returns the hidden states of each text. model: an `inference.pretrained.Pretrained`.

    targets: for an encoder-decoder, the text that its decoder reads for each text.
    """
    columns = _columns(model, texts, targets)
    config = model.model.config
    results: list[Any] = [None] * len(texts)
    row_values = (1 + config.num_layers) * config.hidden_size
    for rows, batch in _batches(model, columns, lambda length: row_values * length):
        states = jax.device_get(_hidden_states(model.model, model.params, batch))
        for i, row in enumerate(rows):
            found = {
                f"{stack}states": np.array(x[:, i, : len(columns[stack][row])])
                for stack, x in states.items()
            }
            results[row] = HiddenStates(**_tokens(model, columns, row), **found)
    return results


def attentions(
    model: Any, texts: Sequence[str], targets: Sequence[str] | None = None
) -> list[Attentions]:
    """Returns the attention weights of each text. model: an `inference.pretrained.Pretrained`.

    targets: for an encoder-decoder, the text that its decoder reads for each text. A model whose
    attention is computed by a kernel is computed with plain operations here. Raises UserError if
    the layers of the family are not built from `models.common.attention`.
    """
    columns = _columns(model, texts, targets)
    linen, config = _with_plain_attention(model.model), model.model.config
    results: list[Any] = [None] * len(texts)
    row_values = config.num_layers * config.num_heads
    for rows, batch in _batches(model, columns, lambda length: row_values * length * length):
        weights = jax.device_get(_attention_weights(linen, model.params, batch))
        for i, row in enumerate(rows):
            found = {}
            for name, x in weights.items():
                queries, keys = (len(columns[stack][row]) for stack in _ENDS[name])
                found[name] = np.array(x[:, i, :, :queries, :keys])
            results[row] = Attentions(**_tokens(model, columns, row), **found)
    return results


# The stacks are named by the prefix of their fields. "" is the only stack of a model that has one,
# and the encoder of an encoder-decoder. {weights: (stack of the queries, stack of the keys)}
_ENDS = {
    "weights": ("", ""),
    "decoder_weights": ("decoder_", "decoder_"),
    "cross_weights": ("decoder_", ""),
}


def _columns(
    model: Any, texts: Sequence[str], targets: Sequence[str] | None
) -> dict[str, list[np.ndarray]]:
    """Returns {"": ids of each text, "decoder_": ids of each target, if given}."""
    columns = {"": [model.input_ids(text) for text in texts]}
    if targets is not None:
        if plugins.family_of(model.model).KIND != "encoder_decoder":
            raise errors.UserError(
                f"targets: a {model.source.family} model has no second stack that reads them; "
                "remove the targets"
            )
        if len(targets) != len(texts):
            raise errors.UserError(f"targets: {len(targets)} for {len(texts)} texts")
        columns["decoder_"] = [model.target_ids(text) for text in targets]
    return columns


def _batches(
    model: Any, columns: dict[str, list[np.ndarray]], row_values: Callable[[int], int]
) -> Iterator[tuple[list[int], dict[str, np.ndarray]]]:
    """Returns batches of the texts, see `batching.batches`, whose results take BATCH_BYTES or less.

    row_values: the number of float32 values of a row of the result, as a function of its length.
    """
    pad = special_tokens.padding(model.tokenizer.specials)

    def batch_size(longest: int) -> int:
        fitting = BATCH_BYTES // (4 * row_values(batching.round_up(longest)))
        return min(BATCH_SIZE, batching.power_of_two_within(max(1, fitting)))

    return batching.batches(columns, batch_size, pad, model.max_length)


def _tokens(model: Any, columns: dict[str, list[np.ndarray]], row: int) -> dict[str, Any]:
    """Returns the fields for tokens and ids of a row."""
    fields: dict[str, Any] = {}
    for stack, column in columns.items():
        fields[f"{stack}tokens"] = tuple(model.tokenizer.readable(column[row]))
        fields[f"{stack}ids"] = column[row]
    return fields


def _with_plain_attention(linen: Any) -> Any:
    if linen.config.attention == "xla":
        return linen
    return type(linen)(dataclasses.replace(linen.config, attention="xla"))


@functools.partial(jax.jit, static_argnames=("model",))
def _hidden_states(model: Any, params: Any, batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """Returns {stack: [1 + num_layers, B, L, D]}."""
    outputs = model.apply({"params": params}, **batch, output_hidden_states=True)
    last = outputs["hidden_states"].astype(np.float32)
    if "encoder_hidden_states" not in outputs:
        return {"": last}
    return {"": outputs["encoder_hidden_states"].astype(np.float32), "decoder_": last}


@functools.partial(jax.jit, static_argnames=("model",))
def _attention_weights(
    model: Any, params: Any, batch: dict[str, jax.Array]
) -> dict[str, jax.Array]:
    """Returns {name of a field of `Attentions`: [num_layers, B, N, L, S]}."""
    _, variables = model.apply({"params": params}, **batch, mutable=[layers.WEIGHTS])
    both = plugins.family_of(model).KIND == "encoder_decoder"
    names = {
        ("encoder", "attention"): "weights",
        ("decoder", "attention"): "decoder_weights" if both else "weights",
        ("decoder", "cross_attention"): "cross_weights",
    }
    found = {}
    for path, x in artifact.flatten(variables.get(layers.WEIGHTS, {})).items():
        stack, *_, module, _ = path.split("/")
        if (stack, module) in names:  # and not the generator of a pair
            shape = (-1, *x.shape[-4:])  # ALBERT's are stacked over groups and layers
            found[names[stack, module]] = x.reshape(shape).astype(np.float32)
    if "weights" not in found:
        raise errors.UserError(
            "this model does not store attention weights: its layers must use "
            "`models.common.attention.Attention`, in a module named encoder or decoder"
        )
    return found
