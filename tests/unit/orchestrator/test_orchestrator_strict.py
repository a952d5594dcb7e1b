"""What a request seals about how candidates are chosen: the budget's policy, and the strict promise."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from contracts.errors import FailedPrecondition
from contracts.manifest import ANY_ROWS
from orchestrator.settings import OrchestratorSettings
from tests.helpers.fakes import FakeProposer, FakeVerifier, babble, collect, drop_session, oracle
from tests.helpers.generation import GREEDY, SAMPLED, ask, orchestrator, tokens_of

ADAPTIVE = OrchestratorSettings(budget="adaptive", propose_deadline_ms=60_000.0, retry_delays_ms=(0.0,))
LAWFUL = {"verifier": "rejection", "sources": (), "policy": SAMPLED}


def verifier(rows: int = 0) -> FakeVerifier:
    fake = FakeVerifier()
    fake.target = replace(fake.target, row_invariant_up_to=rows)
    return fake


async def run(fake: FakeVerifier, settings: OrchestratorSettings = ADAPTIVE, **fields: object):
    service = orchestrator(fake, proposers=[FakeProposer({"prompt_lookup": oracle(babble)})], settings=settings)
    return await collect(service.generate(ask(**fields)))


def sealed(final) -> dict[str, object]:
    return json.loads(final.certificate.manifest)


@pytest.mark.parametrize(
    ("fields", "policy"), [({}, "adaptive"), ({"budget": "fixed"}, "fixed"), ({"budget": "adaptive"}, "adaptive")]
)
async def test_a_requests_budget_policy_is_sealed_and_the_process_says_what_is_usual(fields, policy):
    _, final = await run(verifier(), **fields)
    assert sealed(final)["budget"] == policy


async def test_a_request_may_be_adaptive_where_the_process_is_fixed():
    _, final = await run(verifier(), replace(ADAPTIVE, budget="fixed"), budget="adaptive")
    assert sealed(final)["budget"] == "adaptive"


async def test_a_fixed_request_verifies_all_that_is_offered_in_an_adaptive_process():
    fixed, adaptive = verifier(), verifier()
    chunks, _ = await run(fixed, budget="fixed")
    same, _ = await run(adaptive, budget="adaptive")
    assert tokens_of(chunks) == tokens_of(same)
    offered = [len(request.graph) for request in fixed.verified]
    again = verifier()
    await run(again, budget="fixed")
    assert [len(request.graph) for request in again.verified] == offered


async def test_verifiers_that_walk_laws_are_sealed_fixed_and_refuse_anything_else():
    _, final = await run(verifier(), **LAWFUL)
    assert sealed(final)["budget"] == "fixed"
    with pytest.raises(FailedPrecondition) as refusal:
        await run(verifier(), budget="adaptive", **LAWFUL)
    assert refusal.value.field == "budget"


async def test_strict_changes_nothing_but_the_seal_where_any_rows_keep_their_bits():
    plain, strict = verifier(ANY_ROWS), verifier(ANY_ROWS)
    chunks, _ = await run(plain, budget="fixed")
    same, final = await run(strict, budget="fixed", strict=True)
    assert sealed(final)["strict"] is True
    assert tokens_of(same) == tokens_of(chunks)
    assert [r.graph.token_list for r in strict.verified] == [r.graph.token_list for r in plain.verified]


async def test_strict_on_a_backend_of_few_alike_rows_verifies_chains_that_fit_them():
    fake = verifier(4)
    chunks, final = await run(fake, strict=True, budget="fixed", node_budget=16)
    assert sealed(final)["node_budget"] == 3
    assert max(len(request.graph) for request in fake.verified) == 3
    assert all(request.graph.deepest == len(request.graph) for request in fake.verified)
    assert tokens_of(chunks) == tokens_of((await run(verifier(4)))[0])


@pytest.mark.parametrize("rows", [0, 1])
async def test_strict_is_refused_by_name_where_no_candidate_keeps_its_bits_but_not_plain_decoding(rows):
    with pytest.raises(FailedPrecondition) as refusal:
        await run(verifier(rows), strict=True)
    assert refusal.value.field == "strict"
    _, final = await run(verifier(rows), strict=True, speculation=False)
    assert (sealed(final)["strict"], sealed(final)["node_budget"]) == (True, 0)


async def test_strict_is_refused_for_a_verifier_whose_text_depends_on_what_was_proposed():
    with pytest.raises(FailedPrecondition) as refusal:
        await run(verifier(ANY_ROWS), strict=True, verifier="typical", exact_mode=False, policy=GREEDY)
    assert refusal.value.field == "strict"


@pytest.mark.parametrize("rows", [4, ANY_ROWS])
async def test_a_strict_request_moves_only_where_it_keeps_its_bits(rows):
    fake = verifier(rows)
    fake.before.extend([None, drop_session])
    if rows == ANY_ROWS:
        chunks, final = await run(fake, strict=True)
        assert final.certificate.sessions == 2
        assert tokens_of(chunks) == tokens_of((await run(verifier(rows)))[0])
        return
    with pytest.raises(FailedPrecondition) as refusal:
        await run(fake, strict=True)
    assert refusal.value.field == "strict"


@pytest.mark.parametrize("field", ["backend", "build"])
async def test_a_strict_request_does_not_go_on_where_something_else_computes(field):
    async def another(fake, request):
        fake.target = replace(fake.target, **{field: "another"})
        await drop_session(fake, request)

    fake = verifier(ANY_ROWS)
    fake.before.extend([None, another])
    with pytest.raises(FailedPrecondition) as refusal:
        await run(fake, strict=True)
    assert refusal.value.field == "strict"
