"""Prints the header of a pretraining run: model, devices, data, steps and workdir."""

import os

import jax
import ml_collections

from bertjax import errors, experiment, progress, sharding, training_data
from bertjax import phases as phases_lib
from bertjax.artifact import artifact
from bertjax.data.prepared import store
from bertjax.models.common import kernels


def show(
    run: experiment.Experiment,
    mesh: jax.sharding.Mesh,
    dataset: store.Dataset,
    heldout: store.Dataset,
    data: training_data.TrainingData,
    workdir: str | os.PathLike,
    source: artifact.Artifact | None = None,
) -> None:
    """Prints model, devices, data, steps, epochs, workdir, and how often the run writes to it.

    data: the training batches from `dataset`. source: the model that the run starts from, if any.
    """
    config, abstract_state = run.config, run.abstract_state(mesh)
    count = artifact.num_params(abstract_state.params, config.model.vocab_size)
    steps, epochs = [], 0.0
    for phase in phases_lib.of(config):
        size = f"{phase.batch_size:,} sequences of {phase.length:,} tokens"
        steps.append(f"{phase.num_steps:,} of {size}")
        samples = data.stream(phase).samples_per_epoch
        epochs += phase.num_steps * phase.batch_size / samples
    platform = kernels.kernel_platform(mesh.devices.flat[0])
    attentions = [
        kernels.in_training(config.attention, run.model.config, phase.length, mesh.shape, platform)
        for phase in phases_lib.of(config)
    ]
    sources = dataset.manifest["sources"] if "sources" in dataset.manifest else []
    start = {} if source is None else {"starts from": _start(config, source)}
    progress.table(
        "pretrain",
        {
            "model": f"{config.family}, {config.model.num_layers} layers of width "
            f"{config.model.hidden_size}, {count:,} parameters; objective {config.objective.name}",
            **start,
            "devices": f"{sharding.described(mesh, run.model.config.dtype)}, attention "
            f"{', then '.join(dict.fromkeys(attentions))}",
            "data": f"{dataset.path}: {dataset.num_tokens:,} tokens in "
            f"{errors.count(dataset.num_documents, 'document')} of "
            f"{errors.count(len(sources), 'source')}; held out {heldout.num_tokens:,} tokens",
            "steps": f"{', then '.join(steps)}: {epochs:.3g} epochs",
            "writes to": f"{os.fspath(workdir)}: a line every {config.log_every:,} steps, an "
            f"evaluation every {config.eval.every:,}, a checkpoint every "
            f"{config.checkpoint.every:,}",
        },
    )


def _start(config: ml_collections.ConfigDict, source: artifact.Artifact) -> str:
    """Returns the model that the run starts from, and the heads that are new."""
    new = [head for head in config.model.heads if head not in source.fields["heads"]]
    if new:
        noun = "head" if len(new) == 1 else "heads"
        return f"{config.init_from}, with new parameters for the {noun} {', '.join(new)}"
    return config.init_from
