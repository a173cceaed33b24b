"""Lays out rows of pieces as the input features and targets of a model.

A row consists of pieces of text followed by padding. Packed rows have several pieces, with
segment_ids (1 in the first piece, 2 in the second ..., 0 in padding) and position_ids (which start
at 0 in each piece). Rows that are not packed have one piece, with an attention_mask. The layouts
are those of seqio's feature converters.

    lay_out(np.array([7, 8, 1, 9, 1]), np.array([[3, 2]]), length=6, pad=0, packing=True)
    # input_ids 7 8 1 9 1 0, segment_ids 1 1 1 2 2 0, position_ids 0 1 2 0 1 0

Shapes: B rows, L length, K maximum number of pieces per row, P pieces, T tokens of all pieces, in
order.
"""

import numpy as np

from bertjax.data.batches import rows

Batch = dict[str, np.ndarray]
FeatureTable = dict[str, tuple[tuple[int, ...], type]]


def pieces_of(batch: Batch) -> np.ndarray:
    """Returns int32[T]: the tokens of a batch made by `packing.assemble`, without padding."""
    ids_BW = batch["input_ids"]
    return ids_BW[filled(used(batch["piece_sizes"]), ids_BW.shape[1])]


def filled(sizes_BK: np.ndarray, length: int) -> np.ndarray:
    """Returns bool[B, L]: true at the tokens of a row's pieces, false in its padding."""
    total_B = sizes_BK.sum(axis=1)
    return rows.sliding(np.arange(2 * length) < length, length)[length - total_B]


def used(sizes_BK: np.ndarray) -> np.ndarray:
    """Returns sizes_BK without the last slots that are empty in every row, but at least one slot.

    Rows have far more slots than pieces unless texts are very short, and each costs time.
    """
    return sizes_BK[:, : max(1, int(np.count_nonzero(sizes_BK.any(axis=0))))]


def lay_out(
    tokens_T: np.ndarray, sizes_BK: np.ndarray, length: int, pad: int, *, packing: bool
) -> Batch:
    """Returns the features of rows of pieces, int32[B, L]: input_ids, and also segment_ids and
    position_ids if `packing`, else attention_mask.

    tokens_T: tokens of all pieces in order. sizes_BK: sizes of the pieces of each row, then zeros.
    """
    sizes_BK = used(sizes_BK)
    real_BL = filled(sizes_BK, length)
    ids_BL = np.full(real_BL.shape, pad, np.int32)
    ids_BL[real_BL] = tokens_T
    if not packing:
        return {"input_ids": ids_BL, "attention_mask": real_BL.astype(np.int32)}
    slot_BK = np.broadcast_to(np.arange(1, sizes_BK.shape[1] + 1, dtype=np.int32), sizes_BK.shape)
    start_BK = (np.cumsum(sizes_BK, axis=1) - sizes_BK).astype(np.int32)
    position_BL = np.arange(length, dtype=np.int32) - _spread(start_BK, sizes_BK, length)
    position_BL *= real_BL
    return {
        "input_ids": ids_BL,
        "segment_ids": _spread(slot_BK, sizes_BK, length),
        "position_ids": position_BL,
    }


def _spread(values_BK: np.ndarray, sizes_BK: np.ndarray, length: int) -> np.ndarray:
    """Returns [B, L]: for each token the value of its piece; 0 in padding."""
    padding_B1 = length - sizes_BK.sum(axis=1, keepdims=True)
    values = np.concatenate([values_BK, np.zeros_like(values_BK[:, :1])], axis=1)
    sizes = np.concatenate([sizes_BK, padding_B1], axis=1)  # the padding is a last piece
    return np.repeat(values.ravel(), sizes.ravel()).reshape(-1, length)


def lay_out_targets(
    tokens_T: np.ndarray,
    sizes_BK: np.ndarray,
    length: int,
    pad: int,
    *,
    start: int,
    packing: bool,
    prefix: str = "",
) -> Batch:
    """Returns the features of a decoder that predicts pieces: targets int32[B, L], loss_weights
    float32[B, L], and the features of `lay_out`, in which input_ids are the targets of each piece
    shifted right by one.

    start: the id that each piece of input_ids starts with.
    prefix: prepended to the names of the features of `lay_out`, as in decoder_input_ids.
    """
    inputs = lay_out(tokens_T, sizes_BK, length, pad, packing=packing)
    targets_BL = inputs["input_ids"]
    real_BL = inputs["segment_ids" if packing else "attention_mask"] > 0
    inputs_BL = np.empty_like(targets_BL)
    inputs_BL[:, 0] = start
    inputs_BL[:, 1:] = targets_BL[:, :-1]
    if packing:
        # A piece starts with `start`. The token behind the last piece of a row is padding.
        sizes_BK = used(sizes_BK)
        stops_BK = np.cumsum(sizes_BK, axis=1)
        flat, rows_B = inputs_BL.reshape(-1), length * np.arange(len(inputs_BL))
        flat[(rows_B[:, None] + stops_BK - sizes_BK)[sizes_BK > 0]] = start
        flat[(rows_B + stops_BK[:, -1])[stops_BK[:, -1] < length]] = pad
    inputs["input_ids"] = inputs_BL
    features = {prefix + name: value for name, value in inputs.items()}
    return features | {"targets": targets_BL, "loss_weights": real_BL.astype(np.float32)}


