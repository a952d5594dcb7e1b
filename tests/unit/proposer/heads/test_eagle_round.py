"""A round's one compiled call: its rows are those that numpy fuses, and helpers may be late."""

from __future__ import annotations

import gc
import platform
import threading
from typing import Any

import numba
import numpy as np
import pytest
import torch

from contracts.errors import InvalidArgument
from models.cpu.draft_block import TargetRows
from models.cpu.draft_buffers import GrownNodes, address
from models.cpu.draft_layer import DraftLayer
from models.cpu.draft_round import _square_sum
from models.cpu.helpers import Helpers
from proposer.heads.eagle_draft import EagleSession
from proposer.heads.families import Frozen, head_of, network_of
from proposer.heads.head import DraftHead
from proposer.heads.package import HeadPackage
from tests.unit.proposer.heads.tiny_heads import (
    HIDDEN,
    VOCAB,
    VOCABULARY,
    Rows,
    frozen,
    head,
    manifest_of,
    network,
    prefix_of,
)

# Where einsum adds squares up in the order that compiled code has.
EXACT = platform.machine() in ("x86_64", "AMD64")


def _session(drafting: DraftHead) -> tuple[EagleSession, DraftLayer]:
    session: Any = drafting.open(256)
    return session, session._layer


def _halved() -> DraftHead:
    """A head over a target whose embeddings are bf16."""
    whole = frozen()
    halved = Frozen(whole.config, whole.embedding.bfloat16(), whole.head.bfloat16())
    tensors = {name: value.detach().clone() for name, value in network("eagle3").named_parameters()}
    loaded = HeadPackage(manifest_of("eagle3"), VOCABULARY, tensors, {})
    drafting = network_of(manifest_of("eagle3"), halved, VOCABULARY)
    return head_of(loaded, drafting, kv_budget_tokens=1024, dtype=torch.float32)


@pytest.mark.parametrize("count", [4, 15, 16, 17, 32, 33, 576, 2048])
def test_squares_are_added_up_as_numpy_does(count: int) -> None:
    total = numba.njit(lambda place, number: _square_sum(place, number))
    rows = np.random.default_rng(count).standard_normal((20, count)).astype(np.float32)
    found = np.array([total(address(row), count) for row in rows], np.float32)
    wanted = np.einsum("ij,ij->i", rows, rows)
    assert np.array_equal(found, wanted) if EXACT else np.allclose(found, wanted, rtol=1e-6)


@pytest.mark.parametrize("halved", [False, True], ids=["fp32", "bf16"])
def test_rows_fused_in_compiled_code_are_those_that_numpy_fuses(halved: bool) -> None:
    session, layer = _session(_halved() if halved else head("eagle3")[1])
    prefix = prefix_of(60)
    states = Rows(prefix)
    for length in (3, 10, 25, 41):
        wanted = session._fused(prefix[:length], session._kept_of(prefix[:length], 0), states)
        # One level: nothing is written over level 0's.
        session.grow(prefix[:length], Rows(prefix[:length]), width=2, depth=1, floor=0.0)
        found = layer._buffers._fused[: len(wanted), : wanted.shape[1]]
        assert np.array_equal(found, wanted) if EXACT else np.allclose(found, wanted, rtol=1e-6)


@pytest.mark.skipif(not EXACT, reason="rows fused by numpy may differ in their last bits")
def test_a_tree_over_the_targets_rows_is_that_over_rows_fused_before() -> None:
    session, layer = _session(head("eagle3")[1])
    prefix = prefix_of(120)
    one, other = layer.allocate(256), layer.allocate(256)
    stop = 0
    for count, width, depth, start in (
        (9, 3, 4, 0),
        (1, 3, 4, 0),
        (16, 2, 5, 0),
        (3, 3, 4, 0),
        (17, 5, 1, 0),
        (64, 3, 4, 0),
    ):
        states, begin, stop = Rows(prefix), stop, stop + count
        given = TargetRows(session._hidden(states, begin, stop), prefix[begin + 1 : stop + 1])
        fused = session._fused(prefix[: stop + 1], begin, states)
        grown: list[GrownNodes] = [
            layer.grow(slot, rows, start=start, width=width, depth=depth, least=-3.0)
            for slot, rows in ((one, given), (other, fused))
        ]
        assert grown[0] == grown[1]


def test_rows_that_compiled_code_cannot_read_are_refused_and_change_nothing() -> None:
    _, layer = _session(head("eagle3")[1])
    slot, rows = layer.allocate(32), np.ones((2, HIDDEN), np.float32)
    good = [rows, rows, rows]
    refused: list[tuple[list[Any], list[int]]] = [
        (good[:2], [1, 2]),
        (good, [1]),
        (good, []),
        (good, [1, VOCAB]),
        (good, [-1, 1]),
        ([rows, rows, np.ones((HIDDEN, 2), np.float32).T], [1, 2]),
        ([rows, rows, rows.astype(np.float64)], [1, 2]),
        ([rows, rows, rows[:, :8]], [1, 2]),
    ]
    for taps, tokens in refused:
        with pytest.raises(InvalidArgument, match="given"):
            layer.grow(slot, TargetRows(taps, np.array(tokens, np.int64)), width=2, depth=2, least=-np.inf)
    assert len(layer.grow(slot, TargetRows(good, np.array([1, 2])), width=2, depth=1, least=-np.inf).tokens) == 2


def test_a_helper_that_comes_late_finds_its_rounds_over() -> None:
    _, drafting = head("eagle3")
    session, layer = _session(drafting)
    layer._helpers, layer._threads = Helpers(1, "late"), 2
    go = threading.Event()
    layer._helpers.hand_out(lambda _: go.wait(), 1)
    for length in (9, 14, 60, 64):
        prefix = prefix_of(length)
        grown = session.grow(prefix, Rows(prefix), width=3, depth=4, floor=0.0)
        assert grown == head("eagle3")[1].open(128).grow(prefix, Rows(prefix), width=3, depth=4, floor=0.0)  # type: ignore[attr-defined]
    done = threading.Event()
    layer._helpers.hand_out(lambda _: done.set(), 1)
    go.set()
    done.wait()
    again = session.grow(prefix, Rows(prefix), width=3, depth=4, floor=0.0)
    assert again == grown


def test_helpers_do_as_they_are_told_in_order_and_end_with_who_told_them() -> None:
    said: list[tuple[int, int]] = []
    told = Helpers(3, "told")
    for turn, count in enumerate((2, 3, 0, 1)):
        told.hand_out(lambda number, turn=turn: said.append((number, turn)), count)  # type: ignore[misc]
    threads = [thread for thread in threading.enumerate() if thread.name.startswith("told")]
    assert len(threads) == 3
    del told
    gc.collect()
    for thread in threads:
        thread.join()
    assert sorted(said) == [(1, 0), (1, 1), (1, 3), (2, 0), (2, 1), (3, 1)]
    assert [turn for number, turn in said if number == 1] == [0, 1, 3]
