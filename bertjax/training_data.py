"""Finds the training samples of each step: which source they are from, and their position in it.

In a run with `config.phases` or `config.data.sources`, each phase continues to read a source where
the phase before stopped. If the number of samples per epoch changes, because the sequences have
another length, the phase starts at the same fraction of the epoch, so that it reads the rest of the
text. In other runs every phase starts at the first sample.
"""

import functools
import hashlib
from collections.abc import Mapping
from typing import Any

from bertjax import mixing, phases
from bertjax.data.batches import loader, mixture
from bertjax.data.prepared import sources
from bertjax.data.tokenizers.vocabulary import Vocabulary


class TrainingData:
    """The streams of training batches of a run.

    run: the `experiment.Experiment`. dataset: a prepared dataset, or `sources.Sources`.
    """

    def __init__(self, run: Any, dataset: Any, vocabulary: Vocabulary):
        self._run, self._vocabulary = run, vocabulary
        self._datasets: Mapping[str, loader.Dataset] = sources.by_name(dataset)
        self._config = run.config
        self._phases = phases.of(run.config)
        self._streams: dict[tuple[Any, ...], loader.Stream] = {}
        self._order = functools.cache(self._make_order)
        self._first = functools.cache(self._find_first)
        self._num_samples = functools.cache(self._count_samples)

    def stream(self, phase: phases.Phase) -> mixture.Mixture:
        """Returns the batches of a phase; batch 0 is for its first step."""
        order = self._order(phase)
        _, transform = self._run.at(phase).sampling(phase.length, self._vocabulary)
        return mixture.Mixture(
            {name: self._source_stream(name, phase) for name in order.counts},
            order,
            transform,
            batch_size=phase.batch_size,
            first=self._first(phase),
        )

    def weights(self, phase: phases.Phase) -> dict[str, float]:
        """Returns {source: its share of the phase's samples}."""
        if "" in self._datasets:  # one dataset, though the run may have had sources
            return {"": 1.0}
        num_tokens = {name: data.num_tokens for name, data in self._datasets.items()}
        return mixing.weights(phase.config, num_tokens)

    def last_alike(self, phase: phases.Phase) -> phases.Phase:
        """Returns the last phase of the run that mixes the sources as `phase` does."""
        shares = self.weights(phase)
        return [other for other in self._phases if self.weights(other) == shares][-1]

    def epochs(self, step: int) -> dict[str, float]:
        """Returns {source: number of epochs that the first `step` steps of the run read}."""
        phase = phases.at_step(self._phases, step)
        ends = self._ends(phase, step)
        return {
            name: ends[name] / self._num_samples(name, phase) if ends.get(name) else 0.0
            for name in self._datasets
        }

    def metrics(self, step: int) -> dict[str, float]:
        """Returns the number of the phase, and the epochs and tokens of each source up to a step.

        Leaves out the phase if the run has no `config.phases`, and the rest if it has one dataset.
        The tokens are those of the read part of the text, without special tokens and padding.
        """
        values: dict[str, float] = {}
        if self._config.phases:
            values["phase"] = phases.at_step(self._phases, step).number + 1
        if self._config.data.sources:
            for name, epochs in self.epochs(step).items():
                values[f"data/{name}/epochs"] = epochs
                values[f"data/{name}/tokens"] = epochs * self._datasets[name].num_tokens
        return values

    def _find_first(self, phase: phases.Phase) -> dict[str, int]:
        """Returns {source: position of the phase's first sample}, for sources read before."""
        index = self._phases.index(phase)
        if index == 0 or not (self._config.phases or self._config.data.sources):
            return {}
        before = self._phases[index - 1]
        return {
            name: end * self._num_samples(name, phase) // self._num_samples(name, before)
            for name, end in self._ends(before, before.stop).items()
        }

    def _ends(self, phase: phases.Phase, step: int) -> dict[str, int]:
        """Returns {source: position after `step`}, in samples of the phase that contains it."""
        ends = self._first(phase)
        drawn = self._order(phase).drawn((step - phase.start) * phase.batch_size)
        return {name: ends.get(name, 0) + drawn.get(name, 0) for name in ends | drawn}

    def _make_order(self, phase: phases.Phase) -> mixture.Order:
        return mixture.Order(self.weights(phase), self._config.seed, phase.number)

    def _count_samples(self, name: str, phase: phases.Phase) -> int:
        return self._source_stream(name, phase).samples_per_epoch

    def _source_stream(self, name: str, phase: phases.Phase) -> loader.Stream:
        """Returns the samples of a source, which phases of the same length and objective share."""
        key = name, phase.length, str(phase.config.objective)
        if key not in self._streams:
            sampling, _ = self._run.at(phase).sampling(phase.length, self._vocabulary)
            seed = _seed_of(name, self._config.seed)
            self._streams[key] = loader.Stream(self._datasets[name], sampling, seed=seed)
        return self._streams[key]


def _seed_of(name: str, seed: int) -> int:
    """Returns a seed for the source, so that no two sources share random numbers."""
    if not name:
        return seed
    return seed + int.from_bytes(hashlib.blake2b(name.encode(), digest_size=7).digest(), "big")
