from __future__ import annotations

import pytest

from contracts.errors import AlreadyExists, DraftproofError, FailedPrecondition, NotFound
from contracts.payload import payload_digest
from tests.unit.verifier.rig import Rig, chain, verify_one


def test_a_repeated_call_returns_the_kept_receipt_and_runs_nothing() -> None:
    rig = Rig()
    client = rig.open()
    request = client.request(chain(4, 9))
    receipt = client.absorb(verify_one(rig.engine, request))
    passes, state = len(rig.scripted.passes), rig.committed.copy()
    assert verify_one(rig.engine, request) is receipt
    assert (len(rig.scripted.passes), rig.committed) == (passes, state)
    assert client.round().tokens == (6,)


def test_a_repeat_is_answered_even_after_the_generation_moved_on() -> None:
    rig = Rig()
    client = rig.open()
    request = client.request()
    receipt = client.absorb(verify_one(rig.engine, request))
    client.absorb(verify_one(rig.engine, client.request()))
    assert verify_one(rig.engine, request) is receipt


def test_a_round_id_with_another_payload_is_refused() -> None:
    client = Rig().open()
    request = client.request()
    verify_one(client.engine, request)
    with pytest.raises(AlreadyExists, match="round_id"):
        verify_one(client.engine, client.request(chain(4)))


def test_receipts_are_kept_until_the_next_round_acknowledges_them() -> None:
    rig = Rig()
    client = rig.open()
    first = client.absorb(verify_one(rig.engine, client.request()))
    second = client.absorb(verify_one(rig.engine, client.request()))
    assert rig.engine.get_receipt("s", 0) is first
    third = client.absorb(verify_one(rig.engine, client.request(acknowledge=0)))
    with pytest.raises(NotFound, match="round 0"):
        rig.engine.get_receipt("s", 0)
    assert rig.engine.get_receipt("s", 1) is second
    assert rig.engine.get_receipt("s", 2) is third


def test_a_refused_round_acknowledges_nothing() -> None:
    rig = Rig()
    client = rig.open()
    first = client.absorb(verify_one(rig.engine, client.request()))
    with pytest.raises(FailedPrecondition):
        verify_one(rig.engine, client.request(acknowledge=0, target_generation=9))
    assert rig.engine.get_receipt("s", 0) is first


def test_no_round_no_receipt() -> None:
    rig = Rig()
    rig.open()
    with pytest.raises(NotFound):
        rig.engine.get_receipt("s", 0)
    with pytest.raises(NotFound):
        rig.engine.get_receipt("unknown", 0)


def test_a_call_and_its_repeat_in_one_batch_run_once() -> None:
    rig = Rig()
    client = rig.open()
    request = client.request(chain(4))
    before = len(rig.scripted.passes)
    first, second = rig.engine.verify_many([request, request])
    assert first is second
    assert len(rig.scripted.passes) == before + 1


def test_leases_lapse_unless_a_call_renews_them() -> None:
    rig = Rig()
    busy, idle = rig.open(session_id="busy"), rig.open(session_id="idle", lease_ms=50)
    rig.clock.advance_ms(40)
    idle.round()
    rig.clock.advance_ms(40)
    assert rig.engine.sessions.expire() == ()
    busy.round()
    rig.clock.advance_ms(40)
    assert rig.engine.sessions.expire() == ("idle",)
    assert len(rig.scripted.slots) == 1
    with pytest.raises(NotFound):
        idle.round()
    assert busy.round().tokens == (5,)


def test_a_receipt_states_where_the_time_went() -> None:
    rig = Rig()
    client = rig.open()
    (outcome,) = rig.engine.verify_many([client.request(chain(4))], queued_us=[125.0])
    assert not isinstance(outcome, DraftproofError)
    timings = outcome.timings
    assert timings.queue_us >= 125.0
    assert min(timings.pack_us, timings.target_us, timings.select_us, timings.commit_us) > 0.0


def test_a_receipt_names_its_round_and_payload() -> None:
    client = Rig().open()
    request = client.request(chain(4))
    receipt = verify_one(client.engine, request)
    assert receipt.payload_digest == payload_digest(request.manifest, request.graph)
    assert receipt.round_hash == request.manifest.hash
    assert (receipt.session_id, receipt.round_id) == ("s", 0)


def test_a_rounds_times_add_up_to_its_wait_whoever_shared_the_pass() -> None:
    rig = Rig()
    wide, narrow = rig.open(session_id="wide"), rig.open(session_id="narrow")
    rig.scripted.during_forward = lambda: rig.clock.advance_ms(8)
    outcomes = rig.engine.verify_many([wide.request(chain(4, 5)), narrow.request()], queued_us=[1000.0, 2000.0])
    times = [outcome.timings for outcome in outcomes if not isinstance(outcome, DraftproofError)]
    assert [round(t.target_us) for t in times] == [6000, 2000]
    assert [round(t.queue_us) for t in times] == [1000 + 2000, 2000 + 6000]
    assert [round(t.total_us) for t in times] == [9000, 10000]
