from __future__ import annotations

import threading

import pytest

from contracts.errors import Cancelled, DraftproofError, InvalidArgument, NotFound, ResourceExhausted, Unavailable
from contracts.ports import VerifierDescription
from contracts.receipt import Receipt
from tests.unit.verifier.desk import Desk
from tests.unit.verifier.rig import Client, chain
from verifier.jobs import Close, Describe, GetReceipt, Open, Verify


def test_an_idle_worker_does_nothing() -> None:
    assert Desk().worker.step() is False


def test_every_kind_of_job_is_answered_once() -> None:
    desk = Desk()
    client = desk.client()
    desk.ask("verify", Verify(client.request(chain(4))))
    desk.ask("receipt", GetReceipt("s", 0))
    desk.ask("describe", Describe())
    desk.drain()
    assert desk.answers["verify"].tokens == (4, 5)
    assert desk.answers["receipt"] is desk.answers["verify"]
    assert isinstance(desk.answers["describe"], VerifierDescription)
    desk.ask("close", Close("s"))
    desk.drain()
    assert desk.answers["close"] is None
    assert desk.rig.scripted.slots == []


def test_errors_are_answers_and_the_worker_lives() -> None:
    desk = Desk()
    desk.ask("open", Open(desk.rig.opening(())))
    desk.ask("receipt", GetReceipt("nobody", 0))
    client = Client(desk.rig.engine, desk.rig.opening(), [1, 2, 3])
    desk.ask("verify", Verify(client.request()))
    desk.drain()
    assert isinstance(desk.answers["open"], InvalidArgument)
    assert isinstance(desk.answers["receipt"], NotFound)
    assert isinstance(desk.answers["verify"], NotFound)
    desk.client()


def test_rounds_that_wait_together_share_one_pass() -> None:
    desk = Desk()
    clients = [desk.client(f"s{index}") for index in range(3)]
    before = len(desk.rig.scripted.passes)
    for client in clients:
        desk.ask(client.session_id, Verify(client.request(chain(4))))
    desk.worker.step()
    assert desk.rig.scripted.passes[before:] == [[2, 2, 2]]
    assert len(desk.answers) == 3


def test_a_round_that_arrives_during_a_pass_joins_the_next() -> None:
    desk = Desk()
    early, late = desk.client("early"), desk.client("late")
    before = len(desk.rig.scripted.passes)

    def arrive() -> None:
        desk.rig.scripted.during_forward = lambda: None
        desk.ask("late", Verify(late.request(chain(9))))
        desk.ask("later", Verify(early.request(round_id=7)))

    desk.rig.scripted.during_forward = arrive
    desk.ask("early", Verify(early.request()))
    desk.worker.step()
    assert "late" not in desk.answers
    desk.worker.step()
    assert desk.answers["late"].tokens == (4,)
    assert desk.rig.scripted.passes[before:] == [[1], [2]]


def test_a_batch_is_bounded_by_rows_and_keeps_the_order_of_arrival() -> None:
    desk = Desk(max_pass_rows=5)
    clients = [desk.client(f"s{index}") for index in range(4)]
    before = len(desk.rig.scripted.passes)
    for client, guesses in zip(clients, [chain(*range(4, 12)), chain(4), chain(4), chain(4, 5)], strict=True):
        desk.ask(client.session_id, Verify(client.request(guesses)))
    desk.drain()
    assert desk.rig.scripted.passes[before:] == [[9], [2, 2], [3]]


def test_a_long_prompt_and_a_stream_of_rounds_share_passes() -> None:
    desk = Desk()
    client = desk.client()
    before = len(desk.rig.scripted.passes)
    desk.ask("long", Open(desk.rig.opening(tuple([1] * 9), session_id="long")))
    turns = 0
    while "long" not in desk.answers:
        desk.ask(f"round {turns}", Verify(client.request()))
        desk.worker.step()
        client.absorb(desk.answers[f"round {turns}"])
        turns += 1
    assert desk.rig.scripted.passes[before:] == [[1, 2]] * 4


def test_prompts_take_turns_among_themselves() -> None:
    desk = Desk()
    desk.ask("long", Open(desk.rig.opening(tuple([1] * 11), session_id="long")))
    desk.ask("short", Open(desk.rig.opening((1, 2, 3), session_id="short")))
    desk.worker.step()
    desk.worker.step()
    assert list(desk.answers) == ["short"]
    desk.drain()
    assert desk.answers["long"].prefix_len == 11


def test_a_refused_session_hears_of_it_before_a_long_prompt_is_done() -> None:
    desk = Desk()
    desk.ask("long", Open(desk.rig.opening(tuple([1] * 11), session_id="long")))
    desk.ask("bad", Open(desk.rig.opening((), session_id="bad")))
    desk.worker.step()
    assert isinstance(desk.answers["bad"], InvalidArgument)
    assert "long" not in desk.answers


def test_an_open_and_its_repeat_prefill_once_and_are_both_answered() -> None:
    desk = Desk()
    opening = desk.rig.opening(tuple([1] * 7))
    desk.ask("first", Open(opening))
    desk.worker.step()
    desk.ask("repeat", Open(opening))
    desk.drain()
    assert desk.answers["first"] == desk.answers["repeat"]
    assert sum(sum(rows) for rows in desk.rig.scripted.passes) == 6


def test_waiting_is_measured() -> None:
    desk = Desk()
    desk.ask("open", Open(desk.rig.opening()))
    desk.rig.clock.advance_ms(3)
    desk.drain()
    assert desk.answers["open"].queue_us == pytest.approx(3000, abs=1)
    client = Client(desk.rig.engine, desk.rig.opening(), [1, 2, 3])
    desk.ask("verify", Verify(client.request()))
    desk.rig.clock.advance_ms(7)
    desk.drain()
    assert desk.answers["verify"].timings.queue_us == pytest.approx(7000, abs=1)


