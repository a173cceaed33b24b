"""Writes models that were fine-tuned by LoRA as adapters of PEFT, without torch or peft.

    adapter_config.json          rank, alpha, target modules, and the name of the base model
    adapter_model.safetensors    A and B of each target, and the heads that were trained in full

The tokenizer's files are beside them. With `peft`, the base model is loaded first:

    base = AutoModelForSequenceClassification.from_pretrained("org/base", num_labels=2)
    model = PeftModel.from_pretrained(base, "adapter/")

PEFT's A is [rank, in] and B [out, rank]. If a tensor of transformers concatenates several of our
kernels, as GPT-2's c_attn does, the matrices of these kernels become the blocks of one pair with a
rank that is the sum of theirs. The product is the same.
"""

import os
from collections.abc import Mapping
from types import ModuleType
from typing import Any, NamedTuple

import jax
import numpy as np

from bertjax import errors, files, hub, plugins
from bertjax.artifact import (
    artifact,
    hf_tasks,
    huggingface,
    model_card,
    text_encoding,
    weight_files,
)
from bertjax.artifact import lora as lora_lib

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_PREFIX = "base_model.model."
_TASK_TYPES = {
    "ForSequenceClassification": "SEQ_CLS",
    "ForTokenClassification": "TOKEN_CLS",
    "ForQuestionAnswering": "QUESTION_ANS",
}
_TASK_TYPES_OF_KIND = {
    "encoder": "FEATURE_EXTRACTION",
    "decoder": "CAUSAL_LM",
    "encoder_decoder": "SEQ_2_SEQ_LM",
}


class _Part(NamedTuple):
    """The matrices of one of our kernels in one layer, with the line of the kernel in HF_NAMES."""

    line: huggingface.Line
    a: np.ndarray
    b: np.ndarray


def write(
    model: artifact.Artifact,
    folder: str | os.PathLike,
    scores: Mapping[str, Mapping[str, float]] | None = None,
) -> None:
    """Writes the adapter's folder atomically; replaces an earlier one.

    scores: {split: {name: score}}, for the model card README.md. Raises UserError if the
    model has no matrices of LoRA, if it has dense layers behind the pooling of text vectors, which
    PEFT's layout cannot hold, or if transformers has no class for the model.
    """
    if model.lora is None:
        raise errors.UserError(
            "this model has no LoRA matrices: --format=peft needs the output folder of `bertjax "
            "finetune --strategy=lora`; use --format=hf for the whole model"
        )
    encoding = text_encoding.of(model)
    if encoding is not None and encoding.dense:
        raise errors.UserError(
            "--format=peft has no place for the dense layers behind the pooling of text vectors, "
            "which were trained with the LoRA matrices; use --format=hf for the whole model"
        )
    ending = hf_tasks.ending_of(model)
    config, tensors = convert(model, model.lora, ending)
    with files.new_folder(folder) as new:
        weight_files.write_tensors(new / WEIGHTS, tensors)
        files.write_json(new / CONFIG, config)
        huggingface.save_tokenizer(model, new)
        card = model_card.text(model, None, ending, {}, scores or {}, model_card.PEFT)
        files.write_text(new / model_card.FILE, card)


