"""Strict sessions on a backend whose rows keep their bits in small passes only: chains, and passes of their own."""

from __future__ import annotations

from dataclasses import replace

import pytest

from contracts.errors import InvalidArgument
from contracts.receipt import Receipt
from tests.unit.verifier.rig import LOOKUP, VOCAB, Rig, chain, tree, verify_one
from tests.unit.verifier.scripted_backend import ForkingBackend, ScriptedBackend, counting


def rig(rows: int) -> Rig:
    backend = ScriptedBackend(counting(VOCAB), vocab_size=VOCAB)
    backend.info = replace(backend.info, row_invariant_up_to=rows)
    return Rig(backend)


def test_a_strict_sessions_round_shares_its_pass_with_nobody() -> None:
    made = rig(8)
    strict = made.open(session_id="strict", strict=True, node_budget=7)
    others = [made.open(session_id=f"other {number}") for number in range(2)]
    assert isinstance(made.backend, ScriptedBackend)
    made.backend.passes.clear()
    clients = [others[0], strict, others[1]]
    outcomes = made.engine.verify_many([client.request(chain(4)) for client in clients])
    assert all(isinstance(outcome, Receipt) for outcome in outcomes)
    assert made.backend.passes == [[2, 2], [2]]


def test_strict_sessions_share_passes_where_any_rows_keep_their_bits() -> None:
    backend = ForkingBackend(counting(VOCAB), vocab_size=VOCAB)
    backend.info = replace(backend.info, row_invariant_up_to=1 << 30)
    made = Rig(backend)
    clients = [made.open(session_id=f"s{number}", strict=True) for number in range(2)]
    backend.passes.clear()
    made.engine.verify_many([client.request(tree([(4, -1), (9, -1)])) for client in clients])
    assert backend.passes == [[3, 3]]


def test_a_strict_session_refuses_candidates_that_branch() -> None:
    made = rig(8)
    client = made.open(strict=True, node_budget=7)
    with pytest.raises(InvalidArgument) as refusal:
        verify_one(made.engine, client.request(tree([(4, -1), (9, -1)])))
    assert refusal.value.field == "graph.rows"
    client.round(chain(4, 5))


@pytest.mark.parametrize(("rows", "most"), [(0, 0), (1, 0), (8, 7)])
def test_a_strict_budget_beyond_the_alike_rows_is_refused_when_the_session_opens(rows: int, most: int) -> None:
    made = rig(rows)
    with pytest.raises(InvalidArgument) as refusal:
        made.open(strict=True, node_budget=most + 1)
    assert refusal.value.field == "manifest.node_budget"
    made.open(strict=True, node_budget=most, sources=(LOOKUP,))
