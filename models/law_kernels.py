"""Sweeps over one row of a vocabulary: sum of exponentials, probabilities, tokens above a floor, tokens of large noise.

On the host each is one pass compiled by numba, which holds no GIL; torch would make several and fault in a fresh page for
every temporary. On any other device they are torch operations. Both compute in float64, so that the laws of both paths
agree to a few units of 1e-15.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from typing import Any, cast

import numba
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from contracts.randomness import GOLDEN, MASK64

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

# exp(z) of smaller z is not normal; such tokens weigh nothing beside the largest, whose weight is 1.
SMALLEST = -708.0
_LOG2_E, _LN2 = 1.4426950408889634, 0.6931471805599453
# Adding it leaves an integer of a float64 in the low bits.
_TO_INTEGER = 6755399441055744.0
# Most blocks hold none of what is collected, which lanes see faster than a scan.
_BLOCK = 64
_BIAS, _MANTISSA = np.int64(1023), np.int64(52)
_C2, _C3, _C4, _C5, _C6, _C7, _C8, _C9, _C10, _C11, _C12 = (1.0 / math.factorial(n) for n in range(2, 13))

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
def _sums(row: Any, top: Any, scale: Any) -> Any:
    total = 0.0
    weighted = 0.0
    for i in range(row.shape[0]):
        z = (row[i] - top) * scale
        z = z if z > SMALLEST else SMALLEST
        weight = _exp(z)
        total += weight
        weighted += weight * z
    return total, weighted


@_compiled("void(float32[::1], float64, float64, float64, float64[::1])", fast=_SUM)
def _fill(row: Any, top: Any, scale: Any, total: Any, out: Any) -> None:
    for i in range(row.shape[0]):
        z = (row[i] - top) * scale
        weight = _exp(z if z > SMALLEST else SMALLEST) / total
        out[i] = weight if z > SMALLEST else 0.0


@_compiled("int64(float32[::1], float64, int64[::1])", "int64(float64[::1], float64, int64[::1])", fast=_SUM)
def _collect(row: Any, floor: Any, out: Any) -> Any:
    found = 0
    count = row.shape[0]
    for start in range(0, count, _BLOCK):
        end = min(start + _BLOCK, count)
        hits = 0.0
        for i in range(start, end):
            hits += 1.0 if row[i] >= floor else 0.0
        if hits > 0.0:
            for i in range(start, end):
                # Written always, kept if it counts: no branch to predict.
                out[found] = i
                found += row[i] >= floor
    return found


@_compiled("int64(uint64, uint64, int64[::1])")
def _collect_noise(key: Any, threshold: Any, out: Any) -> Any:
    found = 0
    x = key
    for i in range(out.shape[0]):
        x += np.uint64(GOLDEN)
        y = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        y = (y ^ (y >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        out[found] = i
        found += (y ^ (y >> np.uint64(31))) >= threshold
    return found


class _Scratch(threading.local):
    """Per-thread room for token ids: at a vocabulary's size every fresh buffer costs page faults."""

    def __init__(self) -> None:
        self._ids = np.empty(0, dtype=np.int64)

    def ids(self, count: int) -> Ints:
        if len(self._ids) < count:
            self._ids = np.empty(count, dtype=np.int64)
        return self._ids[:count]


_scratch = _Scratch()


def on_host(scores: Tensor) -> bool:
    """Whether the row can be read in place."""
    return scores.device.type == "cpu"


def exp_sums(logits: Tensor, top: float, temperature: float) -> tuple[float, float]:
    """(sum w, sum w z) with z = max((logits - top) / temperature, SMALLEST), w = exp z.

    logits: float32 [V] without NaN or +inf, `top` their finite maximum.
    """
    if on_host(logits):
        total, weighted = _sums(np.ascontiguousarray(logits.numpy()), top, 1.0 / temperature)
        return float(total), float(weighted)
    z = _scaled(logits, top, temperature)
    weights = z.exp()
    total, weighted = torch.stack([weights.sum(), (weights * z).sum()]).tolist()
    return total, weighted


def normalised(logits: Tensor, top: float, temperature: float, total: float) -> Tensor:
    """float64 [V] on the logits' device: exp((logits - top) / temperature) / total, 0 below exp(SMALLEST) / total."""
    if on_host(logits):
        out = np.empty(logits.shape[0])
        _fill(np.ascontiguousarray(logits.numpy()), top, 1.0 / temperature, total, out)
        return torch.from_numpy(out)
    z = _scaled(logits, top, temperature)
    return torch.where(z > SMALLEST, z.exp() / total, 0.0)


def _scaled(logits: Tensor, top: float, temperature: float) -> Tensor:
    return (logits.double() - top).mul_(1.0 / temperature).clamp_(min=SMALLEST)


def at_least(scores: Tensor, floor: float) -> Ints:
    """Token ids int64, ascending, whose score is at least `floor` as float64. scores: float32 or float64 [V] without NaN."""
    if not on_host(scores):
        return np.asarray((scores.double() >= floor).nonzero().squeeze(1).cpu().numpy())
    row = np.ascontiguousarray(scores.numpy())
    out = _scratch.ids(len(row))
    return out[: _collect(row, floor, out)].copy()


def values_at(scores: Tensor, ids: Ints) -> Floats:
    """float64 on the host: the scores of `ids`."""
    if on_host(scores):
        return scores.numpy()[ids].astype(np.float64)
    return np.asarray(scores[torch.from_numpy(ids).to(scores.device)].double().cpu().numpy())


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


_MUL1, _MUL2 = _signed(0xBF58476D1CE4E5B9), _signed(0x94D049BB133111EB)


@lru_cache(maxsize=8)
def _steps(count: int, device: torch.device) -> Tensor:
    return torch.arange(1, count + 1, dtype=torch.int64, device=device) * _signed(GOLDEN)


def bits64_torch(key: int, count: int, device: torch.device) -> Tensor:
    """Elements 0..count-1 of the key's stream as int64 [count] on `device`: the bit patterns of `randomness.bits64`."""
    x = _steps(count, device) + _signed(key)
    # torch shifts int64 arithmetically; the masks make the shifts logical.
    x.bitwise_xor_((x >> 30).bitwise_and_((1 << 34) - 1)).mul_(_MUL1)
    x.bitwise_xor_((x >> 27).bitwise_and_((1 << 37) - 1)).mul_(_MUL2)
    return x.bitwise_xor_((x >> 31).bitwise_and_((1 << 33) - 1))


def noisy_enough(key: int, count: int, threshold: int, device: torch.device) -> Ints:
    """Ids below `count`, int64, ascending, whose 52 random bits in the key's stream are at least `threshold`."""
    if device.type != "cpu":
        bits = (bits64_torch(key, count, device) >> 12).bitwise_and_((1 << 52) - 1)
        return np.asarray((bits >= threshold).nonzero().squeeze(1).cpu().numpy())
    out = _scratch.ids(count)
    return out[: _collect_noise(np.uint64(key & MASK64), np.uint64(threshold << 12), out)].copy()
