"""One row of scores (logits, or probabilities) where it lives, behind the few questions that laws ask of it.

`HostScores` answers by compiled sweeps, `DeviceScores` by torch operations that leave the row on its device and bring
back scalars and short vectors only. Both compute in float64, so that their laws agree to a few units of 1e-15.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, lru_cache
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from contracts.randomness import GOLDEN, MASK64
from models.law_kernels import COARSE, SMALLEST, Scratch, coarse_sum, collect, collect_noise, exp_sums, fill

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Row = npt.NDArray[np.float32] | npt.NDArray[np.float64]

# Groups of a row: the maxima of so many layers, made in the pass that finds the largest score.
DEPTH = 64
_LARGE = 4096
_scratch = Scratch()


class Scores(Protocol):
    """Scores [V], float32 logits or float64 probabilities, unchanged while this is used. `top`: the largest, NaN if any is.

    All questions but `top` and `with_infinities_as_certain` need scores without NaN and +inf; those of exponentials, a
    finite top and float32.
    """

    size: int
    top: float

    def at_least(self, floor: float) -> Ints:
        """Token ids, int64 ascending, whose score is at least `floor` as float64."""
        ...

    def largest(self, count: int) -> tuple[Ints, Floats]:
        """The `count` <= V largest by score, ties to the lower id: ids int64, scores float64."""
        ...

    def at(self, ids: Ints) -> Floats:
        """float64 on the host: the scores of `ids`."""
        ...

    def of(self, token: int) -> float:
        """One score."""
        ...

    def first_of_largest(self) -> int:
        """The lowest id whose score is `top`."""
        ...

    def exp_sums(self, temperature: float) -> tuple[float, float]:
        """(sum w, sum w z) with z = max((score - top) / temperature, SMALLEST), w = exp z."""
        ...

    def exp_total_within(self, temperature: float) -> tuple[float, float]:
        """An interval that holds the first of `exp_sums`, found faster where that is possible."""
        ...

    def normalised(self, temperature: float, total: float) -> Scores:
        """float64: exp((score - top) / temperature) / total, 0 below exp(SMALLEST) / total."""
        ...

    def divided(self, by: float) -> Scores:
        """float64: a copy, each score divided."""
        ...

    def lowered(self, amount: float) -> Scores:
        """float64: a copy, max(score - amount, 0)."""
        ...

    def put(self, ids: Ints, values: Floats) -> Scores:
        """Overwrites the scores of `ids`; only for what the three operations above returned."""
        ...

    def total(self) -> float:
        """The sum of all scores."""
        ...

    def entropy(self) -> float:
        """-sum s log s."""
        ...

    def host(self) -> Floats:
        """float64 [V] on the host: for references, enumeration and small vocabularies."""
        ...

    def noisy_enough(self, key: int, threshold: int) -> Ints:
        """Ids, int64 ascending, whose 52 random bits in the key's stream are at least `threshold`."""
        ...

    def with_infinities_as_certain(self) -> Scores:
        """Scores of 0 where these are +inf and -inf elsewhere."""
        ...


