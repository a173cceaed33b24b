"""Measure how well each layer of a frozen model predicts labels, with a control task.

A linear probe is trained on the states of each layer, the embeddings included. The labels are of
words (CoNLL columns, one tag per word, read at the word's first piece) or of texts (a table with
the columns text and label, pooled).

Example:
  bertjax probe --model=bert-base-uncased/ --train=train.conll --dev=dev.conll --output=probe/
  bertjax probe --model=run/ --train=train.tsv --dev=dev.tsv --output=probe/ --seeds=3

Prints a table, and writes probe.json and probe.png to --output. The control task has random labels,
one for each word type, which a probe can only memorise (Hewitt and Liang 2019, arXiv 1909.03368).
Both tasks are scored on --dev. Selectivity is the accuracy minus the control task's accuracy: if it
is low or negative, the probe may know the words and not what the layer says about them. A text has
the control label of one of its words.
"""

import argparse
import dataclasses

from etils import epath

from bertjax import column_flags
from bertjax.finetuning.probing import report
from bertjax.finetuning.probing import run as run_lib
from bertjax.models.common import heads


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Declares the flags."""
    flag = parser.add_argument
    defaults = run_lib.Options()
    flag(
        "--model",
        required=True,
        help="workdir, checkpoint, artifact, Hugging Face folder or ORG/NAME on the Hub",
    )
    flag("--train", required=True, help="labelled file that the probes are trained on")
    flag("--dev", required=True, help="labelled file that the probes are scored on")
    flag("--output", required=True, help="folder for probe.json and probe.png")
    flag("--task", default="",
         help="tokens, classification, pair, or another task with labels of words or texts; "
              "default: the one that fits the files")  # fmt: skip
    column_flags.add(parser)
    flag("--pooling", choices=heads.POOLINGS, default=defaults.pooling,
         help="with labels of texts: how a text's states become one vector; default: the model's "
              "own pooling, or mean")  # fmt: skip
    flag("--seeds", type=int, default=defaults.seeds,
         help="how many times the probes are trained, each with another control task; default: "
              "%(default)s")  # fmt: skip
    flag("--max_train", type=int, default=defaults.max_train,
         help="maximum number of sentences or texts of --train, drawn at random; default: as many "
              "as fit in 1 GiB")  # fmt: skip
    flag("--max_length", type=int, default=defaults.max_length,
         help="tokens of a row; longer sentences are read in windows, longer texts truncated; "
              "default: %(default)s")  # fmt: skip
    flag("--dtype", choices=("float32", "bfloat16"), default=defaults.dtype,
         help="dtype of the model's computation; default: %(default)s")  # fmt: skip


def run(flags: argparse.Namespace) -> None:
    """Probes the model, prints the table, and writes the files."""
    names = [field.name for field in dataclasses.fields(run_lib.Options)]
    options = run_lib.Options(**{name: getattr(flags, name) for name in names})
    probed = run_lib.probe(
        flags.model, flags.train, flags.dev, task=flags.task, text_column=flags.text_column or "",
        label_column=flags.label_column or "", output=flags.output, options=options,
    )  # fmt: skip
    print(probed)
    folder = epath.Path(flags.output)
    print(f"{folder / report.REPORT} has all numbers, {folder / report.PLOT} the curves")
