"""Short ways to write proposals in tests."""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from contracts.draft_law import TOTAL, DraftLaw
from contracts.proposal import Proposal, ProposalNode
from contracts.topology import ProbabilitySemantics, SamplingRelation, Topology, depths_of


def point_law(token_id: int) -> DraftLaw:
    """All mass on one token: the law of a deterministic guess used as a draw."""
    return DraftLaw(np.array([token_id], dtype=np.int64), np.array([TOTAL], dtype=np.int64))


def position_ids(parents: npt.NDArray[np.int64], prefix_len: int) -> npt.NDArray[np.int64]:
    """Absolute positions of rows, int64 [N], as docs/decisions/0001 defines them: prefix_len + depth - 1."""
    return prefix_len + depths_of(parents) - 1


def paths_proposal(
    source: str,
    paths: Sequence[Sequence[int]],
    *,
    round_hash: str = "r",
    semantics: ProbabilitySemantics = ProbabilitySemantics.ABSENT,
    relation: SamplingRelation = SamplingRelation.DETERMINISTIC_LOOKUP,
) -> Proposal:
    """A proposal whose nodes are the paths' tokens, shared prefixes written once."""
    nodes: list[ProposalNode] = []
    index: dict[tuple[int, ...], int] = {}
    for path in paths:
        for depth in range(1, len(path) + 1):
            key = tuple(path[:depth])
            if key not in index:
                index[key] = len(nodes)
                nodes.append(ProposalNode(path[depth - 1], index.get(key[:-1], -1), depth, source, source))
    chain = all(node.parent == i - 1 for i, node in enumerate(nodes))
    flat = all(node.parent == -1 for node in nodes)
    topology = Topology.SEQUENCE if chain else Topology.SET if flat else Topology.TREE
    return Proposal(source, tuple(nodes), semantics, relation, topology, round_hash)


def drawn_proposal(
    source: str,
    draws: Sequence[tuple[int, int]],
    laws: Mapping[int, DraftLaw],
    *,
    relation: SamplingRelation = SamplingRelation.INDEPENDENT,
    round_hash: str = "r",
) -> Proposal:
    """A proposal of (token, parent node) draws, each with the probability its parent's law gives it."""
    nodes: list[ProposalNode] = []
    for token, parent in draws:
        depth = 1 if parent < 0 else nodes[parent].depth + 1
        nodes.append(ProposalNode(token, parent, depth, source, source, q=laws[parent].probability(token)))
    parents = [node.parent for node in nodes]
    chain = parents == list(range(-1, len(parents) - 1))
    topology = Topology.SEQUENCE if chain else Topology.SET if set(parents) == {-1} else Topology.TREE
    return Proposal(
        source, tuple(nodes), ProbabilitySemantics.NORMALIZED_CONDITIONAL, relation, topology, round_hash, laws
    )
