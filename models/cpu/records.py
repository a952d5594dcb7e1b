"""What the compiled pass reads and writes: one record for the model, one for a pass. numba takes both apart unchanged."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]


class Model(NamedTuple):
    """Constant over the backend's life. Absent optional tensors have no layers."""

    arena: npt.NDArray[np.uint8]  # packed matrices, see models.cpu.packing
    offsets: Ints  # [layers, 4]
    head: int  # byte offset
    bf16: int  # 1 when the arena holds bf16
    norms: Floats  # [2 * layers + 1, padded hidden]; attention, MLP, ..., final
    qkv_bias: Floats  # [layers or 0, qkv outputs]
    out_bias: Floats  # [layers or 0, hidden]
    head_norms: Floats  # [layers or 0, 2, head_dim]; query, key
    windows: Ints  # [layers]; 0 for none
    hidden: int
    inner: int
    heads: int
    kv_heads: int
    head_dim: int
    eps: np.float32
    scale: np.float32  # of the attention scores


class Work(NamedTuple):
    """One pass over `rows` rows in `blocks` blocks. Row strides are padded to whole panels, the padding stays zero."""

    x: Floats  # [rows, padded hidden], in: embeddings; out: last layer
    normed: Floats  # [rows, padded hidden], out: final norm
    qkv: Floats  # [rows, padded qkv outputs]
    query: Floats  # [kv_heads, rows, group, padded head_dim], rotated and scaled
    mixed: Floats  # [rows, padded heads * head_dim]
    inner: Floats  # [rows, padded inner]
    cos: Floats  # [rows, head_dim / 2]
    sin: Floats  # [rows, head_dim / 2]
    row_block: Ints  # [rows]
    row_index: Ints  # [rows], row of the slot's storage that takes this row's keys and values
    lengths: Ints  # [blocks], committed rows
    stored: Ints  # [blocks], committed and staged rows, this pass's included
    keys: Ints  # [blocks], address of float32 [layers, kv_heads, capacity / 16, head_dim, 16]
    values: Ints  # [blocks], address of float32 [layers, kv_heads, padded head_dim / 16, capacity, 16]
    capacities: Ints  # [blocks], multiples of 16
    path_start: Ints  # [rows + 1], into paths
    paths: Ints  # storage rows, less the block's length, of each row's staged ancestors and itself, root first
    groups: Ints  # [row groups, 2], first and last + 1 row; rows of one block that attend together
    scores: Floats  # [threads, rows of a group * query heads per kv head, padded longest context]
    heads: Floats  # [threads, rows of a group * query heads per kv head, padded head_dim + 1]; last: softmax sum
    turned: Floats  # [threads, padded head_dim], zeroed
    gates: Floats  # [threads, 6, 32]
    tap_layers: Ints  # [taps]
    taps: Floats  # [taps, rows, hidden]
    wanted: Ints  # [wanted rows]
    picked: Floats  # [wanted rows, padded hidden]
    logits: Floats  # [wanted rows, padded vocabulary]
    counters: Ints  # [2, phases, 16], zeroed; see models.cpu.sync
