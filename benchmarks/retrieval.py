"""Measures the search for the paragraph that answers a question, and the reranking of its results.

    python -m benchmarks.retrieval --data=shared/data/ --output=retrieval/ [--real=minilm/] \\
        [--ours=run/] [--sets=squad,fairytale] [--queries=100] [--train=600] [--top=50] \\
        [--questions=1500] [--num_epochs=2] [--peer]

The sets are SQuAD 1.1 (paragraphs of Wikipedia) and FairytaleQA (sections of stories). The
documents are all paragraphs of the dev file, whose texts are not in train; --queries questions
are drawn evenly from it. Rows of the table:

    zero-shot     the vectors of --real (default: the installed MiniLM)
    fine-tuned    the same after --task=embeddings on --train pairs, with in-batch negatives
    mined         the same with hard negatives, which "fine-tuned" finds among the paragraphs of
                  the training pairs
    size N        the first N values of vectors that are trained on the pairs with the Matryoshka
                  loss of all these sizes
    peer          with --peer: sentence-transformers on the same pairs, with the same settings
    reranked      the best --top documents of "fine-tuned", reranked by a cross-encoder that starts
                  from --real too. It learns from --questions questions, each with its paragraph,
                  2 mined negatives and 2 others, drawn at random. No such row if it is 0

With --ours, the rows are repeated for a model that is pretrained here, but for the cross-encoder
and the peer; an empty --real leaves the others out. Each training has one rate and one seed. The
output has the collection in BEIR's layout, the runs in TREC's format and table.md. Returns 1 if
reranking lowers the mean reciprocal rank.
"""

import argparse
import json
import pathlib
import random
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

import bertjax
from benchmarks import parity
from bertjax.artifact import loading
from bertjax.data.corpus import beir, trec_runs
from bertjax.finetuning import ranking_scores, recipe, retrieval
from bertjax.finetuning import run as run_lib
from bertjax.finetuning.examples import queries as queries_lib
from bertjax.finetuning.examples import types as examples_lib
from bertjax.runtime import backend

SETS = {"squad": "qa/squad11_{}.json", "fairytale": "qa/fairytaleqa_{}.json"}
MAX_LENGTH = 128
RATE, RERANK_RATE = 2e-5, 2e-4
BATCH, RERANK_BATCH = 32, 8
SIZES = (32, 64, 128, 384)
NEGATIVES, SKIPPED = 3, 1  # of each question; best wrong results left out
HARD, RANDOM = 2, 2  # mined negatives of a question for the cross-encoder, and others
Pair = tuple[str, str]


