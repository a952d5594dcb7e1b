"""What the bodies of tiles are put together from: the loop over the depth, a number spread, memory asked for in advance."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from models.cpu.jit import I32, I64, LANES, VECTOR, VOID


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
    # The body may be several blocks.
    last = builder.block
    k.add_incoming(start, before)
    k.add_incoming(builder.add(k, I64(step)), last)
    for phi, value, following in zip(folded, sums, made, strict=True):
        phi.add_incoming(value, before)
        phi.add_incoming(following, last)
    builder.branch(head)
    builder.position_at_end(after)
    return folded


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
