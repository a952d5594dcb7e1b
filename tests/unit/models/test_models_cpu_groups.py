"""Products of int8 and int4 panels have the bits of fp32 panels of the same values, whatever the number of rows."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch

from models.cpu.formats import FP32, INT4, INT8, PANEL, STEP_BYTES
from models.cpu.jit import jit_entry
from models.cpu.matmul import multiply, multiply_gated, widened_floats
from models.cpu.packing import pack_matrix
from models.cpu.packing_groups import put_groups
from models.cpu.sync import COUNTER_STRIDE
from models.cpu.tile import MAX_SCRATCH_PANELS, MAX_TILE_ROWS, tile_entry
from models.cpu.tile_body import ADD, STORE
from models.quantized import QuantizedMatrix, quantize_int4, quantize_int8

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]

# Five panels: some are left over where two or three are taken side by side. The wide depth allows no three at once.
OUTPUTS, DEPTHS = 80, (96, 2048)


@jit_entry
def _multiply(entry, rows, a, w, kind, depth, c, mode, scratch, counters):  # type: ignore[no-untyped-def]
    multiply(entry, rows, a, depth, w, kind, depth, c, OUTPUTS, mode, scratch, counters, 1, 0, 0, 1)


@jit_entry
def _multiply_gated(entry, rows, a, w, kind, depth, c, gates, scratch, counters):  # type: ignore[no-untyped-def]
    multiply_gated(entry, rows, a, depth, w, kind, depth, c, OUTPUTS, gates, scratch, counters, 1, 0, 0, 1)


def _packed(kind: int, *matrices: QuantizedMatrix) -> Bytes:
    out = np.empty(len(matrices) * OUTPUTS // PANEL * matrices[0].codes.shape[1] * STEP_BYTES[kind], np.uint8)
    put_groups(out, matrices)
    return out


def _counters() -> npt.NDArray[np.int64]:
    return np.zeros((2, 1, COUNTER_STRIDE), np.int64)


def _product(kind: int, a: Floats, w: Bytes, c: Floats, mode: int) -> Floats:
    scratch, counters = np.empty(widened_floats(a.shape[1]), np.float32), _counters()
    places = (a.ctypes.data, w.ctypes.data, kind, a.shape[1], c.ctypes.data, mode)
    _multiply(tile_entry(kind), len(a), *places, scratch.ctypes.data, counters.ctypes.data)
    return c


def _gated(kind: int, a: Floats, w: Bytes) -> Floats:
    scratch, counters = np.empty(widened_floats(a.shape[1]), np.float32), _counters()
    gates = np.empty((MAX_TILE_ROWS, MAX_SCRATCH_PANELS * PANEL), np.float32)
    c = np.full((len(a), OUTPUTS), np.nan, np.float32)
    places = (a.ctypes.data, w.ctypes.data, kind, a.shape[1], c.ctypes.data, gates.ctypes.data)
    _multiply_gated(tile_entry(kind), len(a), *places, scratch.ctypes.data, counters.ctypes.data)
    return c


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("kind", [INT8, INT4])
def test_products_have_the_bits_of_fp32_products_of_the_same_values(kind: int, depth: int) -> None:
    rng = np.random.default_rng(depth + kind)
    quantize = quantize_int4 if kind == INT4 else quantize_int8
    gate, up = (
        quantize(torch.from_numpy(rng.standard_normal((OUTPUTS, depth), np.float32) * np.float32(0.06)))
        for _ in range(2)
    )
    packed, both = _packed(kind, gate), _packed(kind, gate, up)
    wide, wide_both = pack_matrix(gate.values()), _alternating(gate, up)
    for rows in (*range(1, 15), 40):
        a = rng.standard_normal((rows, depth), np.float32)
        before = rng.standard_normal((rows, OUTPUTS), np.float32)
        empty = np.full_like(before, np.nan)
        assert np.array_equal(
            _product(kind, a, packed, empty.copy(), STORE), _product(FP32, a, wide, empty.copy(), STORE)
        )
        assert np.array_equal(
            _product(kind, a, packed, before.copy(), ADD), _product(FP32, a, wide, before.copy(), ADD)
        )
        assert np.array_equal(_gated(kind, a, both), _gated(FP32, a, wide_both))
    exact = a.astype(np.float64) @ gate.values().double().numpy().T
    assert np.abs(_product(kind, a, packed, empty, STORE) - exact).max() < 1e-4


def _alternating(gate: QuantizedMatrix, up: QuantizedMatrix) -> Bytes:
    panels = [pack_matrix(matrix.values()).reshape(OUTPUTS // PANEL, -1) for matrix in (gate, up)]
    return np.ascontiguousarray(np.stack(panels, axis=1)).reshape(-1)


@pytest.mark.parametrize("kind", [INT8, INT4])
@pytest.mark.parametrize("outputs", [1, PANEL - 1, PANEL, PANEL + 5])
def test_the_last_panel_is_padded_with_zero_weights(kind: int, outputs: int) -> None:
    matrix = torch.randn(outputs, 64, generator=torch.Generator().manual_seed(outputs))
    quantized = quantize_int4(matrix) if kind == INT4 else quantize_int8(matrix)
    count = -(-outputs // PANEL)
    packed = np.full(count * 64 * STEP_BYTES[kind], 255, np.uint8)
    put_groups(packed, [quantized])
    padded = torch.zeros(OUTPUTS, 64)
    padded[:outputs] = quantized.values()
    rest = np.zeros((OUTPUTS // PANEL - count) * 64 * STEP_BYTES[kind], np.uint8)
    a = np.random.default_rng(0).standard_normal((3, 64), np.float32)
    empty = np.full((3, OUTPUTS), np.nan, np.float32)
    product = _product(kind, a, np.concatenate([packed, rest]), empty.copy(), STORE)
    assert np.array_equal(product, _product(FP32, a, pack_matrix(padded), empty, STORE))
