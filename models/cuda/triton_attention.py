"""Attention over paths in paged memory: flash decoding (Dao et al. 2023) by splits at fixed positions, then their merge.

A program multiplies one tile of query lines, rows by the heads of one key-value head, with one split of SPLIT_ROWS
positions. It runs twice over a pass: over the splits wholly inside a prefix, for tiles of several rows of a session, which
so read those keys once; and over what is left of each row's path, its ancestors among the staged rows included, one row a
tile.
Both are one compiled kernel over tiles of one shape, every line of a tile is computed by itself, and splits begin at
multiples of SPLIT_ROWS: so what a row sums, and in which order, follows from its positions alone, not from what is committed
and what staged, nor from its neighbours.

Keys and values that a tile does not see are never loaded, so nothing that lies in them can leak.
"""

from __future__ import annotations

import triton.language as tl

from models.cuda.triton_jit import kernel

# Beyond any position: where no window bounds what is seen, and in place of lines without a row.
FAR: int = 1 << 30


@kernel(varying=("tail", "window", "table_width", "path_width", "splits"))
def attend_split(  # type: ignore[no-untyped-def]
    query,
    keys,
    values,
    tables,
    paths,
    table_of,
    prefixes,
    ends,
    tile_rows,
    tile_counts,
    sums,
    stats,
    scale,
    tail,
    window,
    table_width,
    path_width,
    splits,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    LINES: tl.constexpr,
    SPLIT: tl.constexpr,
    BLOCK: tl.constexpr,
    PAGE: tl.constexpr,
    NOWHERE: tl.constexpr,
):
    """sums: float32 [R, heads, splits, WIDTH], unnormalised. stats: float32 [R, heads, splits, 2], maximum and sum.

    tail: 0 for whole splits of prefixes by tiles, 1 for the rest row by row.
    """
    tile, lane = tl.program_id(0), tl.program_id(1)
    alone = tail == 1
    first = tl.where(alone, tile, tl.load(tile_rows + tile, mask=tail == 0, other=0))
    count = tl.where(alone, 1, tl.load(tile_counts + tile, mask=tail == 0, other=0))
    prefix = tl.load(prefixes + first)
    whole = prefix // SPLIT
    split = tl.program_id(2) + tl.where(alone, whole, 0)
    line = tl.arange(0, LINES)
    used = line < count * GROUP
    row = first + line // GROUP
    head = lane * GROUP + line % GROUP
    end = tl.load(ends + row, mask=used, other=0)
    start = tl.maximum(end - window, 0)
    begin = split * SPLIT
    limit = tl.max(end, axis=0)
    lowest = tl.min(tl.where(used, start, NOWHERE), axis=0)
    limit = tl.where(alone, limit, tl.minimum(limit, whole * SPLIT))
    if (begin < limit) & (begin + SPLIT > lowest):
        dim = tl.arange(0, PADDED)
        inside = dim < WIDTH
        own_line = (row * (KV_HEADS * GROUP) + head).to(tl.int64)
        q = tl.load(query + own_line[:, None] * WIDTH + dim[None, :], mask=used[:, None] & inside[None, :], other=0.0)
        table = tl.load(table_of + first)
        top = tl.full([LINES], float("-inf"), tl.float32)
        total = tl.zeros([LINES], tl.float32)
        mixed = tl.zeros([LINES, PADDED], tl.float32)
        # Blocks past the limit would add exact zeros.
        for offset in range(0, tl.minimum(limit - begin, SPLIT), BLOCK):
            key = begin + offset + tl.arange(0, BLOCK)
            held = (key < limit) & (key >= lowest)
            cached = key < prefix
            page = tl.load(tables + table * table_width + key // PAGE, mask=held & cached, other=0)
            own = tl.load(paths + first * path_width + key - prefix, mask=held & (key >= prefix), other=0)
            place = tl.where(cached, page * PAGE + key % PAGE, own).to(tl.int64)
            cell = (place[:, None] * KV_HEADS + lane) * WIDTH + dim[None, :]
            k = tl.load(keys + cell, mask=held[:, None] & inside[None, :], other=0.0)
            v = tl.load(values + cell, mask=held[:, None] & inside[None, :], other=0.0)
            scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
            seen = (key[None, :] < end[:, None]) & (key[None, :] >= start[:, None])
            scores = tl.where(seen, scores, float("-inf"))
            after = tl.maximum(top, tl.max(scores, axis=1))
            # 0 in place of the maximum of no scores: -inf minus -inf would be NaN.
            level = tl.where(after == float("-inf"), 0.0, after)
            fade = tl.exp(top - level)
            shares = tl.exp(scores - level[:, None])
            total = total * fade + tl.sum(shares, axis=1)
            mixed = mixed * fade[:, None] + tl.dot(shares.to(v.dtype), v, input_precision="ieee")
            top = after
        slot = own_line * splits + split
        tl.store(sums + slot[:, None] * WIDTH + dim[None, :], mixed, mask=used[:, None] & inside[None, :])
        tl.store(stats + slot * 2, top, mask=used)
        tl.store(stats + slot * 2 + 1, total, mask=used)


@kernel(varying=("window", "splits"))
def merge_splits(  # type: ignore[no-untyped-def]
    sums,
    stats,
    ends,
    out,
    window,
    splits,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    SPLIT: tl.constexpr,
):
    """out: [R, heads, WIDTH], one head a program: its splits merged in order of position; 0 for rows that see nothing."""
    row, head = tl.program_id(0), tl.program_id(1)
    dim = tl.arange(0, PADDED)
    inside = dim < WIDTH
    end = tl.load(ends + row)
    start = tl.maximum(end - window, 0)
    line = (row * HEADS + head).to(tl.int64)
    top = tl.full([1], float("-inf"), tl.float32)
    total = tl.zeros([1], tl.float32)
    mixed = tl.zeros([PADDED], tl.float32)
    for split in range(start // SPLIT, (end + SPLIT - 1) // SPLIT):
        slot = line * splits + split
        own_top = tl.load(stats + slot * 2)
        after = tl.maximum(top, own_top)
        level = tl.where(after == float("-inf"), 0.0, after)
        old, new = tl.exp(top - level), tl.exp(own_top - level)
        total = total * old + tl.load(stats + slot * 2 + 1) * new
        mixed = mixed * old + tl.load(sums + slot * WIDTH + dim, mask=inside, other=0.0) * new
        top = after
    result = tl.where(total > 0, mixed / tl.where(total > 0, total, 1.0), 0.0)
    tl.store(out + line * WIDTH + dim, result.to(out.dtype.element_ty), mask=inside)
