"""The README.md of an exported folder: a model card, as the Hugging Face Hub shows it.

It begins with the metadata that the Hub reads (library, pipeline, base model, tags, scores). The
license is left out, because only the author of a model knows it. The scores are those of the
fine-tuning report. The other facts are those of `facts`, which the report of a run shows too.
"""

import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Any

from bertjax import hub, plugins
from bertjax.artifact import cross_encoder, facts, text_encoding

FILE = "README.md"
PEFT, ARTIFACT = "peft", "bertjax"  # libraries of the formats peft and artifact
# {end of the class name in transformers: the Hub's name of what the model does}
_PIPELINES = {
    "ForSequenceClassification": "text-classification",
    "ForTokenClassification": "token-classification",
    "ForQuestionAnswering": "question-answering",
    "ForMultipleChoice": "multiple-choice",
}
_LIBRARY, _SENTENCES = "transformers", "sentence-transformers"


def text(
    model: Any,
    encoding: text_encoding.Encoding | None,
    ending: str,
    config: Mapping[str, Any],
    scores: Mapping[str, Mapping[str, float]],
    library: str = "",
) -> str:
    """Returns the text of the model card.

    model: the artifact. encoding: how it turns a text into a vector, or None. ending: the end of
    the class name in transformers, or "". config: the content of config.json. scores: {split:
    {name: score}}; may be empty. library: PEFT or ARTIFACT; "": the usual one of the model.
    """
    usual_library, pipeline, tags = _metadata(model, encoding, ending, config)
    library = library or usual_library
    lines = ["---", f"library_name: {library}", f"pipeline_tag: {pipeline}"]
    source, _, revision = model.source.partition("@")
    is_on_hub = hub.is_pinned(model.source)
    if is_on_hub:
        lines.append(f"base_model: {source}")
    lines += ["tags:", *(f"- {tag}" for tag in ("bertjax", *tags))]
    if scores and model.task:
        lines.append(f"model-index: {json.dumps(_index(model, pipeline, scores))}")
    # The step is left out, because a folder that is read and written again has lost it.
    summary = dataclasses.replace(model, step=None).summary()
    lines += ["---", "", f"# {_title(model)}", "", f"{summary}.", ""]
    if is_on_hub:
        lines += [f"Made from {source}, revision {revision}.", ""]
    lines += ["Exported by bertjax. It can be used with:", "", "```python"]
    lines += [*_usage(model, library, encoding, ending), "```"]
    if scores:
        lines += ["", "## Scores", "", "| split | score | value |", "|---|---|---|"]
        lines += [
            f"| {split} | {name} | {value:.4g} |"
            for split, values in scores.items()
            for name, value in values.items()
        ]
    training = facts.of_training(model)
    if training:
        lines += ["", "## Training", ""]
        lines += [f"- {name}: {fact}" for name, fact in training.items()]
    lines += ["", "## Limits", "", *(f"- {line}" for line in _limits(model, training))]
    return "\n".join(lines) + "\n"


def _limits(model: Any, training: Mapping[str, str]) -> list[str]:
    """Returns what the model cannot do, one sentence each."""
    lines = [f"The input has at most {model.fields['max_length']:,} tokens."]
    if model.task and model.task["labels"]:
        lines.append("It predicts only the labels of its task, even if none of them fits.")
    origin = "the training data above" if "training data" in training else "its training data"
    lines.append(f"The model has the errors and the biases of {origin}.")
    return lines


def _metadata(
    model: Any,
    encoding: text_encoding.Encoding | None,
    ending: str,
    config: Mapping[str, Any],
) -> tuple[str, str, tuple[str, ...]]:
    """Returns (library, pipeline, tags)."""
    if encoding is not None:
        return _SENTENCES, "sentence-similarity", (_SENTENCES, "feature-extraction")
    # A model that gives a single text a number has the same keys, but CrossEncoder takes pairs.
    is_for_pairs = model.task is not None and model.task.get("num_texts") != 1
    if cross_encoder.KEY in config and is_for_pairs:
        return _SENTENCES, "text-ranking", (_SENTENCES, "cross-encoder")
    if ending in _PIPELINES:
        return _LIBRARY, _PIPELINES[ending], ()
    heads, kind = model.fields["heads"], plugins.family(model.family).KIND
    if "lm" in heads:
        is_decoder = kind == "decoder"
        return _LIBRARY, "text-generation" if is_decoder else "text2text-generation", ()
    return _LIBRARY, "fill-mask" if "mlm" in heads else "feature-extraction", ()


def _index(model: Any, pipeline: str, scores: Mapping[str, Mapping[str, float]]) -> list[Any]:
    """Returns the scores as the Hub's "model-index"."""
    name = model.task["name"]
    results = [
        {
            "task": {"type": pipeline},
            "dataset": {"name": name, "type": name, "split": split},
            "metrics": [
                {"type": key, "value": round(value, 4)}
                for key, value in values.items()
                if math.isfinite(value)
            ],
        }
        for split, values in scores.items()
    ]
    return [{"name": _title(model), "results": results}]


def _title(model: Any) -> str:
    return f"{model.family}, fine-tuned on {model.task['name']}" if model.task else model.family


def _usage(
    model: Any, library: str, encoding: text_encoding.Encoding | None, ending: str
) -> list[str]:
    if library == _SENTENCES:
        name = "CrossEncoder" if encoding is None else "SentenceTransformer"
        call = 'predict([("a query", "a text")])' if encoding is None else 'encode(["a text"])'
        return [f"from {_SENTENCES.replace('-', '_')} import {name}", "",
                f'model = {name}("path/of/this/folder")', f"model.{call}"]  # fmt: skip
    if library == ARTIFACT:
        return ["import bertjax", "", 'model = bertjax.load("path/of/this/folder")']
    name = f"AutoModel{ending}"
    path = '"path/of/this/folder"'
    if library == PEFT:
        base = model.source.partition("@")[0] if hub.is_pinned(model.source) else "BASE MODEL"
        labels = f", num_labels={model.fields['num_labels']}" if ending in _PIPELINES else ""
        return ["from peft import PeftModel", f"from transformers import {name}, AutoTokenizer", "",
                f'base = {name}.from_pretrained("{base}"{labels})',
                f"model = PeftModel.from_pretrained(base, {path})",
                f"tokenizer = AutoTokenizer.from_pretrained({path})"]  # fmt: skip
    return [f"from transformers import {name}, AutoTokenizer", "",
            f"model = {name}.from_pretrained({path})",
            f"tokenizer = AutoTokenizer.from_pretrained({path})"]  # fmt: skip
