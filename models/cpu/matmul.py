"""Matrix products of a pass, a few panels a unit of work.

A panel stays in the second-level cache for all tiles of a block of rows, which meanwhile ask for a later panel at an
even pace. So memory and arithmetic overlap: left to itself, the processor would fetch a panel during its
first tile only, and the memory would idle during the others. Panels of int8 and int4 are widened in registers for a few
rows; for more, once for all tiles and into that cache.
"""

from __future__ import annotations

from models.cpu.formats import BF16, FP32, PANEL
from models.cpu.formats import panel_bytes as bytes_of_panel
from models.cpu.jit import jit
from models.cpu.sync import claim, finish, wait
from models.cpu.tile import (
    MAX_GROUPED_ROWS,
    MAX_SCRATCH_PANELS,
    MAX_TILE_ROWS,
    tile,
    tile_count,
    tile_panels,
    tile_sweeps,
)
from models.cpu.tile_body import SPLIT_PANELS, STORE
from models.cpu.vector import gate

_UNITS_PER_THREAD = 8
# Floats of `a` that a block of rows may have: beside a few panels they fit the second-level cache.
_BLOCK = 40_000
# From the panel read to the one asked for.
_FOLLOWING = 2
# Bytes, over all the panels read side by side.
_WIDE_LOOKAHEAD = 2048
# Panels of int8 and int4 that one row is multiplied by side by side.
_GROUPED_PANELS = 2
# Floats of widened panels that fit the second-level cache beside what is asked for; a pair is widened in any case.
_WIDENED = 75_000
_MOST_WIDENED = MAX_SCRATCH_PANELS


