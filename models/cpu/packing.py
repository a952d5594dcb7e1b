"""Weights in the order the kernel reads them, all in one arena.

One arena, because the kernel streams through all of it each pass and an allocation of this size gets huge pages; small
separate ones do not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from models.config import DecoderConfig
from models.cpu.tile import PANEL
from models.weights import DecoderWeights

_LINE_BYTES = 64


@dataclass(frozen=True)
class Packed:
    """arena: uint8. offsets: int64 [layers, 4], byte offsets of qkv, out, gate_up and down; `head` is the head's."""

    arena: npt.NDArray[np.uint8]
    offsets: npt.NDArray[np.int64]
    head: int


def panels(outputs: int) -> int:
    """Panels that hold `outputs` outputs; the last one is padded with zero weights."""
    return -(-outputs // PANEL)


def pack(weights: DecoderWeights, config: DecoderConfig) -> Packed:
    """Pack all matrices. Gate and up panels alternate, so that one unit of work has both halves of its outputs."""
    bf16 = weights.embedding.dtype == torch.bfloat16
    step = PANEL * (2 if bf16 else 4)
    hidden, width, inner = config.hidden_size, config.num_heads * config.head_dim, config.intermediate_size
    qkv = width + 2 * config.num_kv_heads * config.head_dim
    sizes = [
        panels(qkv) * hidden * step,
        panels(hidden) * width * step,
        2 * panels(inner) * hidden * step,
        panels(hidden) * inner * step,
    ]
    starts = np.concatenate([[0], np.cumsum(sizes)])
    head = int(starts[-1]) * config.num_layers
    raw = np.empty(head + panels(config.vocab_size) * hidden * step + _LINE_BYTES, np.uint8)
    arena = raw[-raw.ctypes.data % _LINE_BYTES :]
    offsets = np.add.outer(np.arange(config.num_layers) * starts[-1], starts[:-1]).astype(np.int64)

    def put(offset: int, matrix: Tensor) -> None:
        data = pack_matrix(matrix)
        arena[offset : offset + data.size] = data

    for layer, places in zip(weights.layers, offsets.tolist(), strict=True):
        put(places[0], layer.qkv)
        put(places[1], layer.out)
        put(places[2], _alternate(*layer.gate_up.chunk(2)))
        put(places[3], layer.down)
    put(head, weights.head)
    return Packed(arena, offsets, head)


def _pad(matrix: Tensor) -> Tensor:
    missing = panels(len(matrix)) * PANEL - len(matrix)
    return torch.cat([matrix, matrix.new_zeros(missing, matrix.shape[1])]) if missing else matrix


def _alternate(gate: Tensor, up: Tensor) -> Tensor:
    depth = gate.shape[1]
    pair = torch.stack([_pad(gate).view(-1, PANEL, depth), _pad(up).view(-1, PANEL, depth)], dim=1)
    return pair.reshape(-1, depth)


def pack_matrix(matrix: Tensor) -> npt.NDArray[np.uint8]:
    """uint8 bytes of the panels of a matrix [outputs, depth]; see `models.cpu.tile` for their layout."""
    tall = _pad(matrix).view(-1, PANEL, matrix.shape[1]).transpose(1, 2).contiguous()
    if matrix.dtype != torch.bfloat16:
        return _bytes(tall.numpy())
    halves = tall.view(torch.int16).numpy().view(np.uint16)
    interleaved = np.stack([halves[..., : PANEL // 2], halves[..., PANEL // 2 :]], axis=-1)
    return _bytes(interleaved)


def _bytes(array: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
