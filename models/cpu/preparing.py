"""A pass made ready by compiled code: its record and tables filled from plain lists, its first layer's inputs put in place.

Done with numpy and lists, this was the longest part of a small pass outside the kernels: a pass leaves nothing of the
interpreter in the caches for the next one.
"""

from __future__ import annotations

import numpy as np

from models.cpu.heads import copy
from models.cpu.jit import get_half, get_int, jit, jit_entry, put, put_int
from models.cpu.records import Given, Work
from models.cpu.run import run
from models.cpu.stored import given_at, model_at, put_work, work_at
from models.cpu.tile import MAX_TILE_ROWS

# Query rows that share a sweep over the keys: two full tiles keep a group's scores within the first-level cache.
QUERIES_PER_GROUP = 2 * MAX_TILE_ROWS
_UNITS_PER_THREAD = 2
# Of each block in the lists: rows, committed rows, rows staged before, pages, rows whose logits are wanted, and the
# address of its rows' inputs, float32 [rows, hidden], 0 for the tokens' embeddings.
BLOCK_FIELDS = 6
WORK_FIELDS, GIVEN_FIELDS = len(Work._fields), len(Given._fields)


@jit_entry
def run_at(model, work, thread, threads):  # type: ignore[no-untyped-def]
    """As `run`, for records at addresses."""
    run(model_at(model), work_at(work), thread, threads)


@jit_entry
def prepare(place, memory, start, logits, taps):  # type: ignore[no-untyped-def]
    """Prepares a pass; the address of its record.

    place: the model's record. memory: int64, zeroed counters up to `start`, then the record's place, `Given`, its lists and
    room for the tables. The lists, one after another: BLOCK_FIELDS numbers a block; tokens; positions; parents of all
    staged rows, block by block; wanted rows of each block; tapped layers; pages, block by block. logits: float32 [wanted,
    padded vocabulary]. taps: float32 [taps, rows, padded hidden], the final norm's rows behind them where they are read.
    """
    model = model_at(place)
    counters = _address(memory)
    work = counters + 8 * start
    given = given_at(work + 8 * WORK_FIELDS)
    blocks = work + 8 * (WORK_FIELDS + GIVEN_FIELDS)
    tokens = blocks + 8 * BLOCK_FIELDS * given.blocks
    positions = tokens + 8 * given.rows
    parents = positions + 8 * given.rows
    wanted = parents
    for block in range(given.blocks):
        wanted += 8 * (get_int(blocks + 8 * BLOCK_FIELDS * block) + get_int(blocks + 8 * (BLOCK_FIELDS * block + 2)))
    layers = wanted + 8 * given.wanted_count
    pages = layers + 8 * given.tap_count
    row_block = blocks + 8 * given.listed
    row_index = row_block + 8 * given.rows
    lengths = row_index + 8 * given.rows
    stored = lengths + 8 * given.blocks
    page_start = stored + 8 * given.blocks
    groups = page_start + 8 * given.blocks
    path_start = groups + 24 * given.rows
    paths = path_start + 8 * (given.rows + 1)
    group_count, lines = _fill_tables(
        model, given, blocks, positions, parents, wanted, pages, row_block, lengths, groups, path_start
    )
    _fill_rows(model, given, blocks, tokens, positions)
    tapped = _address(taps)
    normed = given.normed
    if given.outputs:
        normed = tapped + 4 * given.tap_count * given.rows * model.hidden_stride
    record = Work(
        given.rows,
        given.x,
        normed,
        given.qkv,
        given.query,
        given.mixed,
        given.inner,
        given.cos,
        given.sin,
        row_block,
        row_index,
        lengths,
        stored,
        pages,
        page_start,
        path_start,
        paths,
        groups,
        group_count,
        given.scores,
        given.score_stride,
        lines,
        given.out,
        given.gates,
        given.tap_count,
        layers,
        tapped,
        given.kv_only,
        given.wanted_count,
        wanted,
        given.picked,
        _address(logits),
        counters,
        given.phases,
    )
    put_work(work, record)
    return work


@jit
def _address(array):  # type: ignore[no-untyped-def]
    return np.int64(array.ctypes.data)


