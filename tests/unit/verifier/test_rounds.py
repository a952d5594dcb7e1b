from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from contracts.errors import DraftproofError, FailedPrecondition
from contracts.graph import EMPTY_GRAPH
from contracts.receipt import Closing, FinishReason
from contracts.sampling import SamplingPolicy
from tests.unit.verifier.rig import EOS, GREEDY, Client, Rig, chain, tree
from tests.unit.verifier.scripted_backend import hashing


def test_a_round_without_candidates_is_one_plain_step() -> None:
    rig = Rig()
    receipt = rig.open((1, 2, 3)).round()
    assert (receipt.tokens, receipt.accepted_rows, receipt.closing) == ((4,), (), Closing.SAMPLE)
    assert (receipt.generation, receipt.prefix_len) == (1, 4)
    assert (receipt.pass_rows, receipt.pass_sessions) == (1, 1)
    assert rig.committed == [1, 2, 3]


def test_right_guesses_are_published_with_one_token_more() -> None:
    rig = Rig()
    receipt = rig.open((1, 2, 3)).round(chain(4, 5, 6))
    assert receipt.tokens == (4, 5, 6, 7)
    assert receipt.accepted_rows == (0, 1, 2)
    assert rig.committed == [1, 2, 3, 4, 5, 6]


def test_the_winning_branch_of_a_tree_is_gathered_and_its_siblings_vanish() -> None:
    rig = Rig()
    client = rig.open((1, 2, 3))
    receipt = client.round(tree([(9, -1), (4, -1), (9, 0), (8, 1), (5, 1), (6, 2), (6, 4)]))
    assert receipt.tokens == (4, 5, 6, 7)
    assert receipt.accepted_rows == (1, 4, 6)
    assert rig.committed == [1, 2, 3, 4, 5, 6]
    assert client.round(chain(8)).tokens == (8, 9)


def test_wrong_guesses_cost_nothing_but_rows() -> None:
    rig = Rig()
    receipt = rig.open((1, 2, 3)).round(chain(9, 10, 11))
    assert (receipt.tokens, receipt.accepted_rows) == ((4,), ())
    assert receipt.pass_rows == 4
    assert rig.committed == [1, 2, 3]


@pytest.mark.parametrize("guesses", [(17, 18, 19, 0), (17, 18, 19), (17, 18), (17,), ()])
def test_eos_ends_the_text_wherever_in_the_round_it_falls(guesses: tuple[int, ...]) -> None:
    rig = Rig()
    client = rig.open((15, 16))
    while client.finish is FinishReason.NONE:
        left = guesses[len(client.published) :]
        receipt = client.round(chain(*left) if left and not client.published else EMPTY_GRAPH)
        assert len(rig.committed) == len(client.tokens) - 1
    assert client.published == [17, 18, EOS]
    assert client.finish is FinishReason.STOP
    assert rig.committed == client.tokens[:-1]
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
    assert rig.committed == [1, 2, 3, 4, 5]
    assert Rig().open((1, 2, 3), policy).run() == [4, 5, 6]


@pytest.mark.parametrize(("limit", "rows"), [(1, (0,)), (2, (0, 1)), (3, (0, 1, 2)), (4, (0, 1, 2))])
def test_max_tokens_ends_the_text_inside_the_path_and_outside(limit: int, rows: tuple[int, ...]) -> None:
    rig = Rig()
    receipt = rig.open((1, 2, 3), replace(GREEDY, max_tokens=limit)).round(chain(4, 5, 6))
    assert receipt.tokens == (4, 5, 6, 7)[:limit]
    assert receipt.accepted_rows == rows
    assert receipt.finish is FinishReason.LENGTH
    assert rig.committed == [1, 2, 3, 4, 5, 6][: 2 + limit]


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


def test_the_seed_decides_the_sampled_text() -> None:
    def text(seed: int) -> list[int]:
        policy = SamplingPolicy(temperature=1.0, seed=seed, max_tokens=12, ignore_eos=True)
        return Rig(script=hashing(20)).open((1, 2), policy).run()

    assert text(1) == text(1)
    assert text(1) != text(2)
