"""Whatever breaks in a round, nothing of it is published, and the session goes on from where it was."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from contracts.errors import DraftproofError, Internal, InvalidArgument, NotFound, Unavailable
from contracts.graph import CandidateGraph
from contracts.randomness import Chooser
from contracts.receipt import Closing
from models.laws import TargetLaws
from tests.unit.verifier.rig import GREEDY, VOCAB, Client, Rig, chain, verify_one
from tests.unit.verifier.scripted_backend import counting
from verifier.selection import VERIFIERS
from verifier.selection.base import Selection


def state(rig: Rig, client: Client) -> tuple[object, ...]:
    slot = rig.scripted.slots[0]
    return list(slot.committed), slot.staged, list(client.tokens), rig.engine.kv_tokens_free


def goes_on_as_if_nothing_had_happened(rig: Rig, client: Client, before: tuple[object, ...]) -> None:
    assert state(rig, client) == before
    with pytest.raises(NotFound):
        rig.engine.get_receipt(client.session_id, client.next_round)
    receipt = client.absorb(verify_one(rig.engine, client.request(chain(5, 6, 9))))
    assert (receipt.tokens, receipt.generation) == ((5, 6, 7), 2)
    assert rig.scripted.slots[0].committed == client.tokens[:-1]


@pytest.fixture
def rig() -> Rig:
    return Rig()


@pytest.fixture
def client(rig: Rig) -> Client:
    client = rig.open((1, 2, 3))
    client.round()
    return client


@pytest.mark.parametrize("late", [False, True], ids=["before its work", "after its work"])
@pytest.mark.parametrize("call", ["forward", "commit"])
@pytest.mark.parametrize("error", [RuntimeError("out of memory"), Unavailable("", "device lost")])
def test_a_backend_that_raises_changes_nothing(
    rig: Rig, client: Client, call: str, late: bool, error: Exception
) -> None:
    before = state(rig, client)
    rig.scripted.faults[call] = error
    rig.scripted.late = {call} if late else set()
    with pytest.raises(Unavailable if isinstance(error, Unavailable) else Internal) as raised:
        verify_one(rig.engine, client.request(chain(5, 6, 9)))
    assert raised.value is error or raised.value.__cause__ is error
    goes_on_as_if_nothing_had_happened(rig, client, before)


def poisoned(when: Callable[[tuple[int, ...]], bool]) -> Callable[[tuple[int, ...]], np.ndarray]:
    sound = counting(VOCAB)

    def script(seen: tuple[int, ...]) -> np.ndarray:
        logits = sound(seen)
        if when(seen):
            logits[7] = np.nan
        return logits

    return script


@pytest.mark.parametrize("last", [4, 5, 6], ids=["anchor", "first candidate", "second candidate"])
@pytest.mark.parametrize("temperature", [0.0, 1e-2])
def test_nan_logits_where_the_verifier_looks_are_refused_by_name(last: int, temperature: float) -> None:
    rig = Rig()
    client = rig.open((1, 2, 3), replace(GREEDY, temperature=temperature))
    client.round()
    before = state(rig, client)
    rig.scripted.script = poisoned(lambda seen: seen[-1] == last)
    with pytest.raises(Internal) as raised:
        verify_one(rig.engine, client.request(chain(5, 6, 9)))
    assert raised.value.field == "logits"
    rig.scripted.script = counting(VOCAB)
    goes_on_as_if_nothing_had_happened(rig, client, before)


def test_a_policy_that_leaves_no_token_is_refused_and_the_session_lives(rig: Rig) -> None:
    client = rig.open((1, 2), replace(GREEDY, min_tokens=3, allowed_ids=(19,)), session_id="empty")
    with pytest.raises(InvalidArgument) as raised:
        client.round()
    assert raised.value.field == "sampling"
    assert rig.scripted.slots[0].committed == [1]


class Broken:
    """Greedy by name; raises, or chooses rows that are no path."""

    capability = VERIFIERS["greedy"].capability

    def __init__(self, rows: tuple[int, ...] | None) -> None:
        self.rows = rows

    def select(self, graph: CandidateGraph, laws: TargetLaws, chooser: Chooser, *, prefix_len: int) -> Selection:
        if self.rows is None:
            raise ZeroDivisionError
        return Selection(self.rows, 1, Closing.SAMPLE)


@pytest.mark.parametrize("rows", [None, (1,), (0, 2), (0, 0), (5,), (-1,)], ids=str)
def test_a_verifier_that_breaks_is_an_internal_error_and_publishes_nothing(rows: tuple[int, ...] | None) -> None:
    rig = Rig(verifiers={"greedy": Broken(rows)})
    client = rig.open()
    with pytest.raises(Internal):
        verify_one(rig.engine, client.request(chain(4, 5, 6)))
    slot = rig.scripted.slots[0]
    assert (slot.committed, slot.staged) == ([1, 2], 0)
    with pytest.raises(NotFound):
        rig.engine.get_receipt("s", 0)


def test_one_sessions_fault_in_a_shared_pass_does_not_fail_its_neighbours(rig: Rig, client: Client) -> None:
    neighbour = rig.open((7, 8), session_id="neighbour")
    sound = counting(VOCAB)

    def script(seen: tuple[int, ...]) -> np.ndarray:
        if seen[0] == 1:
            raise RuntimeError("this session's rows only")
        return sound(seen)

    rig.scripted.script = script
    before = state(rig, client)
    broken, fine = rig.engine.verify_many([client.request(chain(5)), neighbour.request(chain(9))])
    assert isinstance(broken, Internal)
    assert not isinstance(fine, DraftproofError)
    assert fine.tokens == (9, 10)
    rig.scripted.script = sound
    goes_on_as_if_nothing_had_happened(rig, client, before)


def test_a_commit_that_fails_for_one_session_leaves_the_others_published(rig: Rig, client: Client) -> None:
    neighbour = rig.open((7, 8), session_id="neighbour")
    before = state(rig, client)
    rig.scripted.faults["commit"] = RuntimeError("once")
    broken, fine = rig.engine.verify_many([client.request(chain(5)), neighbour.request(chain(9))])
    assert isinstance(broken, Internal)
    assert not isinstance(fine, DraftproofError)
    goes_on_as_if_nothing_had_happened(rig, client, before)


def test_a_session_whose_kv_cannot_be_restored_is_dropped_rather_than_wrong(rig: Rig, client: Client) -> None:
    rig.scripted.faults = {"commit": RuntimeError("first"), "truncate": RuntimeError("second")}
    with pytest.raises(Internal, match="first"):
        verify_one(rig.engine, client.request(chain(5)))
    assert rig.scripted.slots == []
    assert rig.engine.kv_tokens_free == rig.scripted.kv_tokens
    with pytest.raises(NotFound):
        client.round()
    again = rig.open(client.tokens, replace(GREEDY, max_tokens=16), session_id="again", published=1)
    assert again.round(chain(5)).tokens == (5, 6)


def test_a_release_that_fails_is_logged_and_the_session_is_gone(
    rig: Rig, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    rig.scripted.faults["release"] = RuntimeError("stuck")
    rig.engine.close_session("s")
    assert "not released" in caplog.text
    with pytest.raises(NotFound):
        client.round()


@pytest.mark.parametrize("call", ["forward", "commit"])
def test_a_prefill_that_fails_frees_its_kv_and_may_be_tried_again(call: str) -> None:
    rig = Rig(prefill_chunk=2)
    opening = rig.opening((1, 2, 3, 4, 5, 6))
    rig.engine.begin_session(opening)
    assert rig.engine.prefill("s") is None
    rig.scripted.faults[call] = RuntimeError("once")
    with pytest.raises(Internal, match="once"):
        rig.engine.prefill("s")
    assert rig.scripted.slots == []
    with pytest.raises(NotFound):
        rig.engine.prefill("s")
    assert rig.open((1, 2, 3, 4, 5, 6)).round().tokens == (7,)


def test_an_allocation_that_fails_leaves_no_session_behind() -> None:
    rig = Rig()
    rig.scripted.faults["allocate"] = MemoryError("once")
    with pytest.raises(Internal, match="once"):
        rig.engine.open_session(rig.opening())
    assert rig.engine.kv_tokens_free == rig.scripted.kv_tokens
    rig.open()


def test_a_lost_reply_is_answered_by_the_receipt_and_never_rolled_again(rig: Rig, client: Client) -> None:
    request = client.request(chain(5, 6))
    lost = verify_one(rig.engine, request)
    passes = len(rig.scripted.passes)
    assert rig.engine.get_receipt("s", request.manifest.round_id) is lost
    assert verify_one(rig.engine, request) is lost
    assert len(rig.scripted.passes) == passes
    client.absorb(lost)
    assert client.round().tokens == (8,)


def test_a_dead_backend_fails_every_round_and_a_revived_one_serves_the_same_sessions(rig: Rig, client: Client) -> None:
    neighbour = rig.open((7, 8), session_id="neighbour")
    rig.scripted.stubborn["forward"] = RuntimeError("dead")
    outcomes = rig.engine.verify_many([client.request(), neighbour.request()])
    assert all(isinstance(outcome, Internal) for outcome in outcomes)
    rig.scripted.stubborn.clear()
    assert client.round().tokens == (5,)
    assert neighbour.round().tokens == (9,)
