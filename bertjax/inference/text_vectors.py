"""Turns texts into vectors with an encoder, in batches of similar length.

    encode = text_vectors.Encoder(model, encoding, batch_size=64, mesh=mesh)
    vectors, num_truncated = encode(["A cat sat.", "A dog ran."])      # float32[2, D]

The vectors depend on the texts of the call, not on what was encoded before: batches are sorted by
length within a call. With a mesh, the rows of a batch are split over its devices, each of which
has a copy of the parameters.

Shapes: R texts of a call, B rows of a batch, L length, D model, E vector.
"""

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bertjax import sharding
from bertjax.artifact import artifact, text_encoding
from bertjax.data.tokenizers import special_tokens
from bertjax.inference import batching
from bertjax.models.common import activations, heads

BATCH_SIZE = 32
_ACTIVATIONS = {**activations.WITH_TANH, "identity": lambda x: x, "sigmoid": jax.nn.sigmoid,
                "silu": jax.nn.silu}  # fmt: skip
_MANY = 8  # batches


class Encoded(NamedTuple):
    """The vectors of texts, float32[R, E], and how many texts were truncated."""

    vectors_RE: np.ndarray
    num_truncated: int


class Encoder:
    """Encodes texts as `encoding` says.

    model: an `inference.pretrained.Pretrained`. prompt: text that is put in front of every text.
    batch_size: maximum number of rows of a batch, a multiple of the devices of the mesh.
    mesh: the devices to use; None: the device of the parameters.
    truncate: whether longer texts are truncated; otherwise they are a UserError.
    """

    def __init__(
        self,
        model: Any,
        encoding: text_encoding.Encoding,
        *,
        prompt: str = "",
        batch_size: int = BATCH_SIZE,
        mesh: Any = None,
        truncate: bool = True,
    ):
        self._model, self._encoding, self._prompt = model, encoding, prompt
        self._tokenizer = model.tokenizer
        self._batch_size, self._mesh, self._truncate = batch_size, mesh, truncate
        ends = special_tokens.of_encoder(self._tokenizer.specials)
        self._num_ends = len(ends.head) + len(ends.tail)
        self._skipped = 0  # tokens at the start that are not pooled
        if prompt and not encoding.pools_prompt:
            self._skipped = len(ends.head) + len(self._tokenizer.encode(self._cased(prompt)))
        self._kinds = text_encoding.kinds(encoding.layers)
        arrays = artifact.unflatten(text_encoding.tensors(encoding))
        self._variables = {"params": model.params}, jax.tree.map(jnp.asarray, arrays)
        if mesh is not None:
            self._variables = sharding.replicate(mesh, self._variables)

    @property
    def width(self) -> int:
        """The size of the vectors."""
        return self._encoding.width(self._model.model.config.hidden_size)

    def __call__(self, texts: Sequence[str]) -> Encoded:
        """Returns the vectors of the texts, in their order."""
        prompted = [self._cased(self._prompt + text) for text in texts]
        sequences, num_truncated = [], 0
        limit = self._encoding.max_length
        for ids, text in zip(self._tokenizer.encode_batch(prompted), texts, strict=True):
            sequence = self._model.with_ends(ids, text, self._truncate, limit)
            num_truncated += len(sequence) < len(ids) + self._num_ends
            sequences.append(sequence)
        vectors_RE = np.zeros((len(texts), self.width), np.float32)
        finished: list[tuple[list[int], jax.Array]] = []
        for rows, batch in self._batches(sequences):
            finished.append((rows, self._forward(batch)))
            if len(finished) > 1:  # fetch while the device computes the next batch
                self._fetch(*finished.pop(0), vectors_RE)
        for rows, vectors in finished:
            self._fetch(rows, vectors, vectors_RE)
        return Encoded(vectors_RE, num_truncated)

    def _cased(self, text: str) -> str:
        return text.lower() if self._encoding.lower_case else text

    def _fetch(self, rows: list[int], vectors_BE: jax.Array, vectors_RE: np.ndarray) -> None:
        vectors_RE[rows] = jax.device_get(vectors_BE)[: len(rows)]

    def _batches(
        self, sequences: Sequence[np.ndarray]
    ) -> Iterator[tuple[list[int], dict[str, np.ndarray]]]:
        """Yields (indices of the sequences, batch); a batch may end with padding rows."""
        pad = special_tokens.padding(self._tokenizer.specials)
        shards = 1 if self._mesh is None else sharding.batch_shards(self._mesh)
        # With many texts, the time that less padding saves is more than that of compiling.
        has_many = len(sequences) > _MANY * self._batch_size
        round_length = batching.round_finely if has_many else batching.round_up
        for rows in batching.longest_first(sequences, lambda longest: self._batch_size):
            members = [sequences[row] for row in rows]
            length = min(round_length(len(members[0])), self._model.max_length)
            count = min(batching.power_of_two(len(rows)), self._batch_size)
            shape = batching.round_up(count, shards), length
            ids_BL, real_BL = batching.padded(members, shape, pad)
            mask_BL = real_BL.astype(np.int32)
            pooled_BL = mask_BL.copy()
            pooled_BL[:, : self._skipped] = 0
            yield rows, {"input_ids": ids_BL, "attention_mask": mask_BL, "pooled": pooled_BL}

    def _forward(self, batch: dict[str, np.ndarray]) -> jax.Array:
        if self._mesh is not None:
            with jax.set_mesh(self._mesh):
                placed = sharding.global_batch(self._mesh, len(batch["input_ids"]), batch)
                return self._compute(placed)
        return self._compute(batch)

    def _compute(self, batch: dict[str, Any]) -> jax.Array:
        variables, arrays = self._variables
        x_BE = _vectors(
            self._model.model, variables, arrays, batch, self._encoding.pooling, self._kinds
        )
        if self._encoding.num_dims:
            x_BE = x_BE[:, : self._encoding.num_dims]
            x_BE = heads.unit(x_BE) if self._encoding.normalizes_kept else x_BE
        return x_BE


