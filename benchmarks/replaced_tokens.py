"""Compares DeBERTa-v3 with ELECTRA on replaced token detection, at equal tokens.

    python -m benchmarks.replaced_tokens --data=prepared/ --output=replaced/ [--seeds=2]
        [--config.num_steps=1000]

Trains configs/mini.py:electra and configs/mini.py:deberta on the same batches. The discriminators
have the same sizes: 4 layers x 256, and embeddings as wide as the layers. The generators are as
published: a quarter of the width for ELECTRA, half of the layers for DeBERTa-v3. Flags of the form
--config.KEY=VALUE are passed to every run. An unfinished run in the output folder is resumed, and a
finished one is only read.

A better generator makes the discriminator's task harder. So each discriminator is scored three
times on the same held-out text: with its own generator's tokens, and with those of each family's
first run. The columns are the loss in nats per token, and "trivial", the loss of a discriminator
that uses only the share of replaced tokens; the accuracy; F1 and average precision of "replaced".

At the end, each discriminator of the first seed is exported to transformers' format and read back:
all arrays must be bit-equal, except for DeBERTa's head, which transformers lacks. The states of
the encoder must be those of transformers, if that is installed, within 1e-4. Exits with 1 if not.
"""

import argparse
import functools
import pathlib
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bertjax import config as config_lib
from bertjax import experiment as experiment_lib
from bertjax import phases as phases_lib
from bertjax import plugins
from bertjax.artifact import artifact, huggingface, loading
from bertjax.data.prepared import store
from bertjax.objectives import mlm, replaced_token_detection
from bertjax.objectives.common import losses

# {family: what differs from configs/mini.py:FAMILY}
FAMILIES = {"electra": ("--config.model.embedding_size=256",), "deberta": ()}
COLUMNS = ("loss", "trivial", "accuracy", "precision", "recall", "F1", "average precision")
SAMPLES = 2_000  # held-out sequences
TOLERANCE = 1e-4


def train(family: str, seed: int, flags: argparse.Namespace, overrides: list[str]) -> pathlib.Path:
    """Trains a model, or resumes its run; returns the workdir."""
    workdir = pathlib.Path(flags.output) / f"{family}{seed}"
    command = ["pretrain", f"--config=configs/mini.py:{family}", f"--workdir={workdir}",
               f"--config.data.path={flags.data}", f"--config.seed={seed}",
               *FAMILIES[family], *overrides]  # fmt: skip
    subprocess.run([sys.executable, "-m", "bertjax", *command], check=True)
    return workdir


@functools.partial(jax.jit, static_argnames="model")
def corrupt(model: Any, params: Any, batch: dict[str, Any]) -> tuple[jax.Array, jax.Array]:
    """Returns the ids of a batch with the generator's tokens, and where they differ, [B, L]."""
    out = model.apply(
        {"params": params}, **losses.inputs(batch, mlm.INPUTS), heads_to_run=("mlm",),
        masked_positions=batch["masked_positions"],
    )  # fmt: skip
    sampled_BP = replaced_token_detection.sample(out["mlm_logits"], batch["sample_seed"])
    place = functools.partial(
        replaced_token_detection.place, batch["input_ids"], batch["masked_positions"],
        batch["masked_weights"],
    )  # fmt: skip
    corrupted_BL = place(sampled_BP)
    return corrupted_BL, corrupted_BL != place(batch["masked_ids"])


@functools.partial(jax.jit, static_argnames="model")
def judge(model: Any, params: Any, batch: dict[str, Any], ids_BL: jax.Array) -> jax.Array:
    """Returns the discriminator's logits for the ids, float32[B, L]."""
    inputs = losses.inputs(batch, mlm.INPUTS) | {"input_ids": ids_BL}
    return model.apply({"params": params}, **inputs, heads_to_run=("rtd",))["rtd_logits"]


def heldout(model: artifact.Artifact, data: str) -> Iterator[dict[str, np.ndarray]]:
    """Yields the held-out batches of a run's model; they depend on the objective and the data."""
    config = config_lib.from_dict(model.config)
    config.eval.max_samples = SAMPLES
    (phase,) = phases_lib.of(config)
    return experiment_lib.Experiment(config).eval_batches(
        store.open_heldout(data), model.tokenizer.vocabulary(), phase, lambda size: slice(None)
    )


