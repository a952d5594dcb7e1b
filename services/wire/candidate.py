"""Draft laws, proposals and candidate graphs on the wire, as columns."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

from contracts.draft_law import MAX_SUPPORT, DraftLaw
from contracts.errors import InvalidArgument
from contracts.graph import CandidateGraph, Draw
from contracts.proposal import MAX_NODES, Proposal, ProposalNode, SourceCost, StateHandle
from protos.draftproof.v1 import candidate_pb2 as pb
from protos.draftproof.v1.vector_pb2 import Vector
from services.wire.scalars import RELATIONS, SEMANTICS, TOPOLOGIES, duration
from services.wire.vector import (
    INT32,
    UINT32,
    UINT64,
    decode_floats,
    decode_ints,
    decode_list,
    encode_floats,
    encode_ints,
    encode_list,
)

MAX_DRAWS = 4 * MAX_NODES
MAX_NAMES = 256


class _Names:
    """A table of names being built: each name once, in order of appearance."""

    def __init__(self) -> None:
        self._index: dict[str, int] = {}

    def of(self, name: str) -> int:
        return self._index.setdefault(name, len(self._index))

    @property
    def list(self) -> list[str]:
        return list(self._index)


def _names(names: Sequence[str], field: str) -> Sequence[str]:
    if len(names) > MAX_NAMES:
        raise InvalidArgument(f"{field}.names", f"{len(names)} names, at most {MAX_NAMES}")
    return names


def _name_indices(vector: Vector, field: str, count: int, names: Sequence[str]) -> list[int]:
    return decode_list(vector, UINT32, field, limit=MAX_NODES, length=count, below=len(names))


def encode_law(law: DraftLaw, field: str) -> pb.DraftLaw:
    """Raises InvalidArgument naming the field for ids or weights that the wire's types cannot hold."""
    return pb.DraftLaw(
        token_ids=encode_ints(law.token_ids, UINT32, f"{field}.token_ids"),
        weights=encode_ints(law.weights, UINT64, f"{field}.weights"),
    )


def decode_law(message: pb.DraftLaw, field: str) -> DraftLaw:
    """The law as sent; contracts.check_law says whether it is one."""
    ids = decode_ints(message.token_ids, UINT32, f"{field}.token_ids", limit=MAX_SUPPORT)
    weights = decode_ints(message.weights, UINT64, f"{field}.weights", limit=MAX_SUPPORT, length=len(ids))
    return DraftLaw(ids, weights)


def _encode_numbers(values: Sequence[float | None]) -> pb.NodeNumbers | None:
    given = [(index, value) for index, value in enumerate(values) if value is not None]
    if not given:
        return None
    return pb.NodeNumbers(
        nodes=encode_list([index for index, _ in given], UINT32, "nodes"),
        values=encode_floats([value for _, value in given]),
    )


def _decode_numbers(message: pb.NodeNumbers, field: str, count: int) -> list[float | None]:
    nodes = decode_list(message.nodes, UINT32, f"{field}.nodes", limit=count, below=count)
    values = decode_floats(message.values, f"{field}.values", limit=count, length=len(nodes))
    if any(later <= earlier for earlier, later in pairwise(nodes)):
        raise InvalidArgument(f"{field}.nodes", "must be strictly ascending")
    out: list[float | None] = [None] * count
    for index, value in zip(nodes, values, strict=True):
        out[index] = value
    return out


def encode_proposal(proposal: Proposal) -> pb.Proposal:
    """Raises InvalidArgument naming the field for numbers that the wire's types cannot hold."""
    nodes = proposal.nodes
    names = _Names()
    node_sources = [names.of(node.source) for node in nodes]
    node_owners = [names.of(node.state_owner) for node in nodes]
    return pb.Proposal(
        source=proposal.source,
        tokens=encode_list([node.token for node in nodes], UINT32, "proposal.tokens"),
        parents=encode_list([node.parent for node in nodes], INT32, "proposal.parents"),
        depths=encode_list([node.depth for node in nodes], INT32, "proposal.depths"),
        names=names.list,
        node_sources=encode_list(node_sources, UINT32, "proposal.node_sources"),
        node_owners=encode_list(node_owners, UINT32, "proposal.node_owners"),
        q=_encode_numbers([node.q for node in nodes]),
        scores=_encode_numbers([node.score for node in nodes]),
        semantics=SEMANTICS.encode(proposal.semantics),
        relation=RELATIONS.encode(proposal.relation),
        topology=TOPOLOGIES.encode(proposal.topology),
        round_hash=proposal.round_hash,
        laws=[
            pb.ParentLaw(parent=parent, law=encode_law(law, f"proposal.laws[{parent}]"))
            for parent, law in proposal.laws.items()
        ],
        state=pb.StateHandle(
            owner=proposal.state.owner, generation=proposal.state.generation, prefix_len=proposal.state.prefix_len
        ),
        cost=pb.SourceCost(
            compute_us=proposal.cost.compute_us,
            match_length=proposal.cost.match_length,
            match_count=proposal.cost.match_count,
            truncated=proposal.cost.truncated,
            miss=proposal.cost.miss,
        ),
    )


