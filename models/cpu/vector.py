"""Row kernels on <8 x float>: sum of squares, softmax in two sweeps, gated SiLU. Lanes are reduced in one fixed order.

Lengths are padded by the caller to whole vectors, and a padded score is -inf, whose exponential is exactly 0: so the
result depends on the visible entries alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir

from models.cpu.jit import F32, I32, I64, INT_VECTOR, LANES, VECTOR, VOID, declare, link, vector_intrinsic


@declare
def sum_of_squares(_context: Any, row: Any, count: Any) -> Any:
    """float32 sum of row[i]^2, i < count (a multiple of 8); row is an address."""
    return link("dp_sum_of_squares", F32, (I64, I64), _sum_of_squares)


@declare
def row_max(_context: Any, row: Any, count: Any) -> Any:
    """float32 maximum of row[i], i < count (a multiple of 8, at least 8)."""
    return link("dp_row_max", F32, (I64, I64), _row_max)


@declare
def exponentiate(_context: Any, row: Any, count: Any, peak: Any) -> Any:
    """row[i] = exp(row[i] - peak), i < count (a multiple of 8); returns the float32 sum."""
    return link("dp_exponentiate", F32, (I64, I64, F32), _exponentiate)


@declare
def gate(_context: Any, gates: Any, ups: Any, out: Any) -> Any:
    """out[j] = silu(gates[j]) * ups[j], j < 16; addresses."""
    return link("dp_gate", VOID, (I64, I64, I64), _gate)


@declare
def divide(_context: Any, row: Any, divisor: Any, out: Any, count: Any) -> Any:
    """out[i] = row[i] / divisor, i < count (a multiple of 8)."""
    return link("dp_divide", VOID, (I64, F32, I64, I64), _divide)


@declare
def scale(_context: Any, row: Any, factor: Any, weight: Any, out: Any, count: Any) -> Any:
    """out[i] = weight[i] * (row[i] * factor), i < count (a multiple of 8)."""
    return link("dp_scale", VOID, (I64, F32, I64, I64, I64), _scale)


@declare
def copy_vectors(_context: Any, row: Any, out: Any, count: Any) -> Any:
    """out[i] = row[i], i < count (a multiple of 8)."""
    return link("dp_copy", VOID, (I64, I64, I64), _copy)


@declare
def rotate(_context: Any, row: Any, cos: Any, sin: Any, half: Any, out: Any, factor: Any) -> Any:
    """out = (row[i], row[half + i]) turned by the angle of cos[i], sin[i], times factor; i < half / 8 * 8.

    out may be row.
    """
    return link("dp_rotate", VOID, (I64, I64, I64, I64, I64, F32), _rotate)


def _splat(value: float) -> ir.Constant:
    return ir.Constant(VECTOR, [ir.Constant(F32, value)] * LANES)


def _at(builder: ir.IRBuilder, row: Any, index: Any) -> Any:
    return builder.inttoptr(builder.add(row, builder.shl(index, I64(2))), VECTOR.as_pointer())


def _broadcast(builder: ir.IRBuilder, scalar: Any) -> Any:
    single = builder.insert_element(ir.Constant(VECTOR, ir.Undefined), scalar, I32(0))
    lanes = ir.Constant(ir.VectorType(I32, LANES), [0] * LANES)
    return builder.shuffle_vector(single, ir.Constant(VECTOR, ir.Undefined), lanes)


def _reduce(builder: ir.IRBuilder, vector: Any, combine: Callable[[Any, Any], Any]) -> Any:
    lanes = [builder.extract_element(vector, I32(lane)) for lane in range(LANES)]
    while len(lanes) > 1:
        half = len(lanes) // 2
        lanes = [combine(lanes[lane], lanes[lane + half]) for lane in range(half)]
    return lanes[0]


def _sweep(builder: ir.IRBuilder, count: Any, start: Any, step: Callable[[Any, Any], Any]) -> Any:
    """Fold `step(index, accumulator)` over index = 0, 8, ... < count."""
    entry = builder.block
    head, body, end = (builder.append_basic_block(name) for name in ("head", "body", "end"))
    builder.branch(head)
    builder.position_at_end(head)
    index, folded = builder.phi(I64), builder.phi(VECTOR)
    index.add_incoming(I64(0), entry)
    folded.add_incoming(start, entry)
    builder.cbranch(builder.icmp_signed("<", index, count), body, end)
    builder.position_at_end(body)
    following = step(index, folded)
    index.add_incoming(builder.add(index, I64(LANES)), body)
    folded.add_incoming(following, body)
    builder.branch(head)
    builder.position_at_end(end)
    return folded


def _sum_of_squares(builder: ir.IRBuilder, row: Any, count: Any) -> None:
    fma = vector_intrinsic(builder.module, "fma", 3)

    def step(index: Any, total: Any) -> Any:
        value = builder.load(_at(builder, row, index), align=4)
        return builder.call(fma, [value, value, total])

    builder.ret(_reduce(builder, _sweep(builder, count, _splat(0.0), step), builder.fadd))


def _row_max(builder: ir.IRBuilder, row: Any, count: Any) -> None:
    def larger(one: Any, other: Any) -> Any:
        return builder.select(builder.fcmp_ordered(">", one, other), one, other)

    def step(index: Any, peak: Any) -> Any:
        return larger(builder.load(_at(builder, row, index), align=4), peak)

    builder.ret(_reduce(builder, _sweep(builder, count, _splat(float("-inf")), step), larger))


def _exponentiate(builder: ir.IRBuilder, row: Any, count: Any, peak: Any) -> None:
    spread = _broadcast(builder, peak)

    def step(index: Any, total: Any) -> Any:
        place = _at(builder, row, index)
        value = _exp(builder, builder.fsub(builder.load(place, align=4), spread))
        builder.store(value, place, align=4)
        return builder.fadd(total, value)

    builder.ret(_reduce(builder, _sweep(builder, count, _splat(0.0), step), builder.fadd))


def _map(builder: ir.IRBuilder, count: Any, step: Callable[[Any], None]) -> None:
    """Do `step(index)` for index = 0, 8, ... < count, and return."""

    def follow(index: Any, nothing: Any) -> Any:
        step(index)
        return nothing

    _sweep(builder, count, _splat(0.0), follow)
    builder.ret_void()


def _divide(builder: ir.IRBuilder, row: Any, divisor: Any, out: Any, count: Any) -> None:
    spread = _broadcast(builder, divisor)

    def step(index: Any) -> None:
        quotient = builder.fdiv(builder.load(_at(builder, row, index), align=4), spread)
        builder.store(quotient, _at(builder, out, index), align=4)

    _map(builder, count, step)


def _scale(builder: ir.IRBuilder, row: Any, factor: Any, weight: Any, out: Any, count: Any) -> None:
    spread = _broadcast(builder, factor)

    def step(index: Any) -> None:
        value = builder.fmul(builder.load(_at(builder, row, index), align=4), spread)
        product = builder.fmul(builder.load(_at(builder, weight, index), align=4), value)
        builder.store(product, _at(builder, out, index), align=4)

    _map(builder, count, step)


def _copy(builder: ir.IRBuilder, row: Any, out: Any, count: Any) -> None:
    def step(index: Any) -> None:
        builder.store(builder.load(_at(builder, row, index), align=4), _at(builder, out, index), align=4)

    _map(builder, count, step)


def _rotate(builder: ir.IRBuilder, row: Any, cos: Any, sin: Any, half: Any, out: Any, factor: Any) -> None:
    spread = _broadcast(builder, factor)

    def step(index: Any) -> None:
        later = builder.add(index, half)
        first, second = (builder.load(_at(builder, row, place), align=4) for place in (index, later))
        c, s = (builder.load(_at(builder, table, index), align=4) for table in (cos, sin))
        left = builder.fsub(builder.fmul(first, c), builder.fmul(second, s))
        right = builder.fadd(builder.fmul(second, c), builder.fmul(first, s))
        for value, place in ((left, index), (right, later)):
            builder.store(builder.fmul(value, spread), _at(builder, out, place), align=4)

    _map(builder, builder.and_(half, I64(-LANES)), step)


def _gate(builder: ir.IRBuilder, gates: Any, ups: Any, out: Any) -> None:
    for start in (0, LANES):
        value = builder.load(_at(builder, gates, I64(start)), align=4)
        up = builder.load(_at(builder, ups, I64(start)), align=4)
        decay = _exp(builder, builder.fsub(_splat(-0.0), value))
        silu = builder.fdiv(value, builder.fadd(_splat(1.0), decay))
        builder.store(builder.fmul(silu, up), _at(builder, out, I64(start)), align=4)
    builder.ret_void()


# Cephes expf: x = n ln 2 + r with |r| <= ln 2 / 2, a polynomial in r (about one unit in the last place), then 2^n.
_LOG2_E, _LN2_HIGH, _LN2_LOW = 1.44269504088896341, 0.693359375, -2.12194440e-4
_POLYNOMIAL = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
_SMALLEST, _LARGEST = -87.0, 88.0


def _exp(builder: ir.IRBuilder, x: Any) -> Any:
    """exp of each lane; 0 below -87 (the smallest normal numbers), exp(88) above 88."""
    fma, nearest = vector_intrinsic(builder.module, "fma", 3), vector_intrinsic(builder.module, "nearbyint", 1)
    tiny = builder.fcmp_ordered("<", x, _splat(_SMALLEST))
    bounded = builder.select(tiny, _splat(_SMALLEST), x)
    bounded = builder.select(builder.fcmp_ordered(">", bounded, _splat(_LARGEST)), _splat(_LARGEST), bounded)
    n = builder.call(nearest, [builder.fmul(bounded, _splat(_LOG2_E))])
    r = builder.call(fma, [n, _splat(-_LN2_HIGH), bounded])
    r = builder.call(fma, [n, _splat(-_LN2_LOW), r])
    total = _splat(_POLYNOMIAL[0])
    for coefficient in _POLYNOMIAL[1:]:
        total = builder.call(fma, [total, r, _splat(coefficient)])
    total = builder.call(fma, [total, builder.fmul(r, r), builder.fadd(r, _splat(1.0))])
    exponent = builder.add(builder.fptosi(n, INT_VECTOR), ir.Constant(INT_VECTOR, [127] * LANES))
    power = builder.bitcast(builder.shl(exponent, ir.Constant(INT_VECTOR, [23] * LANES)), VECTOR)
    return builder.select(tiny, _splat(0.0), builder.fmul(total, power))
