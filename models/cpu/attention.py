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

from models.cpu.formats import FP32, PANEL
from models.cpu.jit import LANES, get, get_int, jit, put
from models.cpu.storage import PAGE_ROWS
from models.cpu.tile import tile, tile_count
from models.cpu.tile_body import CONTINUE, STORE
from models.cpu.vector import divide, exponentiate, row_max

# Bytes by which a single tile's sweep over the values asks for memory in advance.
_AHEAD = 1024
_PAGE_PANELS = PAGE_ROWS // PANEL


@jit
def attend(model, work, layer, unit, thread):  # type: ignore[no-untyped-def]
    """One unit: the rows of one group with one key-value head, into work.mixed. A head's groups follow each other."""
    head, index = unit // work.group_count, unit % work.group_count
    place = work.groups + 24 * index
    first, last, shared = get_int(place), get_int(place + 8), get_int(place + 16)
    group, width, padded = model.heads // model.kv_heads, model.head_dim, model.head_stride
    block = get_int(work.row_block + 8 * first)
    length = get_int(work.lengths + 8 * block)
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
    lane, lanes = layer * model.kv_heads + head, model.layers * model.kv_heads
    pages = work.pages + 8 * get_int(work.page_start + 8 * block)
    # Within a page.
    keys, values = 4 * lane * PAGE_ROWS * width, 4 * PAGE_ROWS * (lanes * width + lane * padded)
    # Ancestors stand before their rows, so nobody here sees a key behind the last row's own.
    seen = get_int(work.row_index + 8 * (last - 1)) + 1
    first_values = _page(pages, low) + values + 4 * PANEL * (low % PAGE_ROWS)
    _score(model.tile, query, rows, width, padded, pages, keys, low, seen, first_values, scores, stride)
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
    path = work.paths + 8 * get_int(work.path_start + 8 * first)
    _mix(model.tile, scores, stride, rows, pages, values, low, length, path, 0, shared, padded, out, STORE)
    weights = scores + 4 * (length - low)
    for row in range(first, last):
        start = get_int(work.path_start + 8 * row)
        depth = get_int(work.path_start + 8 * row + 8) - start
        skipped = (row - first) * group
        mixed, path = out + 4 * skipped * padded, work.paths + 8 * start
        own = weights + 4 * skipped * stride
        _mix(
            model.tile, own, stride, group, pages, values, length, length, path, shared, depth, padded, mixed, CONTINUE
        )
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
def _score(entry, query, rows, width, padded, pages, keys, low, seen, after, scores, stride):  # type: ignore[no-untyped-def]
    """scores[m, t - low] = query m times key t, for all t < seen; columns of rows nobody wrote are never read.

    after: address of what is read next.
    """
    tiles = tile_count(rows)
    end = (seen + PANEL - 1) // PANEL
    following = _panel(pages, keys, low // PANEL, width)
    for panel in range(low // PANEL, end):
        source = following
        following = _panel(pages, keys, panel + 1, width) if panel + 1 < end else after
        for index in range(tiles):
            m = rows * index // tiles
            count = rows * (index + 1) // tiles - m
            target = scores + 4 * (m * stride + panel * PANEL - low)
            part = query + 4 * m * padded
            ahead, pace = _lookahead(following, following, width, index, tiles)
            tile(entry, count, 1, FP32, STORE, part, padded, source, width, target, stride, ahead, pace, 0)


@jit
def _panel(pages, keys, panel, width):  # type: ignore[no-untyped-def]
    """Address of a panel of 16 keys of one lane."""
    return _page(pages, panel * PANEL) + keys + 4 * PANEL * width * (panel % _PAGE_PANELS)


@jit
def _page(pages, row):  # type: ignore[no-untyped-def]
    """Address of the page that a row lies in."""
    return get_int(pages + 8 * (row // PAGE_ROWS))


@jit
def _lookahead(alone, following, steps, index, tiles):  # type: ignore[no-untyped-def]
    """Where tile `index` of `tiles` begins to ask for memory, and bytes a step: a single one at `alone`; several, which have
    time, share the `steps` of the panel at `following`.
    """
    if tiles == 1:
        return alone, 4 * PANEL
    pace = (4 * PANEL + tiles - 1) // tiles
    return following + index * pace * steps, pace


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
def _mix(entry, weights, stride, rows, pages, values, low, length, path, at, end, padded, out, mode):  # type: ignore[no-untyped-def]
    """out[m] (op)= sum of weights[m, t] * value t: over rows low to length, weights from t = low on, then over path[at:end],
    weights from the path's start on where low is length. Run by run of rows that lie side by side in one page.
    """
    tiles = tile_count(rows)
    row, stop, taken = low, length, np.int64(0)
    if low == length:
        taken = at
    # At least one turn where the sum is to be stored, be it empty.
    while row < stop or at < end or mode == STORE:
        if row == stop and at < end:
            row = length + get_int(path + 8 * at)
            stop = row
            while at < end and get_int(path + 8 * at) == stop - length:
                stop += 1
                at += 1
        count = min(stop, (row // PAGE_ROWS + 1) * PAGE_ROWS) - row
        following = _page(pages, row) + values + 4 * PANEL * (row % PAGE_ROWS)
        for panel in range(0, padded, PANEL):
            source = following
            if panel + PANEL < padded:
                following = source + 4 * PANEL * PAGE_ROWS
            elif row + count < stop:
                following = _page(pages, row + count) + values
            for index in range(tiles):
                m = rows * index // tiles
                lines = rows * (index + 1) // tiles - m
                part, target = weights + 4 * (m * stride + taken), out + 4 * (m * padded + panel)
                ahead, pace = _lookahead(source + _AHEAD, following, count, index, tiles)
                tile(entry, lines, 1, FP32, mode, part, stride, source, count, target, padded, ahead, pace, 0)
        row += count
        taken += count
        mode = CONTINUE


@jit
def _divide(source, count, divisor, target):  # type: ignore[no-untyped-def]
    divide(source, divisor, target, count // LANES * LANES)
    for i in range(count // LANES * LANES, count):
        put(target + 4 * i, get(source + 4 * i) / divisor)
