"""A fake verifier, honest about commit, generation and idempotency, and scriptable where replicas fail."""

from __future__ import annotations

import asyncio
import zlib
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import numpy as np

from contracts.capability import (
    ALL_RELATIONS,
    ALL_SEMANTICS,
    ROW_TOPOLOGIES,
    Exactness,
    VerifierCapability,
    taps_of,
)
from contracts.errors import AlreadyExists, FailedPrecondition, InvalidArgument, NotFound, Unavailable
from contracts.frontier import Frontier
from contracts.graph import check_graph
from contracts.hidden import HiddenRows
from contracts.manifest import TargetIdentity
from contracts.payload import payload_digest
from contracts.ports import OpenSession, SessionOpened, VerifierDescription, VerifyRequest
from contracts.randomness import CoinChooser
from contracts.receipt import Closing, FinishReason, Receipt, TokenLogprob, VerifyTimings
from contracts.sampling import SamplingPolicy
from contracts.topology import ProbabilitySemantics, SamplingRelation, Topology
from tests.helpers.fakes.target import EOS, VOCAB, FakeTokenizer, Logits, babble

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

    @property
    def taps(self) -> tuple[str, ...]:
        return taps_of(self.request.manifest.sources)

    def rows(self, start: int, stop: int) -> HiddenRows:
        return fake_rows(self.frontier.tokens.tolist(), start, stop, self.taps)


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
        self.export_errors: deque[Exception] = deque()
        self.export_at_once = 7
        self.cached_tokens = 0
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
        for source in request.manifest.sources:
            if not set(source.taps) <= {"final_norm", "layer:0", "layer:1"}:
                raise InvalidArgument("manifest.sources.taps", f"source {source.name!r}: {source.taps}")
        held = self.sessions.get(request.session_id)
        if held is None:
            held = _FakeSession(request, Frontier(request.prompt), published=request.published)
            self.sessions[request.session_id] = held
            self.opened.append(request)
        elif held.request.manifest.hash != request.manifest.hash:
            raise AlreadyExists("session_id", "is open under another manifest")
        return SessionOpened(
            request.session_id,
            held.generation,
            len(held.frontier),
            prefill_us=5.0,
            cached_tokens=self.cached_tokens,
        )

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

    async def export_hidden(self, session_id: str, start: int, stop: int) -> HiddenRows:
        self._called("export_hidden")
        if self.export_errors:
            raise self.export_errors.popleft()
        session = self.sessions.get(session_id)
        if session is None:
            raise NotFound("session_id", f"no session {session_id}")
        if not session.taps:
            raise FailedPrecondition("taps", "no bound source reads hidden rows")
        if not 0 <= start < stop:
            raise InvalidArgument("start", f"[{start}, {stop}) is no range")
        if stop > len(session.frontier) - 1:
            raise FailedPrecondition("stop", f"{stop} is past the committed rows")
        return session.rows(start, min(stop, start + self.export_at_once))

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
        known_before = len(session.frontier)
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
            hidden_handle=f"{manifest.session_id}@{session.generation}" if session.taps else "",
            hidden=session.rows(known_before - 1, len(session.frontier) - 1) if session.taps else None,
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


def fake_rows(tokens: list[int], start: int, stop: int, taps: tuple[str, ...]) -> HiddenRows:
    """Rows that tell their tap and every token up to their own, float32 [stop - start, 2]."""
    return HiddenRows(
        start,
        {
            tap: np.array(
                [[zlib.crc32(repr((tap, tokens[: i + 1])).encode()) % 2**24, i] for i in range(start, stop)],
                dtype=np.float32,
            ).reshape(stop - start, 2)
            for tap in taps
        },
    )


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
