"""Matrices of eight and four bits a weight, in groups of 32 along the depth: GGUF's Q8_0 and Q4_1 (llama.cpp, ggml-quants).

A matrix whose values already are such codes times such scales, as those of a checkpoint that was converted from a Q8_0 or
Q4_1 file, is found again exactly; any other is rounded to the nearest code.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from contracts.errors import InvalidArgument

# Weights that share a scale.
GROUP = 32
# The greatest code of int8; the least is as far below 0.
INT8_MOST = 127
_INT4_MOST = 15
_FIRST_ROWS = 16


@dataclass(frozen=True)
class QuantizedMatrix:
    """A matrix [outputs, depth] whose weights are codes * scales (+ offsets), computed in fp32 and rounded once.

    codes: int8 [outputs, depth] without offsets, uint8 in 0..15 with them. scales, offsets: fp16 [outputs, depth / 32].
    """

    codes: Tensor
    scales: Tensor
    offsets: Tensor | None

    def values(self) -> Tensor:
        """float32 [outputs, depth]."""
        groups = self.codes.float().unflatten(1, (-1, GROUP)) * self.scales.float()[..., None]
        if self.offsets is not None:
            # The product is exact (11 and 4 bits), so the sum is the only rounding.
            groups = groups + self.offsets.float()[..., None]
        values: Tensor = groups.flatten(1)
        return values


def quantize_int8(matrix: Tensor) -> QuantizedMatrix:
    """Q8_0: a weight is q d, q in -127..127, d the group's greatest magnitude over 127.

    Raises InvalidArgument for a depth that is not whole groups and for weights that fp16 scales cannot reach.
    """
    groups = _groups(matrix)
    scales = _half(groups.abs().amax(2) / INT8_MOST)
    codes = (groups / _divisor(scales)).round().clamp(-INT8_MOST, INT8_MOST)
    return QuantizedMatrix(codes.to(torch.int8).flatten(1), scales, None)


def quantize_int4(matrix: Tensor) -> QuantizedMatrix:
    """Q4_1: a weight is q d + m, q in 0..15, m the group's least weight, d a fifteenth of its range. Raises as int8's."""
    groups = _groups(matrix)
    least, most = groups.amin(2), groups.amax(2)
    scales, offsets = _half((most - least) / _INT4_MOST), _half(least)
    codes = ((groups - offsets.float()[..., None]) / _divisor(scales)).round().clamp(0, _INT4_MOST)
    return QuantizedMatrix(codes.to(torch.uint8).flatten(1), scales, offsets)


def holds_exactly(matrix: Tensor, quantize: Callable[[Tensor], QuantizedMatrix]) -> bool:
    """Whether every value of the matrix is found again by that quantisation. Matrices that are no such codes are told by
    their first rows.
    """
    try:
        return all(
            torch.equal(quantize(rows).values(), rows.float()) for rows in (matrix[:_FIRST_ROWS], matrix[_FIRST_ROWS:])
        )
    except InvalidArgument:
        return False


def _groups(matrix: Tensor) -> Tensor:
    if matrix.shape[1] % GROUP:
        raise InvalidArgument(
            "dtype", f"int8 and int4 need matrices of whole groups of {GROUP} inputs, one has {matrix.shape[1]}"
        )
    groups: Tensor = matrix.float().unflatten(1, (-1, GROUP))
    return groups


def _half(values: Tensor) -> Tensor:
    halves = values.half()
    if not halves.isfinite().all():
        raise InvalidArgument("dtype", "int8 and int4 need finite weights whose scales fit fp16 (at most 65504)")
    return halves


def _divisor(scales: Tensor) -> Tensor:
    """What weights are divided by: 1 where a scale is 0, whose codes then do not matter."""
    wide = scales.float()[..., None]
    return torch.where(wide == 0, 1.0, wide)
