"""Text-to-text denoising: the encoder reads corrupted text, the decoder predicts the noise spans.

A decoder alone (`PrefixCorruption`) reads the corrupted text as a prefix.
A row of a batch contains one or more pieces of documents. Each piece is corrupted independently,
and its inputs and its targets both end with an EOS.

How much text fits into a row depends on the kind of noise. Therefore the kind is drawn once per
document, before rows are filled, and all pieces of a row have the same kind. Which tokens are noise
is drawn later, with the random numbers of the row (`data.batches.rng`).
"""

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np

from bertjax import errors
from bertjax.data.batches import layout, packing, spans
from bertjax.data.batches.rng import RowRandom


@dataclasses.dataclass(frozen=True)
class Corruption:
    """Samples rows of pieces, like the classes of `data.batches.packing`, and corrupts their text.

    length, targets_length: number of tokens in a row of the encoder and of the decoder.
    noises: the N kinds of noise. rates: for each kind, its share of the rows; the rates sum to 1.
    sentinels: int32 ids; a piece has at most as many noise spans as there are sentinels.
    end: the id at the end of each piece. pad: the id of padding and the decoder's first input.
    packing: whether a row may contain several pieces.
    modes: for each kind of noise, the id of the mode token that starts the inputs of a piece. If
        empty, inputs have no mode token.
    start: the first id that a decoder alone reads; -1 if there is none.
    """

    length: int
    targets_length: int
    noises: tuple[spans.Noise, ...]
    rates: tuple[float, ...]
    sentinels: np.ndarray
    end: int
    pad: int
    packing: bool
    modes: tuple[int, ...] = ()
    start: int = -1

    def __post_init__(self):
        if not len(self.sentinels):
            raise errors.UserError(
                "the tokenizer has no sentinels to mark the noise spans: train or choose another "
                "tokenizer"
            )
        if self.limits.min() < 2:
            raise errors.UserError(
                f"config.data.length = {self.length}: is too short for text and its sentinels"
            )

    @functools.cached_property
    def limits(self) -> np.ndarray:
        """int64[N]: for each kind of noise, the tokens in the longest piece of text that fits a
        row."""
        room = self.length - self.front, self.targets_length, len(self.sentinels)
        return np.array([noise.longest_piece(*room) for noise in self.noises])

    @property
    def front(self) -> int:
        """Number of tokens before the text in the inputs of a piece: 1 with `modes`, else 0."""
        return 1 if self.modes else 0

    @property
    def width(self) -> int:
        """The maximum number of text tokens in a row; each goes to the inputs or to the targets."""
        return self.length + self.targets_length

    @property
    def capacity(self) -> tuple[int, ...]:
        """The numbers of tokens in a row that `costs` counts: of the encoder and of the decoder."""
        return self.length, self.targets_length

    def costs(self, noise: int, sizes: np.ndarray) -> np.ndarray:
        """Returns int64[D, P]: how much of each capacity pieces of `sizes` tokens use.

        noise: the index in `noises` of the kind of noise of all pieces.
        """
        inputs, targets = self.noises[noise].lengths(sizes, len(self.sentinels))
        return np.stack([inputs + self.front, targets])

    def window(self, records: Sequence) -> packing.Window:
        """Joins records from `data.prepared.store` into a window."""
        return packing.join(records)

    def segment(self, window: packing.Window, rng: RowRandom) -> np.ndarray:
        """Returns the table of the window's rows. Each token of the window is in exactly one piece.

        rng: the random numbers for the window, a `RowRandom` with a single row.
        """
        # `rates` are shares of the rows, but kinds are drawn per document, and the kind decides how
        # many rows a document fills. Therefore the weight of a kind is its rate divided by the
        # number of rows that the document would fill.
        if self.packing:
            rows_DN = 1 / np.tile(self.limits, (len(window.edges) - 1, 1))
        else:
            rows_DN = -(-np.diff(window.edges)[:, None] // self.limits)
        shares_DN = np.cumsum(self.rates / rows_DN, axis=1)
        draws_D = rng.uniform("denoising/noise", len(shares_DN))[0] * shares_DN[:, -1]
        noise_D = (shares_DN <= draws_D[:, None]).sum(axis=1)
        noise_D = np.minimum(noise_D, len(self.noises) - 1)
        start, size = packing.cut(window, self.limits[noise_D], rng)
        noise_P = noise_D[np.searchsorted(window.edges, start, side="right") - 1]

        tables = []
        for i in np.unique(noise_P):
            match_P = noise_P == i
            tables.append(
                packing.arrange(
                    self.costs(i, size[match_P]),
                    self.capacity,
                    packing.slots(self.length, self.packing),
                    rng,
                    f"denoising/pieces{i}",
                    start=start[match_P],
                    size=size[match_P],
                    noise=noise_P[match_P],
                )
            )
        return np.concatenate(tables)

    def assemble(self, window: packing.Window, table: np.ndarray) -> packing.Batch:
        """Returns input_ids int32[B, width], piece_sizes int32[B, K] and noise int32[B].

        The pieces are back to back in input_ids. noise is the index in `noises` of the kind of
        noise of each row.
        """
        batch = packing.assemble(window, table, self.width, self.pad)
        return batch | {"noise": table["noise"][:, 0]}

    def corrupt(self, batch: packing.Batch, rng: RowRandom) -> packing.Batch:
        """Corrupts a batch made by `assemble`; returns the features of `layout.encoder_decoder`.

        rng: the random numbers for the rows of the batch.
        """
        inputs, targets = self.split(batch, rng, input_end=self.end)
        real_BK = layout.used(batch["piece_sizes"]) > 0
        return layout.encoder_decoder(
            (inputs[0], layout.in_slots(inputs[1], real_BK)),
            (targets[0], layout.in_slots(targets[1], real_BK)),
            (self.length, self.targets_length),
            self.pad,
            packing=self.packing,
        )

    def split(
        self, batch: packing.Batch, rng: RowRandom, *, input_end: int | None = None
    ) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
        """Returns the inputs and the targets of all pieces: (tokens, sizes int64[P]) of each.

        The targets end with `end`, and the inputs with `input_end`, if any. Other arguments as in
        `corrupt`.
        """
        tokens, sizes_BK = layout.pieces_of(batch), layout.used(batch["piece_sizes"])
        real_BK = sizes_BK > 0
        kinds = zip(*((noise.density, noise.mean_length) for noise in self.noises), strict=True)
        density_B1, mean_B1 = (np.take(kind, batch["noise"])[:, None] for kind in kinds)
        counts_BK, spans_BK = spans.counts(sizes_BK, density_B1, mean_B1, len(self.sentinels))
        noise_runs, text_runs = spans.noise_runs(sizes_BK, counts_BK, spans_BK, rng)

        sizes_P, modes_P = sizes_BK[real_BK], None
        if self.modes:
            modes_P = np.take(self.modes, layout.per_piece(batch["noise"], real_BK))
        replace = functools.partial(
            spans.replace, tokens, sizes_P=sizes_P, sentinels=self.sentinels
        )
        return (
            replace(noise_runs, starts_P=modes_P, end=input_end),
            replace(text_runs, end=self.end),
        )


@dataclasses.dataclass(frozen=True)
class PrefixCorruption(Corruption):
    """Like `Corruption`, for a decoder alone: its row contains the inputs and the targets.

    The inputs of a piece are a prefix, to which the whole piece attends. Its targets follow, and
    end with an EOS; only they are predicted. Noise of infinite `mean_length` needs no sentinels:
    its targets continue the prefix. `targets_length` must be equal to `length` and is not used.
    """

    @functools.cached_property
    def limits(self) -> np.ndarray:
        """int64[N]: for each kind of noise, the tokens in the longest piece of text that fits a
        row."""
        room = self.length, self.front, len(self.sentinels)
        return np.array([_longest_prefixed(noise, *room) for noise in self.noises])

    @property
    def width(self) -> int:
        """The maximum number of text tokens in a row."""
        return self.length

    @property
    def capacity(self) -> tuple[int, ...]:
        """The number of tokens in a row."""
        return (self.length,)

    def costs(self, noise: int, sizes: np.ndarray) -> np.ndarray:
        """Returns int64[1, P]: how many tokens of a row pieces of `sizes` tokens take."""
        return _prefixed_cost(self.noises[noise], sizes, self.front, len(self.sentinels))[None]

    def corrupt(self, batch: packing.Batch, rng: RowRandom) -> packing.Batch:
        """Corrupts a batch made by `assemble`; returns the features of `layout.lay_out_prefixed`.

        rng: the random numbers for the rows of the batch.
        """
        (inputs, input_sizes), (targets, target_sizes) = self.split(batch, rng)
        real_BK = layout.used(batch["piece_sizes"]) > 0
        is_plain = np.isinf([noise.mean_length for noise in self.noises])[batch["noise"]]
        is_plain_P = layout.per_piece(is_plain, real_BK)
        # A plain piece has a sentinel at the end of its inputs, if it has noise, and at the start
        # of its targets.
        marked_P = is_plain_P & (target_sizes > 2)
        keeps = np.ones(len(inputs), bool)
        keeps[np.cumsum(input_sizes)[marked_P] - 1] = False
        inputs, input_sizes = inputs[keeps], input_sizes - marked_P
        keeps = np.ones(len(targets), bool)
        keeps[(np.cumsum(target_sizes) - target_sizes)[is_plain_P]] = False
        targets, target_sizes = targets[keeps], target_sizes - is_plain_P

        # Puts the targets of each piece behind its inputs.
        parts = np.stack([input_sizes, target_sizes], axis=1).ravel()
        is_input = np.repeat(np.tile([True, False], len(input_sizes)), parts)
        tokens = np.empty(len(is_input), np.int32)
        tokens[is_input], tokens[~is_input] = inputs, targets
        return layout.lay_out_prefixed(
            tokens,
            layout.in_slots(input_sizes + target_sizes, real_BK),
            layout.in_slots(input_sizes, real_BK),
            self.length, self.pad, start=self.start, packing=self.packing,
        )  # fmt: skip


def _prefixed_cost(noise: spans.Noise, sizes: np.ndarray, front: int, max_spans: int) -> np.ndarray:
    """Returns int64[P]: how many tokens of a decoder's row pieces of `sizes` tokens take."""
    if np.isinf(noise.mean_length):
        return front + sizes + 1
    inputs, targets = noise.lengths(sizes, max_spans)
    return front + inputs + targets - 1  # without the EOS of the inputs


@functools.lru_cache(maxsize=64)  # samplers are made anew for each batch
def _longest_prefixed(noise: spans.Noise, length: int, front: int, max_spans: int) -> int:
    """Returns the number of tokens in the longest piece that fits a decoder's row of `length`."""
    costs = _prefixed_cost(noise, np.arange(1, length + 1), front, max_spans)
    return int(np.count_nonzero(costs <= length))
