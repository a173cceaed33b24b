"""Tokenize text into sharded token records, once and in parallel.

Reads text files, JSON lines, CSV and TSV (all also .gz, .zst), Parquet, ArrayRecord, TFDS and
`builtin`, the English text of this Python installation. After an interruption or a kill, the same
command resumes.

Example:
    bertjax prepare --input='corpus/*.jsonl' --tokenizer=tok/ --output=prepared/
    bertjax prepare --input='wiki/*.parquet' --text_template='{title}\\n{text}' --tokenizer=tok/ \\
        --output=prepared/
    bertjax prepare --input='buch/*.txt' --language=de --tokenizer=tok/ --output=prepared/
    bertjax prepare --input='code/*.jsonl' --splitter=none --tokenizer=gpt2/ --output=prepared/
    bertjax prepare --input='web/*.parquet' --keep_languages=deu,nld --min_chars=200 \\
        --decontaminate='glue/*/test.tsv' --deduplicate=near --tokenizer=tok/ --output=prepared/
    bertjax prepare --input='gs://bucket/web/*.parquet' --tokenizer=tok/ --output=gs://bucket/out \\
        --runner=beam --beam.runner=DataflowRunner --beam.project=my-project --beam.region=REGION
"""

import argparse
import functools
import sys
import time
from typing import Any

from tqdm import tqdm

from bertjax import corpus_flags, errors, progress
from bertjax.data.corpus import languages, sentences
from bertjax.data.prepared import duplicates, filters, overlap, prepare, prepared
from bertjax.data.tokenizers import tokenizer

