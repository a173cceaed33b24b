"""benchmarks/processes: the batches that real processes log."""

import functools
import itertools

import pytest

from benchmarks import processes
from bertjax import config as config_lib
from bertjax import experiment, training_data
from bertjax.data.prepared import store
from tests.helpers import corpora

STEPS = 3


def _rows(process, count, size):
    return slice(size * process // count, size * (process + 1) // count)


@pytest.mark.proof
def test_logged_rows_of_two_processes_make_the_batches_of_one(tmp_path, monkeypatch):
    folder = corpora.make(tmp_path)
    config = config_lib.load(
        f"{corpora.ROOT}/configs/bert_tiny.py:smoke",
        {"model.vocab_size": "150", "data.path": str(folder / "prepared")},
    )
    train = store.open_dataset(folder / "prepared", "train")
    run = experiment.Experiment(config)
    data = training_data.TrainingData(run, train, train.load_tokenizer().vocabulary())

    def logged(count):
        logs = [tmp_path / f"{count}.{i}" for i in range(count)]
        for i, log in enumerate(logs):
            watched = functools.partialmethod(processes.watched_batches, log=log)
            monkeypatch.setattr(experiment.Experiment, "train_batches", watched)
            batches = run.train_batches(data, 0, functools.partial(_rows, i, count))
            assert len(list(itertools.islice(batches, STEPS))) == STEPS
        return logs

    one, two = logged(1), logged(2)
    assert list(processes.joined(one)) == list(range(STEPS))
    assert processes.joined(two) == processes.joined(one)
    assert processes.joined(two[:1]) != processes.joined(one)
