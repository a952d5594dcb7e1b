"""A round's ledger from measured and reported times."""

import numpy as np
import pytest
from msgspec.structs import replace

from contracts.graph import CandidateGraph, Draw
from contracts.receipt import Closing, Receipt, VerifyTimings
from orchestrator.costs import round_ledger
from orchestrator.gather import Gathered, Offer
from orchestrator.recovery import Answer

GRAPH = CandidateGraph(
    np.array([5, 6, 7]),
    np.array([-1, 0, 0]),
    (("a", "b"), ("a",), ("b",)),
    (Draw(-1, 0, "a"), Draw(0, 1, "a"), Draw(0, 2, "b")),
)


def answer(*, wall_us: float = 100.0, recovered: bool = False, timings: VerifyTimings | None = None) -> Answer:
    receipt = Receipt(
        "s", 0, "d", "r", 1, 12, (5, 6, 9), (0, 1), Closing.BONUS, timings=timings or VerifyTimings(10, 5, 40, 20, 5)
    )
    return Answer(receipt, 0, wall_us, recovered)


def ledger(**changes):
    gathered = Gathered((Offer("a", False, 30.0), Offer("b", True, 10.0)), wall_us=50.0)
    given = {"total_us": 200.0, "packing_us": 7.0, "gathered": gathered, "answer": answer(), "graph": GRAPH, "kept": 3}
    return round_ledger(**{**given, **changes})


def test_components_add_up_to_the_round():
    found = ledger()
    assert found.total_us == pytest.approx(200.0)
    assert (found.queue, found.verify, found.selection, found.state) == (10.0, 40.0, 20.0, 5.0)
    assert found.packing == 12.0
    assert found.other == pytest.approx(200.0 - 50.0 - 7.0 - 100.0)


def test_side_by_side_sources_share_what_the_round_waited_for_them():
    found = ledger()
    assert (found.proposal, found.retrieval) == (22.5, 7.5)
    assert found.wire == pytest.approx((50.0 - 30.0) + (100.0 - 80.0))


def test_peers_whose_clocks_run_fast_are_scaled_into_the_call():
    found = ledger(answer=answer(wall_us=40.0))
    assert found.verify == pytest.approx(20.0)
    assert found.total_us == pytest.approx(200.0)
    assert found.wire == pytest.approx(20.0)


def test_what_a_lost_reply_cost_is_not_called_wire():
    found = ledger(answer=answer(wall_us=140.0, recovered=True))
    assert found.wire == pytest.approx(20.0)
    assert found.other == pytest.approx(200.0 - 50.0 - 7.0 - 80.0)


def test_waiting_for_room_in_a_full_queue_is_queueing():
    found = ledger(answer=replace(answer(wall_us=140.0), waited_us=40.0))
    assert (found.queue, found.verify) == (50.0, 40.0)
    assert found.wire == pytest.approx(40.0)
    assert found.total_us == pytest.approx(200.0)


def test_a_round_that_asked_nobody_has_no_proposal_cost():
    found = ledger(gathered=Gathered())
    assert (found.proposal, found.retrieval) == (0.0, 0.0)
    assert found.total_us == pytest.approx(200.0)


def test_rows_past_a_stop_are_not_counted_as_accepted():
    assert (ledger().accepted, ledger().accepted_by) == (2, {"a": 2, "b": 1})
    cut = ledger(kept=1)
    assert (cut.committed, cut.accepted, cut.accepted_by) == (1, 1, {"a": 1, "b": 1})
    assert cut.proposed_by == {"a": 2, "b": 2}
