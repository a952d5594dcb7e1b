from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from contracts.draft_law import DraftLaw
from contracts.errors import AlreadyExists, DraftproofError, FailedPrecondition, InvalidArgument, NotFound
from contracts.graph import EMPTY_GRAPH, CandidateGraph, Draw
from contracts.payload import payload_digest
from contracts.receipt import Closing, FinishReason
from contracts.sampling import SamplingPolicy
from contracts.topology import ProbabilitySemantics, SamplingRelation
from tests.unit.verifier.rig import EOS, GREEDY, Client, Rig, chain, tree, verify_one
from tests.unit.verifier.scripted_backend import hashing


def committed(rig: Rig) -> list[int]:
    return rig.scripted.slots[0].committed


def test_a_round_without_candidates_is_one_plain_step() -> None:
    rig = Rig()
    receipt = rig.open((1, 2, 3)).round()
    assert (receipt.tokens, receipt.accepted_rows, receipt.closing) == ((4,), (), Closing.SAMPLE)
    assert (receipt.generation, receipt.prefix_len) == (1, 4)
    assert (receipt.pass_rows, receipt.pass_sessions) == (1, 1)
    assert committed(rig) == [1, 2, 3]


def test_right_guesses_are_published_with_one_token_more() -> None:
    rig = Rig()
    receipt = rig.open((1, 2, 3)).round(chain(4, 5, 6))
    assert receipt.tokens == (4, 5, 6, 7)
    assert receipt.accepted_rows == (0, 1, 2)
    assert committed(rig) == [1, 2, 3, 4, 5, 6]


def test_the_winning_branch_of_a_tree_is_gathered_and_its_siblings_vanish() -> None:
    rig = Rig()
    client = rig.open((1, 2, 3))
    receipt = client.round(tree([(9, -1), (4, -1), (9, 0), (8, 1), (5, 1), (6, 2), (6, 4)]))
    assert receipt.tokens == (4, 5, 6, 7)
    assert receipt.accepted_rows == (1, 4, 6)
    assert committed(rig) == [1, 2, 3, 4, 5, 6]
    assert client.round(chain(8)).tokens == (8, 9)


def test_wrong_guesses_cost_nothing_but_rows() -> None:
    rig = Rig()
    receipt = rig.open((1, 2, 3)).round(chain(9, 10, 11))
    assert (receipt.tokens, receipt.accepted_rows) == ((4,), ())
    assert receipt.pass_rows == 4
    assert committed(rig) == [1, 2, 3]


@pytest.mark.parametrize("guesses", [(17, 18, 19, 0), (17, 18, 19), (17, 18), (17,), ()])
def test_eos_ends_the_text_wherever_in_the_round_it_falls(guesses: tuple[int, ...]) -> None:
    rig = Rig()
    client = rig.open((15, 16))
    while client.finish is FinishReason.NONE:
        left = guesses[len(client.published) :]
        receipt = client.round(chain(*left) if left and not client.published else EMPTY_GRAPH)
        assert len(committed(rig)) == len(client.tokens) - 1
    assert client.published == [17, 18, EOS]
    assert client.finish is FinishReason.STOP
    assert committed(rig) == client.tokens[:-1]
    if len(guesses) >= 3:
        assert (receipt.accepted_rows, receipt.closing) == ((0, 1, 2), Closing.NONE)


def test_ignored_eos_does_not_end_the_text() -> None:
    client = Rig().open((15, 16), replace(GREEDY, ignore_eos=True, max_tokens=6))
    assert client.round(chain(17, 18, 19, 0)).tokens == (17, 18, 19, 0, 1)
    assert client.finish is FinishReason.NONE


