from __future__ import annotations

import random
from collections.abc import Sequence
from statistics import median

import pytest

from models.backend import KVSlot
from tests.unit.verifier.rig import Rig, chain
from verifier.step_clock import StepClock


def test_the_plain_step_is_unknown_until_measured_then_the_recent_median() -> None:
    steps = StepClock()
    assert steps.plain_step_us == 0.0
    for microseconds in (30.0, 10.0, 20.0):
        steps.record(1, microseconds)
    assert steps.plain_step_us == 20.0
    for _ in range(100):
        steps.record(1, 7.0)
    assert steps.plain_step_us == 7.0


def test_the_plain_step_is_the_median_of_the_latest_one_row_passes_whatever_came_when() -> None:
    steps, seen = StepClock(), []
    chance = random.Random(4)
    for _ in range(300):
        # Few values, so that equal ones come and go; passes of other sizes are none of its business.
        seen.append(float(chance.randrange(20)))
        steps.record(1, seen[-1])
        steps.record(3, 1e6)
        assert steps.plain_step_us == median(seen[-64:])


def test_the_warm_up_times_one_row_passes_and_leaves_nothing_reserved() -> None:
    rig = Rig()
    rig.scripted.during_forward = lambda: rig.clock.advance_ms(2)
    rig.engine.warm_up(passes=3)
    assert rig.engine.describe().plain_step_us == pytest.approx(2000, abs=1)
    assert rig.scripted.slots == []
    assert rig.scripted.passes == [[32], [32], [2], *[[1]] * 4]


def test_the_warm_up_moves_a_row_so_that_no_request_waits_for_that_to_be_compiled() -> None:
    rig = Rig()
    kept: list[list[int]] = []
    commit = rig.scripted.commit

    def watched(slot: KVSlot, keep: Sequence[int]) -> None:
        kept.append(list(keep))
        commit(slot, keep)

    rig.scripted.commit = watched  # type: ignore[method-assign]
    rig.engine.warm_up(passes=1)
    assert kept == [list(range(32)), [1]]


def test_one_row_passes_keep_the_plain_step_up_to_date_and_others_do_not() -> None:
    rig = Rig()
    client, other = rig.open(), rig.open(session_id="other")
    rig.scripted.during_forward = lambda: rig.clock.advance_ms(9)
    client.round(chain(4))
    rig.engine.verify_many([client.request(), other.request()])
    assert rig.engine.describe().plain_step_us == 0.0
    other.generation, other.next_round = 1, 1
    other.tokens.append(4)
    other.round()
    assert rig.engine.describe().plain_step_us == pytest.approx(9000, abs=1)
