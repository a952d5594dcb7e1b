"""The whole pass, as each of its threads runs it: phases one after another, the units of each shared."""

from __future__ import annotations

import numpy as np

from models.cpu.attention import attend
from models.cpu.formats import PANEL
from models.cpu.heads import prepare_row
from models.cpu.jit import get_int, jit
from models.cpu.matmul import multiply, multiply_gated
from models.cpu.sync import claim, finish, wait
from models.cpu.tile import MAX_SCRATCH_PANELS, MAX_TILE_ROWS
from models.cpu.tile_body import ADD, STORE
from models.cpu.vector import copy_vectors, scale, sum_of_squares

PHASES_PER_LAYER = 8
PHASES_AT_END = 3


@jit
def run(model, work, thread, threads):  # type: ignore[no-untyped-def]
    """One thread's part of the pass; the pass is complete when any thread returns. See models.cpu.records."""
    rows, counters, phases = work.rows, work.counters, work.phases
    hidden, width, kind = model.hidden_stride, model.heads * model.head_dim, model.kind
    gates = work.gates + 4 * thread * MAX_TILE_ROWS * MAX_SCRATCH_PANELS * PANEL
    scratch = model.widened + 4 * thread * model.widened_stride
    # Each product appears once below: whatever is inlined here twice is compiled twice.
    for step in range(4 * model.layers + 1):
        layer, part = step // 4, step % 4
        phase = layer * PHASES_PER_LAYER + 2 * part
        count, a, lda, depth, c, ldc, mode = rows, work.normed, hidden, model.hidden, work.qkv, model.qkv_stride, STORE
        if step == 4 * model.layers:
            place, kind = model.head, model.head_kind
            count, a, c, ldc = work.wanted_count, work.picked, work.logits, model.vocab_stride
        else:
            place = get_int(model.offsets + 8 * step)
        if part == 1:
            a, lda, depth, c, ldc, mode = work.mixed, model.mixed_stride, width, work.x, hidden, ADD
        elif part == 3:
            a, lda, depth, c, ldc, mode = work.inner, model.inner_stride, model.inner, work.x, hidden, ADD
        w = model.arena + place
        if part % 2 == 0:
            _norm_rows(model, work, step // 2, layer - 1 if part == 0 else -1, phase, thread, threads)
        elif part == 1:
            _attend_all(model, work, layer, phase, thread, threads)
        if step == 4 * model.layers:
            phase += 1
            _pick_rows(work, hidden, phase, thread, threads)
        if part == 2:
            inner = model.inner_stride
            multiply_gated(
                model.tile,
                rows,
                a,
                lda,
                w,
                kind,
                depth,
                work.inner,
                inner,
                gates,
                scratch,
                counters,
                phases,
                phase + 1,
                thread,
                threads,
            )
        else:
            multiply(
                model.tile,
                count,
                a,
                lda,
                w,
                kind,
                depth,
                c,
                ldc,
                mode,
                scratch,
                counters,
                phases,
                phase + 1,
                thread,
                threads,
            )
        if part == 0 and step < 4 * model.layers:
            _prepare_rows(model, work, layer, phase + 6, thread, threads)
            if work.kv_only and layer == model.layers - 1:
                return


@jit
def _norm_rows(model, work, norm, tapped, phase, thread, threads):  # type: ignore[no-untyped-def]
    """RMSNorm (Zhang and Sennrich 2019, arXiv:1910.07467), a row a unit; taps layer `tapped` where asked to."""
    stride = model.hidden_stride
    weight = model.norms + 4 * norm * stride
    done = 0
    row = claim(work.counters, work.phases, phase, work.rows, thread, threads)
    while row >= 0:
        x, out = work.x + 4 * row * stride, work.normed + 4 * row * stride
        factor = np.float32(1.0) / np.sqrt(sum_of_squares(x, stride) / np.float32(model.hidden) + model.eps)
        scale(x, factor, weight, out, stride)
        for tap in range(work.tap_count):
            if get_int(work.tap_layers + 8 * tap) == tapped:
                copy_vectors(x, work.taps + 4 * (tap * work.rows + row) * stride, stride)
        done += 1
        row = claim(work.counters, work.phases, phase, work.rows, thread, threads)
    finish(work.counters, phase, done)
    wait(work.counters, phase, work.rows)


@jit
def _prepare_rows(model, work, layer, phase, thread, threads):  # type: ignore[no-untyped-def]
    done = 0
    row = claim(work.counters, work.phases, phase, work.rows, thread, threads)
    while row >= 0:
        prepare_row(model, work, layer, row)
        done += 1
        row = claim(work.counters, work.phases, phase, work.rows, thread, threads)
    finish(work.counters, phase, done)
    wait(work.counters, phase, work.rows)


@jit
def _attend_all(model, work, layer, phase, thread, threads):  # type: ignore[no-untyped-def]
    units = work.group_count * model.kv_heads
    done = 0
    unit = claim(work.counters, work.phases, phase, units, thread, threads)
    while unit >= 0:
        attend(model, work, layer, unit, thread)
        done += 1
        unit = claim(work.counters, work.phases, phase, units, thread, threads)
    finish(work.counters, phase, done)
    wait(work.counters, phase, units)


@jit
def _pick_rows(work, stride, phase, thread, threads):  # type: ignore[no-untyped-def]
    done = 0
    row = claim(work.counters, work.phases, phase, work.wanted_count, thread, threads)
    while row >= 0:
        copy_vectors(work.normed + 4 * get_int(work.wanted + 8 * row) * stride, work.picked + 4 * row * stride, stride)
        done += 1
        row = claim(work.counters, work.phases, phase, work.wanted_count, thread, threads)
    finish(work.counters, phase, done)
    wait(work.counters, phase, work.wanted_count)
