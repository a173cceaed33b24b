"""Maps our heads and tasks to the task classes of transformers and their config.json.

A class is identified by the end of its name, such as "ForSequenceClassification". These endings are
the keys of a family's `HF_HEADS`, whose values map our modules to theirs. In config.json the labels
are `id2label`. The complete task of a fine-tuned model and the objective of pretraining are stored
under the key "bertjax", which transformers preserves but does not read. Everything that depends on
the type of task is in the attributes `hf_*` of its class in `finetuning/task_types`.
"""

import contextlib
from collections.abc import Mapping
from types import ModuleType
from typing import Annotated, Any

from bertjax import errors, plugins, schema
from bertjax.artifact import artifact, weight_files
from bertjax.data.tokenizers import special_tokens as ends_lib
from bertjax.models.common import heads as heads_lib

KEY = "bertjax"
_NumLabels = Annotated[int, schema.Between(1, 2**20)]

_LEAVES = {
    "kernel": ("weight", "transpose"),
    "bias": ("bias", "same"),
    "scale": ("weight", "same"),
}


def ending_of(model: artifact.Artifact) -> str:
    """Returns the end of the class name for the model's heads; "" if it has no head for a task.

    Raises UserError if transformers has no class with these heads, or if it does not support
    another part of the model: adapters, a trained prompt, or a decoder that reads its source in
    both directions.
    """
    flat = artifact.flatten(model.params)
    if any("/adapter/" in path for path in flat):
        raise errors.UserError(
            f"this {model.family} model has adapters, which a Hugging Face folder cannot contain: "
            "export it with --format=artifact"
        )
    if model.task is not None and model.task.get("prompt_ids"):
        raise errors.UserError(
            "this model reads a trained prompt in front of every text, which transformers does not "
            "support: export it with --format=artifact"
        )
    refusal = "" if model.task is None else _task_type(model.task).hf_refusal(model)
    if refusal:
        raise errors.UserError(f"{refusal}: export it with --format=artifact")
    task_heads = [head for head in model.fields["heads"] if head in heads_lib.DOWNSTREAM]
    if not task_heads:
        return ""
    module = plugins.family(model.family)
    head_modules = {path.rpartition("/")[0] for path in flat if path.split("/")[0] in task_heads}
    # Several classes may have the same head; the first one in HF_HEADS is used without a task.
    endings = [ending for ending, names in module.HF_HEADS.items() if set(names) == head_modules]
    task_ending = "" if model.task is None else _task_type(model.task).hf_class
    ending = task_ending or (endings[0] if endings else "")
    if ending in endings and set(heads(module, ending)) == set(model.fields["heads"]):
        return ending
    other_tasks = bool(endings) and ending not in endings
    purpose = f" for {model.task['kind'].replace('_', ' ')}" if other_tasks and model.task else ""
    raise errors.UserError(
        f"transformers has no {model.family} class with the heads "
        f"{', '.join(model.fields['heads'])}{purpose}: export it with --format=artifact"
    )


def architecture(module: ModuleType, ending: str) -> str:
    """Returns the full name of the class, such as "BertForSequenceClassification"."""
    base_class = module.HF_CONFIG["architectures"][()]
    return base_class.removesuffix("Model") + ending


def ending_in(module: ModuleType, content: Mapping[str, Any]) -> str:
    """Returns the end of the class name in a config.json; "" if it is not a class for a task."""
    name = (content.get("architectures") or [""])[0]
    return next((ending for ending in module.HF_HEADS if name.endswith(ending)), "")


def heads(module: ModuleType, ending: str) -> tuple[str, ...]:
    """Returns our names of the class's heads, in the order of the family's HEADS."""
    (head,) = {ours.split("/")[0] for ours in module.HF_HEADS[ending]}
    pooled = module.Model.layouts[head].pooled or _type_of_class(ending, {}).hf_pooled
    return tuple(h for h in module.HEADS if h == head or (pooled and h == "pooler"))


def lines(module: ModuleType, ending: str) -> tuple[tuple[str, str, str], ...]:
    """Returns lines for the class's head, in the format of HF_NAMES; () if `ending` is ""."""
    if not ending:
        return ()
    return tuple(
        (f"{ours}/{leaf}", f"{theirs}.{name}", conversion)
        for ours, theirs in module.HF_HEADS[ending].items()
        for leaf, (name, conversion) in _LEAVES.items()
    )


def to_config(model: artifact.Artifact, ending: str) -> dict[str, Any]:
    """Returns the keys of config.json that describe the task and the objective."""
    content: dict[str, Any] = {}
    task_type = None if model.task is None else _task_type(model.task)
    if task_type is None or task_type.hf_class != ending:
        task_type = _type_of_class(ending, {})
    if task_type is not None:
        if task_type.hf_labelled:
            names = [] if model.task is None else model.task["labels"]
            names = names or [f"LABEL_{i}" for i in range(model.fields["num_labels"])]
            content["id2label"] = {str(i): name for i, name in enumerate(names)}
            content["label2id"] = {name: i for i, name in enumerate(names)}
        content |= task_type.hf_config(model)
    bertjax_keys = {"task": model.task, "objective": model.objective}
    bertjax_keys = {name: value for name, value in bertjax_keys.items() if value is not None}
    return content | ({KEY: bertjax_keys} if bertjax_keys else {})


