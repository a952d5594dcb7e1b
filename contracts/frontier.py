"""The frontier: length and digest of the published prefix.

The digest is SHA-256 over the token ids as little-endian uint32, so it depends on the tokens alone and not on how rounds
split them. The hash state is kept, which makes publishing a round cost its own tokens only.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt


class Frontier:
    """The published tokens, append-only, with a running digest."""

    def __init__(self, token_ids: npt.ArrayLike = ()) -> None:
        self._tokens: list[int] = []
        self._hash = hashlib.sha256()
        self.publish(token_ids)

    def publish(self, token_ids: npt.ArrayLike) -> None:
        """Appends tokens (ints in [0, 2^32))."""
        ids = np.asarray(token_ids, dtype=np.uint32)
        self._tokens.extend(ids.tolist())
        self._hash.update(ids.astype("<u4").tobytes())

    def __len__(self) -> int:
        return len(self._tokens)

    @property
    def digest(self) -> str:
        """SHA-256 hex of the prefix so far."""
        return self._hash.hexdigest()

    @property
    def tokens(self) -> npt.NDArray[np.int64]:
        """A copy of the published ids, int64 [prefix_len]."""
        return np.array(self._tokens, dtype=np.int64)

    def tail(self, count: int) -> npt.NDArray[np.int64]:
        """The last `count` ids (fewer if the prefix is shorter), int64."""
        return np.array(self._tokens[max(0, len(self._tokens) - count) :], dtype=np.int64)

    def since(self, start: int) -> npt.NDArray[np.int64]:
        """The ids from index `start` on, int64."""
        return np.array(self._tokens[start:], dtype=np.int64)
