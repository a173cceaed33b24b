"""Trains a tokenizer on text files and writes it to a folder.

    trained = corpus_training.train(["corpus/*.jsonl"], "tok/", vocab_size=30522)
    trained.tokenizer, trained.documents

Every kind works with every objective. The kind "bytes" is ByT5's tokenizer, which needs no text.
"""

import collections
import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from etils import epath

from bertjax import errors, html_tables, paths
from bertjax.data.corpus import reader, templates
from bertjax.data.tokenizers import tokenizer

BYTES = "bytes"
KINDS = (*tokenizer.KINDS, BYTES)
# More text hardly changes the pieces. sentencepiece (unigram) holds several copies of the text.
SAMPLE_BYTES = {"wordpiece": 256 << 20, "bpe": 256 << 20, "unigram": 64 << 20}
_UNIT_BYTES = 1 << 20
_EXAMPLE_LENGTH = 70
_BYTES_EXAMPLE = "Every byte is a token."


@dataclasses.dataclass(frozen=True, repr=False)
class Trained:
    """A tokenizer in a folder, and what it was trained on.

    already_present: whether the folder contained this tokenizer before. documents, text_bytes,
    num_sources: the text that was read; 0 for the kind "bytes". sampled_from: the bytes of the
    whole input, if only parts of it were read, else 0. skipped: {reason: number of cases}.
    example: a short text, for instance of the input.
    """

    output: str
    tokenizer: tokenizer.Tokenizer
    already_present: bool = False
    documents: int = 0
    text_bytes: int = 0
    num_sources: int = 0
    sampled_from: int = 0
    skipped: Mapping[str, int] = dataclasses.field(default_factory=dict)
    example: str = _BYTES_EXAMPLE

    def rows(self) -> list[tuple[str, str]]:
        """Returns (label, text) for each line of the report."""
        tok, rows = self.tokenizer, []
        if self.num_sources:
            spread = f", sampled evenly from {self.sampled_from:,}" if self.sampled_from else ""
            sources = errors.count(self.num_sources, "source")
            rows.append(("read", f"{errors.count(self.documents, 'document')}, "
                                 f"{self.text_bytes:,} bytes of {sources}{spread}"))  # fmt: skip
        if self.skipped:
            rows.append(("left out", reader.described(self.skipped)))
        present = " (already present)" if self.already_present else ""
        return [
            *rows,
            ("tokenizer", f"{tok.kind}, {tok.size:,} pieces"),
            ("fingerprint", tok.fingerprint),
            ("output", self.output + present),
            ("example", self.example),
            ("", " ".join(tok.readable(tok.encode(self.example)))),
        ]

    def __repr__(self) -> str:
        return "\n".join(f"{label:<13}{text}" for label, text in self.rows())

    def _repr_html_(self) -> str:
        """Returns the report as a table, for notebooks."""
        return html_tables.table([], self.rows())


def train(
    inputs: Sequence[str] | None,
    output: str | os.PathLike,
    *,
    vocab_size: int | None = None,
    kind: str = "wordpiece",
    lowercase: bool | None = None,
    max_bytes: int | None = None,
    format: str = "auto",
    text_field: str = templates.DEFAULT_FIELD,
    text_template: str = "",
    text_split: str = "file",
    on_error: str = "stop",
) -> Trained:
    """Trains a tokenizer and writes it to the folder `output`, in all file forms of its kind.

    inputs: patterns for `reader.find`. vocab_size: number of pieces, including special tokens.
    Both must be None for the kind "bytes". kind: one of KINDS. lowercase: None means True for
    "wordpiece", which strips accents too, else False. max_bytes: bytes of text to train on, taken
    evenly from the input; None: SAMPLE_BYTES. format, text_field, text_template, text_split,
    on_error: see `reader`.

    If the folder already contains the same tokenizer, it stays as it is. Raises UserError if it
    contains anything else, or if an argument or the input is invalid.
    """
    folder = paths.of(output)
    existing = _existing_tokenizer(folder)
    if kind == BYTES:
        _check_absent(input=inputs, vocab_size=vocab_size, lowercase=lowercase)
        trained = Trained(os.fspath(folder), tokenizer.of_bytes())
    else:
        if kind not in KINDS:
            raise errors.UserError(f"kind = {kind!r}: must be one of {', '.join(KINDS)}")
        for name, value in (("input", inputs), ("vocab_size", vocab_size)):
            if value is None:
                raise errors.UserError(f"--kind={kind} needs --{name}")
        if vocab_size < 1:
            raise errors.UserError(f"--vocab_size={vocab_size}: must be 1 or more")
        limit = SAMPLE_BYTES[kind] if max_bytes is None else max_bytes
        options = {
            "text_field": text_field, "text_template": text_template, "on_error": on_error
        }  # fmt: skip
        sample = Sample(inputs, limit, format, text_split, options)
        trained = _train(kind, sample, vocab_size, lowercase, os.fspath(folder))
    if existing is None:
        _write(trained.tokenizer, folder)
    elif existing.fingerprint != trained.tokenizer.fingerprint:
        raise errors.UserError(
            f"{folder}: contains another tokenizer; remove it or give another --output"
        )
    return dataclasses.replace(trained, already_present=existing is not None)


