"""Matrix products of a pass, a few panels a unit of work.

A panel stays in the second-level cache for all tiles of a block of rows, which meanwhile ask for a later panel at an
even pace. So memory and arithmetic overlap: left to itself, the processor would fetch a panel during its
first tile only, and the memory would idle during the others.
"""

from __future__ import annotations

from models.cpu.jit import jit
from models.cpu.sync import claim, finish, wait
from models.cpu.tile import MAX_TILE_PANELS, MAX_TILE_ROWS, PANEL, STORE, tile, tile_panels
from models.cpu.vector import gate

_UNITS_PER_THREAD = 8
# Floats of `a` that a block of rows may have: beside a few panels they fit the second-level cache.
_BLOCK = 40_000
# Panels between the one read and the one asked for.
_FOLLOWING = 2
# Bytes, over all the panels read side by side.
_WIDE_LOOKAHEAD = 2048


@jit
def tile_count(rows):  # type: ignore[no-untyped-def]
    """Tiles that cover `rows` rows; tile i has rows (rows * i) // count up to (rows * (i + 1)) // count, evenly cut."""
    return (rows + MAX_TILE_ROWS - 1) // MAX_TILE_ROWS


@jit
def block_count(rows, depth):  # type: ignore[no-untyped-def]
    """Blocks of rows, evenly cut, each of which is multiplied by all panels before the next."""
    most = max(1, _BLOCK // (depth * MAX_TILE_ROWS)) * MAX_TILE_ROWS
    return max(1, (rows + most - 1) // most)


@jit
def multiply(entry, rows, a, lda, w, bf16, depth, c, ldc, mode, counters, phases, phase, thread, threads):  # type: ignore[no-untyped-def]
    """One thread's share of c (op)= a @ w. a, c: addresses of [rows, lda] and [rows, ldc]; w: of its first panel."""
    panels = ldc // PANEL if rows > 0 else 0
    wide = tile_panels(rows)
    step = max(wide, panels // (threads * _UNITS_PER_THREAD) // wide * wide)
    chunks = (panels + step - 1) // step
    blocks = block_count(rows, depth)
    units = blocks * chunks
    panel_bytes = depth * PANEL * (2 if bf16 else 4)
    done = 0
    unit = claim(counters, phases, phase, units, thread, threads)
    while unit >= 0:
        block, chunk = unit // chunks, unit % chunks
        first = rows * block // blocks
        lines = rows * (block + 1) // blocks - first
        tiles = tile_count(lines)
        panel, end = chunk * step, min(panels, (chunk + 1) * step)
        while panel < end:
            side = wide if panel + wide <= end else 1
            source = w + panel * panel_bytes
            for index in range(tiles):
                row = first + lines * index // tiles
                count = first + lines * (index + 1) // tiles - row
                target = c + 4 * (row * ldc + panel * PANEL)
                ahead, pace = _lookahead(source, panel_bytes, depth, side, index, tiles)
                tile(entry, count, side, bf16, mode, a + 4 * row * lda, lda, source, depth, target, ldc, ahead, pace)
            panel += side
        done += 1
        unit = claim(counters, phases, phase, units, thread, threads)
    finish(counters, phase, done)
    wait(counters, phase, units)


@jit
def multiply_gated(entry, rows, a, lda, w, bf16, depth, c, ldc, scratch, counters, phases, phase, thread, threads):  # type: ignore[no-untyped-def]
    """One thread's share of c = silu(a @ gate) * (a @ up), where w alternates panels of gate and up.

    scratch: address of float32 [6, 64], this thread's own.
    """
    panels = ldc // PANEL
    wide = max(1, tile_panels(rows) // 2)
    step = max(wide, panels // (threads * _UNITS_PER_THREAD) // wide * wide)
    chunks = (panels + step - 1) // step
    blocks = block_count(rows, depth)
    units = blocks * chunks
    panel_bytes = depth * PANEL * (2 if bf16 else 4)
    both, width = 2 * PANEL, MAX_TILE_PANELS * PANEL
    done = 0
    unit = claim(counters, phases, phase, units, thread, threads)
    while unit >= 0:
        block, chunk = unit // chunks, unit % chunks
        first = rows * block // blocks
        lines = rows * (block + 1) // blocks - first
        tiles = tile_count(lines)
        panel, end = chunk * step, min(panels, (chunk + 1) * step)
        while panel < end:
            pairs = wide if panel + wide <= end else 1
            side = tile_panels(rows) if pairs == wide else 1
            for index in range(tiles):
                row = first + lines * index // tiles
                count = first + lines * (index + 1) // tiles - row
                for part in range(0, 2 * pairs, side):
                    source, target = w + (2 * panel + part) * panel_bytes, scratch + 4 * part * PANEL
                    ahead, pace = _lookahead(source, panel_bytes, depth, side, index, tiles)
                    tile(
                        entry,
                        count,
                        side,
                        bf16,
                        STORE,
                        a + 4 * row * lda,
                        lda,
                        source,
                        depth,
                        target,
                        width,
                        ahead,
                        pace,
                    )
                for pair in range(pairs):
                    for m in range(count):
                        gates, target = (
                            scratch + 4 * (m * width + pair * both),
                            c + 4 * ((row + m) * ldc + panel * PANEL),
                        )
                        gate(gates, gates + 4 * PANEL, target + 4 * pair * PANEL)
            panel += pairs
        done += 1
        unit = claim(counters, phases, phase, units, thread, threads)
    finish(counters, phase, done)
    wait(counters, phase, units)


@jit
def _lookahead(source, panel_bytes, depth, side, index, tiles):  # type: ignore[no-untyped-def]
    """What tile `index` of `tiles` asks for while it reads the panels at `source`: where it begins, bytes a step.

    A tile of several panels reads on in each of them. Else the tiles share the panel after the next.
    """
    if side > 1:
        return source + _WIDE_LOOKAHEAD // side, panel_bytes // depth
    # Rounded up: what no tile asked for, the next panel's first tile would wait for.
    pace = (panel_bytes + depth * tiles - 1) // (depth * tiles)
    return source + _FOLLOWING * panel_bytes + index * pace * depth, pace
