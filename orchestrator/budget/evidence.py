"""What is known of a candidate before it is verified, in classes that acceptance is counted by.

Known are the source and how deep the candidate stands; of a drafter that ranks by a law of its own the probability it gave
(EAGLE-2, arXiv 2406.16858, section 3: such probabilities are close to acceptance rates, and what is off is counted); of
others how long a suffix they matched and, where they count, how often this continuation followed that one; and whether
another source offered the same token at the same place, or others only.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from functools import cache
from typing import NamedTuple

from contracts.graph import CandidateGraph
from contracts.proposal import Proposal
from contracts.topology import ANCHOR, ProbabilitySemantics

_COUNTED, _RANKED = ProbabilitySemantics.FREQUENCY, ProbabilitySemantics.SCORE_ONLY
_DEEPEST = 4
# Of a class of match lengths the shortest.
SHORTEST_MATCH = (0, 1, 2, 3, 5, 9)
_SHARES = (0.05, 0.15, 0.35, 0.6, 0.85)
# In place of a match's class: the share is the drafter's own probability, which tells far more than that there is one.
OWN_LAW = -1
_OWN_SHARES = (0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 0.85, 0.95)


# What other sources offered at a candidate's place: nothing, other tokens only, the same token; or any of these.
ALONE, AMONG_OTHERS, SHARED, WHATEVER = range(4)


class Evidence(NamedTuple):
    """Classes of what one source knows: match length (`match_class`) or OWN_LAW, share, and depths to 4."""

    source: str
    match: int
    share: int
    depth: int
    company: int = WHATEVER

    @property
    def general(self) -> Evidence:
        """The same whatever the others offered."""
        return Evidence(self.source, self.match, self.share, self.depth)


def match_class(length: int) -> int:
    """Match lengths 0, 1, 2, 3-4, 5-8 and longer."""
    return bisect_right(SHORTEST_MATCH, length) - 1


def evidence(source: str, match_length: int, share: float, depth: int, company: int = ALONE) -> Evidence:
    """Of a source that matches. share: of what was seen at the parent, how much went this way."""
    return Evidence(source, match_class(match_length), bisect_right(_SHARES, share), min(depth, _DEEPEST), company)


def own_evidence(source: str, probability: float, depth: int, company: int = ALONE) -> Evidence:
    """Of a drafter that ranks by a law of its own."""
    return Evidence(source, OWN_LAW, bisect_right(_OWN_SHARES, probability), min(depth, _DEEPEST), company)


def known_of(graph: CandidateGraph, proposals: Sequence[Proposal]) -> list[list[Evidence]]:
    """Per row of the graph that the proposals were merged into what each source that offered it knows of it."""
    offered = [proposal for proposal in proposals if proposal.nodes]
    if len(offered) == 1 and len(offered[0].nodes) == len(graph):
        # Nothing was merged: rows are nodes.
        source = offered[0].source
        return [[_made(source, match, share, depth, ALONE)] for match, share, depth in _classes(offered[0])]
    parents, sources = graph.parent_list, graph.sources
    # Places where more than one source offered something.
    shared: set[int] = set()
    first: dict[int, tuple[str, ...]] = {}
    for place, names in zip(parents, sources, strict=True):
        if len(names) > 1 or first.setdefault(place, names) != names:
            shared.add(place)
    out: list[list[Evidence]] = [[] for _ in parents]
    for proposal, rows in zip(offered, _rows_of(graph, offered), strict=True):
        source = proposal.source
        for row, (match, share, depth) in zip(rows, _classes(proposal), strict=True):
            if row is not None:
                company = SHARED if len(sources[row]) > 1 else AMONG_OTHERS if parents[row] in shared else ALONE
                out[row].append(_made(source, match, share, depth, company))
    return out


def _rows_of(graph: CandidateGraph, offered: Sequence[Proposal]) -> list[list[int | None]]:
    """By proposal and node the row that it became part of, None where it was dropped."""
    out: list[list[int | None]] = []
    if sum([len(proposal.nodes) for proposal in offered]) == len(graph.draws):
        # Nothing was dropped: draws are nodes.
        start = 0
        for proposal in offered:
            stop = start + len(proposal.nodes)
            out.append([draw[1] for draw in graph.draws[start:stop]])
            start = stop
        return out
    for proposal in offered:
        rows: list[int | None] = []
        for node in proposal.nodes:
            parent = ANCHOR if node.parent == ANCHOR else rows[node.parent]
            rows.append(None if parent is None else graph.children.get(parent, _NONE).get(node.token))
        out.append(rows)
    return out


def known_of_first(proposal: Proposal) -> list[Evidence]:
    """What the source knows of each of its candidates for the next token, whatever others offer."""
    return [
        _made(proposal.source, match, share, depth, WHATEVER)
        for node, (match, share, depth) in zip(proposal.nodes, _classes(proposal), strict=True)
        if node.parent == ANCHOR
    ]


def _classes(proposal: Proposal) -> list[tuple[int, int, int]]:
    """Of each node the classes of match, share and depth. Its share: how much of what was seen, or of the drafter's
    probability, went this way at the parent; all of it where nobody says.

    One more is taken to have been seen than was, and to have gone another way: once of once says less than ten of ten.
    """
    nodes, cost = proposal.nodes, proposal.cost
    counted = proposal.semantics is _COUNTED
    scored = counted or proposal.semantics is _RANKED
    matched = match_class(cost.match_length)
    out: list[tuple[int, int, int]] = []
    for _, parent, depth, _, _, _, score in nodes:
        match, share = matched, len(_SHARES)
        if scored and score is not None:
            before = nodes[parent].score if parent >= 0 else None
            if counted:
                share = bisect_right(_SHARES, score / ((cost.match_count if before is None else before) + 1.0))
            else:
                match, share = OWN_LAW, bisect_right(_OWN_SHARES, math.exp(min(0.0, score - (before or 0.0))))
        out.append((match, share, depth if depth < _DEEPEST else _DEEPEST))
    return out


# Of the few classes that there are each is made once.
_made = cache(Evidence)
_NONE: Mapping[int, int] = {}
