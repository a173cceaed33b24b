"""Packed batches with each segment in a row of its own: the same pieces, laid out the other way.

For tests that a loss does not depend on packing: `unpacked(batch)` holds the same examples, with
the same corruption, as rows with an attention_mask.
"""

import numpy as np

_SIDES = ("", "decoder_")  # prefixes of the names of what the encoder, or the decoder, reads


def unpacked(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The batch with one segment a row, from the first column on; B becomes the count of segments.

    Takes the features of every objective that packs: those of [B, L] beside segment_ids, and those
    beside decoder_segment_ids (targets and loss_weights belong there if there is a decoder).
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
    """Row and number of each segment, in their order."""
    counts = segment_ids.max(axis=1)
    row = np.repeat(np.arange(len(counts)), counts)
    return row, np.arange(len(row)) - (np.cumsum(counts) - counts)[row] + 1
