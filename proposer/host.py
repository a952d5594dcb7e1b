"""Several sources behind one object: it knows the sessions, refuses what does not fit their manifests, and dispatches.

Not thread-safe: one thread opens, admits and closes. `Source.propose` alone may run elsewhere, between `admit` and `check`,
and with it `is_quick` and `settle`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from contracts.capability import SourceDescription
from contracts.errors import FailedPrecondition, Internal, InvalidArgument
from contracts.hidden import HiddenRows
from contracts.manifest import Manifest
from contracts.ports import ProposeRequest
from contracts.proposal import MAX_NODES, Proposal, unfold
from contracts.topology import Topology
from proposer.sessions import Session, SessionTable
from proposer.source import Quick, Settles, Source


class TakesRows(Protocol):
    """Where hidden rows that come with requests go (proposer/hidden_store.py, which needs torch; a host does not)."""

    def take(self, session_id: str, hidden: HiddenRows) -> None: ...

    def drop(self, session_id: str) -> None: ...


class SourceHost:
    """The proposer service without its transport.

    hidden: takes the hidden rows of sources with taps. max_sessions: sessions kept, least recently used dropped first.
    idle_s: a session unused for so long may be dropped. Raises InvalidArgument when two sources share a name.
    """

    def __init__(
        self,
        sources: Iterable[Source],
        *,
        hidden: TakesRows | None = None,
        max_sessions: int = 1024,
        idle_s: float = 600.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._hidden = hidden
        self._sources: dict[str, Source] = {}
        for source in sources:
            name = source.describe().name
            if name in self._sources:
                raise InvalidArgument("sources", f"two sources are called {name!r}")
            self._sources[name] = source
        self._quick = {name: source for name, source in self._sources.items() if isinstance(source, Quick)}
        self._settling = [source for source in self._sources.values() if isinstance(source, Settles)]
        self._sessions = SessionTable(capacity=max_sessions, idle_s=idle_s, clock=clock)

    def describe(self) -> Sequence[SourceDescription]:
        """One description a source, in the order given."""
        return [source.describe() for source in self._sources.values()]

    def runs_inline(self, source: str) -> bool:
        """Whether a source is here and cheap enough to be called from an event loop."""
        return source in self._sources and self._sources[source].runs_inline

    def is_quick(self, request: ProposeRequest) -> bool:
        """Whether the source of an admitted request would take single milliseconds: asked while none of them drafts."""
        source = self._quick.get(request.source)
        return source is not None and source.is_quick(request)

    @property
    def open_sessions(self) -> int:
        """How many sessions are kept now."""
        return len(self._sessions)

    def open(self, session_id: str, manifest: Manifest) -> None:
        """Binds a session to the sources of its manifest that live here; idempotent by session and manifest.

        Raises InvalidArgument for an empty session id, FailedPrecondition with field `manifest.sources` when the manifest
        binds another version of a source, AlreadyExists when the session is open under an unrelated manifest.
        """
        if not session_id:
            raise InvalidArgument("session_id", "is empty")
        bound = []
        for wanted in manifest.sources:
            source = self._sources.get(wanted.name)
            if source is None:
                continue
            here = source.describe()
            if here != wanted:
                raise FailedPrecondition(
                    "manifest.sources",
                    f"binds {wanted.name!r} at version {wanted.version[:16]!r}, here it is {here.version[:16]!r}",
                )
            bound.append(source)
        names = frozenset(source.describe().name for source in bound)
        dropped = self._sessions.put(session_id, Session(manifest, names))
        for old_id, session in dropped:
            self._close_sources(old_id, session)
        for source in bound:
            source.open(session_id, manifest)

    def settle(self) -> None:
        """Has sources give back what closed sessions held: by the thread that runs `Source.propose`, between its calls."""
        for source in self._settling:
            source.settle()

    @property
    def settles(self) -> bool:
        """Whether any source has to."""
        return bool(self._settling)

    def close(self, session_id: str) -> None:
        """Forgets a session; unknown ones are ignored. `settle` gives back what drafting threads hold of it."""
        session = self._sessions.remove(session_id)
        if session is not None:
            self._close_sources(session_id, session)

    def propose(self, request: ProposeRequest) -> Proposal:
        """Admits the request, asks the source, checks the offer. Raises what `admit`, the source and `check` raise."""
        return self.check(request, self.admit(request).propose(request))

    def admit(self, request: ProposeRequest) -> Source:
        """The source to ask, once the request fits the session's manifest and its own round manifest; its hidden rows are
        taken then.

        Raises InvalidArgument for an unknown source, a prefix that is not what the round manifest says, and budgets out
        of range; FailedPrecondition for a session not open here, a source its manifest does not bind, another manifest,
        hidden rows that do not follow those received (`contracts.hidden.HIDDEN_BASE`).
        """
        source = self._sources.get(request.source)
        if source is None:
            known = ", ".join(sorted(self._sources))
            raise InvalidArgument("source", f"unknown source {request.source!r}; known: {known}")
        coordinates = request.manifest
        session = self._sessions.get(coordinates.session_id)
        if request.source not in session.sources:
            raise FailedPrecondition("manifest.sources", f"the session does not bind {request.source!r}")
        if coordinates.manifest_hash != session.manifest.hash:
            raise FailedPrecondition(
                "manifest.manifest_hash",
                f"the round acts under {coordinates.manifest_hash[:16]!r}, the session under {session.manifest.hash[:16]!r}",
            )
        _check_budgets(request, session.manifest)
        if len(request.prefix) != coordinates.prefix_len or coordinates.prefix_len < 1:
            raise InvalidArgument(
                "prefix", f"{len(request.prefix)} tokens, the round manifest says {coordinates.prefix_len}; at least 1"
            )
        if session.prefix.digest_of(request.prefix) != coordinates.frontier:
            raise InvalidArgument("prefix", "its digest differs from the round manifest's frontier")
        if request.hidden is not None:
            self._take(request, request.hidden, source.describe())
        return source

    def check(self, request: ProposeRequest, proposal: Proposal) -> Proposal:
        """The proposal itself, a metadata graph as the tree that it unfolds into. Raises Internal when a source breaks its
        own declaration or the request's limits.
        """
        if proposal.topology is Topology.METADATA_GRAPH:
            try:
                proposal = unfold(proposal, limit=request.node_budget)
            except InvalidArgument as error:
                raise Internal(
                    "proposal.nodes", f"the graph of {proposal.source!r} does not unfold: {error}"
                ) from error
        here = self._sources[request.source].describe()
        declared = (here.name, here.semantics, here.relation, here.topology)
        if (proposal.source, proposal.semantics, proposal.relation, proposal.topology) != declared:
            raise Internal("proposal", f"source {here.name!r} offered something else than it declared")
        if proposal.round_hash != request.manifest.hash:
            raise Internal("proposal.round_hash", f"source {here.name!r} answered for another round")
        if len(proposal.nodes) > request.node_budget:
            raise Internal(
                "proposal.nodes", f"{len(proposal.nodes)} nodes from {here.name!r} over {request.node_budget}"
            )
        if any(node.depth > request.max_depth for node in proposal.nodes):
            raise Internal("proposal.nodes", f"source {here.name!r} went deeper than {request.max_depth}")
        return proposal

    def _close_sources(self, session_id: str, session: Session) -> None:
        for name in session.sources:
            self._sources[name].close(session_id)
        if self._hidden is not None:
            self._hidden.drop(session_id)

    def _take(self, request: ProposeRequest, hidden: HiddenRows, here: SourceDescription) -> None:
        if self._hidden is None or hidden.taps.keys() != frozenset(here.taps):
            raise InvalidArgument("hidden.taps", f"{sorted(hidden.taps)} came, {here.name!r} reads {sorted(here.taps)}")
        if hidden.stop > len(request.prefix) - 1:
            raise InvalidArgument(
                "hidden",
                f"rows up to {hidden.stop}, a prefix of {len(request.prefix)} tokens has {len(request.prefix) - 1}",
            )
        self._hidden.take(request.manifest.session_id, hidden)


def _check_budgets(request: ProposeRequest, manifest: Manifest) -> None:
    """The round's plan bounds a source it names; the session's manifest bounds all."""
    nodes, depth = min(manifest.node_budget, MAX_NODES), manifest.max_depth
    for plan in request.manifest.plan:
        if plan.source == request.source:
            nodes, depth = min(nodes, plan.node_budget), min(depth, plan.max_depth)
    if not 0 <= request.node_budget <= nodes:
        raise InvalidArgument("node_budget", f"{request.node_budget} is outside [0, {nodes}]")
    if not 0 <= request.max_depth <= depth:
        raise InvalidArgument("max_depth", f"{request.max_depth} is outside [0, {depth}]")
