"""The ports through which the orchestrator speaks to the other services.

Each has an in-memory fake, an in-process adapter and a gRPC client, and all three pass tests/contract. Calls raise the
errors of contracts/errors.py and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from contracts.capability import SourceDescription, VerifierCapability
from contracts.graph import CandidateGraph
from contracts.hidden import HiddenRows
from contracts.manifest import Manifest, RoundManifest, TargetIdentity
from contracts.proposal import Proposal
from contracts.receipt import Receipt
from contracts.retrieval import IndexDescription, PublishedOutput, Retrieval, RetrievalQuery
from contracts.sampling import SamplingPolicy


@dataclass(frozen=True)
class VerifierDescription:
    """A verifier replica: its target, its algorithms and its limits.

    `max_rows`: candidates a round may have, the anchor not counted. `plain_step_us`: measured median of a
    one-row pass; 0 before the first measurement. `kv_tokens_cached`: how many of the free tokens hold prefixes of closed
    sessions until the room is needed. `kv_token_bytes`: bytes of one token's KV; 0 where it is not stated.
    """

    target: TargetIdentity
    capabilities: tuple[VerifierCapability, ...]
    eos_ids: tuple[int, ...]
    max_rows: int
    kv_tokens_total: int
    kv_tokens_free: int
    plain_step_us: float = 0.0
    kv_tokens_cached: int = 0
    kv_token_bytes: int = 0


@dataclass(frozen=True)
class OpenSession:
    """Opens a session: prefills prompt[:-1]; the last prompt token is the first anchor. Idempotent by session id.

    `published`: how many tokens at the prompt's end were already published to the client by an earlier replica; they
    count towards min and max tokens. `cache_scope`: sessions of equal scopes may share the KV of a common prompt start,
    which the time to open tells; others never do.
    """

    session_id: str
    manifest: Manifest
    policy: SamplingPolicy
    prompt: npt.NDArray[np.int64]
    published: int = 0
    lease_ms: int = 60_000
    cache_scope: str = ""


@dataclass(frozen=True)
class SessionOpened:
    """generation 0 is the state right after prefill. `cached_tokens`: prompt tokens whose KV was there already."""

    session_id: str
    generation: int
    prefix_len: int
    prefill_us: float
    queue_us: float = 0.0
    cached_tokens: int = 0


@dataclass(frozen=True)
class VerifyRequest:
    """One round: idempotent by (session, round id, payload digest). `acknowledge`: receipts up to it may be dropped."""

    manifest: RoundManifest
    graph: CandidateGraph
    payload_digest: str
    acknowledge: int = -1


@dataclass(frozen=True)
class ProposeRequest:
    """Asks one source for candidates after `prefix` (the whole published prefix, int64 [prefix_len]).

    `policy` lets a sampling proposer draw at the request's temperature and truncation. `hidden`: for a source with taps,
    the target's rows that the session's earlier calls have not carried; parts too large for one message go ahead in calls
    with a node budget of 0.
    """

    source: str
    manifest: RoundManifest
    policy: SamplingPolicy
    prefix: npt.NDArray[np.int64]
    node_budget: int
    max_depth: int
    options: Mapping[str, int] = field(default_factory=dict)
    hidden: HiddenRows | None = None


class VerifierPort(Protocol):
    """The verifier service."""

    async def describe(self) -> VerifierDescription: ...

    async def open_session(self, request: OpenSession) -> SessionOpened: ...

    async def verify(self, request: VerifyRequest) -> Receipt: ...

    async def get_receipt(self, session_id: str, round_id: int) -> Receipt: ...

    async def export_hidden(self, session_id: str, start: int, stop: int) -> HiddenRows:
        """Committed rows from position `start` on, of all taps that the session's sources read: up to `stop`, fewer where
        they would pass `contracts.hidden.MAX_PART_BYTES`, at least one. Any range may be asked for again.

        Raises NotFound for an unknown session, FailedPrecondition (`taps`) where it exports no rows and (`stop`) past the
        committed ones, InvalidArgument for an empty or negative range.
        """
        ...

    async def close_session(self, session_id: str) -> None: ...


class ProposerPort(Protocol):
    """The proposer service: several sources behind one endpoint."""

    async def describe(self) -> Sequence[SourceDescription]: ...

    async def open_session(self, session_id: str, manifest: Manifest) -> None: ...

    async def propose(self, request: ProposeRequest) -> Proposal:
        """Raises FailedPrecondition with field `contracts.hidden.HIDDEN_BASE` where the source lacks hidden rows before
        those that came: the caller sends them from position 0.
        """
        ...

    async def close_session(self, session_id: str) -> None: ...


@runtime_checkable
class AnswersAtOnce(Protocol):
    """What a proposer port may be besides: one that answers some sources without waiting for anything."""

    def answers_at_once(self, source: str) -> bool: ...


class RetrieverPort(Protocol):
    """The retriever service. Stateless: a query names its release. `describe`: the indexes that the tenant may see."""

    async def describe(self, tenant: str = "") -> Sequence[IndexDescription]: ...

    async def retrieve(self, query: RetrievalQuery) -> Retrieval: ...

    async def retrieve_batch(
        self, query: RetrievalQuery, suffixes: Sequence[npt.NDArray[np.int64]]
    ) -> Sequence[Retrieval]:
        """`query` with each of at most `contracts.retrieval.MAX_BATCH` suffixes in the place of its own, answered in order
        from one release and live generation, or refused together.
        """
        ...

    async def record(self, output: PublishedOutput) -> int:
        """Takes a published output into an index's live segments; the generation that first holds it."""
        ...


class Tokenizer(Protocol):
    """Text in and out of token ids; the digest is what manifests bind."""

    @property
    def digest(self) -> str: ...

    @property
    def vocab_size(self) -> int: ...

    def encode(self, text: str) -> list[int]: ...

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]: ...

    def decode(self, token_ids: Sequence[int]) -> str: ...
