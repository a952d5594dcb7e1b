"""In-memory fakes of every port, honest about commit, generation and idempotency, and scriptable where peers fail.

The toy target has a small byte vocabulary; its law after a prefix is a pure function of the prefix, so any wrong
acceptance, lost or doubled token shows in the text.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from contracts.capability import (
    ALL_RELATIONS,
    ALL_SEMANTICS,
    ROW_TOPOLOGIES,
    Exactness,
    SourceDescription,
    VerifierCapability,
)
from contracts.draft_law import DraftLaw, point_law
from contracts.errors import AlreadyExists, FailedPrecondition, InvalidArgument, NotFound, Unavailable
from contracts.frontier import Frontier
from contracts.graph import check_graph
from contracts.manifest import Manifest, TargetIdentity
from contracts.payload import payload_digest
from contracts.ports import OpenSession, ProposeRequest, SessionOpened, VerifierDescription, VerifyRequest
from contracts.proposal import Proposal, ProposalNode, SourceCost, StateHandle
from contracts.randomness import CoinChooser
from contracts.receipt import Closing, FinishReason, Receipt, TokenLogprob, VerifyTimings
from contracts.retrieval import IndexDescription, Retrieval, RetrievalQuery
from contracts.sampling import SamplingPolicy
from contracts.topology import ProbabilitySemantics, SamplingRelation, Topology
from orchestrator.events import Chunk, Final, GenerateEvent

BOS, EOS, VOCAB = 256, 257, 258

Logits = Callable[[Sequence[int]], npt.NDArray[np.float64]]


class FakeTokenizer:
    """One token per UTF-8 byte, and two special tokens that have no text."""

    digest = "byte-tokenizer"
    vocab_size = VOCAB

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        return [BOS, *self.encode("".join(f"{m['role']}: {m['content']}\n" for m in messages) + "assistant: ")]

    def decode(self, token_ids: Sequence[int]) -> str:
        return bytes(token for token in token_ids if token < BOS).decode(errors="replace")


def babble(prefix: Sequence[int]) -> npt.NDArray[np.float64]:
    """Logits that repeat themselves: over a few letters, from the last two tokens only."""
    seed = hashlib.sha256(bytes(token % 256 for token in prefix[-2:])).digest()
    logits = np.full(VOCAB, -20.0)
    for rank, byte in enumerate(seed[:6]):
        logits[97 + byte % 12] = 3.0 - 0.7 * rank
    return logits


def reciting(prompt_len: int, text: str | bytes, end: int = EOS) -> Logits:
    """Logits of a target that recites `text` after a prompt of `prompt_len` tokens, then `end`; a wrong prefix shows."""
    script = [*(text.encode() if isinstance(text, str) else text), end]

    def logits(prefix: Sequence[int]) -> npt.NDArray[np.float64]:
        said = list(prefix[prompt_len:])
        out = np.full(VOCAB, -20.0)
        out[script[min(len(said), len(script) - 1)] if said == script[: len(said)] else ord("!")] = 20.0
        return out

    return logits


GREEDY = VerifierCapability(
    "greedy", Exactness.EXACT, "the argmax", ALL_SEMANTICS, ALL_RELATIONS, ROW_TOPOLOGIES, greedy_only=True
)
MEMBERSHIP = VerifierCapability(
    "membership", Exactness.EXACT, "the target's law", ALL_SEMANTICS, ALL_RELATIONS, ROW_TOPOLOGIES, sampling_only=True
)
REJECTION = VerifierCapability(
    "rejection",
    Exactness.EXACT,
    "the target's law",
    frozenset({ProbabilitySemantics.NORMALIZED_CONDITIONAL}),
    frozenset({SamplingRelation.INDEPENDENT}),
    frozenset({Topology.SEQUENCE}),
    needs_law=True,
    single_source=True,
)
TYPICAL = VerifierCapability(
    "typical", Exactness.HEURISTIC, "plausible text", ALL_SEMANTICS, ALL_RELATIONS, ROW_TOPOLOGIES
)


@dataclass
class _FakeSession:
    request: OpenSession
    frontier: Frontier
    generation: int = 0
    published: int = 0
    receipts: dict[int, Receipt] = field(default_factory=dict)
    last_round: int = -1


Fault = Callable[["FakeVerifier", VerifyRequest], Awaitable[None]]


class FakeVerifier:
    """A toy target behind VerifierPort. All its algorithms publish the target's own choice, which is exact for each.

    `before`, `after`: one fault per Verify call to come, run before and after the commit; None is a good call. Faults
    raise, wait, or change the fake. `calls` records method names in order.
    """

    def __init__(
        self,
        logits: Logits = babble,
        *,
        hardware: str = "toy",
        checkpoint: str = "toy-checkpoint",
        context_length: int = 4096,
        plain_step_us: float = 100.0,
        max_rows: int = 64,
    ) -> None:
        self.logits = logits
        self.target = TargetIdentity(
            "toy", checkpoint, FakeTokenizer.digest, VOCAB, context_length, "float64", "fake", hardware
        )
        self.plain_step_us = plain_step_us
        self.max_rows = max_rows
        self.capabilities: tuple[VerifierCapability, ...] = (GREEDY, MEMBERSHIP, REJECTION, TYPICAL)
        self.sessions: dict[str, _FakeSession] = {}
        self.before: deque[Fault | None] = deque()
        self.after: deque[Fault | None] = deque()
        self.open_errors: deque[Exception] = deque()
        self.down = False
        self.calls: list[str] = []
        self.verified: list[VerifyRequest] = []
        self.opened: list[OpenSession] = []
        self.closed: list[str] = []

    def _called(self, name: str) -> None:
        self.calls.append(name)
        if self.down:
            raise Unavailable("verifier", "the fake is down")

    async def describe(self) -> VerifierDescription:
        self._called("describe")
        return VerifierDescription(
            self.target, self.capabilities, (EOS,), self.max_rows, 1 << 20, 1 << 20, self.plain_step_us
        )

    async def open_session(self, request: OpenSession) -> SessionOpened:
        self._called("open_session")
        if self.open_errors:
            raise self.open_errors.popleft()
        if request.manifest.target != self.target:
            raise FailedPrecondition("manifest.target", "is not this replica's")
        held = self.sessions.get(request.session_id)
        if held is None:
            held = _FakeSession(request, Frontier(request.prompt), published=request.published)
            self.sessions[request.session_id] = held
            self.opened.append(request)
        elif held.request.manifest.hash != request.manifest.hash:
            raise AlreadyExists("session_id", "is open under another manifest")
        return SessionOpened(request.session_id, held.generation, len(held.frontier), prefill_us=5.0)

    async def verify(self, request: VerifyRequest) -> Receipt:
        self._called("verify")
        self.verified.append(request)
        await self._fault(self.before, request)
        receipt = self._commit(request)
        await self._fault(self.after, request)
        return receipt

    async def get_receipt(self, session_id: str, round_id: int) -> Receipt:
        self._called("get_receipt")
        session = self.sessions.get(session_id)
        if session is None or round_id not in session.receipts:
            raise NotFound("round_id", f"none of round {round_id} of session {session_id}")
        return session.receipts[round_id]

    async def close_session(self, session_id: str) -> None:
        self._called("close_session")
        self.closed.append(session_id)
        self.sessions.pop(session_id, None)

    async def _fault(self, faults: deque[Fault | None], request: VerifyRequest) -> None:
        fault = faults.popleft() if faults else None
        if fault is not None:
            await fault(self, request)

    def _commit(self, request: VerifyRequest) -> Receipt:
        manifest, graph = request.manifest, request.graph
        session = self.sessions.get(manifest.session_id)
        if session is None:
            raise NotFound("session_id", f"no session {manifest.session_id}")
        known = session.receipts.get(manifest.round_id)
        if known is not None:
            if known.payload_digest != request.payload_digest:
                raise AlreadyExists("manifest.round_id", f"round {manifest.round_id} was another payload")
            return known
        if manifest.manifest_hash != session.request.manifest.hash:
            raise FailedPrecondition("manifest.manifest_hash", "is not the session's")
        if manifest.target_generation != session.generation or manifest.round_id <= session.last_round:
            raise FailedPrecondition(
                "manifest.target_generation", f"is {manifest.target_generation}, not {session.generation}"
            )
        if manifest.frontier != session.frontier.digest:
            raise FailedPrecondition("manifest.frontier", "is another prefix")
        check_graph(graph, vocab_size=VOCAB, max_rows=self.max_rows)
        if request.payload_digest != payload_digest(manifest, graph):
            raise InvalidArgument("payload_digest", "does not match the payload")
        policy = session.request.policy
        tokens, rows, closing, finish = self._select(session, request, policy)
        session.frontier.publish(np.array(tokens))
        session.published += len(tokens)
        session.generation += 1
        session.last_round = manifest.round_id
        receipt = Receipt(
            session_id=manifest.session_id,
            round_id=manifest.round_id,
            payload_digest=request.payload_digest,
            round_hash=manifest.hash,
            generation=session.generation,
            prefix_len=len(session.frontier),
            tokens=tuple(tokens),
            accepted_rows=tuple(rows),
            closing=closing,
            finish=finish,
            logprobs=() if policy.logprobs is None else tuple(TokenLogprob(-0.5) for _ in tokens),
            timings=VerifyTimings(1.0, 1.0, 4.0, 2.0, 1.0),
            pass_rows=len(graph) + 1,
            pass_sessions=1,
        )
        session.receipts = {k: v for k, v in session.receipts.items() if k > request.acknowledge}
        session.receipts[manifest.round_id] = receipt
        return receipt

    def _select(
        self, session: _FakeSession, request: VerifyRequest, policy: SamplingPolicy
    ) -> tuple[list[int], list[int], Closing, FinishReason]:
        prefix = session.frontier.tokens.tolist()
        stops = {*policy.stop_ids, *(() if policy.ignore_eos else (EOS,))}
        tokens: list[int] = []
        rows: list[int] = []
        row = -1
        while True:
            published = session.published + len(tokens) + 1
            token = self._choose([*prefix, *tokens], policy, stops if published <= policy.min_tokens else set())
            child = request.graph.children.get(row, {}).get(token)
            tokens.append(token)
            if child is not None:
                row = child
                rows.append(child)
            closing = Closing.BONUS if child is None and rows else Closing.NONE if child is not None else Closing.SAMPLE
            if token in stops:
                return tokens, rows, closing, FinishReason.STOP
            if published >= policy.max_tokens:
                return tokens, rows, closing, FinishReason.LENGTH
            if child is None:
                return tokens, rows, closing, FinishReason.NONE

    def _choose(self, prefix: list[int], policy: SamplingPolicy, banned: set[int]) -> int:
        logits = self.logits(prefix).copy()
        logits[sorted(banned)] = -np.inf
        if policy.greedy:
            return int(np.argmax(logits))
        scaled = logits / policy.temperature
        return CoinChooser(policy.seed, len(prefix)).gumbel_argmax(scaled - np.logaddexp.reduce(scaled), len(prefix))


async def lose_reply(verifier: FakeVerifier, request: VerifyRequest) -> None:
    """As `after`: the commit happened, its reply did not arrive. As `before`: the call itself did not."""
    raise Unavailable("verifier", "the connection broke")


async def drop_session(verifier: FakeVerifier, request: VerifyRequest) -> None:
    """The replica restarted: its sessions are gone."""
    verifier.sessions.clear()


def wait_for(event: asyncio.Event) -> Fault:
    """Holds the call until the event is set."""

    async def fault(verifier: FakeVerifier, request: VerifyRequest) -> None:
        await event.wait()

    return fault


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


class FakeRetriever:
    """Indexes by name, each over one token sequence, behind RetrieverPort: longest suffix match by scanning."""

    def __init__(self, indexes: Mapping[str, Sequence[int]], *, release: str = "release-1") -> None:
        self.indexes = dict(indexes)
        self.release = release
        self.down = False
        self.calls: list[str] = []
        self.asked: list[RetrievalQuery] = []

    def _called(self, name: str) -> None:
        self.calls.append(name)
        if self.down:
            raise Unavailable("retriever", "the fake is down")

    async def describe(self) -> Sequence[IndexDescription]:
        self._called("describe")
        return [
            IndexDescription(name, self.release, FakeTokenizer.digest, VOCAB, 16, 16, len(tokens))
            for name, tokens in self.indexes.items()
        ]

    async def retrieve(self, query: RetrievalQuery) -> Retrieval:
        self._called("retrieve")
        self.asked.append(query)
        if query.index not in self.indexes:
            raise NotFound("index", f"no index {query.index!r}")
        if query.release != self.release:
            raise FailedPrecondition("release", f"{query.release!r} is not served, {self.release!r} is")
        corpus, suffix = list(self.indexes[query.index]), query.suffix.tolist()
        for length in range(min(query.max_match, len(suffix)), query.min_match - 1, -1):
            ends = [e for e in range(length, len(corpus)) if corpus[e - length : e] == suffix[len(suffix) - length :]]
            if ends:
                return self._trie([corpus[e : e + query.max_depth] for e in ends], length, query.node_budget)
        return Retrieval(compute_us=3.0)

    def _trie(self, continuations: Sequence[Sequence[int]], length: int, budget: int) -> Retrieval:
        counts: dict[tuple[int, ...], int] = {}
        for continuation in continuations:
            for depth in range(1, len(continuation) + 1):
                path = tuple(continuation[:depth])
                counts[path] = counts.get(path, 0) + 1
        paths = sorted(counts, key=lambda path: (-counts[path], len(path), path))
        kept = paths[:budget]
        row = {path: i for i, path in enumerate(kept)}
        return Retrieval(
            match_length=length,
            match_count=len(continuations),
            tokens=np.array([path[-1] for path in kept], dtype=np.int64),
            parents=np.array([row.get(path[:-1], -1) for path in kept], dtype=np.int64),
            depths=np.array([len(path) for path in kept], dtype=np.int64),
            counts=np.array([counts[path] for path in kept], dtype=np.int64),
            truncated=len(paths) > budget,
            compute_us=3.0,
        )


async def collect(events: AsyncIterator[GenerateEvent]) -> tuple[list[Chunk], Final]:
    """All chunks and the Final of a generation that ends by itself."""
    seen = [event async for event in events]
    final = seen.pop()
    assert isinstance(final, Final)
    return [event for event in seen if isinstance(event, Chunk)], final
