"""How deep dear sources are asked to draft: one level more than what was verified of them lately.

A draft head or model takes a pass of its own a level, whether its candidates are then verified or not. The level more is
what lets the reach grow: where it is verified, the next round asks for another. Only depths are cut: candidates are dealt
out breadth first by some sources, and fewer of them would cut the likely path short.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from contracts.graph import CandidateGraph

# Rounds in which nothing so deep was verified until the reach is a level less.
_ROUNDS_A_LEVEL = 8


class Reaches:
    """Of a session, which begins with that of all sessions, or of these (`shared` None)."""

    def __init__(self, shared: Reaches | None = None) -> None:
        self._shared = shared
        self._reaches: dict[str, float] = dict(shared._reaches) if shared is not None else {}
        self.whole: Mapping[str, int] = {source: math.ceil(reach) for source, reach in self._reaches.items()}

    def learn(self, source: str, *, offered: CandidateGraph, chosen: CandidateGraph) -> None:
        """A round that asked the source: the merged offers, and what of them was verified."""
        wanted = _deepest(source, chosen) + 1.0
        before = self._reaches.get(source, float(_deepest(source, offered)))
        self._reaches[source] = max(wanted, before - 1.0 / _ROUNDS_A_LEVEL)
        self.whole = {source: math.ceil(reach) for source, reach in self._reaches.items()}
        if self._shared is not None:
            self._shared.learn(source, offered=offered, chosen=chosen)


def _deepest(source: str, graph: CandidateGraph) -> int:
    return max(
        (depth for depth, names in zip(graph.depths.tolist(), graph.sources, strict=True) if source in names), default=0
    )
