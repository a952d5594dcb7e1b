"""The matrix kernel: 1 to 6 rows by 16 outputs, the depth summed in order, weights converted in registers.

Twelve accumulators, two weight vectors and one broadcast fill the sixteen registers of AVX2, and twelve chains of sums hide
the latency of each. One or two rows leave most registers free and wait for memory, so they may take four or two panels side
by side: a core reads several streams faster than one. Three or four rows have too few chains in one panel, so they may take
three panels in two sweeps, each over one panel and a half: eight rows are two such tiles. Each output is one chain of
fused multiply-adds over the depth, whatever the number of rows in the tile: so a row's result does not depend on how
many rows run beside it.

A panel holds 16 outputs, depth-major. fp32: [depth][16] floats. bf16: [depth][8] words, word j holding output j in its
low half and output j + 8 in its high half, so that one load, one shift and one mask give 16 fp32 weights.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import types

from models.cpu.jit import (
    F32,
    I64,
    LANES,
    VECTOR,
    VOID,
    compile_entry,
    declare,
    function_in,
    jit,
    link,
    vector_intrinsic,
)
from models.cpu.tile_parts import broadcast, load_weights, loop, prefetch

PANEL = 2 * LANES
MAX_TILE_ROWS = 6
MAX_TILE_PANELS = 4
# So many are gone through in two sweeps, over one and a half each.
SPLIT_PANELS = 3
# Panels whose sums a gated product keeps until gates and ups are both there.
MAX_SCRATCH_PANELS = 2 * SPLIT_PANELS

# Steps of the depth a turn of the loop: fewer branches and counters beside the products.
_UNROLLED = 4

# What a tile does with the result it computed.
STORE, ADD, CONTINUE = 0, 1, 2

_TILE = (I64,) * 9

# (rows, panels) of the tiles there are.
_SHAPES = [(rows, 1) for rows in range(1, MAX_TILE_ROWS + 1)] + [(1, 4), (2, 2), (3, SPLIT_PANELS), (4, SPLIT_PANELS)]


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
    packed: Any,
    mode: Any,
    a: Any,
    lda: Any,
    w: Any,
    depth: Any,
    c: Any,
    ldc: Any,
    ahead: Any,
    pace: Any,
) -> Any:
    """c[m, :16] (op)= sum over k < depth of a[m, k] * w[k, :16], for m < rows <= 6. All arguments int64.

    entry: `tile_entry()`. panels: 1 or `tile_panels(rows)`; as many that follow each other at w give as many times 16
    outputs. packed: the panels are bf16. mode: STORE overwrites, ADD adds the sum to what is there, CONTINUE
    starts the sum from what is there. a, w, c: addresses; lda, ldc: row strides in floats. ahead, pace: step k of the
    depth (every second one, with bf16) asks for the memory at `ahead` + k * `pace` bytes, and at the same place of as many
    panels; that memory need not exist.
    """

    def codegen(_context: Any, builder: ir.IRBuilder, _signature: Any, values: Any) -> Any:
        kind = ir.FunctionType(VOID, [I64] * len(values[1:]))
        builder.call(builder.inttoptr(values[0], kind.as_pointer()), values[1:])

    return types.void(*([types.int64] * 13)), codegen


@declare
def _tile_code(
    _context: Any,
    rows: Any,
    panels: Any,
    packed: Any,
    mode: Any,
    a: Any,
    lda: Any,
    w: Any,
    depth: Any,
    c: Any,
    ldc: Any,
    ahead: Any,
    pace: Any,
) -> Any:
    return link("dp_tile", VOID, (I64, I64, I64, *_TILE), _dispatch)


def tile_entry() -> int:
    """Address of the compiled kernel.

    Called through its address, because numba compiles whatever a function calls once more with each of its callers, and
    these bodies are the bulk of the code.
    """

    return compile_entry(_kernel, types.void(*([types.int64] * 12)))


def _kernel(rows, panels, packed, mode, a, lda, w, depth, c, ldc, ahead, pace):  # type: ignore[no-untyped-def]
    _tile_code(rows, panels, packed, mode, a, lda, w, depth, c, ldc, ahead, pace)


def _dispatch(builder: ir.IRBuilder, rows: Any, panels: Any, packed: Any, *rest: Any) -> None:
    done = builder.append_basic_block("done")
    key = builder.add(builder.shl(builder.add(builder.shl(packed, I64(3)), panels), I64(3)), rows)
    switch = builder.switch(key, done)
    for bf16 in (False, True):
        for count, side in _SHAPES:
            block = builder.append_basic_block()
            switch.add_case(I64(8 * (8 * bf16 + side) + count), block)
            with builder.goto_block(block):
                name = f"dp_tile_{'bf16' if bf16 else 'fp32'}_{count}_{side}"
                body = function_in(builder.module, name, VOID, _TILE, _tile_body(count, side, bf16))
                # Register allocation is tuned per tile: inlined into the switch, tiles would share registers.
                body.attributes.add("noinline")
                builder.call(body, rest)
                builder.branch(done)
    builder.position_at_end(done)
    builder.ret_void()


def _tile_body(rows: int, panels: int, bf16: bool) -> Any:
    halves = [(panel, half) for panel in range(panels) for half in (0, 1)]
    # As `tile_sweeps` says.
    width = len(halves) // 2 if panels == SPLIT_PANELS else len(halves)

    def build(
        builder: ir.IRBuilder,
        mode: Any,
        a: Any,
        lda: Any,
        w: Any,
        depth: Any,
        c: Any,
        ldc: Any,
        ahead: Any,
        pace: Any,
    ) -> None:
        inputs = [
            builder.inttoptr(builder.add(a, builder.mul(lda, I64(4 * row))), F32.as_pointer()) for row in range(rows)
        ]
        panel_bytes = builder.mul(depth, I64(PANEL * (2 if bf16 else 4)))
        starts = [builder.mul(panel_bytes, I64(panel)) for panel in range(panels)]
        for first in range(0, len(halves), width):
            swept = halves[first : first + width]
            outputs = [
                builder.inttoptr(
                    builder.add(c, builder.add(builder.mul(ldc, I64(4 * row)), I64(4 * LANES * (2 * panel + half)))),
                    VECTOR.as_pointer(),
                )
                for row in range(rows)
                for panel, half in swept
            ]
            # A sweep over whole panels asks for memory beside each of them, sweeps over parts of them in turn.
            asked = starts if width == len(halves) else [builder.mul(builder.mul(depth, pace), I64(first // width))]
            _sweep(
                builder,
                mode,
                inputs,
                w,
                starts,
                swept,
                depth,
                outputs,
                [builder.add(ahead, x) for x in asked],
                pace,
                bf16,
            )
        builder.ret_void()

    return build


def _sweep(
    builder: ir.IRBuilder,
    mode: Any,
    inputs: list[Any],
    w: Any,
    starts: list[Any],
    swept: list[tuple[int, int]],
    depth: Any,
    outputs: list[Any],
    aheads: list[Any],
    pace: Any,
    bf16: bool,
) -> None:
    """One turn through the depth for the halves `swept` of panels, all rows: outputs [row][half]."""
    fma = vector_intrinsic(builder.module, "fma", 3)
    zero = ir.Constant(VECTOR, [0.0] * LANES)
    entry = builder.block
    resume, head, store, add, end = (
        builder.append_basic_block(name) for name in ("resume", "head", "store", "add", "end")
    )
    builder.cbranch(builder.icmp_signed("==", mode, I64(CONTINUE)), resume, head)
    builder.position_at_end(resume)
    started = [builder.load(output, align=4) for output in outputs]
    builder.branch(head)

    builder.position_at_end(head)
    first = [builder.phi(VECTOR) for _ in outputs]
    for phi, start in zip(first, started, strict=True):
        phi.add_incoming(zero, entry)
        phi.add_incoming(start, resume)

    def steps(count: int) -> Any:
        def body(k: Any, sums: list[Any]) -> list[Any]:
            for step in range(count):
                at = builder.add(k, I64(step))
                weights = []
                for panel in sorted({panel for panel, _ in swept}):
                    pair = load_weights(builder, builder.add(w, starts[panel]), at, bf16)
                    weights += [pair[half] for half in (0, 1) if (panel, half) in swept]
                if step % (2 if bf16 else 1) == 0:
                    for ahead in aheads:
                        prefetch(builder, builder.add(ahead, builder.mul(at, pace)))
                updated: list[Any] = []
                for row in inputs:
                    spread = broadcast(builder, builder.load(builder.gep(row, [at]), align=4))
                    chains = sums[len(updated) : len(updated) + len(weights)]
                    updated += [builder.call(fma, [spread, *pair]) for pair in zip(weights, chains, strict=True)]
                sums = updated
            return sums

        return body

    whole = builder.and_(depth, I64(-_UNROLLED))
    sums = loop(builder, I64(0), whole, _UNROLLED, first, steps(_UNROLLED))
    sums = loop(builder, whole, depth, 1, sums, steps(1))
    builder.cbranch(builder.icmp_signed("==", mode, I64(ADD)), add, store)
    builder.position_at_end(add)
    for output, value in zip(outputs, sums, strict=True):
        builder.store(builder.fadd(builder.load(output, align=4), value), output, align=4)
    builder.branch(end)
    builder.position_at_end(store)
    for output, value in zip(outputs, sums, strict=True):
        builder.store(value, output, align=4)
    builder.branch(end)
    builder.position_at_end(end)
