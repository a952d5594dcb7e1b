"""One level of a draft head, as each of its threads runs it: inputs fused, one pass of the layer, the likeliest tokens.

Where only ranks and their log-probabilities are wanted, one sweep finds the best tokens and one sums the exponentials: no
law is formed over the vocabulary and no row of logits leaves the caches.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from models.cpu.jit import LANES, get, get_int, jit, jit_entry, put, put_int
from models.cpu.matmul import multiply
from models.cpu.run import PHASES_AT_END, PHASES_PER_LAYER, _norm_rows, _prepare_rows, run
from models.cpu.sync import claim, finish, wait
from models.cpu.tile_body import STORE
from models.cpu.vector import copy_vectors, exponentiate


class Level(NamedTuple):
    """What a level has beside its pass (models.cpu.records says how records are written). ranked 0: nothing is."""

    fused: int  # [rows, fused_stride], what is fused into each row's input
    fused_stride: int
    depth: int  # of the fusing matrix
    matrix: int  # address of the fusing matrix, packed as the model's are
    vocab: int
    ranked: int
    tokens: int  # int64 [wanted_count, count]
    log_probs: int  # [wanted_count, count]
    scratch: int  # [threads, scratch_stride]
    scratch_stride: int  # the padded vocabulary's or further tokens', whichever is more
    further_logits: int  # [wanted_count, further_stride]
    further: int  # tokens that rank behind the vocabulary's in index: the session's own
    further_matrix: int  # their rows, packed as the head's are
    further_stride: int


@jit_entry
def run_level(model, work, level, thread, threads):  # type: ignore[no-untyped-def]
    """One thread's part of a level; it is complete when any thread returns. work.x is written here.

    Where the head reads no row, the layer leaves keys and values and computes nothing else: that is all that rows of a
    prefix are for.
    """
    counters, phases = work.counters, work.phases
    scratch = model.widened + 4 * thread * model.widened_stride
    phase = model.layers * PHASES_PER_LAYER + PHASES_AT_END
    multiply(
        model.tile,
        work.rows,
        level.fused,
        level.fused_stride,
        level.matrix,
        model.kind,
        level.depth,
        work.x,
        model.hidden_stride,
        STORE,
        scratch,
        counters,
        phases,
        phase,
        thread,
        threads,
    )
    if work.wanted_count > 0:
        run(model, work, thread, threads)
    else:
        _keep_keys(model, work, thread, threads)
    if level.ranked > 0:
        multiply(
            model.tile,
            work.wanted_count,
            work.picked,
            model.hidden_stride,
            level.further_matrix,
            model.head_kind,
            model.hidden,
            level.further_logits,
            level.further_stride,
            STORE,
            scratch,
            counters,
            phases,
            phase + 1,
            thread,
            threads,
        )
        _rank_rows(model, work, level, phase + 2, thread, threads)


@jit
def _keep_keys(model, work, thread, threads):  # type: ignore[no-untyped-def]
    _norm_rows(model, work, 0, -1, 0, thread, threads)
    multiply(
        model.tile,
        work.rows,
        work.normed,
        model.hidden_stride,
        model.arena + get_int(model.offsets),
        model.kind,
        model.hidden,
        work.qkv,
        model.qkv_stride,
        STORE,
        model.widened + 4 * thread * model.widened_stride,
        work.counters,
        work.phases,
        1,
        thread,
        threads,
    )
    _prepare_rows(model, work, 0, 6, thread, threads)


@jit
def _rank_rows(model, work, level, phase, thread, threads):  # type: ignore[no-untyped-def]
    scratch = level.scratch + 4 * thread * level.scratch_stride
    done = 0
    row = claim(work.counters, work.phases, phase, work.wanted_count, thread, threads)
    while row >= 0:
        place = row * level.ranked
        tokens, log_probs = level.tokens + 8 * place, level.log_probs + 4 * place
        for rank in range(level.ranked):
            put(log_probs + 4 * rank, np.float32(-np.inf))
            put_int(tokens + 8 * rank, 0)
        # First the vocabulary, then the session's own tokens: of equal logits the lower index stays ahead.
        for part in range(2):
            line, count, first = _part(model, work, level, row, part)
            _rank(line, count, first, level.ranked, tokens, log_probs)
        peak = get(log_probs)
        total = np.float32(0.0)
        for part in range(2):
            line, count, first = _part(model, work, level, row, part)
            total += _exponentials(line, count, peak, scratch)
        total = peak + np.float32(np.log(total))
        for rank in range(level.ranked):
            put(log_probs + 4 * rank, get(log_probs + 4 * rank) - total)
        done += 1
        row = claim(work.counters, work.phases, phase, work.wanted_count, thread, threads)
    finish(work.counters, phase, done)
    wait(work.counters, phase, work.wanted_count)


@jit
def _part(model, work, level, row, part):  # type: ignore[no-untyped-def]
    """A row's logits of the vocabulary or of further tokens: (where they are, how many, index of the first)."""
    if part == 0:
        return work.logits + 4 * row * model.vocab_stride, level.vocab, 0
    return level.further_logits + 4 * row * level.further_stride, level.further, level.vocab


@jit
def _rank(line, number, first, count, tokens, log_probs):  # type: ignore[no-untyped-def]
    """Put the largest of `number` logits among the `count` best so far, ties to the one that was there before."""
    least = get(log_probs + 4 * (count - 1))
    for index in range(number):
        value = get(line + 4 * index)
        if value > least:
            place = count - 1
            while place > 0 and get(log_probs + 4 * (place - 1)) < value:
                put(log_probs + 4 * place, get(log_probs + 4 * (place - 1)))
                put_int(tokens + 8 * place, get_int(tokens + 8 * (place - 1)))
                place -= 1
            put(log_probs + 4 * place, value)
            put_int(tokens + 8 * place, first + index)
            least = get(log_probs + 4 * (count - 1))


@jit
def _exponentials(line, number, peak, scratch):  # type: ignore[no-untyped-def]
    """The sum of exp(logit - peak) of `number` logits, which stay as they are."""
    whole = (number + LANES - 1) // LANES * LANES
    copy_vectors(line, scratch, whole)
    for index in range(number, whole):
        put(scratch + 4 * index, np.float32(-np.inf))
    return exponentiate(scratch, whole, peak)
