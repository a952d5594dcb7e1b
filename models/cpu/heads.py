"""Between the qkv product and attention: bias, head norm and rotation of one row, and its place in the cache."""

from __future__ import annotations

import numpy as np

from models.cpu.formats import PANEL
from models.cpu.jit import LANES, get, get_int, jit, put
from models.cpu.storage import PAGE_ROWS
from models.cpu.vector import copy_vectors, rotate


@jit
def prepare_row(model, work, layer, row):  # type: ignore[no-untyped-def]
    """Queries of one row go to work.query, scaled; its keys and values to the slot."""
    width, heads, kv_heads, padded = model.head_dim, model.heads, model.kv_heads, model.head_stride
    group = heads // kv_heads
    line = work.qkv + 4 * row * model.qkv_stride
    if model.qkv_bias:
        _add(line, model.qkv_bias + 4 * layer * model.qkv, model.qkv)
    if model.out_bias:
        # Here, because nobody else touches the residual stream between the two norms' phases.
        stride = model.hidden_stride
        _add(work.x + 4 * row * stride, model.out_bias + 4 * layer * stride, stride)
    block, place = get_int(work.row_block + 8 * row), get_int(work.row_index + 8 * row)
    keys = get_int(work.pages + 8 * (get_int(work.page_start + 8 * block) + place // PAGE_ROWS))
    values = keys + 4 * model.layers * kv_heads * PAGE_ROWS * width
    place %= PAGE_ROWS
    cos, sin = work.cos + 2 * row * width, work.sin + 2 * row * width
    for index in range(heads + kv_heads):
        source = line + 4 * index * width
        if model.head_norms:
            kind = 1 if index >= heads else 0
            _norm(source, model.head_norms + 4 * (2 * layer + kind) * width, width, model.eps)
        if index < heads:
            target = work.query + 4 * ((index // group * work.rows + row) * group + index % group) * padded
            _rotate(source, cos, sin, width // 2, target, model.scale)
        else:
            lane = layer * kv_heads + index - heads
            first = keys + 4 * ((lane * PAGE_ROWS + place // PANEL * PANEL) * width + place % PANEL)
            _rotate(source, cos, sin, width // 2, source, np.float32(1.0))
            for i in range(width):
                put(first + 4 * PANEL * i, get(source + 4 * i))
    for head in range(kv_heads):
        source = line + 4 * (heads + kv_heads + head) * width
        first = values + 4 * ((layer * kv_heads + head) * padded * PAGE_ROWS + place * PANEL)
        for start in range(0, width, PANEL):
            copy(source + 4 * start, first + 4 * start * PAGE_ROWS, min(PANEL, width - start))


@jit
def _add(target, source, count):  # type: ignore[no-untyped-def]
    for i in range(count):
        put(target + 4 * i, get(target + 4 * i) + get(source + 4 * i))


@jit
def _norm(line, weight, width, eps):  # type: ignore[no-untyped-def]
    total = np.float32(0.0)
    for i in range(width):
        value = get(line + 4 * i)
        total += value * value
    factor = np.float32(1.0) / np.sqrt(total / np.float32(width) + eps)
    for i in range(width):
        put(line + 4 * i, get(weight + 4 * i) * (get(line + 4 * i) * factor))


@jit
def copy(source, target, count):  # type: ignore[no-untyped-def]
    """count floats from one address to another."""
    whole = count // LANES * LANES
    copy_vectors(source, target, whole)
    for i in range(whole, count):
        put(target + 4 * i, get(source + 4 * i))


@jit
def _rotate(source, cos, sin, half, target, scale):  # type: ignore[no-untyped-def]
    """target = the head's halves rotated, times scale; it may be the source."""
    rotate(source, cos, sin, half, target, scale)
    for i in range(half // LANES * LANES, half):
        first, second = get(source + 4 * i), get(source + 4 * (half + i))
        c, s = get(cos + 4 * i), get(sin + 4 * i)
        put(target + 4 * i, (first * c - second * s) * scale)
        put(target + 4 * (half + i), (second * c + first * s) * scale)
