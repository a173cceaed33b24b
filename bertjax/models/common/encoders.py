"""The parts that the families of encoders share: pretraining heads, the call, pairs, FLOPs.

Every encoder can have every pretraining head, so each objective for encoders trains each of these
families. `heads` selects the model. With the heads "mlm" and "rtd" it is a pair for replaced token
detection: a generator, which has the head "mlm", and a discriminator, which has all other heads.
`parts` splits a pair into its two models. In most families the generator has half the
discriminator's layers (as in DeBERTa-v3, arXiv 2111.09543, section 5) and shares its embeddings (as
in ELECTRA, arXiv 2003.10555, section 3.2).

Shapes: B batch, L length, D model, P predictions per sequence.
"""

import dataclasses
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from bertjax.models.common import heads, layers, masks, pretraining_heads, row_packing

PAIR_TASKS = ("nsp", "sop")  # heads that classify pairs of segments
PRETRAINING = ("mlm", *PAIR_TASKS, "sbo", "rtd")
HEADS = (*PRETRAINING, *heads.DOWNSTREAM)
POOLED_HEADS = ("pooler", *HEADS)  # of the families with a pooler
MAX_SPAN_TOKENS = 80  # as in the published SpanBERT

_GENERATOR_HEADS = ("mlm_head", "decoder_position")  # modules of heads of a pair's generator
Parts = dict[str, tuple[dict[str, Any], dict[str, Any]]]


