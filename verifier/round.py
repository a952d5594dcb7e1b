"""One round on its way to the target: replays, the checks that need no target, and its rows for the pass."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from contracts.capability import bind
from contracts.errors import AlreadyExists, FailedPrecondition, InvalidArgument
from contracts.graph import CandidateGraph, check_graph
from contracts.payload import payload_digest
from contracts.ports import VerifyRequest
from contracts.receipt import FinishReason, Receipt
from models.backend import RowBlock
from verifier.session import Session


class Round(msgspec.Struct, frozen=True, eq=False):
    """A checked round. graph: the candidates within reach; originals: their rows in the request's graph."""

    session: Session
    request: VerifyRequest
    graph: CandidateGraph
    originals: Sequence[int]
    block: RowBlock
    queued_us: float
    pack_us: float


def replay(session: Session, request: VerifyRequest) -> Receipt | None:
    """The kept receipt of a repeated call. Raises AlreadyExists if the round id was used with another payload."""
    kept = session.receipts.get(request.manifest.round_id)
    if kept is not None and kept.payload_digest != request.payload_digest:
        raise AlreadyExists(
            "manifest.round_id", f"round {kept.round_id} was verified with payload {kept.payload_digest[:16]!r}"
        )
    return kept


def check_round(session: Session, request: VerifyRequest, *, vocab_size: int) -> None:
    """Raises InvalidArgument or FailedPrecondition naming the field, before the target is touched."""
    manifest, graph = request.manifest, request.graph
    if session.opened is None:
        raise FailedPrecondition("manifest.session_id", f"session {manifest.session_id!r} is still in prefill")
    if payload_digest(manifest, graph) != request.payload_digest:
        raise InvalidArgument("payload_digest", "is not the digest of this manifest and graph")
    if session.finish is not FinishReason.NONE:
        raise FailedPrecondition("manifest.round_id", f"generation has ended ({session.finish})")
    for name, theirs, ours in (
        ("manifest_hash", manifest.manifest_hash, session.request.manifest.hash),
        ("target_generation", manifest.target_generation, session.generation),
        ("prefix_len", manifest.prefix_len, session.prefix_len),
        ("frontier", manifest.frontier, session.frontier.digest),
    ):
        if theirs != ours:
            raise FailedPrecondition(f"manifest.{name}", f"{theirs!r} given, this session is at {ours!r}")
    if manifest.round_id <= session.last_round:
        raise FailedPrecondition("manifest.round_id", f"{manifest.round_id} does not follow {session.last_round}")
    check_graph(graph, vocab_size=vocab_size, max_rows=session.request.manifest.node_budget)
    most = session.request.manifest.max_depth
    if graph.deepest > most:
        raise InvalidArgument("graph.rows", f"depth {graph.deepest}, the manifest allows {most}")
    if session.alone and graph.deepest != len(graph):
        raise InvalidArgument("graph.rows", "branch; a strict session takes chains on a backend without row invariance")
    bind(session.verifier.capability, graph)


def pack(session: Session, graph: CandidateGraph) -> RowBlock:
    """Anchor as row 0 at position prefix_len - 1; candidate r as row r + 1 at position prefix_len + depth - 1."""
    first = session.prefix_len - 1
    return RowBlock(
        slot=session.slot,
        token_ids=np.array([session.anchor, *graph.token_list], np.int64),
        positions=np.array([first, *[first + depth for depth in graph.depth_list]], np.int64),
        parents=np.array([-1, *[parent + 1 for parent in graph.parent_list]], np.int64),
    )
