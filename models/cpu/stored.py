"""Records that lie in memory, eight bytes a field, and compiled code that reads and writes them there.

A record that comes in from Python is taken apart number by number, each an object of its own: where a target pass has
emptied the caches, that takes longer than all that is done with them.
"""

from __future__ import annotations

from typing import Any, get_type_hints

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
    return np.array([_bits(value) for value in record], np.int64)


def _bits(value: int | np.integer[Any] | float | np.float32) -> int:
    return int(value) if isinstance(value, int | np.integer) else int(np.float32(value).view(np.int32))


def reader(record: Any) -> tuple[Any, Any]:
    """Signature and code of reading a record of that NamedTuple's kind from an address."""
    hints = get_type_hints(record)
    held = [F32 if hints[name] is np.float32 else I64 for name in record._fields]
    made = _numba.NamedTuple([_numba.float32 if part is F32 else _numba.int64 for part in held], record)

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
    return reader(Model)


@declare
def work_at(_context: Any, place: Any) -> Any:
    """The record of a pass at an address."""
    return reader(Work)


@declare
def given_at(_context: Any, place: Any) -> Any:
    """What a pass is prepared from, at an address."""
    return reader(Given)


@declare
def put_work(_context: Any, place: Any, work: Any) -> Any:
    """Store the record of a pass at an address."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, values: Any) -> Any:
        for index, kind in enumerate(signature.args[1]):
            value = context.cast(builder, builder.extract_value(values[1], index), kind, _numba.int64)
            builder.store(value, builder.inttoptr(builder.add(values[0], I64(8 * index)), I64.as_pointer()), align=8)

    return _numba.void(_numba.int64, work), codegen
