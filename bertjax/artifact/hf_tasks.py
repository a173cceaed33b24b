"""The task classes of transformers: their heads, tensors and config.json.

A class is identified by the end of its name, such as "ForSequenceClassification". These endings are
the keys of a family's `HF_HEADS`, whose values map our modules to theirs. In config.json the labels
are `id2label`. The complete task of a fine-tuned model and the objective of pretraining are stored
under the key "bertjax", which transformers preserves but does not read.
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

# Ending of a class -> (kind of task, the general task of that kind).
_TASKS = {
    "ForSequenceClassification": ("classification", "classification"),
    "ForTokenClassification": ("tokens", "tokens"),
    "ForQuestionAnswering": ("extractive_qa", "qa"),
    "ForMultipleChoice": ("multiple_choice", "multiple_choice"),
}
_LABELLED = ("ForSequenceClassification", "ForTokenClassification")
_LEAVES = {
    "kernel": ("weight", "transpose"),
    "bias": ("bias", "same"),
    "scale": ("weight", "same"),
}


def ending_of(model: artifact.Artifact) -> str:
    """Returns the end of the class name for the model's heads; "" if it has no head for a task.

    Raises UserError if transformers has no class with these heads, or cannot hold the model's
    adapters, trained prompt or decoder that reads its source in both directions.
    """
    flat = artifact.flatten(model.params)
    if any("/adapter/" in path for path in flat):
        raise errors.UserError(
            f"this {model.family} has adapters, which a Hugging Face folder cannot contain: export "
            "it with --format=artifact"
        )
    if model.task is not None and model.task.get("prompt_ids"):
        raise errors.UserError(
            "this model reads a trained prompt in front of every text, which transformers does not "
            "support: export it with --format=artifact"
        )
    if _reader(model) == "prefix":
        raise errors.UserError(
            f"this {model.family} reads a source in both directions (kind.reader = 'prefix'), but "
            "transformers reads it from left to right: export it with --format=artifact"
        )
    found = [head for head in model.fields["heads"] if head in heads_lib.DOWNSTREAM]
    if not found:
        return ""
    module = plugins.family(model.family)
    choices = model.task is not None and model.task["kind"] == "multiple_choice"
    own = {path.rpartition("/")[0] for path in flat if path.split("/")[0] in found}
    for ending, names in module.HF_HEADS.items():
        fits = set(names) == own and choices == (ending == "ForMultipleChoice")
        if fits and set(heads(module, ending)) == set(model.fields["heads"]):
            return ending
    raise errors.UserError(
        f"transformers has no class of {model.family} with the heads "
        f"{', '.join(model.fields['heads'])}{' for multiple choice' if choices else ''}: export it "
        "with --format=artifact"
    )


def architecture(module: ModuleType, ending: str) -> str:
    """Returns the full name of the class, such as "BertForSequenceClassification"."""
    bare = module.HF_CONFIG["architectures"][()]
    return bare.removesuffix("Model") + ending


def ending_in(module: ModuleType, content: Mapping[str, Any]) -> str:
    """Returns the end of the class name in a config.json; "" if it is not a class for a task."""
    name = (content.get("architectures") or [""])[0]
    return next((ending for ending in module.HF_HEADS if name.endswith(ending)), "")


def heads(module: ModuleType, ending: str) -> tuple[str, ...]:
    """Returns our heads that the class has, in the order of the family's HEADS."""
    (head,) = {ours.split("/")[0] for ours in module.HF_HEADS[ending]}
    pooled = module.Model.layouts[head].pooled or ending == "ForMultipleChoice"
    return tuple(h for h in module.HEADS if h == head or (pooled and h == "pooler"))


def lines(module: ModuleType, ending: str) -> tuple[tuple[str, str, str], ...]:
    """Returns the lines (as in HF_NAMES) of the class's head; () if `ending` is ""."""
    if not ending:
        return ()
    return tuple(
        (f"{ours}/{leaf}", f"{theirs}.{name}", way)
        for ours, theirs in module.HF_HEADS[ending].items()
        for leaf, (name, way) in _LEAVES.items()
    )


