"""Openings for which there is no KV at the moment: they wait their turn, and leave nothing behind."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest

from contracts.errors import InvalidArgument, ResourceExhausted, Unavailable
from contracts.ports import OpenSession, SessionOpened
from contracts.receipt import Receipt
from tests.unit.verifier.desk import Desk
from tests.unit.verifier.rig import GREEDY, Client, Rig
from verifier.jobs import Close, Open, Verify
from verifier.openings import OVERTAKES

# A session of `opening(rows)` needs exactly `rows` rows of KV.
BUDGET = 40


def desk(**options: int) -> Desk:
    return Desk(Rig(kv_tokens=BUDGET, prefill_chunk=2), **options)


def opening(at: Desk, name: str, rows: int) -> OpenSession:
    return at.rig.opening((1,), replace(GREEDY, max_tokens=rows), session_id=name, node_budget=0)


def ask(at: Desk, name: str, rows: int) -> Any:
    return at.ask(name, Open(opening(at, name, rows)))


def close(at: Desk, name: str) -> None:
    at.ask(f"close {name}", Close(name))
    at.drain()


def opened(at: Desk) -> list[str]:
    return [name for name, answer in at.answers.items() if isinstance(answer, SessionOpened)]


def test_forty_openings_at_once_are_all_served_one_after_another() -> None:
    at = desk()
    for number in range(40):
        ask(at, f"s{number}", 15)
    at.drain()
    served: list[str] = []
    while len(served) < 40:
        new = [name for name in opened(at) if name not in served]
        assert len(new) in (1, 2)
        served += new
        close(at, new[0])
        for name in new[1:]:
            close(at, name)
    assert served == [f"s{number}" for number in range(40)]
    assert at.rig.scripted.slots == []


def test_an_opening_without_room_waits_and_says_how_long_it_did() -> None:
    at = desk()
    ask(at, "first", 30)
    ask(at, "second", 20)
    at.drain()
    assert opened(at) == ["first"]
    at.rig.clock.advance_ms(5)
    close(at, "first")
    assert opened(at) == ["first", "second"]
    assert at.answers["second"].queue_us == pytest.approx(5000, abs=1)


def test_a_worker_with_nobody_but_waiting_openings_is_at_rest() -> None:
    at = desk()
    ask(at, "first", 30)
    ask(at, "second", 20)
    at.drain()
    assert at.worker.step() is False


def test_small_openings_go_before_a_large_one_so_often_and_no_oftener() -> None:
    at = desk()
    ask(at, "holder", 20)
    ask(at, "large", 30)
    at.drain()
    for number in range(OVERTAKES + 3):
        ask(at, f"small{number}", 5)
        at.drain()
        if f"small{number}" in opened(at):
            close(at, f"small{number}")
    assert opened(at) == ["holder", *(f"small{number}" for number in range(OVERTAKES))]
    close(at, "holder")
    # Now the oldest has its room, and those that were kept back what is left.
    assert opened(at)[OVERTAKES + 1 :][:3] == ["large", f"small{OVERTAKES}", f"small{OVERTAKES + 1}"]


def test_who_was_kept_back_for_an_opening_goes_on_when_that_is_cancelled() -> None:
    at = desk()
    ask(at, "holder", 20)
    large = ask(at, "large", 30)
    for number in range(OVERTAKES + 1):
        ask(at, f"small{number}", 2)
    at.drain()
    last = f"small{OVERTAKES}"
    assert last not in opened(at)
    assert at.worker.cancel(large) is True
    at.drain()
    assert last in opened(at)
    assert "large" not in at.answers


def test_beyond_the_bounded_queue_an_opening_is_refused_with_a_hint() -> None:
    at = desk(max_queue=2)
    ask(at, "first", 40)
    at.drain()
    waiting = [ask(at, "second", 40), ask(at, "third", 40)]
    at.drain()
    with pytest.raises(ResourceExhausted) as refusal:
        ask(at, "fourth", 1)
    assert refusal.value.field == "queue"
    # Until the open session may end, not until the next turn.
    assert (refusal.value.retry_after_ms or 0) >= 10
    assert at.worker.cancel(waiting[0]) is True
    ask(at, "fourth", 1)


def test_openings_that_wait_never_keep_out_the_rounds_that_will_free_their_room() -> None:
    at = desk(max_queue=2)
    holder = opening(at, "holder", 40)
    at.ask("holder", Open(holder))
    at.drain()
    for name in ("second", "third"):
        ask(at, name, 40)
    at.drain()
    client = Client(at.rig.engine, holder, [1])
    at.ask("round", Verify(client.request()))
    at.drain()
    assert isinstance(at.answers["round"], Receipt)


def test_an_opening_that_can_never_fit_is_refused_at_once_though_others_wait() -> None:
    at = desk()
    ask(at, "holder", 30)
    ask(at, "waiting", 30)
    ask(at, "giant", BUDGET + 1)
    at.drain()
    refusal = at.answers["giant"]
    assert isinstance(refusal, InvalidArgument)
    assert refusal.field == "prompt"
    assert str(BUDGET) in refusal.message


def test_room_that_nobodys_end_would_make_is_not_waited_for() -> None:
    at = Desk(Rig(kv_tokens=BUDGET, prefill_chunk=2))
    at.rig.scripted.kv_tokens = BUDGET - 10
    ask(at, "alone", BUDGET)
    at.drain()
    assert isinstance(at.answers["alone"], InvalidArgument)


def test_a_waiting_opening_that_is_cancelled_leaves_nothing() -> None:
    at = desk()
    ask(at, "holder", 30)
    gone = ask(at, "gone", 30)
    at.drain()
    assert at.worker.cancel(gone) is True
    close(at, "holder")
    assert "gone" not in at.answers
    assert at.rig.scripted.slots == []
    assert at.rig.engine.kv_tokens_free == BUDGET


def test_a_repeated_opening_is_answered_though_a_large_one_waits_before_it() -> None:
    at = desk()
    first = opening(at, "first", 20)
    at.ask("first", Open(first))
    ask(at, "large", 30)
    at.drain()
    for number in range(OVERTAKES):
        ask(at, f"small{number}", 1)
        at.drain()
        close(at, f"small{number}")
    at.ask("repeat", Open(first))
    at.drain()
    assert at.answers["repeat"] == at.answers["first"]


def test_a_lapsed_lease_makes_room_for_those_that_wait() -> None:
    at = desk()
    ask(at, "silent", 30)
    ask(at, "waiting", 30)
    at.drain()
    at.rig.clock.advance_ms(61_000)
    at.worker.step()
    at.drain()
    assert "waiting" in opened(at)


def test_a_stopping_worker_answers_those_that_wait() -> None:
    at = desk()
    ask(at, "holder", 30)
    ask(at, "waiting", 30)
    at.drain()
    thread = threading.Thread(target=at.worker.run)
    thread.start()
    at.worker.stop()
    thread.join(30)
    assert not thread.is_alive()
    assert isinstance(at.answers["waiting"], Unavailable)
