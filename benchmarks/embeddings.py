"""Compares sentence vectors before and after contrastive training, in retrieval of answers.

    python -m benchmarks.embeddings --data=shared/data/ --output=embeddings/ --ours=run/ \\
        [--real=minilm/] [--seeds=3] [--num_epochs=3] [--max_train=2000]

The task is to find, for each question of SQuAD 1.1, the sentence of its paragraph that contains
the answer, among the sentences of all questions of dev (6 articles that are not in train). Training
is that of SentenceBERT with in-batch negatives (task `embeddings`), at the rate that is better for
the first seed. Rows of the table: words in common (cosine of TF-IDF, fitted on train), the vectors
of each checkpoint before training, and after it.

If transformers is installed, the vectors of --real are also compared with those of transformers
(mean of the last states, length 1) on the dev sentences; prints the largest difference. Writes
table.md.
"""

import argparse
import dataclasses
import pathlib
import sys
from typing import Any

import numpy as np

from benchmarks import transfer
from bertjax.artifact import loading
from bertjax.data.corpus import sentences
from bertjax.finetuning import predictor, task_types
from bertjax.finetuning import scores as scores_lib
from bertjax.finetuning.examples import types as examples_lib
from bertjax.inference import pretrained
from bertjax.runtime import backend

RATES = (2e-5, 1e-4)
MAX_LENGTH = 96
TOLERANCE = 1e-5


def pairs(file: pathlib.Path) -> list[tuple[str, str]]:
    """Returns (question, the sentence in which its first answer begins) for a SQuAD file.

    Skips a question if a sentence up to that of the answer has a line break, which the splitter
    removes, so that the sentence is not found in the paragraph.
    """
    found = []
    for question in examples_lib.Question.of_squad(str(file), impossible=False):
        _, start = question.answers[0]
        place = 0
        for sentence in sentences.SPLITTERS["rules"](question.context):
            place = question.context.find(sentence, place)
            if place < 0:
                break
            if place <= start < place + len(sentence):
                found.append((" ".join(question.question.split()), " ".join(sentence.split())))
            place += len(sentence)
    return found


def write(found: list[tuple[str, str]], file: pathlib.Path) -> None:
    """Writes the pairs as TSV with a header."""
    lines = ["sentence1\tsentence2", *("\t".join(pair) for pair in found)]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")


def untrained(path: str) -> predictor.Predictor:
    """Returns a predictor for the task with a checkpoint as it is."""
    config = dataclasses.asdict(task_types.load("embeddings").Config())
    task = {"name": "embeddings", "kind": "embeddings", "config": config, "labels": [],
            "max_length": MAX_LENGTH}  # fmt: skip
    return predictor.Predictor(dataclasses.replace(loading.load(path), task=task))


def tf_idf(train: list[tuple[str, str]], dev: list[tuple[str, str]]) -> dict[str, float]:
    """Returns the scores of retrieval by words in common (TF-IDF)."""
    text = scores_lib.library("sklearn.feature_extraction.text")
    vectorizer = text.TfidfVectorizer(sublinear_tf=True).fit(t for pair in train for t in pair)
    questions, answers = (vectorizer.transform(side) for side in zip(*dev, strict=True))
    likeness = (questions @ answers.T).toarray()
    own = np.array([likeness[i, i] for i in range(len(dev))])
    # One sentence may answer several questions, so a tie does not lower the rank.
    return scores_lib.retrieval((1 + (likeness > own[:, None] + 1e-9).sum(axis=1)).tolist())


def difference(path: str, texts: list[str]) -> float | None:
    """Returns the largest difference of our vectors to transformers'; None if not installed."""
    try:
        import torch
        import transformers
    except ImportError:
        return None
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    model = transformers.AutoModel.from_pretrained(path).eval()
    theirs = []
    for start in range(0, len(texts), 32):
        batch = tokenizer(
            texts[start : start + 32], padding=True, truncation=True, return_tensors="pt"
        )
        with torch.no_grad():
            states = model(**batch).last_hidden_state
        weights = batch["attention_mask"][:, :, None].float()
        means = (states * weights).sum(1) / weights.sum(1)
        theirs.append(torch.nn.functional.normalize(means, dim=1).numpy())
    ours = pretrained.Pretrained(loading.load(path)).encode(texts, normalize=True, truncate=True)
    return float(np.abs(ours - np.concatenate(theirs)).max())


def trained(path: str, name: str, flags: argparse.Namespace) -> dict[str, Any]:
    """Trains a checkpoint; returns the scores on dev: {score: summary over seeds}."""
    output = pathlib.Path(flags.output)
    return transfer.swept(
        RATES,
        flags.seeds,
        model=path,
        task="embeddings",
        train=output / "train.tsv",
        dev=output / "dev.tsv",
        output=output / name,
        num_epochs=flags.num_epochs,
        max_length=MAX_LENGTH,
        dtype=flags.dtype,
        overrides={"data.max_train": flags.max_train},
    )["splits"]["dev"]


def table(rows: dict[str, dict[str, Any]]) -> str:
    """Returns the rows in Markdown; a score is a number or a summary over seeds."""
    lines = ["| vectors | accuracy at 1 | mean reciprocal rank |", "|---|---|---|"]
    for name, found in rows.items():
        cells = [name]
        for score in ("accuracy_at_1", "mrr"):
            value = found[score]
            if isinstance(value, dict):
                std = "" if value["std"] is None else f" +- {value['std']:.2f}"
                cells.append(f"{value['mean']:.2f}{std}")
            else:
                cells.append(f"{value:.2f}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Scores, trains, and scores again.

    Returns 1 if training did not help --ours or the vectors differ from transformers', else 0.
    """
    backend.start_with_kept_memory()
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", required=True, help="folder with qa/squad11_*.json")
    parser.add_argument("--output", required=True)
    parser.add_argument("--ours", required=True, help="workdir or artifact of an encoder")
    parser.add_argument("--real", help="Hugging Face folder of a published model")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--num_epochs", type=int, default=3)
    parser.add_argument("--max_train", type=int, default=0, help="number of pairs; 0: all")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    flags = parser.parse_args()
    backend.configure(flags.dtype)
    output = pathlib.Path(flags.output)
    output.mkdir(parents=True, exist_ok=True)
    found = {s: pairs(pathlib.Path(flags.data) / f"qa/squad11_{s}.json") for s in ("train", "dev")}
    for split, of_split in found.items():
        write(of_split, output / f"{split}.tsv")
    print(f"{len(found['train']):,} pairs to train, {len(found['dev']):,} to score")
    rows = {"words in common": tf_idf(found["train"], found["dev"])}
    dev = [examples_lib.Sentence(pair) for pair in found["dev"]]
    wrong = False
    for name, path in (("ours", flags.ours), ("real", flags.real)):
        if not path:
            continue
        before, after = f"{name}, as pretrained", f"{name}, trained"
        rows[before] = untrained(path).evaluate(dev)
        rows[after] = trained(path, name, flags)
        print(table(rows), flush=True)
        (output / "table.md").write_text(table(rows))
        if name == "ours":
            wrong |= rows[after]["mrr"]["mean"] <= rows[before]["mrr"]
    if flags.real:
        apart = difference(flags.real, [answer for _, answer in found["dev"]])
        if apart is not None:
            print(f"largest difference to transformers' vectors: {apart:.1e}")
            wrong |= apart > TOLERANCE
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
