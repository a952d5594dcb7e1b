"""Panels of quantised matrices: see `models.cpu.formats` for their layout."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from models.cpu.formats import PANEL, UNROLLED
from models.quantized import GROUP, QuantizedMatrix

_HALF = PANEL // 2


def put_groups(place: npt.NDArray[np.uint8], matrices: Sequence[QuantizedMatrix]) -> None:
    """Write the panels of matrices [outputs, depth] of one shape and kind, theirs in turns; padded with zero weights."""
    outputs, depth = matrices[0].codes.shape
    count, groups = -(-outputs // PANEL), depth // GROUP
    target = torch.from_numpy(place).view(count, len(matrices), groups, -1)
    for turn, matrix in enumerate(matrices):
        at = 0
        for metadata in (matrix.scales, matrix.offsets):
            if metadata is not None:
                wide = _padded(metadata, count).view(count, PANEL, groups).transpose(1, 2)
                target[:, turn, :, at : at + 2 * PANEL] = wide.contiguous().view(torch.uint8)
                at += 2 * PANEL
        codes = _padded(matrix.codes, count).view(torch.uint8).view(count, PANEL, groups, GROUP)
        steps = _nibbles(codes) if matrix.offsets is not None else codes.permute(0, 2, 3, 1)
        target[:, turn, :, at:] = steps.reshape(count, groups, -1)


def _nibbles(codes: Tensor) -> Tensor:
    """uint8 [panels, groups, words, lanes, bytes] of codes [panels, 16, groups, 32]: a byte holds both halves of a step."""
    pairs = codes[:, :_HALF] | codes[:, _HALF:] << 4
    words: Tensor = pairs.unflatten(3, (-1, UNROLLED))
    return words.permute(0, 2, 3, 1, 4)


def _padded(rows: Tensor, count: int) -> Tensor:
    missing = count * PANEL - len(rows)
    return torch.cat([rows, rows.new_zeros(missing, rows.shape[1])]) if missing else rows
