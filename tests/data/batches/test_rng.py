import numpy as np

from bertjax.data.batches import rng


def test_numbers_never_change():
    # Training data depends on these: a change breaks resuming runs and comparing with older ones.
    random = rng.RowRandom(rng.row_keys(seed=1, epoch=2, index=np.array([3, 4])))
    assert random.keys.tolist() == [11417051712245331607, 6773437200094119103]
    assert random.bits("a", 3).tolist() == [
        [3162392326, 3383184509, 1484703227],
        [2378140200, 1689354500, 2795440832],
    ]
    assert random.integers("b", 10, 20, 4).tolist() == [[15, 15, 11, 12], [12, 11, 15, 19]]
    assert random.permutation("c", 5).tolist() == [[1, 2, 3, 0, 4], [0, 3, 1, 2, 4]]


def test_splitmix64_reference_outputs():
    # The first outputs of the reference implementation for seed 1234567.
    z = np.uint64(1234567) + np.arange(1, 4, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert rng._mix(z).tolist() == expected


def test_row_does_not_depend_on_its_batch():
    index = np.arange(50)
    whole = rng.RowRandom(rng.row_keys(7, 0, index))
    some = np.array([31, 2, 17])
    part = rng.RowRandom(rng.row_keys(7, 0, index[some]))
    for draw in (
        lambda r: r.bits("s", 9),
        lambda r: r.uniform("s", 9),
        lambda r: r.integers("s", 3, 1000, 9),
        lambda r: r.permutation("s", 9),
    ):
        np.testing.assert_array_equal(draw(whole)[some], draw(part))


def test_column_does_not_depend_on_the_number_of_columns():
    random = rng.RowRandom(rng.row_keys(0, 0, np.arange(4)))
    np.testing.assert_array_equal(random.bits("s", 128)[:, :7], random.bits("s", 7))


def test_keys_differ():
    index = np.arange(20_000)
    keys = [rng.row_keys(s, e, index) for s in (-1, 0, 1) for e in (0, 1, 2)]
    assert len(np.unique(np.concatenate(keys))) == 9 * len(index)


def test_epoch_may_differ_by_row():
    epoch, index = np.array([5, 6, 6]), np.array([9, 9, 1])
    each = [rng.row_keys(3, int(e), np.array([i]))[0] for e, i in zip(epoch, index, strict=True)]
    assert rng.row_keys(3, epoch, index).tolist() == each


def test_uniform_is_uniform_and_rows_columns_and_streams_are_unrelated():
    random = rng.RowRandom(rng.row_keys(0, 0, np.arange(1000)))
    x, y = random.uniform("x", 100), random.uniform("y", 100)
    assert x.dtype == np.float32 and x.min() >= 0 and x.max() < 1
    histogram = np.bincount((x * 20).astype(int).ravel(), minlength=20)
    chi_square = ((histogram - 5000) ** 2 / 5000).sum()
    assert chi_square < 45  # 19 degrees of freedom: 0.001 of the fair generators exceed 43.8
    for a, b in ((x, y), (x[:, 1:], x[:, :-1]), (x[1:], x[:-1])):
        correlation = np.corrcoef(a.ravel(), b.ravel())[0, 1]
        assert abs(correlation) < 0.015  # 4.7 standard errors


def test_integers_cover_their_range_evenly():
    random = rng.RowRandom(rng.row_keys(0, 0, np.arange(2000)))
    drawn = random.integers("s", 5, 12, 30)
    counts = np.bincount(drawn.ravel())
    assert drawn.min() == 5 and len(counts) == 12
    np.testing.assert_allclose(counts[5:], 60_000 / 7, rtol=0.06)
    high = np.array([6, 8, 5])  # bounds by column; an empty range gives low
    drawn = random.integers("s", 5, high, 3)
    assert drawn.max(axis=0).tolist() == [5, 7, 5]


def test_permutations():
    orders = rng.RowRandom(rng.row_keys(0, 0, np.arange(6000))).permutation("s", 3)
    np.testing.assert_array_equal(np.sort(orders, axis=1), np.tile(np.arange(3), (6000, 1)))
    _, counts = np.unique(orders, axis=0, return_counts=True)
    assert len(counts) == 6
    np.testing.assert_allclose(counts, 1000, rtol=0.12)
