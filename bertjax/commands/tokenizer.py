"""Train a tokenizer on text and write it as a folder that transformers can load too.

Every kind works with every objective: a vocabulary without an end-of-text token uses [SEP] as one,
and the sentinels of span corruption are ids above the pieces. The kind `bytes` is ByT5's tokenizer,
which needs no training; its sentinels are the last 100 byte ids.

Example:
  bertjax tokenizer --kind=wordpiece --input='corpus/*.jsonl' --vocab_size=30522 --output=tok/
  bertjax tokenizer --kind=bytes --output=tok/
"""

import argparse
import collections
from collections.abc import Iterator, Sequence

from etils import epath

from bertjax import corpus_flags, errors, paths
from bertjax.data.corpus import reader
from bertjax.data.tokenizers import tokenizer

# More text hardly changes the pieces. sentencepiece (unigram) holds several copies of the text.
SAMPLE_BYTES = {"wordpiece": 256 << 20, "bpe": 256 << 20, "unigram": 64 << 20}
_UNIT_BYTES = 1 << 20
_EXAMPLE_LENGTH = 70
_BYTES_EXAMPLE = "Every byte is a token."


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Declares the flags."""
    flag = parser.add_argument
    flag("--input", action="append",
         help="file, folder, glob, gs://, tfds:NAME/CONFIG:SPLIT or builtin; may be repeated")
    flag("--output", required=True, help="folder to write")
    flag("--vocab_size", type=int, help="number of pieces, including special tokens")
    flag("--kind", choices=(*tokenizer.KINDS, "bytes"), default="wordpiece",
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
    output = paths.of(flags.output)
    existing = _existing_tokenizer(output)
    tok, example = _byte_tokenizer(flags) if flags.kind == "bytes" else _train(flags)
    if existing is None:
        _write(tok, output)
    elif existing.fingerprint != tok.fingerprint:
        raise errors.UserError(
            f"{output}: contains another tokenizer; remove it or give another --output"
        )
    print(f"tokenizer    {tok.kind}, {tok.size:,} pieces")
    print(f"fingerprint  {tok.fingerprint}")
    print(f"output       {output}" + (" (already present)" if existing else ""))
    print(f"example      {example}")
    print(f"             {' '.join(tok.readable(tok.encode(example)))}")


def _byte_tokenizer(flags: argparse.Namespace) -> tuple[tokenizer.Tokenizer, str]:
    """Returns the byte tokenizer and an example text."""
    for name in ("input", "vocab_size", "lowercase"):
        if getattr(flags, name) is not None:
            raise errors.UserError(
                f"--{name} cannot be used with --kind=bytes, whose pieces are the 256 bytes: "
                "remove it"
            )
    return tokenizer.of_bytes(), _BYTES_EXAMPLE


def _train(flags: argparse.Namespace) -> tuple[tokenizer.Tokenizer, str]:
    """Trains and returns the tokenizer, with an example text; prints what it was trained on."""
    for name in ("input", "vocab_size"):
        if getattr(flags, name) is None:
            raise errors.UserError(f"--kind={flags.kind} needs --{name}")
    if flags.vocab_size < 1:
        raise errors.UserError(f"--vocab_size={flags.vocab_size}: must be 1 or more")
    skipped: collections.Counter[str] = collections.Counter()
    sources = reader.find(
        flags.input,
        format=flags.format,
        text_field=flags.text_field,
        text_template=flags.text_template,
        on_error=flags.on_error,
        skipped=skipped,
    )
    sample = Sample(sources, flags, skipped)
    size = min(sum(source.size for source in sources), sample.limit)
    errors.tell(
        f"training a {flags.kind} tokenizer on {size / 1e6:,.1f} MB of {len(sources):,} source(s)"
    )
    trained = tokenizer.train(
        flags.kind,
        sample,
        flags.vocab_size,
        lowercase=None if flags.lowercase is None else flags.lowercase == "true",
    )
    print(f"read         {sample.documents:,} documents, {sample.bytes:,} bytes of "
          f"{len(sources)} source(s){sample.spread}")
    for reason, count in sorted(skipped.items()):
        print(f"skipped      {count:,} {reason}")
    return trained, sample.example


class Sample:
    """The texts to train on: the whole input, or parts spread evenly over it.

    Can be iterated repeatedly. documents, bytes: the size of the text in the last pass. example:
    the beginning of the first text. spread: a note for the report, "" if the whole input is used.
    """

    def __init__(
        self,
        sources: Sequence[reader.Source],
        flags: argparse.Namespace,
        skipped: collections.Counter[str],
    ):
        limit = SAMPLE_BYTES[flags.kind] if flags.max_bytes is None else flags.max_bytes
        if limit < 1:
            raise errors.UserError(f"--max_bytes={limit}: must be 1 or more")
        size = sum(source.size for source in sources)
        unit_bytes = max(1, min(_UNIT_BYTES, limit // 64))
        units = [
            unit
            for source in sources
            for unit in reader.split(source, unit_bytes, text_split=flags.text_split)
        ] if size > limit else list(sources)
        count = min(len(units), max(1, limit * len(units) // max(1, size)))
        self._units = [units[i * len(units) // count] for i in range(count)]
        self.limit = limit
        self._flags = flags
        self._skipped = skipped
        self.spread = f", sampled evenly from {size:,}" if size > limit else ""
        self.documents = self.bytes = 0
        self.example = ""

    def __iter__(self) -> Iterator[str]:
        self.documents = self.bytes = 0
        self._skipped.clear()
        for i, unit in enumerate(self._units, start=1):
            yield from self._texts(unit, self.limit * i // len(self._units))
        if not self.bytes:
            raise errors.UserError(f"--input={' '.join(self._flags.input)}: contains no text")

    def _texts(self, unit: reader.Source, budget: int) -> Iterator[str]:
        """Yields the unit's texts while `bytes` is below `budget`; truncates the last one."""
        documents = reader.documents(
            unit,
            text_field=self._flags.text_field,
            text_template=self._flags.text_template,
            text_split=self._flags.text_split,
            on_error=self._flags.on_error,
            skipped=self._skipped,
        )
        for text in documents:
            if self.bytes >= budget:
                return
            text = text[: budget - self.bytes]
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
