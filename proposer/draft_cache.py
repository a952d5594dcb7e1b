"""A draft model's KV for one session, brought to whatever the published prefix turns out to be.

The prefix is the only truth: each round the longest common prefix of the cached tokens and the published ones is kept, what
lies beyond is dropped, what is missing is computed. So the token missing after full acceptance, the rows of rejected drafts
and the state left by an earlier call are one case and not three.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from torch import Tensor

from models.backend import Backend, RowBlock

Int64Array = npt.NDArray[np.int64]

# Rows of one prefill pass: bounds the pass's own memory, which grows with the square of its rows.
PREFILL_ROWS = 256


class DraftCache:
    """Not thread-safe, as the backend is not.

    Raises ResourceExhausted when the backend has no `capacity` rows left.
    """

    def __init__(self, backend: Backend, capacity: int) -> None:
        self._backend = backend
        self._slot = backend.allocate(capacity)
        self._tokens = np.zeros(0, np.int64)
        self._staged: list[int] = []

    @property
    def capacity(self) -> int:
        """Rows the slot holds."""
        return self._slot.capacity

    @property
    def tokens(self) -> Int64Array:
        """The tokens whose rows are committed, int64 [slot length]."""
        return self._tokens

    def follow(self, prefix: Int64Array) -> Tensor:
        """Logits after the last token of `prefix` int64 [L], L >= 1: float32 [vocab_size].

        The last token is always computed anew, because rows are kept and logits are not.
        """
        kept = min(_common_length(self._tokens, prefix), len(prefix) - 1)
        self._tokens = prefix[:kept].copy()
        self._backend.truncate(self._slot, kept)
        self._staged = []
        logits: Tensor | None = None
        for start in range(kept, len(prefix), PREFILL_ROWS):
            ids = prefix[start : start + PREFILL_ROWS].astype(np.int64)
            rows = np.arange(len(ids), dtype=np.int64)
            wanted = rows[-1:] if start + len(ids) == len(prefix) else rows[:0]
            logits = self._backend.forward([RowBlock(self._slot, ids, start + rows, rows - 1, wanted)]).logits[0]
            self._backend.commit(self._slot, rows.tolist())
            self._tokens = prefix[: start + len(ids)].copy()
        assert logits is not None
        return logits[-1]

    def stage(self, token_ids: Sequence[int], parents: Sequence[int], depths: Sequence[int]) -> Tensor:
        """Runs guesses behind the followed prefix: float32 [N, vocab_size].

        parents: staged rows, counted over all calls since `follow`, -1 for the prefix. depths: 1 for children of the prefix.
        """
        ids = np.array(token_ids, dtype=np.int64)
        positions = len(self._tokens) - 1 + np.array(depths, dtype=np.int64)
        block = RowBlock(self._slot, ids, positions, np.array(parents, dtype=np.int64))
        logits = self._backend.forward([block]).logits[0]
        self._staged.extend(token_ids)
        return logits

    def settle(self, path: Sequence[int]) -> None:
        """Keeps the staged rows of `path`, from a child of the prefix downwards, in the hope that they get published."""
        self._backend.commit(self._slot, path)
        kept = np.array([self._staged[row] for row in path], dtype=np.int64)
        self._tokens = np.concatenate([self._tokens, kept])
        self._staged = []

    def release(self) -> None:
        """Gives the rows back; the cache is dead afterwards."""
        self._backend.release(self._slot)


def _common_length(left: Int64Array, right: Int64Array) -> int:
    shared = min(len(left), len(right))
    differing = np.flatnonzero(left[:shared] != right[:shared])
    return int(differing[0]) if len(differing) else shared
