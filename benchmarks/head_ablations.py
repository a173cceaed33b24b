"""Repeats two ablations at mini size: ALBERT's sentence objectives, and SpanBERT's masking.

    python -m benchmarks.head_ablations --data=prepared/ --output=heads/ [--only=albert]
        [--config.num_steps=1000]

Every run of an ablation has the same config, except for the line of its row; see ABLATIONS. Flags
of the form --config.KEY=VALUE are passed to every run. An unfinished run in the output folder is
resumed, and a finished one is only read.

albert: no sentence objective, NSP or SOP (arXiv 1909.11942, table 5). The columns are the held-out
MLM loss on the run's own batches, in brackets that of the unigram model, and on single texts, the
accuracy of the run's own head, and the accuracies of a probe for NSP and for SOP. A probe is a
logistic regression on the frozen model's state of the first token and the mean of all states,
fitted to training pairs and scored on held-out pairs.

spanbert: masks of single tokens, whole words or spans, and spans with the span boundary objective
(SBO), on BERT (arXiv 1907.10529, tables 6 and 7). The columns are the held-out MLM losses when
tokens, whole words and spans are masked, and SBO's own loss. No run has a sentence objective.
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
from ml_collections import ConfigDict

from bertjax import config as config_lib
from bertjax import evaluate, plugins, run_log, sharding
from bertjax import experiment as experiment_lib
from bertjax.artifact import artifact, loading
from bertjax.data.batches import loader
from bertjax.data.prepared import store
from bertjax.objectives import mlm

MASKINGS = ("token", "whole_word", "span")
PAIRS = ("nsp", "sop")
ONE_TEXT = ("pair=none", "cross_documents=false", "short_rate=0.0")
# {ablation: (config file, its lines of config.objective, {row: its line})}
ABLATIONS: dict[str, tuple[str, tuple[str, ...], dict[str, str]]] = {
    "albert": (
        "configs/mini.py:albert", (), {pair: f"pair={pair}" for pair in ("none", *PAIRS)}
    ),
    "spanbert": (
        "configs/mini.py:bert", ONE_TEXT,
        {masking: f"masking={masking}" for masking in MASKINGS}
        | {"span_sbo": "name=span_boundary"},  # which masks spans by default
    ),
}  # fmt: skip
SAMPLES = 2_000  # held-out samples
PROBE_SAMPLES = 4_000  # training pairs of a probe, and largest number of held-out pairs
WINDOW = 2**19  # tokens among which samples are shuffled


def train(ablation: str, row: str, flags: argparse.Namespace, overrides: list[str]) -> pathlib.Path:
    """Trains the model of a row, or resumes its run; returns the workdir."""
    file, common, rows = ABLATIONS[ablation]
    workdir = pathlib.Path(flags.output) / f"{ablation}_{row}"
    objective = [f"--config.objective.{line}" for line in (*common, rows[row])]
    subprocess.run(
        [sys.executable, "-m", "bertjax", "pretrain", f"--config={file}", f"--workdir={workdir}",
         f"--config.data.path={flags.data}", *objective, *overrides],
        check=True,
    )  # fmt: skip
    return workdir


def own_scores(workdir: pathlib.Path) -> dict[str, float]:
    """Returns the last held-out metrics that the run has logged."""
    lines = run_log.read_metrics(str(workdir / "metrics.jsonl"))
    last = [line for line in lines if "eval/loss" in line][-1]
    return {key.removeprefix("eval/"): value for key, value in last.items()}


def as_mlm(model: artifact.Artifact, **fields: Any) -> ConfigDict:
    """Returns the config of the model's run with the objective mlm and these fields of it."""
    config = config_lib.from_dict(model.config)
    heads = config.model.heads
    kept = {key: value for key, value in config.objective.items() if key != "name"}
    config_lib.choose_objective(config, "mlm")
    config.objective.update({key: kept[key] for key in kept if key in config.objective} | fields)
    config.model.heads = heads
    config.batch_size, config.eval.max_samples = 64, SAMPLES
    return config


@functools.partial(jax.jit, static_argnames="model")
def features(model: Any, params: Any, batch: dict[str, Any]) -> jax.Array:
    """Returns float32[B, 2 D]: the state of the first token, and the mean of all states."""
    inputs = {name: batch[name] for name in mlm.INPUTS if name in batch}
    x_BLD = model.apply({"params": params}, **inputs)["last_hidden_state"]
    real_BL1 = batch["attention_mask"][..., None]
    return jnp.concatenate([x_BLD[:, 0], (x_BLD * real_BL1).sum(1) / real_BL1.sum(1)], axis=-1)


