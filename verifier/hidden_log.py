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
from models.host_rows import Floats


class HiddenLog:
    """taps: what is kept, at least one. capacity: rows at most."""

    def __init__(self, taps: Sequence[str], capacity: int, hidden_size: int) -> None:
        self.taps = tuple(taps)
        self._rows = {tap: np.empty((capacity, hidden_size), dtype=np.float32) for tap in taps}
        self._length = 0

    def __len__(self) -> int:
        """Rows kept: those of all committed tokens."""
        return self._length

    def pick(self, hidden: Mapping[str, Tensor | Floats], rows: Sequence[int]) -> HiddenRows:
        """Those rows of a block that a commit will keep, ascending, in their place behind the rows of this log: views of
        what stays as it is from `append` on.

        hidden: per tap the block's rows, float32 [N, H], maybe views of a buffer that the next pass overwrites.
        """
        start, count = self._length, len(rows)
        straight = rows[-1] == count - 1
        fresh = {}
        for tap, kept in self._rows.items():
            block = _on_host(hidden[tap])
            place = kept[start : start + count]
            place[:] = block[:count] if straight else block[list(rows)]
            fresh[tap] = place
        return HiddenRows(start, fresh)

    def append(self, fresh: HiddenRows) -> None:
        """Keeps what `pick` gave last, once its tokens are committed. Cannot fail."""
        self._length = fresh.stop

    def take_over(self, first: HiddenRows) -> None:
        """Copies the first rows of another log, of this one's taps or more, into this one, which is empty."""
        for tap, kept in self._rows.items():
            kept[: first.count] = first.taps[tap]
        self._length = first.count

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


def _on_host(rows: Tensor | Floats) -> Rows:
    if isinstance(rows, np.ndarray):
        return rows
    # Picked from by numpy, and not sent through torch for nothing: what torch does first after a pass, on caches that the
    # pass has emptied, costs many times this copy.
    if not (rows.is_cpu and rows.dtype is torch.float32):
        rows = rows.float().cpu()
    out: Rows = rows.numpy()
    return out
