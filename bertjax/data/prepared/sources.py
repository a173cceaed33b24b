"""Several prepared datasets that are mixed while training: the sources of a run.

    train = sources.open_split({"web": "prepared/web", "books": "prepared/books"}, "train")
    train.datasets["web"].num_tokens
"""

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

from bertjax import errors
from bertjax.data.prepared import store
from bertjax.data.tokenizers import tokenizer as tokenizer_lib


@dataclasses.dataclass(frozen=True)
class Sources:
    """The same split of several prepared datasets, which have the same tokenizer.

    datasets: {name: dataset}, sorted by name.
    """

    datasets: Mapping[str, store.Dataset]

    @property
    def path(self) -> str:
        """The folders, for messages."""
        return ", ".join(dataset.path for dataset in self.datasets.values())

    @property
    def num_documents(self) -> int:
        """The number of documents of all sources together."""
        return sum(dataset.num_documents for dataset in self.datasets.values())

    @property
    def num_tokens(self) -> int:
        """The number of tokens of all sources together."""
        return sum(dataset.num_tokens for dataset in self.datasets.values())

    @property
    def tokenizer_fingerprint(self) -> str:
        """The fingerprint of the tokenizer of all sources."""
        return next(iter(self.datasets.values())).tokenizer_fingerprint

    @property
    def fingerprint(self) -> str:
        """The fingerprints of the sources, as "NAME=FINGERPRINT,..."."""
        return ",".join(f"{name}={data.fingerprint}" for name, data in self.datasets.items())

    @property
    def manifest(self) -> dict[str, Any]:
        """{"sources": the files that all datasets were prepared from}."""
        files = [data.manifest.get("sources", []) for data in self.datasets.values()]
        return {"sources": [file for part in files for file in part]}

    def load_tokenizer(self) -> tokenizer_lib.Tokenizer:
        """Returns the tokenizer of all sources."""
        return next(iter(self.datasets.values())).load_tokenizer()


Data = store.Dataset | Sources


def by_name(dataset: Any) -> Mapping[str, Any]:
    """Returns {name: dataset} of `Sources`, or {"": dataset} of a single dataset."""
    return dataset.datasets if isinstance(dataset, Sources) else {"": dataset}


def open_split(paths: Mapping[str, str | os.PathLike], split: str) -> Sources:
    """Opens a split of every source.

    paths: {name: folder written by `bertjax prepare`}. Raises UserError if a source has no text in
    the split, or if two sources were prepared with different tokenizers.
    """
    datasets = {name: store.open_dataset(paths[name], split) for name in sorted(paths)}
    first = next(iter(datasets))
    for name, dataset in datasets.items():
        key = f"config.data.sources.{name}.path = {dataset.path}"
        if not dataset.num_records:
            remedy = "prepare it with --heldout_fraction above 0" if split == "heldout" else (
                "prepare a larger corpus"
            )
            raise errors.UserError(f"{key}: the {split} split contains no documents; {remedy}")
        if dataset.tokenizer_fingerprint != datasets[first].tokenizer_fingerprint:
            raise errors.UserError(
                f"{key}: was prepared with a different tokenizer from config.data.sources.{first}"
                f".path = {datasets[first].path}; prepare all sources with the same tokenizer"
            )
    return Sources(datasets)
