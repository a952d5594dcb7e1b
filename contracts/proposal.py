"""One source's offer for one round: typed evidence that only a compatible verifier may consume (M7.7 section 0x02)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from contracts.draft_law import DraftLaw, check_law
from contracts.errors import FailedPrecondition, InvalidArgument
from contracts.topology import ProbabilitySemantics, SamplingRelation, Topology, check_parents

MAX_NODES = 512


class ProposalNode(NamedTuple):
    """One proposed token. `q` is the law's probability (never a score); `score` only ranks.

    A tuple: a round makes dozens, and each takes a fifth of the time that a frozen dataclass does.
    """

    token: int
    parent: int
    depth: int
    source: str
    state_owner: str
    q: float | None = None
    score: float | None = None


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
    were drawn from; it is present exactly for normalized_conditional semantics.
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
    check_parents([node.parent for node in nodes], "proposal.nodes")
    with_law = proposal.semantics is ProbabilitySemantics.NORMALIZED_CONDITIONAL
    if not with_law and proposal.laws:
        raise InvalidArgument("proposal.laws", f"given under {proposal.semantics} semantics")
    for parent, law in proposal.laws.items():
        if not -1 <= parent < len(nodes):
            raise InvalidArgument("proposal.laws", f"parent {parent} is outside [-1, {len(nodes)})")
        check_law(law, vocab_size=vocab_size, field=f"proposal.laws[{parent}]")
    for index, node in enumerate(nodes):
        here = f"proposal.nodes[{index}]"
        if not 0 <= node.token < vocab_size:
            raise InvalidArgument(f"{here}.token", f"{node.token} is outside [0, {vocab_size})")
        depth = 1 if node.parent < 0 else nodes[node.parent].depth + 1
        if node.depth != depth:
            raise InvalidArgument(f"{here}.depth", f"{node.depth}, its parent makes it {depth}")
        if node.q is not None and not 0.0 <= node.q <= 1.0:
            raise InvalidArgument(f"{here}.q", f"{node.q} is outside [0, 1]")
        if node.score is not None and node.score != node.score:
            raise InvalidArgument(f"{here}.score", "is NaN")
        if with_law:
            drawn_from = proposal.laws.get(node.parent)
            if drawn_from is None:
                raise InvalidArgument(f"{here}.q", f"no law given for parent {node.parent}")
            if node.q != drawn_from.probability(node.token):
                raise InvalidArgument(
                    f"{here}.q", f"{node.q} differs from its law's {drawn_from.probability(node.token)}"
                )
            if node.q == 0.0 and proposal.relation is not SamplingRelation.WITHOUT_REPLACEMENT:
                raise InvalidArgument(f"{here}.q", "a drawn token has probability 0 in its law")
        elif node.q is not None:
            raise InvalidArgument(f"{here}.q", f"given under {proposal.semantics} semantics; ranks belong in score")
    _check_shape(proposal)


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
