"""How long target passes take: the one-row step that rounds' speed-ups are stated against, and what a row adds."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import numpy as np

from models.backend import Backend, RowBlock

_WINDOW = 64
_WARM_CONTEXT = 32
# Passes of any size that the line goes through.
_LATEST = 32
# What a row adds to a one-row pass until passes of several sizes have told.
_FIRST_SHARE = 0.1
# Spread of rows, squared, that outweighs the share known so far.
_SHARE_WEIGHT = 4.0


@dataclass(frozen=True)
class PassLine:
    """A pass of so many rows, as a line through the latest ones. Times in microseconds."""

    rows: float
    us: float
    row_us: float

    def pass_us(self, rows: int) -> float:
        # However steep, some of a pass is left at one row.
        return max(self.us + self.row_us * (rows - self.rows), self.us / (1.0 + self.rows))


class StepClock:
    """The latest passes of the target. Times in microseconds."""

    def __init__(self) -> None:
        self._recent: deque[float] = deque()
        # The same in order: every round reads their median.
        self._in_order: list[float] = []
        self._latest: deque[tuple[int, float]] = deque(maxlen=_LATEST)
        self._share = _FIRST_SHARE

    def record(self, rows: int, microseconds: float) -> None:
        """One pass of so many rows, over all its sessions. On the path of every round: nothing is worked out here."""
        if rows == 1:
            if len(self._recent) == _WINDOW:
                del self._in_order[bisect_left(self._in_order, self._recent.popleft())]
            self._recent.append(microseconds)
            insort(self._in_order, microseconds)
        self._latest.append((rows, microseconds))

    @property
    def plain_step_us(self) -> float:
        """Median of the one-row passes; 0 before the first."""
        count = len(self._in_order)
        return (self._in_order[(count - 1) // 2] + self._in_order[count // 2]) / 2 if count else 0.0

    def line(self) -> PassLine | None:
        """None before the first pass. Medians by row count, so that a stall is not what rows cost."""
        if not self._latest:
            return None
        times: dict[int, list[float]] = {}
        for rows, us in self._latest:
            times.setdefault(rows, []).append(us)
        points = [(rows, float(len(seen)), median(seen)) for rows, seen in times.items()]
        weight = sum(w for _, w, _ in points)
        middle = sum(w * rows for rows, w, _ in points) / weight
        mean = sum(w * us for _, w, us in points) / weight
        spread = sum(w * (rows - middle) ** 2 for rows, w, _ in points)
        along = sum(w * (rows - middle) * (us - mean) for rows, w, us in points)
        # Where all passes had the same rows, the slope is the one known before, at today's level.
        known = self._share * mean / (1.0 + self._share * (middle - 1.0))
        row_us = max(0.0, (along + _SHARE_WEIGHT * known) / (spread + _SHARE_WEIGHT))
        line = PassLine(middle, mean, row_us)
        one = line.pass_us(1)
        self._share = min(row_us / one, 1.0) if one else self._share
        return line


def warm_up(backend: Backend, steps: StepClock, clock: Callable[[], int], *, passes: int) -> None:
    """Times `passes` one-row passes over a short prefix and one over that prefix itself; the first pass of each kind,
    which pays for start-up, is not counted. Commits a branch once, so that no request waits until moving rows is compiled.

    Reserves a slot for the time being. clock: nanoseconds.
    """
    context = min(_WARM_CONTEXT, backend.info.context_length - 1)
    slot = backend.allocate(context + 2)

    def timed(block: RowBlock) -> None:
        started = clock()
        backend.forward([block])
        steps.record(len(block.token_ids), (clock() - started) / 1e3)

    try:
        order = np.arange(context, dtype=np.int64)
        nothing = np.zeros(0, dtype=np.int64)
        prefix = RowBlock(slot, np.zeros(context, dtype=np.int64), order, order - 1, nothing)
        backend.forward([prefix])
        backend.rollback(slot)
        timed(prefix)
        backend.commit(slot, range(context))
        siblings = np.full(2, -1, dtype=np.int64)
        backend.forward([RowBlock(slot, np.zeros(2, np.int64), np.full(2, context, np.int64), siblings)])
        backend.commit(slot, (1,))
        backend.truncate(slot, context)
        row = RowBlock(slot, np.zeros(1, np.int64), np.full(1, context, dtype=np.int64), np.full(1, -1, dtype=np.int64))
        backend.forward([row])
        for _ in range(passes):
            backend.rollback(slot)
            timed(row)
        backend.rollback(slot)
        # Read while the passes are there: what a row adds is known from here on.
        steps.line()
    finally:
        backend.release(slot)
