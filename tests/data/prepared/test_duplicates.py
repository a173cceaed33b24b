"""Duplicates: groups as scipy finds them, and signatures that collide as often as they should."""

import hashlib
import tracemalloc

import datasketch
import numpy as np
import pytest
from scipy import sparse

from bertjax.data.corpus import words
from bertjax.data.prepared import duplicates


@pytest.mark.parametrize("values", [3, 40, 400, 10**6])
def test_groups_are_connected_components_with_their_first_documents(values):
    rng = np.random.default_rng(values)
    count = 500
    keys = rng.integers(0, values, (3, count), np.uint64)
    same = (keys[:, :, None] == keys[:, None]).any(0)
    _, labels = sparse.csgraph.connected_components(sparse.csr_array(same))
    expected = [np.flatnonzero(labels == label)[0] for label in labels]
    assert duplicates.first_copies(count, keys).tolist() == expected
    first = duplicates.first_copies(count, keys[:1])
    assert duplicates.first_copies(count, keys[1:], first).tolist() == expected


def test_a_chain_in_any_order_is_one_group():
    count = 2000
    places = np.random.default_rng(0).permutation(count)
    keys = np.zeros((2, count), np.uint64)
    keys[0, places] = np.arange(count) // 2  # 0-1, 2-3, ...
    keys[1, places] = (np.arange(count) + 1) // 2  # 1-2, 3-4, ...
    assert not duplicates.first_copies(count, keys).any()


def test_no_documents():
    assert duplicates.first_copies(0, [np.zeros(0, np.uint64)]).tolist() == []


def test_memory_is_bounded_by_bytes_per_document():
    count = 200_000
    keys = np.random.default_rng(0).integers(0, count, count, np.uint64)
    tracemalloc.start()
    duplicates.first_copies(count, [keys])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 43 * count  # the keys are 8 more


def _text(rng: np.random.Generator, length: int) -> list[str]:
    return [f"w{i}" for i in rng.integers(0, 10**6, length)]


def _share(a: list[str], b: list[str]) -> float:
    """The Jaccard similarity of the runs of five words."""
    runs = [{tuple(text[i : i + 5]) for i in range(len(text) - 4)} for text in (a, b)]
    return len(runs[0] & runs[1]) / len(runs[0] | runs[1])


@pytest.mark.parametrize(("kept", "low", "high"), [(0.55, 0, 0.1), (0.82, 0.25, 0.7), (0.97, 1, 1)])
def test_documents_collide_as_often_as_their_similarity_says(kept, low, high):
    rng = np.random.default_rng(1)
    expected = collisions = 0.0
    for _ in range(60):
        first = _text(rng, 200)
        second = first[: int(200 * kept)] + _text(rng, 200 - int(200 * kept))
        expected += 1 - (1 - _share(first, second) ** 8) ** 14
        keys = [duplicates.keys_of(" ".join(text), near=True) for text in (first, second)]
        assert keys[0][0] != keys[1][0]
        collisions += bool((keys[0] == keys[1]).any())
    assert low <= collisions / 60 <= high
    assert abs(collisions - expected) < 4 * np.sqrt(max(expected * (1 - expected / 60), 0.1))


def test_signatures_are_those_of_the_library_for_any_pieces(monkeypatch):
    text = " ".join(_text(np.random.default_rng(2), 1000))
    keys = duplicates.keys_of(text, near=True)
    plain = datasketch.MinHash(num_perm=112, seed=1, scheme="affine64", hashfunc=int)
    for runs in words.runs(text, 5):
        for run in runs.tolist():
            plain.update(run)
    for band in range(14):
        key = 0
        for value in plain.hashvalues[8 * band : 8 * band + 8].tolist():
            key = (key * 0x9E3779B97F4A7C15 + value) % 2**64
        assert key == int(keys[1 + band])
    monkeypatch.setattr(words, "_PIECE", 500)
    assert duplicates.keys_of(text, near=True).tolist() == keys.tolist()


def test_keys_are_the_same_in_every_version():
    """Another digest means that other documents are kept: raise the version of the manifest."""
    keys = duplicates.keys_of("The quick brown fox jumps over the lazy dog.", near=True)
    assert hashlib.sha256(keys.tobytes()).hexdigest()[:16] == "d2048093231b2c4d"


def test_short_documents_are_duplicates_of_equal_ones_alone():
    first, second, third = (
        duplicates.keys_of(text, near=True) for text in ("One two.", "one  TWO.", "One two!")
    )
    assert first.tolist() == second.tolist()
    assert not (first == third).any()
