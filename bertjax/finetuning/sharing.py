"""Shares models, rows and compiled programs between fine-tunings in one process.

A sweep fine-tunes one model on the same rows again and again, a suite one model on many tasks.

    shared = Shared()
    run.finetune(config, "out/a", shared=shared)
    run.finetune(other, "out/b", shared=shared)

NOTE: only the last model, and the rows of the last data, are kept: all tasks together may be larger
than the memory.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import ml_collections

from bertjax.artifact import artifact, loading
from bertjax.finetuning import compiling, reading, rows
from bertjax.finetuning.task_types import base


class Shared:
    """The last model, the last data, and all compiled programs.

    tasks: how many tasks share the programs. If there are several, their batches prefer lengths
    that all of them have: see `batching.fitted`.
    """

    def __init__(self, tasks: int = 1):
        self.tasks = tasks
        self.programs: compiling.Programs = {}
        self._source: tuple[str, artifact.Artifact] | None = None
        self._labelled: tuple[Any, reading.Labelled] | None = None
        self._rows: tuple[base.TaskType, Any, Mapping[str, rows.Encoded]] | None = None

    def source(self, path: str) -> artifact.Artifact:
        """Returns the model at `path`."""
        if self._source is None or self._source[0] != path:
            self._source = None  # frees the memory of the last model first
            self._source = path, loading.load(path)
        return self._source[1]

    def labelled(
        self, config: ml_collections.ConfigDict, source: artifact.Artifact
    ) -> reading.Labelled:
        """Returns the examples of the config, see `reading.read`."""
        key = (config.model, config.task, config.kind.to_dict(), config.data.to_dict())
        if self._labelled is None or self._labelled[0] != key:
            self._labelled = None
            self._labelled = key, reading.read(config, source)
        return self._labelled[1]

    def rows(
        self, task_type: base.TaskType, labelled: reading.Labelled
    ) -> Mapping[str, rows.Encoded]:
        """Returns the rows of the examples for a task type that is bound to a model.

        They are copies, because features are cached in the rows (see `feature_cache`).
        """
        last = self._rows
        if last is None or last[0] != task_type or last[1] is not labelled.splits:
            self._rows = None
            encoded = reading.rows_of(task_type, labelled)
            last = self._rows = task_type, labelled.splits, encoded
        return {
            split: dataclasses.replace(encoded, rows=[dict(row) for row in encoded.rows])
            for split, encoded in last[2].items()
        }
