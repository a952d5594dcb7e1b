"""Weights in the order the kernel reads them, all in one arena.

One arena, because the kernel streams through all of it each pass and an allocation of this size gets huge pages; small
separate ones do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from models.config import DecoderConfig
from models.cpu.formats import BF16, FP32, INT4, INT8, PANEL, STEP_BYTES
from models.cpu.packing_groups import put_groups
from models.quantized import quantize_int4, quantize_int8
from models.weights import DecoderWeights

_LINE_BYTES = 64


@dataclass(frozen=True)
class Packed:
    """arena: uint8. offsets: int64 [layers, 4], byte offsets of qkv, out, gate_up and down; `head` is the head's, whose
    panels have format `head_kind`.
    """

    arena: npt.NDArray[np.uint8]
    offsets: npt.NDArray[np.int64]
    head: int
    head_kind: int


def new_arena(size: int) -> npt.NDArray[np.uint8]:
    """uint8 [size], uninitialised, from a cache line's start."""
    raw = np.empty(size + _LINE_BYTES, np.uint8)
    start = -raw.ctypes.data % _LINE_BYTES
    return raw[start : start + size]


def panels(outputs: int) -> int:
    """Panels that hold `outputs` outputs; the last one is padded with zero weights."""
    return -(-outputs // PANEL)


def vocabulary_kind(kind: int) -> int:
    """The format of the embedding and the head beside layers of format `kind`: four bits harm them most and save least."""
    return INT8 if kind == INT4 else kind


def pack(weights: DecoderWeights, config: DecoderConfig, kind: int) -> Packed:
    """Pack all matrices, those of the layers in format `kind`: FP32 and BF16 are the matrices' own dtype, others quantise.

    Gate and up panels alternate, so that one unit of work has both halves of its outputs.
    """
    step, head_kind = STEP_BYTES[kind], vocabulary_kind(kind)
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
    arena = new_arena(head + panels(config.vocab_size) * hidden * STEP_BYTES[head_kind])
    offsets = np.add.outer(np.arange(config.num_layers) * starts[-1], starts[:-1]).astype(np.int64)

    def put(offset: int, kind: int, *matrices: Tensor) -> None:
        size = sum(panels(len(matrix)) * matrix.shape[1] * STEP_BYTES[kind] for matrix in matrices)
        place = arena[offset : offset + size]
        if kind in (FP32, BF16):
            _put(place, matrices)
        else:
            put_groups(place, [quantize_int4(matrix) if kind == INT4 else quantize_int8(matrix) for matrix in matrices])

    for layer, places in zip(weights.layers, offsets.tolist(), strict=True):
        put(places[0], kind, layer.qkv)
        put(places[1], kind, layer.out)
        put(places[2], kind, *layer.gate_up.chunk(2))
        put(places[3], kind, layer.down)
    put(head, head_kind, weights.head)
    return Packed(arena, offsets, head, head_kind)


def pack_matrix(matrix: Tensor) -> npt.NDArray[np.uint8]:
    """uint8 bytes of the panels of a matrix [outputs, depth]; see `models.cpu.formats` for their layout."""
    out = np.empty(panels(len(matrix)) * PANEL * matrix.shape[1] * matrix.element_size(), np.uint8)
    _put(out, (matrix,))
    return out


def pack_bits(rows: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """What `pack_matrix` makes of a bf16 (uint16) or float32 (uint32) matrix's bits [outputs, depth], for few rows.

    Without torch, whose threads would contend with those of a pass that runs beside.
    """
    outputs, depth = rows.shape
    parts = 2 if rows.itemsize == 2 else 1
    tall = np.zeros((panels(outputs) * PANEL, depth), rows.dtype)
    tall[:outputs] = rows
    ordered = tall.reshape(-1, parts, PANEL // parts, depth).transpose(0, 3, 2, 1)
    return np.ascontiguousarray(ordered).reshape(-1).view(np.uint8)


def _put(place: npt.NDArray[np.uint8], matrices: Sequence[Tensor]) -> None:
    """Write the panels of matrices [outputs, depth] of one shape, theirs in turns: one copy, in the layout's order."""
    depth, outputs = matrices[0].shape[1], len(matrices[0])
    whole, left = divmod(outputs, PANEL)
    # Bits are copied, not numbers; of bf16 each panel's halves are interleaved.
    bits, parts = (torch.int16, 2) if matrices[0].dtype == torch.bfloat16 else (torch.int32, 1)
    target = torch.from_numpy(place).view(bits).view(panels(outputs), len(matrices), depth, PANEL // parts, parts)
    if left:
        target[whole:] = 0
    for turn, matrix in enumerate(matrices):
        source = matrix.contiguous().view(bits)
        full = source[: whole * PANEL].view(whole, parts, PANEL // parts, depth)
        target[:whole, turn].copy_(full.permute(0, 3, 2, 1))
        for row in range(left):
            part, at = divmod(row, PANEL // parts)
            target[whole, turn, :, at, part] = source[whole * PANEL + row]