def test_a_stop_id_ends_the_text_inside_the_path_and_outside() -> None:
    policy = replace(GREEDY, stop_ids=(6, 9))
    rig = Rig()
    receipt = rig.open((1, 2, 3), policy).round(chain(4, 5, 6, 7))
    assert (receipt.tokens, receipt.accepted_rows) == ((4, 5, 6), (0, 1, 2))
    assert (receipt.finish, receipt.closing) == (FinishReason.STOP, Closing.NONE)
    assert committed(rig) == [1, 2, 3, 4, 5]
    assert Rig().open((1, 2, 3), policy).run() == [4, 5, 6]


@pytest.mark.parametrize(("limit", "rows"), [(1, (0,)), (2, (0, 1)), (3, (0, 1, 2)), (4, (0, 1, 2))])
def test_max_tokens_ends_the_text_inside_the_path_and_outside(limit: int, rows: tuple[int, ...]) -> None:
    rig = Rig()
    receipt = rig.open((1, 2, 3), replace(GREEDY, max_tokens=limit)).round(chain(4, 5, 6))
    assert receipt.tokens == (4, 5, 6, 7)[:limit]
    assert receipt.accepted_rows == rows
    assert receipt.finish is FinishReason.LENGTH
    assert committed(rig) == [1, 2, 3, 4, 5, 6][: 2 + limit]


def test_candidates_past_the_length_limit_never_reach_the_target() -> None:
    rig = Rig()
    prompt = list(np.arange(126) % 19)
    client = rig.open(prompt, replace(GREEDY, max_tokens=2))
    receipt = client.round(tree([(12, -1), (13, 0), (14, 1), (15, 2), (9, -1)]))
    assert receipt.tokens == (12, 13)
    assert receipt.pass_rows == 4


def test_accepted_rows_name_the_requests_rows_after_far_candidates_went() -> None:
    rig = Rig()
    client = rig.open((1, 2, 3), replace(GREEDY, max_tokens=2))
    receipt = client.round(tree([(9, -1), (8, 0), (7, 1), (4, -1), (5, 3), (6, 4)]))
    assert receipt.tokens == (4, 5)
    assert receipt.accepted_rows == (3, 4)


def test_min_tokens_keep_eos_and_stop_ids_away() -> None:
    policy = replace(GREEDY, min_tokens=4, stop_ids=(18,))
    client = Rig().open((15, 16), policy)
    client.round(chain(17, 18, 19))
    assert 18 not in client.published
    assert len(client.run()) >= 4


def test_a_finished_session_refuses_rounds_and_still_replays() -> None:
    client = Rig().open((1, 2, 3), replace(GREEDY, max_tokens=1))
    request = client.request()
    receipt = verify_one(client.engine, request)
    client.absorb(receipt)
    with pytest.raises(FailedPrecondition, match="ended"):
        client.round()
    assert verify_one(client.engine, request) == receipt


def test_a_repeated_call_returns_the_kept_receipt_and_runs_nothing() -> None:
    rig = Rig()
    client = rig.open()
    request = client.request(chain(4, 9))
    receipt = client.absorb(verify_one(rig.engine, request))
    passes, state = len(rig.scripted.passes), committed(rig).copy()
    assert verify_one(rig.engine, request) is receipt
    assert (len(rig.scripted.passes), committed(rig)) == (passes, state)
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


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"manifest_hash": "0" * 64}, "manifest.manifest_hash"),
        ({"target_generation": 0}, "manifest.target_generation"),
        ({"target_generation": 2}, "manifest.target_generation"),
        ({"prefix_len": 3}, "manifest.prefix_len"),
        ({"frontier": "0" * 64}, "manifest.frontier"),
        ({"round_id": -5}, "manifest.round_id"),
    ],
)
def test_a_round_under_other_coordinates_is_refused_by_field(change: dict[str, Any], field: str) -> None:
    client = Rig().open()
    client.round()
    with pytest.raises(FailedPrecondition) as refusal:
        verify_one(client.engine, client.request(**change))
    assert refusal.value.field == field
    assert client.round().tokens == (5,)


