"""What the bodies of tiles are put together from: the loop over the depth, weights widened, memory asked for in advance."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from models.cpu.jit import I32, I64, INT_VECTOR, LANES, VECTOR, VOID


def loop(builder: ir.IRBuilder, start: Any, stop: Any, step: int, sums: list[Any], body: Any) -> list[Any]:
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


def load_weights(builder: ir.IRBuilder, w: Any, k: Any, bf16: bool) -> list[Any]:
    if not bf16:
        base = builder.inttoptr(builder.add(w, builder.shl(k, I64(6))), VECTOR.as_pointer())
        return [builder.load(builder.gep(base, [I64(half)]), align=4) for half in (0, 1)]
    words = builder.load(builder.inttoptr(builder.add(w, builder.shl(k, I64(5))), INT_VECTOR.as_pointer()), align=4)
    low = builder.shl(words, ir.Constant(INT_VECTOR, [16] * LANES))
    high = builder.and_(words, ir.Constant(INT_VECTOR, [0xFFFF0000] * LANES))
    return [builder.bitcast(half, VECTOR) for half in (low, high)]


def prefetch(builder: ir.IRBuilder, place: Any) -> None:
    """Start reading the line at an address into all caches."""
    pointer = ir.PointerType()
    kind = ir.FunctionType(VOID, [pointer, I32, I32, I32])
    name = "llvm.prefetch.p0"
    read, keep, data = I32(0), I32(3), I32(1)
    function = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
    builder.call(function, [builder.inttoptr(place, pointer), read, keep, data])


def broadcast(builder: ir.IRBuilder, scalar: Any) -> Any:
    single = builder.insert_element(ir.Constant(VECTOR, ir.Undefined), scalar, I32(0))
    lanes = ir.Constant(ir.VectorType(I32, LANES), [0] * LANES)
    return builder.shuffle_vector(single, ir.Constant(VECTOR, ir.Undefined), lanes)
