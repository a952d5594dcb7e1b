from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from contracts.errors import InvalidArgument
from contracts.proposal import Proposal, check_proposal
from contracts.topology import ProbabilitySemantics, SamplingRelation, Topology
from proposer.match_strength import matched_before_edit, strongest
from proposer.prompt_lookup import PromptLookup, PromptLookupSettings
from tests.unit.proposer.rounds import Rounds, session_manifest


def propose(settings: PromptLookupSettings, prefix: list[int], **request: Any) -> Proposal:
    source = PromptLookup(settings)
    rounds = Rounds(session_manifest([source.describe()]))
    asked = rounds.request("prompt_lookup", prefix, **request)
    proposal = source.propose(asked)
    check_proposal(proposal, vocab_size=97, round_hash=asked.manifest.hash, max_nodes=asked.node_budget)
    return proposal


def paths(proposal: Proposal) -> set[tuple[int, ...]]:
    out: list[tuple[int, ...]] = []
    for node in proposal.nodes:
        out.append((*(out[node.parent] if node.parent >= 0 else ()), node.token))
    return set(out)


def test_the_trace_of_m77_proposes_what_followed_the_same_three_tokens() -> None:
    a, b, c, d = 1, 2, 3, 4
    proposal = propose(PromptLookupSettings(), [a, b, c, d, a, b, c], node_budget=1)
    assert [node.token for node in proposal.nodes] == [d]
    assert proposal.cost.match_length == 3
    longer = propose(PromptLookupSettings(), [a, b, c, d, a, b, c], node_budget=9)
    assert [node.token for node in longer.nodes] == [d, a, b, c]


def test_an_offer_is_a_lookup_without_probabilities() -> None:
    proposal = propose(PromptLookupSettings(), [1, 2, 1])
    assert proposal.semantics is ProbabilitySemantics.ABSENT
    assert proposal.relation is SamplingRelation.DETERMINISTIC_LOOKUP
    assert proposal.topology is Topology.SEQUENCE
    assert all(node.q is None and node.score is None for node in proposal.nodes)
    assert all(node.source == node.state_owner == "prompt_lookup" for node in proposal.nodes)


def test_no_match_is_a_miss_without_a_made_up_token() -> None:
    proposal = propose(PromptLookupSettings(), [1, 2, 3])
    assert proposal.nodes == ()
    assert proposal.cost.miss
    assert proposal.cost.match_count == 0


@pytest.mark.parametrize("prefix", [[5], [5, 5]])
def test_the_shortest_prefixes_are_answered(prefix: list[int]) -> None:
    assert len(propose(PromptLookupSettings(), prefix).nodes) == len(prefix) - 1


@pytest.mark.parametrize(("node_budget", "max_depth", "expected"), [(0, 8, 0), (8, 0, 0), (2, 8, 2), (8, 3, 3)])
def test_budget_and_depth_bound_the_copy(node_budget: int, max_depth: int, expected: int) -> None:
    prefix = [1, 2, 3, 4, 5, 6, 1]
    assert len(propose(PromptLookupSettings(), prefix, node_budget=node_budget, max_depth=max_depth).nodes) == expected


def test_the_settings_cap_an_offer_below_the_budget() -> None:
    assert len(propose(PromptLookupSettings(max_nodes=2), [1, 2, 3, 4, 1]).nodes) == 2


@pytest.mark.parametrize(("matched", "factor", "expected"), [(1, 2, 2), (3, 2, 6), (3, 1, 3), (3, 0, 9), (1, 64, 9)])
def test_a_spec_factor_copies_in_proportion_to_what_matched(matched: int, factor: int, expected: int) -> None:
    suffix = list(range(100, 100 + matched))
    prefix = [*suffix, *range(1, 10), 50, *suffix]
    settings = PromptLookupSettings(max_ngram=16, spec_factor=factor)
    assert len(propose(settings, prefix, node_budget=9, max_depth=16).nodes) == expected
    by_option = PromptLookupSettings(max_ngram=16)
    assert (
        len(propose(by_option, prefix, node_budget=9, max_depth=16, options={"spec_factor": factor}).nodes) == expected
    )


def test_n_gram_limits_of_settings_and_options_are_obeyed() -> None:
    prefix = [1, 2, 9, 8, 2, 7, 1, 2]
    assert propose(PromptLookupSettings(), prefix, node_budget=1).nodes[0].token == 9
    assert propose(PromptLookupSettings(max_ngram=1), prefix, node_budget=1).nodes[0].token == 7
    assert propose(PromptLookupSettings(), prefix, node_budget=1, options={"max_ngram": 1}).nodes[0].token == 7
    assert propose(PromptLookupSettings(), prefix, options={"min_ngram": 4}).cost.miss


def test_latest_and_earliest_take_opposite_ends() -> None:
    prefix = [1, 5, 1, 6, 1, 7, 1]
    assert propose(PromptLookupSettings(rule="latest"), prefix, node_budget=1).nodes[0].token == 7
    assert propose(PromptLookupSettings(rule="earliest"), prefix, node_budget=1).nodes[0].token == 5


