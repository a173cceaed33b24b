"""The model that a fine-tuning starts with: a checkpoint's parameters under fresh heads."""

from typing import Any

import jax

from bertjax.artifact import artifact


def model(
    source: artifact.Artifact, heads: tuple[str, ...], fields: dict[str, Any], key: jax.Array
) -> tuple[str, dict[str, Any], Any]:
    """(family, fields, params): what the source has, and what it lacks drawn by the key.

    heads: of the task, in place of the source's; () keeps them. fields: of the model that differ
    from the source's (num_labels, adapter_size, dropout rates, vocab_size).
    """
    raise NotImplementedError
