"""Loads a model from a workdir, an artifact, a Hugging Face folder or a T5X checkpoint.

`--model=` and `bertjax.load` accept the same paths:

    loading.load("run/")                    # the newest checkpoint of a run
    loading.load("run/checkpoints/1000")    # the checkpoint of step 1000; also "run/1000"
    loading.load("run/ema")                 # its moving average; also "run/checkpoints/1000/ema"
    loading.load("artifact/")               # also the output folder of a finished fine-tuning run
    loading.load("bert-base-uncased/")      # config.json, model.safetensors, tokenizer files
    loading.load("checkpoint_1000000/")     # a T5X checkpoint, with a copy of its spiece.model
    loading.load("org/name@revision")       # a model of the Hub, unless there is such a folder
"""

import contextlib
import dataclasses
import functools
import json
import os
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import jax
import ml_collections
from etils import epath

from bertjax import checkpoint, errors, files, hub, plugins, schema, workdir
from bertjax import config as config_lib
from bertjax import phases as phases_lib
from bertjax.artifact import artifact, growth, huggingface, sentence_folder, t5x, weight_files
from bertjax.data.prepared import store
from bertjax.data.tokenizers import tokenizer as tokenizer_lib
from bertjax.objectives.common import hooks


@dataclasses.dataclass(frozen=True)
class Place:
    """The location and format of a model, as returned by `find`.

    kind: the format, "workdir" or a key of READERS. folder: the folder with the model's files.
    step: the requested step of a workdir; None for the newest step and for formats without steps.
    is_average: whether the moving average of a workdir's parameters is requested.
    """

    kind: str
    folder: str
    step: int | None = None
    is_average: bool = False


EMA = "ema"  # last part of a path that requests the moving average
FINETUNING = "bertjax-finetuning"  # "format" in the config.json of fine-tuning's output folder
READERS = {"artifact": artifact.read, "huggingface": huggingface.read, "t5x": t5x.read}


def find(path: str | os.PathLike) -> Place:
    """Returns the `Place` of the model at `path`, after downloading it if it is on the Hub.

    Raises UserError if there is no model.
    """
    folder = hub.local(path)
    if folder.name == EMA and not folder.exists():
        place = find(folder.parent)
        if place.kind != "workdir":
            raise errors.UserError(f"{path}: not found; only a workdir can have a moving average")
        return dataclasses.replace(place, is_average=True)
    if not folder.exists() and not folder.name.isdecimal():
        raise errors.UserError(
            f"{path}: not found; give {_CHOICES}, or ORG/NAME of a model on the Hugging Face Hub"
        )
    if (folder / "artifact" / "config.json").exists():  # the output folder of fine-tuning
        folder = folder / "artifact"
    kind = _kind(folder)
    if kind:
        return Place(kind, os.fspath(folder))
    if folder.name.isdecimal():
        parent = folder.parent
        run = parent.parent if parent.name == workdir.CHECKPOINTS else parent
        if _kind(run) == "workdir":
            return Place("workdir", os.fspath(run), int(folder.name))
    raise errors.UserError(f"{path}: contains no model; give {_CHOICES}")


def load(path: str | os.PathLike, *, with_params: bool = True) -> artifact.Artifact:
    """Returns the model at `path`, on the host. If not `with_params`, `params` has only shapes.

    NOTE: if not `with_params`, does not start jax's backend, so that a process can still join a
    job, and downloads only the headers of remote safetensors files.
    Raises UserError naming the file if a file is missing, damaged or inconsistent with the others.
    """
    place = find(path)
    if place.kind == "workdir":
        return _from_workdir(place, with_params)
    read = functools.partial(READERS[place.kind], with_params=with_params)
    with tempfile.TemporaryDirectory() as copy:
        copying = {} if with_params else {"copy_file": weight_files.copy_header}
        model = read(files.localise(place.folder, copy, **copying))
    source = hub.pinned(path)
    return dataclasses.replace(model, source=source) if hub.is_pinned(source) else model