def test_after_a_change_the_copy_goes_on_where_the_original_does() -> None:
    original = [10, 11, 12, 13, 20, 14, 15, 16, 17]
    elsewhere = [30, 20, 31, 32]
    for changed in ([99], [], [99, 98], [13, 99]):
        prefix = [*original, *elsewhere, 10, 11, 12, *changed, 20]
        proposal = propose(PromptLookupSettings(rule="one_edit"), prefix, node_budget=3)
        assert [node.token for node in proposal.nodes] == [14, 15, 16]
        assert [node.token for node in propose(PromptLookupSettings(), prefix, node_budget=2).nodes] == [31, 32]
        assert proposal.cost.match_length == 1


def test_strength_stops_at_the_longest_n_gram() -> None:
    passage = [1, 2, 3, 4, 5, 6]
    prefix = [*passage, 50, 20, 21, 60, 20, 22, *passage, 51, 20]
    for max_ngram, expected in ((9, 21), (1, 22)):
        settings = PromptLookupSettings(rule="one_edit", max_ngram=max_ngram)
        assert [node.token for node in propose(settings, prefix, node_budget=1).nodes] == [expected]


def test_how_much_is_copied_goes_by_what_matches_exactly() -> None:
    prefix = [1, 2, 3, 4, 50, 20, 21, 22, 23, 24, 25, 60, 1, 2, 3, 4, 51, 20]
    settings = PromptLookupSettings(rule="one_edit", max_ngram=16, spec_factor=2)
    assert [n.token for n in propose(settings, prefix, max_depth=16).nodes] == [21, 22]


def test_a_passage_shifted_onto_itself_is_no_evidence() -> None:
    # Before the later 5 the same tokens stand as before itself, two places on.
    prefix = [8, 5, 70, 8, 1, 2, 3, 4, 5, 9, 5]
    assert [start for start, _ in strongest(np.array(prefix), 1, 8, len(prefix) - 1)] == [9, 2]
    assert [matched_before_edit(prefix, start, 1) for start in (9, 2)] == [0, 0]


def test_one_edit_offers_a_distant_longest_match_among_countless_short_ones() -> None:
    prefix = [1, 2, 3, 40, 41, *[token for other in range(200) for token in (3, 50 + other)], 1, 2, 3]
    rounds = Rounds(session_manifest([PromptLookup().describe()]))
    source = PromptLookup(PromptLookupSettings(rule="one_edit", max_ngram=8))
    proposal = source.propose(rounds.request("prompt_lookup", prefix, node_budget=2))
    assert [node.token for node in proposal.nodes] == [40, 41]


def test_branches_are_distinct_continuations_ranked_by_match_length_then_rule() -> None:
    prefix = [4, 1, 5, 3, 1, 6, 4, 1, 5, 3, 1, 7, 4, 1]
    proposal = propose(PromptLookupSettings(branches=3), prefix, node_budget=3)
    assert proposal.topology is Topology.TREE
    assert [(node.token, node.parent) for node in proposal.nodes] == [(5, -1), (7, -1), (6, -1)]


def test_branches_share_their_beginning_and_split_the_budget() -> None:
    prefix = [1, 2, 3, 4, 9, 1, 2, 3, 5, 9, 1]
    proposal = propose(PromptLookupSettings(branches=2, max_ngram=1), prefix, node_budget=6, max_depth=4)
    assert paths(proposal) == {(2,), (2, 3), (2, 3, 5), (2, 3, 4), (2, 3, 4, 9)}


def test_a_request_may_ask_for_fewer_branches_but_not_for_more() -> None:
    prefix = [1, 5, 1, 6, 1]
    assert len(propose(PromptLookupSettings(branches=2), prefix, max_depth=1, options={"branches": 1}).nodes) == 1
    with pytest.raises(InvalidArgument, match=r"options\.branches: 3 is outside \[1, 2\]"):
        propose(PromptLookupSettings(branches=2), prefix, options={"branches": 3})


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"beam": 3}, "options.beam"),
        ({"max_ngram": 0}, "options.max_ngram"),
        ({"max_ngram": 65}, "options.max_ngram"),
        ({"min_ngram": 3, "max_ngram": 2}, "options.max_ngram"),
    ],
)
def test_an_option_that_is_unknown_or_out_of_range_is_named(options: dict[str, int], field: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        propose(PromptLookupSettings(), [1, 2, 1], options=options)
    assert caught.value.field == field


@pytest.mark.parametrize(
    "settings",
    [
        {"rule": "newest"},
        {"continuation": "cut"},
        {"min_ngram": 4},
        {"max_ngram": 65},
        {"branches": 0},
        {"max_nodes": 0},
    ],
)
def test_settings_that_make_no_matcher_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match="prompt_lookup"):
        PromptLookupSettings(**settings)


def test_every_setting_changes_the_version() -> None:
    variants = [
        PromptLookupSettings(),
        PromptLookupSettings(rule="earliest"),
        PromptLookupSettings(rule="one_edit"),
        PromptLookupSettings(continuation="full_length"),
        PromptLookupSettings(min_ngram=2),
        PromptLookupSettings(max_ngram=4),
        PromptLookupSettings(branches=2),
        PromptLookupSettings(max_nodes=8),
    ]
    assert len({PromptLookup(settings).describe().version for settings in variants}) == len(variants)
