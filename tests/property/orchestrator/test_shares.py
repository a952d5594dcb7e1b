"""Shares of any budget over any sources."""

from hypothesis import given
from hypothesis import strategies as st

from contracts.capability import SourceDescription
from contracts.topology import ProbabilitySemantics, SamplingRelation, Topology
from orchestrator.policy import shares, useful_depth


def describe(name: str, topology: Topology, max_nodes: int) -> SourceDescription:
    return SourceDescription(
        name, "fake", "1", ProbabilitySemantics.ABSENT, SamplingRelation.BEAM, topology, max_nodes=max_nodes
    )


SOURCES = st.lists(
    st.tuples(st.sampled_from([Topology.SEQUENCE, Topology.SET, Topology.TREE]), st.integers(1, 64)), max_size=5
).map(lambda kinds: [describe(f"s{i}", *kind) for i, kind in enumerate(kinds)])


@given(budget=st.integers(0, 128), depth=st.integers(0, 32), sources=SOURCES)
def test_shares_stay_within_the_budget_and_every_sources_own_limit(budget, depth, sources):
    plan = shares(budget, depth, sources)
    limits = {source.name: source.max_nodes for source in sources}
    assert sum(share.node_budget for share in plan) <= budget
    assert all(1 <= share.node_budget <= limits[share.source] for share in plan)
    assert all(share.max_depth == depth for share in plan)
    assert [share.source for share in plan] == sorted(share.source for share in plan)


@given(budget=st.integers(1, 128), depth=st.integers(1, 32), sources=SOURCES.filter(len))
def test_the_first_source_always_gets_something(budget, depth, sources):
    assert shares(budget, depth, sources)[0].source == "s0"


@given(max_depth=st.integers(1, 64), remaining=st.integers(1, 64))
def test_a_chain_as_deep_as_useful_and_its_bonus_never_pass_the_limit(max_depth, remaining):
    depth = useful_depth(max_depth, remaining)
    assert depth + 1 <= remaining
    assert depth == max_depth or depth + 1 == remaining
