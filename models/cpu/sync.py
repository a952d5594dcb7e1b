"""How the threads of a pass share its work: units are claimed one by one, and a phase ends when all units are done.

Each thread has a contiguous share of a phase's units and claims from the others' shares when its own is used up. So what
a thread asks of memory in advance is what it reads next, and counters are fought over at a phase's end only.

No thread is waited for, only units are: one that starts late, because the GIL or the scheduler held it, finds earlier
phases finished and joins where the others are; one that never starts costs speed and nothing else.
"""

from __future__ import annotations

import platform
from typing import Any

from llvmlite import ir

from models.cpu.jit import I32, I64, VOID, declare, jit, link

# One counter a cache line pair, so that threads do not fight over lines they do not share.
COUNTER_STRIDE = 16
_SPINS_BEFORE_YIELD = 4000


@declare
def _fetch_add(_context: Any, place: Any, amount: Any) -> Any:
    return link("dp_fetch_add", I64, (I64, I64), _build_fetch_add)


@declare
def _await(_context: Any, place: Any, target: Any) -> Any:
    return link("dp_await", VOID, (I64, I64), _build_await)


@jit
def claim(counters, phases, phase, units, thread, threads):  # type: ignore[no-untyped-def]
    """An unclaimed unit of a phase, or -1 when all are claimed.

    counters: address of zeroed int64 [1 + threads, phases, 16], shared by all: units done, then units claimed of each
    thread's share.
    """
    for turn in range(threads):
        owner = (thread + turn) % threads
        first, last = units * owner // threads, units * (owner + 1) // threads
        if first < last:
            unit = first + _fetch_add(counters + 8 * ((1 + owner) * phases + phase) * COUNTER_STRIDE, 1)
            if unit < last:
                return unit
    return -1


@jit
def finish(counters, phase, done):  # type: ignore[no-untyped-def]
    """Count `done` units as done; what they wrote is visible to whoever waits for the phase."""
    if done > 0:
        _fetch_add(counters + 8 * phase * COUNTER_STRIDE, done)


@jit
def wait(counters, phase, units):  # type: ignore[no-untyped-def]
    """Return when `units` units of the phase are done."""
    _await(counters + 8 * phase * COUNTER_STRIDE, units)


def _build_fetch_add(builder: ir.IRBuilder, place: Any, amount: Any) -> None:
    pointer = builder.inttoptr(place, I64.as_pointer())
    builder.ret(builder.atomic_rmw("add", pointer, amount, "seq_cst"))


def _build_await(builder: ir.IRBuilder, place: Any, target: Any) -> None:
    """Spin a few microseconds, then give the core away between looks: on a busy machine the unit's owner needs it."""
    pointer = builder.inttoptr(place, I64.as_pointer())
    yield_type = ir.FunctionType(I32, [])
    give_way = builder.module.globals.get("sched_yield") or ir.Function(builder.module, yield_type, "sched_yield")
    entry = builder.block
    head, look, rest, end = (builder.append_basic_block(name) for name in ("head", "look", "rest", "end"))
    builder.branch(head)
    builder.position_at_end(head)
    spins = builder.phi(I64)
    spins.add_incoming(I64(0), entry)
    done = builder.load_atomic(pointer, "acquire", 8)
    builder.cbranch(builder.icmp_signed(">=", done, target), end, look)
    builder.position_at_end(look)
    if platform.machine() in ("x86_64", "AMD64"):
        pause = "llvm.x86.sse2.pause"
        builder.call(
            builder.module.globals.get(pause) or ir.Function(builder.module, ir.FunctionType(VOID, []), pause), []
        )
    more = builder.add(spins, I64(1))
    spins.add_incoming(more, look)
    builder.cbranch(builder.icmp_signed(">", more, I64(_SPINS_BEFORE_YIELD)), rest, head)
    builder.position_at_end(rest)
    builder.call(give_way, [])
    spins.add_incoming(more, rest)
    builder.branch(head)
    builder.position_at_end(end)
    builder.ret_void()
