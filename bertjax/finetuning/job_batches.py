"""The batches of a fine-tuning job: of which rows, in how many parts, on which devices."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import jax
import numpy as np
from jax.sharding import Mesh

from bertjax import plugins, sharding
from bertjax.finetuning import batching, by_size, feature_cache, packed_batches
from bertjax.models.common import encoders

if TYPE_CHECKING:
    from bertjax.finetuning import job as job_lib


def of_split(job: "job_lib.Job", split: str, size: int | None = None) -> packed_batches.AnyBatches:
    """Returns the batches of a split; the lengths of those of train and dev are fitted to its rows.

    size: rows per batch; None: those of a step for train, those of a forward pass otherwise.
    """
    config, passes, parts = job.config, 0, 1
    if split == "train":
        passes = config.num_epochs
        parts = config.micro_batch_size and config.batch_size // config.micro_batch_size
    elif split == "dev":
        passes = len(by_size.evaluation_steps(config, job.train_batches.steps_per_epoch))
    size = size or (config.batch_size if split == "train" else job.forward_size)
    if job.task_type.across_rows:
        parts = job.task_type.chunks(size)
    batches = job.task_type.batches(job.encoded[split], size, passes, job.shared.tasks)
    if not _can_be_packed(job):
        return batches
    return packed_batches.cheaper(batches, sharding.batch_shards(job.mesh), parts)


def _can_be_packed(job: "job_lib.Job") -> bool:
    """Returns whether the model can pack the rows of a batch, see `packed_batches`.

    Tasks that share programs prefer common lengths. With cached features, only the head runs.
    """
    is_encoder = issubclass(plugins.family(job.family).Model, encoders.Model)
    is_changed = job.task_type.prompt_ids or job.strategy.body_stays
    return is_encoder and job.task_type.packs and not is_changed and job.shared.tasks == 1


def micro_batches(job: "job_lib.Job", batch: Mapping[str, jax.Array]) -> int:
    """Returns the number of micro-batches into which a step splits a batch."""
    if job.config.micro_batch_size:
        return job.config.batch_size // job.config.micro_batch_size
    if job.task_type.across_rows or feature_cache.is_kept(batch):
        return 1
    return batching.micro_batches(batch, sharding.batch_shards(job.mesh))


def place(mesh: Mesh, batch: Mapping[str, np.ndarray]) -> dict[str, jax.Array]:
    """Puts a batch on the devices, its rows, and its groups of packed rows, split over the mesh."""
    placed = {}
    for size in {len(x) for x in batch.values()}:
        rows = sharding.local_rows(mesh, size)
        local = {name: x[rows] for name, x in batch.items() if len(x) == size}
        placed |= sharding.global_batch(mesh, size, local)
    return placed
