"""Fake proposer and retriever, scriptable where sources fail."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from contracts.capability import (
    SourceDescription,
)
from contracts.draft_law import DraftLaw
from contracts.errors import FailedPrecondition, InvalidArgument, NotFound, PermissionDenied, Unavailable
from contracts.hidden import HIDDEN_BASE, HiddenRows, joined
from contracts.manifest import Manifest
from contracts.options import SourceOption
from contracts.ports import ProposeRequest
from contracts.proposal import Proposal, ProposalNode, SourceCost, StateHandle
from contracts.retrieval import MAX_BATCH, IndexDescription, PublishedOutput, Retrieval, RetrievalQuery
from contracts.topology import ProbabilitySemantics, SamplingRelation, Topology
from tests.helpers.fakes.target import VOCAB, FakeTokenizer, Logits
from tests.helpers.fakes.verifier import fake_rows
from tests.helpers.proposals import point_law

Draft = Callable[[ProposeRequest], Sequence[int]]


def oracle(logits: Logits) -> Draft:
    """Drafts the target's own argmax chain, so that everything is accepted at temperature 0."""

    def draft(request: ProposeRequest) -> list[int]:
        tokens: list[int] = []
        for _ in range(min(request.node_budget, request.max_depth)):
            tokens.append(int(np.argmax(logits([*request.prefix.tolist(), *tokens]))))
        return tokens

    return draft


def lookup(request: ProposeRequest) -> list[int]:
    """What followed the last earlier occurrence of the last two tokens."""
    prefix: list[int] = request.prefix.tolist()
    for start in range(len(prefix) - 3, -1, -1):
        if prefix[start : start + 2] == prefix[-2:]:
            return prefix[start + 2 : start + 2 + min(request.node_budget, request.max_depth)]
    return []


def chain_of(request: ProposeRequest, tokens: Sequence[int], *, laws: bool = False) -> Proposal:
    """A chain as a well-formed answer to `request`; with `laws`, each token under a law of its own."""
    by_parent: dict[int, DraftLaw] = {i - 1: point_law(token) for i, token in enumerate(tokens)} if laws else {}
    return Proposal(
        source=request.source,
        nodes=tuple(
            ProposalNode(token, i - 1, i + 1, request.source, "fake", q=1.0 if laws else None)
            for i, token in enumerate(tokens)
        ),
        semantics=ProbabilitySemantics.NORMALIZED_CONDITIONAL if laws else ProbabilitySemantics.ABSENT,
        relation=SamplingRelation.INDEPENDENT if laws else SamplingRelation.DETERMINISTIC_LOOKUP,
        topology=Topology.SEQUENCE,
        round_hash=request.manifest.hash,
        laws=by_parent,
        state=StateHandle("fake", request.manifest.round_id, len(request.prefix)),
        cost=SourceCost(compute_us=2.0),
    )


class FakeProposer:
    """Sources by name behind ProposerPort; those in `with_laws` draw from laws.

    `script`: for each Propose call to come, an exception to raise, a function that rewrites the proposal, an event to
    wait for, or None for a good call.
    """

    def __init__(self, sources: Mapping[str, Draft] | None = None, *, with_laws: Sequence[str] = ()) -> None:
        self.sources = dict(sources or {"prompt_lookup": lookup})
        self.with_laws = tuple(with_laws)
        self.options: dict[str, tuple[SourceOption, ...]] = {}
        self.script: deque[Exception | Callable[[Proposal], Proposal] | asyncio.Event | None] = deque()
        self.down = False
        self.sessions: dict[str, Manifest] = {}
        self.calls: list[str] = []
        self.asked: list[ProposeRequest] = []
        self.closed: list[str] = []

    def _called(self, name: str) -> None:
        self.calls.append(name)
        if self.down:
            raise Unavailable("proposer", "the fake is down")

    async def describe(self) -> Sequence[SourceDescription]:
        self._called("describe")
        return [
            SourceDescription(
                name,
                "fake",
                "1",
                ProbabilitySemantics.NORMALIZED_CONDITIONAL if name in self.with_laws else ProbabilitySemantics.ABSENT,
                SamplingRelation.INDEPENDENT if name in self.with_laws else SamplingRelation.DETERMINISTIC_LOOKUP,
                Topology.SEQUENCE,
                FakeTokenizer.digest,
                options=self.options.get(name, ()),
            )
            for name in self.sources
        ]

    async def open_session(self, session_id: str, manifest: Manifest) -> None:
        self._called("open_session")
        self.sessions[session_id] = manifest

    async def propose(self, request: ProposeRequest) -> Proposal:
        self._called("propose")
        self.asked.append(request)
        step = self.script.popleft() if self.script else None
        if isinstance(step, Exception):
            raise step
        if isinstance(step, asyncio.Event):
            await step.wait()
        if request.source not in self.sources:
            raise InvalidArgument("source", f"unknown source {request.source!r}")
        held = self.sessions.get(request.manifest.session_id)
        if held is None:
            raise FailedPrecondition("session_id", f"no session {request.manifest.session_id}")
        if held.hash != request.manifest.manifest_hash:
            raise FailedPrecondition("manifest.manifest_hash", "is not the session's")
        tokens = self.sources[request.source](request)[: min(request.node_budget, request.max_depth)]
        proposal = chain_of(request, tokens, laws=request.source in self.with_laws)
        return proposal if step is None or isinstance(step, asyncio.Event) else step(proposal)

    async def close_session(self, session_id: str) -> None:
        self._called("close_session")
        self.closed.append(session_id)
        self.sessions.pop(session_id, None)


