"""A draft head's matrices as panels: the fusing matrices, and further rows of a vocabulary while others compute."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from contracts.errors import InvalidArgument
from models.cpu.formats import FORMATS, INT8, PANEL, STEP_BYTES
from models.cpu.packing import pack_bits, pack_matrix, panels
from models.cpu.packing_groups import put_groups
from models.quantized import GROUP, INT8_MOST, quantize_int8

# Types that a head drafts in. int8: of the matrices and of the vocabulary, which are then read from float32 weights.
DRAFT_DTYPES = (torch.float32, torch.bfloat16, torch.int8)


def kind_of(dtype: torch.dtype) -> int:
    """The format of panels of that type."""
    return FORMATS[str(dtype).removeprefix("torch.")]


def stored_in(dtype: torch.dtype) -> torch.dtype:
    """What weights are before they are packed for drafting in `dtype`."""
    return torch.float32 if dtype == torch.int8 else dtype


def packed(matrix: Tensor, kind: int) -> npt.NDArray[np.uint8]:
    """uint8 bytes of the panels of a matrix [outputs, depth], which is quantised for int8."""
    if kind != INT8:
        return pack_matrix(matrix)
    out = np.empty(panels(len(matrix)) * STEP_BYTES[kind] * matrix.shape[1], np.uint8)
    put_groups(out, [quantize_int8(matrix)])
    return out


class FurtherRows:
    """Rows of the target's head [V, H] from which few are packed at a time, without torch: its threads would contend with
    those of a pass that runs beside. dtype: of `DRAFT_DTYPES`.
    """

    def __init__(self, rows: Tensor, dtype: torch.dtype) -> None:
        self._quantised = dtype == torch.int8
        rows = rows if self._quantised and rows.dtype == torch.bfloat16 else rows.to(stored_in(dtype))
        self._bits: npt.NDArray[Any] = (
            rows.contiguous().view(torch.int16).numpy().view(np.uint16)
            if rows.dtype == torch.bfloat16
            else rows.contiguous().view(torch.int32).numpy().view(np.uint32)
        )

    def panels_of(self, tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
        """uint8 bytes of the panels of these tokens' rows, padded with zero weights. Raises InvalidArgument as quantising a
        whole matrix does (models.quantized)."""
        bits = self._bits[tokens]
        if not self._quantised:
            return pack_bits(bits)
        wide = bits.astype(np.uint32) << np.uint32(16) if bits.itemsize == 2 else bits
        return _pack_int8(wide.view(np.float32))


def _pack_int8(rows: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
    """What `packed` makes of a matrix in int8, bit for bit."""
    count, groups = panels(len(rows)), rows.shape[1] // GROUP
    values = np.zeros((count * PANEL, groups, GROUP), np.float32)
    values[: len(rows)] = rows.reshape(len(rows), groups, GROUP)
    with np.errstate(over="ignore"):
        scales = (np.abs(values).max(2) / np.float32(INT8_MOST)).astype(np.float16)
    if not np.isfinite(scales).all():
        raise InvalidArgument("dtype", "int8 needs finite weights whose scales fit fp16 (at most 65504)")
    divisor = np.where(scales == 0, np.float32(1.0), scales.astype(np.float32))[..., None]
    codes = np.clip(np.rint(values / divisor), -INT8_MOST, INT8_MOST).astype(np.int8)
    out = np.empty((count, groups, 2 * PANEL + GROUP * PANEL), np.uint8)
    first = np.ascontiguousarray(scales.reshape(count, PANEL, groups).transpose(0, 2, 1))
    out[:, :, : 2 * PANEL] = first.view(np.uint8).reshape(count, groups, -1)
    steps = np.ascontiguousarray(codes.reshape(count, PANEL, groups, GROUP).transpose(0, 2, 3, 1))
    out[:, :, 2 * PANEL :] = steps.view(np.uint8).reshape(count, groups, -1)
    return out.reshape(-1)