@jit
def _fill_tables(model, given, blocks, positions, parents, wanted, pages, row_block, lengths, groups, path_start):  # type: ignore[no-untyped-def]
    """All tables, which follow each other in memory; wanted rows become rows of the pass, and pages addresses. Returns the
    number of groups and the lines of the largest."""
    row_index = row_block + 8 * given.rows
    stored, page_start = lengths + 8 * given.blocks, lengths + 16 * given.blocks
    paths = path_start + 8 * (given.rows + 1)
    group_count, lines, row, page = np.int64(0), np.int64(0), np.int64(0), np.int64(0)
    for block in range(given.blocks):
        fields = blocks + 8 * BLOCK_FIELDS * block
        count, length, before = get_int(fields), get_int(fields + 8), get_int(fields + 16)
        put_int(lengths + 8 * block, length)
        put_int(stored + 8 * block, length + before + count)
        put_int(page_start + 8 * block, page)
        for _ in range(get_int(fields + 24)):
            put_int(pages + 8 * page, given.storage + given.page_bytes * get_int(pages + 8 * page))
            page += 1
        for _ in range(get_int(fields + 32)):
            put_int(wanted, row + get_int(wanted))
            wanted += 8
        for index in range(count):
            put_int(row_block + 8 * (row + index), block)
            put_int(row_index + 8 * (row + index), length + before + index)
            begin = get_int(path_start + 8 * (row + index))
            # A row stands as many positions behind the committed ones as it has ancestors among the staged.
            end = begin + get_int(positions + 8 * (row + index)) - length + 1
            put_int(path_start + 8 * (row + index + 1), end)
            ancestor = before + index
            while end > begin:
                end -= 1
                put_int(paths + 8 * end, ancestor)
                ancestor = get_int(parents + 8 * ancestor)
        made, longest = _cut(model, given, row, count, groups + 24 * group_count, path_start)
        group_count += made
        lines = max(lines, longest)
        parents += 8 * (before + count)
        row += count
    return group_count, lines * (model.heads // model.kv_heads)


@jit
def _cut(model, given, row, count, groups, path_start):  # type: ignore[no-untyped-def]
    """Groups of one block: first and last + 1 row of each, and how many entries the paths of its rows begin with in common.
    Returns how many, and the rows of the largest.

    Blocks are cut evenly: as finely as their scores' size asks, and into two units of work a thread where rows allow.
    """
    most = max(1, QUERIES_PER_GROUP * model.kv_heads // model.heads)
    share = model.kv_heads * given.blocks
    least = (_UNITS_PER_THREAD * given.threads + share - 1) // share
    number = max((count + most - 1) // most, min(count, least))
    longest = np.int64(0)
    for index in range(number):
        first, last = row + count * index // number, row + count * (index + 1) // number
        put_int(groups + 24 * index, first)
        put_int(groups + 24 * index + 8, last)
        put_int(groups + 24 * index + 16, _shared(path_start, path_start + 8 * (given.rows + 1), first, last))
        longest = max(longest, last - first)
    return number, longest


@jit
def _shared(path_start, paths, first, last):  # type: ignore[no-untyped-def]
    """How many entries the paths of rows [first, last) begin with in common."""
    own = paths + 8 * get_int(path_start + 8 * first)
    shared = get_int(path_start + 8 * (first + 1)) - get_int(path_start + 8 * first)
    for row in range(first + 1, last):
        start, end = get_int(path_start + 8 * row), get_int(path_start + 8 * (row + 1))
        shared = min(shared, end - start)
        for index in range(shared):
            if get_int(own + 8 * index) != get_int(paths + 8 * (start + index)):
                shared = index
                break
    return shared


@jit
def _fill_rows(model, given, blocks, tokens, positions):  # type: ignore[no-untyped-def]
    """Every row's inputs, its padding zero, and the rotation of its position."""
    half, hidden, stride = model.head_dim // 2, model.hidden, model.hidden_stride
    row = np.int64(0)
    for block in range(given.blocks):
        fields = blocks + 8 * BLOCK_FIELDS * block
        inputs = get_int(fields + 40)
        for index in range(get_int(fields)):
            x, token = given.x + 4 * row * stride, get_int(tokens + 8 * row)
            if inputs:
                copy(inputs + 4 * index * hidden, x, hidden)
            elif given.embedding_bytes == 2:
                _widen(given.embedding + 2 * token * hidden, x, hidden)
            else:
                copy(given.embedding + 4 * token * hidden, x, hidden)
            for place in range(hidden, stride):
                put(x + 4 * place, np.float32(0.0))
            position = get_int(positions + 8 * row)
            copy(given.all_cos + 4 * position * half, given.cos + 4 * row * half, half)
            copy(given.all_sin + 4 * position * half, given.sin + 4 * row * half, half)
            row += 1


@jit
def _widen(source, target, count):  # type: ignore[no-untyped-def]
    """`count` values of bf16, which is the upper half of float32."""
    for index in range(count):
        put(target + 4 * index, get_half(source + 2 * index))