def score(judging: artifact.Artifact, generating: artifact.Artifact, data: str) -> dict[str, float]:
    """Returns the scores of the first model's discriminator on the second one's generator."""
    logits, labels = [], []
    judge_model = plugins.model(judging.family, judging.fields)
    generator = plugins.model(generating.family, generating.fields)
    for batch in heldout(judging, data):
        ids_BL, replaced_BL = corrupt(generator, generating.params, batch)
        real_BL = np.asarray(losses.token_weights(batch)) > 0
        logits.append(np.asarray(judge(judge_model, judging.params, batch, ids_BL))[real_BL])
        labels.append(np.asarray(replaced_BL)[real_BL])
    return scores(np.concatenate(logits).astype(np.float64), np.concatenate(labels))


def scores(logits: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Returns the columns for the logits and labels (1: replaced) of all tokens."""
    share, predicted = labels.mean(), logits > 0
    hits = (predicted & labels).sum()
    precision, recall = hits / max(predicted.sum(), 1), hits / labels.sum()
    order = np.argsort(-logits, kind="stable")
    rank = np.flatnonzero(labels[order]) + 1
    return {
        "loss": np.logaddexp(0, np.where(labels, -logits, logits)).mean(),
        "trivial": -share * np.log(share) - (1 - share) * np.log1p(-share),
        "accuracy": (predicted == labels).mean(),
        "precision": precision,
        "recall": recall,
        "F1": 2 * hits / (predicted.sum() + labels.sum()),
        "average precision": (np.arange(1, len(rank) + 1) / rank).mean(),
    }


def round_trip(model: artifact.Artifact, folder: pathlib.Path, data: str) -> bool:
    """Exports the discriminator, reads it back, and compares it with transformers' model."""
    alone = artifact.part(model, "")
    huggingface.write(alone, folder)
    lacking = huggingface.dropped(alone)
    ours = {k: v for k, v in artifact.flatten(alone.params).items() if k not in lacking}
    theirs = artifact.flatten(loading.load(folder).params)
    same = ours.keys() == theirs.keys() and all(
        np.array_equal(ours[path], theirs[path]) for path in ours
    )
    without = f", {len(lacking)} of the head left out" if lacking else ""
    text = f"{model.family}: {len(ours)} arrays exported{without}, equal when read back: {same}"
    batch = next(iter(heldout(model, data)))
    ids, mask = batch["input_ids"], batch["attention_mask"]
    module = plugins.model(alone.family, alone.fields)
    output = module.apply({"params": alone.params}, jnp.asarray(ids), jnp.asarray(mask))
    try:
        import torch
        import transformers
    except ImportError:
        print(f"{text}; transformers is not installed")
        return same
    encoder = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    with torch.no_grad():
        states = encoder(torch.tensor(ids), torch.tensor(mask)).last_hidden_state.numpy()
    difference = np.abs(states - np.asarray(output["last_hidden_state"]))[mask > 0].max()
    print(f"{text}; states differ from transformers' by {difference:.1e} at most")
    return same and bool(difference < TOLERANCE)


def main() -> int:
    """Trains, scores and exports the models; prints and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], allow_abbrev=False)
    parser.add_argument("--data", required=True, help="prepared data")
    parser.add_argument("--output", required=True, help="folder for the runs")
    parser.add_argument("--seeds", type=int, default=2, help="default: %(default)s")
    flags, overrides = parser.parse_known_args()
    models: dict[tuple[str, int], artifact.Artifact] = {}
    for seed in range(flags.seeds):
        for family in FAMILIES:
            models[family, seed] = loading.load(train(family, seed, flags, overrides))
    lines = ["| discriminator | seed | generator | " + " | ".join(COLUMNS) + " |",
             "|" + "---|" * (len(COLUMNS) + 3)]  # fmt: skip
    for (family, seed), model in models.items():
        generators = {"its own": model} | {f"{name}, seed 0": models[name, 0] for name in FAMILIES}
        for name, generator in generators.items():
            values = score(model, generator, flags.data)
            cells = [f"{values[column]:.4f}" for column in COLUMNS]
            lines.append("| " + " | ".join([family, str(seed), name, *cells]) + " |")
            print(lines[-1], flush=True)
    output = pathlib.Path(flags.output)
    (output / "table.md").write_text("\n".join(lines) + "\n")
    good = [round_trip(models[f, 0], output / f"{f}-hf", flags.data) for f in FAMILIES]
    return int(not all(good))


if __name__ == "__main__":
    sys.exit(main())
