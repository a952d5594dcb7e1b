"""Matrix products of a pass, a few panels a unit of work."""

from __future__ import annotations

from models.cpu.jit import address, jit
from models.cpu.tile import MAX_TILE_ROWS, PANEL, STORE, tile
from models.cpu.vector import gate

_UNITS_PER_THREAD = 6


@jit
def unit_panels(panels, threads):  # type: ignore[no-untyped-def]
    """Panels of one unit: small enough that threads finish together, large enough that claiming costs nothing."""
    return max(1, panels // (threads * _UNITS_PER_THREAD))


@jit
def tile_count(rows):  # type: ignore[no-untyped-def]
    """Tiles that cover `rows` rows; tile i has rows (rows * i) // count up to (rows * (i + 1)) // count, evenly cut."""
    return (rows + MAX_TILE_ROWS - 1) // MAX_TILE_ROWS


@jit
def multiply(a, w, bf16, depth, c, mode, first, last):  # type: ignore[no-untyped-def]
    """Panels [first, last) of c (op)= a @ w. a, c: float32 [rows, stride]; w: address of panel 0; depth <= a's stride."""
    rows = a.shape[0]
    lda, ldc = a.shape[1], c.shape[1]
    panel_bytes = depth * PANEL * (2 if bf16 else 4)
    tiles = tile_count(rows)
    for panel in range(first, last):
        for index in range(tiles):
            row = rows * index // tiles
            count = rows * (index + 1) // tiles - row
            source, target = address(a, row * lda), address(c, row * ldc + panel * PANEL)
            tile(count, bf16, mode, source, lda, w + panel * panel_bytes, depth, target, ldc)


@jit
def multiply_gated(a, w, bf16, depth, c, scratch, first, last):  # type: ignore[no-untyped-def]
    """Panels [first, last) of c = silu(a @ gate) * (a @ up), where w alternates panels of gate and up.

    scratch: float32 [6, 32], this thread's own.
    """
    rows = a.shape[0]
    lda, ldc = a.shape[1], c.shape[1]
    panel_bytes = depth * PANEL * (2 if bf16 else 4)
    tiles = tile_count(rows)
    both = 2 * PANEL
    for panel in range(first, last):
        gate_panel = w + 2 * panel * panel_bytes
        for index in range(tiles):
            row = rows * index // tiles
            count = rows * (index + 1) // tiles - row
            source = address(a, row * lda)
            tile(count, bf16, STORE, source, lda, gate_panel, depth, address(scratch, 0), both)
            tile(count, bf16, STORE, source, lda, gate_panel + panel_bytes, depth, address(scratch, PANEL), both)
            for m in range(count):
                target = address(c, (row + m) * ldc + panel * PANEL)
                gate(address(scratch, m * both), address(scratch, m * both + PANEL), target)
