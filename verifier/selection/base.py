"""What every verification algorithm looks like to the engine."""

from __future__ import annotations

from typing import Protocol

import msgspec

from contracts.capability import VerifierCapability
from contracts.graph import CandidateGraph
from contracts.randomness import Chooser
from contracts.receipt import Closing
from models.laws import TargetLaws


class Selection(msgspec.Struct, frozen=True):
    """`rows`: the accepted path from a child of the anchor downwards; `token`: the one published after it."""

    rows: tuple[int, ...]
    token: int
    closing: Closing


class Verifier(Protocol):
    """One verification algorithm: a pure function of graph, laws and coins, beside what it accepts and promises."""

    capability: VerifierCapability

    def select(self, graph: CandidateGraph, laws: TargetLaws, chooser: Chooser, *, prefix_len: int) -> Selection:
        """Chooses what to publish. `prefix_len`: published length at the round's start (positions follow from it)."""
        ...
