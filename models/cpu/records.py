"""What the compiled pass reads and writes: one record for the model, one for a pass.

Numbers only. Buffers are addresses (int64) and row strides (in floats): numba carries an array as seven values through
every call and counts references to it, which makes compiling take half a minute. Whoever fills a record keeps the arrays
alive until the last thread has left the pass. All buffers hold float32 unless said otherwise.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Model(NamedTuple):
    """Constant over the backend's life. An address of 0 stands for an absent optional tensor."""

    tile: int  # address of the matrix kernel, see models.cpu.tile
    arena: int  # packed matrices, see models.cpu.packing
    offsets: int  # int64 [layers, 4], bytes into the arena: qkv, out, gate_up, down
    head: int  # bytes into the arena
    kind: int  # of the layers' panels, see models.cpu.formats
    head_kind: int
    widened: int  # [threads, widened_stride], panels of int8 and int4 as fp32
    widened_stride: int
    norms: int  # [2 * layers + 1, padded hidden]; attention, MLP, ..., final
    qkv_bias: int  # [layers, qkv]
    out_bias: int  # [layers, padded hidden]
    head_norms: int  # [layers, 2, head_dim]; query, key
    windows: int  # int64 [layers]; 0 for none
    layers: int
    hidden: int
    hidden_stride: int  # padded to whole panels, as all strides are
    inner: int
    inner_stride: int
    qkv: int
    qkv_stride: int
    mixed_stride: int
    vocab_stride: int
    heads: int
    kv_heads: int
    head_dim: int
    head_stride: int
    eps: np.float32
    scale: np.float32  # of the attention scores


class Work(NamedTuple):
    """One pass over `rows` rows. Padding of x and normed stays zero."""

    rows: int
    x: int  # [rows, hidden]; in: embeddings; out: last layer
    normed: int  # [rows, hidden]; out: final norm
    qkv: int  # [rows, qkv]
    query: int  # [kv_heads, rows, group, head_dim], rotated and scaled
    mixed: int  # [rows, heads * head_dim]
    inner: int  # [rows, inner]
    cos: int  # [rows, head_dim / 2], unpadded
    sin: int  # [rows, head_dim / 2], unpadded
    row_block: int  # int64 [rows]
    row_index: int  # int64 [rows], row of the slot's storage that takes this row's keys and values
    lengths: int  # int64 [blocks], committed rows
    stored: int  # int64 [blocks], committed and staged rows, this pass's included
    pages: int  # int64, addresses of all blocks' pages in order, see models.cpu.storage
    page_start: int  # int64 [blocks], into pages
    path_start: int  # int64 [rows + 1], into paths
    paths: int  # int64; staged indices of each row's staged ancestors and of itself, root first
    groups: int  # int64 [group_count, 3], first and last + 1 row of one block that attend together, shared path entries
    group_count: int
    scores: int  # [threads, lines, score_stride]
    score_stride: int
    lines: int  # rows of a group * query heads per kv head
    out: int  # [threads, lines, head_stride]
    gates: int  # [threads, 6, 96]
    tap_count: int
    tap_layers: int  # int64 [tap_count]
    taps: int  # [tap_count, rows, hidden]
    kv_only: int  # 1 when nothing of the pass but its keys and values is wanted
    wanted_count: int
    wanted: int  # int64 [wanted_count]
    picked: int  # [wanted_count, hidden]
    logits: int  # [wanted_count, vocabulary]
    counters: int  # int64 [1 + threads, phases, 16], zeroed; see models.cpu.sync
    phases: int


class Given(NamedTuple):
    """What a pass is prepared from (models.cpu.preparing): where it computes, and how much it is. The buffers of `Work` are
    under its names. Lists follow it.
    """

    x: int
    normed: int
    qkv: int
    query: int
    mixed: int
    inner: int
    cos: int
    sin: int
    scores: int
    out: int
    gates: int
    picked: int
    all_cos: int  # [context, head_dim / 2]
    all_sin: int
    embedding: int  # [vocabulary, hidden], unpadded
    embedding_bytes: int  # of a value: 4 or 2 (bf16); 0 where every row is given
    storage: int  # address of page 0
    page_bytes: int
    threads: int
    phases: int
    blocks: int
    rows: int
    wanted_count: int
    tap_count: int
    kv_only: int
    outputs: int  # 1 where the final norm's rows are read: behind the taps
    score_stride: int
    listed: int  # numbers in the lists
