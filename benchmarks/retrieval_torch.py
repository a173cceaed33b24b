"""The peer of `benchmarks/retrieval.py`: sentence-transformers' loss in a plain PyTorch loop.

Its Trainer needs accelerate and datasets, so the loop is written here. The optimizer and the
schedule are those of bertjax's defaults: AdamW, warm-up in a tenth of the steps, linear decay.
"""

import random
from collections.abc import Sequence

import numpy as np
import sentence_transformers
import torch
import transformers
from sentence_transformers.sentence_transformer import losses

from benchmarks import finetune_torch


def vectors(
    model: str,
    pairs: Sequence[tuple[str, str]],
    texts: Sequence[str],
    *,
    rate: float,
    batch_size: int,
    num_epochs: int,
    max_length: int,
    bfloat16: bool,
) -> np.ndarray:
    """Returns the vectors of `texts`, [T, D] of length 1, after training on the pairs."""
    transformers.set_seed(0)
    encoder = sentence_transformers.SentenceTransformer(model, device="cpu")
    encoder.max_seq_length = max_length
    loss = losses.MultipleNegativesRankingLoss(encoder)
    steps = num_epochs * (len(pairs) // batch_size)
    optimizer = finetune_torch.adamw(encoder, rate, 0.01)
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, round(0.1 * steps), steps)
    shuffle = random.Random(0)
    cast = torch.autocast("cpu", torch.bfloat16, enabled=bfloat16)
    encoder.train()
    for _ in range(num_epochs):
        order = shuffle.sample(range(len(pairs)), len(pairs))
        for start in range(0, len(pairs) - batch_size + 1, batch_size):
            batch = [pairs[i] for i in order[start : start + batch_size]]
            sides = [encoder.preprocess(list(side)) for side in zip(*batch, strict=True)]
            with cast:
                value = loss(sides, None)
            value.backward()
            torch.nn.utils.clip_grad_norm_(encoder.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    encoder.eval()
    return encoder.encode(list(texts), normalize_embeddings=True, show_progress_bar=False)
