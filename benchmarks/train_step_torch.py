"""PyTorch's worker of benchmarks/train_step.py: transformers' classes with fused AdamW.

    python -m benchmarks.train_step_torch FOLDER bfloat16 compiled cpu

bfloat16 is autocast. "compiled" is `torch.compile` of the model; "eager" does without. The classes
compute logits at every position; ELECTRA's generator samples at the masked positions only.
"""

import json
import os
import pathlib
import sys
from typing import Any

import numpy as np
import torch
import transformers

from benchmarks import train_step_worker

IGNORED = -100  # label of positions that are not predicted
RTD_WEIGHT = 50.0  # of the loss of ELECTRA's discriminator, as in the paper


class Pair(torch.nn.Module):
    """ELECTRA's generator and discriminator, which share their embeddings."""

    def __init__(self, generator: Any, discriminator: Any):
        super().__init__()
        generator.electra.embeddings = discriminator.electra.embeddings
        generator.tie_weights()
        self.generator, self.discriminator = generator, discriminator

    def forward(self, input_ids, positions, ids, labels, attention_mask=None):
        """Returns the sum of both losses. positions, ids: int64[B, P] of the masked tokens."""
        first = self.generator(input_ids, attention_mask=attention_mask, labels=labels)
        rows = torch.arange(len(ids))[:, None]
        logits = first.logits.detach()[rows, positions].float()
        samples = (logits - torch.empty_like(logits).exponential_().log()).argmax(-1)
        corrupted = input_ids.scatter(1, positions, samples)
        replaced = (corrupted != input_ids.scatter(1, positions, ids)).long()
        second = self.discriminator(corrupted, attention_mask=attention_mask, labels=replaced)
        return first.loss + RTD_WEIGHT * second.loss


def build(configs: list[dict[str, Any]]) -> torch.nn.Module:
    """Returns the model for the content of its config.json, or the pair for two of them."""
    models = []
    for content in configs:
        model_config = transformers.AutoConfig.for_model(**content)
        models.append(getattr(transformers, content["architectures"][0])(model_config).train())
    return models[0] if len(models) == 1 else Pair(*models)


def arguments(arrays: dict[str, np.ndarray], model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Returns the batch as arguments of the model."""
    batch = {
        name: torch.tensor(array, dtype=torch.long)
        for name, array in arrays.items()
        if not name.endswith("weights")
    }
    if "decoder_input_ids" in batch:
        names = ("input_ids", "attention_mask", "decoder_input_ids", "decoder_attention_mask")
        result = {name: batch[name] for name in names} | {"labels": batch["targets"]}
    elif "targets" in batch:  # GPT-2 shifts its labels itself
        names = ("input_ids", "attention_mask")
        result = {name: batch[name] for name in names} | {"labels": batch["input_ids"]}
    else:
        labels = torch.full_like(batch["input_ids"], IGNORED)
        labels.scatter_(1, batch["masked_positions"], batch["masked_ids"])
        names = ("input_ids", "attention_mask", "token_type_ids", "next_sentence_label",
                 "sentence_order_label")  # fmt: skip
        result = {name: batch[name] for name in names if name in batch} | {"labels": labels}
        if isinstance(model, Pair):
            result |= {"positions": batch["masked_positions"], "ids": batch["masked_ids"]}
    return result


def main() -> None:
    """Serves the train step of the case in FOLDER."""
    folder, dtype, mode, device = pathlib.Path(sys.argv[1]), *sys.argv[2:]
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    torch.manual_seed(0)
    model = build(json.loads((folder / "transformers.json").read_text())).to(device)
    with np.load(folder / "batch.npz") as file:
        inputs = arguments(dict(file), model)
    inputs = {name: tensor.to(device) for name, tensor in inputs.items()}
    if device == "cuda":  # no row has padding, and flash attention takes no mask
        for name in ("attention_mask", "decoder_attention_mask"):
            inputs.pop(name, None)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, weight_decay=0.01, fused=True)
    forward = torch.compile(model) if mode == "compiled" else model

    def step() -> torch.Tensor:
        with torch.autocast(device, torch.bfloat16, enabled=dtype == "bfloat16"):
            outputs = forward(**inputs)
        loss = outputs if isinstance(model, Pair) else outputs.loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    def product() -> None:
        torch.matmul(matrix, matrix)
        if device == "cuda":
            torch.cuda.synchronize()

    size = train_step_worker.MATMUL[device]
    matrix = torch.randn(size, size, device=device).to(getattr(torch, dtype))
    facts = {
        "library": f"torch {torch.__version__}, transformers {transformers.__version__}",
        "matmul": train_step_worker.peak(product, size),
    }
    on_gpu = device == "cuda"
    memory = torch.cuda.max_memory_allocated if on_gpu else train_step_worker.resident
    train_step_worker.serve(facts, step, memory)


if __name__ == "__main__":
    main()