@jit
def block_count(rows, depth):  # type: ignore[no-untyped-def]
    """Blocks of rows, evenly cut, each of which is multiplied by all panels before the next."""
    most = max(1, _BLOCK // (depth * MAX_TILE_ROWS)) * MAX_TILE_ROWS
    return max(1, (rows + most - 1) // most)


def widened_floats(depth: int) -> int:
    """Floats of a thread's scratch for widened panels of that depth."""
    panel = depth * PANEL
    return panel * min(_MOST_WIDENED, max(2, _WIDENED // panel))


@jit
def multiply(entry, rows, a, lda, w, kind, depth, c, ldc, mode, scratch, counters, phases, phase, thread, threads):  # type: ignore[no-untyped-def]
    """One thread's share of c (op)= a @ w. a, c: addresses of [rows, lda] and [rows, ldc]; w: of its first panel, of format
    `kind`. scratch: of `widened_floats(depth)` floats, this thread's own; unused by fp32 and bf16.
    """
    panels = ldc // PANEL if rows > 0 else 0
    blocks = block_count(rows, depth)
    wide = _panels_at_once(kind, rows // blocks, depth, 1)
    step = max(wide, panels // (threads * _UNITS_PER_THREAD) // wide * wide)
    chunks = (panels + step - 1) // step
    units = blocks * chunks
    panel_bytes = bytes_of_panel(kind, depth)
    done = 0
    unit = claim(counters, phases, phase, units, thread, threads)
    while unit >= 0:
        block, chunk = unit // chunks, unit % chunks
        first = rows * block // blocks
        lines = rows * (block + 1) // blocks - first
        tiles, wide = tile_count(lines), _panels_at_once(kind, lines, depth, 1)
        panel, end = chunk * step, min(panels, (chunk + 1) * step)
        while panel < end:
            side = wide if panel + wide <= end else 1
            source = w + panel * panel_bytes
            read, kept = source, kind
            if _widens(kind, lines):
                _widen(entry, kind, side, source, panel_bytes, depth, scratch)
                read, kept = scratch, FP32
            for index in range(tiles):
                row = first + lines * index // tiles
                count = first + lines * (index + 1) // tiles - row
                target = c + 4 * (row * ldc + panel * PANEL)
                ahead, pace, apart = _lookahead(
                    source, panel_bytes, depth, side, max(side, _FOLLOWING), index, tiles, kind, kept
                )
                part = a + 4 * row * lda
                tile(entry, count, side, kept, mode, part, lda, read, depth, target, ldc, ahead, pace, apart)
            panel += side
        done += 1
        unit = claim(counters, phases, phase, units, thread, threads)
    finish(counters, phase, done)
    wait(counters, phase, units)


@jit
def multiply_gated(  # type: ignore[no-untyped-def]
    entry, rows, a, lda, w, kind, depth, c, ldc, gates, scratch, counters, phases, phase, thread, threads
):
    """One thread's share of c = silu(a @ gate) * (a @ up), where w alternates panels of gate and up.

    gates: address of float32 [6, 96], this thread's own. scratch: as `multiply`'s.
    """
    panels = ldc // PANEL
    blocks = block_count(rows, depth)
    wide = _pairs(_panels_at_once(kind, rows // blocks, depth, 2))
    step = max(wide, panels // (threads * _UNITS_PER_THREAD) // wide * wide)
    chunks = (panels + step - 1) // step
    units = blocks * chunks
    panel_bytes = bytes_of_panel(kind, depth)
    both, width = 2 * PANEL, MAX_SCRATCH_PANELS * PANEL
    done = 0
    unit = claim(counters, phases, phase, units, thread, threads)
    while unit >= 0:
        block, chunk = unit // chunks, unit % chunks
        first = rows * block // blocks
        lines = rows * (block + 1) // blocks - first
        tiles, widest = tile_count(lines), _panels_at_once(kind, lines, depth, 2)
        wide = _pairs(widest)
        panel, end = chunk * step, min(panels, (chunk + 1) * step)
        while panel < end:
            pairs = wide if panel + wide <= end else 1
            side = widest if pairs == wide else 1
            source = w + 2 * panel * panel_bytes
            read, kept, read_bytes = source, kind, panel_bytes
            if _widens(kind, lines):
                _widen(entry, kind, 2 * pairs, source, panel_bytes, depth, scratch)
                read, kept, read_bytes = scratch, FP32, bytes_of_panel(FP32, depth)
            for index in range(tiles):
                row = first + lines * index // tiles
                count = first + lines * (index + 1) // tiles - row
                for part in range(0, 2 * pairs, side):
                    target = gates + 4 * part * PANEL
                    ahead, pace, apart = _lookahead(
                        source + part * panel_bytes,
                        panel_bytes,
                        depth,
                        side,
                        2 * max(side, pairs),
                        index,
                        tiles,
                        kind,
                        kept,
                    )
                    tile(
                        entry,
                        count,
                        side,
                        kept,
                        STORE,
                        a + 4 * row * lda,
                        lda,
                        read + part * read_bytes,
                        depth,
                        target,
                        width,
                        ahead,
                        pace,
                        apart,
                    )
                for pair in range(pairs):
                    for m in range(count):
                        both_sums, target = (
                            gates + 4 * (m * width + pair * both),
                            c + 4 * ((row + m) * ldc + panel * PANEL),
                        )
                        gate(both_sums, both_sums + 4 * PANEL, target + 4 * pair * PANEL)
            panel += pairs
        done += 1
        unit = claim(counters, phases, phase, units, thread, threads)
    finish(counters, phase, done)
    wait(counters, phase, units)


@jit
def _widens(kind, lines):  # type: ignore[no-untyped-def]
    return kind not in (FP32, BF16) and lines > MAX_GROUPED_ROWS


@jit
def _panels_at_once(kind, lines, depth, parts):  # type: ignore[no-untyped-def]
    """Panels that a block of `lines` rows takes side by side; `parts` times as many are widened at once."""
    if kind in (FP32, BF16):
        return tile_panels(lines)
    if lines <= MAX_GROUPED_ROWS:
        return _GROUPED_PANELS if lines <= 1 else 1
    wide = tile_panels(lines)
    return wide if parts * wide * depth * PANEL <= _WIDENED else 1


@jit
def _widen(entry, kind, count, source, panel_bytes, depth, target):  # type: ignore[no-untyped-def]
    """Store `count` panels at `target` as fp32, asking for as many that follow."""
    for index in range(count):
        tile(
            entry,
            0,
            1,
            kind,
            STORE,
            0,
            0,
            source + index * panel_bytes,
            depth,
            target + 4 * index * depth * PANEL,
            0,
            source + (index + count) * panel_bytes,
            panel_bytes // depth,
            0,
        )


@jit
def _pairs(side):  # type: ignore[no-untyped-def]
    """Pairs of gate and up panels that tiles of `side` panels go through before their sums are gated."""
    return side if side == SPLIT_PANELS else max(1, side // 2)


@jit
def _lookahead(source, panel_bytes, depth, side, following, index, tiles, kind, kept):  # type: ignore[no-untyped-def]
    """What tile `index` of `tiles` asks for while it reads the panels at `source`: where it begins, bytes a step, and bytes
    from one stream to the other.

    A tile that reads several panels beside each other reads on in each of them. Else the sweeps of all tiles share the
    panels that are `following` panels further; where memory is what they wait for, in two streams, half of it each.
    What is `kept` in another format than its own has been asked for already.
    """
    if kept != kind:
        return source, 0, 0
    sweeps = tile_sweeps(side)
    if side > 1 and sweeps == 1:
        return source + _WIDE_LOOKAHEAD // side, panel_bytes // depth, 0
    turns = tiles * sweeps
    streams = 1
    if kind in (FP32, BF16) and (tiles == 1 or sweeps > 1):
        streams = 2
        if side == 1:
            following = 1
    # Rounded up: what no tile asked for, the next panel's first tile would wait for.
    pace = (side * panel_bytes + depth * turns * streams - 1) // (depth * turns * streams)
    start = source + following * panel_bytes + index * sweeps * pace * depth
    return start, pace, (streams - 1) * turns * pace * depth
