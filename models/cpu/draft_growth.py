"""A whole round's tree of a draft head in one compiled call: levels one after another, what is grown chosen between them.

EAGLE-2's growth (arXiv 2406.16858, section 4): each level's `width` most valuable nodes get `width` children; a node's value
is the log-probability of its path, and nodes below a least value are not grown. One thread chooses, the others wait for it
as for any unit of work. Between two levels nothing leaves compiled code: in Python it took as long as the level itself.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from models.cpu.draft_level import Level, run_level
from models.cpu.heads import copy
from models.cpu.jit import get, get_int, jit, put, put_int
from models.cpu.records import Work
from models.cpu.run import PHASES_AT_END, PHASES_PER_LAYER
from models.cpu.sync import COUNTER_STRIDE, claim, finish, wait
from models.cpu.vector import sum_of_squares

# Phases of a level: its pass, what is around it (models.cpu.draft_level), and the choice after it.
LEVEL_PHASES = PHASES_PER_LAYER + PHASES_AT_END + 4
# Of each level in `Growth.levels`: rows, groups, rows that are ranked, nodes before it, staged rows before it.
LEVEL_FIELDS = 5


class Growth(NamedTuple):
    """One round's growth. Arrays as in models.cpu.records; a path's and a level's place is its own, for a helper that comes
    late looks at levels long over. The first five fields are a round's own."""

    levels: int  # int64 [depth, LEVEL_FIELDS], fresh and zeroed; level 0 is filled in first (models.cpu.draft_round)
    counters: int  # int64 [depth, 1 + threads, LEVEL_PHASES, 16], fresh and zeroed
    length: int  # rows kept before level 0
    start: int  # position of the first kept row
    further_embedded: int  # [further, hidden], what each of the session's own tokens' embeddings adds to a fused row
    depth: int  # levels at most, the first one included
    width: int
    least: np.float32  # value of the least node that is grown
    drafted: int  # address of the matrix that fuses drafted rows
    embedded: int  # [vocab, hidden], as `further_embedded`, of draft tokens
    cos: int  # [context, head_dim / 2]
    sin: int
    path_start: int  # int64 [depth, starts_stride]
    starts_stride: int
    paths: int  # int64 [depth, paths_stride]
    paths_stride: int
    group_rows: int  # rows of an attention group at most
    row_nodes: int  # int64 [depth, width], the node that each row of a level is
    tokens: int  # int64 [nodes], index in the draft vocabulary, or behind it; so are the next three by node
    parents: int
    depths: int
    values: int  # float32


@jit
def grow(model, work, level, growth, thread, threads):  # type: ignore[no-untyped-def]
    """One thread's part of a round; the tree is complete when any thread returns. level: of the first, whose inputs are in
    place."""
    for index in range(growth.depth):
        place = growth.levels + 8 * LEVEL_FIELDS * index
        rows = get_int(place)
        if rows == 0:
            break
        counters = growth.counters + 8 * COUNTER_STRIDE * LEVEL_PHASES * (1 + threads) * index
        here = _work_of(work, growth, index, rows, counters)
        matrix = level.matrix if index == 0 else growth.drafted
        depth = level.depth if index == 0 else 2 * model.hidden
        run_level(model, here, _level_of(level, matrix, depth), thread, threads)
        done = 0
        if claim(counters, LEVEL_PHASES, LEVEL_PHASES - 1, 1, thread, threads) >= 0:
            first = get_int(place + 24)
            made = _add_children(here, level, growth, index, first)
            if index + 1 < growth.depth:
                _choose(model, here, level, growth, index, first, made)
            done = 1
        finish(counters, LEVEL_PHASES - 1, done)
        wait(counters, LEVEL_PHASES - 1, 1)


@jit
def _level_of(level, matrix, depth):  # type: ignore[no-untyped-def]
    return Level(
        level.fused,
        level.fused_stride,
        depth,
        matrix,
        level.vocab,
        level.ranked,
        level.tokens,
        level.log_probs,
        level.scratch,
        level.scratch_stride,
        level.further_logits,
        level.further,
        level.further_matrix,
        level.further_stride,
    )


@jit
def _work_of(work, growth, index, rows, counters):  # type: ignore[no-untyped-def]
    """`work` with what differs from level to level."""
    place = growth.levels + 8 * LEVEL_FIELDS * index
    return Work(
        rows,
        work.x,
        work.normed,
        work.qkv,
        work.query,
        work.mixed,
        work.inner,
        work.cos,
        work.sin,
        work.row_block,
        work.row_index,
        work.lengths,
        work.stored,
        work.pages,
        work.page_start,
        growth.path_start + 8 * growth.starts_stride * index,
        growth.paths + 8 * growth.paths_stride * index,
        work.groups,
        get_int(place + 8),
        work.scores,
        work.score_stride,
        work.lines,
        work.out,
        work.gates,
        work.tap_count,
        work.tap_layers,
        work.taps,
        work.kv_only,
        get_int(place + 16),
        work.wanted,
        work.picked,
        work.logits,
        counters,
        LEVEL_PHASES,
    )


