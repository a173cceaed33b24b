"""Counter-based random numbers in NumPy: a row's numbers are a pure function of its key.

The key of a row identifies its sample: (seed, epoch, index in the epoch). A draw is addressed by a
stream name and a column, so a row gets the same numbers in any batch, on any host, in any order of
calls, with any version of NumPy. The generator is splitmix64 (Steele, Lea, Flood 2014), whose n-th
output is computed without the earlier ones.

    rng = RowRandom(row_keys(seed=0, epoch=3, index=np.arange(256)))
    scores = rng.uniform("scores", 128)     # float32[256, 128]
"""

import functools
import hashlib

import numpy as np

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_WORD = 2**64 - 1


def row_keys(seed: int, epoch: int | np.ndarray, index: np.ndarray) -> np.ndarray:
    """Returns uint64[B]: the key of each row. Samples of one epoch have different keys.

    epoch: one number or int64[B]. index: int64[B], the index of each row's sample in its epoch.
    """
    key = np.array([(seed + int(_GOLDEN)) & _WORD], np.uint64)  # of all rows
    for part in (epoch, index):
        key = _mix(key) ^ np.asarray(part).astype(np.uint64)
    return _mix(key)


class RowRandom:
    """Random numbers for B rows with the given keys, uint64[B].

    NOTE: two calls with the same stream name return the same numbers. Use one name per purpose.
    """

    def __init__(self, keys: np.ndarray):
        self.keys = np.asarray(keys, np.uint64)

    def bits(self, stream: str, n: int) -> np.ndarray:
        """Returns uint32[B, n]; every bit is 0 or 1 with equal probability."""
        return self.bits_of((stream,), n)[0]

    def bits_of(self, streams: tuple[str, ...], n: int) -> np.ndarray:
        """Returns uint32[S, B, n]: the `bits` of S streams, which is faster than one by one."""
        counter = np.arange(1, (n + 1) // 2 + 1, dtype=np.uint64) * _GOLDEN
        words = _mix(_mix(self.keys ^ _stream_keys(streams))[:, :, None] + counter)
        return words.astype("<u8", copy=False).view("<u4")[:, :, :n]

    def uniform(self, stream: str, n: int) -> np.ndarray:
        """Returns float32[B, n] in [0, 1), multiples of 2**-24."""
        return uniform(self.bits(stream, n))

    def integers(
        self, stream: str, low: int | np.ndarray, high: int | np.ndarray, n: int
    ) -> np.ndarray:
        """Returns int64[B, n] in [low, high), or `low` if low == high.

        low, high: numbers, or arrays that broadcast to [B, n].
        The probabilities of any two numbers in the range differ by at most 2**-32.
        """
        return integers(self.bits(stream, n), low, high)

    def permutation(self, stream: str, n: int) -> np.ndarray:
        """Returns int64[B, n]: in each row, a random permutation of the numbers below n."""
        # Ties would favour the lower index. With 64 bits per column they practically never occur.
        words = self.bits(stream, 2 * n).view("<u8")
        return np.argsort(words, axis=1, kind="stable")


def uniform(bits: np.ndarray) -> np.ndarray:
    """Returns float32 in [0, 1), multiples of 2**-24, made of uint32 bits of the same shape."""
    return (bits >> np.uint32(8)).astype(np.float32) * np.float32(2**-24)


def integers(bits: np.ndarray, low: int | np.ndarray, high: int | np.ndarray) -> np.ndarray:
    """Returns int64 in [low, high), made of uint32 bits; see `RowRandom.integers`."""
    numbers = bits.astype(np.uint64)
    numbers *= np.subtract(high, low).astype(np.uint64)
    numbers >>= np.uint64(32)
    return numbers.view(np.int64) + low


def permutation(stream: str, n: int, seed: int = 0, epoch: int = 0, index: int = 0) -> np.ndarray:
    """Returns int64[n]: a random permutation of the numbers below n, of one key; see `row_keys`."""
    return RowRandom(row_keys(seed, epoch, np.array([index]))).permutation(stream, n)[0]


@functools.cache
def _stream_keys(streams: tuple[str, ...]) -> np.ndarray:
    """Returns uint64[S, 1]."""
    digests = [hashlib.blake2b(name.encode(), digest_size=8).digest() for name in streams]
    return np.array([[int.from_bytes(digest, "little")] for digest in digests], np.uint64)


def _mix(z: np.ndarray) -> np.ndarray:
    """Applies splitmix64's finaliser, a bijection. NOTE: overwrites z; pass a fresh array."""
    scratch = z >> np.uint64(30)
    z ^= scratch
    z *= np.uint64(0xBF58476D1CE4E5B9)
    np.right_shift(z, np.uint64(27), out=scratch)
    z ^= scratch
    z *= np.uint64(0x94D049BB133111EB)
    np.right_shift(z, np.uint64(31), out=scratch)
    z ^= scratch
    return z
