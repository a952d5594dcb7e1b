"""Greedy verification: publish the target's argmax sequence, whatever was proposed."""

from __future__ import annotations

from contracts.capability import ALL_RELATIONS, ALL_SEMANTICS, ROW_TOPOLOGIES, Exactness, VerifierCapability
from contracts.graph import CandidateGraph
from contracts.randomness import Chooser
from contracts.receipt import Closing
from contracts.topology import ANCHOR
from models.laws import TargetLaws
from verifier.selection.base import Selection


class Greedy:
    """Walks down while the argmax (ties to the lowest id) is among the candidates (M7.2 section 0x04D)."""

    capability = VerifierCapability(
        name="greedy",
        exactness=Exactness.EXACT,
        promise="the target's argmax sequence",
        semantics=ALL_SEMANTICS,
        relations=ALL_RELATIONS,
        topologies=ROW_TOPOLOGIES,
        greedy_only=True,
    )

    def select(self, graph: CandidateGraph, laws: TargetLaws, chooser: Chooser, *, prefix_len: int) -> Selection:
        """Chooses the longest path of argmax tokens, and the argmax after it. No chance is involved."""
        rows: list[int] = []
        row = ANCHOR
        while True:
            token = laws.argmax(row)
            child = graph.children.get(row, {}).get(token)
            if child is None:
                return Selection(tuple(rows), token, Closing.SAMPLE)
            rows.append(child)
            row = child