def generation_config(model: artifact.Artifact, content: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the content of generation_config.json; {} if no such file is needed.

    content: the content of config.json. Its ids of special tokens are copied, because transformers
    reads them from generation_config.json if that file exists.
    """
    if "lm" not in model.fields["heads"]:
        return {}
    options = {} if model.task is None else _task_type(model.task).hf_generation(model.task)
    # A model fine-tuned to generate text must not generate sentinels that lie above the pieces.
    limit = model.tokenizer.size if options else artifact.top_of_text(model)
    if limit < model.fields["vocab_size"]:  # ids that only pad the vocabulary are never generated
        options["suppress_tokens"] = list(range(limit, model.fields["vocab_size"]))
    if not options:
        return {}
    ids = {key: content[key] for key in content if key.endswith("_token_id")}
    return {key: value for key, value in ids.items() if value is not None} | options


def max_length(model: artifact.Artifact) -> int:
    """Returns the length, in tokens, to which the tokenizer of transformers truncates a text.

    This is the task's max_length, or the model's if it has no task.
    """
    task, longest = model.task, model.fields["max_length"]
    return longest if task is None else _task_type(task).hf_max_length(task, longest)


def ends(model: artifact.Artifact) -> ends_lib.Ends | None:
    """Returns the special tokens that the tokenizer of transformers adds around a text.

    None means the usual special tokens for the model's kind. For a decoder that bertjax pretrained,
    the start-of-text token comes first. The result is None for a task that bertjax did not write;
    such a task has no `num_texts`.
    """
    task = model.task
    if task is None and artifact.starts_texts(model):
        return ends_lib.Ends(head=(ends_lib.start_of_text(model.tokenizer.specials),))
    if task is None or "num_texts" not in task:
        return None
    return _task_type(task).hf_ends(task, model.tokenizer)


def prompt_warning(model: artifact.Artifact) -> str:
    """Returns a warning if transformers reads prompts differently than this model; else ""."""
    with contextlib.suppress(errors.UserError):  # the objective may not be installed
        if artifact.reads_prefixes(model):
            return (
                "this model was trained to read prompts in both directions (objective "
                f"{model.objective['name']}), but transformers reads them from left to right, so "
                "its continuations will differ"
            )
    return ""


def _task_type(task: Mapping[str, Any]) -> Any:
    """Returns the class of a task's type. Raises UserError for an unknown type."""
    return plugins.task_type(task["kind"])


def _type_of_class(ending: str, content: Mapping[str, Any], where: Any = "") -> Any:
    """Returns our type of task for a class of transformers; None if `ending` is "".

    Raises UserError naming `where` if no type reads this content of config.json.
    """
    if not ending:
        return None
    for task_type in plugins.task_types():
        if task_type.hf_class == ending and task_type.hf_reads(content):
            return task_type
    raise errors.UserError(
        f"{where}: problem_type {content.get('problem_type')!r} is not supported"
    )


def num_labels(content: Mapping[str, Any], ending: str, where: Any) -> int:
    """Returns the model's num_labels.

    Raises UserError naming `where` if the labels in config.json are invalid.
    """
    task_type = _type_of_class(ending, content, where)
    return len(_labels(content, where)) if task_type.hf_labelled else task_type.hf_num_labels


def objective(content: Mapping[str, Any], where: Any) -> dict[str, Any] | None:
    """Returns the objective of pretraining that bertjax wrote to config.json; None if absent.

    Raises UserError naming `where` if it has no name.
    """
    section = content.get(KEY)
    stored = section.get("objective") if isinstance(section, dict) else None
    if stored is None:
        return None
    if not isinstance(stored, dict) or not isinstance(stored.get("name"), str):
        raise errors.UserError(
            f"{where}: {KEY}.objective = {stored!r} must be an object with a name"
        )
    return stored


def read(content: Mapping[str, Any], ending: str, max_length: int, where: Any) -> Any:
    """Returns the task of a folder, as in `Artifact.task`; None if there is none.

    bertjax writes its task under its key of config.json. That task is used only if it still matches
    the class and the labels: training with another program may have changed these and left the key.
    Otherwise the task is derived from the class.
    Raises UserError naming `where` if the task is invalid or not supported.
    """
    stored = content.get(KEY)
    stored = stored.get("task") if isinstance(stored, dict) else None
    if stored is not None:
        artifact.check_task(stored, f"{where}: {KEY}.task")
    if not ending:
        return stored
    task_type = _type_of_class(ending, content, where)
    kind = task_type.__module__.rpartition(".")[2]
    labels = _labels(content, where) if task_type.hf_labelled else []
    if stored is not None and stored["kind"] == kind:
        is_regression = not stored["labels"] and len(labels) < 2
        if stored["labels"] == labels or is_regression:
            return stored
    name, labels, config = task_type.hf_derived(content, labels, where)
    return {"name": name, "kind": kind, "config": config, "labels": labels,
            "max_length": max_length}  # fmt: skip


def _labels(content: Mapping[str, Any], where: Any) -> list[str]:
    """Returns the names of the labels.

    If id2label is absent, these are LABEL_0 ... for num_labels labels (default: 2), as in
    transformers.
    """
    names = content.get("id2label")
    if names is None:
        count = schema.typed(
            content.get("num_labels", 2), _NumLabels, f"{where}: num_labels", weight_files.REMEDY
        )
        names = {str(i): f"LABEL_{i}" for i in range(count)}
    schema.typed(names, dict[str, Any], f"{where}: id2label", weight_files.REMEDY)
    indices = [str(i) for i in range(len(names))]
    if not names or set(map(str, names)) != set(indices):
        raise errors.UserError(f"{where}: id2label must name the labels 0, 1, 2 ...")
    return [str({str(i): name for i, name in names.items()}[index]) for index in indices]
