"""Embeddings of a pass's tokens, looked up by compiled code or by numpy.

From a few rows on torch would wake its own threads for it, and those then spin beside the pass for milliseconds.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from models.backend import Int64Array
from models.cpu.formats import INT8
from models.quantized import GROUP, quantize_int8

Floats = npt.NDArray[np.float32]
# [vocabulary, hidden]: float32 values, or uint16 bits of bf16, or int8 codes and the fp16 scales of their groups.
EmbeddingArrays = tuple[npt.NDArray[Any], ...]


class EmbeddingTable(Protocol):
    """address: where compiled code finds the rows, values of `value_bytes` each (4: float32, 2: bf16); both 0 where only
    `rows` does."""

    address: int
    value_bytes: int

    def rows(self, tokens: Int64Array) -> Floats:
        """float32 [N, hidden] of tokens [N]."""
        ...


def embedding_arrays(embedding: Tensor, kind: int) -> EmbeddingArrays:
    """Embeddings [vocabulary, hidden] in format `kind`: INT8, or the tensor's own dtype."""
    if kind == INT8:
        matrix = quantize_int8(embedding)
        return matrix.codes.numpy(), matrix.scales.numpy()
    embedding = embedding.contiguous()
    if embedding.dtype == torch.bfloat16:
        return (embedding.view(torch.int16).numpy().view(np.uint16),)
    return (embedding.numpy(),)


def embedding_table(arrays: EmbeddingArrays) -> EmbeddingTable:
    """The table of what `embedding_arrays` returned."""
    if len(arrays) == 2:
        return _Int8(*arrays)
    return _Bf16(*arrays) if arrays[0].dtype == np.uint16 else _Fp32(*arrays)


class _Fp32:
    value_bytes = 4

    def __init__(self, rows: Floats) -> None:
        self._rows = rows
        self.address = _address(rows)

    def rows(self, tokens: Int64Array) -> Floats:
        found: Floats = self._rows[tokens]
        return found


class _Bf16:
    value_bytes = 2

    def __init__(self, bits: npt.NDArray[np.uint16]) -> None:
        self._bits = bits
        self.address = _address(bits)

    def rows(self, tokens: Int64Array) -> Floats:
        """bf16 is the upper half of float32."""
        return (self._bits[tokens].astype(np.uint32) << 16).view(np.float32)


class _Int8:
    address = value_bytes = 0

    def __init__(self, codes: npt.NDArray[np.int8], scales: npt.NDArray[np.float16]) -> None:
        self._codes, self._scales = codes, scales

    def rows(self, tokens: Int64Array) -> Floats:
        codes = self._codes[tokens].astype(np.float32).reshape(len(tokens), -1, GROUP)
        return (codes * self._scales[tokens].astype(np.float32)[..., None]).reshape(len(tokens), -1)


def _address(rows: npt.NDArray[Any]) -> int:
    assert rows.flags.c_contiguous
    return int(rows.__array_interface__["data"][0])