def to_config(model: artifact.Artifact, ending: str) -> dict[str, Any]:
    """Returns the keys of config.json that describe the task and the objective."""
    content: dict[str, Any] = {}
    if ending in _LABELLED:
        count = model.fields["num_labels"]
        names = [] if model.task is None else model.task["labels"]
        names = names or [f"LABEL_{i}" for i in range(count)]
        content["id2label"] = {str(i): name for i, name in enumerate(names)}
        content["label2id"] = {name: i for i, name in enumerate(names)}
    if ending == "ForSequenceClassification":
        problem = "regression" if count == 1 else "single_label_classification"
        content["problem_type"] = problem
        # transformers classifies a decoder's text at the last token before the padding
        if plugins.family(model.family).KIND == "decoder":
            specials = model.tokenizer.specials
            end = ends_lib.end_of_text(specials)
            content["pad_token_id"] = specials.pad if specials.pad >= 0 else end
    if model.task is not None:
        if model.task["config"].get("prefix"):
            content["prefix"] = model.task["config"]["prefix"]
    own = {"task": model.task, "objective": model.objective}
    own = {name: value for name, value in own.items() if value is not None}
    return content | ({KEY: own} if own else {})


def generation_config(model: artifact.Artifact, content: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the content of generation_config.json; {} if no such file is needed.

    content: of config.json. Its ids are repeated here, because transformers reads them from
    generation_config.json if that file exists.
    """
    if "lm" not in model.fields["heads"]:
        return {}
    how, top = {}, artifact.top_of_text(model)
    if model.task is not None and model.task["kind"] == "text_to_text":
        config, top = model.task["config"], model.tokenizer.size  # suppresses sentinels too
        how = {
            "max_new_tokens": config["max_target_length"],
            "num_beams": config["num_beams"],
            "length_penalty": config["length_penalty"],
        }
    if top < model.fields["vocab_size"]:  # padding of the vocabulary is never generated
        how["suppress_tokens"] = list(range(top, model.fields["vocab_size"]))
    if not how:
        return {}
    ids = {key: content[key] for key in content if key.endswith("_token_id")}
    return {key: value for key, value in ids.items() if value is not None} | how


def max_length(model: artifact.Artifact) -> int:
    """Returns the length, in tokens, to which the tokenizer of transformers truncates a text.

    This is the task's max_length, or the model's if it has no task. A token task that splits long
    sentences has the model's too, because transformers does not split them. A causal decoder's
    length excludes its output, which shares the row with the source.
    """
    task, most = model.task, model.fields["max_length"]
    if task is None:
        return most
    windows = task["kind"] == "tokens" and task["config"].get("long_sentences") != "truncate"
    written = task["config"]["max_target_length"] if _reader(model) == "causal" else 0
    return most if windows else min(task["max_length"], most) - written


def ends(model: artifact.Artifact) -> ends_lib.Ends | None:
    """Returns the special tokens that the tokenizer of transformers adds around a text.

    None stands for those that are usual for the model's kind. A decoder pretrained by bertjax has
    the start of text first. Tasks from elsewhere, which lack `num_texts`, get None.
    """
    task = model.task
    if task is None and artifact.starts_texts(model):
        return ends_lib.Ends(head=(ends_lib.start_of_text(model.tokenizer.specials),))
    if task is None or "num_texts" not in task or _reader(model) == "encoder":
        return None
    if task["kind"] == "text_to_text":
        return ends_lib.of_source(model.tokenizer, task["config"]["separator"])
    return ends_lib.of_rows(model.tokenizer)


def differs(model: artifact.Artifact) -> str:
    """Returns a warning if transformers reads prompts differently than this model; else ""."""
    with contextlib.suppress(errors.UserError):  # an objective of a package that is not here
        if artifact.reads_prefixes(model):
            return (
                "this model was trained to read prompts in both directions (objective "
                f"{model.objective['name']}), but transformers reads them from left to right, so "
                "its "
                "continuations will differ"
            )
    return ""


def _reader(model: artifact.Artifact) -> str:
    """Returns `reader` of a text-to-text task's config; "" for other tasks or without a task."""
    if model.task is None or model.task["kind"] != "text_to_text":
        return ""
    return model.task["config"]["reader"]


def num_labels(content: Mapping[str, Any], ending: str, where: Any) -> int:
    """Returns the model's num_labels: 1 for multiple choice, 0 for question answering.

    Raises UserError naming `where` if the labels in config.json are invalid.
    """
    if ending in _LABELLED:
        return len(_labels(content, where))
    return 1 if ending == "ForMultipleChoice" else 0


def objective(content: Mapping[str, Any], where: Any) -> dict[str, Any] | None:
    """Returns the objective of pretraining that bertjax wrote to config.json; None if absent.

    Raises UserError naming `where` if it has no name.
    """
    own = content.get(KEY)
    found = own.get("objective") if isinstance(own, dict) else None
    if found is None:
        return None
    if not isinstance(found, dict) or not isinstance(found.get("name"), str):
        raise errors.UserError(
            f"{where}: {KEY}.objective = {found!r} must be an object with a name"
        )
    return found


def read(content: Mapping[str, Any], ending: str, max_length: int, where: Any) -> Any:
    """Returns the task of a folder, as in `Artifact.task`; None if there is none.

    The task that bertjax wrote is used only if class and labels still match it: later training
    elsewhere may have changed them and kept the key. Otherwise the task is derived from the class.
    Raises UserError naming `where` if the task is invalid or not supported.
    """
    own = content.get(KEY)
    own = own.get("task") if isinstance(own, dict) else None
    if own is not None:
        artifact.check_task(own, f"{where}: {KEY}.task")
    if not ending:
        return own
    kind, name = _TASKS[ending]
    labels, config = [], {}
    if ending in _LABELLED:
        labels = _labels(content, where)
    if own is not None and own["kind"] == kind:
        unnamed = not own["labels"] and len(labels) < 2  # regression
        if own["labels"] == labels or unnamed:
            return own
    if ending == "ForSequenceClassification":
        problem = content.get("problem_type") or "single_label_classification"
        if problem == "multi_label_classification":
            raise errors.UserError(f"{where}: problem_type {problem!r} is not supported")
        if problem == "regression" and len(labels) > 1:
            raise errors.UserError(
                f"{where}: {problem} with {len(labels)} outputs is not supported, only with 1"
            )
        if problem == "regression" or len(labels) == 1:
            name, labels, config = "regression", [], {"regression": True}
    if ending == "ForTokenClassification":
        config = {"encoding": "text"}  # as transformers' pipelines read it
    return {"name": name, "kind": kind, "config": config, "labels": labels,
            "max_length": max_length}  # fmt: skip


def _labels(content: Mapping[str, Any], where: Any) -> list[str]:
    """Returns the labels' names; without id2label LABEL_0 ..., by default 2 as in transformers."""
    names = content.get("id2label")
    if names is None:
        count = schema.typed(
            content.get("num_labels", 2), _NumLabels, f"{where}: num_labels", weight_files.AGAIN
        )
        names = {str(i): f"LABEL_{i}" for i in range(count)}
    schema.typed(names, dict[str, Any], f"{where}: id2label", weight_files.AGAIN)
    numbers = [str(i) for i in range(len(names))]
    if not names or set(map(str, names)) != set(numbers):
        raise errors.UserError(f"{where}: id2label must name the labels 0, 1, 2 ...")
    return [str({str(i): name for i, name in names.items()}[number]) for number in numbers]