def _check_absent(**values: Any) -> None:
    for name, value in values.items():
        if value is not None:
            raise errors.UserError(
                f"--{name} cannot be used with --kind=bytes, whose pieces are the 256 bytes: "
                "remove it"
            )


def _train(
    kind: str, sample: "Sample", vocab_size: int, lowercase: bool | None, output: str
) -> Trained:
    size = min(sample.size, sample.limit)
    errors.tell(
        f"training a {kind} tokenizer on {size / 1e6:,.1f} MB of "
        f"{errors.count(sample.num_sources, 'source')}"
    )
    return Trained(
        output,
        tokenizer.train(kind, sample, vocab_size, lowercase=lowercase),
        documents=sample.documents,
        text_bytes=sample.bytes,
        num_sources=sample.num_sources,
        sampled_from=sample.size if sample.size > sample.limit else 0,
        skipped=dict(sample.skipped),
        example=sample.example,
    )


class Sample:
    """The texts to train on: the whole input, or parts spread evenly over it.

    Can be iterated repeatedly. documents, bytes: the size of the text in the last pass. example:
    the beginning of the first text. size: bytes of the whole input. skipped: {reason: cases}.

    limit: bytes of text to read. options: text_field, text_template and on_error.
    """

    def __init__(
        self,
        inputs: Sequence[str],
        limit: int,
        format: str,
        text_split: str,
        options: Mapping[str, Any],
    ):
        if limit < 1:
            raise errors.UserError(f"--max_bytes={limit}: must be 1 or more")
        self._skipped_files: collections.Counter[str] = collections.Counter()
        sources = reader.find(inputs, format=format, skipped=self._skipped_files, **options)
        self.size, self.num_sources = sum(source.size for source in sources), len(sources)
        unit_bytes = max(1, min(_UNIT_BYTES, limit // 64))
        units = (
            [
                unit
                for source in sources
                for unit in reader.split(source, unit_bytes, text_split=text_split)
            ]
            if self.size > limit
            else list(sources)
        )
        count = min(len(units), max(1, limit * len(units) // max(1, self.size)))
        self._units = [units[i * len(units) // count] for i in range(count)]
        self.limit = limit
        self._inputs, self._options = inputs, {**options, "text_split": text_split}
        self.documents = self.bytes = 0
        self.skipped = self._skipped_files.copy()
        self.example = ""

    def __iter__(self) -> Iterator[str]:
        self.documents = self.bytes = 0
        self.skipped = self._skipped_files.copy()
        for i, unit in enumerate(self._units, start=1):
            yield from self._texts(unit, self.limit * i // len(self._units))
        if not self.bytes:
            raise errors.UserError(f"--input={' '.join(self._inputs)}: contains no text")

    def _texts(self, unit: reader.Source, budget: int) -> Iterator[str]:
        """Yields the unit's texts while `bytes` is below `budget`; truncates the last one."""
        for text in reader.documents(unit, skipped=self.skipped, **self._options):
            if self.bytes >= budget:
                return
            text = text[: budget - self.bytes]
            if not text or text.isspace():
                self.skipped["empty documents"] += 1
                continue
            self.documents += 1
            self.bytes += len(text.encode("utf-8", "replace"))
            self.example = self.example or " ".join(text[:_EXAMPLE_LENGTH].split())
            yield text


def _existing_tokenizer(output: epath.Path) -> tokenizer.Tokenizer | None:
    """Returns the tokenizer that the output folder already has; None if it is empty or missing.

    Raises UserError if it contains anything else.
    """
    if not output.exists():
        return None
    if not output.is_dir():
        raise errors.UserError(f"{output}: is a file; --output must be a folder")
    if not any(output.iterdir()):
        return None
    try:
        return tokenizer.load(str(output))
    except errors.UserError as error:
        raise errors.UserError(
            f"{output}: is not empty and contains no tokenizer; give another --output"
        ) from error


def _write(tok: tokenizer.Tokenizer, output: epath.Path) -> None:
    """Writes a hidden folder and renames it to `output`, so that `output` is never incomplete."""
    partial = output.parent / f".{output.name}.partial"
    if partial.exists():
        partial.rmtree()
    tok.save(str(partial))
    if output.exists():
        output.rmdir()
    partial.rename(output)
