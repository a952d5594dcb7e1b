"""The hidden rows of one session's committed tokens, kept for export: one buffer a tap, row i at position i.

A buffer has as many rows as the session may commit, so all sessions together hold at most the engine's KV budget in rows:
4 * H bytes a tap and row, in memory that is touched only as rows come. A session whose sources read no rows keeps none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from contracts.errors import FailedPrecondition, InvalidArgument
from contracts.hidden import MAX_PART_BYTES, HiddenRows, Rows, rows_within


class HiddenLog:
    """taps: what is kept, at least one. capacity: rows at most."""

    def __init__(self, taps: Sequence[str], capacity: int, hidden_size: int) -> None:
        self.taps = tuple(taps)
        self._rows = {tap: np.empty((capacity, hidden_size), dtype=np.float32) for tap in taps}
        self._length = 0

    def __len__(self) -> int:
        """Rows kept: those of all committed tokens."""
        return self._length

    def pick(self, hidden: Mapping[str, Tensor], rows: Sequence[int]) -> HiddenRows:
        """Copies of those rows of a block that a commit will keep, which are the next rows of this log.

        hidden: per tap the block's rows, float32 [N, H], maybe views of a buffer that the next pass overwrites.
        """
        index = list(rows)
        return HiddenRows(self._length, {tap: _on_host(hidden[tap])[index] for tap in self.taps})

    def append(self, fresh: HiddenRows) -> None:
        """Takes what `pick` gave, once its tokens are committed. Cannot fail."""
        for tap, rows in fresh.taps.items():
            self._rows[tap][fresh.start : fresh.stop] = rows
        self._length = fresh.stop

    def start(self, count: int) -> HiddenRows:
        """Views of the first `count` rows, which must be kept."""
        return HiddenRows(0, {tap: rows[:count] for tap, rows in self._rows.items()})

    def export(self, start: int, stop: int) -> HiddenRows:
        """Copies of rows [start, stop), or of as many as one message carries; see VerifierPort.export_hidden."""
        if not 0 <= start < stop:
            raise InvalidArgument("start", f"[{start}, {stop}) is no range of rows")
        if stop > self._length:
            raise FailedPrecondition("stop", f"{stop} is past the {self._length} rows committed")
        row_bytes = sum(rows.shape[1] * rows.itemsize for rows in self._rows.values())
        end = min(stop, start + rows_within(MAX_PART_BYTES, row_bytes))
        return HiddenRows(start, {tap: rows[start:end].copy() for tap, rows in self._rows.items()})


def _on_host(rows: Tensor) -> Rows:
    # Picked from by numpy, and not sent through torch for nothing: what torch does first after a pass, on caches that the
    # pass has emptied, costs many times this copy.
    if not (rows.is_cpu and rows.dtype is torch.float32):
        rows = rows.float().cpu()
    out: Rows = rows.numpy()
    return out
