"""The facts about the data and the tokenizer of a run, from its prepared folders.

    facts = data_facts.of_text("prepared/", tokenizer)
    facts.fertility, facts.unknown_share, facts.lengths
"""

import dataclasses
from typing import Any

import numpy as np

from bertjax.artifact import facts
from bertjax.data.prepared import store
from bertjax.data.tokenizers import tokenizer as tokenizer_lib

_RECORDS = 48  # of the train split, spread over all of it, that are read for lengths and words


@dataclasses.dataclass(frozen=True)
class Text:
    """Facts about one prepared folder.

    manifest: see `manifest.read`. lengths: int[N], the tokens of each sampled document. words,
    tokens: their numbers in the sample; a word is a piece that does not continue another one.
    """

    manifest: dict[str, Any]
    lengths: np.ndarray
    words: int
    tokens: int

    @property
    def fertility(self) -> float | None:
        """The tokens per word; None if there are no words."""
        return self.tokens / self.words if self.words else None

    @property
    def unknown_share(self) -> float:
        """The share of unknown tokens in the train split."""
        train = self.manifest["splits"]["train"]
        return train["unknown"] / max(1, train["tokens"])

    @property
    def bytes_per_token(self) -> float:
        """The bytes of text per token, in both splits together."""
        tokens = sum(split["tokens"] for split in self.manifest["splits"].values())
        return self.manifest["text_bytes"] / max(1, tokens)


def of_text(path: str, tokenizer: tokenizer_lib.Tokenizer) -> Text | None:
    """Returns the facts about the folder at `path`; None if it cannot be read any more.

    Reads a sample of the records. For a remote folder, whose shards would be copied, and for a
    folder that was prepared with another tokenizer, it reads the manifest only.
    """
    manifest = facts.read_manifest(path)
    if manifest is None:
        return None
    empty = Text(manifest, np.zeros(0, int), 0, 0)
    if "://" in path or manifest["tokenizer"]["fingerprint"] != tokenizer.fingerprint:
        return empty
    dataset = store.open_dataset(path, "train")
    if not dataset.num_records:
        return empty
    count = min(_RECORDS, dataset.num_records)
    indices = np.linspace(0, dataset.num_records - 1, count).astype(int)
    lengths: list[int] = []
    words = tokens = 0
    starts_word = ~tokenizer.continuations()
    for record in dataset.read(list(indices)):
        ends = np.cumsum(record.tokens_per_sentence, dtype=np.int64)
        last = ends[np.cumsum(record.sentences_per_document, dtype=np.int64) - 1]
        per_document = np.diff(last, prepend=0)
        # The last document of a record may continue in the next record, which is not sampled.
        lengths += per_document[: max(1, len(per_document) - 1)].tolist()
        tokens += record.tokens.size
        words += int(starts_word[record.tokens].sum())
    return Text(manifest, np.array(lengths), words, tokens)


def of_run(config: dict[str, Any], tokenizer: tokenizer_lib.Tokenizer) -> dict[str, Text | None]:
    """Returns {source: facts about its folder, None if it is gone} of a run's config."""
    return {name: of_text(path, tokenizer) for name, path in facts.folders_of(config).items()}


def length_bins(lengths: np.ndarray, bins: int = 16) -> tuple[np.ndarray, np.ndarray]:
    """Returns (edges, counts) of a histogram whose bins grow by powers, from short to long."""
    low, high = max(1, int(lengths.min())), int(lengths.max()) + 1
    edges = np.unique(np.round(np.geomspace(low, max(high, low + 2), bins + 1)).astype(int))
    return edges, np.histogram(lengths, edges)[0]
