"""Checks of a config against the devices, the task type and the model, before training."""

from typing import Any

import ml_collections
from jax.sharding import Mesh

from bertjax import errors, sharding
from bertjax.finetuning.task_types import base
from bertjax.models.common import kernels


def mesh(config: ml_collections.ConfigDict, devices: Mesh) -> None:
    """Raises UserError if the batch or the attention of the config does not fit the mesh."""
    name, platform = config.attention, devices.devices.flat[0].platform
    is_supported = name in kernels.PLAIN or platform == "gpu"
    errors.check(is_supported, "attention", name, f"'auto' or 'xla' on a {platform}")
    kernels.check_mesh(name, devices)
    shards = sharding.batch_shards(devices)
    key = "micro_batch_size" if config.micro_batch_size else "batch_size"
    if config[key] % shards:
        raise errors.UserError(
            f"config.{key} = {config[key]}: must be a multiple of {shards}, the number "
            "of devices on the mesh axes 'slice', 'data' and 'fsdp' together"
        )


def micro_batches(config: ml_collections.ConfigDict, task_type: base.TaskType) -> None:
    """Raises UserError if the loss of the task type cannot be summed over micro-batches."""
    # A task type may have its own way to compute a batch in parts: gradient caching.
    cached = hasattr(task_type.config, "chunk_size")
    errors.check(
        config.micro_batch_size in (0, config.batch_size) or not task_type.across_rows,
        "micro_batch_size",
        config.micro_batch_size,
        f"0, because the loss of {config.task} compares each row with all rows of its batch"
        + f"; use config.kind.chunk_size = {config.micro_batch_size} (gradient caching)" * cached,
    )


def attention(config: ml_collections.ConfigDict, model: Any) -> None:
    """Raises UserError if the attention of the config does not support the model."""
    if config.attention in kernels.PLAIN:
        return
    name, rate = config.attention, config.dropout_rate
    errors.check(model.attention_dropout_rate == 0, "dropout_rate", rate,
                 f"0 with config.attention = {name!r}, which has no dropout")  # fmt: skip
    kernels.check(name, model, model.dtype, {}, ())
