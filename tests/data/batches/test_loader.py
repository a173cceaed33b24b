import functools
import hashlib
import pathlib
import subprocess
import sys
import threading

import numpy as np
import pytest

from bertjax import errors
from bertjax.data.batches import loader, mixture
from bertjax.objectives import mlm
from tests.helpers import synthetic

ROOT = pathlib.Path(__file__).resolve().parents[3]
LENGTH = 32
BATCH = 16


def parts(config=None, length=LENGTH):
    """The sampling and the transform of an objective."""
    config, vocabulary = config or mlm.Config(), synthetic.make_vocabulary()
    return (
        mlm.sampling(config, length, vocabulary),
        functools.partial(mlm.transform, config, length, vocabulary),
    )


def plain(batch, rng):
    return batch


def make_stream(*, records=40, batch_size=BATCH, seed=0, window_tokens=2000, config=None):
    dataset = synthetic.Dataset(synthetic.records(records))
    return synthetic.batches_of(
        dataset, *parts(config), batch_size=batch_size, seed=seed, window_tokens=window_tokens
    )


def assert_same(batch, other):
    assert batch.keys() == other.keys()
    for name, value in batch.items():
        assert value.dtype == other[name].dtype
        np.testing.assert_array_equal(value, other[name], err_msg=name)


def digest(stream: mixture.Mixture, steps) -> str:
    """Of all bytes of some batches."""
    sha = hashlib.sha256()
    for step in steps:
        for name, value in sorted(stream.batch(step).items()):
            sha.update(name.encode() + value.tobytes())
    return sha.hexdigest()


# The stream


def test_batches_cross_windows_and_epochs():
    # What the other tests rely on: of the first 60 batches some do.
    stream = make_stream()
    (samples,) = stream._streams
    assert len(samples._windows) >= 5
    assert stream.samples_per_epoch % BATCH
    assert stream.samples_per_epoch < 50 * BATCH
    assert (np.diff(samples._starts) > BATCH).any()


@pytest.mark.parametrize("config", [mlm.Config(), mlm.Config(pair="none", masking="whole_word")])
def test_rows_are_rows_of_the_whole_batch(config):
    stream, other = make_stream(config=config), make_stream(config=config)
    shuffled = np.random.default_rng(0).permutation(BATCH)
    for step in range(0, 60):
        whole = stream.batch(step)
        assert whole["input_ids"].shape == (BATCH, LENGTH)
        for rows in (slice(0, 8), slice(8, 16), slice(3, None, 5), shuffled, shuffled[:3]):
            assert_same(other.batch(step, rows), {n: value[rows] for n, value in whole.items()})


def test_batch_is_a_function_of_seed_and_step():
    stream, resumed = make_stream(), make_stream()
    steps = range(60)
    batches = [stream.batch(step) for step in steps]
    for step in reversed(steps):
        assert_same(resumed.batch(step), batches[step])
    assert len({batch["input_ids"].tobytes() for batch in batches}) == len(batches)
    assert not np.array_equal(make_stream(seed=1).batch(0)["input_ids"], batches[0]["input_ids"])


def test_another_process_makes_the_same_bytes():
    code = (
        "from tests.data.batches import test_loader\n"
        "print(test_loader.digest(test_loader.make_stream(), range(0, 60, 7)))"
    )
    run = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        env=_environment(),
    )
    assert run.stdout.split()[-1] == digest(make_stream(), range(0, 60, 7))


def test_batch_larger_than_the_dataset():
    stream = make_stream(records=2, batch_size=200)
    assert stream.samples_per_epoch < 80
    batch = stream.batch(1)
    assert batch["input_ids"].shape == (200, LENGTH)
    small = make_stream(records=2, batch_size=50)
    for quarter in range(4):
        rows = slice(50 * quarter, 50 * quarter + 50)
        assert_same(small.batch(4 + quarter), {n: value[rows] for n, value in batch.items()})


def test_epoch_of_one_window_has_every_token_once():
    dataset = synthetic.Dataset(synthetic.records(10, counting=True))
    sampling, _ = parts(mlm.Config(pair="none"))
    stream = synthetic.batches_of(dataset, sampling, plain, batch_size=1, seed=0)
    n = stream.samples_per_epoch
    first, second = (
        np.concatenate([stream.batch(step)["input_ids"] for step in range(e * n, e * n + n)])
        for e in (0, 1)
    )
    tokens = np.concatenate([record.tokens for record in dataset.records])  # all differ
    assert np.sort(first[first >= synthetic.FIRST]).tolist() == tokens.tolist()
    assert not np.array_equal(np.unique(first, axis=0), np.unique(second, axis=0))


def test_every_record_is_in_one_window_of_an_epoch():
    dataset = synthetic.Dataset(synthetic.records(41))
    windows = loader.Windows(dataset, parts()[0], 0, 1500)
    for epoch in (0, 1):
        assert np.sort(windows._permutation(epoch)).tolist() == list(range(41))
    assert windows._permutation(0).tolist() != windows._permutation(1).tolist()
    assert windows.edges[0] == 0 and windows.edges[-1] == 41
    assert np.ptp(np.diff(windows.edges)) <= 1


def test_dynamic_masking():
    # A dataset that is one sample: only the masking tells the epochs apart.
    dataset = synthetic.Dataset([synthetic.record({0: [25]})])
    stream = synthetic.batches_of(dataset, *parts(), batch_size=1, seed=0)
    assert stream.samples_per_epoch == 1
    masked = {stream.batch(step)["masked_positions"].tobytes() for step in range(20)}
    assert len(masked) > 15


