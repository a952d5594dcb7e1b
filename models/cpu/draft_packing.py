"""A draft head's matrices as panels: the fusing matrices, and further rows of a vocabulary while others compute."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from models.cpu.formats import FORMATS, INT8, PANEL, STEP_BYTES
from models.cpu.packing import pack_bits, pack_matrix, panels
from models.cpu.packing_groups import put_groups
from models.quantized import GROUP, quantize_int8

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
    those of a pass that runs beside. dtype: as `DRAFT_DTYPES`.
    """

    def __init__(self, rows: Tensor, dtype: torch.dtype) -> None:
        self._scales: npt.NDArray[np.uint16] | None = None
        self._rows: npt.NDArray[Any]
        if dtype == torch.int8:
            quantised = quantize_int8(rows)
            self._rows = quantised.codes.numpy()
            self._scales = quantised.scales.view(torch.int16).numpy().view(np.uint16)
        elif dtype == torch.bfloat16:
            self._rows = rows.to(dtype).contiguous().view(torch.int16).numpy().view(np.uint16)
        else:
            self._rows = rows.to(dtype).contiguous().view(torch.int32).numpy().view(np.uint32)

    def panels_of(self, tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
        """uint8 bytes of the panels of these tokens' rows, padded with zero weights."""
        if self._scales is None:
            return pack_bits(self._rows[tokens])
        count, groups = panels(len(tokens)), self._rows.shape[1] // GROUP
        codes = np.zeros((count * PANEL, groups, GROUP), np.int8)
        scales = np.zeros((count * PANEL, groups), np.uint16)
        codes[: len(tokens)] = self._rows[tokens].reshape(-1, groups, GROUP)
        scales[: len(tokens)] = self._scales[tokens]
        out = np.empty((count, groups, 2 * PANEL + GROUP * PANEL), np.uint8)
        heads = np.ascontiguousarray(scales.reshape(count, PANEL, groups).transpose(0, 2, 1))
        out[:, :, : 2 * PANEL] = heads.view(np.uint8).reshape(count, groups, -1)
        steps = np.ascontiguousarray(codes.reshape(count, PANEL, groups, GROUP).transpose(0, 2, 3, 1))
        out[:, :, 2 * PANEL :] = steps.view(np.uint8).reshape(count, groups, -1)
        return out.reshape(-1)
