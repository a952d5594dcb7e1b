"""Records that lie in memory, eight bytes a field, and compiled code that reads and writes them there.

A record that comes in from Python is taken apart number by number, each an object of its own: where a target pass has
emptied the caches, that takes longer than all that is done with them.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba.core import types

from models.cpu.jit import F32, I64, declare
from models.cpu.records import Given, Model, Work

# numba's annotations do not know all of its types.
_numba: Any = types


def in_memory(record: tuple[Any, ...]) -> npt.NDArray[np.int64]:
    """The record as compiled code reads it; a float32 lies in the lower half of its field."""
    return np.array([_bits(value) if isinstance(value, np.float32) else value for value in record], np.int64)


def _bits(value: np.float32) -> int:
    return int(struct.unpack("<i", struct.pack("<f", value))[0])


def _reader(kind: type[tuple[Any, ...]], fields: Sequence[str], floats: Sequence[str] = ()) -> Any:
    """Code that reads a record of that kind, all int64 but `floats`."""
    held = [F32 if name in floats else I64 for name in fields]
    made = _numba.BaseTuple.from_types([_numba.float32 if part is F32 else _numba.int64 for part in held], kind)

    def codegen(context: Any, builder: ir.IRBuilder, _signature: Any, values: Any) -> Any:
        read = [
            builder.load(builder.inttoptr(builder.add(values[0], I64(8 * index)), part.as_pointer()), align=4)
            for index, part in enumerate(held)
        ]
        return context.make_tuple(builder, made, read)

    return made(_numba.int64), codegen


@declare
def model_at(_context: Any, place: Any) -> Any:
    """The model's record at an address."""
    return _reader(Model, Model._fields, ("eps", "scale"))


@declare
def work_at(_context: Any, place: Any) -> Any:
    """The record of a pass at an address."""
    return _reader(Work, Work._fields)


@declare
def given_at(_context: Any, place: Any) -> Any:
    """What a pass is prepared from, at an address."""
    return _reader(Given, Given._fields)


@declare
def put_work(_context: Any, place: Any, work: Any) -> Any:
    """Store the record of a pass at an address."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, values: Any) -> Any:
        for index, kind in enumerate(signature.args[1]):
            value = context.cast(builder, builder.extract_value(values[1], index), kind, _numba.int64)
            builder.store(value, builder.inttoptr(builder.add(values[0], I64(8 * index)), I64.as_pointer()), align=8)

    return _numba.void(_numba.int64, work), codegen
