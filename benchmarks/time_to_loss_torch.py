"""The PyTorch side of benchmarks/time_to_loss.py: transformers with its collator.

    python -m benchmarks.time_to_loss_torch --rows=rows.npy --tokenizer=tokenizer/ --output=run/ \\
        --num_steps=1000 --every=50 [--dtype=bfloat16] [--compile]

A loop as in transformers' example run_mlm_no_trainer.py, without its evaluations.
Writes OUTPUT/checkpoints/STEP every EVERY steps, a folder that transformers and bertjax read.
"""

import argparse
import itertools
import os
import pathlib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
import transformers

from benchmarks import time_to_loss_config as configs


class Rows(torch.utils.data.Dataset):
    """Rows without padding. Special tokens are marked, so that the collator need not search."""

    def __init__(self, rows: np.ndarray):
        self._rows = rows
        special = np.zeros(rows.shape[1], np.int64)
        special[[0, -1]] = 1
        self._special = torch.from_numpy(special)
        self._mask = torch.ones(rows.shape[1], dtype=torch.int64)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {
            "input_ids": torch.from_numpy(self._rows[index].astype(np.int64)),
            "attention_mask": self._mask,
            "special_tokens_mask": self._special,
        }


def train(flags: argparse.Namespace) -> None:
    """Trains for `flags.num_steps` steps with the recipe `configs.SAME`."""
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    transformers.set_seed(flags.seed)
    tokenizer = transformers.AutoTokenizer.from_pretrained(flags.tokenizer)
    recipe, model = configs.SAME, make_model(tokenizer)
    decay = {True: recipe["weight_decay"], False: 0.0}
    optimizer = torch.optim.AdamW(
        [{"params": [p for p in model.parameters() if (p.ndim > 1) == decayed],
          "weight_decay": rate} for decayed, rate in decay.items()],
        lr=recipe["learning_rate"], betas=(recipe["b1"], recipe["b2"]), eps=recipe["eps"],
        fused=True,
    )  # fmt: skip
    schedule = transformers.get_linear_schedule_with_warmup(
        optimizer, round(recipe["warmup"] * flags.num_steps), flags.num_steps
    )
    collator = transformers.DataCollatorForLanguageModeling(
        tokenizer, mlm_probability=recipe["mask_rate"]
    )
    batches = torch.utils.data.DataLoader(
        Rows(np.load(flags.rows, mmap_mode="r")), batch_size=recipe["batch_size"], shuffle=True,
        drop_last=True, collate_fn=collator,
    )  # fmt: skip
    forward = torch.compile(model) if flags.compile else model
    for step, batch in enumerate(itertools.islice(repeated(batches), flags.num_steps), start=1):
        with torch.autocast("cpu", torch.bfloat16, enabled=flags.dtype == "bfloat16"):
            loss = forward(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), recipe["clip_norm"])
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % flags.every == 0 or step == flags.num_steps:
            save(model, tokenizer, pathlib.Path(flags.output) / "checkpoints", step)


def make_model(tokenizer: transformers.PreTrainedTokenizerBase) -> transformers.PreTrainedModel:
    """Returns the BERT of `configs`, with random weights and dropout."""
    sizes = configs.MODEL
    config = transformers.BertConfig(
        vocab_size=sizes["vocab_size"],
        hidden_size=sizes["hidden_size"],
        num_hidden_layers=sizes["num_layers"],
        num_attention_heads=sizes["num_heads"],
        intermediate_size=sizes["intermediate_size"],
        max_position_embeddings=sizes["max_length"],
        type_vocab_size=sizes["type_vocab_size"],
        layer_norm_eps=sizes["layer_norm_eps"],
        initializer_range=configs.INIT_STD,
        hidden_dropout_prob=configs.DROPOUT,
        attention_probs_dropout_prob=configs.DROPOUT,
        pad_token_id=tokenizer.pad_token_id,
    )
    return transformers.BertForMaskedLM(config).train()


def repeated(batches: Iterable[Any]) -> Iterator[Any]:
    """Yields the batches of one epoch after the other."""
    while True:
        yield from batches


def save(model: Any, tokenizer: Any, folder: pathlib.Path, step: int) -> None:
    """Writes model and tokenizer to `folder`/STEP; a folder without suffix is complete."""
    unfinished = folder / f"{step}.unfinished"
    model.save_pretrained(unfinished)
    tokenizer.save_pretrained(unfinished)
    unfinished.rename(folder / str(step))


def main() -> None:
    """Parses the flags and trains."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", required=True, help="file with int32[N, length]")
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--output", required=True)
    parser.add_argument("--num_steps", type=int, required=True)
    parser.add_argument("--every", type=int, required=True)
    parser.add_argument("--dtype", default="bfloat16", choices=("float32", "bfloat16"))
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    train(parser.parse_args())


if __name__ == "__main__":
    main()
