"""Matrix products of a pass, a few panels a unit of work.

A panel stays in the second-level cache for all tiles of a block of rows, which meanwhile ask for a later panel at an
even pace. So memory and arithmetic overlap: left to itself, the processor would fetch a panel during its
first tile only, and the memory would idle during the others.
"""

from __future__ import annotations

from models.cpu.jit import jit
from models.cpu.sync import claim, finish, wait
from models.cpu.tile import (
    MAX_SCRATCH_PANELS,
    MAX_TILE_ROWS,
    PANEL,
    SPLIT_PANELS,
    STORE,
    tile,
    tile_count,
    tile_panels,
    tile_sweeps,
)
from models.cpu.vector import gate

_UNITS_PER_THREAD = 8
# Floats of `a` that a block of rows may have: beside a few panels they fit the second-level cache.
_BLOCK = 40_000
# From the panel read to the one asked for.
_FOLLOWING = 2
# Bytes, over all the panels read side by side.
_WIDE_LOOKAHEAD = 2048


@jit
def block_count(rows, depth):  # type: ignore[no-untyped-def]
    """Blocks of rows, evenly cut, each of which is multiplied by all panels before the next."""
    most = max(1, _BLOCK // (depth * MAX_TILE_ROWS)) * MAX_TILE_ROWS
    return max(1, (rows + most - 1) // most)


@jit
def multiply(entry, rows, a, lda, w, bf16, depth, c, ldc, mode, counters, phases, phase, thread, threads):  # type: ignore[no-untyped-def]
    """One thread's share of c (op)= a @ w. a, c: addresses of [rows, lda] and [rows, ldc]; w: of its first panel."""
    panels = ldc // PANEL if rows > 0 else 0
    blocks = block_count(rows, depth)
    wide = tile_panels(rows // blocks)
    step = max(wide, panels // (threads * _UNITS_PER_THREAD) // wide * wide)
    chunks = (panels + step - 1) // step
    units = blocks * chunks
    panel_bytes = depth * PANEL * (2 if bf16 else 4)
    done = 0
    unit = claim(counters, phases, phase, units, thread, threads)
    while unit >= 0:
        block, chunk = unit // chunks, unit % chunks
        first = rows * block // blocks
        lines = rows * (block + 1) // blocks - first
        tiles, wide = tile_count(lines), tile_panels(lines)
        panel, end = chunk * step, min(panels, (chunk + 1) * step)
        while panel < end:
            side = wide if panel + wide <= end else 1
            source = w + panel * panel_bytes
            for index in range(tiles):
                row = first + lines * index // tiles
                count = first + lines * (index + 1) // tiles - row
                target = c + 4 * (row * ldc + panel * PANEL)
                ahead, pace = _lookahead(source, panel_bytes, depth, side, max(side, _FOLLOWING), index, tiles)
                tile(entry, count, side, bf16, mode, a + 4 * row * lda, lda, source, depth, target, ldc, ahead, pace)
            panel += side
        done += 1
        unit = claim(counters, phases, phase, units, thread, threads)
    finish(counters, phase, done)
    wait(counters, phase, units)


@jit
def multiply_gated(entry, rows, a, lda, w, bf16, depth, c, ldc, scratch, counters, phases, phase, thread, threads):  # type: ignore[no-untyped-def]
    """One thread's share of c = silu(a @ gate) * (a @ up), where w alternates panels of gate and up.

    scratch: address of float32 [6, 96], this thread's own.
    """
    panels = ldc // PANEL
    blocks = block_count(rows, depth)
    wide = _pairs(tile_panels(rows // blocks))
    step = max(wide, panels // (threads * _UNITS_PER_THREAD) // wide * wide)
    chunks = (panels + step - 1) // step
    units = blocks * chunks
    panel_bytes = depth * PANEL * (2 if bf16 else 4)
    both, width = 2 * PANEL, MAX_SCRATCH_PANELS * PANEL
    done = 0
    unit = claim(counters, phases, phase, units, thread, threads)
    while unit >= 0:
        block, chunk = unit // chunks, unit % chunks
        first = rows * block // blocks
        lines = rows * (block + 1) // blocks - first
        tiles, widest = tile_count(lines), tile_panels(lines)
        wide = _pairs(widest)
        panel, end = chunk * step, min(panels, (chunk + 1) * step)
        while panel < end:
            pairs = wide if panel + wide <= end else 1
            side = widest if pairs == wide else 1
            for index in range(tiles):
                row = first + lines * index // tiles
                count = first + lines * (index + 1) // tiles - row
                for part in range(0, 2 * pairs, side):
                    source, target = w + (2 * panel + part) * panel_bytes, scratch + 4 * part * PANEL
                    ahead, pace = _lookahead(source, panel_bytes, depth, side, 2 * max(side, pairs), index, tiles)
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
def _pairs(side):  # type: ignore[no-untyped-def]
    """Pairs of gate and up panels that tiles of `side` panels go through before their sums are gated."""
    return side if side == SPLIT_PANELS else max(1, side // 2)


@jit
def _lookahead(source, panel_bytes, depth, side, following, index, tiles):  # type: ignore[no-untyped-def]
    """What tile `index` of `tiles` asks for while it reads the panels at `source`: where it begins, bytes a step.

    A tile that reads several panels beside each other reads on in each of them. Else the sweeps of all tiles share the
    panels that are `following` panels further.
    """
    sweeps = tile_sweeps(side)
    if side > 1 and sweeps == 1:
        return source + _WIDE_LOOKAHEAD // side, panel_bytes // depth
    turns = tiles * sweeps
    # Rounded up: what no tile asked for, the next panel's first tile would wait for.
    pace = (side * panel_bytes + depth * turns - 1) // (depth * turns)
    return source + following * panel_bytes + index * sweeps * pace * depth, pace