def decode_proposal(message: pb.Proposal) -> Proposal:
    """The offer as sent; contracts.check_proposal says whether it may be used."""
    tokens = decode_list(message.tokens, UINT32, "proposal.tokens", limit=MAX_NODES)
    count = len(tokens)
    names = _names(message.names, "proposal")

    parents = decode_list(message.parents, INT32, "proposal.parents", limit=MAX_NODES, length=count)
    depths = decode_list(message.depths, INT32, "proposal.depths", limit=MAX_NODES, length=count)
    sources = _name_indices(message.node_sources, "proposal.node_sources", count, names)
    owners = _name_indices(message.node_owners, "proposal.node_owners", count, names)
    q = _decode_numbers(message.q, "proposal.q", count)
    scores = _decode_numbers(message.scores, "proposal.scores", count)
    laws: dict[int, DraftLaw] = {}
    if len(message.laws) > count + 1:
        raise InvalidArgument("proposal.laws", f"{len(message.laws)} laws for {count} nodes")
    for item in message.laws:
        if item.parent in laws:
            raise InvalidArgument("proposal.laws", f"two laws for parent {item.parent}")
        laws[item.parent] = decode_law(item.law, f"proposal.laws[{item.parent}]")
    return Proposal(
        source=message.source,
        nodes=tuple(
            ProposalNode(token, parent, depth, names[source], names[owner], prob, score)
            for token, parent, depth, source, owner, prob, score in zip(
                tokens, parents, depths, sources, owners, q, scores, strict=True
            )
        ),
        semantics=SEMANTICS.decode(message.semantics, "proposal.semantics"),
        relation=RELATIONS.decode(message.relation, "proposal.relation"),
        topology=TOPOLOGIES.decode(message.topology, "proposal.topology"),
        round_hash=message.round_hash,
        laws=laws,
        state=StateHandle(message.state.owner, message.state.generation, message.state.prefix_len),
        cost=SourceCost(
            duration(message.cost.compute_us, "proposal.cost.compute_us"),
            message.cost.match_length,
            message.cost.match_count,
            message.cost.truncated,
            message.cost.miss,
        ),
    )


def encode_graph(graph: CandidateGraph) -> pb.CandidateGraph:
    """Raises InvalidArgument naming the field for numbers that the wire's types cannot hold."""
    names = _Names()
    row_sources = [names.of(name) for row in graph.sources for name in row]
    ends = list(accumulate(len(row) for row in graph.sources))
    return pb.CandidateGraph(
        token_ids=encode_ints(graph.token_ids, UINT32, "graph.token_ids"),
        parents=encode_ints(graph.parents, INT32, "graph.parents"),
        row_source_ends=encode_list(ends, UINT32, "graph.row_source_ends"),
        row_sources=encode_list(row_sources, UINT32, "graph.row_sources"),
        draw_parents=encode_list([draw.parent for draw in graph.draws], INT32, "graph.draw_parents"),
        draw_rows=encode_list([draw.row for draw in graph.draws], UINT32, "graph.draw_rows"),
        draw_sources=encode_list([names.of(draw.source) for draw in graph.draws], UINT32, "graph.draw_sources"),
        draw_laws=encode_list([draw.law for draw in graph.draws], INT32, "graph.draw_laws"),
        names=names.list,
        laws=[encode_law(law, f"graph.laws[{index}]") for index, law in enumerate(graph.laws)],
        semantics=[SEMANTICS.encode(item) for item in sorted(graph.semantics)],
        relations=[RELATIONS.encode(item) for item in sorted(graph.relations)],
    )


def decode_graph(message: pb.CandidateGraph) -> CandidateGraph:
    """The graph as sent; contracts.check_graph says whether a pass may trust it."""
    tokens = decode_ints(message.token_ids, UINT32, "graph.token_ids", limit=MAX_NODES)
    rows = len(tokens)
    parents = decode_ints(message.parents, INT32, "graph.parents", limit=MAX_NODES, length=rows)
    names = _names(message.names, "graph")
    draw_rows = decode_list(message.draw_rows, UINT32, "graph.draw_rows", limit=MAX_DRAWS)
    draws = len(draw_rows)
    draw_parents = decode_list(message.draw_parents, INT32, "graph.draw_parents", limit=MAX_DRAWS, length=draws)
    draw_sources = decode_list(
        message.draw_sources, UINT32, "graph.draw_sources", limit=MAX_DRAWS, length=draws, below=len(names)
    )
    draw_laws = decode_list(message.draw_laws, INT32, "graph.draw_laws", limit=MAX_DRAWS, length=draws)
    if len(message.laws) > MAX_NODES:
        raise InvalidArgument("graph.laws", f"{len(message.laws)} laws, at most {MAX_NODES}")
    return CandidateGraph(
        tokens,
        parents,
        _row_sources(message, rows, names),
        tuple(
            Draw(parent, row, names[source], law)
            for parent, row, source, law in zip(draw_parents, draw_rows, draw_sources, draw_laws, strict=True)
        ),
        tuple(decode_law(law, f"graph.laws[{index}]") for index, law in enumerate(message.laws)),
        frozenset(SEMANTICS.decode(item, "graph.semantics") for item in message.semantics),
        frozenset(RELATIONS.decode(item, "graph.relations") for item in message.relations),
    )


def _row_sources(message: pb.CandidateGraph, rows: int, names: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    limit = MAX_NODES * MAX_NAMES
    field = "graph.row_source_ends"
    ends = decode_list(message.row_source_ends, UINT32, field, limit=MAX_NODES, length=rows)
    flat = decode_list(message.row_sources, UINT32, "graph.row_sources", limit=limit, below=len(names))
    starts = [0, *ends[:-1]]
    if any(end < start for start, end in zip(starts, ends, strict=False)) or (ends[-1] if ends else 0) != len(flat):
        raise InvalidArgument(field, f"must ascend to {len(flat)}")
    return tuple(tuple(names[index] for index in flat[start:end]) for start, end in zip(starts, ends, strict=False))
