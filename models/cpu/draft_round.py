"""A head's round behind one number: its records lie in a block of memory, and the rows of level 0 are made in compiled code.

numba takes records apart field by field at each call from Python, a hundred fields a thread; and what numpy does to the few
rows of a round costs what its calls cost. So a block is laid out once (models/cpu/draft_block.py), each round copies it and
writes what is its own, and whichever thread comes first gathers the rows, while the others wake up.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from models.cpu.draft_growth import LEVEL_FIELDS, LEVEL_PHASES, Growth, grow
from models.cpu.draft_level import Level
from models.cpu.heads import copy
from models.cpu.jit import declare, get, get_half, get_int, jit, jit_entry, put, put_int
from models.cpu.records import Model, Work
from models.cpu.stored import model_at, reader, work_at
from models.cpu.sync import COUNTER_STRIDE, claim, finish, wait

# Partial sums of a row's squares.
_LANES, _STEP = 4, 16


class First(NamedTuple):
    """What level 0 is made of. Arrays as in models.cpu.records."""

    embedding: int  # [target's vocabulary, hidden], float32 or the bits of bf16
    halves: int  # 1 for bf16
    arena: int  # of the keys and values
    page_bytes: int
    rows: int  # this and what follows is a round's own
    table: int  # int64, the slot's pages
    pages: int  # as many of them as the round reads or writes
    taps: int  # rows of the target's that each row is fused from; 0: what is fused is in place
    given: int  # int64 [taps], where each tap's [rows, hidden] begin, then [rows], the tokens behind them


# Where the records of a block lie, in fields; then `First.given`, and what is zero when a round begins.
MODEL_AT = 0
WORK_AT = MODEL_AT + len(Model._fields)
LEVEL_AT = WORK_AT + len(Work._fields)
GROWTH_AT = LEVEL_AT + len(Level._fields)
FIRST_AT = GROWTH_AT + len(Growth._fields)
GIVEN_AT = FIRST_AT + len(First._fields)


@declare
def _level_at(_context: Any, place: Any) -> Any:
    return reader(Level)


@declare
def _growth_at(_context: Any, place: Any) -> Any:
    return reader(Growth)


@declare
def _first_at(_context: Any, place: Any) -> Any:
    return reader(First)


@jit_entry
def grow_at(place, thread, threads):  # type: ignore[no-untyped-def]
    """One thread's part of the round whose block lies there; the number of its nodes. The tree is complete when any thread
    returns."""
    model, work, level = model_at(place + 8 * MODEL_AT), work_at(place + 8 * WORK_AT), _level_at(place + 8 * LEVEL_AT)
    growth, first = _growth_at(place + 8 * GROWTH_AT), _first_at(place + 8 * FIRST_AT)
    # Level 0's choice is the last phase of its counters; those of a level past the last are the beginning's.
    begun = growth.counters + 8 * COUNTER_STRIDE * LEVEL_PHASES * (1 + threads) * growth.depth
    done = 0
    if claim(begun, 1, 0, 1, thread, threads) >= 0:
        _begin(model, work, level, growth, first)
        done = 1
    finish(begun, 0, done)
    wait(begun, 0, 1)
    grow(model, work, level, growth, thread, threads)
    ranked = 0
    for index in range(growth.depth):
        ranked += get_int(growth.levels + 8 * (LEVEL_FIELDS * index + 2))
    return ranked * growth.width


@jit
def _begin(model, work, level, growth, first):  # type: ignore[no-untyped-def]
    """Inputs, positions and paths of level 0's rows, each of which follows the one before, and the slot's."""
    rows, half = first.rows, model.head_dim // 2
    put_int(work.lengths, growth.length)
    put_int(work.stored, growth.length + rows)
    for page in range(first.pages):
        put_int(work.pages + 8 * page, first.arena + first.page_bytes * get_int(first.table + 8 * page))
    start = 0
    put_int(growth.path_start, start)
    for row in range(rows):
        if first.taps > 0:
            _fuse(model, level, first, row)
        position = growth.start + growth.length + row
        copy(growth.cos + 4 * half * position, work.cos + 4 * half * row, half)
        copy(growth.sin + 4 * half * position, work.sin + 4 * half * row, half)
        put_int(work.row_index + 8 * row, growth.length + row)
        for above in range(row + 1):
            put_int(growth.paths + 8 * (start + above), above)
        start += row + 1
        put_int(growth.path_start + 8 * (row + 1), start)
    put_int(work.wanted, rows - 1)
    groups = (rows + growth.group_rows - 1) // growth.group_rows
    for group in range(groups):
        put_int(work.groups + 24 * group, rows * group // groups)
        put_int(work.groups + 24 * group + 8, rows * (group + 1) // groups)
        put_int(work.groups + 24 * group + 16, 0)
    put_int(growth.row_nodes, -1)
    put_int(growth.levels, rows)
    put_int(growth.levels + 8, groups)
    put_int(growth.levels + 16, 1)


@jit
def _fuse(model, level, first, row):  # type: ignore[no-untyped-def]
    """What a row is fused from: the target's rows and its token's embedding, each divided by its root mean square."""
    hidden = model.hidden
    for part in range(first.taps + 1):
        target = level.fused + 4 * (row * level.fused_stride + part * hidden)
        if part < first.taps:
            copy(get_int(first.given + 8 * part) + 4 * hidden * row, target, hidden)
        else:
            token = get_int(first.given + 8 * (part + row))
            if first.halves:
                source = first.embedding + 2 * hidden * token
                for i in range(hidden):
                    put(target + 4 * i, get_half(source + 2 * i))
            else:
                copy(first.embedding + 4 * hidden * token, target, hidden)
        mean = _square_sum(target, hidden) / np.float32(hidden)
        factor = np.float32(1.0) / np.sqrt(mean + model.eps)
        for i in range(hidden):
            put(target + 4 * i, get(target + 4 * i) * factor)


@jit
def _square_sum(row, count):  # type: ignore[no-untyped-def]
    """As numpy's einsum adds squares up on x86: rows that were run ahead, fused by numpy, have the same bits."""
    a = b = c = d = np.float32(0.0)
    whole = count // _STEP * _STEP
    for step in range(0, whole, _STEP):
        for turn in range(_STEP // _LANES):
            place = row + 4 * (step + _STEP - _LANES * (1 + turn))
            a += get(place) * get(place)
            b += get(place + 4) * get(place + 4)
            c += get(place + 8) * get(place + 8)
            d += get(place + 12) * get(place + 12)
    for i in range(whole, count):
        square = get(row + 4 * i) * get(row + 4 * i)
        lane = i % _LANES
        if lane == 0:
            a += square
        elif lane == 1:
            b += square
        elif lane == 2:
            c += square
        else:
            d += square
    return (a + b) + (c + d)