def check_data(
    model: artifact.Artifact, dataset: store.Dataset, label: str, alternative: str = ""
) -> None:
    """Raises UserError if the data was prepared with a tokenizer other than the model's.

    label: the model's name in the message. alternative: advice to append to the message.
    """
    if dataset.tokenizer_fingerprint != model.tokenizer.fingerprint:
        raise errors.UserError(
            f"{dataset.path}: contains data that was prepared with a tokenizer other than that of "
            f"{label}: prepare it with the model's own tokenizer{alternative}"
        )


# Advice for a model that is larger than config.init_from, or has other positions.
EXTENDED = "; or, to start a larger or longer model from it, add --config.init_model=extended"

# Fields that may differ, because they do not change what the copied arrays compute.
_FREE_FIELDS = (
    "vocab_size", "max_length", "heads", "num_labels", "init_std", "pad_id", "decoder_start_id",
)  # fmt: skip


def check_fields(
    model: artifact.Artifact, fields: Mapping[str, Any], may_differ: Collection[str] = ()
) -> None:
    """Raises UserError if `fields` (config.model) differ from the fields of `model` (init_from).

    Fields that do not affect the computation may differ (`_FREE_FIELDS` and dropout rates), and
    those in `may_differ`.
    """
    free_names = {*_FREE_FIELDS, *may_differ}
    for name, value in model.fields.items():
        is_free = name in free_names or name.endswith("dropout_rate")
        if not is_free and name in fields and fields[name] != value:
            extends = not may_differ and growth.extends(name, value, fields[name])
            raise errors.UserError(
                f"config.init_from was trained with {name} = {value!r}, but config.model.{name} = "
                f"{fields[name]!r}: set it to {value!r}{EXTENDED * extends}"
            )


def check_family(model: artifact.Artifact, family: str) -> None:
    """Raises UserError if `model` (init_from) is not of the family (config.family).

    Families with the same Hugging Face model_type, such as BERT and SpanBERT, are compatible.
    """
    if model.family != family and not _share_model_type(model.family, family):
        raise errors.UserError(
            f"config.init_from is of the family {model.family}, but config.family is {family}"
        )


def overlay_params(model: artifact.Artifact, family: str, params: Any) -> Any:
    """Returns `params` with each array replaced by the array of `model` at the same path.

    Arrays that `model` lacks, such as a head that is trained from scratch, are not replaced. Arrays
    that only `model` has are ignored. Raises UserError if families or shapes differ; families with
    the same Hugging Face model_type, such as BERT and SpanBERT, are compatible.
    """
    check_family(model, family)
    flat = artifact.flatten(model.params)
    fresh = artifact.flatten(params)
    for name, leaf in fresh.items():
        if name in flat and flat[name].shape != leaf.shape:
            raise errors.UserError(
                f"config.init_from has {name} of shape {flat[name].shape}, but config.model needs "
                f"{leaf.shape}"
            )
    return artifact.unflatten({name: flat.get(name, leaf) for name, leaf in fresh.items()})


def _share_model_type(family: str, other_family: str) -> bool:
    """Returns whether two families share a Hugging Face model_type, as BERT and SpanBERT do."""
    model_types = [
        getattr(plugins.family(name), "HF_CONFIG", {"model_type": name})["model_type"]
        for name in (family, other_family)
    ]
    return model_types[0] == model_types[1]


def frozen_artifacts(
    config: ml_collections.ConfigDict, dataset: store.Dataset
) -> dict[str, artifact.Artifact]:
    """Returns {name: model} for the frozen models in the objective's FROZEN, such as "teacher"."""
    length = max(phase.length for phase in phases_lib.of(config))
    objective = plugins.objective_config(config)
    objective_hooks = hooks.of(plugins.objective(config.objective.name))
    models = {}
    for name in objective_hooks.FROZEN:
        sizes = config.model.vocab_size, length
        check = functools.partial(objective_hooks.check_frozen, objective, name, *sizes)
        models[name] = load_frozen(config.objective[name], dataset, name, check)
    return models


