"""Sweeps over one row of a vocabulary on the host, each one pass compiled by numba, which holds no GIL.

torch would make several passes and fault in a fresh page for every temporary. Laws are summed in float64; a coarse sum in
float32, four times as fast, serves where only an interval is needed (models/law_truncation.py).
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

import numba
import numpy as np
import numpy.typing as npt

from contracts.randomness import GOLDEN

Ints = npt.NDArray[np.int64]

# exp(z) of smaller z is not normal; such tokens weigh nothing beside the largest, whose weight is 1.
SMALLEST = -708.0
# Relative bound on what `coarse_sum` errs: 2.3e-5 for the argument (at z = -87), 2.4e-6 for the polynomial, 2e-6 for sums.
COARSE = 3e-5
_BLOCK = 64
_LOG2_E, _LN2 = 1.4426950408889634, 0.6931471805599453
# Adding it leaves an integer of a float64 in the low bits.
_TO_INTEGER = 6755399441055744.0
_BIAS, _MANTISSA = np.int64(1023), np.int64(52)
_C2, _C3, _C4, _C5, _C6, _C7, _C8, _C9, _C10, _C11, _C12 = (1.0 / math.factorial(n) for n in range(2, 13))
_ONE, _HALF, _LEAST = np.float32(1), np.float32(0.5), np.float32(-87)
_LOG2_E_32, _LN2_32 = np.float32(_LOG2_E), np.float32(_LN2)
_F2, _F3, _F4, _F5 = (np.float32(1.0 / math.factorial(n)) for n in range(2, 6))
_BIAS_32, _MANTISSA_32 = np.int32(127), np.int32(23)

# Sums may use lanes and fused operations; NaN and infinity keep their meaning.
_SUM = frozenset({"reassoc", "contract", "nsz"})


def _compiled(
    *signatures: str, fast: frozenset[str] = frozenset()
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Compiled when imported, for the given types, so that no request waits for it; kept on disk where numba may."""

    def compile_now(function: Callable[..., Any]) -> Callable[..., Any]:
        made = numba.njit(nogil=True, fastmath=set(fast))(function)
        # Without a folder to keep it in (read-only image) it is compiled at each start.
        with suppress(RuntimeError):
            made.enable_caching()
        for signature in signatures:
            made.compile(signature)
        return cast("Callable[..., Any]", made)

    return compile_now


@_compiled("float64(float64)", fast=_SUM)
def _exp(z: Any) -> Any:
    """exp(z) for SMALLEST <= z <= 0 to a relative 1e-15 (1 + |z| / 10), in operations that become vector instructions.

    z = k ln 2 + r, |r| <= ln 2 / 2; Taylor's polynomial of degree 12 leaves 2e-16 of exp(r).
    """
    k = np.floor(z * _LOG2_E + 0.5)
    r = z - k * _LN2
    p = _C9 + r * (_C10 + r * (_C11 + r * _C12))
    p = _C5 + r * (_C6 + r * (_C7 + r * (_C8 + r * p)))
    p = 1.0 + r * (1.0 + r * (_C2 + r * (_C3 + r * (_C4 + r * p))))
    bits = np.float64(k + _TO_INTEGER).view(np.int64)
    return p * np.int64((bits + _BIAS) << _MANTISSA).view(np.float64)


@_compiled("UniTuple(float64, 2)(float32[::1], float64, float64)", fast=_SUM)
def exp_sums(row: Any, top: Any, scale: Any) -> Any:
    """(sum w, sum w z) with z = max((row - top) * scale, SMALLEST), w = exp z. row: float32 [V] without NaN and +inf."""
    total = 0.0
    weighted = 0.0
    for i in range(row.shape[0]):
        z = (row[i] - top) * scale
        z = z if z > SMALLEST else SMALLEST
        weight = _exp(z)
        total += weight
        weighted += weight * z
    return total, weighted


@_compiled("float64(float32[::1], float32, float32)", fast=_SUM)
def coarse_sum(row: Any, top: Any, scale: Any) -> Any:
    """sum exp(max((row - top) * scale, -87)) to a relative COARSE, `top` being the largest. row as in `exp_sums`."""
    total: Any = 0.0
    count = row.shape[0]
    for start in range(0, count, _BLOCK):
        part = np.float32(0)
        for i in range(start, min(start + _BLOCK, count)):
            z = (row[i] - top) * scale
            z = z if z > _LEAST else _LEAST
            k = np.floor(z * _LOG2_E_32 + _HALF)
            r = z - k * _LN2_32
            p = _ONE + r * (_ONE + r * (_F2 + r * (_F3 + r * (_F4 + r * _F5))))
            part += p * np.int32((np.int32(k) + _BIAS_32) << _MANTISSA_32).view(np.float32)
        total += part
    return total


@_compiled("void(float32[::1], float64, float64, float64, float64[::1])", fast=_SUM)
def fill(row: Any, top: Any, scale: Any, total: Any, out: Any) -> None:
    """out = exp((row - top) * scale) / total, 0 where the argument is not above SMALLEST. out: float64 [V]."""
    for i in range(row.shape[0]):
        z = (row[i] - top) * scale
        weight = _exp(z if z > SMALLEST else SMALLEST) / total
        out[i] = weight if z > SMALLEST else 0.0


@_compiled(
    "int64(float32[::1], float32[::1], int64, int64, float64, int64[::1])",
    "int64(float64[::1], float64[::1], int64, int64, float64, int64[::1])",
)
def collect(row: Any, groups: Any, depth: Any, few: Any, floor: Any, out: Any) -> Any:
    """Writes the ids whose score is at least `floor` to `out`, ascending, and returns how many.

    groups: the maxima of row[g], row[g + G], ..., depth of them; tokens from depth * G on belong to none. Where more than
    `few` groups reach the floor, the whole row is scanned. out: int64 [V].
    """
    size = groups.shape[0]
    hits = 0
    for group in range(size):
        # Written always, kept if it counts: no branch to predict. (Also below.)
        out[hits] = group
        hits += groups[group] >= floor
    found = 0
    if hits > few:
        for i in range(row.shape[0]):
            out[found] = i
            found += row[i] >= floor
        return found
    wanted = out[:hits].copy()
    for layer in range(depth):
        for group in wanted:
            i = layer * size + group
            out[found] = i
            found += row[i] >= floor
    for i in range(depth * size, row.shape[0]):
        out[found] = i
        found += row[i] >= floor
    return found


@_compiled("int64(uint64, uint64, int64[::1])")
def collect_noise(key: Any, threshold: Any, out: Any) -> Any:
    """Writes the ids below len(out) whose 64 bits in the key's stream reach `threshold` to `out`, and returns how many."""
    found = 0
    x = key
    for i in range(out.shape[0]):
        x += np.uint64(GOLDEN)
        y = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        y = (y ^ (y >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        out[found] = i
        found += (y ^ (y >> np.uint64(31))) >= threshold
    return found


class Scratch(threading.local):
    """Per-thread room for token ids: at a vocabulary's size every fresh buffer costs page faults."""

    def __init__(self) -> None:
        self._ids = np.empty(0, dtype=np.int64)

    def ids(self, count: int) -> Ints:
        """int64 [count], overwritten by the thread's next use."""
        if len(self._ids) < count:
            self._ids = np.empty(count, dtype=np.int64)
        return self._ids[:count]
