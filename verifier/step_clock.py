"""The target's own one-row step, measured: what every round's speed-up is stated against."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from statistics import median

import numpy as np

from models.backend import Backend, RowBlock

_WINDOW = 64
_WARM_CONTEXT = 32


class StepClock:
    """Median of the latest one-row passes, microseconds."""

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=_WINDOW)

    def record(self, microseconds: float) -> None:
        self._recent.append(microseconds)

    @property
    def plain_step_us(self) -> float:
        """0 before the first measurement."""
        return median(self._recent) if self._recent else 0.0


def warm_up(backend: Backend, steps: StepClock, clock: Callable[[], int], *, passes: int) -> None:
    """Times `passes` one-row passes over a short prefix; the first pass of all, which pays for start-up, is not counted.

    Reserves a slot for the time being. clock: nanoseconds.
    """
    context = min(_WARM_CONTEXT, backend.info.context_length - 1)
    slot = backend.allocate(context + 1)
    try:
        order = np.arange(context, dtype=np.int64)
        nothing = np.zeros(0, dtype=np.int64)
        backend.forward([RowBlock(slot, np.zeros(context, dtype=np.int64), order, order - 1, nothing)])
        backend.commit(slot, range(context))
        row = RowBlock(slot, np.zeros(1, np.int64), np.full(1, context, dtype=np.int64), np.full(1, -1, dtype=np.int64))
        for index in range(passes + 1):
            started = clock()
            backend.forward([row])
            if index:
                steps.record((clock() - started) / 1e3)
            backend.rollback(slot)
    finally:
        backend.release(slot)
