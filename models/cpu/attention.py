"""Attention of tree rows over a prefix and their own ancestors, for grouped queries.

Keys lie in panels of 16 rows, dimension-major, and values in panels of 16 dimensions, row-major: so scores and mixture
are the same matrix kernel as everything else, with query heads of several rows as the kernel's rows.

A row's scores are brought into the order of its own context, prefix first and then its path from the root, before anything
is summed. Sums over that order are the same whether an ancestor is staged or committed, and whatever other rows the pass
holds: that, and the kernel's fixed order, make a row's result independent of the tree around it. Rows that a row does not
see are never multiplied with, not even by zero.
"""

from __future__ import annotations

import numpy as np

from models.cpu.jit import LANES, address, jit, put
from models.cpu.matmul import tile_count
from models.cpu.tile import CONTINUE, MAX_TILE_ROWS, PANEL, STORE, tile
from models.cpu.vector import exponentiate, row_max, sum_of_squares

_FLOAT_BYTES = 4


@jit
def prepare_row(model, work, layer, row, scratch):  # type: ignore[no-untyped-def]
    """Bias, head norm and rotation of one row's heads; queries go to work.query, keys and values to the slot.

    scratch: float32 [padded head_dim], this thread's own.
    """
    width, heads, kv_heads = model.head_dim, model.heads, model.kv_heads
    group = heads // kv_heads
    line = work.qkv[row]
    if model.qkv_bias.shape[0] > 0:
        for i in range(model.qkv_bias.shape[1]):
            line[i] += model.qkv_bias[layer, i]
    block, place = work.row_block[row], work.row_index[row]
    capacity, padded = work.capacities[block], work.query.shape[3]
    for head in range(kv_heads):
        for member in range(group):
            _rotate(model, work, layer, row, line, head * group + member, 0, scratch)
            for i in range(width):
                work.query[head, row, member, i] = scratch[i] * model.scale
        _rotate(model, work, layer, row, line, heads + head, 1, scratch)
        start = ((layer * kv_heads + head) * capacity + place // PANEL * PANEL) * width + place % PANEL
        for i in range(width):
            put(work.keys[block] + (start + i * PANEL) * _FLOAT_BYTES, scratch[i])
        start = (layer * kv_heads + head) * padded * capacity + place * PANEL
        value = (heads + kv_heads + head) * width
        for i in range(width):
            offset = start + i // PANEL * PANEL * capacity + i % PANEL
            put(work.values[block] + offset * _FLOAT_BYTES, line[value + i])


@jit
def _rotate(model, work, layer, row, line, head, kind, scratch):  # type: ignore[no-untyped-def]
    """scratch[:head_dim] = one head, normed (kind 0: as query, 1: as key) and rotated."""
    width, half = model.head_dim, model.head_dim // 2
    for i in range(width):
        scratch[i] = line[head * width + i]
    if model.head_norms.shape[0] > 0:
        mean = sum_of_squares(address(scratch, 0), scratch.shape[0]) / np.float32(width)
        factor = np.float32(1.0) / np.sqrt(mean + model.eps)
        for i in range(width):
            scratch[i] = model.head_norms[layer, kind, i] * (scratch[i] * factor)
    for i in range(half):
        first, second = scratch[i], scratch[half + i]
        cos, sin = work.cos[row, i], work.sin[row, i]
        scratch[i] = first * cos - second * sin
        scratch[half + i] = second * cos + first * sin


@jit
def attend(model, work, layer, unit, thread):  # type: ignore[no-untyped-def]
    """One unit: the rows of one group with one key-value head, into work.mixed."""
    head, index = unit % model.kv_heads, unit // model.kv_heads
    first, last = work.groups[index, 0], work.groups[index, 1]
    group = model.heads // model.kv_heads
    block = work.row_block[first]
    length, capacity, padded = work.lengths[block], work.capacities[block], work.query.shape[3]
    window = model.windows[layer]
    low = np.int64(0)
    if window > 0:
        nearest = length
        for row in range(first, last):
            nearest = min(nearest, _window_start(work, row, length, window))
        low = nearest // PANEL * PANEL
    scores, out = work.scores[thread], work.heads[thread]
    rows = (last - first) * group
    query = address(work.query, ((head * work.query.shape[1] + first) * group) * padded)
    before = (layer * model.kv_heads + head) * capacity
    keys = work.keys[block] + before * model.head_dim * _FLOAT_BYTES
    values = work.values[block] + before * padded * _FLOAT_BYTES
    _score(query, rows, model.head_dim, padded, keys, low, work.stored[block], scores)
    for row in range(first, last):
        for member in range(group):
            m = (row - first) * group + member
            out[m, padded] = _softmax(work, row, length, low, window, scores[m])
    _mix_prefix(scores, rows, values, low, length, capacity, padded, out)
    for row in range(first, last):
        line = (row - first) * group
        _mix_path(work, row, scores, line, group, values, length - low, length, capacity, padded, out)
        for member in range(group):
            total = out[line + member, padded]
            target = (head * group + member) * model.head_dim
            for i in range(model.head_dim):
                work.mixed[row, target + i] = out[line + member, i] / total


@jit
def _window_start(work, row, length, window):  # type: ignore[no-untyped-def]
    """First position a row sees."""
    position = length + work.path_start[row + 1] - work.path_start[row] - 1
    return max(np.int64(0), position - window + 1)


@jit
def _score(query, rows, width, padded, keys, low, stored, scores):  # type: ignore[no-untyped-def]
    """scores[m, t - low] = query m times key t, for all stored rows; columns of rows nobody wrote are never read."""
    stride = scores.shape[1]
    tiles = tile_count(rows)
    for panel in range(low // PANEL, (stored + PANEL - 1) // PANEL):
        for index in range(tiles):
            m = rows * index // tiles
            count = rows * (index + 1) // tiles - m
            source = query + m * padded * _FLOAT_BYTES
            target = address(scores, m * stride + panel * PANEL - low)
            tile(count, 0, STORE, source, padded, keys + panel * PANEL * width * _FLOAT_BYTES, width, target, stride)


@jit
def _softmax(work, row, length, low, window, line):  # type: ignore[no-untyped-def]
    """Order one row's scores by its own context and exponentiate them; returns their sum."""
    start, stop = work.path_start[row], work.path_start[row + 1]
    count = length - low
    for i in range(stop - start):
        # A path ascends, so a score is read before its place is overwritten.
        line[count + i] = line[count + work.paths[start + i]]
    if window > 0:
        for i in range(_window_start(work, row, length, window) - low):
            line[i] = -np.inf
    count += stop - start
    whole = (count + LANES - 1) // LANES * LANES
    for i in range(count, whole):
        line[i] = -np.inf
    peak = row_max(address(line, 0), whole)
    return exponentiate(address(line, 0), whole, peak)


@jit
def _mix_prefix(scores, rows, values, low, length, capacity, padded, out):  # type: ignore[no-untyped-def]
    tiles = tile_count(rows)
    for first in range(0, padded, PANEL):
        for index in range(tiles):
            m = rows * index // tiles
            count = rows * (index + 1) // tiles - m
            weights = address(scores, m * scores.shape[1])
            source = values + (first * capacity + low * PANEL) * _FLOAT_BYTES
            target = address(out, m * out.shape[1] + first)
            tile(count, 0, STORE, weights, scores.shape[1], source, length - low, target, out.shape[1])


@jit
def _mix_path(work, row, scores, line, group, values, place, length, capacity, padded, out):  # type: ignore[no-untyped-def]
    """Go on summing over the row's path, run by run of rows that lie side by side."""
    start, stop = work.path_start[row], work.path_start[row + 1]
    at = start
    while at < stop:
        run = at + 1
        while run < stop and work.paths[run] == work.paths[run - 1] + 1:
            run += 1
        for first in range(0, padded, PANEL):
            source = values + (first * capacity + (length + work.paths[at]) * PANEL) * _FLOAT_BYTES
            for m in range(0, group, MAX_TILE_ROWS):
                count = min(MAX_TILE_ROWS, group - m)
                weights = address(scores, (line + m) * scores.shape[1] + place + at - start)
                target = address(out, (line + m) * out.shape[1] + first)
                tile(count, 0, CONTINUE, weights, scores.shape[1], source, run - at, target, out.shape[1])
        at = run
