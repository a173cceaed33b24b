"""Measures the search for the paragraph that answers a question, and the reranking of its results.

    python -m benchmarks.retrieval --data=shared/data/ --output=retrieval/ [--real=minilm/] \\
        [--sets=squad,fairytale] [--queries=100] [--train=600] [--top=50] [--num_epochs=2]

The sets are SQuAD 1.1 (paragraphs of Wikipedia) and FairytaleQA (sections of stories). The
documents are all paragraphs of the dev file, whose texts are not in train; --queries questions
are drawn evenly from it. Rows of the table:

    zero-shot     the vectors of --real (default: the installed MiniLM)
    fine-tuned    the same after --task=embeddings on --train pairs, with in-batch negatives
    reranked      the best --top documents of "fine-tuned", reranked by a cross-encoder that starts
                  from --real too; its negatives are mined with "fine-tuned" among the paragraphs
                  of the training pairs

Each training has one rate and one seed. The output has the collection in BEIR's layout, the runs
in TREC's format and table.md. Returns 1 if reranking lowers the mean reciprocal rank.
"""

import argparse
import json
import pathlib
import sys
import time
from collections.abc import Sequence
from typing import Any

import bertjax
from benchmarks import parity
from bertjax.data.corpus import beir, trec_runs
from bertjax.finetuning import ranking_scores, recipe, retrieval
from bertjax.finetuning import run as run_lib
from bertjax.finetuning.examples import queries as queries_lib
from bertjax.finetuning.examples import types as examples_lib
from bertjax.runtime import backend

SETS = {"squad": "qa/squad11_{}.json", "fairytale": "qa/fairytaleqa_{}.json"}
MAX_LENGTH = 128
RATE, RERANK_RATE = 2e-5, 1e-4
NEGATIVES, SKIPPED = 3, 1  # of each question for the cross-encoder; best wrong results left out
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


def trained(task: str, train: pathlib.Path, rate: float, flags: argparse.Namespace) -> Any:
    """Returns the model of one fine-tuning, whose output folder stands beside its train file."""
    values = {
        "model": flags.real, "learning_rates": str(rate), "max_length": MAX_LENGTH,
        "num_epochs": flags.num_epochs, "dtype": flags.dtype,
    }  # fmt: skip
    config = recipe.make(task, None, {"train": train}, values)
    return run_lib.finetune(config, train.with_suffix("")).model


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


def measured(name: str, flags: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Returns {row: its scores and the seconds that it took} of a set."""
    folder = pathlib.Path(flags.output) / name
    files = {split: str(pathlib.Path(flags.data) / SETS[name].format(split))
             for split in ("train", "dev")}  # fmt: skip
    asked, paragraphs = pairs(files["dev"], flags.queries)
    train, _ = pairs(files["train"], flags.train)
    write_collection(folder / "beir", asked, paragraphs)
    examples = queries_lib.read(folder / "beir", "test", depth=flags.top)
    print(f"{name}: {len(asked):,} questions, {len(paragraphs):,} paragraphs, {len(train):,} pairs")
    rows: dict[str, dict[str, float]] = {}

    def add(row: str, model: Any, first: trec_runs.Run | None, start: float) -> trec_runs.Run:
        found = retrieval.run(model, examples, first)
        trec_runs.write(folder / f"{row}.trec", found)
        rows[row] = examples.scores(found) | {"seconds": time.perf_counter() - start}
        print(row, json.dumps({key: round(value, 2) for key, value in rows[row].items()}),
              flush=True)  # fmt: skip
        return found

    add("zero-shot", bertjax.load(flags.real), None, time.perf_counter())
    start = time.perf_counter()
    write_lines(folder / "pairs.jsonl", [{"anchor": q, "positive": p} for q, p in train])
    encoder = trained("embeddings", folder / "pairs.jsonl", RATE, flags)
    first = add("fine-tuned", encoder, None, start)
    start = time.perf_counter()
    records = mined(encoder, train, folder / "mined")
    write_lines(folder / "candidates.jsonl", records)
    reranker = trained("rerank", folder / "candidates.jsonl", RERANK_RATE, flags)
    add("reranked", reranker, first, start)
    return rows


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
    backend.start_with_huge_pages()
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", required=True, help="folder with qa/squad11_*.json")
    parser.add_argument("--output", required=True)
    parser.add_argument("--real", default=str(parity.minilm_folder()), help="encoder to start from")
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--queries", type=int, default=100, help="questions of each set")
    parser.add_argument("--train", type=int, default=600, help="pairs to train on")
    parser.add_argument("--top", type=int, default=50, help="documents to rerank")
    parser.add_argument("--num_epochs", type=int, default=2)
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    flags = parser.parse_args()
    backend.configure(flags.dtype)
    found = {}
    for name in flags.sets.split(","):
        found[name] = measured(name, flags)
        (pathlib.Path(flags.output) / "table.md").write_text(table(found))
    print(table(found))
    return int(any(r["reranked"]["mrr_at_10"] < r["fine-tuned"]["mrr_at_10"]
                   for r in found.values()))  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