def load_frozen(
    path: str | os.PathLike,
    dataset: store.Dataset,
    name: str,
    check: Callable[[Mapping[str, Any]], None],
) -> artifact.Artifact:
    """Returns the frozen model at `path`, the value of `config.objective.NAME`.

    check: called with the model's fields; must raise UserError if they do not fit the run. Raises
    UserError if the path is not set, or if `dataset` was prepared with another tokenizer.
    """
    key = f"config.objective.{name}"
    if not path:
        raise errors.UserError(f"{key} is not set: give {_CHOICES}")
    model = load(path)
    check(model.fields)
    check_data(model, dataset, f"{key} = {path}")
    return model


_CHOICES = "a workdir, a checkpoint, an artifact, a Hugging Face folder or a T5X checkpoint"


def _kind(folder: epath.Path) -> str | None:
    file = folder / "config.json"
    if not file.exists():
        if (folder / sentence_folder.MODULES).exists():  # config.json is in the folder of a module
            return "huggingface"
        return "t5x" if (folder / t5x.FILE).exists() else None
    content = schema.read_object(file, "restore it from a copy")
    if content.get("format") == FINETUNING:
        raise errors.UserError(
            f"{folder}: contains an unfinished fine-tuning run; run the same command again"
        )
    kinds = {workdir.FORM.format: "workdir", artifact.FORM.format: "artifact"}
    if content.get("format") in kinds:
        return kinds[content["format"]]
    if "model_type" not in content and (folder / huggingface.WEIGHTS).exists():
        raise errors.UserError(
            f"{file}: has no model_type; add the one that matches the weights, such as "
            "\"model_type\": \"bert\""
        )
    return "huggingface" if "model_type" in content else None


@contextlib.contextmanager
def open_checkpoints(folder: str | os.PathLike) -> Iterator[checkpoint.Reader]:
    """Opens the checkpoints of a workdir for reading; closes them at the end of the block."""
    reader = checkpoint.Reader(epath.Path(folder) / workdir.CHECKPOINTS)
    try:
        yield reader
    finally:
        reader.close()


def _config_at(config: dict[str, Any], step: int) -> dict[str, Any]:
    """Returns a run's config with the values of the phase in which `step` was trained."""
    if not config.get("phases"):  # absent in configs of earlier versions
        return config
    phase = phases_lib.at_step(phases_lib.of(config_lib.from_dict(config)), step)
    return json.loads(json.dumps(phase.config.to_dict()))


def _from_workdir(place: Place, with_params: bool) -> artifact.Artifact:
    run = epath.Path(place.folder)
    identity = workdir.read(run)
    if place.is_average and not identity.config.get("ema_decay"):
        raise errors.UserError(
            f"{run}: has no moving average of the parameters, because config.ema_decay was 0; "
            f"leave out /{EMA}"
        )
    saved_steps = workdir.saved_steps(run)  # listed once: a running job adds steps
    step = max(saved_steps, default=None) if place.step is None else place.step
    if place.step not in (None, *saved_steps):
        available = ", ".join(map(str, saved_steps)) or "none"
        raise errors.UserError(
            f"{run}: contains no checkpoint of step {step}; the steps are: {available}"
        )
    config = _config_at(identity.config, step or 0)
    fields = artifact.model_fields(config["model"], run / workdir.CONFIG)
    tokenizer = tokenizer_lib.load(os.fspath(run / workdir.TOKENIZER))
    artifact.check_fingerprint(tokenizer, identity.tokenizer_fingerprint, run / workdir.TOKENIZER)
    artifact.check_tokenizer(tokenizer, fields["vocab_size"], run / workdir.TOKENIZER)
    params = artifact.abstract_params(config["family"], fields, run / workdir.CONFIG)
    if with_params:
        sharding = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
        target = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), params
        )
        with open_checkpoints(run) as checkpoints:
            name = EMA if place.is_average else "params"
            params = jax.device_get(checkpoints.restore_params(target, step, name))
    return artifact.Artifact(
        family=config["family"],
        fields=fields,
        params=params,
        tokenizer=tokenizer,
        step=step,
        objective=config["objective"],
        config=config,
        origin="workdir",
    )
