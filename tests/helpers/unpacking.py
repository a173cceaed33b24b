"""Unpacks batches: every segment of a packed row gets a row of its own.

For tests that a loss does not depend on packing: `unpacked(batch)` has the same examples, with the
same corruption, as rows with an attention_mask.
"""

import numpy as np

_SIDES = ("", "decoder_")  # prefixes of the names of the encoder's and the decoder's features


def unpacked(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns the batch with one segment per row, starting at column 0; B is then their count.

    Moves the features of every objective that packs: those shaped [B, L] like segment_ids, and
    those shaped like decoder_segment_ids. With a decoder, targets and loss_weights are its own.
    """
    decoder = "decoder_segment_ids" in batch
    rows = {}
    for side in _SIDES if decoder else _SIDES[:1]:
        segments = batch[f"{side}segment_ids"]
        row, number = _segments(batch["segment_ids"])
        own = segments[row] == number[:, None]  # [segments, L]
        place = np.argsort(~own, axis=1, kind="stable")
        real = np.take_along_axis(own, place, axis=1)
        rows[f"{side}attention_mask"] = real.astype(np.int32)
        for name, value in batch.items():
            of_decoder = name.startswith("decoder_") or name in ("targets", "loss_weights")
            beside = of_decoder == (side == "decoder_") if decoder else True
            if (
                beside
                and value.shape == segments.shape
                and not name.endswith(("segment_ids", "position_ids"))
            ):
                moved = np.take_along_axis(value[row], place, axis=1)
                rows[name] = np.where(real, moved, np.zeros((), value.dtype))
    return rows


def _segments(segment_ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the row and the number (from 1) of each segment, in order."""
    counts = segment_ids.max(axis=1)
    row = np.repeat(np.arange(len(counts)), counts)
    return row, np.arange(len(row)) - (np.cumsum(counts) - counts)[row] + 1
