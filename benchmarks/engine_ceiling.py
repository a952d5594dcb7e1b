"""How many products a second the cores can form at all: multiply-adds on registers alone, nothing read, all cores at once.

Beside a pass it says what part of its time no order of reading could save: 16 rows are 16 products a weight.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from llvmlite import ir

from models.cpu.jit import I64, LANES, VECTOR, VOID, declare, jit_entry, link, vector_intrinsic
from models.cpu.tile_parts import loop

# Chains of products that hide each other's latency; more would not leave registers for the factors.
_CHAINS = 12
_TURNS = 4_000_000


@declare
def _multiply_add(_context: Any, turns: Any, place: Any) -> Any:
    return link("dp_bench_multiply_add", VOID, (I64, I64), _build)


@jit_entry
def _run(turns, place):  # type: ignore[no-untyped-def]
    _multiply_add(turns, place)


def _build(builder: ir.IRBuilder, turns: Any, place: Any) -> None:
    """Every chain is multiplied by the first vector there and added to by the second, `turns` times; the sum of all is left
    in the third, so that none can be left out."""
    fma = vector_intrinsic(builder.module, "fma", 3)
    here = builder.inttoptr(place, VECTOR.as_pointer())
    factor, term = (builder.load(builder.gep(here, [I64(index)]), align=4) for index in (0, 1))
    started = [
        builder.fadd(term, ir.Constant(VECTOR, [float(chain + 1)] * LANES), flags=()) for chain in range(_CHAINS)
    ]
    sums = loop(
        builder, I64(0), turns, 1, started, lambda _, chains: [builder.call(fma, [x, factor, term]) for x in chains]
    )
    total = sums[0]
    for value in sums[1:]:
        total = builder.fadd(total, value)
    builder.store(total, builder.gep(here, [I64(2)]), align=4)
    builder.ret_void()


class Ceiling:
    """Multiplies on `cores` threads at once."""

    def __init__(self, cores: int) -> None:
        self._places = [np.tile(np.array([0.5, 1.0, 0.0], np.float32)[:, None], (1, LANES)) for _ in range(cores)]
        self._pool = ThreadPoolExecutor(cores)
        _run(1, self._places[0].ctypes.data)

    def products_per_s(self) -> float:
        """Multiply-adds of single numbers, over all cores."""
        started = time.perf_counter()
        list(self._pool.map(lambda place: _run(_TURNS, place.ctypes.data), self._places))
        took = time.perf_counter() - started
        for place in self._places:
            if not np.allclose(place[2], 2.0 * _CHAINS):
                raise RuntimeError("the chains did not settle at term / (1 - factor)")
        return len(self._places) * _TURNS * _CHAINS * LANES / took