def convert(
    model: artifact.Artifact, lora: lora_lib.Lora, ending: str
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Returns the content of adapter_config.json and the tensors, {name: array}.

    ending: the end of the class name, as returned by `hf_tasks.ending_of`.
    """
    module = plugins.family(model.family)
    params, vocab_size = jax.device_get(model.params), model.fields["vocab_size"]
    names = huggingface.to_tensors(module, params, vocab_size, ending)
    heads = {head: params[head] for head in lora.heads}
    saved = huggingface.to_tensors(module, heads, vocab_size, ending)
    tensors = {f"{_PREFIX}{_in(names, name, module)}": array for name, array in saved.items()}
    ranks: dict[str, int] = {}  # {module of transformers: the number of our kernels in it}
    lines = {}
    for name, parts in _targets(module, lora, ending).items():
        target = _in(names, f"{name}.weight", module).removesuffix(".weight")
        ranks[target], lines[target] = len(parts), parts[0].line
        tensors[f"{_PREFIX}{target}.lora_A.weight"] = np.concatenate([part.a.T for part in parts])
        tensors[f"{_PREFIX}{target}.lora_B.weight"] = _blocks(parts)
    common = min(ranks.values())
    larger = {target: count for target, count in ranks.items() if count > common}
    source, _, revision = model.source.partition("@")
    is_on_hub = hub.is_pinned(model.source)
    config = {
        "peft_type": "LORA",
        "task_type": _TASK_TYPES.get(ending) or (
            None if ending else _TASK_TYPES_OF_KIND[module.KIND]
        ),
        "base_model_name_or_path": source if is_on_hub else model.source,
        "revision": revision if is_on_hub else None,
        "r": lora.rank * common,
        "lora_alpha": lora.alpha * common,
        "rank_pattern": {target: lora.rank * count for target, count in larger.items()},
        "alpha_pattern": {target: lora.alpha * count for target, count in larger.items()},
        "target_modules": _short(list(ranks), list(names)),
        "modules_to_save": sorted({_head(name, module) for name in saved}) or None,
        "fan_in_fan_out": any(line.conversion.startswith("conv") for line in lines.values()),
        "lora_dropout": 0.0,
        "bias": "none",
        "inference_mode": True,
    }
    return config, tensors


def _targets(
    module: ModuleType, lora: lora_lib.Lora, ending: str
) -> dict[str, list[_Part]]:
    """Returns {full name of a module of transformers: the matrices of our kernels in it}."""
    lines = huggingface.table_lines(module, ending)
    targets: dict[str, list[_Part]] = {}
    for path in sorted(lora.matrices):
        kernel, _, matrix = path.rpartition("/")
        if matrix != lora_lib.A:
            continue
        line, b = lines[kernel], lora.matrices[f"{kernel}/{lora_lib.B}"]
        pairs = zip(line.names(lora.matrices[path]), line.names(b), strict=True)
        for (name, single_a), (_, single_b) in pairs:
            part = _Part(line, single_a, single_b)
            targets.setdefault(name.removesuffix(".weight"), []).append(part)
    return {name: sorted(parts, key=lambda p: p.line.part) for name, parts in targets.items()}


def _blocks(parts: list[_Part]) -> np.ndarray:
    """Returns PEFT's B [out, ranks]: each kernel's B at its place in the output, else zeros."""
    blocks = np.zeros(
        (parts[0].line.part[1], parts[0].b.shape[1], len(parts), parts[0].b.shape[0]), np.float32
    )
    for number, part in enumerate(parts):
        blocks[part.line.part[0], :, number] = part.b.T
    count, width, _, rank = blocks.shape
    return blocks.reshape(count * width, len(parts) * rank)


def _in(names: Any, name: str, module: ModuleType) -> str:
    """Returns the tensor's name in a file with `names`, which may lack the family's prefix."""
    full_name = module.HF_PREFIX + name
    return next(n for n in (name, full_name, name.removeprefix(module.HF_PREFIX)) if n in names)


def _head(name: str, module: ModuleType) -> str:
    """Returns the name of the module of a head that contains the tensor: "classifier"."""
    return name.removeprefix(module.HF_PREFIX).split(".")[0]


def _short(targets: list[str], names: list[str]) -> list[str]:
    """Returns the shortest ends of the targets' names that match no other module.

    names: those of all tensors of the model.
    """
    modules = {name.removesuffix(".weight") for name in names if name.endswith(".weight")}
    for length in range(1, max(name.count(".") for name in targets) + 1):
        ends = {".".join(name.split(".")[-length:]) for name in targets}
        matched = {m for m in modules if any(f".{m}".endswith(f".{end}") for end in ends)}
        if matched == set(targets):
            return sorted(ends)
    return sorted(targets)
