"""A pass waits for the rounds that follow those just answered: for all of them, for part of a pass, and for nobody late."""

from __future__ import annotations

import threading

from tests.unit.verifier.desk import Desk
from verifier.gathering import Gathering
from verifier.jobs import Verify

STEP_US = 20_000.0
WINDOW = 10_000_000


def test_a_pass_waits_until_all_that_were_answered_are_back() -> None:
    gathering = Gathering()
    gathering.answered(["a", "b"], STEP_US, now=0)
    gathering.came("a", 1)
    assert gathering.left(1) == WINDOW - 1
    gathering.came("b", 2)
    assert gathering.left(2) == 0


def test_a_pass_waits_for_half_of_a_one_row_pass_at_most() -> None:
    gathering = Gathering()
    gathering.answered(["a", "b"], STEP_US, now=0)
    gathering.came("a", 1)
    assert gathering.left(WINDOW - 1) == 1
    assert gathering.left(WINDOW) == 0


def test_nobody_is_waited_for_before_a_step_was_timed() -> None:
    gathering = Gathering()
    gathering.answered(["a", "b"], 0.0, now=5)
    assert gathering.left(5) == 0


def test_who_came_late_is_not_waited_for_until_it_comes_in_time_again() -> None:
    gathering = Gathering()
    gathering.answered(["a", "late"], STEP_US, now=0)
    gathering.came("a", 1)
    gathering.came("late", WINDOW + 1)
    gathering.answered(["a", "late"], STEP_US, now=100)
    gathering.came("a", 101)
    assert gathering.left(101) == 0
    gathering.came("late", 102)
    gathering.answered(["a", "late"], STEP_US, now=200)
    gathering.came("a", 201)
    assert gathering.left(201) > 0


def test_who_missed_a_pass_is_not_waited_for_after_it() -> None:
    gathering = Gathering()
    gathering.answered(["a", "slow"], STEP_US, now=0)
    gathering.came("a", 1)
    gathering.answered(["a"], STEP_US, now=2 * WINDOW)
    gathering.came("a", 2 * WINDOW + 1)
    assert gathering.left(2 * WINDOW + 1) == 0


def test_who_ended_is_not_waited_for_and_leaves_nothing() -> None:
    gathering = Gathering()
    gathering.answered(["a", "b"], STEP_US, now=0)
    gathering.came("a", 1)
    gathering.ended("b")
    assert gathering.left(1) == 0
    gathering.ended("a")
    assert not [*gathering._awaited, *gathering._late, *gathering._answered]


def _timed(desk: Desk) -> None:
    """One-row passes of a second, so that the window is open for the whole test."""
    for _ in range(8):
        desk.rig.engine._steps.record(1, 1e6)


def test_the_rounds_of_two_sessions_stay_in_one_pass() -> None:
    desk = Desk()
    one, other = desk.client(), desk.client(session_id="other")
    _timed(desk)
    desk.ask("one", Verify(one.request()))
    desk.ask("other", Verify(other.request()))
    assert desk.worker.step()
    for client, name in ((one, "one"), (other, "other")):
        client.absorb(desk.answers.pop(name))
    desk.ask("one", Verify(one.request()))
    before = len(desk.rig.scripted.passes)
    desk.worker.lend()
    assert "one" not in desk.answers, "a pass began without the round that was on its way"
    desk.ask("other", Verify(other.request()))
    desk.worker.lend()
    assert {"one", "other"} <= set(desk.answers)
    assert len(desk.rig.scripted.passes) == before + 1


def test_a_session_alone_waits_for_nobody() -> None:
    desk = Desk()
    client = desk.client()
    _timed(desk)
    for _ in range(3):
        desk.ask("round", Verify(client.request()))
        desk.worker.lend()
        client.absorb(desk.answers.pop("round"))


def test_a_waiting_round_is_served_where_the_others_do_not_come() -> None:
    desk = Desk()
    one, other = desk.client(), desk.client(session_id="other")
    for _ in range(8):
        desk.rig.engine._steps.record(1, 2_000.0)
    thread = threading.Thread(target=desk.worker.run)
    thread.start()
    done = [threading.Event() for _ in range(3)]
    desk.worker.submit(Verify(one.request()), lambda receipt: (one.absorb(receipt), done[0].set()))
    desk.worker.submit(Verify(other.request()), lambda receipt: done[1].set())
    assert done[0].wait(30)
    assert done[1].wait(30)
    desk.worker.submit(Verify(one.request()), lambda _: done[2].set(), wake=False)
    desk.worker.lend()
    assert done[2].wait(30)
    desk.worker.stop()
    thread.join(30)
    assert not thread.is_alive()
