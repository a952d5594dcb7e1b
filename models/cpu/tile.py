"""The matrix kernel: 1 to 6 rows by 16 outputs, the depth summed in order, weights converted in registers.

Twelve accumulators, two weight vectors and one broadcast fill the sixteen registers of AVX2. One or two rows leave most of
them free and wait for memory, so they may take four or two panels side by side: a core reads several streams faster than
one, and more chains of sums hide the latency of each. Each output is one chain of
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
    I32,
    I64,
    INT_VECTOR,
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

PANEL = 2 * LANES
MAX_TILE_ROWS = 6
MAX_TILE_PANELS = 4

# Steps of the depth a turn of the loop: fewer branches and counters beside the products.
_UNROLLED = 4

# What a tile does with the result it computed.
STORE, ADD, CONTINUE = 0, 1, 2

_TILE = (I64,) * 9

# (rows, panels) of the tiles there are.
_SHAPES = [(rows, 1) for rows in range(1, MAX_TILE_ROWS + 1)] + [(1, 4), (2, 2)]


@jit
def tile_panels(rows):  # type: ignore[no-untyped-def]
    """Panels the tile of that many rows may take at once; it may always take one."""
    return MAX_TILE_PANELS // rows if 0 < rows <= 2 else 1


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
        fma = vector_intrinsic(builder.module, "fma", 3)
        float_pointer, vector_pointer = F32.as_pointer(), VECTOR.as_pointer()
        outputs = []
        inputs = []
        for row in range(rows):
            base = builder.inttoptr(builder.add(c, builder.mul(ldc, I64(4 * row))), float_pointer)
            places = [builder.gep(base, [I64(half * LANES)]) for half in range(2 * panels)]
            outputs += [builder.bitcast(place, vector_pointer) for place in places]
            inputs.append(builder.inttoptr(builder.add(a, builder.mul(lda, I64(4 * row))), float_pointer))
        panel_bytes = builder.mul(depth, I64(PANEL * (2 if bf16 else 4)))
        starts = [builder.mul(panel_bytes, I64(panel)) for panel in range(panels)]
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
                    for start in starts:
                        weights += _load_weights(builder, builder.add(w, start), at, bf16)
                        if step % (2 if bf16 else 1) == 0:
                            _prefetch(builder, builder.add(builder.add(ahead, start), builder.mul(at, pace)))
                    updated: list[Any] = []
                    for row in range(rows):
                        spread = _broadcast(builder, builder.load(builder.gep(inputs[row], [at]), align=4))
                        chains = sums[len(updated) : len(updated) + len(weights)]
                        updated += [builder.call(fma, [spread, *pair]) for pair in zip(weights, chains, strict=True)]
                    sums = updated
                return sums

            return body

        whole = builder.and_(depth, I64(-_UNROLLED))
        sums = _loop(builder, I64(0), whole, _UNROLLED, first, steps(_UNROLLED))
        sums = _loop(builder, whole, depth, 1, sums, steps(1))
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
        builder.ret_void()

    return build


def _loop(builder: ir.IRBuilder, start: Any, stop: Any, step: int, sums: list[Any], body: Any) -> list[Any]:
    """Fold `body(k, sums)` over k = start, start + step, ... < stop."""
    before = builder.block
    head, turn, after = (builder.append_basic_block(name) for name in ("loop", "turn", "after"))
    builder.branch(head)
    builder.position_at_end(head)
    k = builder.phi(I64)
    folded = [builder.phi(VECTOR) for _ in sums]
    builder.cbranch(builder.icmp_signed("<", k, stop), turn, after)
    builder.position_at_end(turn)
    made = body(k, folded)
    k.add_incoming(start, before)
    k.add_incoming(builder.add(k, I64(step)), turn)
    for phi, value, following in zip(folded, sums, made, strict=True):
        phi.add_incoming(value, before)
        phi.add_incoming(following, turn)
    builder.branch(head)
    builder.position_at_end(after)
    return folded


def _load_weights(builder: ir.IRBuilder, w: Any, k: Any, bf16: bool) -> list[Any]:
    if not bf16:
        base = builder.inttoptr(builder.add(w, builder.shl(k, I64(6))), VECTOR.as_pointer())
        return [builder.load(builder.gep(base, [I64(half)]), align=4) for half in (0, 1)]
    words = builder.load(builder.inttoptr(builder.add(w, builder.shl(k, I64(5))), INT_VECTOR.as_pointer()), align=4)
    low = builder.shl(words, ir.Constant(INT_VECTOR, [16] * LANES))
    high = builder.and_(words, ir.Constant(INT_VECTOR, [0xFFFF0000] * LANES))
    return [builder.bitcast(half, VECTOR) for half in (low, high)]


def _prefetch(builder: ir.IRBuilder, place: Any) -> None:
    """Start reading the line at an address into all caches."""
    pointer = ir.PointerType()
    kind = ir.FunctionType(VOID, [pointer, I32, I32, I32])
    name = "llvm.prefetch.p0"
    read, keep, data = I32(0), I32(3), I32(1)
    function = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
    builder.call(function, [builder.inttoptr(place, pointer), read, keep, data])


def _broadcast(builder: ir.IRBuilder, scalar: Any) -> Any:
    single = builder.insert_element(ir.Constant(VECTOR, ir.Undefined), scalar, I32(0))
    lanes = ir.Constant(ir.VectorType(I32, LANES), [0] * LANES)
    return builder.shuffle_vector(single, ir.Constant(VECTOR, ir.Undefined), lanes)