def test_a_full_queue_refuses_with_a_hint_and_still_closes_and_describes() -> None:
    desk = Desk(max_queue=2)
    client = desk.client()
    desk.ask("one", Verify(client.request()))
    desk.ask("two", Open(desk.rig.opening(session_id="two")))
    for job in (Verify(client.request()), Open(desk.rig.opening(session_id="three"))):
        with pytest.raises(ResourceExhausted) as refusal:
            desk.ask("refused", job)
        assert refusal.value.field == "queue"
        assert (refusal.value.retry_after_ms or 0) >= 1
    desk.ask("describe", Describe())
    desk.ask("close", Close("two"))
    desk.drain()
    assert {"one", "two", "describe", "close"} == set(desk.answers)
    desk.ask("three", Open(desk.rig.opening(session_id="three")))


def test_a_cancelled_round_does_not_run() -> None:
    desk = Desk()
    client = desk.client()
    entry = desk.ask("gone", Verify(client.request(chain(4))))
    assert desk.worker.cancel(entry) is True
    assert desk.worker.cancel(entry) is False
    desk.drain()
    assert "gone" not in desk.answers
    assert client.round(chain(9)).tokens == (4,)


def test_a_round_in_its_pass_is_past_cancelling_and_its_receipt_is_kept() -> None:
    desk = Desk()
    client = desk.client()
    entry = desk.ask("round", Verify(client.request()))
    verdicts = []
    desk.rig.scripted.during_forward = lambda: verdicts.append(desk.worker.cancel(entry))
    desk.drain()
    assert verdicts == [False]
    assert desk.rig.engine.get_receipt("s", 0) is desk.answers["round"]


def test_a_prompt_abandoned_in_prefill_frees_its_kv() -> None:
    desk = Desk()
    entry = desk.ask("long", Open(desk.rig.opening(tuple([1] * 9))))
    desk.worker.step()
    assert len(desk.rig.scripted.slots) == 1
    assert desk.worker.cancel(entry) is True
    desk.drain()
    assert desk.rig.scripted.slots == []
    assert desk.answers == {}


def test_a_prompt_that_another_caller_still_waits_for_is_not_abandoned() -> None:
    desk = Desk()
    opening = desk.rig.opening(tuple([1] * 9))
    entry = desk.ask("first", Open(opening))
    desk.ask("second", Open(opening))
    desk.worker.step()
    desk.worker.cancel(entry)
    desk.drain()
    assert list(desk.answers) == ["second"]


def test_cancelling_a_repeated_open_leaves_the_open_session_alone() -> None:
    desk = Desk()
    client = desk.client()
    entry = desk.ask("again", Open(client.opening))
    desk.worker.cancel(entry)
    desk.drain()
    assert client.round().tokens == (4,)


def test_closing_overtakes_the_sessions_own_queued_work() -> None:
    desk = Desk()
    client = desk.client()
    desk.ask("long", Open(desk.rig.opening(tuple([1] * 9), session_id="long")))
    desk.worker.step()
    desk.ask("verify", Verify(client.request()))
    for session_id in ("s", "long"):
        desk.ask(f"close {session_id}", Close(session_id))
    desk.drain()
    assert isinstance(desk.answers["verify"], NotFound)
    assert isinstance(desk.answers["long"], NotFound)
    assert desk.rig.scripted.slots == []


def test_a_close_is_not_taken_back() -> None:
    desk = Desk()
    desk.client()
    assert desk.worker.cancel(desk.ask("close", Close("s"))) is False
    desk.drain()
    assert desk.rig.scripted.slots == []


def test_a_receipt_asked_for_while_its_round_waits_comes_after_the_round() -> None:
    desk = Desk(max_pass_rows=1)
    first, second = desk.client("first"), desk.client("second")
    desk.ask("first", Verify(first.request()))
    desk.ask("second", Verify(second.request()))
    desk.ask("receipt", GetReceipt("second", 0))
    desk.worker.step()
    assert "receipt" not in desk.answers
    desk.drain()
    assert desk.answers["receipt"] is desk.answers["second"]


def test_a_callback_that_raises_does_not_stop_the_worker(caplog: pytest.LogCaptureFixture) -> None:
    desk = Desk()

    def broken(_: object) -> None:
        raise ValueError("the caller's own fault")

    desk.worker.submit(Describe(), broken)
    desk.ask("describe", Describe())
    desk.drain()
    assert "describe" in desk.answers
    assert "callback of Describe" in caplog.text


def test_a_stopped_worker_answers_everyone_and_takes_nothing_more() -> None:
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
    desk.ask("waiting", Verify(client.request(round_id=1)))
    desk.ask("opening", Open(desk.rig.opening(tuple([1] * 9), session_id="other")))
    desk.worker.stop()
    leave.set()
    thread.join(30)
    assert not thread.is_alive()
    assert isinstance(desk.answers["running"], Receipt)
    assert isinstance(desk.answers["waiting"], Unavailable)
    assert isinstance(desk.answers["opening"], Unavailable)
    with pytest.raises(Unavailable):
        desk.ask("late", Describe())


def test_an_engine_that_breaks_in_a_batch_fails_the_batch_and_not_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk()
    client = desk.client()
    monkeypatch.setattr(desk.rig.engine, "verify_many", lambda *_, **__: 1 / 0)
    desk.ask("round", Verify(client.request()))
    desk.drain()
    assert isinstance(desk.answers["round"], DraftproofError)
    assert not isinstance(desk.answers["round"], Cancelled)
    monkeypatch.undo()
    desk.ask("again", Verify(client.request()))
    desk.drain()
    assert isinstance(desk.answers["again"], Receipt)
