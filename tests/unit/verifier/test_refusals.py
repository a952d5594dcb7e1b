from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from contracts.draft_law import DraftLaw
from contracts.errors import FailedPrecondition, InvalidArgument
from contracts.graph import CandidateGraph, Draw
from contracts.sampling import SamplingPolicy
from contracts.topology import ProbabilitySemantics, SamplingRelation
from tests.unit.verifier.rig import GREEDY, Rig, chain, tree, verify_one


def test_a_finished_session_refuses_rounds_and_still_replays() -> None:
    client = Rig().open((1, 2, 3), replace(GREEDY, max_tokens=1))
    request = client.request()
    receipt = verify_one(client.engine, request)
    client.absorb(receipt)
    with pytest.raises(FailedPrecondition, match="ended"):
        client.round()
    assert verify_one(client.engine, request) == receipt


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
