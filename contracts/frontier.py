"""The frontier: length and digest of the published prefix.

The digest is SHA-256 over the token ids as little-endian uint32, so it depends on the tokens alone and not on how rounds
split them. The hash state is kept, which makes publishing a round cost its own tokens only.
"""

from __future__ import annotations

import struct

import numpy as np
import numpy.typing as npt

from contracts.sha256 import sha256


class Frontier:
    """The published tokens, append-only, with a running digest."""

    def __init__(self, token_ids: npt.ArrayLike = ()) -> None:
        self._ids: npt.NDArray[np.int64] = np.zeros(0, np.int64)
        self._memory = memoryview(bytearray())
        self._length = 0
        self._hash = sha256()
        self.publish(token_ids)

    def publish(self, token_ids: npt.ArrayLike) -> None:
        """Appends tokens (ints in [0, 2^32)). Raises OverflowError for others."""
        if isinstance(token_ids, tuple):
            # A round's few: numpy's fixed cost a call would be most of it.
            count = len(token_ids)
            packed = _packed(token_ids)
            self._make_room(count)
            struct.pack_into(f"={count}q", self._memory, 8 * self._length, *token_ids)
        else:
            ids = np.asarray(token_ids, dtype=np.uint32)
            count = len(ids)
            packed = ids.astype("<u4").tobytes()
            self._make_room(count)
            self._ids[self._length : self._length + count] = ids
        self._length += count
        self._hash.update(packed)

    def _make_room(self, more: int) -> None:
        stop = self._length + more
        if stop > len(self._ids):
            # What views were given out of stays as it is.
            grown = np.zeros(max(256, 2 * stop), np.int64)
            grown[: self._length] = self._ids[: self._length]
            self._ids, self._memory = grown, grown.data.cast("B")

    def __len__(self) -> int:
        return self._length

    @property
    def digest(self) -> str:
        """SHA-256 hex of the prefix so far."""
        digest: str = self._hash.hexdigest()
        return digest

    @property
    def tokens(self) -> npt.NDArray[np.int64]:
        """The published ids, int64 [prefix_len]: a view that later tokens do not change, and nobody else may."""
        return self._ids[: self._length]


def _packed(token_ids: tuple[int, ...]) -> bytes:
    try:
        return struct.pack(f"<{len(token_ids)}I", *token_ids)
    except struct.error as error:
        raise OverflowError(f"a token id is no whole number in [0, 2^32): {error}") from error
