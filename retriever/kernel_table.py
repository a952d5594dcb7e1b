"""How compiled code reads segments, and how it is compiled.

A segment set reaches the kernels as a table, int64 [S, COLUMNS], of addresses and sizes, so that one compilation serves
any number of segments of any width. Whoever passes a table keeps the arrays behind it alive (`query.SegmentSet` does),
and only checked segments get into one: nothing here looks at bounds.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, call-arg, attr-defined"

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
from numba import carray, njit, types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

(
    CODES, WIDTH, LOW, HIGH, ENTRIES, ALPHABET, ALPHABET_SIZE, MAX_TOKEN,
    SIGNPOSTS, SIGNPOST_COUNT, SIGNPOST_SPACING_BITS, SIGNPOST_DEPTH, FINE_SHARES, COARSE_SHARES, COLUMNS,
) = range(15)  # fmt: skip
ABOVE_ALL = np.int64(1 << 62)
# Of each 16-bit lane.
LOW_BITS, HIGH_BITS = np.uint64(0x0001000100010001), np.uint64(0x8000800080008000)


def put_arrays(
    row: NDArray[np.int64],
    codes: NDArray[np.generic],
    offsets_low: NDArray[np.uint32],
    offsets_high: NDArray[np.uint8],
) -> None:
    """Write a segment's codes and suffix array (`segment.Segment`) into its row of a table."""
    row[CODES], row[WIDTH] = codes.ctypes.data, codes.itemsize
    row[LOW] = offsets_low.ctypes.data
    row[HIGH] = offsets_high.ctypes.data if offsets_high.size else 0
    row[ENTRIES] = offsets_low.shape[0]


def _kernel_sources() -> str:
    here = Path(__file__).parent
    return hashlib.sha256(b"".join(path.read_bytes() for path in sorted(here.glob("kernel_*.py")))).hexdigest()


KERNEL_SOURCES = _kernel_sources()


def compiled(function: Any) -> Any:
    """numba.njit, without the GIL, cached on disk where there is a writable place for that.

    numba's cache looks at the file of the function alone, so a kernel would keep the old code of a callee that changed in
    another file. The stamp is therefore put to the content of all kernels. (It has no public setter; a test watches it.)
    """
    try:
        dispatcher = njit(nogil=True, cache=True)(function)
    except RuntimeError:
        return njit(nogil=True)(function)
    dispatcher._cache._cache_file._source_stamp = KERNEL_SOURCES
    return dispatcher


@intrinsic
def pointer(typing_context: Any, address: Any) -> Any:
    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(address), build


@intrinsic
def trailing_zeros(typing_context: Any, number: Any) -> Any:
    """How many of the lowest bits of a uint64 other than 0 are 0."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], cgutils.true_bit)

    return types.int64(types.uint64), build


@compiled
def code_from(base, width, place):
    """Code `place` of those of `width` bytes that begin at an address."""
    if width == 2:
        return np.int64(carray(pointer(base), (1,), np.uint16)[place])
    return np.int64(carray(pointer(base), (1,), np.uint32)[place])


@compiled
def code_at(table, segment, position):
    return code_from(table[segment, CODES], table[segment, WIDTH], position)


@compiled
def shared_from(table, segment, one, other, k, most):
    """Codes that the suffixes at two positions share in one document, up to `most`; `k` of them are known to.

    Eight bytes at a time: the lowest lane of `differs` that is not 0 is the first where the codes differ or end a document.
    """
    base, width = table[segment, CODES], table[segment, WIDTH]
    if width == 2:
        # There are more codes than entries, so no eight bytes reach beyond them.
        safe = table[segment, ENTRIES] - max(one, other) - 4
        while k < most and k <= safe:
            codes = carray(pointer(base + 2 * (one + k)), (1,), np.uint64)[0]
            others = carray(pointer(base + 2 * (other + k)), (1,), np.uint64)[0]
            differs = (codes ^ others) | ((codes - LOW_BITS) & ~codes & HIGH_BITS)
            if differs != 0:
                return min(most, k + (trailing_zeros(differs) >> 4))
            k += 4
    while k < most:
        code = code_from(base, width, one + k)
        if code == 0 or code != code_from(base, width, other + k):
            break
        k += 1
    return min(most, k)


@compiled
def suffix_start(table, segment, rank):
    low = np.int64(carray(pointer(table[segment, LOW]), (1,), np.uint32)[rank])
    if table[segment, HIGH] == 0:
        return low
    return low | (np.int64(carray(pointer(table[segment, HIGH]), (1,), np.uint8)[rank]) << 32)


@compiled
def token_of(table, segment, code):
    if table[segment, ALPHABET] == 0:
        return code - 1
    return np.int64(carray(pointer(table[segment, ALPHABET]), (1,), np.uint32)[code - 1])


@compiled
def code_of(table, segment, token):
    """The code of a token id, 0 where the segment cannot hold it."""
    if token > table[segment, MAX_TOKEN]:
        return np.int64(0)
    if table[segment, ALPHABET] == 0:
        return token + 1
    alphabet = carray(pointer(table[segment, ALPHABET]), (1,), np.uint32)
    left, right = np.int64(0), table[segment, ALPHABET_SIZE]
    while left < right:
        middle = (left + right) >> 1
        if np.int64(alphabet[middle]) < token:
            left = middle + 1
        else:
            right = middle
    if left < table[segment, ALPHABET_SIZE] and np.int64(alphabet[left]) == token:
        return left + 1
    return np.int64(0)