@dataclasses.dataclass(frozen=True)
class Fields(layers.Fields):
    """Base class of the Configs of all encoders. A family may override a property with a field."""

    @property
    def type_vocab_size(self) -> int:
        """Returns the number of token types; 0 if the family has none."""
        return 0

    @property
    def max_span_tokens(self) -> int:
        """Returns how many positions in a span have an embedding; later ones use the last."""
        return MAX_SPAN_TOKENS

    @property
    def generator_num_layers(self) -> int:
        """Returns the number of layers of a pair's generator."""
        return max(1, self.num_layers // 2)

    @property
    def is_pair(self) -> bool:
        """Returns whether the model consists of a generator and a discriminator."""
        return {"mlm", "rtd"} <= set(self.heads)

    @property
    def generator(self) -> Any:
        """Returns the Config of a pair's generator as a separate model."""
        return dataclasses.replace(self, num_layers=self.generator_num_layers, heads=("mlm",))

    @property
    def discriminator(self) -> Any:
        """Returns the Config of a pair's discriminator as a separate model."""
        return dataclasses.replace(self, heads=tuple(h for h in self.heads if h != "mlm"))


def check(config: Fields, allowed: tuple[str, ...]) -> None:
    """Raises UserError if a field or the heads are invalid; the allowed heads are `allowed`."""
    layers.check_fields(config)
    heads.check(config, allowed)
    if "pooler" in allowed:
        heads.check_pooled(config, *PAIR_TASKS)


def heads_for(allowed: tuple[str, ...], needed: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the heads `needed`, in the order of `allowed`, with the pooler that they read."""
    pooler = ("pooler",) if set(PAIR_TASKS) & set(needed) else ()
    return tuple(head for head in allowed if head in (*pooler, *needed))


class Inputs(NamedTuple):
    """The inputs of an encoder, int32[B, L] or [1, L]; `segment_ids` is None unless packed."""

    input_ids: jax.Array
    token_type_ids: jax.Array
    position_ids: jax.Array
    segment_ids: jax.Array | None
    mask: masks.Mask
    deterministic: bool

    def packed(self, packed_from: jax.Array) -> "Inputs":
        """Returns the inputs of packed rows, see `row_packing`."""
        shape = self.input_ids.shape
        segment_ids = row_packing.segments(packed_from, shape[1])
        names = ("input_ids", "token_type_ids", "position_ids")
        arrays = {
            name: row_packing.pack(jnp.broadcast_to(getattr(self, name), shape), packed_from)
            for name in names
        }
        mask = masks.segments(segment_ids, segment_ids)
        return self._replace(**arrays, segment_ids=segment_ids, mask=mask)


class States(NamedTuple):
    """The states that heads read.

    last: [B, L, D], the output of the encoder. hidden: [1 + num_layers, B, L, D], the input and the
    output of every layer, or None. masked: [B, L, D], the states that the MLM head reads. word: the
    table of word embeddings.
    """

    last: jax.Array
    hidden: jax.Array | None
    masked: jax.Array
    word: layers.Embed


class Model(heads.Model):
    """Base class of the Models of all encoders. Inputs are int32[B, L].

    A family defines `setup`, which ends with `setup_heads`, and `states`. `attention_mask` is 1 on
    tokens and 0 on padding. Packed rows, which hold several examples, have `segment_ids` (0 on
    padding) and `position_ids` instead. `token_type_ids` are ignored by a model with fewer than two
    token types: it knows the segments of a pair only by the separator between them.
    """

    config: Any

    def setup_heads(self) -> None:
        """Creates all heads listed in `config.heads`."""
        config = self.config
        if "pooler" in config.heads:
            self.pooler = heads.Pooler(config)
        if "mlm" in config.heads:
            self.mlm_head = self.new_mlm_head()
        for task in PAIR_TASKS:
            if task in config.heads:
                pooled = "pooler" in config.heads
                head = layers.dense(2, config) if pooled else pretraining_heads.PairHead(config)
                setattr(self, f"{task}_head", head)
        if "sbo" in config.heads:
            self.sbo_head = pretraining_heads.SboHead(config)
        if "rtd" in config.heads:
            self.rtd_head = self.new_rtd_head()
        self.setup_downstream()

    def new_mlm_head(self) -> heads.MlmHead:
        """Returns the module for the head "mlm"."""
        return heads.MlmHead(self.config)

    def new_rtd_head(self) -> nn.Module:
        """Returns the module for the head "rtd"; `rtd_logits` calls it."""
        return pretraining_heads.RtdHead(self.config)

    def states(
        self, inputs: Inputs, *, of_generator: bool = False, keep_hidden: bool = False
    ) -> States:
        """Returns the states of the encoder, or of the generator's encoder of a pair."""
        raise NotImplementedError

    def positions(self, input_ids: jax.Array, attention_mask: jax.Array | None) -> jax.Array:
        """Returns the default position_ids: the indices in the row, int32[1, L]."""
        del attention_mask
        return jnp.arange(input_ids.shape[1])[None, :]

    def rtd_logits(self, x_BLD: jax.Array, inputs: Inputs) -> jax.Array:
        """Returns float32 [B, L], the output of the head "rtd"."""
        del inputs
        return self.rtd_head(x_BLD)

    def __call__(
        self,
        input_ids: jax.Array,
        attention_mask: jax.Array | None = None,
        token_type_ids: jax.Array | None = None,
        position_ids: jax.Array | None = None,
        segment_ids: jax.Array | None = None,
        masked_positions: jax.Array | None = None,
        span_boundaries: jax.Array | None = None,
        packed_from: jax.Array | None = None,
        *,
        heads_to_run: tuple[str, ...] | None = None,
        deterministic: bool = True,
        output_hidden_states: bool = False,
    ) -> dict[str, jax.Array]:
        """Returns a dict of the outputs of the encoder and of its heads.

        Always, except if only a pair's generator runs: last_hidden_state [B, L, D] and, if
        `output_hidden_states`, hidden_states [1 + num_layers, B, L, D]. A pair returns the
        discriminator's states.
        Head pooler: pooled_output [B, D].
        Head nsp: nsp_logits [B, 2], float32; class 0 means that the second segment follows the
        first. Head sop: sop_logits [B, 2], float32; class 1 means that the segments are swapped.
        Head mlm: mlm_logits [B, P, rows of the word table], float32, at `masked_positions`; if
        these are None, at every position (P = L).
        Head sbo: sbo_logits [B, P, rows of the word table], float32, if `span_boundaries` is given,
        which also needs `masked_positions`.
        Head rtd: rtd_logits [B, L], float32; above 0 where a token is predicted to be replaced.
        Fine-tuning heads: the outputs of `heads.Model.add_downstream`.

        packed_from: how the layers pack the rows, see `row_packing`; the outputs are those of the
        rows. Only with the fine-tuning heads, and without `segment_ids`.
        masked_positions: int32[B, P]. span_boundaries: int32[B, P, 2], for each prediction the
        positions just before and just after its span.
        heads_to_run: which of the heads "mlm" and "rtd" to run; None means all of `config.heads`. A
        pair runs only the encoders that these heads need.
        """
        config = self.config
        active_heads = config.heads if heads_to_run is None else heads_to_run
        if token_type_ids is None or config.type_vocab_size < 2:
            token_type_ids = jnp.zeros_like(input_ids)
        if position_ids is None:
            position_ids = self.positions(input_ids, attention_mask)
        inputs = Inputs(
            input_ids,
            token_type_ids,
            position_ids,
            segment_ids,
            masks.of_batch(attention_mask, segment_ids),
            deterministic,
        )
        if packed_from is not None:
            inputs = inputs.packed(packed_from)
        outputs: dict[str, jax.Array] = {}
        if not config.is_pair or active_heads != ("mlm",):
            states = self.states(inputs, keep_hidden=output_hidden_states)
            if packed_from is not None:
                last_BLD = row_packing.unpack(states.last, packed_from, input_ids.shape)
                states = states._replace(last=last_BLD)
            outputs["last_hidden_state"] = states.last
            if states.hidden is not None:
                outputs["hidden_states"] = states.hidden
            outputs |= self._pair_outputs(states.last)
            if "rtd" in active_heads:
                outputs["rtd_logits"] = self.rtd_logits(states.last, inputs)
            if "sbo" in config.heads:
                outputs |= self._span_outputs(states, masked_positions, span_boundaries)
            outputs = self.add_downstream(outputs, attention_mask, deterministic=deterministic)
        if "mlm" in active_heads:
            if config.is_pair:
                states = self.states(inputs, of_generator=True)
            x_BPD = states.masked
            if masked_positions is not None:
                x_BPD = heads.gather_positions(x_BPD, masked_positions)
            outputs["mlm_logits"] = self.mlm_head(x_BPD, states.word)
        return outputs

    def _pair_outputs(self, x_BLD: jax.Array) -> dict[str, jax.Array]:
        """Returns the outputs of the pooler and of the heads in PAIR_TASKS."""
        outputs, first_BD = {}, x_BLD[:, 0]
        if "pooler" in self.config.heads:
            outputs["pooled_output"] = first_BD = self.pooler(first_BD)
        for task in PAIR_TASKS:
            if task in self.config.heads:
                logits_B2 = getattr(self, f"{task}_head")(first_BD)
                outputs[f"{task}_logits"] = logits_B2.astype(jnp.float32)
        return outputs

    def _span_outputs(
        self,
        states: States,
        masked_positions: jax.Array | None,
        span_boundaries: jax.Array | None,
    ) -> dict[str, jax.Array]:
        """Returns the output of the head "sbo"; {} if its inputs are absent."""
        if self.is_initializing():  # init passes input_ids only
            rows = len(states.last)
            masked_positions = jnp.zeros((rows, 1), jnp.int32)
            span_boundaries = jnp.zeros((rows, 1, 2), jnp.int32)
        if span_boundaries is None:
            return {}
        logits_BPV = self.sbo_head(states.last, masked_positions, span_boundaries, states.word)
        return {"sbo_logits": logits_BPV}


def parts(
    config: Fields,
    fields: dict[str, Any],
    params: dict[str, Any],
    pair_fields: Collection[str] = (),
) -> Parts:
    """Returns the models in a pair: {"discriminator": (fields, params), "generator": ...}.

    If the model is not a pair, the result has only one entry, the model itself.

    fields, params: the fields of `config` and the nested dict of parameters of the whole model.
    pair_fields: names of fields that a part does not need.
    """
    if not config.is_pair:
        name = "generator" if config.heads == ("mlm",) else "discriminator"
        return {name: (fields, params)}
    own = {name for name in params if name.startswith("generator_") or name in _GENERATOR_HEADS}
    shared = set() if "generator_embeddings" in params else {"embeddings"}

    def part(config_of_part: Fields, names: set[str]) -> tuple[dict[str, Any], dict[str, Any]]:
        values = layers.fields_of(config_of_part)
        changed = [n for n, value in layers.fields_of(config).items() if values[n] != value]
        kept = [n for n in dict.fromkeys((*fields, *changed)) if n not in pair_fields]
        trees = {n.removeprefix("generator_"): tree for n, tree in params.items() if n in names}
        return {n: values[n] for n in kept}, trees

    return {
        "discriminator": part(config.discriminator, set(params) - own),
        "generator": part(config.generator, own | shared),
    }


def flops_per_sequence(
    body_flops: Callable[[Any, int], int], config: Any, length: int, predictions: int
) -> int:
    """Returns the FLOPs of all matmuls in the forward pass of one sequence: two per multiply-add.

    The result for a pair is the sum over generator and discriminator.

    body_flops: computes the FLOPs of embeddings and layers from a config, not of a pair, and the
        length. predictions: the number of positions at which a head computes vocabulary logits.
    """
    if config.is_pair:
        return sum(
            flops_per_sequence(body_flops, part, length, predictions)
            for part in (config.generator, config.discriminator)
        )
    names, width = config.heads, config.hidden_size
    word_width = getattr(config, "embedding_size", 0) or width
    mlm = predictions * word_width * (width + layers.padded_vocab_size(config.vocab_size))
    spans = mlm + predictions * 3 * width * width
    rtd = length * width * (width + 1)
    products = mlm * ("mlm" in names) + spans * ("sbo" in names) + rtd * ("rtd" in names)
    return body_flops(config, length) + 2 * products
