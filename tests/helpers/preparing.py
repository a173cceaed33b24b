"""The small corpus and tokenizer that the tests of data preparation share."""

import os
import pathlib
from typing import Any

from bertjax.data.prepared import prepare
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
