"""Vectors: arrays as little-endian bytes with their dtype and length stated, and checked on arrival.

Two ways in and out: numpy for what may be long (prompts, prefixes), plain lists for a round's few dozen numbers, where
numpy's fixed cost a call would be most of a round's encoding.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from contracts.errors import InvalidArgument
from protos.draftproof.v1 import vector_pb2 as pb

UINT32 = pb.DTYPE_UINT32
INT32 = pb.DTYPE_INT32
UINT64 = pb.DTYPE_UINT64
FLOAT64 = pb.DTYPE_FLOAT64

_NUMPY: dict[int, np.dtype[Any]] = {
    UINT32: np.dtype("<u4"),
    INT32: np.dtype("<i4"),
    UINT64: np.dtype("<u8"),
    FLOAT64: np.dtype("<f8"),
}
_RANGE = {UINT32: (0, 2**32 - 1), INT32: (-(2**31), 2**31 - 1), UINT64: (0, 2**63 - 1)}
_CODES = {UINT32: "I", INT32: "i", UINT64: "q"}
_SHORT = 256


def encode_list(values: Sequence[int], dtype: pb.Dtype.ValueType, field: str) -> pb.Vector:
    """A few integers. Raises InvalidArgument naming `field` for anything that the dtype cannot hold."""
    low, high = _RANGE[dtype]
    try:
        data = struct.pack(f"<{len(values)}{_CODES[dtype]}", *values)
    except struct.error as error:
        raise InvalidArgument(field, f"must be integers within [{low}, {high}]") from error
    if dtype == UINT64 and values and min(values) < 0:
        raise InvalidArgument(field, f"must be integers within [{low}, {high}]")
    return pb.Vector(dtype=dtype, length=len(values), data=data)


def encode_ints(values: npt.ArrayLike, dtype: pb.Dtype.ValueType, field: str) -> pb.Vector:
    """One row of integers. Raises InvalidArgument naming `field` for anything that the dtype cannot hold."""
    array = np.asarray(values)
    if array.size == 0:
        return pb.Vector(dtype=dtype)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise InvalidArgument(field, "is one row of integers")
    if len(array) <= _SHORT:
        return encode_list(array.tolist(), dtype, field)
    low, high = _RANGE[dtype]
    if int(array.min()) < low or int(array.max()) > high:
        raise InvalidArgument(field, f"must be within [{low}, {high}]")
    return pb.Vector(dtype=dtype, length=len(array), data=array.astype(_NUMPY[dtype]).tobytes())


def encode_floats(values: Sequence[float]) -> pb.Vector:
    """One row of float64."""
    return pb.Vector(dtype=FLOAT64, length=len(values), data=struct.pack(f"<{len(values)}d", *values))


def _check(vector: pb.Vector, dtype: pb.Dtype.ValueType, field: str, limit: int, length: int | None) -> None:
    if vector.dtype != dtype and (vector.length or vector.data or vector.dtype):
        raise InvalidArgument(f"{field}.dtype", f"{_name(vector.dtype)}, expected {_name(dtype)}")
    if vector.length > limit:
        raise InvalidArgument(f"{field}.length", f"{vector.length} elements, at most {limit}")
    size = _NUMPY[dtype].itemsize
    if len(vector.data) != vector.length * size:
        raise InvalidArgument(
            f"{field}.data", f"{len(vector.data)} bytes, {vector.length} elements of {size} announced"
        )
    if length is not None and vector.length != length:
        raise InvalidArgument(f"{field}.length", f"{vector.length} elements, expected {length}")


def _name(dtype: int) -> str:
    known = pb.Dtype.DESCRIPTOR.values_by_number.get(dtype)
    return known.name if known else f"dtype {dtype}"


def decode_list(
    vector: pb.Vector,
    dtype: pb.Dtype.ValueType,
    field: str,
    *,
    limit: int,
    length: int | None = None,
    below: int | None = None,
) -> list[int]:
    """The elements. `length`: the exact length wanted; `below`: all elements are within [0, below)."""
    _check(vector, dtype, field, limit, length)
    out = list(struct.unpack(f"<{vector.length}{_CODES[dtype]}", vector.data))
    if out and dtype == UINT64 and min(out) < 0:
        raise InvalidArgument(field, f"must be within [0, {_RANGE[UINT64][1]}]")
    if out and below is not None and not 0 <= min(out) <= max(out) < below:
        raise InvalidArgument(field, f"must be within [0, {below})")
    return out


def decode_ints(
    vector: pb.Vector, dtype: pb.Dtype.ValueType, field: str, *, limit: int, length: int | None = None
) -> npt.NDArray[np.int64]:
    """int64 [n]. `length`: the exact length wanted."""
    _check(vector, dtype, field, limit, length)
    out = np.frombuffer(vector.data, dtype=_NUMPY[dtype]).astype(np.int64)
    # What does not fit int64 has wrapped around to below zero.
    if dtype == UINT64 and len(out) and int(out.min()) < 0:
        raise InvalidArgument(field, f"must be within [0, {_RANGE[UINT64][1]}]")
    return out


def decode_floats(vector: pb.Vector, field: str, *, limit: int, length: int | None = None) -> list[float]:
    """The elements; infinities and NaN are refused."""
    _check(vector, FLOAT64, field, limit, length)
    out = list(struct.unpack(f"<{vector.length}d", vector.data))
    if not all(map(math.isfinite, out)):
        raise InvalidArgument(field, "must be finite")
    return out
