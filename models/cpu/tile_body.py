"""The code of one tile: so many rows by so many panels, swept through the depth once or twice."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from models.cpu.formats import ASK_EVERY, BF16, FP32, STEP_BYTES, UNROLLED, GroupedPanel, load_weights
from models.cpu.jit import F32, I64, LANES, VECTOR, vector_intrinsic
from models.cpu.tile_parts import broadcast, loop, prefetch
from models.quantized import GROUP

# What a tile does with the result it computed.
STORE, ADD, CONTINUE = 0, 1, 2

# So many panels are gone through in two sweeps, over one and a half each.
SPLIT_PANELS = 3

# Kinds of a body's arguments: see `tile_body`.
TILE = (I64,) * 10


def tile_body(rows: int, panels: int, kind: int) -> Any:
    """Writes the body of mode, a, lda, w, depth, c, ldc, ahead, pace, apart: see `models.cpu.tile.tile`."""
    halves = [(panel, half) for panel in range(panels) for half in (0, 1)]
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
        apart: Any,
    ) -> None:
        inputs = [
            builder.inttoptr(builder.add(a, builder.mul(lda, I64(4 * row))), F32.as_pointer()) for row in range(rows)
        ]
        panel_bytes = builder.mul(depth, I64(STEP_BYTES[kind]))
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
                _Asked([builder.add(ahead, x) for x in asked], pace, apart, kind),
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
    asked: _Asked,
) -> None:
    """One turn through the depth for the halves `swept` of panels, all rows: outputs [row][half]."""
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

    if asked.kind in (FP32, BF16):
        sums = _float_sums(builder, inputs, w, starts, swept, depth, first, asked)
    else:
        sums = _grouped_sums(builder, inputs, w, starts, depth, first, asked)
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


class _Asked:
    """The memory that steps of the depth ask for in advance, `apart` bytes further every other time."""

    def __init__(self, aheads: list[Any], pace: Any, apart: Any, kind: int) -> None:
        self._aheads, self._pace, self._apart, self.kind = aheads, pace, apart, kind

    def at(self, builder: ir.IRBuilder, step: Any, unrolled: int) -> None:
        """What step `step` asks for, the `unrolled`-th of a turn of the loop."""
        time, between = divmod(unrolled, ASK_EVERY[self.kind])
        if between == 0:
            place = builder.mul(step, self._pace)
            if time % 2:
                place = builder.add(place, self._apart)
            for ahead in self._aheads:
                prefetch(builder, builder.add(ahead, place))


def _added(builder: ir.IRBuilder, inputs: list[Any], step: Any, weights: list[Any], sums: list[Any]) -> list[Any]:
    """Sums [row][half] with the products of one step added."""
    fma = vector_intrinsic(builder.module, "fma", 3)
    updated: list[Any] = []
    for row in inputs:
        spread = broadcast(builder, builder.load(builder.gep(row, [step]), align=4))
        chains = sums[len(updated) : len(updated) + len(weights)]
        updated += [builder.call(fma, [spread, *pair]) for pair in zip(weights, chains, strict=True)]
    return updated


def _float_sums(
    builder: ir.IRBuilder,
    inputs: list[Any],
    w: Any,
    starts: list[Any],
    swept: list[tuple[int, int]],
    depth: Any,
    first: list[Any],
    asked: _Asked,
) -> list[Any]:
    def steps(count: int) -> Any:
        def body(k: Any, sums: list[Any]) -> list[Any]:
            for step in range(count):
                at = builder.add(k, I64(step))
                weights = []
                for panel in sorted({panel for panel, _ in swept}):
                    pair = load_weights(builder, builder.add(w, starts[panel]), at, asked.kind == BF16)
                    weights += [pair[half] for half in (0, 1) if (panel, half) in swept]
                asked.at(builder, at, step)
                sums = _added(builder, inputs, at, weights, sums)
            return sums

        return body

    whole = builder.and_(depth, I64(-UNROLLED))
    sums = loop(builder, I64(0), whole, UNROLLED, first, steps(UNROLLED))
    return loop(builder, whole, depth, 1, sums, steps(1))


def _grouped_sums(
    builder: ir.IRBuilder,
    inputs: list[Any],
    w: Any,
    starts: list[Any],
    depth: Any,
    first: list[Any],
    asked: _Asked,
) -> list[Any]:
    def group(k: Any, sums: list[Any]) -> list[Any]:
        place = builder.add(w, builder.mul(k, I64(STEP_BYTES[asked.kind])))
        parts = [GroupedPanel(builder, asked.kind, builder.add(place, start)) for start in starts]

        def steps(inside: Any, sums: list[Any]) -> list[Any]:
            for step in range(UNROLLED):
                at = builder.add(k, builder.add(inside, I64(step)))
                asked.at(builder, at, step)
                weights = [weight for part in parts for weight in part.step(inside, step)]
                sums = _added(builder, inputs, at, weights, sums)
            return sums

        return loop(builder, I64(0), I64(GROUP), UNROLLED, sums, steps)

    return loop(builder, I64(0), depth, GROUP, first, group)


def widening_body(kind: int) -> Any:
    """Writes the body of the tile of no rows, which stores the weights of a panel in groups at c as an fp32 panel."""

    def build(
        builder: ir.IRBuilder,
        _mode: Any,
        _a: Any,
        _lda: Any,
        w: Any,
        depth: Any,
        c: Any,
        _ldc: Any,
        ahead: Any,
        pace: Any,
        apart: Any,
    ) -> None:
        asked = _Asked([ahead], pace, apart, kind)

        def group(k: Any, nothing: list[Any]) -> list[Any]:
            panel = GroupedPanel(builder, kind, builder.add(w, builder.mul(k, I64(STEP_BYTES[kind]))))

            def steps(inside: Any, nothing: list[Any]) -> list[Any]:
                for step in range(UNROLLED):
                    halves = panel.step(inside, step)
                    at = builder.add(k, builder.add(inside, I64(step)))
                    asked.at(builder, at, step)
                    target = builder.inttoptr(builder.add(c, builder.shl(at, I64(6))), VECTOR.as_pointer())
                    for half, weights in enumerate(halves):
                        builder.store(weights, builder.gep(target, [I64(half)]), align=4)
                return nothing

            return loop(builder, I64(0), I64(GROUP), UNROLLED, nothing, steps)

        loop(builder, I64(0), depth, GROUP, [], group)
        builder.ret_void()

    return build
