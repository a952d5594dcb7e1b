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


def test_a_tree_that_is_not_last_takes_half():
    assert shares(25, 20, [TREE, CHAIN]) == (SourcePlan("tree", 13, 20), SourcePlan("chain", 12, 20))


def test_a_chain_alone_takes_no_more_than_its_depth():
    assert shares(24, 4, [CHAIN]) == (SourcePlan("chain", 4, 4),)


def test_sources_without_a_share_are_not_asked():
    assert shares(10, 10, [CHAIN, TREE]) == (SourcePlan("chain", 10, 10),)
    assert shares(24, 0, [CHAIN, TREE]) == ()


def test_a_source_takes_no_more_than_it_declares():
    assert shares(24, 10, [source("chain", Topology.SEQUENCE, 3), TREE])[0] == SourcePlan("chain", 3, 10)
