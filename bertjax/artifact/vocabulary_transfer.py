"""Adapts a model to another tokenizer; pieces that both tokenizers have keep their parameters.

    model = vocabulary_transfer.carry_over(model, tokenizer, fresh_params, vocab_size=8000)
"""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np

from bertjax import errors, sharding
from bertjax.artifact import artifact
from bertjax.data.tokenizers import library_model
from bertjax.data.tokenizers import tokenizer as tokenizer_lib


def carry_over(
    model: artifact.Artifact, tokenizer: tokenizer_lib.Tokenizer, fresh: Any, vocab_size: int
) -> artifact.Artifact:
    """Returns a copy of the model for `tokenizer`, with rows reordered for its ids.

    Arrays with a vocab axis (the word embeddings, the output's bias and kernel) are replaced with
    those of `fresh`. In these, each piece that both tokenizers have gets the model's row. An array
    is not changed if it has no vocab axis, if `fresh` lacks it, or if another of its axes has
    another size in `fresh`. `model.fields` is not changed. Raises UserError if no piece is shared.

    fresh: newly initialized parameters of a model with `vocab_size` embeddings.
    """
    old_rows, new_rows = shared_rows(
        model.tokenizer, tokenizer, model.fields["vocab_size"], vocab_size
    )
    flat = artifact.flatten(fresh)
    params = {}
    for path, leaf in artifact.flatten(model.params).items():
        axes = sharding.param_axes(path)
        if "vocab" in axes and path in flat:
            axis = axes.index("vocab")
            leading = (slice(None),) * axis
            if np.delete(leaf.shape, axis).tolist() == np.delete(flat[path].shape, axis).tolist():
                rows = leaf[(*leading, old_rows)]
                leaf = jnp.asarray(flat[path]).at[(*leading, new_rows)].set(rows)
        params[path] = leaf
    return dataclasses.replace(model, params=artifact.unflatten(params), tokenizer=tokenizer)


def shared_rows(
    old: tokenizer_lib.Tokenizer, new: tokenizer_lib.Tokenizer, old_size: int, new_size: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns (ids in `old`, ids in `new`) of the N pieces that both tokenizers have, int[N] each.

    Special tokens match if they have the same role, whatever their text. Sentinels match if they
    have the same number. Ordinary pieces match if they have the same text and both begin a word or
    both continue a word. Raises UserError if no ordinary pieces match.

    old_size, new_size: the numbers of embeddings of the two models. Pieces whose id has no
    embedding are left out; such an id may belong to a sentinel.
    """
    ids = _ordinary_pieces(old)
    pairs = {i: ids[piece] for piece, i in _ordinary_pieces(new).items() if piece in ids}
    if not pairs:
        raise errors.UserError(
            f"config.init_vocabulary: the data's tokenizer ({new.kind}) shares no piece with that "
            f"of config.init_from ({old.kind}), so no embedding can be copied"
        )
    roles = {role: i for role, i in vars(old.specials).items() if i >= 0}
    pairs |= {i: roles[role] for role, i in vars(new.specials).items() if role in roles}
    sentinels = new.reserved_sentinels.tolist(), old.reserved_sentinels.tolist()
    pairs |= dict(zip(*sentinels, strict=False))
    valid_pairs = [(j, i) for i, j in pairs.items() if 0 <= i < new_size and 0 <= j < old_size]
    old_rows, new_rows = np.array(valid_pairs).T
    return old_rows, new_rows


def _ordinary_pieces(tokenizer: tokenizer_lib.Tokenizer) -> dict[tuple[str, bool], int]:
    """Returns {(text, whether it begins a word): id} for all pieces that are not special."""
    space = library_model.SPACE.get(tokenizer.kind)
    ids = {}
    for i in np.flatnonzero(~tokenizer.special_mask()).tolist():
        (piece,) = tokenizer.pieces([i])
        begins_word = not piece.startswith("##") if space is None else piece.startswith(space)
        ids[piece.removeprefix(space or "##"), begins_word] = i
    return ids
