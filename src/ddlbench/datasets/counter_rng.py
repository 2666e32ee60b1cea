"""A random sequence that can be read from any place: the reason writers need no order.

Philox is a counter generator: its output at place ``k`` depends on the key and ``k`` alone.
Only raw 64-bit words are used (their values are fixed by the algorithm, while the methods of
``numpy.random.Generator`` may change between numpy versions).
"""

from __future__ import annotations

import hashlib

import numpy as np

__all__ = ["CounterRng"]

_WORDS_PER_COUNT = 4  # Philox 4x64 makes four words a counter value


class CounterRng:
    """An endless sequence of random 64-bit words named by ``parts``.

    Args:
        parts: what the sequence is for, e.g. ``("mnist", 7, "labels")``; sequences of
            different names are independent.

    """

    def __init__(self, *parts: str | int) -> None:
        name = "\0".join(str(part) for part in parts).encode()
        self._key = int.from_bytes(hashlib.blake2b(name, digest_size=16).digest(), "little")

    def take(self, first: int, count: int) -> np.ndarray:
        """Words ``first`` to ``first + count``, uint64 of shape (count,)."""
        counter, skip = divmod(first, _WORDS_PER_COUNT)
        bits = np.random.Philox(key=self._key, counter=counter)
        return bits.random_raw(skip + count)[skip:]

    def permutations(self, first: int, count: int, size: int) -> np.ndarray:
        """Permutations ``first`` to ``first + count`` of ``range(size)``, int64 (count, size)."""
        words = self.take(first * size, count * size).reshape(count, size)
        return np.argsort(words, axis=1, kind="stable")