def truncation(num_truncated: int, num_texts: int, encoding: text_encoding.Encoding) -> str:
    """Returns a warning that texts were truncated."""
    return (
        f"warning: {num_truncated:,} of {num_texts:,} texts are longer than {encoding.max_length} "
        "tokens, and were truncated"
    )


@functools.partial(jax.jit, static_argnames=("model", "pooling", "kinds"))
def _vectors(
    model: Any,
    variables: Any,
    arrays: Mapping[str, Mapping[str, jax.Array]],
    batch: dict[str, jax.Array],
    pooling: str,
    kinds: tuple[str, ...],
) -> jax.Array:
    """Returns the vectors, float32[B, E]. arrays, kinds: as in `projected`."""
    inputs = {name: x for name, x in batch.items() if name != "pooled"}
    states_BLD = model.apply(variables, **inputs)["last_hidden_state"].astype(jnp.float32)
    return projected(_pool(states_BLD, batch["pooled"], pooling), arrays, kinds)


def projected(
    x: jax.Array, arrays: Mapping[str, Mapping[str, jax.Array]], kinds: Sequence[str]
) -> jax.Array:
    """Returns what the layers behind the pooling make of vectors: [..., D] to [..., E].

    arrays: {index of a dense layer: its "kernel" and, if it has one, its "bias"}. kinds: see
    `text_encoding.kinds`.
    """
    for index, kind in enumerate(kinds):
        if kind == text_encoding.NORMALIZE:
            x = heads.unit(x)
            continue
        layer = arrays[str(index)]
        x = x @ layer["kernel"]
        if "bias" in layer:
            x = x + jnp.broadcast_to(layer["bias"], x.shape)
        x = _ACTIVATIONS[kind](x)
    return x


def _pool(states_BLD: jax.Array, mask_BL: jax.Array, pooling: str) -> jax.Array:
    """Returns one vector for each row, float32[B, D]; only tokens of the mask are pooled."""
    if pooling == "cls":  # the first token of the mask, which may begin behind a prompt
        first_B11 = jnp.argmax(mask_BL > 0, axis=1)[:, None, None]
        return jnp.take_along_axis(states_BLD, first_B11, axis=1)[:, 0]
    return heads.pool(states_BLD, mask_BL, pooling)
