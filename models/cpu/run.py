"""The whole pass, as each of its threads runs it: phases one after another, the units of each shared."""

from __future__ import annotations

import numpy as np

from models.cpu.attention import attend, prepare_row
from models.cpu.jit import address, jit
from models.cpu.matmul import multiply, multiply_gated, unit_panels
from models.cpu.sync import claim, finish, wait
from models.cpu.tile import ADD, PANEL, STORE
from models.cpu.vector import sum_of_squares

PHASES_PER_LAYER = 8
PHASES_AT_END = 3


@jit
def run(model, work, thread, threads):  # type: ignore[no-untyped-def]
    """One thread's part of the pass; the pass is complete when any thread returns."""
    hidden, width = model.hidden, model.heads * model.head_dim
    arena = address(model.arena, 0)
    phase = 0
    for layer in range(model.offsets.shape[0]):
        places = model.offsets[layer]
        _norm_rows(model, work, 2 * layer, layer - 1, phase)
        _multiply_all(
            work.normed, arena + places[0], model.bf16, hidden, work.qkv, STORE, work.counters, phase + 1, threads
        )
        _prepare_rows(model, work, layer, phase + 2, thread)
        _attend_all(model, work, layer, phase + 3, thread)
        _multiply_all(work.mixed, arena + places[1], model.bf16, width, work.x, ADD, work.counters, phase + 4, threads)
        _norm_rows(model, work, 2 * layer + 1, np.int64(-1), phase + 5)
        _gate_all(model, work, arena + places[2], phase + 6, thread, threads)
        _multiply_all(
            work.inner, arena + places[3], model.bf16, model.inner, work.x, ADD, work.counters, phase + 7, threads
        )
        phase += PHASES_PER_LAYER
    layers = model.offsets.shape[0]
    _norm_rows(model, work, 2 * layers, layers - 1, phase)
    _pick_rows(work, phase + 1)
    _multiply_all(
        work.picked, arena + model.head, model.bf16, hidden, work.logits, STORE, work.counters, phase + 2, threads
    )


@jit
def _norm_rows(model, work, norm, tapped, phase):  # type: ignore[no-untyped-def]
    """RMSNorm (Zhang and Sennrich 2019, arXiv:1910.07467), a row a unit; taps layer `tapped` where asked to."""
    x, weight = work.x, model.norms[norm]
    rows = x.shape[0]
    row = claim(work.counters, phase)
    while row < rows:
        mean = sum_of_squares(address(x, row * x.shape[1]), x.shape[1]) / np.float32(model.hidden)
        factor = np.float32(1.0) / np.sqrt(mean + model.eps)
        for i in range(model.hidden):
            work.normed[row, i] = weight[i] * (x[row, i] * factor)
        for tap in range(work.tap_layers.shape[0]):
            if work.tap_layers[tap] == tapped:
                for i in range(model.hidden):
                    work.taps[tap, row, i] = x[row, i]
        finish(work.counters, phase)
        row = claim(work.counters, phase)
    wait(work.counters, phase, rows)


@jit
def _multiply_all(a, w, bf16, depth, c, mode, counters, phase, threads):  # type: ignore[no-untyped-def]
    panels = c.shape[1] // PANEL if a.shape[0] > 0 else 0
    step = unit_panels(panels, threads)
    units = (panels + step - 1) // step
    unit = claim(counters, phase)
    while unit < units:
        multiply(a, w, bf16, depth, c, mode, unit * step, min(panels, (unit + 1) * step))
        finish(counters, phase)
        unit = claim(counters, phase)
    wait(counters, phase, units)


@jit
def _gate_all(model, work, w, phase, thread, threads):  # type: ignore[no-untyped-def]
    panels = work.inner.shape[1] // PANEL
    step = unit_panels(panels, threads)
    units = (panels + step - 1) // step
    scratch = work.gates[thread]
    unit = claim(work.counters, phase)
    while unit < units:
        last = min(panels, (unit + 1) * step)
        multiply_gated(work.normed, w, model.bf16, model.hidden, work.inner, scratch, unit * step, last)
        finish(work.counters, phase)
        unit = claim(work.counters, phase)
    wait(work.counters, phase, units)


@jit
def _prepare_rows(model, work, layer, phase, thread):  # type: ignore[no-untyped-def]
    rows = work.x.shape[0]
    row = claim(work.counters, phase)
    while row < rows:
        prepare_row(model, work, layer, row, work.turned[thread])
        if model.out_bias.shape[0] > 0:
            # Here, because nobody else touches the residual stream between the two norms' phases.
            for i in range(model.hidden):
                work.x[row, i] += model.out_bias[layer, i]
        finish(work.counters, phase)
        row = claim(work.counters, phase)
    wait(work.counters, phase, rows)


@jit
def _attend_all(model, work, layer, phase, thread):  # type: ignore[no-untyped-def]
    units = work.groups.shape[0] * model.kv_heads
    unit = claim(work.counters, phase)
    while unit < units:
        attend(model, work, layer, unit, thread)
        finish(work.counters, phase)
        unit = claim(work.counters, phase)
    wait(work.counters, phase, units)


@jit
def _pick_rows(work, phase):  # type: ignore[no-untyped-def]
    rows = work.wanted.shape[0]
    row = claim(work.counters, phase)
    while row < rows:
        source = work.wanted[row]
        for i in range(work.picked.shape[1]):
            work.picked[row, i] = work.normed[source, i]
        finish(work.counters, phase)
        row = claim(work.counters, phase)
    wait(work.counters, phase, rows)
