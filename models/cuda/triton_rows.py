"""What lies between a pass's matrix products, row by row: as many kernels as there are gaps, instead of thirty a layer."""

from __future__ import annotations

import triton.language as tl

from models.cuda.triton_jit import kernel


@kernel()
def product(left, right):  # type: ignore[no-untyped-def]
    """left * right, rounded once to their dtype: exact before that, as bf16 products are in float32."""
    return (left.to(tl.float32) * right.to(tl.float32)).to(left.dtype)


@kernel()
def add_norm_row(  # type: ignore[no-untyped-def]
    x, delta, weight, summed, normed, eps, HIDDEN: tl.constexpr, PADDED: tl.constexpr, ADD: tl.constexpr
):
    """One row of PassKernels.add_norm a program; rounded where torch's operators round, after the sum and the scaling."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, PADDED)
    inside = column < HIDDEN
    value = tl.load(x + row * HIDDEN + column, mask=inside, other=0.0)
    if ADD:
        more = tl.load(delta + row * HIDDEN + column, mask=inside, other=0.0)
        value = (value.to(tl.float32) + more.to(tl.float32)).to(value.dtype)
        tl.store(summed + row * HIDDEN + column, value, mask=inside)
    wide = value.to(tl.float32)
    scaled = (wide * tl.rsqrt(tl.sum(wide * wide, axis=0) / HIDDEN + eps)).to(value.dtype)
    gain = tl.load(weight + column, mask=inside, other=0.0)
    tl.store(normed + row * HIDDEN + column, product(gain, scaled), mask=inside)


@kernel()
def rotate_and_store_head(  # type: ignore[no-untyped-def]
    qkv,
    q_norm,
    k_norm,
    cos,
    sin,
    positions,
    targets,
    query,
    keys,
    values,
    eps,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    HALF: tl.constexpr,
    NORM: tl.constexpr,
):
    """One head of one row a program: normed, rotated, and sent where it belongs. HALF: half a head's width, padded."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    half: tl.constexpr = WIDTH // 2
    column = tl.arange(0, HALF)
    inside = column < half
    source = qkv + (row * (HEADS + 2 * KV_HEADS) + head) * WIDTH + column
    first, second = tl.load(source, mask=inside, other=0.0), tl.load(source + half, mask=inside, other=0.0)
    target = tl.load(targets + row).to(tl.int64) * KV_HEADS * WIDTH
    if head >= HEADS + KV_HEADS:
        place = values + target + (head - HEADS - KV_HEADS) * WIDTH + column
        tl.store(place, first, mask=inside)
        tl.store(place + half, second, mask=inside)
    else:
        left, right = first.to(tl.float32), second.to(tl.float32)
        if NORM:
            scale = tl.rsqrt((tl.sum(left * left, axis=0) + tl.sum(right * right, axis=0)) / WIDTH + eps)
            gain = q_norm + column
            if head >= HEADS:
                gain = k_norm + column
            low, high = tl.load(gain, mask=inside, other=0.0), tl.load(gain + half, mask=inside, other=0.0)
            left = product(low, (left * scale).to(first.dtype)).to(tl.float32)
            right = product(high, (right * scale).to(first.dtype)).to(tl.float32)
        angle = tl.load(positions + row).to(tl.int64) * half + column
        c, s = tl.load(cos + angle, mask=inside, other=0.0), tl.load(sin + angle, mask=inside, other=0.0)
        place = query + (row * HEADS + head) * WIDTH + column
        if head >= HEADS:
            place = keys + target + (head - HEADS) * WIDTH + column
        tl.store(place, (left * c - right * s).to(first.dtype), mask=inside)
        tl.store(place + half, (right * c + left * s).to(first.dtype), mask=inside)


@kernel()
def gate_row(gate_up, out, INNER: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """BLOCK columns of one row of PassKernels.gate a program."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < INNER
    gate = tl.load(gate_up + row * 2 * INNER + column, mask=inside, other=0.0)
    up = tl.load(gate_up + row * 2 * INNER + INNER + column, mask=inside, other=0.0)
    wide = gate.to(tl.float32)
    result = wide / (1.0 + tl.exp(-wide)) * up.to(tl.float32)
    tl.store(out + row * INNER + column, result.to(gate.dtype), mask=inside)
