"""Which of the known token sequences share the longest start with a prompt.

Sequences are kept sorted; the ones that share most with a prompt stand next to where it would stand, and shared starts only
shorten on the way outwards. SGLang's radix tree (Zheng et al. 2023, arXiv:2312.07104, section 3) answers the same question.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

T = TypeVar("T")

# Big-endian, so that the order of the bytes is the order of the ids.
_ID = np.dtype(">u4")


class PrefixIndex(Generic[T]):
    """Holders by their token sequences; equal sequences may have several holders. Token ids are below 2^32."""

    def __init__(self) -> None:
        self._sorted: list[tuple[bytes, int]] = []
        self._holders: dict[int, T] = {}
        self._serial = 0

    def __len__(self) -> int:
        return len(self._sorted)

    def add(self, tokens: npt.NDArray[np.int64], holder: T) -> tuple[bytes, int]:
        """The key under which `remove` takes it out again."""
        key = (_bytes(tokens), self._serial)
        self._serial += 1
        insort(self._sorted, key)
        self._holders[key[1]] = holder
        return key

    def remove(self, key: tuple[bytes, int]) -> None:
        """Raises KeyError for a key that is not in."""
        del self._holders[key[1]]
        del self._sorted[bisect_left(self._sorted, key)]

    def nearest(self, tokens: npt.NDArray[np.int64]) -> Iterator[tuple[int, T]]:
        """Holders and the length of the start they share with `tokens`, longest first, down to one token."""
        wanted = _bytes(tokens)
        right = bisect_left(self._sorted, (wanted, -1))
        left = right - 1
        before, after = self._shared(wanted, left), self._shared(wanted, right)
        while before or after:
            if after >= before:
                yield after, self._holders[self._sorted[right][1]]
                right += 1
                after = self._shared(wanted, right)
            else:
                yield before, self._holders[self._sorted[left][1]]
                left -= 1
                before = self._shared(wanted, left)

    def _shared(self, wanted: bytes, place: int) -> int:
        if not 0 <= place < len(self._sorted):
            return 0
        known = self._sorted[place][0]
        size = min(len(known), len(wanted))
        differ = np.flatnonzero(np.frombuffer(known, _ID, size // 4) != np.frombuffer(wanted, _ID, size // 4))
        return int(differ[0]) if len(differ) else size // 4


def _bytes(tokens: npt.NDArray[np.int64]) -> bytes:
    return tokens.astype(_ID).tobytes()