def test_a_payload_that_is_not_what_its_digest_says_is_refused() -> None:
    client = Rig().open()
    tampered = replace(client.request(chain(4)), graph=chain(5))
    with pytest.raises(InvalidArgument, match="payload_digest"):
        verify_one(client.engine, tampered)
    assert client.round(chain(4)).tokens == (4, 5)


LAW = DraftLaw(np.array([4, 5]), np.array([1 << 31, 1 << 31]))

BAD_GRAPHS = {
    "a cycle": (tree([(4, 1), (5, 0)]), "graph.rows[0].parent"),
    "its own parent": (tree([(4, 0)]), "graph.rows[0].parent"),
    "a forward parent": (tree([(4, -1), (5, 2), (6, 1)]), "graph.rows[1].parent"),
    "a parent below the anchor": (tree([(4, -2)]), "graph.rows[0].parent"),
    "a token past the vocabulary": (tree([(20, -1)]), "graph.token_ids"),
    "a negative token": (tree([(-1, -1)]), "graph.token_ids"),
    "too many rows": (tree([(row, -1) for row in range(17)]), "graph.token_ids"),
    "too deep": (chain(*range(4, 16), 16), "graph.rows"),
    "two rows of one prefix": (tree([(4, -1), (4, -1)]), "graph.rows"),
    "rows nobody drew": (tree([(4, -1)], draws=()), "graph.draws"),
    "a draw of another parent": (tree([(4, -1), (5, 0)], draws=(Draw(-1, 0, "a"), Draw(-1, 1, "a"))), "graph.draws[1]"),
    "a law that is not there": (tree([(4, -1)], draws=(Draw(-1, 0, "a", 3),)), "graph.draws[0].law"),
    "fewer parents than rows": (tree([(4, -1), (5, 0)], parents=np.array([-1])), "graph.parents"),
    "a law that is not normalised": (
        tree([(4, -1)], laws=(replace(LAW, weights=np.array([1, 2])),)),
        "graph.laws[0].weights",
    ),
}


@pytest.mark.parametrize(("graph", "field"), BAD_GRAPHS.values(), ids=BAD_GRAPHS.keys())
def test_a_bad_graph_is_refused_by_field_and_the_session_lives(graph: CandidateGraph, field: str) -> None:
    rig = Rig()
    client = rig.open(max_depth=12)
    with pytest.raises(InvalidArgument) as refusal:
        verify_one(rig.engine, client.request(graph))
    assert refusal.value.field == field
    assert rig.scripted.slots[0].staged == 0
    assert client.round(chain(4)).tokens == (4, 5)


def test_a_pair_that_is_not_proved_compatible_never_reaches_the_target() -> None:
    rig = Rig()
    policy = SamplingPolicy(temperature=1.0, max_tokens=8)
    client = rig.open(policy=policy, verifier="rejection", sources=())
    passes = len(rig.scripted.passes)
    with pytest.raises(FailedPrecondition) as refusal:
        verify_one(rig.engine, client.request(chain(4)))
    assert refusal.value.field.startswith("proposal.")
    assert len(rig.scripted.passes) == passes
    drawn = tree(
        [(4, -1)],
        draws=(Draw(-1, 0, "draft", 0),),
        laws=(LAW,),
        semantics=frozenset({ProbabilitySemantics.NORMALIZED_CONDITIONAL}),
        relations=frozenset({SamplingRelation.INDEPENDENT}),
    )
    assert client.round(drawn).tokens


def test_logprobs_are_those_of_the_processed_law_and_as_many_as_the_published_tokens() -> None:
    policy = SamplingPolicy(temperature=0.7, seed=3, logprobs=2, max_tokens=5, ignore_eos=True)
    script = hashing(20)
    plain = Rig(script=script).open((1, 2), replace(policy, logprobs=None)).run()
    rig = Rig(script=script)
    client = rig.open((1, 2), policy)
    receipt = client.round(chain(*plain))
    assert receipt.tokens == tuple(plain)
    assert receipt.accepted_rows == (0, 1, 2, 3, 4)
    assert len(receipt.logprobs) == 5
    for index, reported in enumerate(receipt.logprobs):
        logits = script((1, 2, *plain[:index])).astype(np.float64) / 0.7
        law = logits - np.log(np.exp(logits).sum())
        assert reported.logprob == pytest.approx(law[plain[index]], abs=1e-5)
        assert reported.top_ids == tuple(np.argsort(-law)[:2])
        np.testing.assert_allclose(reported.top_logprobs, np.sort(law)[::-1][:2], atol=1e-5)


