"""An engine under test and a client's view of its sessions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from contracts.capability import SourceDescription
from contracts.errors import DraftproofError
from contracts.graph import EMPTY_GRAPH, CandidateGraph, Draw
from contracts.manifest import Manifest, RoundManifest
from contracts.payload import payload_digest
from contracts.ports import OpenSession, VerifyRequest
from contracts.receipt import FinishReason, Receipt
from contracts.sampling import SamplingPolicy
from contracts.topology import ProbabilitySemantics, SamplingRelation, Topology
from models.backend import Backend
from tests.unit.verifier.scripted_backend import Script, ScriptedBackend, counting
from verifier.engine import Engine

VOCAB = 20
EOS = 19
GREEDY = SamplingPolicy(temperature=0.0, max_tokens=16)


class ManualClock:
    """Nanoseconds that pass only when told to, plus one a reading so that durations are positive."""

    def __init__(self) -> None:
        self.now = 1

    def __call__(self) -> int:
        self.now += 1
        return self.now

    def advance_ms(self, milliseconds: int) -> None:
        self.now += milliseconds * 1_000_000


def tree(rows: Sequence[tuple[int, int]], **changes: Any) -> CandidateGraph:
    """A lookup source's candidates, (token, parent) each."""
    graph = CandidateGraph(
        token_ids=np.array([token for token, _ in rows], dtype=np.int64),
        parents=np.array([parent for _, parent in rows], dtype=np.int64),
        sources=tuple(("lookup",) for _ in rows),
        draws=tuple(Draw(parent, row, "lookup") for row, (_, parent) in enumerate(rows)),
        semantics=frozenset({ProbabilitySemantics.ABSENT}) if rows else frozenset(),
        relations=frozenset({SamplingRelation.DETERMINISTIC_LOOKUP}) if rows else frozenset(),
    )
    return replace(graph, **changes)


def chain(*tokens: int) -> CandidateGraph:
    return tree([(token, row - 1) for row, token in enumerate(tokens)])


LOOKUP = SourceDescription(
    "lookup", "lookup", "1", ProbabilitySemantics.ABSENT, SamplingRelation.DETERMINISTIC_LOOKUP, Topology.TREE
)


@dataclass
class Client:
    """One session as its orchestrator sees it."""

    engine: Engine
    opening: OpenSession
    tokens: list[int]
    generation: int = 0
    next_round: int = 0
    finish: FinishReason = FinishReason.NONE
    receipts: list[Receipt] = field(default_factory=list)

    @property
    def session_id(self) -> str:
        return self.opening.session_id

    @property
    def published(self) -> list[int]:
        return self.tokens[len(self.opening.prompt) :]

    def request(self, graph: CandidateGraph = EMPTY_GRAPH, *, acknowledge: int = -1, **changes: Any) -> VerifyRequest:
        from contracts.frontier import Frontier

        manifest = RoundManifest(
            manifest_hash=self.opening.manifest.hash,
            session_id=self.session_id,
            round_id=self.next_round,
            prefix_len=len(self.tokens),
            frontier=Frontier(self.tokens).digest,
            target_generation=self.generation,
            plan=(),
        )
        manifest = replace(manifest, **changes)
        return VerifyRequest(manifest, graph, payload_digest(manifest, graph), acknowledge)

    def absorb(self, receipt: Receipt) -> Receipt:
        self.tokens.extend(receipt.tokens)
        self.generation, self.finish = receipt.generation, receipt.finish
        self.next_round = receipt.round_id + 1
        self.receipts.append(receipt)
        assert receipt.prefix_len == len(self.tokens)
        return receipt

    def round(self, graph: CandidateGraph = EMPTY_GRAPH) -> Receipt:
        return self.absorb(verify_one(self.engine, self.request(graph, acknowledge=self.next_round - 1)))

    def run(self) -> list[int]:
        """Plain decoding to the end."""
        while self.finish is FinishReason.NONE:
            self.round()
        return self.published


def verify_one(engine: Engine, request: VerifyRequest) -> Receipt:
    (outcome,) = engine.verify_many([request])
    if isinstance(outcome, DraftproofError):
        raise outcome
    return outcome


class Rig:
    """An engine over `backend`, by default a counting target of VOCAB tokens whose EOS is EOS."""

    def __init__(self, backend: Backend | None = None, *, script: Script | None = None, **options: Any) -> None:
        self.clock = ManualClock()
        self.scripted = ScriptedBackend(script or counting(VOCAB), vocab_size=VOCAB)
        self.backend = backend or self.scripted
        settings: dict[str, Any] = {"max_rows": 32, "kv_tokens": self.scripted.kv_tokens, "clock": self.clock}
        self.engine = Engine(self.backend, "t" * 64, "scripted", (EOS,), **(settings | options))

    @property
    def committed(self) -> list[int]:
        """What the first session's KV holds."""
        return self.scripted.slots[0].committed

    def manifest(self, policy: SamplingPolicy, **changes: Any) -> Manifest:
        return replace(
            Manifest(
                target=self.engine.describe().target,
                sampling=policy.to_json(),
                sources=(LOOKUP,),
                verifier="greedy" if policy.greedy else "membership",
                exactness="exact",
                node_budget=16,
                max_depth=16,
            ),
            **changes,
        )

    def opening(
        self,
        prompt: Sequence[int] = (1, 2, 3),
        policy: SamplingPolicy = GREEDY,
        *,
        session_id: str = "s",
        published: int = 0,
        lease_ms: int = 60_000,
        **manifest: Any,
    ) -> OpenSession:
        sealed = self.manifest(policy, **manifest)
        return OpenSession(session_id, sealed, policy, np.array(prompt, dtype=np.int64), published, lease_ms)

    def open(self, *args: Any, **kwargs: Any) -> Client:
        opening = self.opening(*args, **kwargs)
        opened = self.engine.open_session(opening)
        assert opened.prefix_len == len(opening.prompt)
        return Client(self.engine, opening, opening.prompt.tolist())
