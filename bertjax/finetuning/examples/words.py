"""Examples of sentences that are split into words, with a tag for each word.

    Words(("Ada", "spoke"), ("B-PER", "O"))

Files are CoNLL columns (see `conll`), JSON lines or Parquet. Records have a list of words, a list
of tags and, optionally, the raw text as "text". A .txt file for prediction may have one text per
line.
"""

import collections
import re
from collections.abc import Collection, Hashable
from typing import Any, NamedTuple, Self

from bertjax import errors
from bertjax.data.corpus import corpus_files
from bertjax.finetuning import task as task_lib
from bertjax.finetuning.examples import base, conll, readers
from bertjax.finetuning.examples import columns as columns_lib

_WORD = re.compile(r"\w+|[^\w\s]")


class _Fields(NamedTuple):
    words: tuple[str, ...]
    tags: tuple[str, ...] | None = None
    where: str = ""
    text: str = ""


class Words(_Fields, base.Example):
    """A sentence that is split into words, with a tag for each word.

    tags: one for each word, in the BIO2 scheme or any other; None if they are unknown. text: the
    raw text that the words come from; "" if the file has only the words.
    """

    __slots__ = ()

    SUFFIXES = (
        ".conll", ".iob2", ".bio", ".txt", ".tsv", ".jsonl", ".parquet", ".arrow", ".json"
    )  # fmt: skip
    LISTS = ("words", "tags")
    INPUT = "a text, or words"
    FLAGS = ("text", "--text")
    TEXT_SCORES = ("f1", "precision", "recall")

    @classmethod
    def read(
        cls,
        task: task_lib.Task,
        path: str,
        *,
        training: bool,
        scored: bool,
        skipped: collections.Counter[str] | None,
    ) -> list[Self]:
        """Returns the examples of a file: CoNLL columns, records, or one text per line.

        One text per line is accepted only if nothing is scored, because scores need tags.
        """
        entities = task.name.startswith("ner")
        if not training and not scored and conll.is_plain(path, entities=entities):
            return [cls.cut(text, where) for where, text in readers.plain(path)]
        if corpus_files.suffix(path) == ".csv":
            raise errors.UserError(
                f"{path}: words with tags are not read from .csv; give columns as in CoNLL "
                "(.conll, .tsv, .txt), or lists of words and tags (.jsonl, .parquet)"
            )
        if not readers.has_fields(path):
            return cls.of_conll(path, entities=entities if task.columns.label else None)
        records = base.records(task, path, skipped)
        examples = [cls.of_record(record, task.columns) for record in records]
        tags = conll.bio2(
            [example.tags or () for example in examples],
            lambda sentence, word: f"{examples[sentence].where} word {word + 1}",
            entities=entities,
        )
        return [
            example if example.tags is None else example._replace(tags=new_tags)
            for example, new_tags in zip(examples, tags, strict=True)
        ]

    @classmethod
    def of_conll(cls, path: str, *, entities: bool | None) -> list[Self]:
        """Returns the sentences of a file of CoNLL columns; at least one.

        If no line has a tag, the tags of the sentences are None.

        entities: see `conll.bio2`; None discards all tags. Raises UserError for an invalid file,
        and if only some words have a tag.
        """
        sentences = list(conll.sentences(path))
        if not sentences:
            raise errors.UserError(f"{path}: contains no sentences")
        blocks = [sentence.lines for sentence in sentences]
        tags: list[Any] = [None] * len(sentences)
        if entities is not None and any(line.tag for block in blocks for line in block):
            for line in (line for block in blocks for line in block):
                if not line.tag:
                    raise errors.UserError(f"{path}:{line.number}: no tag beside {line.word!r:.40}")
            tags = conll.bio2(
                [[line.tag for line in block] for block in blocks],
                lambda sentence, word: f"{path}:{blocks[sentence][word].number}",
                entities=entities,
            )
        examples = [
            cls(tuple(line.word for line in block), block_tags, f"{path}:{block[0].number}")
            for block, block_tags in zip(blocks, tags, strict=True)
        ]
        return [e.with_text(sentence.text) for e, sentence in zip(examples, sentences, strict=True)]

    @classmethod
    def of_record(cls, record: readers.Record, columns: columns_lib.Columns) -> Self:
        """Converts a record with words, perhaps their tags, and perhaps the raw text as "text".

        Words and tags are lists of equal length. Raises UserError if one of them is empty or is not
        a list of texts, if their lengths differ, or if a word is blank.
        """
        (column,) = columns_lib.text_columns(record, columns)
        cells, tags = record.fields[column], columns_lib.value(record, columns.label)
        for value in (cells, *([] if tags is None else [tags])):
            if not (isinstance(value, list) and value and all(isinstance(v, str) for v in value)):
                raise errors.UserError(
                    f"{record.where}: words and tags must be non-empty lists of texts; if tags are "
                    "numbers, replace them with their names (B-PER, O, ...)"
                )
        if not all(word.strip() for word in cells):
            raise errors.UserError(f"{record.where}: a word of {column!r} is empty")
        if tags is not None and len(tags) != len(cells):
            raise errors.UserError(f"{record.where}: {len(cells)} words and {len(tags)} tags")
        example = cls(tuple(cells), None if tags is None else tuple(tags), record.where)
        text = record.fields.get("text")
        return example.with_text(text) if isinstance(text, str) else example

    @classmethod
    def cut(cls, text: str, where: str = "") -> Self:
        """Splits a raw text into words.

        A run of letters, digits and _ is a word. Any other symbol except white space is a word too.
        """
        return cls(tuple(_WORD.findall(text)), where=where, text=text)

    @classmethod
    def has_columns(cls, path: str) -> bool:
        """Returns whether the file is JSON lines, Parquet or TFDS; CoNLL columns have no names."""
        return readers.has_fields(path)

    @classmethod
    def from_input(cls, value: Any) -> Self:
        """Converts a text or a dict of fields to an example."""
        return cls.cut(value) if isinstance(value, str) else cls(**value)

    def is_labelled(self) -> bool:
        """Returns whether the words have tags."""
        return self.tags is not None

    def unlabelled(self) -> Self:
        """Returns the example without its tags."""
        return self._replace(tags=None)

    def classes(self) -> Collection[str]:
        """Returns the different tags."""
        return set(self.tags or ())

    def all_texts(self) -> list[str]:
        """Returns the words as one text."""
        return [" ".join(self.words)]

    def group(self) -> Hashable:
        """Returns the words."""
        return self.words

    def with_text(self, text: str) -> Self:
        """Returns the example with `text` as its raw text.

        The text must contain the words in order, and nothing else except white space. If it does
        not, the example is returned unchanged.
        """
        try:
            spans = self._replace(text=text).places()
        except errors.UserError:
            return self
        bounds = [0, *(bound for span in spans for bound in span), len(text)]
        gaps = "".join(text[a:b] for a, b in zip(bounds[::2], bounds[1::2], strict=True))
        return self if gaps.strip() else self._replace(text=text)

    def places(self) -> list[tuple[int, int]]:
        """Returns the character span [start, stop) of each word in the raw text.

        Raises UserError if the text does not contain all the words in order.
        """
        spans, end = [], 0
        for word in self.words:
            start = self.text.find(word, end)
            if start < 0:
                where = f"{self.where}: " if self.where else ""
                raise errors.UserError(
                    f"{where}the word {word!r:.40} is not in {self.text[end:]!r:.40}, the rest of "
                    "the text: give the words in the order of the text, or leave out the text"
                )
            end = start + len(word)
            spans.append((start, end))
        return spans
