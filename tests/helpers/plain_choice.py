"""The adaptive budget's arithmetic as it is defined, step by step and without anything kept between rounds."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from contracts.draft_law import DraftLaw
from contracts.graph import CandidateGraph, Draw
from contracts.proposal import Proposal
from contracts.topology import ProbabilitySemantics
from orchestrator.budget.acceptance import Trials
from orchestrator.budget.adaptive import cheapest
from orchestrator.budget.evidence import ALONE, AMONG_OTHERS, SHARED, WHATEVER, Evidence, evidence, own_evidence
from orchestrator.budget.experience import Experience

Row = tuple[int, int, tuple[str, ...]]
Counts = Mapping[Evidence, tuple[float, float]]


def plain_merge(proposals: Sequence[Proposal], budget: int) -> tuple[list[Row], list[Draw], list[DraftLaw]]:
    """Rows as (token, parent, sources), draws and laws of the merged offers."""
    rows: list[tuple[int, int, list[str]]] = []
    draws: list[Draw] = []
    laws: list[DraftLaw] = []
    with_law = any(proposal.laws for proposal in proposals)
    for proposal in proposals:
        law_of: dict[int, int] = {}
        row_of_node = {-1: -1}
        for index, node in enumerate(proposal.nodes):
            parent = row_of_node.get(node.parent)
            there = [row for row, (token, above, _) in enumerate(rows) if (token, above) == (node.token, parent)]
            full = len(draws) >= budget if with_law else len(rows) >= budget
            if parent is None or (full and (with_law or not there)):
                continue
            if not there:
                there = [len(rows)]
                rows.append((node.token, parent, []))
            row = row_of_node[index] = there[0]
            if proposal.source not in rows[row][2]:
                rows[row][2].append(proposal.source)
            if node.parent in proposal.laws and node.parent not in law_of:
                law_of[node.parent] = len(laws)
                laws.append(proposal.laws[node.parent])
            draws.append(Draw(parent, row, proposal.source, law_of.get(node.parent, -1)))
    return [(token, parent, tuple(sources)) for token, parent, sources in rows], draws, laws


def plain_known(graph: CandidateGraph, proposals: Sequence[Proposal]) -> list[list[Evidence]]:
    """Per row what each source knows of it."""
    known: list[list[Evidence]] = [[] for _ in range(len(graph))]
    for proposal in proposals:
        row_of_node = {-1: -1}
        for index, node in enumerate(proposal.nodes):
            parent = row_of_node.get(node.parent)
            row = None if parent is None else graph.children.get(parent, {}).get(node.token)
            if row is None:
                continue
            row_of_node[index] = row
            beside = {
                name
                for names, above in zip(graph.sources, graph.parents.tolist(), strict=True)
                if above == parent
                for name in names
            }
            company = SHARED if len(graph.sources[row]) > 1 else AMONG_OTHERS if len(beside) > 1 else ALONE
            known[row].append(_plain_evidence(proposal, index, company))
    return known


def _plain_evidence(proposal: Proposal, index: int, company: int) -> Evidence:
    node, cost = proposal.nodes[index], proposal.cost
    before = proposal.nodes[node.parent].score if node.parent >= 0 else None
    if node.score is not None and proposal.semantics is ProbabilitySemantics.FREQUENCY:
        seen = cost.match_count if before is None else before
        return evidence(proposal.source, cost.match_length, min(1.0, node.score / (seen + 1.0)), node.depth, company)
    if node.score is not None and proposal.semantics is ProbabilitySemantics.SCORE_ONLY:
        return own_evidence(proposal.source, math.exp(min(0.0, node.score - (before or 0.0))), node.depth, company)
    return evidence(proposal.source, cost.match_length, 1.0, node.depth, company)


def plain_rate(session: Counts, shared: Counts, what: Evidence) -> float:
    """Three Beta means, each the prior of the next, and all of weight 16; below them the guess that nothing tried gives."""
    general = what._replace(company=WHATEVER)
    rate = Trials().rate(general)
    for counts, key in ((shared, general), (shared, what), (session, what)):
        tried, accepted = counts.get(key, (0.0, 0.0))
        rate = (accepted + rate * 16.0) / (tried + 16.0)
    return rate


@dataclass(frozen=True)
class PlainChoice:
    rows: list[int]
    tokens: float
    round_us: float
    gains_us: Mapping[str, float]
    known: list[list[Evidence]]


def plain_choice(
    graph: CandidateGraph, proposals: Sequence[Proposal], experience: Experience, session: Counts
) -> PlainChoice:
    """The rows that are verified, and what is expected of them."""
    known = plain_known(graph, proposals)
    shared = experience.trials.snapshot()
    chances: list[float] = []
    for facts, parent in zip(known, graph.parents.tolist(), strict=True):
        rate = max(plain_rate(session, shared, what) for what in facts)
        chances.append(rate if parent == -1 else rate * chances[parent])
    order = sorted(range(len(graph)), key=lambda row: (-chances[row], row))
    waits = {
        one.source: experience.wait_us(one.source) for one in proposals if experience.wait_us(one.source) > 2_000.0
    }
    idle_us = experience.idle_us.value + sum(waits.values())
    sessions = experience.sessions.value
    costs = [idle_us + experience.times.us(sessions * (1 + count)) for count in range(len(graph) + 1)]
    best, tokens = cheapest([chances[row] for row in order], costs)
    gains: dict[str, float] = {}
    for source in {name for names in graph.sources for name in names}:
        rest = [chances[row] for row in order if graph.sources[row] != (source,)]
        less = [cost_us - waits.get(source, 0.0) for cost_us in costs]
        count, fewer = cheapest(rest, less)
        gains[source] = (less[count] / fewer * tokens - less[best]) / sessions
    return PlainChoice(sorted(order[:best]), tokens, costs[best], gains, known)