class HostScores:
    """`Scores` of a contiguous numpy row, read in place."""

    def __init__(self, row: Row) -> None:
        self.row = row
        self.size = size = len(row)
        self._depth = depth = DEPTH if size >= _LARGE else 1
        self._groups = row[: size // depth * depth].reshape(depth, -1).max(axis=0) if depth > 1 else row
        self.top = float(np.maximum.reduce(self._groups))
        if size % depth:
            # np.maximum and not max(): a NaN in either place must come out.
            self.top = float(np.maximum(self.top, np.maximum.reduce(row[size // depth * depth :])))

    def at_least(self, floor: float) -> Ints:
        out = _scratch.ids(self.size)
        return out[: collect(self.row, self._groups, self._depth, len(self._groups) // 8, floor, out)].copy()

    def largest(self, count: int) -> tuple[Ints, Floats]:
        candidates = self._groups if 4 * count < len(self._groups) else self.row
        cut = len(candidates) - count
        ids = self.at_least(float(np.partition(candidates, cut)[cut]))
        values = self.at(ids)
        order = np.lexsort((ids, -values))[:count]
        return ids[order], values[order]

    def at(self, ids: Ints) -> Floats:
        return self.row[ids].astype(np.float64)

    def of(self, token: int) -> float:
        return float(self.row[token])

    def first_of_largest(self) -> int:
        return int(self.at_least(self.top)[0])

    def exp_sums(self, temperature: float) -> tuple[float, float]:
        total, weighted = exp_sums(self.row, self.top, 1.0 / temperature)
        return float(total), float(weighted)

    def exp_total_within(self, temperature: float) -> tuple[float, float]:
        if abs(self.top) > 1e30 or not 1e-6 < temperature < 1e6:
            # Beyond float32.
            total, _ = self.exp_sums(temperature)
            return total, total
        total = float(coarse_sum(self.row, np.float32(self.top), np.float32(1.0 / temperature)))
        # Scores below -87 were counted as exp(-87).
        return total * (1 - COARSE) - self.size * 1.7e-38, total * (1 + COARSE)

    def normalised(self, temperature: float, total: float) -> HostScores:
        out = np.empty(self.size)
        fill(self.row, self.top, 1.0 / temperature, total, out)
        return HostScores(out)

    def divided(self, by: float) -> HostScores:
        return HostScores(self.row / np.float64(by))

    def lowered(self, amount: float) -> HostScores:
        return HostScores(np.maximum(self.row - np.float64(amount), 0.0))

    def put(self, ids: Ints, values: Floats) -> HostScores:
        self.row[ids] = values
        return HostScores(self.row)

    def total(self) -> float:
        return float(self.row.sum(dtype=np.float64))

    def entropy(self) -> float:
        p = self.row[self.row > 0.0].astype(np.float64)
        return -float((p * np.log(p)).sum())

    def host(self) -> Floats:
        return self.row.astype(np.float64)

    def noisy_enough(self, key: int, threshold: int) -> Ints:
        out = _scratch.ids(self.size)
        return out[: collect_noise(np.uint64(key & MASK64), np.uint64(threshold << 12), out)].copy()

    def with_infinities_as_certain(self) -> HostScores:
        return HostScores(np.where(self.row == np.inf, np.float32(0), np.float32(-np.inf)))


class DeviceScores:
    """`Scores` of a tensor on any device. top: the largest score, first: tells its first id, where these are known."""

    def __init__(self, row: Tensor, top: float | None = None, first: Callable[[], int] | None = None) -> None:
        self.row = row
        self.size = int(row.shape[0])
        self.top = float(row.amax()) if top is None else top
        self._first = first

    def at_least(self, floor: float) -> Ints:
        return _host_ids((self.row.double() >= floor).nonzero().squeeze(1))

    def largest(self, count: int) -> tuple[Ints, Floats]:
        # Every token tied with the last one comes along, so that the lower ids can win.
        ids = self.at_least(float(torch.topk(self.row, count).values[-1]))
        values = self.at(ids)
        order = np.lexsort((ids, -values))[:count]
        return ids[order], values[order]

    def _index(self, ids: Ints) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(ids)).to(self.row.device)

    def at(self, ids: Ints) -> Floats:
        return np.asarray(self.row[self._index(ids)].double().cpu().numpy())

    def of(self, token: int) -> float:
        return float(self.row[token])

    def first_of_largest(self) -> int:
        return int(self.row.argmax()) if self._first is None else self._first()

    def _scaled(self, temperature: float) -> Tensor:
        return (self.row.double() - self.top).mul_(1.0 / temperature).clamp_(min=SMALLEST)

    def exp_sums(self, temperature: float) -> tuple[float, float]:
        z = self._scaled(temperature)
        weights = z.exp()
        total, weighted = torch.stack([weights.sum(), (weights * z).sum()]).tolist()
        return total, weighted

    def exp_total_within(self, temperature: float) -> tuple[float, float]:
        total, _ = self.exp_sums(temperature)
        return total, total

    def normalised(self, temperature: float, total: float) -> DeviceScores:
        z = self._scaled(temperature)
        return DeviceScores(torch.where(z > SMALLEST, z.exp() / total, 0.0))

    def divided(self, by: float) -> DeviceScores:
        return DeviceScores(self.row.double() / by)

    def lowered(self, amount: float) -> DeviceScores:
        return DeviceScores((self.row.double() - amount).clamp_(min=0.0))

    def put(self, ids: Ints, values: Floats) -> DeviceScores:
        self.row[self._index(ids)] = torch.from_numpy(np.ascontiguousarray(values)).to(self.row.device)
        return DeviceScores(self.row)

    def total(self) -> float:
        return float(self.row.double().sum())

    def entropy(self) -> float:
        return float(torch.special.entr(self.row.double()).sum())

    def host(self) -> Floats:
        return np.asarray(self.row.double().cpu().numpy())

    def noisy_enough(self, key: int, threshold: int) -> Ints:
        bits = (bits64_torch(key, self.size, self.row.device) >> 12).bitwise_and_((1 << 52) - 1)
        return _host_ids((bits >= threshold).nonzero().squeeze(1))

    def with_infinities_as_certain(self) -> DeviceScores:
        zero = torch.zeros((), dtype=self.row.dtype, device=self.row.device)
        return DeviceScores(torch.where(self.row == torch.inf, zero, -torch.inf))


def _host_ids(ids: Tensor) -> Ints:
    return np.asarray(ids.cpu().numpy())


def on_host(scores: Tensor) -> bool:
    """Whether a tensor can be read in place."""
    return scores.device.type == "cpu"


def scores_of(row: Tensor) -> Scores:
    """The scores of one tensor [V]."""
    return HostScores(np.ascontiguousarray(row.numpy())) if on_host(row) else DeviceScores(row)


class Rows(Protocol):
    """The rows of a table [N, V], each looked at when asked for."""

    def __call__(self, row: int) -> Scores: ...

    def first(self, row: int) -> tuple[int, float]:
        """The lowest id of the largest score, and that score; of a row with NaN, the first NaN's and NaN."""
        ...


class _HostRows:
    def __init__(self, table: npt.NDArray[np.float32]) -> None:
        self._table = table

    def __call__(self, row: int) -> Scores:
        return HostScores(np.ascontiguousarray(self._table[row]))

    def first(self, row: int) -> tuple[int, float]:
        scores = self._table[row]
        token = int(scores.argmax())
        return token, float(scores[token])


class _DeviceRows:
    """Rows of a table on a device: what is asked of each comes for all in one transfer, each question being a wait."""

    def __init__(self, table: Tensor) -> None:
        self._table = table

    @cached_property
    def _tops(self) -> list[float]:
        return [float(top) for top in self._table.amax(dim=1).tolist()]

    @cached_property
    def _firsts(self) -> list[int]:
        return [int(token) for token in self._table.argmax(dim=1).tolist()]

    def __call__(self, row: int) -> Scores:
        return DeviceScores(self._table[row], self._tops[row], lambda: self._firsts[row])

    def first(self, row: int) -> tuple[int, float]:
        return self._firsts[row], self._tops[row]


def rows_of(table: Tensor | npt.NDArray[np.float32]) -> Rows:
    """The rows of a float table [N, V]."""
    if isinstance(table, np.ndarray):
        return _HostRows(table)
    return _HostRows(table.numpy()) if on_host(table) else _DeviceRows(table)


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