def lay_out_prefixed(
    tokens_T: np.ndarray,
    sizes_BK: np.ndarray,
    prefix_BK: np.ndarray,
    length: int,
    pad: int,
    *,
    start: int,
    packing: bool,
) -> Batch:
    """Returns the features of a decoder that predicts each piece from its prefix.

    These are the features of `lay_out_targets`, with loss_weights 0 in the prefixes, and
    prefix_mask int32[B, L]: 1 on inputs that the whole piece attends to.

    prefix_BK: the number of tokens in the prefix of each piece. The prefix ends before the last
    token of its piece.
    """
    batch = lay_out_targets(tokens_T, sizes_BK, length, pad, start=start, packing=packing)
    if packing:
        sizes_BK = used(sizes_BK)
        prefix_BK = prefix_BK[:, : sizes_BK.shape[1]].astype(np.int32)
        split_BL = _spread(prefix_BK, sizes_BK, length)
        position_BL = batch["position_ids"]
    else:
        split_BL, position_BL = prefix_BK, np.arange(length)
    # The input at position t is token t - 1; the prefix is tokens 0 to split - 1.
    real_BL = batch["loss_weights"] > 0
    rest_BL = real_BL & (position_BL >= split_BL)
    visible_BL = real_BL & (position_BL <= split_BL)
    return batch | {
        "loss_weights": rest_BL.astype(np.float32),
        "prefix_mask": visible_BL.astype(np.int32),
    }


def features(length: int, packing: bool, prefix: str = "") -> FeatureTable:
    """Returns {feature: (shape without the batch axis, dtype)} for the batches of `lay_out`."""
    names = ("input_ids", "segment_ids", "position_ids") if packing else (
        "input_ids", "attention_mask"
    )  # fmt: skip
    return {prefix + name: ((length,), np.int32) for name in names}


def target_features(length: int, packing: bool, prefix: str = "") -> FeatureTable:
    """Returns {feature: (shape without the batch axis, dtype)} for batches of `lay_out_targets`."""
    targets = {"targets": ((length,), np.int32), "loss_weights": ((length,), np.float32)}
    return features(length, packing, prefix) | targets


def prefixed_features(length: int, packing: bool) -> FeatureTable:
    """Returns {feature: (shape, dtype)} for batches of `lay_out_prefixed`."""
    return target_features(length, packing) | {"prefix_mask": ((length,), np.int32)}


def per_piece(values_B: np.ndarray, real_BK: np.ndarray) -> np.ndarray:
    """Returns [P]: the value of each piece's row.

    real_BK: bool, true in the P slots with a piece.
    """
    return np.repeat(values_B, real_BK.sum(axis=1))


def in_slots(sizes_P: np.ndarray, real_BK: np.ndarray) -> np.ndarray:
    """Returns int64[B, K]: the sizes of the P pieces in their slots, where real_BK is true."""
    sizes_BK = np.zeros(real_BK.shape, np.int64)
    sizes_BK[real_BK] = sizes_P
    return sizes_BK


def ended(
    tokens_T: np.ndarray, sizes_P: np.ndarray, real_BK: np.ndarray, end: int
) -> tuple[np.ndarray, np.ndarray]:
    """Appends the id `end` to each piece; returns (tokens of all pieces, piece sizes int64[B, K]).

    sizes_P: sizes of the pieces without `end`. real_BK: bool, true in the P slots with a piece.
    """
    return np.insert(tokens_T, np.cumsum(sizes_P), end), in_slots(sizes_P + 1, real_BK)


def encoder_decoder(
    inputs: tuple[np.ndarray, np.ndarray],
    targets: tuple[np.ndarray, np.ndarray],
    lengths: tuple[int, int],
    pad: int,
    *,
    packing: bool,
) -> Batch:
    """Returns the features of an encoder that reads `inputs` and a decoder that predicts `targets`.

    inputs, targets: (tokens_T, sizes_BK), as in `lay_out`.
    lengths: length of the rows of the encoder and of the decoder.
    The first input of the decoder is `pad`, as in T5.
    """
    return lay_out(*inputs, lengths[0], pad, packing=packing) | lay_out_targets(
        *targets, lengths[1], pad, start=pad, packing=packing, prefix="decoder_"
    )


def encoder_decoder_features(lengths: tuple[int, int], packing: bool) -> FeatureTable:
    """Returns {feature: (shape without the batch axis, dtype)} for batches of `encoder_decoder`."""
    return features(lengths[0], packing) | target_features(lengths[1], packing, "decoder_")
