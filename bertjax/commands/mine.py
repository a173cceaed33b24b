"""Find hard negatives for pairs of texts with a model, to train embeddings with them.

For each pair, finds texts of the corpus that the model ranks high for the first text but that do
not match it. The output is a file for `bertjax finetune --task=embeddings`.

Example:
  bertjax mine --model=out/ --data=pairs.tsv --corpus=corpus.jsonl --output=triplets.jsonl
  bertjax mine --model=minilm/ --data=pairs.tsv --output=triplets.jsonl --num_negatives=4
  bertjax finetune --model=minilm/ --task=embeddings --train=triplets.jsonl --output=out2/

A text that equals the first text of a pair, or any text that is paired with it, is never its
negative. A text that is nearly as similar as the positive, or more, is probably a false negative:
see --margin and --relative_margin. A pair without negatives stays a pair in the output.
"""

import argparse
import dataclasses
import json
import pathlib

import bertjax
from bertjax import errors, files, progress
from bertjax.data.corpus import corpus_files
from bertjax.finetuning import tasks
from bertjax.finetuning.examples import readers
from bertjax.inference import mining

_CORPUS_COLUMN = "text"


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Declares the flags."""
    flag = parser.add_argument
    flag("--model", required=True, help="artifact, workdir or Hugging Face folder of an encoder")
    flag("--data", required=True, help="file of pairs that match, as for --task=embeddings")
    flag("--output", required=True, help="file of JSON lines: anchor, positive, negative")
    flag("--corpus",
         help=".txt file with one text per line, or a table or JSON lines with a column text and "
              "perhaps title (as in BEIR); default: the second texts of --data")  # fmt: skip
    flag("--corpus_column", help="column of the texts of --corpus; default: text")
    flag("--text_column", metavar="NAMES",
         help="columns of the two texts of --data, such as question,answer; default: the usual "
              "names")  # fmt: skip
    defaults = mining.Options()
    flag("--num_negatives", type=int, default=defaults.num_negatives,
         help="maximum number of negatives of a pair; default: %(default)s")  # fmt: skip
    flag("--min_rank", type=int, default=defaults.min_rank,
         help="skip texts of a higher rank (1 is the most similar text that does not match); "
              "default: %(default)s")  # fmt: skip
    flag("--max_rank", type=int, default=defaults.max_rank,
         help="last rank that is considered; default: %(default)s")  # fmt: skip
    flag("--margin", type=float, default=defaults.margin,
         help="a negative's similarity is lower than the positive's by at least this; default: "
              "%(default)s")  # fmt: skip
    flag("--relative_margin", type=float, default=defaults.relative_margin,
         help="the same as a share of the positive's similarity; default: %(default)s")  # fmt: skip


def run(flags: argparse.Namespace) -> None:
    """Writes the pairs with their hard negatives, and prints how many were found."""
    errors.file_to_write("output", flags.output, data=flags.data, corpus=flags.corpus)
    if corpus_files.suffix(flags.output) != ".jsonl":
        raise errors.UserError(f"--output={flags.output}: must end in .jsonl")
    if flags.corpus_column and not flags.corpus:
        raise errors.UserError("--corpus_column can only be used with --corpus")
    fields = [field.name for field in dataclasses.fields(mining.Options)]
    options = mining.Options(**{name: getattr(flags, name) for name in fields})
    task = tasks.with_columns(tasks.find("embeddings"), [flags.data], flags.text_column or "", "")
    examples = tasks.read(task, flags.data, "train")
    pairs = [example.texts[:2] for example in examples]
    if len(pairs[0]) < 2:
        raise errors.UserError(f"--data={flags.data}: has single texts; give pairs that match")
    if any(len(example.texts) > 2 for example in examples):
        errors.tell(f"{flags.data}: its negatives are left out; the output has only mined ones")
    corpus = [pair[1] for pair in pairs]
    if flags.corpus:
        corpus = _corpus(flags.corpus, flags.corpus_column or _CORPUS_COLUMN)
    with progress.stage(f"reading {flags.model}"):
        model = bertjax.load(flags.model)
    lines, counts = [], {"found": 0, "without": 0, "too similar": 0}
    for mined in mining.mine(model, pairs, corpus, options):
        lines.append(json.dumps(_record(mined), ensure_ascii=False) + "\n")
        counts["found"] += len(mined.negatives)
        counts["without"] += not mined.negatives
        counts["too similar"] += mined.false_negatives
    files.write_text(pathlib.Path(flags.output), "".join(lines))
    print(f"{counts['found']:,} negatives of {len(lines):,} pairs in {flags.output}")
    print(f"{counts['too similar']:,} texts within the ranks were too similar to a query")
    if counts["without"]:
        advice = "a lower margin or a higher --max_rank finds more"
        print(f"{counts['without']:,} pairs have no negative: {advice}")


def _record(mined: mining.Mined) -> dict[str, str]:
    names = ["negative"]
    if len(mined.negatives) > 1:
        names = [f"negative_{number}" for number in range(1, len(mined.negatives) + 1)]
    negatives = dict(zip(names, mined.negatives, strict=False))
    return {"anchor": mined.query, "positive": mined.positive, **negatives}


def _corpus(path: str, column: str) -> list[str]:
    """Returns the texts of a corpus. Raises UserError if there are none."""
    if corpus_files.suffix(path) == ".txt":
        return [text for _, text in readers.plain(path)]
    texts = []
    for record in readers.records(path, reads=lambda name: name in (column, "title")):
        if column not in record.fields:
            there = errors.several(map(repr, record.columns))
            raise errors.UserError(
                f"{record.where}: has no {column!r}; its columns are {there}: name one as "
                "--corpus_column=NAME"
            )
        title = record.fields.get("title") if column == _CORPUS_COLUMN else None
        text = readers.text(record, column, empty=True)
        text = f"{title} {text}" if isinstance(title, str) else text
        if text.strip():
            texts.append(text.strip())
    if not texts:
        raise errors.UserError(f"--corpus={path}: contains no text")
    return texts
