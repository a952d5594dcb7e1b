"""Hidden rows on the wire: a tensor a tap, its dtype and shape stated and checked, its bytes taken as they are."""

from __future__ import annotations

import numpy as np

from contracts.errors import InvalidArgument
from contracts.hidden import HiddenRows, Rows
from protos.draftproof.v1 import hidden_pb2 as pb
from protos.draftproof.v1 import vector_pb2
from services.wire.scalars import within

MAX_TAPS = 64
MAX_WIDTH = 1 << 20
MAX_POSITION = 1 << 40
FLOAT32 = vector_pb2.DTYPE_FLOAT32
_NUMPY = np.dtype("<f4")


def encode_hidden(hidden: HiddenRows | None) -> pb.HiddenRows | None:
    """None for none."""
    if hidden is None:
        return None
    return pb.HiddenRows(
        start=hidden.start,
        base=hidden.base,
        taps=[
            pb.HiddenTap(
                name=tap,
                rows=vector_pb2.Tensor(dtype=FLOAT32, shape=rows.shape, data=rows.astype(_NUMPY, copy=False).tobytes()),
            )
            for tap, rows in hidden.taps.items()
        ],
    )


def decode_hidden(message: pb.HiddenRows, field: str) -> HiddenRows:
    """Read-only views of the message's bytes. Raises InvalidArgument naming the field."""
    if not 1 <= len(message.taps) <= MAX_TAPS:
        raise InvalidArgument(f"{field}.taps", f"{len(message.taps)} taps, 1 to {MAX_TAPS} allowed")
    taps = {tap.name: _decode_rows(tap.rows, f"{field}.taps[{tap.name!r}]") for tap in message.taps}
    if len(taps) != len(message.taps):
        raise InvalidArgument(f"{field}.taps", "names a tap twice")
    if len({len(rows) for rows in taps.values()}) != 1:
        raise InvalidArgument(f"{field}.taps", "have unequal numbers of rows")
    start = within(message.start, f"{field}.start", 0, MAX_POSITION)
    return HiddenRows(start, taps, within(message.base, f"{field}.base", 0, start))


def _decode_rows(tensor: vector_pb2.Tensor, field: str) -> Rows:
    if tensor.dtype != FLOAT32:
        raise InvalidArgument(f"{field}.dtype", f"dtype {tensor.dtype}, expected DTYPE_FLOAT32")
    shape = tuple(tensor.shape)
    if len(shape) != 2 or not 1 <= shape[1] <= MAX_WIDTH:
        raise InvalidArgument(f"{field}.shape", f"{shape}, expected [rows, 1 to {MAX_WIDTH}]")
    if len(tensor.data) != shape[0] * shape[1] * _NUMPY.itemsize:
        raise InvalidArgument(f"{field}.data", f"{len(tensor.data)} bytes, announced as float32 {list(shape)}")
    return np.frombuffer(tensor.data, dtype=_NUMPY).reshape(shape)
