"""Embeddings of a pass's tokens, looked up by numpy.

From a few rows on torch would wake its own threads for it, and those then spin beside the pass for milliseconds.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from models.backend import Int64Array
from models.cpu.formats import INT8
from models.quantized import GROUP, quantize_int8

Floats = npt.NDArray[np.float32]


class EmbeddingTable(Protocol):
    def rows(self, tokens: Int64Array) -> Floats:
        """float32 [N, hidden] of tokens [N]."""
        ...


def embedding_table(embedding: Tensor, kind: int) -> EmbeddingTable:
    """The table of embeddings [vocabulary, hidden] in format `kind`: INT8, or the tensor's own dtype."""
    if kind == INT8:
        return _Int8(embedding)
    return _Bf16(embedding) if embedding.dtype == torch.bfloat16 else _Fp32(embedding)


class _Fp32:
    def __init__(self, embedding: Tensor) -> None:
        self._rows = embedding.contiguous().numpy()

    def rows(self, tokens: Int64Array) -> Floats:
        found: Floats = self._rows[tokens]
        return found


class _Bf16:
    def __init__(self, embedding: Tensor) -> None:
        self._bits = embedding.contiguous().view(torch.int16).numpy().view(np.uint16)

    def rows(self, tokens: Int64Array) -> Floats:
        """bf16 is the upper half of float32."""
        return (self._bits[tokens].astype(np.uint32) << 16).view(np.float32)


class _Int8:
    def __init__(self, embedding: Tensor) -> None:
        matrix = quantize_int8(embedding)
        self._codes, self._scales = matrix.codes.numpy(), matrix.scales.numpy()

    def rows(self, tokens: Int64Array) -> Floats:
        codes = self._codes[tokens].astype(np.float32).reshape(len(tokens), -1, GROUP)
        return (codes * self._scales[tokens].astype(np.float32)[..., None]).reshape(len(tokens), -1)