@jit
def _add_children(work, level, growth, index, first):  # type: ignore[no-untyped-def]
    """The nodes that the level's ranked rows have as children, from number `first` on; returns their end."""
    node = first
    for row in range(work.wanted_count):
        parent = get_int(growth.row_nodes + 8 * (growth.width * index + row))
        before = get(growth.values + 4 * parent) if parent >= 0 else np.float32(0.0)
        for rank in range(level.ranked):
            place = row * level.ranked + rank
            put_int(growth.tokens + 8 * node, get_int(level.tokens + 8 * place))
            put_int(growth.parents + 8 * node, parent)
            put_int(growth.depths + 8 * node, index + 1)
            # Rounding may put a certain token's log-probability a hair above 0.
            put(growth.values + 4 * node, before + min(np.float32(0.0), get(level.log_probs + 4 * place)))
            node += 1
    return node


@jit
def _choose(model, work, level, growth, index, first, end):  # type: ignore[no-untyped-def]
    """Makes the next level of the most valuable of nodes first .. end - 1, ties to the older."""
    place = growth.levels + 8 * LEVEL_FIELDS * index
    staged = get_int(place + 32) + work.rows
    rows = 0
    while rows < growth.width:
        best = -1
        for node in range(first, end):
            value = get(growth.values + 4 * node)
            if value >= growth.least and (best < 0 or value > get(growth.values + 4 * best)):
                taken = False
                for row in range(rows):
                    taken = taken or get_int(growth.row_nodes + 8 * (growth.width * (index + 1) + row)) == node
                if not taken:
                    best = node
        if best < 0:
            break
        put_int(growth.row_nodes + 8 * (growth.width * (index + 1) + rows), best)
        rows += 1
    _fill(model, work, level, growth, index, first, staged, rows)
    following = place + 8 * LEVEL_FIELDS
    groups = (rows + growth.group_rows - 1) // growth.group_rows
    for group in range(groups):
        put_int(work.groups + 24 * group, rows * group // groups)
        put_int(work.groups + 24 * group + 8, rows * (group + 1) // groups)
        put_int(work.groups + 24 * group + 16, 0)
    put_int(following + 8, groups)
    put_int(following + 16, rows)
    put_int(following + 24, end)
    put_int(following + 32, staged)
    put_int(following, rows)


@jit
def _fill(model, work, level, growth, index, first, staged, rows):  # type: ignore[no-untyped-def]
    """Inputs, positions and paths of the next level's rows, which are staged from row `staged` on."""
    hidden, half, stride = model.hidden, model.head_dim // 2, model.hidden_stride
    starts = growth.path_start + 8 * growth.starts_stride * (index + 1)
    paths = growth.paths + 8 * growth.paths_stride * (index + 1)
    put_int(starts, 0)
    for row in range(rows):
        node = get_int(growth.row_nodes + 8 * (growth.width * (index + 1) + row))
        # Children stand in the order of the rows they were ranked for, which are the level's last rows.
        above = work.rows - work.wanted_count + (node - first) // level.ranked
        feature, fused = work.normed + 4 * above * stride, level.fused + 4 * row * level.fused_stride
        factor = np.float32(1.0) / np.sqrt(sum_of_squares(feature, stride) / np.float32(hidden) + model.eps)
        for i in range(hidden):
            put(fused + 4 * i, get(feature + 4 * i) * factor)
        token, embedded = get_int(growth.tokens + 8 * node), growth.embedded
        if token >= level.vocab:
            token, embedded = token - level.vocab, growth.further_embedded
        copy(embedded + 4 * hidden * token, fused + 4 * hidden, hidden)
        start = get_int(starts + 8 * row)
        begin, stop = get_int(work.path_start + 8 * above), get_int(work.path_start + 8 * above + 8)
        for i in range(stop - begin):
            put_int(paths + 8 * (start + i), get_int(work.paths + 8 * (begin + i)))
        put_int(paths + 8 * (start + stop - begin), staged + row)
        put_int(starts + 8 * (row + 1), start + stop - begin + 1)
        position = growth.start + growth.length + stop - begin
        copy(growth.cos + 4 * half * position, work.cos + 4 * half * row, half)
        copy(growth.sin + 4 * half * position, work.sin + 4 * half * row, half)
        put_int(work.row_index + 8 * row, growth.length + staged + row)
        put_int(work.wanted + 8 * row, row)
