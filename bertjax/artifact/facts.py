"""The facts about a model that its model card and the report of its run both show.

    facts.of_model(model)      # {"family": "bert", "parameters": "4,416,698", ...}
    facts.of_training(model)   # {"objective": "mlm (mask_rate 0.3)", "training data": ...}
"""

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

from bertjax import config as config_lib
from bertjax import errors, mixing
from bertjax import phases as phases_lib
from bertjax.artifact import artifact, text_encoding
from bertjax.data.prepared import manifest as manifest_lib
from bertjax.objectives.common import hooks


def of_model(model: artifact.Artifact) -> dict[str, str]:
    """Returns {name: fact} about the architecture, the size and the tokenizer."""
    fields = model.fields
    encoding = text_encoding.of(model)
    facts = {
        "family": model.family,
        "parameters": f"{artifact.num_params(model.params, fields['vocab_size']):,}",
        "layers": f"{fields['num_layers']} of width {fields['hidden_size']}",
        "heads": ", ".join(fields["heads"]),
        "longest input": f"{fields['max_length']:,} tokens",
        "tokenizer": f"{model.tokenizer.kind}, {model.tokenizer.size:,} pieces",
    }
    if model.task:
        facts["task"] = model.task["name"]
        facts["labels"] = errors.several(model.task["labels"])
    if encoding is not None:
        facts["text vectors"] = encoding.summary()
    return {name: fact for name, fact in facts.items() if fact}


def of_training(model: artifact.Artifact) -> dict[str, str]:
    """Returns {name: fact} about the pretraining: objective, steps, batches, optimizer and data.

    Returns {} if bertjax did not pretrain the model. Of each folder with prepared data only the
    name is shown, because its path has a meaning only on the machine of the run.
    """
    if not model.config or not model.objective:
        return {}
    facts = {"objective": model.objective["name"]}
    try:
        facts["objective"] += _options(model)
        config = config_lib.from_dict(model.config)
        phases = phases_lib.of(config)
    except (errors.UserError, KeyError):  # of another version, or only a part of a config
        return facts
    facts["training steps"] = ", then ".join(
        f"{phase.num_steps:,} of {phase.batch_size:,} sequences of {phase.length:,} tokens"
        for phase in phases
    )
    facts["optimizer"] = (
        f"{config.optimizer.name}, rate {config.optimizer.learning_rate:g}, "
        f"{config.optimizer.schedule} schedule"
    )
    folders = folders_of(model.config)
    facts["training data"] = ", ".join(_data(name, path) for name, path in folders.items())
    if config.init_from:
        facts["started from"] = config.init_from
    return {name: fact for name, fact in facts.items() if fact}


def _options(model: artifact.Artifact) -> str:
    """Returns the options of the objective that differ from its defaults, as " (mask_rate 0.3)"."""
    module, config = artifact.objective(model)
    defaults = dataclasses.asdict(module.Config())
    changed = [f"{key} {value}" for key, value in dataclasses.asdict(config).items()
               if value != defaults[key] and key not in hooks.of(module).FROZEN]  # fmt: skip
    return f" ({', '.join(changed)})" * bool(changed)


def folders_of(config: Mapping[str, Any]) -> dict[str, str]:
    """Returns {source: folder with prepared data} of a run's config; {"": folder} without sources.

    Returns {} if the config names no folder.
    """
    data = config["data"] if "data" in config else {}
    sources = data[_SOURCES] if _SOURCES in data else {}  # absent in earlier versions
    if sources:
        return {name: source["path"] for name, source in sources.items()}
    return {"": data["path"]} if data.get("path") else {}


_SOURCES = mixing.SOURCES.split(".")[-1]


def read_manifest(path: str) -> dict[str, Any] | None:
    """Returns the manifest of a folder with prepared data; None if it cannot be read any more."""
    try:
        return manifest_lib.read(path)
    except (errors.UserError, OSError):
        return None


def _data(name: str, path: str) -> str:
    label = name or os.path.basename(os.path.normpath(path))
    manifest = read_manifest(path)
    if manifest is None:
        return label
    counts = manifest["splits"]["train"]
    return f"{label} ({counts['tokens']:,} tokens in {counts['documents']:,} documents)"
