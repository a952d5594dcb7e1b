"""Turns of the worker: lent by whoever brings a job, and never two side by side."""

from __future__ import annotations

import threading

from contracts.ports import VerifierDescription
from tests.unit.verifier.desk import Desk
from verifier.jobs import Describe, Open, Verify


def test_a_lent_turn_serves_what_its_thread_brought_without_waking_another() -> None:
    desk = Desk()
    client = desk.client()
    served_by: list[str] = []
    desk.worker.submit(
        Verify(client.request()), lambda _: served_by.append(threading.current_thread().name), wake=False
    )
    desk.worker.lend()
    assert served_by == [threading.current_thread().name]


def test_a_lent_turn_is_one_turn_and_the_rest_is_left_to_the_workers_own_thread() -> None:
    desk = Desk()
    done = threading.Event()
    long_prompt = desk.rig.opening(tuple([1] * 9), session_id="long")
    thread = threading.Thread(target=desk.worker.run)
    thread.start()
    desk.worker.submit(Open(long_prompt), lambda _: done.set(), wake=False)
    desk.worker.lend()
    assert done.wait(30)
    desk.worker.stop()
    thread.join(30)
    assert not thread.is_alive()


def test_turns_never_run_side_by_side() -> None:
    desk = Desk()
    client = desk.client()
    entered, leave = threading.Event(), threading.Event()

    def hold() -> None:
        entered.set()
        assert leave.wait(30)

    desk.rig.scripted.during_forward = hold
    thread = threading.Thread(target=desk.worker.run)
    thread.start()
    desk.ask("running", Verify(client.request()))
    assert entered.wait(30)
    answered = threading.Event()

    def answer(outcome: object) -> None:
        desk.answers["lent"] = outcome
        answered.set()

    desk.worker.submit(Describe(), answer, wake=False)
    desk.worker.lend()
    assert "lent" not in desk.answers, "a turn was taken while another was under way"
    leave.set()
    assert answered.wait(30)
    desk.worker.stop()
    thread.join(30)
    assert isinstance(desk.answers["lent"], VerifierDescription)
