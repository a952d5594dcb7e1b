"""One source's offer for one round: typed evidence that only a compatible verifier may consume (M7.7 section 0x02)."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from contracts.draft_law import DraftLaw, check_law
from contracts.errors import FailedPrecondition, InvalidArgument
from contracts.topology import (
    MetadataNode,
    ProbabilitySemantics,
    SamplingRelation,
    Topology,
    materialise,
)

MAX_NODES = 512
_LAW, _TREE = ProbabilitySemantics.NORMALIZED_CONDITIONAL, Topology.TREE
_DISTINCT = SamplingRelation.WITHOUT_REPLACEMENT
_new = tuple.__new__
_NOT_DRAWN = frozenset({SamplingRelation.DETERMINISTIC_LOOKUP, SamplingRelation.BEAM})
# Lowest and highest score that a node may have.
_SCORES: Mapping[ProbabilitySemantics, tuple[float, float]] = {
    ProbabilitySemantics.NORMALIZED_CONDITIONAL: (-sys.float_info.max, sys.float_info.max),
    ProbabilitySemantics.SCORE_ONLY: (-sys.float_info.max, sys.float_info.max),
    ProbabilitySemantics.FREQUENCY: (0.0, sys.float_info.max),
    ProbabilitySemantics.ABSENT: (math.inf, -math.inf),
}


class ProposalNode(NamedTuple):
    """One proposed token. `q` is the law's probability (never a score); `score` only ranks: a count under frequency
    semantics, any finite number under others, none under absent ones. `source` is the proposal's.

    A tuple: a round makes dozens, and each takes a fifth of the time that a frozen dataclass does.
    """

    token: int
    parent: int
    depth: int
    source: str
    state_owner: str
    q: float | None = None
    score: float | None = None


def nodes_of(rows: Iterable[tuple[int, int, int, str, str, float | None, float | None]]) -> tuple[ProposalNode, ...]:
    """Nodes of their fields in order, without a call of Python for each."""
    return tuple([_new(ProposalNode, row) for row in rows])


@dataclass(frozen=True, slots=True)
class StateHandle:
    """Proposer-side state the offer was made from: who owns it, at which generation, over how many prefix tokens."""

    owner: str = ""
    generation: int = 0
    prefix_len: int = 0


@dataclass(frozen=True, slots=True)
class SourceCost:
    """What the offer cost its source, in microseconds; retrieval facts where the source is an index."""

    compute_us: float = 0.0
    match_length: int = 0
    match_count: int = 0
    truncated: bool = False
    miss: bool = False


@dataclass(frozen=True)
class Proposal:
    """The offer of `source` under the round manifest `round_hash`.

    Siblings stand in draw order, duplicates kept. `laws` maps a parent node (-1: the anchor) to the law its children
    were drawn from; it is present exactly for normalized_conditional semantics. `more_parents`, of a metadata graph only:
    a node's parents beside `parent`; such a graph leaves its proposer unfolded (`unfold`).
    """

    source: str
    nodes: tuple[ProposalNode, ...]
    semantics: ProbabilitySemantics
    relation: SamplingRelation
    topology: Topology
    round_hash: str
    laws: Mapping[int, DraftLaw] = field(default_factory=dict)
    state: StateHandle = StateHandle()
    cost: SourceCost = SourceCost()
    more_parents: Mapping[int, tuple[int, ...]] = field(default_factory=dict)


def unfold(proposal: Proposal, *, limit: int) -> Proposal:
    """A metadata graph as the tree of its distinct paths: a node under several parents becomes a candidate under each,
    because target state belongs to the full prefix. Scores come along. Breadth first.

    Raises InvalidArgument for laws (a law belongs to one prefix), for parents that are no earlier nodes, and where there are
    more than `limit` paths.
    """
    if proposal.laws:
        raise InvalidArgument("proposal.laws", "a metadata graph has none: a law belongs to one full prefix")
    graph = [
        MetadataNode(node.token, (node.parent, *proposal.more_parents.get(index, ())))
        for index, node in enumerate(proposal.nodes)
    ]
    tokens, parents, owners = materialise(graph, limit=limit)
    nodes: list[ProposalNode] = []
    for token, parent, owner in zip(tokens, parents, owners, strict=True):
        depth = 1 if parent < 0 else nodes[parent].depth + 1
        nodes.append(proposal.nodes[owner]._replace(token=token, parent=parent, depth=depth))
    return replace(proposal, nodes=tuple(nodes), topology=Topology.TREE, more_parents={})


def check_proposal(
    proposal: Proposal, *, vocab_size: int, round_hash: str | None = None, max_nodes: int = MAX_NODES
) -> None:
    """Raises InvalidArgument for a malformed offer, FailedPrecondition for one made under another round manifest."""
    if round_hash is not None and proposal.round_hash != round_hash:
        raise FailedPrecondition(
            "proposal.round_hash", f"made under {proposal.round_hash[:16]!r}, this round is {round_hash[:16]!r}"
        )
    nodes = proposal.nodes
    if len(nodes) > max_nodes:
        raise InvalidArgument("proposal.nodes", f"{len(nodes)} nodes, at most {max_nodes}")
    with_law = proposal.semantics is _LAW
    if not with_law and proposal.laws:
        raise InvalidArgument("proposal.laws", f"given under {proposal.semantics} semantics")
    for parent, law in proposal.laws.items():
        if not -1 <= parent < len(nodes):
            raise InvalidArgument("proposal.laws", f"parent {parent} is outside [-1, {len(nodes)})")
        check_law(law, vocab_size=vocab_size, field=f"proposal.laws[{parent}]")
    if with_law and proposal.relation in _NOT_DRAWN:
        raise InvalidArgument("proposal.relation", f"{proposal.relation} draws nothing, so its tokens have no law")
    owner, lowest, highest = proposal.source, *_SCORES[proposal.semantics]
    for index, (token, parent, depth, source, _, q, score) in enumerate(nodes):
        if not 0 <= token < vocab_size:
            raise InvalidArgument(f"proposal.nodes[{index}].token", f"{token} is outside [0, {vocab_size})")
        if not -1 <= parent < index:
            raise InvalidArgument(f"proposal.nodes[{index}].parent", f"{parent} is outside [-1, {index})")
        if depth != (1 if parent < 0 else nodes[parent].depth + 1):
            raise InvalidArgument(f"proposal.nodes[{index}].depth", f"{depth} is not one more than its parent's")
        if source != owner:
            raise InvalidArgument(f"proposal.nodes[{index}].source", f"{source!r} in an offer of {owner!r}")
        if with_law:
            _check_drawn(proposal, index, token, parent, q)
        elif q is not None:
            raise _refused_q(index, q, proposal.semantics)
        if score is not None and not lowest <= score <= highest:
            raise _refused_score(index, score, proposal.semantics)
    if proposal.relation is _DISTINCT:
        _check_distinct(proposal)
    if proposal.topology is not _TREE:
        _check_shape(proposal)


def _check_drawn(proposal: Proposal, index: int, token: int, parent: int, q: float | None) -> None:
    here = f"proposal.nodes[{index}].q"
    law = proposal.laws.get(parent)
    if law is None:
        raise InvalidArgument(here, f"no law given for parent {parent}")
    if q != law.probability(token):
        raise InvalidArgument(here, f"{q} differs from its law's {law.probability(token)}")
    if q == 0.0 and proposal.relation is not SamplingRelation.WITHOUT_REPLACEMENT:
        raise InvalidArgument(here, "a drawn token has probability 0 in its law")


def _refused_q(index: int, q: float, semantics: ProbabilitySemantics) -> InvalidArgument:
    here = f"proposal.nodes[{index}].q"
    if not 0.0 <= q <= 1.0:
        return InvalidArgument(here, f"{q} is outside [0, 1]")
    return InvalidArgument(here, f"given under {semantics} semantics; ranks belong in score")


def _refused_score(index: int, score: float, semantics: ProbabilitySemantics) -> InvalidArgument:
    here = f"proposal.nodes[{index}].score"
    if not math.isfinite(score):
        return InvalidArgument(here, f"{score} is not finite")
    if semantics is ProbabilitySemantics.FREQUENCY:
        return InvalidArgument(here, f"{score} is negative, and counts are not")
    return InvalidArgument(here, f"given under {semantics} semantics")


def _check_distinct(proposal: Proposal) -> None:
    seen: set[tuple[int, int]] = set()
    for index, node in enumerate(proposal.nodes):
        if (node.parent, node.token) in seen:
            raise InvalidArgument(
                f"proposal.nodes[{index}].token", f"{node.token} is drawn twice from parent {node.parent}"
            )
        seen.add((node.parent, node.token))


def _check_shape(proposal: Proposal) -> None:
    parents = [node.parent for node in proposal.nodes]
    if proposal.topology is Topology.SEQUENCE and parents != list(range(-1, len(parents) - 1)):
        raise InvalidArgument(
            "proposal.topology", "declared a sequence, but some node does not follow the one before it"
        )
    if proposal.topology is Topology.SET and any(parent != -1 for parent in parents):
        raise InvalidArgument("proposal.topology", "declared a set, but some node is not a child of the anchor")
    if proposal.topology is Topology.METADATA_GRAPH:
        raise InvalidArgument("proposal.topology", "a metadata graph must be materialised into a tree first")
