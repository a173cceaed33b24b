"""Prints the header of a pretraining run: model, devices, data, steps and workdir."""

import os

import jax

from bertjax import experiment, progress, sharding
from bertjax import phases as phases_lib
from bertjax.artifact import artifact
from bertjax.data.prepared import store
from bertjax.data.tokenizers.vocabulary import Vocabulary


def show(
    run: experiment.Experiment,
    mesh: jax.sharding.Mesh,
    data: store.Dataset,
    heldout: store.Dataset,
    vocabulary: Vocabulary,
    workdir: str | os.PathLike,
) -> None:
    """Prints model, devices, data, steps, epochs, workdir, and how often the run writes to it."""
    config, abstract_state = run.config, run.abstract_state(mesh)
    count = artifact.num_params(abstract_state.params, config.model.vocab_size)
    steps, epochs = [], 0.0
    for phase in phases_lib.of(config):
        num_steps = phase.stop - phase.start
        steps.append(f"{num_steps:,} of {phase.batch_size:,} sequences of {phase.length:,} tokens")
        samples = run.stream(data, vocabulary, phase).samples_per_epoch
        epochs += num_steps * phase.batch_size / samples
    sources = data.manifest["sources"] if "sources" in data.manifest else []
    plural = "" if len(sources) == 1 else "s"
    progress.table(
        "pretrain",
        {
            "model": f"{config.family}, {config.model.num_layers} layers of width "
            f"{config.model.hidden_size}, {count:,} parameters; objective {config.objective.name}",
            "devices": f"{sharding.described(mesh, run.model.config.dtype)}, attention "
            f"{config.attention}",
            "data": f"{data.path}: {data.num_tokens:,} tokens in {data.num_documents:,} documents "
            f"of {len(sources):,} source{plural}; held out {heldout.num_tokens:,} tokens",
            "steps": f"{', then '.join(steps)}: {epochs:.3g} epochs",
            "writes to": f"{os.fspath(workdir)}: a line every {config.log_every:,} steps, an "
            f"evaluation every {config.eval.every:,}, a checkpoint every "
            f"{config.checkpoint.every:,}",
        },
    )
