"""A malformed offer is refused naming its field, before anything is computed from it."""

from dataclasses import replace

import pytest

from contracts.draft_law import DraftLaw, law_from_probabilities
from contracts.errors import FailedPrecondition, InvalidArgument
from contracts.proposal import Proposal, check_proposal, unfold
from contracts.topology import ProbabilitySemantics, SamplingRelation, Topology
from tests.helpers.proposals import drawn_proposal, paths_proposal


def node(proposal: Proposal, index: int, **changes: object) -> Proposal:
    nodes = list(proposal.nodes)
    nodes[index] = nodes[index]._replace(**changes)  # type: ignore[arg-type]
    return replace(proposal, nodes=tuple(nodes))


LAW = law_from_probabilities([1, 2], [0.75, 0.25])
CHAIN = paths_proposal("lookup", [[1, 2, 3]])
SCORED = node(replace(CHAIN, semantics=ProbabilitySemantics.SCORE_ONLY), 0, score=-3.5)
DRAWN = drawn_proposal("draft", [(1, -1), (2, 0)], {-1: LAW, 0: LAW})
# Independent draws may repeat.
TWICE = drawn_proposal("draft", [(1, -1), (1, -1)], {-1: LAW})


@pytest.mark.parametrize("offer", [CHAIN, SCORED, DRAWN, TWICE, paths_proposal("lookup", [])])
def test_a_well_formed_offer_passes(offer: Proposal) -> None:
    check_proposal(offer, vocab_size=10, round_hash="r")


@pytest.mark.parametrize(
    ("offer", "field"),
    [
        (node(CHAIN, 0, parent=1), "nodes[0].parent"),
        (node(CHAIN, 1, parent=1), "nodes[1].parent"),
        (node(CHAIN, 1, parent=-2), "nodes[1].parent"),
        (node(CHAIN, 2, token=10), "nodes[2].token"),
        (node(CHAIN, 2, token=-1), "nodes[2].token"),
        (node(CHAIN, 2, depth=2), "nodes[2].depth"),
        (node(CHAIN, 1, q=1.5), "nodes[1].q"),
        (node(CHAIN, 1, q=-0.1), "nodes[1].q"),
        (node(CHAIN, 1, q=float("nan")), "nodes[1].q"),
        (node(CHAIN, 1, q=0.5), "nodes[1].q"),
        (node(CHAIN, 1, score=float("nan")), "nodes[1].score"),
        (node(SCORED, 0, score=float("nan")), "nodes[0].score"),
        (node(SCORED, 0, score=float("inf")), "nodes[0].score"),
        (replace(node(CHAIN, 2, score=-0.5), semantics=ProbabilitySemantics.FREQUENCY), "nodes[2].score"),
        (node(CHAIN, 1, score=3.0), "nodes[1].score"),
        (node(CHAIN, 1, source="another"), "nodes[1].source"),
        (replace(DRAWN, relation=SamplingRelation.DETERMINISTIC_LOOKUP), "relation"),
        (replace(DRAWN, relation=SamplingRelation.BEAM), "relation"),
        (
            drawn_proposal(
                "draft", [(1, -1), (2, -1), (1, -1)], {-1: LAW}, relation=SamplingRelation.WITHOUT_REPLACEMENT
            ),
            "nodes[2].token",
        ),
        (node(DRAWN, 0, q=0.5), "nodes[0].q"),
        (node(DRAWN, 0, q=float("nan")), "nodes[0].q"),
        (node(DRAWN, 0, q=None), "nodes[0].q"),
        (replace(DRAWN, laws={-1: LAW}), "nodes[1].q"),
        (replace(DRAWN, laws={-1: LAW, 0: DraftLaw(LAW.token_ids, LAW.weights + 1)}), "laws[0].weights"),
        (replace(DRAWN, laws={-1: LAW, 0: LAW, 5: LAW}), "laws"),
        (replace(CHAIN, laws={-1: LAW}), "laws"),
        (replace(CHAIN, topology=Topology.SET), "topology"),
        (replace(CHAIN, topology=Topology.METADATA_GRAPH), "topology"),
        (replace(paths_proposal("l", [[1], [2]]), topology=Topology.SEQUENCE), "topology"),
    ],
)
def test_a_malformed_offer_names_the_field(offer: Proposal, field: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        check_proposal(offer, vocab_size=10)
    assert field in caught.value.field


def test_a_frequency_is_never_accepted_as_q() -> None:
    counted = replace(node(CHAIN, 0, q=0.5), semantics=ProbabilitySemantics.FREQUENCY)
    with pytest.raises(InvalidArgument, match="ranks belong in score"):
        check_proposal(counted, vocab_size=10)


def test_a_drawn_token_of_probability_zero_is_refused_unless_the_law_was_exhausted() -> None:
    off_support = drawn_proposal("draft", [(3, -1)], {-1: LAW})
    with pytest.raises(InvalidArgument, match="probability 0"):
        check_proposal(off_support, vocab_size=10)
    check_proposal(replace(off_support, relation=SamplingRelation.WITHOUT_REPLACEMENT), vocab_size=10)


def test_an_offer_made_under_another_round_is_refused() -> None:
    with pytest.raises(FailedPrecondition, match="round_hash"):
        check_proposal(CHAIN, vocab_size=10, round_hash="other")


def test_an_oversized_offer_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="at most 2"):
        check_proposal(CHAIN, vocab_size=10, max_nodes=2)


def test_a_metadata_graph_unfolds_into_a_tree_of_its_paths_scores_and_all() -> None:
    # 1 and 9 both lead to 2, which leads to 3.
    flat = paths_proposal("planner", [[1], [9], [2], [3]], semantics=ProbabilitySemantics.SCORE_ONLY)
    linked = node(node(flat, 2, parent=0, score=-2.0), 3, parent=2)
    plan = replace(linked, topology=Topology.METADATA_GRAPH, more_parents={2: (1,)})
    tree = unfold(plan, limit=6)
    check_proposal(tree, vocab_size=10, round_hash="r")
    assert [(one.token, one.parent, one.depth, one.score) for one in tree.nodes] == [
        (1, -1, 1, None),
        (9, -1, 1, None),
        (2, 0, 2, -2.0),
        (2, 1, 2, -2.0),
        (3, 2, 3, None),
        (3, 3, 3, None),
    ]
    assert tree.topology is Topology.TREE
    with pytest.raises(InvalidArgument, match="more than 5 rows"):
        unfold(plan, limit=5)
    with pytest.raises(InvalidArgument, match="one full prefix"):
        unfold(replace(plan, laws={-1: LAW}), limit=6)
