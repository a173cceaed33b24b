"""Probes every layer of MiniLM and of other models, and compares one layer with scikit-learn.

    python -m benchmarks.probe --data=shared/data/ --output=probe/ [--models=minilm/,run/] \\
        [--sets=wikigold,snips_slots,banking77] [--seeds=1] [--max_train=0]

DATA has ner/NAME/train.conll and dev.conll, and classification/NAME/train.tsv and dev.tsv. For each
model and set, `bertjax.probe` writes probe.json and probe.png to OUTPUT/MODEL/SET. Then
scikit-learn's LogisticRegression is fitted to the same standardised states of the middle layer, and
its accuracies on dev, of the real task and of the control task of the first seed, are printed
beside those of the probe. Its C is that of `STRENGTHS` with the lowest loss on dev, because the
probe's epoch is chosen in the same way; so is C = 1, scikit-learn's default, for comparison. Prints
a table for each model and set, and writes all of them to OUTPUT/table.md. The exit code is 1 if an
accuracy is lower than that of scikit-learn by more than its value in `TOLERANCES`.
"""

import argparse
import pathlib
import sys
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks import parity
from bertjax.finetuning import scores as scores_lib
from bertjax.finetuning.probing import controls, labelled, report
from bertjax.finetuning.probing import run as run_lib
from bertjax.runtime import backend

# Points of accuracy. The probe keeps the epoch with the lowest dev loss. When it memorises random
# labels, the loss rises, because wrong predictions become surer, while the accuracy still rises by
# up to 2 points. See benchmarks/README.md.
TOLERANCES = {"accuracy": 1.0, "control_accuracy": 3.0}
STRENGTHS = (1.0, 0.1, 0.01, 0.001)  # inverse strengths of the L2 penalty
Reference = dict[str, dict[str, float]]
_COLUMNS = {"accuracy": "accuracy", "macro_f1": "macro F1", "control_accuracy": "control",
            "selectivity": "selectivity"}  # fmt: skip


def files(data: pathlib.Path, name: str) -> dict[str, str]:
    """Returns {split: path} of a set."""
    words, texts = data / "ner" / name, data / "classification" / name
    folder, suffix = (words, "conll") if words.is_dir() else (texts, "tsv")
    return {split: str(folder / f"{split}.{suffix}") for split in ("train", "dev")}


def reference(encoded: run_lib.Encoded, layer: int) -> Reference:
    """Returns {"chosen C" or "C = 1": scikit-learn's accuracies on a layer, of both tasks}."""
    linear = scores_lib.library("sklearn.linear_model")
    metrics = scores_lib.library("sklearn.metrics")
    train, dev = encoded.items["train"], encoded.items["dev"]
    counts_C = np.bincount(train.targets_N, minlength=len(encoded.task_type.labels))
    targets = {
        "accuracy": (train.targets_N, dev.targets_N),
        "control_accuracy": tuple(controls.labels(p.keys, counts_C, 0) for p in (train, dev)),
    }
    found: Reference = {"chosen C": {}, "C = 1": {}}
    for name, (train_N, dev_N) in targets.items():
        tried = {}
        for strength in STRENGTHS:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a fit that has not converged is good enough
                model = linear.LogisticRegression(C=strength)
                model.fit(encoded.states["train"][layer], train_N)
            x_ND = encoded.states["dev"][layer]
            known_N = np.isin(dev_N, model.classes_)
            loss = metrics.log_loss(
                dev_N[known_N], model.predict_proba(x_ND[known_N]), labels=model.classes_
            )
            tried[strength] = float(loss), 100.0 * float(model.score(x_ND, dev_N))
        found["chosen C"][name] = min(tried.values())[1]
        found["C = 1"][name] = tried[1.0][1]
    return found


def table(content: dict[str, Any], theirs: Reference, layer: int) -> str:
    """Returns the layers of a report in Markdown, with scikit-learn's rows."""
    lines = [f"| layer | {' | '.join(_COLUMNS.values())} |", "|---|" + "---:|" * len(_COLUMNS)]
    for row in content["layers"]:
        cells = [report.cell(row[score]) for score in _COLUMNS]
        lines.append(f"| {row['name']} | {' | '.join(cells)} |")
    name = content["layers"][layer]["name"]
    for strength, found in theirs.items():
        cells = f"{found['accuracy']:.1f} | | {found['control_accuracy']:.1f} | |"
        lines.append(f"| {name}, scikit-learn, {strength} | {cells}")
    return "\n".join(lines) + "\n"


def measured(model: str, name: str, flags: argparse.Namespace) -> tuple[str, bool]:
    """Returns (the table of a model and set, whether it agrees with scikit-learn)."""
    paths = files(pathlib.Path(flags.data), name)
    options = run_lib.Options(seeds=flags.seeds, max_train=flags.max_train)
    task = labelled.find_task("", paths, "", "")
    encoded = run_lib.encode(model, task, paths, options)
    probed = run_lib.fit(model, task, paths, encoded, options)
    folder = pathlib.Path(flags.output) / pathlib.Path(model).name / name
    probed.write(report.output_folder(folder))
    layer = len(probed.report["layers"]) // 2
    theirs = reference(encoded, layer)
    ours = probed.report["layers"][layer]
    chosen = theirs["chosen C"]
    agrees = all(ours[s]["values"][0] >= chosen[s] - TOLERANCES[s] for s in chosen)
    sizes = "\n".join(report.context(probed.report))
    return f"{model}, {name}\n\n{table(probed.report, theirs, layer)}\n{sizes}\n", agrees


def main(argv: Sequence[str] | None = None) -> int:
    """Probes all models on all sets. Returns 1 if a probe is not as good as scikit-learn's."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", required=True, help="folder with ner/ and classification/")
    parser.add_argument("--output", required=True)
    parser.add_argument("--models", default=str(parity.minilm_folder()))
    parser.add_argument("--sets", default="wikigold,snips_slots,banking77")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--max_train", type=int, default=0, help="sentences or texts; 0: all")
    flags = parser.parse_args(argv)
    tables, agree = [], True
    for model in flags.models.split(","):
        for name in flags.sets.split(","):
            text, agrees = measured(model, name, flags)
            print(text, flush=True)
            tables.append(text)
            agree &= agrees
            (pathlib.Path(flags.output) / "table.md").write_text("\n".join(tables))
    return int(not agree)


if __name__ == "__main__":
    backend.start_with_kept_memory()
    sys.exit(main())
