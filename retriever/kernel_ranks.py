"""Compiled reading of a segment by rank, signposts first: what stands at a rank, and where a run of ranks ends.

A signpost (`signposts.py`) is one access to a small array; the suffix itself is two to large ones, far apart.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, call-arg, attr-defined"

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray, types
from numba.core import cgutils
from numba.extending import intrinsic

from retriever.kernel_table import (
    CODES,
    LOW,
    SIGNPOST_DEPTH,
    SIGNPOST_SPACING_BITS,
    SIGNPOSTS,
    WIDTH,
    code_at,
    compiled,
    pointer,
    suffix_start,
)

ENTRIES_A_LINE = 16


@intrinsic
def _prefetch(typing_context: Any, address: Any) -> Any:
    """Ask for the cache line at an address without waiting for it; any address will do."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind, int32 = cgutils.voidptr_t, cgutils.ir.IntType(32)
        function = builder.module.declare_intrinsic(
            "llvm.prefetch", [kind], cgutils.ir.FunctionType(cgutils.ir.VoidType(), [kind, int32, int32, int32])
        )
        # To be read, to be kept in every cache, data.
        builder.call(function, [builder.inttoptr(arguments[0], kind), int32(0), int32(3), int32(1)])
        return context.get_dummy_value()

    return types.void(types.int64), build


@compiled
def signpost(table, segment, number, k):
    """Code `k`, below SIGNPOST_DEPTH, of signpost `number`."""
    at = number * table[segment, SIGNPOST_DEPTH] + k
    if table[segment, WIDTH] == 2:
        return np.int64(carray(pointer(table[segment, SIGNPOSTS]), (1,), np.uint16)[at])
    return np.int64(carray(pointer(table[segment, SIGNPOSTS]), (1,), np.uint32)[at])


@compiled
def code_at_signpost(table, segment, number, k):
    """Code `k` of the suffix at signpost `number`, however deep."""
    if k < table[segment, SIGNPOST_DEPTH]:
        return signpost(table, segment, number, k)
    return code_at(table, segment, suffix_start(table, segment, number << table[segment, SIGNPOST_SPACING_BITS]) + k)


@compiled
def code_at_rank(table, segment, rank, offset):
    """The code `offset` places into the suffix at a rank."""
    bits = table[segment, SIGNPOST_SPACING_BITS]
    if offset < table[segment, SIGNPOST_DEPTH] and rank & ((1 << bits) - 1) == 0:
        return signpost(table, segment, rank >> bits, offset)
    return code_at(table, segment, suffix_start(table, segment, rank) + offset)


@compiled
def fetch_signpost(table, segment, rank):
    """Have the signpost at or before a rank on its way."""
    bits, width = table[segment, SIGNPOST_SPACING_BITS], table[segment, WIDTH]
    _prefetch(table[segment, SIGNPOSTS] + width * table[segment, SIGNPOST_DEPTH] * (rank >> bits))


@compiled
def fetch_rank(table, segment, rank):
    """Have the suffix array at a rank on its way."""
    _prefetch(table[segment, LOW] + 4 * rank)


@compiled
def fetch_place(base, width, place):
    """Have code `place` of those of `width` bytes that begin at an address on its way."""
    _prefetch(base + width * place)


@compiled
def fetch_code(table, segment, rank, offset):
    """Have the code `offset` places into the suffix at a rank on its way; waits for the suffix array."""
    _prefetch(table[segment, CODES] + table[segment, WIDTH] * (suffix_start(table, segment, rank) + offset))


@compiled
def fetch_ranks(table, segment, low, high):
    """Have the suffix array between two ranks on its way."""
    for rank in range(low, high, ENTRIES_A_LINE):
        _prefetch(table[segment, LOW] + 4 * rank)


@compiled
def fetch_codes(table, segment, low, high, stride, offset):
    """Have the codes `offset` places into the suffixes at ranks low, low + stride, ... below high on their way, together."""
    for rank in range(low, high, max(stride, ENTRIES_A_LINE)):
        _prefetch(table[segment, LOW] + 4 * rank)
    for rank in range(low, high, stride):
        fetch_code(table, segment, rank, offset)


@compiled
def fetch_halves(table, segment, left, middle, right, offset):
    """Have the codes on their way that halving [left, right) looks at after the one at `middle`, whichever way it goes."""
    fetch_codes(table, segment, (left + middle) >> 1, ((left + middle) >> 1) + 1, 1, offset)
    if middle + 1 < right:
        fetch_codes(table, segment, (middle + 1 + right) >> 1, ((middle + 1 + right) >> 1) + 1, 1, offset)


@compiled
def edge(table, segment, left, right, offset, code):
    """First rank in [left, right) whose code at `offset` is at least `code`, found by doubling from the left."""
    bits = table[segment, SIGNPOST_SPACING_BITS]
    spacing = np.int64(1) << bits
    step = np.int64(1)
    if offset < table[segment, SIGNPOST_DEPTH] and right - left > spacing:
        first, end = (left + spacing - 1) >> bits, (right + spacing - 1) >> bits
        while first < end:
            probe = min(first + step - 1, end - 1) if step > 0 else (first + end) >> 1
            if signpost(table, segment, probe, offset) < code:
                first = probe + 1
                left = (probe << bits) + 1
                step <<= 1
            else:
                end = probe
                right = probe << bits
                step = np.int64(0)
        # Between two signposts halving takes fewer steps than doubling.
        step = np.int64(0)
        fetch_ranks(table, segment, left, right)
    while left < right:
        probe = min(left + step - 1, right - 1) if step > 0 else (left + right) >> 1
        if step == 0:
            fetch_halves(table, segment, left, probe, right, offset)
        if code_at(table, segment, suffix_start(table, segment, probe) + offset) < code:
            left = probe + 1
            step <<= 1
        else:
            right = probe
            step = np.int64(0)
    return left
