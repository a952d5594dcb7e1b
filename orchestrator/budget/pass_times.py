"""How long a target pass takes by its rows, as the receipts report it at the present load."""

from __future__ import annotations

MEMORY = 64.0


class PassTimes:
    """A line through (rows, microseconds) by least squares, older passes weighted less and less.

    Passes of a bandwidth-bound target are nearly flat in their rows, of a compute-bound one nearly proportional; a line
    covers both and extrapolates. Until passes of different sizes were seen the slope is `slope_share` of a one-row pass.
    """

    def __init__(self, slope_share: float = 0.1) -> None:
        self._slope_share = slope_share
        self._weight = self._rows = self._time = self._rows_time = self._rows_rows = 0.0
        self.sessions = 1.0
        self.outside_us = 0.0

    def add(self, rows: int, sessions: int, target_us: float, outside_us: float) -> None:
        """One pass, with all the sessions that shared it. outside_us: what the round took beside it, sources excepted."""
        self.outside_us += (outside_us - self.outside_us) / (8.0 if self.known else 1.0)
        keep = 1.0 - 1.0 / MEMORY
        self._weight = self._weight * keep + 1.0
        self._rows = self._rows * keep + rows
        self._time = self._time * keep + target_us
        self._rows_time = self._rows_time * keep + rows * target_us
        self._rows_rows = self._rows_rows * keep + rows * rows
        self.sessions += (sessions - self.sessions) / 8.0

    @property
    def known(self) -> bool:
        return self._weight > 0.0

    def line(self) -> tuple[float, float]:
        """(microseconds of a pass without rows, microseconds a row); both non-negative."""
        if not self.known:
            return 0.0, 0.0
        rows, time = self._rows / self._weight, self._time / self._weight
        spread = self._rows_rows / self._weight - rows * rows
        if spread > 0.25:
            slope = (self._rows_time / self._weight - rows * time) / spread
        else:
            slope = time * self._slope_share / (1.0 + self._slope_share * (rows - 1.0))
        slope = min(max(slope, 0.0), time / rows)
        return time - slope * rows, slope