class TappedProposer(FakeProposer):
    """Sources that read the target's rows: each call must leave them with the fake verifier's rows of the whole prefix.

    prompt_rows: by source, of the prompt's rows it reads so many; 0 and none: all.
    `forgets`: for each Propose call to come, whether all that is known is gone before it, as after a restart.
    """

    def __init__(
        self,
        sources: Mapping[str, Draft],
        taps: Mapping[str, tuple[str, ...]],
        prompt_rows: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__(sources)
        self.prompt_rows = prompt_rows or {}
        self.taps = dict(taps)
        self.held: dict[tuple[str, str], HiddenRows] = {}
        self.forgets: deque[bool] = deque()

    async def describe(self) -> Sequence[SourceDescription]:
        return [
            replace(source, taps=self.taps[source.name], prompt_rows=self.prompt_rows.get(source.name, 0))
            for source in await super().describe()
        ]

    async def propose(self, request: ProposeRequest) -> Proposal:
        if self.forgets and self.forgets.popleft():
            self.held.clear()
            self.sessions.clear()
        session = request.manifest.session_id
        key = (session, request.source)
        if session in self.sessions and self.taps[request.source]:
            if request.hidden is not None:
                base = request.hidden.base
                count = self.held[key].stop if key in self.held else base
                if request.hidden.start > count:
                    raise FailedPrecondition(HIDDEN_BASE, f"only {count} rows are here")
                assert tuple(request.hidden.taps) == self.taps[request.source]
                kept = [self.held[key].between(base, request.hidden.start)] if request.hidden.start > base else []
                self.held[key] = joined([*kept, request.hidden])
            needed = len(request.prefix) - 1
            if request.node_budget and (key not in self.held or self.held[key].stop < needed):
                raise FailedPrecondition(HIDDEN_BASE, f"{needed} rows are needed")
            if request.node_budget:
                base = self.held[key].base
                expected = fake_rows(request.prefix.tolist(), base, needed, self.taps[request.source])
                assert self.held[key] == expected.based(base)
        return await super().propose(request)


class FakeRetriever:
    """Indexes by name, each over one token sequence, behind RetrieverPort: longest suffix match by scanning."""

    def __init__(self, indexes: Mapping[str, Sequence[int]], *, release: str = "release-1") -> None:
        self.indexes = dict(indexes)
        self.release = release
        self.down = False
        self.calls: list[str] = []
        self.asked: list[RetrievalQuery] = []
        self.visible_to: dict[str, tuple[str, ...]] = {}
        self.recording: frozenset[str] = frozenset()
        self.recorded: list[PublishedOutput] = []
        self.live = 0
        self.live_gone = False
        self.answers_from = ""

    def _called(self, name: str) -> None:
        self.calls.append(name)
        if self.down:
            raise Unavailable("retriever", "the fake is down")

    async def describe(self, tenant: str = "") -> Sequence[IndexDescription]:
        self._called("describe")
        return [
            IndexDescription(
                name,
                self.release,
                FakeTokenizer.digest,
                VOCAB,
                16,
                16,
                len(tokens),
                self.live,
                tenant in self.recording,
            )
            for name, tokens in self.indexes.items()
            if tenant in self.visible_to.get(name, (tenant,))
        ]

    async def record(self, output: PublishedOutput) -> int:
        self._called("record")
        if output.tenant not in self.recording:
            raise PermissionDenied("live", f"nothing is recorded for {output.tenant!r}")
        self.recorded.append(output)
        return len(self.recorded)

    async def retrieve_batch(self, query: RetrievalQuery, suffixes: Sequence[np.ndarray]) -> Sequence[Retrieval]:
        if len(suffixes) > MAX_BATCH:
            raise InvalidArgument("suffixes", f"{len(suffixes)}, at most {MAX_BATCH}")
        return [await self.retrieve(replace(query, suffix=suffix)) for suffix in suffixes]

    async def retrieve(self, query: RetrievalQuery) -> Retrieval:
        self._called("retrieve")
        self.asked.append(query)
        if query.index not in self.indexes:
            raise NotFound("index", f"no index {query.index!r}")
        if query.release != self.release:
            raise FailedPrecondition("release", f"{query.release!r} is not served, {self.release!r} is")
        answer = Retrieval(
            compute_us=3.0, release=self.answers_from or query.release, live_generation=query.live_generation
        )
        if self.live_gone and query.live_generation:
            return replace(answer, live_gone=True)
        corpus, suffix = list(self.indexes[query.index]), query.suffix.tolist()
        for length in range(min(query.max_match, len(suffix)), query.min_match - 1, -1):
            ends = [e for e in range(length, len(corpus)) if corpus[e - length : e] == suffix[len(suffix) - length :]]
            if ends:
                return self._trie(answer, [corpus[e : e + query.max_depth] for e in ends], length, query.node_budget)
        return answer

    def _trie(self, answer: Retrieval, continuations: Sequence[Sequence[int]], length: int, budget: int) -> Retrieval:
        counts: dict[tuple[int, ...], int] = {}
        for continuation in continuations:
            for depth in range(1, len(continuation) + 1):
                path = tuple(continuation[:depth])
                counts[path] = counts.get(path, 0) + 1
        paths = sorted(counts, key=lambda path: (-counts[path], len(path), path))
        kept = paths[:budget]
        row = {path: i for i, path in enumerate(kept)}
        return replace(
            answer,
            match_length=length,
            match_count=len(continuations),
            tokens=np.array([path[-1] for path in kept], dtype=np.int64),
            parents=np.array([row.get(path[:-1], -1) for path in kept], dtype=np.int64),
            depths=np.array([len(path) for path in kept], dtype=np.int64),
            counts=np.array([counts[path] for path in kept], dtype=np.int64),
            truncated=len(paths) > budget,
        )