def test_next_window_is_read_ahead():
    class Watched(synthetic.Dataset):
        reads, enough = 0, threading.Event()

        def read(self, indices):
            self.reads += 1
            if self.reads == 2:
                self.enough.set()
            return super().read(indices)

    dataset = Watched(synthetic.records(20))
    stream = synthetic.batches_of(dataset, *parts(), batch_size=4, seed=0, window_tokens=2000)
    stream.batch(0)
    assert dataset.enough.wait(timeout=30)
    for _ in range(5):
        stream.batch(0)
    assert dataset.reads == 2


def test_empty_dataset_is_an_error():
    with pytest.raises(errors.UserError, match="no text"):
        synthetic.batches_of(synthetic.Dataset([]), *parts(), batch_size=4, seed=0)


# Training


@pytest.mark.parametrize("num_threads", [0, 1, 3])
def test_train_batches_are_those_of_the_stream(num_threads):
    stream, expected = make_stream(), make_stream()
    made = list(loader.train_batches(stream, 25, 45, slice(2, 9), num_threads=num_threads))
    assert len(made) == 20
    for step, batch in enumerate(made, 25):
        assert_same(batch, expected.batch(step, slice(2, 9)))


@pytest.mark.parametrize("num_threads", [0, 2])
def test_corrupt_record_reaches_the_caller(num_threads):
    class Corrupt(synthetic.Dataset):
        def read(self, indices):
            if 33 in indices:
                raise errors.UserError("train-00000-of-00001.array_record, record 33: corrupt")
            return super().read(indices)

    dataset = Corrupt(synthetic.records(40))
    seed = 2
    windows = loader.Windows(dataset, parts()[0], seed, 2000)
    at = np.searchsorted(windows.edges, np.flatnonzero(windows._permutation(0) == 33)[0], "right")
    assert at > 1  # the record is not in the first window
    stream = synthetic.batches_of(
        dataset, *parts(), batch_size=BATCH, seed=seed, window_tokens=2000
    )
    made = []
    with pytest.raises(errors.UserError, match="record 33: corrupt"):
        for batch in loader.train_batches(stream, 0, 10**6, num_threads=num_threads):
            made.append(batch)
    assert made  # the good batches before it were given


@pytest.mark.parametrize("end", ["pass", "raise KeyboardInterrupt"])
def test_interpreter_exits_while_batches_are_made(end):
    code = (
        "from tests.data.batches import test_loader\n"
        "from bertjax.data.batches import loader\n"
        "batches = loader.train_batches(test_loader.make_stream(), 0, 10**9, num_threads=2)\n"
        f"next(batches)\n{end}"
    )
    run = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        env=_environment(),
    )
    assert (run.returncode == 0) == (end == "pass")
    assert ("KeyboardInterrupt" in run.stderr) == (end != "pass")


# Evaluation


def evaluate(*, batch_size=BATCH, records=20, config=None, **options):
    dataset = synthetic.Dataset(synthetic.records(records))
    return list(
        loader.eval_batches(
            dataset, *parts(config), batch_size=batch_size, seed=0, window_tokens=2000, **options
        )
    )


def test_evaluation_has_every_sample_once():
    dataset = synthetic.Dataset(synthetic.records(20))
    windows = loader.Windows(dataset, parts()[0], 0, 2000)
    assert len(windows) > 2
    total = sum(len(windows.read(0, w)[1]) for w in range(len(windows)))
    made = evaluate()
    weights = np.concatenate([batch["example_weights"] for batch in made])
    assert weights.dtype == np.float32
    assert weights.tolist() == [1] * total + [0] * (-total % BATCH)
    assert all(batch["input_ids"].shape == (BATCH, LENGTH) for batch in made)
    for batch, again in zip(made, evaluate(), strict=True):
        assert_same(batch, again)


def test_evaluation_does_not_depend_on_the_batch_size():
    some, all_at_once = evaluate(), evaluate(batch_size=1024)
    assert len(all_at_once) == 1
    n = int(all_at_once[0]["example_weights"].sum())
    for name, value in all_at_once[0].items():
        joined = np.concatenate([batch[name] for batch in some])[:n]
        np.testing.assert_array_equal(joined, value[:n], err_msg=name)


def test_last_evaluation_batch_is_filled_with_harmless_rows():
    last = evaluate()[-1]
    n = int(last["example_weights"].sum())
    assert 0 < n < BATCH
    assert last["attention_mask"][n:].sum(axis=1).tolist() == [1] * (BATCH - n)
    assert last["attention_mask"][n:, 0].all()
    assert not last["masked_weights"][n:].any()
    for name, (shape, dtype) in mlm.features(mlm.Config(), LENGTH).items():
        assert last[name].shape == (BATCH, *shape) and last[name].dtype == dtype


@pytest.mark.parametrize("limit", [0, 5, 16, 150])
def test_max_samples(limit):
    whole = {n: np.concatenate([b[n] for b in evaluate()]) for n in evaluate()[0]}
    made = evaluate(max_samples=limit)
    assert len(made) == -(-limit // BATCH)
    if made:
        few = {n: np.concatenate([batch[n] for batch in made]) for n in made[0]}
        assert few["example_weights"].sum() == limit
        assert_same(
            {n: v[:limit] for n, v in few.items()}, {n: v[:limit] for n, v in whole.items()}
        )


def test_evaluation_rows():
    for whole, low, high in zip(
        evaluate(), evaluate(rows=slice(0, 8)), evaluate(rows=slice(8, 16)), strict=True
    ):
        assert_same({n: np.concatenate([low[n], high[n]]) for n in whole}, whole)


def _environment() -> dict[str, str]:
    return {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
