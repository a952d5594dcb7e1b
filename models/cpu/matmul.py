"""Matrix products of a pass, a few panels a unit of work.

A panel is read from memory once and stays in the second-level cache for all its tiles, which meanwhile ask for the panel
after it at an even pace. So memory and arithmetic overlap: left to itself, the processor would fetch a panel during its
first tile only, and the memory would idle during the others.
"""

from __future__ import annotations

from models.cpu.jit import jit
from models.cpu.sync import claim, finish, wait
from models.cpu.tile import MAX_TILE_ROWS, PANEL, STORE, tile
from models.cpu.vector import gate

_UNITS_PER_THREAD = 6


@jit
def tile_count(rows):  # type: ignore[no-untyped-def]
    """Tiles that cover `rows` rows; tile i has rows (rows * i) // count up to (rows * (i + 1)) // count, evenly cut."""
    return (rows + MAX_TILE_ROWS - 1) // MAX_TILE_ROWS


@jit
def multiply(entry, rows, a, lda, w, bf16, depth, c, ldc, mode, counters, phases, phase, threads):  # type: ignore[no-untyped-def]
    """One thread's share of c (op)= a @ w. a, c: addresses of [rows, lda] and [rows, ldc]; w: of its first panel."""
    panels = ldc // PANEL if rows > 0 else 0
    step = max(1, panels // (threads * _UNITS_PER_THREAD))
    units = (panels + step - 1) // step
    panel_bytes = depth * PANEL * (2 if bf16 else 4)
    tiles = tile_count(rows)
    pace = panel_bytes // (depth * max(1, tiles))
    unit = claim(counters, phase)
    while unit < units:
        for panel in range(unit * step, min(panels, (unit + 1) * step)):
            source = w + panel * panel_bytes
            for index in range(tiles):
                row = rows * index // tiles
                count = rows * (index + 1) // tiles - row
                target = c + 4 * (row * ldc + panel * PANEL)
                ahead = source + panel_bytes + index * pace * depth
                tile(entry, count, bf16, mode, a + 4 * row * lda, lda, source, depth, target, ldc, ahead, pace)
        finish(counters, phases, phase)
        unit = claim(counters, phase)
    wait(counters, phases, phase, units)


@jit
def multiply_gated(entry, rows, a, lda, w, bf16, depth, c, ldc, scratch, counters, phases, phase, threads):  # type: ignore[no-untyped-def]
    """One thread's share of c = silu(a @ gate) * (a @ up), where w alternates panels of gate and up.

    scratch: address of float32 [6, 32], this thread's own.
    """
    panels = ldc // PANEL
    step = max(1, panels // (threads * _UNITS_PER_THREAD))
    units = (panels + step - 1) // step
    panel_bytes = depth * PANEL * (2 if bf16 else 4)
    tiles = tile_count(rows)
    pace = panel_bytes // (depth * tiles)
    both, up = 2 * PANEL, scratch + 4 * PANEL
    unit = claim(counters, phase)
    while unit < units:
        for panel in range(unit * step, min(panels, (unit + 1) * step)):
            gate_panel = w + 2 * panel * panel_bytes
            for index in range(tiles):
                row = rows * index // tiles
                count = rows * (index + 1) // tiles - row
                source = a + 4 * row * lda
                ahead = gate_panel + 2 * panel_bytes + index * 2 * pace * depth
                tile(entry, count, bf16, STORE, source, lda, gate_panel, depth, scratch, both, ahead, pace)
                ahead += pace * depth
                tile(entry, count, bf16, STORE, source, lda, gate_panel + panel_bytes, depth, up, both, ahead, pace)
                for m in range(count):
                    gate(scratch + 4 * m * both, up + 4 * m * both, c + 4 * ((row + m) * ldc + panel * PANEL))
        finish(counters, phases, phase)
        unit = claim(counters, phase)
    wait(counters, phases, phase, units)
