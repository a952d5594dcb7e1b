"""Packed panels: the layout by its definition, padding, alternation, and the way without torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from models.cpu.formats import PANEL
from models.cpu.packing import pack_bits, pack_matrix, panels


def bits_of(matrix: Tensor) -> np.ndarray:
    if matrix.dtype == torch.bfloat16:
        return matrix.view(torch.int16).numpy().view(np.uint16)
    return matrix.view(torch.int32).numpy().view(np.uint32)


def by_definition(matrix: Tensor) -> np.ndarray:
    """Panel by panel, depth by depth; bf16 pairs a panel's row i with its row i + PANEL / 2 (models/cpu/tile.py)."""
    bits = bits_of(matrix)
    parts = 2 if bits.itemsize == 2 else 1
    out = []
    for first in range(0, panels(len(bits)) * PANEL, PANEL):
        for depth in range(bits.shape[1]):
            for row in range(PANEL // parts):
                for part in range(parts):
                    at = first + part * (PANEL // parts) + row
                    out.append(bits[at, depth] if at < len(bits) else 0)
    return np.array(out, bits.dtype).view(np.uint8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("outputs", [1, PANEL - 1, PANEL, PANEL + 1, 3 * PANEL + 5])
def test_panels_are_as_the_kernel_reads_them_and_the_last_is_padded_with_zeros(
    outputs: int, dtype: torch.dtype
) -> None:
    matrix = torch.randn(outputs, 7, generator=torch.Generator().manual_seed(outputs)).to(dtype)
    wanted = by_definition(matrix)
    assert np.array_equal(pack_matrix(matrix), wanted)
    assert np.array_equal(pack_bits(bits_of(matrix)), wanted)


def test_a_matrix_that_is_a_view_is_packed_as_what_it_shows() -> None:
    whole = torch.randn(40, 12, generator=torch.Generator().manual_seed(1))
    assert np.array_equal(pack_matrix(whole.T), by_definition(whole.T.contiguous()))