def pairs(file: str, count: int) -> tuple[list[Pair], list[str]]:
    """Returns ((question, paragraph) of up to `count` questions, all paragraphs) of a SQuAD file.

    The questions are drawn evenly from the file. 0 means all of them.
    """
    found = [
        (" ".join(question.question.split()), " ".join(question.context.split()))
        for question in examples_lib.Question.of_squad(file, impossible=False)
    ]
    paragraphs = list(dict.fromkeys(paragraph for _, paragraph in found))
    unique = list(dict(found).items())
    step = max(1, len(unique) // count) if count else 1
    return unique[::step][: count or None], paragraphs


def write_collection(folder: pathlib.Path, chosen: Sequence[Pair], paragraphs: list[str]) -> None:
    """Writes the collection in BEIR's layout, with judgements of the split test."""
    (folder / beir.QRELS).mkdir(parents=True, exist_ok=True)
    names = {paragraph: f"d{n}" for n, paragraph in enumerate(paragraphs)}
    corpus = [{"_id": name, "title": "", "text": text} for text, name in names.items()]
    asked = [{"_id": f"q{n}", "text": question} for n, (question, _) in enumerate(chosen)]
    for file, lines in ((beir.CORPUS, corpus), (beir.QUERIES, asked)):
        (folder / file).write_text("".join(json.dumps(line) + "\n" for line in lines))
    judged = [f"q{n}\t{names[paragraph]}\t1" for n, (_, paragraph) in enumerate(chosen)]
    lines = ["\t".join(beir.HEADER), *judged]
    (folder / beir.QRELS / "test.tsv").write_text("\n".join(lines) + "\n")


def write_lines(file: pathlib.Path, records: Sequence[dict[str, Any]]) -> None:
    """Writes records as JSON lines."""
    file.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")


def trained(
    task: str, train: pathlib.Path, rate: float, model: str, flags: argparse.Namespace,
    **keys: str,
) -> Any:  # fmt: skip
    """Returns the model of one fine-tuning, whose output folder stands beside its train file."""
    values = {
        "model": model, "learning_rates": str(rate), "max_length": MAX_LENGTH,
        "batch_size": RERANK_BATCH if task == "rerank" else BATCH, "dtype": flags.dtype,
        "num_epochs": flags.num_epochs,
        **{f"kind.{key}": value for key, value in keys.items()},
    }  # fmt: skip
    config = recipe.make(task, None, {"train": train}, values)
    return run_lib.finetune(config, train.with_suffix("")).model


def with_random(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the records with HARD of their negatives, and RANDOM paragraphs of other records."""
    draw = random.Random(0)
    paragraphs = sorted({record["positive"] for record in records})
    made = []
    for record in records:
        hard = record["negatives"][:HARD]
        others = [p for p in draw.sample(paragraphs, min(len(paragraphs), HARD + RANDOM + 1))
                  if p not in (record["positive"], *hard)]  # fmt: skip
        made.append({**record, "negatives": [*hard, *others[:RANDOM]]})
    return made


def mined(model: Any, train: Sequence[Pair], folder: pathlib.Path) -> list[dict[str, Any]]:
    """Returns records with a question, its paragraph and the paragraphs that the model confuses."""
    write_collection(folder, train, list(dict.fromkeys(paragraph for _, paragraph in train)))
    examples = queries_lib.read(folder, "test", depth=2 * (NEGATIVES + SKIPPED))
    found, records = retrieval.run(model, examples), []
    for example, pair in zip(examples, train, strict=True):
        names = trec_runs.best(found[example.id])
        texts = [examples.collection.documents[name].text for name in names]
        wrong = [text for text in texts if text != pair[1]]
        negatives = wrong[SKIPPED : SKIPPED + NEGATIVES]
        records.append({"query": pair[0], "positive": pair[1], "negatives": negatives})
    return records


class Set:
    """A set of questions and paragraphs in `folder`, and the rows of its table.

    rows: {row: its scores, and the seconds of its training and search}.
    """

    def __init__(self, name: str, flags: argparse.Namespace):
        self.flags = flags
        self.folder = pathlib.Path(flags.output) / name
        files = {split: str(pathlib.Path(flags.data) / SETS[name].format(split))
                 for split in ("train", "dev")}  # fmt: skip
        asked, paragraphs = pairs(files["dev"], flags.queries)
        self.train, _ = pairs(files["train"], flags.train)
        self.questions, _ = pairs(files["train"], flags.questions)
        write_collection(self.folder / "beir", asked, paragraphs)
        self.examples = queries_lib.read(self.folder / "beir", "test", depth=flags.top)
        self.rows: dict[str, dict[str, float]] = {}
        print(f"{name}: {len(asked):,} questions, {len(paragraphs):,} paragraphs, "
              f"{len(self.train):,} pairs")  # fmt: skip

    def add(self, row: str, found: trec_runs.Run, seconds: float) -> None:
        """Adds the scores of a run to the table, and writes the run."""
        trec_runs.write(self.folder / f"{row.replace(' ', '-')}.trec", found)
        self.rows[row] = self.examples.scores(found) | {"seconds": seconds}
        values = {key: round(value, 2) for key, value in self.rows[row].items()}
        print(row, json.dumps(values), flush=True)

    def measure(self, name: str, model: str, *, rerank: bool, peer: bool) -> None:
        """Adds the rows of the encoder at `model`. name: begins their names."""
        folder = self.folder / (name.strip().replace(" ", "-") or "real")
        folder.mkdir(parents=True, exist_ok=True)
        start = time.perf_counter()
        self.add(f"{name}zero-shot", retrieval.run(bertjax.load(model), self.examples),
                 time.perf_counter() - start)  # fmt: skip
        matches = [{"anchor": q, "positive": p} for q, p in self.train]
        for file in ("pairs", "sizes"):
            write_lines(folder / f"{file}.jsonl", matches)
        start = time.perf_counter()
        encoder = trained("embeddings", folder / "pairs.jsonl", RATE, model, self.flags)
        first = retrieval.run(encoder, self.examples)
        self.add(f"{name}fine-tuned", first, time.perf_counter() - start)
        if peer:
            from benchmarks import retrieval_torch  # imports torch

            start = time.perf_counter()
            vectors = retrieval_torch.vectors(
                model, self.train, self.examples.texts(), rate=RATE, batch_size=BATCH,
                num_epochs=self.flags.num_epochs, max_length=MAX_LENGTH,
                bfloat16=self.flags.dtype == "bfloat16",
            )  # fmt: skip
            self.add("peer", self.examples.search(vectors), time.perf_counter() - start)
        start = time.perf_counter()
        records = mined(encoder, self.train, folder / "mined")
        seconds = time.perf_counter() - start
        triplets = [{"anchor": r["query"], "positive": r["positive"], "negatives": r["negatives"]}
                    for r in records]  # fmt: skip
        write_lines(folder / "triplets.jsonl", triplets)
        start = time.perf_counter()
        better = trained("embeddings", folder / "triplets.jsonl", RATE, model, self.flags)
        self.add(f"{name}mined", retrieval.run(better, self.examples),
                 seconds + time.perf_counter() - start)  # fmt: skip
        self._sizes(name, model, folder / "sizes.jsonl")
        if rerank:
            start = time.perf_counter()
            candidates = with_random(mined(encoder, self.questions, folder / "mined"))
            write_lines(folder / "candidates.jsonl", candidates)
            reranker = trained("rerank", folder / "candidates.jsonl", RERANK_RATE, model,
                               self.flags)  # fmt: skip
            self.add("reranked", retrieval.run(reranker, self.examples, first),
                     time.perf_counter() - start)  # fmt: skip

    def _sizes(self, name: str, model: str, file: pathlib.Path) -> None:
        """Adds a row for each size of Matryoshka vectors that the model's width allows."""
        width = loading.load(model).fields["hidden_size"]
        sizes = [size for size in SIZES if size <= width]
        start = time.perf_counter()
        encoder = trained("embeddings", file, RATE, model, self.flags,
                          matryoshka=",".join(map(str, sizes)))  # fmt: skip
        texts = self.examples.texts()
        whole = encoder.encode(texts, normalize=True, truncate=True)
        seconds = time.perf_counter() - start
        for size in sizes:
            part = whole[:, :size] / np.linalg.norm(whole[:, :size], axis=1, keepdims=True)
            self.add(f"{name}size {size}", self.examples.search(part), seconds)


def table(found: dict[str, dict[str, dict[str, float]]]) -> str:
    """Returns the rows of all sets in Markdown."""
    columns = (*ranking_scores.NAMES[:3], "recall_at_10", "seconds")
    lines = [f"| set | vectors | {' | '.join(columns)} |", "|---|---|" + "---:|" * len(columns)]
    for name, rows in found.items():
        for row, scores in rows.items():
            cells = [f"{scores[column]:.1f}" for column in columns]
            lines.append(f"| {name} | {row} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Measures the sets and writes table.md."""
    backend.start_with_kept_memory()
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", required=True, help="folder with qa/squad11_*.json")
    parser.add_argument("--output", required=True)
    parser.add_argument("--real", default=str(parity.minilm_folder()), help="encoder to start from")
    parser.add_argument("--ours", help="an encoder that is pretrained here")
    parser.add_argument("--peer", action="store_true", help="also train with sentence-transformers")
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--queries", type=int, default=100, help="questions of each set")
    parser.add_argument("--train", type=int, default=600, help="pairs to train on")
    parser.add_argument("--questions", type=int, default=1500, help="for the cross-encoder")
    parser.add_argument("--top", type=int, default=50, help="documents to rerank")
    parser.add_argument("--num_epochs", type=int, default=2, help="of each training")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    flags = parser.parse_args()
    backend.configure(flags.dtype)
    found = {}
    for name in flags.sets.split(","):
        measured = Set(name, flags)
        found[name] = measured.rows
        if flags.real:
            measured.measure("", flags.real, rerank=flags.questions > 0, peer=flags.peer)
        if flags.ours:
            measured.measure("ours, ", flags.ours, rerank=False, peer=False)
        (pathlib.Path(flags.output) / "table.md").write_text(table(found))
    print(table(found))
    reranked = [rows for rows in found.values() if "reranked" in rows]
    return int(any(r["reranked"]["mrr_at_10"] < r["fine-tuned"]["mrr_at_10"] for r in reranked))


if __name__ == "__main__":
    sys.exit(main())
