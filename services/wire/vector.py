"""Vectors: arrays as little-endian bytes with their dtype and length stated, and checked on arrival."""

from __future__ import annotations

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


def encode_ints(values: npt.ArrayLike, dtype: pb.Dtype.ValueType, field: str) -> pb.Vector:
    """One row of integers. Raises InvalidArgument naming `field` for anything that the dtype cannot hold."""
    array = np.asarray(values)
    if array.size == 0:
        return pb.Vector(dtype=dtype)
    low, high = _RANGE[dtype]
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise InvalidArgument(field, "is one row of integers")
    if int(array.min()) < low or int(array.max()) > high:
        raise InvalidArgument(field, f"must be within [{low}, {high}]")
    return pb.Vector(dtype=dtype, length=len(array), data=array.astype(_NUMPY[dtype]).tobytes())


def encode_floats(values: npt.ArrayLike) -> pb.Vector:
    """One row of float64."""
    array = np.asarray(values, dtype=_NUMPY[FLOAT64])
    return pb.Vector(dtype=FLOAT64, length=len(array), data=array.tobytes())


def _decode(vector: pb.Vector, dtype: pb.Dtype.ValueType, field: str, limit: int) -> npt.NDArray[Any]:
    if vector.dtype != dtype and (vector.length or vector.data or vector.dtype):
        raise InvalidArgument(f"{field}.dtype", f"{_name(vector.dtype)}, expected {_name(dtype)}")
    if vector.length > limit:
        raise InvalidArgument(f"{field}.length", f"{vector.length} elements, at most {limit}")
    numpy_dtype = _NUMPY[dtype]
    if len(vector.data) != vector.length * numpy_dtype.itemsize:
        raise InvalidArgument(
            f"{field}.data", f"{len(vector.data)} bytes, {vector.length} elements of {numpy_dtype.itemsize} announced"
        )
    return np.frombuffer(vector.data, dtype=numpy_dtype)


def _name(dtype: int) -> str:
    known = pb.Dtype.DESCRIPTOR.values_by_number.get(dtype)
    return known.name if known else f"dtype {dtype}"


def decode_ints(
    vector: pb.Vector,
    dtype: pb.Dtype.ValueType,
    field: str,
    *,
    limit: int,
    length: int | None = None,
    low: int | None = None,
    below: int | None = None,
) -> npt.NDArray[np.int64]:
    """int64 [n]. `length`: the exact length wanted; `low`, `below`: bounds of the elements."""
    raw = _decode(vector, dtype, field, limit)
    if length is not None and len(raw) != length:
        raise InvalidArgument(f"{field}.length", f"{len(raw)} elements, expected {length}")
    if not len(raw):
        return np.zeros(0, dtype=np.int64)
    if dtype == UINT64 and int(raw.max()) > _RANGE[UINT64][1]:
        raise InvalidArgument(field, f"must be within [0, {_RANGE[UINT64][1]}]")
    out = raw.astype(np.int64)
    if (low is not None and int(out.min()) < low) or (below is not None and int(out.max()) >= below):
        raise InvalidArgument(field, f"must be within [{low}, {below})")
    return out


def decode_floats(vector: pb.Vector, field: str, *, limit: int, length: int | None = None) -> npt.NDArray[np.float64]:
    """float64 [n]; infinities and NaN are refused."""
    raw = _decode(vector, FLOAT64, field, limit)
    if length is not None and len(raw) != length:
        raise InvalidArgument(f"{field}.length", f"{len(raw)} elements, expected {length}")
    if not np.all(np.isfinite(raw)):
        raise InvalidArgument(field, "must be finite")
    return raw.astype(np.float64)
