"""Products of many rows: cut into blocks, shared by threads, and still bit for bit those of single rows."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
import pytest

from models.cpu.formats import FP32, PANEL
from models.cpu.jit import jit_entry
from models.cpu.matmul import block_count, multiply, multiply_gated
from models.cpu.sync import COUNTER_STRIDE
from models.cpu.tile import MAX_SCRATCH_PANELS, MAX_TILE_ROWS, tile_entry
from models.cpu.tile_body import ADD, STORE

Floats = npt.NDArray[np.float32]

DEPTH, OUTPUTS = 602, 80


@jit_entry
def _multiply(entry, rows, a, w, c, mode, counters, thread, threads):  # type: ignore[no-untyped-def]
    multiply(entry, rows, a, DEPTH, w, FP32, DEPTH, c, OUTPUTS, mode, 0, counters, 1, 0, thread, threads)
    return block_count(rows, DEPTH)


@jit_entry
def _multiply_gated(entry, rows, a, w, c, scratch, counters, thread, threads):  # type: ignore[no-untyped-def]
    multiply_gated(entry, rows, a, DEPTH, w, FP32, DEPTH, c, OUTPUTS, scratch, 0, counters, 1, 0, thread, threads)


def _panels(matrix: Floats) -> Floats:
    return np.ascontiguousarray(matrix.reshape(-1, PANEL, DEPTH).transpose(0, 2, 1))


def _alternating(gate: Floats, up: Floats) -> Floats:
    return np.ascontiguousarray(np.stack([_panels(gate), _panels(up)], axis=1))


def _on_threads(threads: int, start: int, part: Callable[[int, int], object]) -> list[object]:
    """Results of part(counters, thread) of threads start, start + 1, ..."""
    counters = np.zeros((1 + threads, 1, COUNTER_STRIDE), np.int64)
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(lambda thread: part(counters.ctypes.data, thread), range(start, threads)))


def _product(a: Floats, w: Floats, c: Floats, mode: int, threads: int = 1, start: int = 0) -> object:
    entry, places = tile_entry(FP32), (a.ctypes.data, w.ctypes.data, c.ctypes.data)
    return _on_threads(threads, start, lambda at, thread: _multiply(entry, len(a), *places, mode, at, thread, threads))[
        0
    ]


def _gated(a: Floats, w: Floats, threads: int = 1, start: int = 0) -> Floats:
    c = np.full((len(a), OUTPUTS), np.nan, np.float32)
    scratch = np.empty((threads, MAX_TILE_ROWS, MAX_SCRATCH_PANELS * PANEL), np.float32)
    entry, places = tile_entry(FP32), (a.ctypes.data, w.ctypes.data, c.ctypes.data)

    def part(counters: int, thread: int) -> object:
        own = scratch[thread].ctypes.data
        return _multiply_gated(entry, len(a), *places, own, counters, thread, threads)

    _on_threads(threads, start, part)
    return c


@pytest.mark.parametrize(("threads", "start"), [(1, 0), (3, 0), (3, 2)], ids=["one", "three", "one-of-three-shows-up"])
@pytest.mark.parametrize("rows", [67, 150])
def test_rows_of_several_blocks_have_the_bits_of_rows_alone(rows: int, threads: int, start: int) -> None:
    rng = np.random.default_rng(rows)
    a = rng.standard_normal((rows, DEPTH), np.float32)
    gate, up = (rng.standard_normal((OUTPUTS, DEPTH), np.float32) * np.float32(0.06) for _ in range(2))
    before = rng.standard_normal((rows, OUTPUTS), np.float32)
    packed, both = _panels(gate), _alternating(gate, up)
    stored, added = np.full_like(before, np.nan), before.copy()
    assert _product(a, packed, stored, STORE, threads, start) == (2 if rows == 67 else 3)
    _product(a, packed, added, ADD, threads, start)
    gated = _gated(a, both, threads, start)
    for row in rng.choice(rows, 20, replace=False).tolist():
        one, alone = a[row : row + 1], np.empty((1, OUTPUTS), np.float32)
        _product(one, packed, alone, STORE)
        assert np.array_equal(stored[row : row + 1], alone)
        assert np.array_equal(added[row : row + 1], before[row : row + 1] + alone)
        assert np.array_equal(gated[row : row + 1], _gated(one, both))
    exact = a.astype(np.float64) @ gate.T.astype(np.float64)
    assert np.abs(stored - exact).max() < 1e-4
    assert np.abs(gated - exact / (1 + np.exp(-exact)) * (a.astype(np.float64) @ up.T)).max() < 1e-3


@pytest.mark.parametrize("rows", range(1, 15))
def test_tiles_of_every_height_have_the_bits_of_rows_alone(rows: int) -> None:
    """Seven and eight rows take three panels at once, one and two rows four and two; here some panels are left over."""
    rng = np.random.default_rng(rows)
    a = rng.standard_normal((rows, DEPTH), np.float32)
    gate, up = (rng.standard_normal((OUTPUTS, DEPTH), np.float32) for _ in range(2))
    before = rng.standard_normal((rows, OUTPUTS), np.float32)
    stored, added = np.full_like(before, np.nan), before.copy()
    _product(a, _panels(gate), stored, STORE)
    _product(a, _panels(gate), added, ADD)
    gated = _gated(a, _alternating(gate, up))
    for row in range(rows):
        one, alone = a[row : row + 1], np.empty((1, OUTPUTS), np.float32)
        _product(one, _panels(gate), alone, STORE)
        assert np.array_equal(stored[row : row + 1], alone)
        assert np.array_equal(added[row : row + 1], before[row : row + 1] + alone)
        assert np.array_equal(gated[row : row + 1], _gated(one, _alternating(gate, up)))
