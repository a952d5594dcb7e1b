"""The fixed plan by example."""

from contracts.capability import SourceDescription
from contracts.manifest import SourcePlan
from contracts.topology import ProbabilitySemantics, SamplingRelation, Topology
from orchestrator.policy import shares


def source(name: str, topology: Topology, max_nodes: int = 64) -> SourceDescription:
    return SourceDescription(
        name, "fake", "1", ProbabilitySemantics.ABSENT, SamplingRelation.BEAM, topology, max_nodes=max_nodes
    )


CHAIN, TREE = source("chain", Topology.SEQUENCE), source("tree", Topology.TREE)


def test_a_chain_comes_whole_and_the_tree_after_it_gets_the_rest():
    assert shares(24, 10, [CHAIN, TREE]) == (SourcePlan("chain", 10, 10), SourcePlan("tree", 14, 10))


def test_a_tree_that_is_not_last_takes_an_equal_part_of_what_is_left():
    assert shares(25, 20, [TREE, CHAIN]) == (SourcePlan("tree", 13, 20), SourcePlan("chain", 12, 20))


def test_trees_get_equal_shares_and_the_last_one_the_rest():
    trees = [source(name, Topology.TREE) for name in ("a", "b", "c")]
    assert [plan.node_budget for plan in shares(24, 8, trees)] == [8, 8, 8]
    assert [plan.node_budget for plan in shares(25, 8, trees)] == [9, 8, 8]
    assert [plan.node_budget for plan in shares(24, 8, [trees[0], CHAIN, trees[1]])] == [8, 8, 8]


def test_what_a_small_source_cannot_take_is_left_to_those_that_follow():
    small = source("small", Topology.TREE, 2)
    assert [plan.node_budget for plan in shares(24, 8, [small, TREE, CHAIN])] == [2, 11, 8]


def test_a_chain_alone_takes_no_more_than_its_depth():
    assert shares(24, 4, [CHAIN]) == (SourcePlan("chain", 4, 4),)


def test_sources_without_a_share_are_not_asked():
    assert shares(10, 10, [CHAIN, TREE]) == (SourcePlan("chain", 10, 10),)
    assert shares(24, 0, [CHAIN, TREE]) == ()


def test_a_source_takes_no_more_than_it_declares():
    assert shares(24, 10, [source("chain", Topology.SEQUENCE, 3), TREE])[0] == SourcePlan("chain", 3, 10)