class Heldout:
    """Scores models on prepared data."""

    def __init__(self, path: str):
        self._splits = {split: store.open_dataset(path, split) for split in ("train", "heldout")}
        self._vocabulary = self._splits["train"].load_tokenizer().vocabulary()

    def _batches(
        self, run: experiment_lib.Experiment, split: str
    ) -> Iterator[dict[str, np.ndarray]]:
        config = run.config
        return loader.eval_batches(
            self._splits[split], *run.sampling(config.data.length, self._vocabulary),
            batch_size=config.batch_size, seed=0, max_samples=config.eval.max_samples,
            window_tokens=WINDOW,
        )  # fmt: skip

    def loss(self, model: artifact.Artifact, **fields: Any) -> float:
        """Returns the MLM loss of a model, in nats, with these fields of the objective mlm."""
        run = experiment_lib.Experiment(as_mlm(model, **fields))
        mesh = sharding.make_mesh()
        with jax.set_mesh(mesh):
            values = evaluate.evaluate(
                run.eval_step(), sharding.replicate(mesh, model.params),
                self._batches(run, "heldout"), mesh, run.config.batch_size, run.scales,
            )  # fmt: skip
        return values["mlm_loss"]

    def probe(self, model: artifact.Artifact, pair: str) -> float:
        """Returns the accuracy of a probe for a task on pairs."""
        from sklearn import linear_model, pipeline, preprocessing

        config = as_mlm(model, pair=pair)
        config.eval.max_samples = PROBE_SAMPLES
        run = experiment_lib.Experiment(config)
        module = plugins.model(model.family, model.fields)

        def examples(split: str) -> tuple[np.ndarray, np.ndarray]:
            xs, ys = [], []
            for batch in self._batches(run, split):
                real = batch["example_weights"] > 0
                xs.append(np.asarray(features(module, model.params, batch))[real])
                ys.append(batch[mlm.LABELS[pair]][real])
            return np.concatenate(xs), np.concatenate(ys)

        classifier = pipeline.make_pipeline(
            preprocessing.StandardScaler(), linear_model.LogisticRegression(max_iter=1_000, C=0.1)
        )
        return classifier.fit(*examples("train")).score(*examples("heldout"))


def albert_row(row: str, workdir: pathlib.Path, heldout: Heldout) -> list[str]:
    """Returns the cells of a row of the first table."""
    model, own = loading.load(workdir), own_scores(workdir)
    accuracy = own.get(f"{row}_accuracy")
    return [
        f"{own['mlm_loss']:.3f} ({own['unigram_loss']:.3f})",
        f"{heldout.loss(model, pair='none'):.3f}",
        "" if accuracy is None else f"{accuracy:.1%}",
        *(f"{heldout.probe(model, pair):.1%}" for pair in PAIRS),
    ]


def span_row(_: str, workdir: pathlib.Path, heldout: Heldout) -> list[str]:
    """Returns the cells of a row of the second table."""
    model, own = loading.load(workdir), own_scores(workdir)
    cells = [f"{heldout.loss(model, masking=masking):.3f}" for masking in MASKINGS]
    return [*cells, f"{own['sbo_loss']:.3f}" if "sbo_loss" in own else ""]


# {ablation: (function of its cells, its columns)}
TABLES = {
    "albert": (albert_row, ("objective on pairs", "MLM, its own batches", "MLM, single texts",
                            "accuracy of its head", "NSP, probe", "SOP, probe")),
    "spanbert": (span_row, ("training masks", "MLM, tokens", "MLM, whole words", "MLM, spans",
                            "SBO loss")),
}  # fmt: skip


def main() -> int:
    """Trains and scores every row; prints and writes the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], allow_abbrev=False)
    parser.add_argument("--data", required=True, help="prepared data")
    parser.add_argument("--output", required=True, help="folder for the runs")
    parser.add_argument("--only", action="append", choices=ABLATIONS,
                        help="ablation to run; may be repeated")
    flags, overrides = parser.parse_known_args()
    heldout, tables = Heldout(flags.data), []
    for ablation in flags.only or ABLATIONS:
        cells_of, columns = TABLES[ablation]
        lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
        for row in ABLATIONS[ablation][2]:
            cells = cells_of(row, train(ablation, row, flags, overrides), heldout)
            lines.append("| " + " | ".join([row, *cells]) + " |")
            print("\n".join(lines), flush=True)
        tables.append("\n".join(lines) + "\n")
    (pathlib.Path(flags.output) / "tables.md").write_text("\n".join(tables))
    return 0


if __name__ == "__main__":
    sys.exit(main())
