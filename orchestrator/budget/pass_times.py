"""How long a target pass takes by its rows, as the receipts report it: a level that moves, and a shape that stays.

Passes are neither flat in their rows nor a line: kernels work in tiles, so a row more may cost nothing or a step. And on a
machine that others use, all passes are half as long again for a while, or one takes five times as long. So what is learned
of a row count is its time over the level of the moment, which every pass moves a little; where a row count was hardly
seen, a line through the others stands in.
"""

from __future__ import annotations

import math
from bisect import bisect_right

# Row counts that are told apart: each up to 16, then ever coarser.
_EACH = range(1, 17)
_KNOTS: tuple[int, ...] = (*_EACH, *range(20, 33, 4), *range(40, 65, 8), 96, 128, 192, 256, 384, 512)
_LEVEL_SHARE = 1.0 / 8.0
# Of a pass that took longer or shorter than expected, no more than this factor is believed.
_BELIEVED = math.log(1.5)
_SEEN_AT_MOST = 64.0
# What was seen of other row counts counts for less with every pass, or a count once thought dear would stay so unseen.
_KEEP = 1.0 - 1.0 / 1024.0
# How many passes the line is worth at a row count: among many rows a tile more is little, and chance makes steps of its own.
_LINE_WEIGHTS = tuple(2.0 if rows <= 16 else 32.0 for rows in _KNOTS)
# How much spread of rows outweighs the slope assumed at first.
_SLOPE_WEIGHT = 8.0


class PassTimes:
    """Times by rows, never falling with rows. slope_share: what a row adds to a one-row pass until passes say otherwise."""

    def __init__(self, slope_share: float = 0.06) -> None:
        self._slope_share = slope_share
        self._level = 0.0
        self._seen = [0.0] * len(_KNOTS)
        self._shares = [0.0] * len(_KNOTS)
        self._curve: list[float] = []
        self._slope = slope_share

    @property
    def known(self) -> bool:
        return bool(self._curve)

    def add(self, rows: int, pass_us: float) -> None:
        """One pass, with the rows of all sessions that shared it."""
        if rows < 1 or pass_us <= 0.0:
            return
        if not self._curve:
            self._level = pass_us / (1.0 + self._slope_share * (rows - 1))
            self._fit()
        expected_us = self.us(rows)
        error = math.log(pass_us / expected_us)
        believed = math.exp(min(max(error, -_BELIEVED), _BELIEVED))
        knot = _nearest(rows)
        share = expected_us * believed / self._level
        self._seen = [seen * _KEEP for seen in self._seen]
        seen = self._seen[knot] = min(self._seen[knot] + 1.0, _SEEN_AT_MOST)
        self._shares[knot] += (share - self._shares[knot]) / seen
        self._level *= math.pow(believed, _LEVEL_SHARE)
        self._fit()

    def us(self, rows: float) -> float:
        """Microseconds of a pass of so many rows at the present level; 0 before the first pass."""
        if not self._curve:
            return 0.0
        right = bisect_right(_KNOTS, rows)
        if right == len(_KNOTS):
            return self._level * (self._curve[-1] + self._slope * (rows - _KNOTS[-1]))
        left = max(right - 1, 0)
        part = (rows - _KNOTS[left]) / (_KNOTS[left + 1] - _KNOTS[left])
        return self._level * (self._curve[left] + part * (self._curve[left + 1] - self._curve[left]))

    def by_rows(self, rows: float, count: int) -> list[float]:
        """`us` of `rows`, twice, three times, ... `count` times as many."""
        if rows == 1.0 and self._curve and count <= len(_EACH):
            return [self._level * share for share in self._curve[:count]]
        return [self.us(rows * times) for times in range(1, count + 1)]

    def _fit(self) -> None:
        weight = rows_sum = total = along = squares = 0.0
        for rows, w, share in zip(_KNOTS, self._seen, self._shares, strict=True):
            if w:
                weight += w
                rows_sum += w * rows
                total += w * share
                along += w * rows * share
                squares += w * rows * rows
        middle, mean = (rows_sum / weight, total / weight) if weight else (1.0, 1.0)
        assumed = self._slope_share * mean / (1.0 + self._slope_share * (middle - 1.0))
        spread = squares - weight * middle * middle
        slope = (along - weight * middle * mean + _SLOPE_WEIGHT * assumed) / (spread + _SLOPE_WEIGHT)
        self._slope = slope = min(max(slope, 0.0), mean / middle)
        start = mean - slope * middle
        values: list[float] = []
        weights: list[float] = []
        for rows, line, w, share in zip(_KNOTS, _LINE_WEIGHTS, self._seen, self._shares, strict=True):
            value, weight = start + slope * rows, line + w
            values.append(value + (share - value) * w / weight if w else value)
            weights.append(weight)
        self._curve = _never_falling(values, weights)


def _nearest(rows: int) -> int:
    right = bisect_right(_KNOTS, rows)
    if right == len(_KNOTS):
        return right - 1
    return right - 1 if rows - _KNOTS[right - 1] <= _KNOTS[right] - rows else right


def _never_falling(values: list[float], weights: list[float]) -> list[float]:
    """The nearest sequence in weighted squares that never falls (pool adjacent violators)."""
    if values == sorted(values):
        return values
    means: list[float] = []
    pooled: list[float] = []
    counts: list[int] = []
    for mean, weight in zip(values, weights, strict=True):
        count = 1
        while means and means[-1] > mean:
            before = pooled.pop()
            mean = (means.pop() * before + mean * weight) / (before + weight)
            weight += before
            count += counts.pop()
        means.append(mean)
        pooled.append(weight)
        counts.append(count)
    return [mean for mean, count in zip(means, counts, strict=True) for _ in range(count)]