def test_no_logprob_is_left_past_a_stop() -> None:
    client = Rig().open((15, 16), replace(GREEDY, logprobs=0))
    receipt = client.round(chain(17, 18, 19, 0, 1))
    assert len(receipt.logprobs) == len(receipt.tokens) == 3
    assert all(entry.top_ids == () for entry in receipt.logprobs)
    assert Rig().open((15, 16)).round(chain(17)).logprobs == ()


def test_the_sampled_text_does_not_depend_on_the_proposals() -> None:
    policy = SamplingPolicy(temperature=1.0, seed=11, max_tokens=12, ignore_eos=True)
    plain = Rig(script=hashing(20)).open((1, 2), policy).run()
    client = Rig(script=hashing(20)).open((1, 2), policy)
    while client.finish is FinishReason.NONE:
        right = plain[len(client.published) :][:3]
        client.round(chain(*right, 0, 0) if len(client.receipts) % 2 else chain(3, 4))
    assert client.published == plain
    assert len(client.receipts) < len(plain)


def test_sessions_in_one_pass_get_what_they_get_alone_and_share_its_cost_by_rows() -> None:
    policies = [GREEDY, SamplingPolicy(temperature=1.0, seed=5, max_tokens=16), replace(GREEDY, logprobs=1)]
    graphs = [chain(4, 5), tree([(7, -1), (2, -1), (3, 1)]), EMPTY_GRAPH]

    def clients(rig: Rig) -> list[Client]:
        return [rig.open((1, 2, 3), policy, session_id=f"s{i}") for i, policy in enumerate(policies)]

    alone = [client.round(graph) for client, graph in zip(clients(Rig(script=hashing(20))), graphs, strict=True)]
    rig = Rig(script=hashing(20))
    together = clients(rig)
    before = len(rig.scripted.passes)
    outcomes = rig.engine.verify_many([c.request(g) for c, g in zip(together, graphs, strict=True)])
    assert rig.scripted.passes[before:] == [[3, 4, 1]]
    for outcome, single in zip(outcomes, alone, strict=True):
        assert not isinstance(outcome, DraftproofError)
        assert outcome.tokens == single.tokens
        assert outcome.logprobs == single.logprobs
        assert (outcome.pass_rows, outcome.pass_sessions) == (8, 3)
    shares = [outcome.timings.target_us for outcome in outcomes if not isinstance(outcome, DraftproofError)]
    assert shares[0] / 3 == pytest.approx(shares[1] / 4) == pytest.approx(shares[2])


def test_a_refused_round_does_not_hold_up_its_neighbours() -> None:
    rig = Rig()
    good, bad = rig.open(session_id="good"), rig.open(session_id="bad")
    outcomes = rig.engine.verify_many([bad.request(target_generation=4), good.request(chain(4))])
    assert isinstance(outcomes[0], FailedPrecondition)
    assert not isinstance(outcomes[1], DraftproofError)
    assert outcomes[1].tokens == (4, 5)


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
    assert rig.engine.expire_leases() == ()
    busy.round()
    rig.clock.advance_ms(40)
    assert rig.engine.expire_leases() == ("idle",)
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


def test_the_seed_decides_the_sampled_text() -> None:
    def text(seed: int) -> list[int]:
        policy = SamplingPolicy(temperature=1.0, seed=seed, max_tokens=12, ignore_eos=True)
        return Rig(script=hashing(20)).open((1, 2), policy).run()

    assert text(1) == text(1)
    assert text(1) != text(2)
