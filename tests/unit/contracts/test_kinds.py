"""Kinds of offers are found by their text, as the wire brings them."""

import pytest

from contracts.topology import ProbabilitySemantics, SamplingRelation, Topology


@pytest.mark.parametrize("kind", [*ProbabilitySemantics, *SamplingRelation, *Topology])
def test_kinds_are_found_by_their_text(kind: ProbabilitySemantics | SamplingRelation | Topology) -> None:
    assert kind in {str(kind)}
    assert str(kind) in frozenset({kind})
