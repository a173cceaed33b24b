"""The small corpus and tokenizer that the tests of data preparation share."""

import os
import pathlib
from typing import Any

import numpy as np

from bertjax.data.prepared import prepare, store
from bertjax.data.tokenizers import tokenizer
from tests.helpers import corpora

UNIT = 20_000  # bytes of text per shard
TEXTS = corpora.documents(400)


def train_tokenizer(folder: pathlib.Path) -> str:
    """Trains a tokenizer on TEXTS and saves it to `folder`; returns that folder."""
    tokenizer.train("wordpiece", TEXTS, 150).save(os.fspath(folder))
    return os.fspath(folder)


def run(inputs: str | list[str], tok_path: str, output: Any, **options: Any) -> dict[str, Any]:
    """Runs `prepare` with one worker and small shards; returns its result."""
    inputs = [inputs] if isinstance(inputs, str) else inputs
    options = {"workers": 1, "shard_bytes": UNIT} | options
    return prepare.prepare(inputs, tok_path, os.fspath(output), **options)


def documents(folder: Any, split: str) -> list[list[list[int]]]:
    """Returns documents of sentences of tokens, put together from the records by document id."""
    dataset = store.open_dataset(folder, split)
    found: dict[int, list[list[int]]] = {}
    for record in dataset.read(range(dataset.num_records)):
        pieces = np.split(record.tokens, np.cumsum(record.tokens_per_sentence)[:-1])
        ids = np.repeat(record.document_ids, record.sentences_per_document)
        for document, piece in zip(ids.tolist(), pieces, strict=True):
            found.setdefault(document, []).append(piece.tolist())
    assert len(found) == dataset.num_documents
    return [found[document] for document in sorted(found)]
