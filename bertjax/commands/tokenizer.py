"""Train a tokenizer on text and write it as a folder that transformers can load too.

Every kind works with every objective: a vocabulary without an end-of-text token uses [SEP] as one,
and the sentinels of span corruption are ids above the pieces. The kind `bytes` is ByT5's tokenizer,
which needs no training; its sentinels are the last 100 byte ids.

Example:
  bertjax tokenizer --kind=wordpiece --input='corpus/*.jsonl' --vocab_size=30522 --output=tok/
  bertjax tokenizer --kind=bytes --output=tok/
"""

import argparse

from bertjax import corpus_flags
from bertjax.data.tokenizers import corpus_training


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Declares the flags."""
    flag = parser.add_argument
    flag("--input", action="append",
         help="file, folder, glob, gs://, tfds:NAME/CONFIG:SPLIT or builtin; may be repeated")
    flag("--output", required=True, help="folder to write")
    flag("--vocab_size", type=int, help="number of pieces, including special tokens")
    flag("--kind", choices=corpus_training.KINDS, default="wordpiece",
         help="kind of the tokenizer; default: %(default)s")
    flag("--lowercase", choices=("true", "false"),
         help="whether to lowercase; default: true for wordpiece (strips accents too), else false")
    corpus_flags.add(parser)
    flag("--max_bytes", type=int,
         help="bytes of text to train on, taken evenly from the input; default: 256 MiB, but "
              "64 MiB for unigram")


def run(flags: argparse.Namespace) -> None:
    """Trains and writes the tokenizer, and prints a summary.

    Raises UserError if --output has another tokenizer.
    """
    trained = corpus_training.train(
        flags.input,
        flags.output,
        vocab_size=flags.vocab_size,
        kind=flags.kind,
        lowercase=None if flags.lowercase is None else flags.lowercase == "true",
        max_bytes=flags.max_bytes,
        format=flags.format,
        text_field=flags.text_field,
        text_template=flags.text_template,
        text_split=flags.text_split,
        on_error=flags.on_error,
    )
    print(trained)