PLAIN_EVERY = 10  # seconds between progress lines if stderr is not a terminal


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Declares the flags."""
    parser.add_argument(
        "--input",
        action="append",
        required=True,
        help="file, folder, glob, tfds:NAME/CONFIG:SPLIT or builtin; may be repeated",
    )
    parser.add_argument("--tokenizer", required=True, 
                        help="folder or file of the tokenizer, or ORG/NAME on the Hub")  # fmt: skip
    parser.add_argument("--output", required=True, help="folder for the prepared data")
    parser.add_argument("--workers", type=int, help="number of processes; default: one per CPU")
    parser.add_argument(
        "--runner",
        choices=prepared.RUNNERS,
        default=prepared.RUNNERS[0],
        help="local: processes of this machine; beam: Apache Beam (pip install 'bertjax[beam]'), "
        "with its options as --beam.NAME=VALUE; without --beam.runner, it runs on this machine; "
        "default: %(default)s",
    )
    parser.set_defaults(beam=None)  # so that the command line accepts --beam.NAME=VALUE
    parser.add_argument(
        "--splitter",
        choices=tuple(sentences.SPLITTERS),
        default="rules",
        help="how to split sentences: by rules for prose, one per line, or none (each paragraph is "
        "one sentence, and line breaks and indentation are kept, as GPT-2 and code need it); with "
        "the others they become single spaces; default: %(default)s",
    )
    parser.add_argument(
        "--language",
        default=languages.ENGLISH,
        metavar="CODE",
        help="language of the text, by whose rules sentences are split: "
        f"{', '.join(languages.LANGUAGES)}; all but en need sentencex: "
        "pip install 'bertjax[languages]'; default: %(default)s",
    )
    parser.add_argument(
        "--heldout_fraction",
        type=float,
        default=0.01,
        help="share of the documents held out for evaluation, at least one; 0: none; "
        "default: %(default)s",
    )
    corpus_flags.add(parser)
    parser.add_argument(
        "--shard_by",
        choices=prepare.SHARD_BY,
        default="size",
        help="size: a shard comes from about 16 MiB of the input; file: from one file, so that the "
        "same documents in other formats give the same shards; default: %(default)s",
    )
    _add_filter_flags(parser.add_argument_group("filters (default: none)"))


def _add_filter_flags(parser: argparse._ArgumentGroup) -> None:
    parser.add_argument(
        "--deduplicate",
        choices=duplicates.MODES,
        default="none",
        help="drop documents that equal an earlier one except for case and white space (exact), or "
        "also those that share about 75%% of its words in order (near; needs datasketch: pip "
        "install 'bertjax[dedup]'); default: %(default)s",
    )
    parser.add_argument(
        "--min_chars", type=int, default=0, metavar="N",
        help="drop documents of fewer characters",
    )
    parser.add_argument(
        "--max_chars", type=int, default=0, metavar="N",
        help="drop documents of more characters; 0: no bound",
    )  # fmt: skip
    parser.add_argument(
        "--keep_languages",
        default="",
        metavar="NAME,...",
        help="drop documents whose --language_field is none of these",
    )
    parser.add_argument(
        "--language_field",
        default=filters.LANGUAGE_FIELD,
        metavar="FIELD",
        help="field or column with the language of the document; default: %(default)s",
    )
    parser.add_argument(
        "--decontaminate",
        action="append",
        default=[],
        metavar="FILES",
        help=f"drop documents that have {overlap.RUN} words in a row in common with a test set: "
        "file, folder or glob (.txt, .jsonl, .json, .csv, .tsv, .parquet), of which all texts "
        "count; may be repeated",
    )


def run(flags: argparse.Namespace) -> None:
    """Prepares the data and prints a report."""
    bar = _Progress()
    result = prepared.prepare(
        flags.input,
        flags.tokenizer,
        flags.output,
        workers=flags.workers,
        runner=flags.runner,
        beam=flags.overrides,
        format=flags.format,
        splitter=flags.splitter,
        language=flags.language,
        heldout_fraction=flags.heldout_fraction,
        text_field=flags.text_field,
        text_template=flags.text_template,
        text_split=flags.text_split,
        on_error=flags.on_error,
        shard_by=flags.shard_by,
        keep_languages=flags.keep_languages.split(",") if flags.keep_languages else (),
        language_field=flags.language_field,
        min_chars=flags.min_chars,
        max_chars=flags.max_chars,
        decontaminate=flags.decontaminate,
        deduplicate=flags.deduplicate,
        on_begin=functools.partial(_header, flags),
        on_progress=bar,
    )
    bar.close()
    for line in result.lines(_read_note(result, bar.share(), bar.seconds())):
        print(progress.wrapped(line))
    print(f"prepared: {flags.output}")


def _header(
    flags: argparse.Namespace, plan: dict[str, Any], tok: tokenizer.Tokenizer, workers: int
) -> None:
    """Prints the input, the tokenizer, the held-out share and the output."""
    sources = plan["sources"]
    files = errors.count(len(sources), "source")
    megabytes = sum(source["size"] for source in sources) / 1e6
    processes = errors.count(workers, "worker")
    if "runner" in flags.overrides:
        processes = flags.overrides["runner"]
    rows = {
        "reads": f"{', '.join(flags.input)}: {files}, {megabytes:,.1f} MB",
        "tokenizer": f"{flags.tokenizer}: {tok.kind}, {tok.size:,} pieces",
    }
    if flags.splitter != sentences.KEEPS_WHITE_SPACE and tok.keeps_line_breaks():
        rows["white space"] = (
            f"line breaks become spaces; --splitter={sentences.KEEPS_WHITE_SPACE} keeps them"
        )
    rows |= {
        "held out": f"{flags.heldout_fraction:.3g} of the documents",
        "writes to": f"{flags.output}, with {processes}",
    }
    progress.table("prepare", rows)


def _read_note(result: prepared.Prepared, share: float, seconds: float) -> str:
    """Returns a note on how much of the text was read now, and how fast.

    share: the share of the text that this call of the command has prepared; earlier calls have
    prepared the rest. seconds: the duration of this call.
    """
    read_bytes = result.text_bytes + sum(size for _, size in result.filtered.values())
    earlier = "" if share == 1 else f", {1 - share:.0%} of it prepared earlier"
    return earlier + (f"; {share * read_bytes / 1e6 / seconds:.1f} MB/s" if share else "")


class _Progress:
    """Shows bytes done, rate and time left: on a terminal as a bar, else as lines."""

    def __init__(self):
        self._start_time = self._last_line_time = time.monotonic()
        self._bar: tqdm | None = None
        self._start_bytes = self._done_bytes = self._total_bytes = 0

    def __call__(self, done: int, total: int) -> None:
        if self._bar is None:
            self._start_bytes = done  # done by an earlier call, so not part of this call's rate
            self._bar = tqdm(
                total=total,
                initial=done,
                unit="B",
                unit_scale=True,
                desc="prepare",
                disable=not sys.stderr.isatty(),
            )
        self._done_bytes, self._total_bytes = done, total
        self._bar.n = done
        self._bar.update(0)
        now = time.monotonic()
        if self._bar.disable and now - self._last_line_time > PLAIN_EVERY:
            self._last_line_time = now
            rate = (done - self._start_bytes) / max(now - self._start_time, 1e-9)
            eta = f", {(total - done) / rate:.0f} s left" if rate and done < total else ""
            print(
                f"prepare: {done / 1e6:.1f} of {total / 1e6:.1f} MB, {rate / 1e6:.1f} MB/s{eta}",
                file=sys.stderr,
            )

    def seconds(self) -> float:
        return time.monotonic() - self._start_time

    def share(self) -> float:
        """Returns the share of all bytes that this call has prepared."""
        return (
            (self._done_bytes - self._start_bytes) / self._total_bytes if self._total_bytes else 0.0
        )

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
