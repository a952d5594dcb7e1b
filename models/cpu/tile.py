"""The matrix kernel: 1 to 6 rows by 16 outputs, the depth summed in order, weights converted in registers.

Twelve accumulators, two weight vectors and one broadcast fill the sixteen registers of AVX2, and twelve chains of sums hide
the latency of each. One or two rows leave most registers free and wait for memory, so they may take four or two panels side
by side: a core reads several streams faster than one. Three or four rows have too few chains in one panel, so they may take
three panels in two sweeps, each over one panel and a half: eight rows are two such tiles. Each output is one chain of
fused multiply-adds over the depth, whatever the number of rows in the tile: so a row's result does not depend on how
many rows run beside it.

How weights lie in a panel is `models.cpu.formats`'.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from llvmlite import ir
from numba.core import types

from models.cpu.formats import BF16, FP32, INT4, INT8
from models.cpu.jit import I64, VOID, compile_entry, declare, function_in, jit, link
from models.cpu.tile_body import SPLIT_PANELS, TILE, tile_body, widening_body

MAX_TILE_ROWS = 6
MAX_TILE_PANELS = 4
# Panels whose sums a gated product keeps until gates and ups are both there.
MAX_SCRATCH_PANELS = 2 * SPLIT_PANELS

# (rows, panels) of the tiles there are.
_SHAPES = [(rows, 1) for rows in range(1, MAX_TILE_ROWS + 1)] + [(1, 4), (2, 2), (3, SPLIT_PANELS), (4, SPLIT_PANELS)]
# Of panels in groups so many rows are multiplied as they are; for more the panels are widened first, by the tile of no rows.
MAX_GROUPED_ROWS = 5
_GROUPED_SHAPES = [(rows, 1) for rows in range(MAX_GROUPED_ROWS + 1)] + [(1, 2)]


@jit
def tile_count(rows):  # type: ignore[no-untyped-def]
    """Tiles that cover `rows` rows; tile i has rows (rows * i) // count up to (rows * (i + 1)) // count, evenly cut."""
    return (rows + MAX_TILE_ROWS - 1) // MAX_TILE_ROWS


@jit
def tile_panels(rows):  # type: ignore[no-untyped-def]
    """Panels that all tiles of `rows` rows take best at once; they may always take one.

    A single tile of three or four rows waits for memory, where the order of one panel after the other is better.
    """
    if 0 < rows <= 2:
        return MAX_TILE_PANELS // rows
    tiles = tile_count(rows)
    return SPLIT_PANELS if tiles > 1 and 3 * tiles <= rows <= 4 * tiles else 1


@jit
def tile_sweeps(panels):  # type: ignore[no-untyped-def]
    """How often a tile of that many panels goes through the depth."""
    return 2 if panels == SPLIT_PANELS else 1


@declare
def tile(
    _context: Any,
    entry: Any,
    rows: Any,
    panels: Any,
    kind: Any,
    mode: Any,
    a: Any,
    lda: Any,
    w: Any,
    depth: Any,
    c: Any,
    ldc: Any,
    ahead: Any,
    pace: Any,
    apart: Any,
) -> Any:
    """c[m, :16] (op)= sum over k < depth of a[m, k] * w[k, :16], for m < rows <= 6. All arguments int64.

    entry: `tile_entry(...)`. panels: 1 or `tile_panels(rows)`; as many that follow each other at w give as many times 16
    outputs. kind: the format of w; the depth of INT8 and INT4 is whole groups. mode: STORE overwrites, ADD adds the sum to
    what is there, CONTINUE starts the sum from what is there. a, w, c: addresses; lda, ldc: row strides in floats. ahead,
    pace, apart: step k of the depth (those of `ASK_EVERY`) asks for the memory at `ahead` + k * `pace` bytes, every other
    at `apart` bytes more, and at the same place of as many panels; that memory need not exist. INT4 knows no `apart`.
    """

    def codegen(_context: Any, builder: ir.IRBuilder, _signature: Any, values: Any) -> Any:
        kind = ir.FunctionType(VOID, [I64] * len(values[1:]))
        builder.call(builder.inttoptr(values[0], kind.as_pointer()), values[1:])

    return types.void(*([types.int64] * 14)), codegen


def tile_entry(kind: int) -> int:
    """Address of the kernel compiled for panels of that format and of those that go with it: fp32 (attention's) with all,
    bf16 with fp32, int8 with int4 (beside whose layers the vocabulary is int8).

    Called through its address, because numba compiles whatever a function calls once more with each of its callers, and
    these bodies are the bulk of the code. Not all formats at once: nobody waits for code that no model here uses.
    """
    return compile_entry(_float_kernel if kind in (FP32, BF16) else _code_kernel, types.void(*([types.int64] * 13)))


def _compiled_for(kinds: Sequence[int]) -> Any:
    @declare
    def code(
        _context: Any,
        rows: Any,
        panels: Any,
        kind: Any,
        mode: Any,
        a: Any,
        lda: Any,
        w: Any,
        depth: Any,
        c: Any,
        ldc: Any,
        ahead: Any,
        pace: Any,
        apart: Any,
    ) -> Any:
        # A name of its own, because the process links functions of one name as one.
        name = "_".join(["dp_tile", *map(str, kinds)])
        return link(name, VOID, (I64, I64, I64, *TILE), partial(_dispatch, kinds))

    return code


_float_tile = _compiled_for((FP32, BF16))
_code_tile = _compiled_for((FP32, INT8, INT4))


def _float_kernel(rows, panels, kind, mode, a, lda, w, depth, c, ldc, ahead, pace, apart):  # type: ignore[no-untyped-def]
    _float_tile(rows, panels, kind, mode, a, lda, w, depth, c, ldc, ahead, pace, apart)


def _code_kernel(rows, panels, kind, mode, a, lda, w, depth, c, ldc, ahead, pace, apart):  # type: ignore[no-untyped-def]
    _code_tile(rows, panels, kind, mode, a, lda, w, depth, c, ldc, ahead, pace, apart)


def _dispatch(kinds: Sequence[int], builder: ir.IRBuilder, rows: Any, panels: Any, kind: Any, *rest: Any) -> None:
    done = builder.append_basic_block("done")
    key = builder.add(builder.shl(builder.add(builder.shl(kind, I64(3)), panels), I64(3)), rows)
    switch = builder.switch(key, done)
    for known in kinds:
        for count, side in _SHAPES if known in (FP32, BF16) else _GROUPED_SHAPES:
            block = builder.append_basic_block()
            switch.add_case(I64(8 * (8 * known + side) + count), block)
            with builder.goto_block(block):
                name = f"dp_tile_{known}_of_{count}_by_{side}"
                body = function_in(
                    builder.module, name, VOID, TILE, tile_body(count, side, known) if count else widening_body(known)
                )
                # Register allocation is tuned per tile: inlined into the switch, tiles would share registers.
                body.attributes.add("noinline")
                builder.call(body, rest)
                builder.branch(done)
    builder.position_at_end(done)
    builder.ret_void()
