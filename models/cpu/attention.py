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

from models.cpu.jit import LANES, get, get_int, jit, put
from models.cpu.matmul import tile_count
from models.cpu.tile import CONTINUE, PANEL, STORE, tile
from models.cpu.vector import divide, exponentiate, row_max

# Bytes by which the sweep over the values asks for memory in advance.
_AHEAD = 1024


@jit
def attend(model, work, layer, unit, thread):  # type: ignore[no-untyped-def]
    """One unit: the rows of one group with one key-value head, into work.mixed. A head's groups follow each other."""
    head, index = unit // work.group_count, unit % work.group_count
    place = work.groups + 24 * index
    first, last, shared = get_int(place), get_int(place + 8), get_int(place + 16)
    group, width, padded = model.heads // model.kv_heads, model.head_dim, model.head_stride
    block = get_int(work.row_block + 8 * first)
    length, capacity = get_int(work.lengths + 8 * block), get_int(work.capacities + 8 * block)
    window = get_int(model.windows + 8 * layer)
    low = np.int64(0)
    if window > 0:
        low = length
        for row in range(first, last):
            low = min(low, _window_start(work, row, length, window))
        low = low // PANEL * PANEL
    stride = work.score_stride
    scores = work.scores + 4 * thread * work.lines * stride
    out = work.out + 4 * thread * work.lines * padded
    rows = (last - first) * group
    query = work.query + 4 * (head * work.rows + first) * group * padded
    lane = (layer * model.kv_heads + head) * capacity
    keys = get_int(work.keys + 8 * block) + 4 * lane * width
    values = get_int(work.values + 8 * block) + 4 * lane * padded
    # Ancestors stand before their rows, so nobody here sees a key behind the last row's own.
    seen = get_int(work.row_index + 8 * (last - 1)) + 1
    _score(model.tile, query, rows, width, padded, keys, low, seen, scores, stride)
    for row in range(first, last):
        start = get_int(work.path_start + 8 * row)
        depth = get_int(work.path_start + 8 * row + 8) - start
        blind = max(np.int64(0), _window_start(work, row, length, window) - low) if window > 0 else np.int64(0)
        line = scores + 4 * (row - first) * group * stride
        path = work.paths + 8 * start
        settled = np.int64(0)
        while settled < depth and get_int(path + 8 * settled) == settled:
            settled += 1
        for member in range(group):
            total = _softmax(line + 4 * member * stride, length - low, path, settled, depth, blind)
            # Behind the scores, where nothing of this row is read any more.
            put(line + 4 * (member * stride + stride - 1), total)
    _mix(model.tile, scores, stride, rows, values + 4 * low * PANEL, length - low, capacity, padded, out, STORE)
    weights, staged = scores + 4 * (length - low), values + 4 * length * PANEL
    path = work.paths + 8 * get_int(work.path_start + 8 * first)
    _mix_path(model.tile, weights, stride, rows, path, 0, shared, staged, capacity, padded, out)
    for row in range(first, last):
        start = get_int(work.path_start + 8 * row)
        depth = get_int(work.path_start + 8 * row + 8) - start
        skipped = (row - first) * group
        mixed, path = out + 4 * skipped * padded, work.paths + 8 * start
        own = weights + 4 * skipped * stride
        _mix_path(model.tile, own, stride, group, path, shared, depth, staged, capacity, padded, mixed)
        target = work.mixed + 4 * (row * model.mixed_stride + head * group * width)
        for member in range(group):
            total = get(scores + 4 * ((skipped + member) * stride + stride - 1))
            _divide(mixed + 4 * member * padded, width, total, target + 4 * member * width)


@jit
def _window_start(work, row, length, window):  # type: ignore[no-untyped-def]
    """First position a row sees."""
    depth = get_int(work.path_start + 8 * row + 8) - get_int(work.path_start + 8 * row)
    return max(np.int64(0), length + depth - window)


@jit
def _score(entry, query, rows, width, padded, keys, low, seen, scores, stride):  # type: ignore[no-untyped-def]
    """scores[m, t - low] = query m times key t, for all t < seen; columns of rows nobody wrote are never read."""
    tiles = tile_count(rows)
    for panel in range(low // PANEL, (seen + PANEL - 1) // PANEL):
        for index in range(tiles):
            m = rows * index // tiles
            count = rows * (index + 1) // tiles - m
            target = scores + 4 * (m * stride + panel * PANEL - low)
            source = keys + 4 * panel * PANEL * width
            part, following = query + 4 * m * padded, source + 4 * PANEL * width
            tile(entry, count, 1, 0, STORE, part, padded, source, width, target, stride, following, 4 * PANEL)


@jit
def _softmax(line, prefix, path, settled, depth, blind):  # type: ignore[no-untyped-def]
    """Order one row's scores by its own context and exponentiate them; returns their sum.

    settled: scores of the path that stand in their place already. blind: scores out of window.
    """
    for i in range(settled, depth):
        # A path ascends, so a score is read before its place is overwritten.
        put(line + 4 * (prefix + i), get(line + 4 * (prefix + get_int(path + 8 * i))))
    for i in range(blind):
        put(line + 4 * i, np.float32(-np.inf))
    count = prefix + depth
    whole = (count + LANES - 1) // LANES * LANES
    for i in range(count, whole):
        put(line + 4 * i, np.float32(-np.inf))
    return exponentiate(line, whole, row_max(line, whole))


@jit
def _mix(entry, weights, stride, rows, values, count, capacity, padded, out, mode):  # type: ignore[no-untyped-def]
    """out[m] (op)= sum over t < count of weights[m, t] * value t."""
    tiles = tile_count(rows)
    for first in range(0, padded, PANEL):
        for index in range(tiles):
            m = rows * index // tiles
            lines = rows * (index + 1) // tiles - m
            source, target = values + 4 * first * capacity, out + 4 * (m * padded + first)
            part, later = weights + 4 * m * stride, source + _AHEAD
            tile(entry, lines, 1, 0, mode, part, stride, source, count, target, padded, later, 4 * PANEL)


@jit
def _mix_path(entry, weights, stride, rows, path, at, end, values, capacity, padded, out):  # type: ignore[no-untyped-def]
    """Go on summing over path[at:end], run by run of rows that lie side by side."""
    while at < end:
        start = get_int(path + 8 * at)
        run = 1
        while at + run < end and get_int(path + 8 * (at + run)) == start + run:
            run += 1
        source = values + 4 * start * PANEL
        _mix(entry, weights + 4 * at, stride, rows, source, run, capacity, padded, out, CONTINUE)
        at += run


@jit
def _divide(source, count, divisor, target):  # type: ignore[no-untyped-def]
    divide(source, divisor, target, count // LANES * LANES)
    for i in range(count // LANES * LANES, count):
        put(target + 4 * i, get(source + 4 * i) / divisor)
