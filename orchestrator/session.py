"""The orchestrator's side of one request's session: where the frontier stands, under which manifest, at which replica."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from contracts.errors import DraftproofError, FailedPrecondition, Unavailable
from contracts.frontier import Frontier
from contracts.manifest import Manifest, RoundManifest, SourcePlan
from contracts.ports import OpenSession, ProposeRequest, ProposerPort, RetrieverPort, VerifierPort
from contracts.receipt import Receipt
from orchestrator.admission import Admitted
from orchestrator.budget.base import Budget
from orchestrator.catalogue import Catalogue
from orchestrator.hidden_feed import HiddenFeed
from orchestrator.policy import shares, useful_depth
from orchestrator.recording import Recorder
from orchestrator.recovery import open_surely, pause, successor
from orchestrator.retrieval_source import RetrievalSource
from orchestrator.settings import OrchestratorSettings
from orchestrator.sources import CandidateSource, ProposerSession, ProposerSource
from orchestrator.strictness import one_path


@dataclass(frozen=True)
class Peers:
    """The services that an orchestrator speaks to."""

    verifier: VerifierPort
    proposers: Sequence[ProposerPort]
    retrievers: Sequence[RetrieverPort]
    catalogue: Catalogue
    recorder: Recorder


class Session:
    """Mutable state of one request over all the replicas it lives on. Session ids are `<name>.<number>`."""

    def __init__(
        self,
        name: str,
        admitted: Admitted,
        peers: Peers,
        settings: OrchestratorSettings,
        *,
        tenant: str,
        cache_scope: str,
    ) -> None:
        self.admitted = admitted
        self.manifest: Manifest = admitted.manifest
        self.one_path = one_path(admitted.manifest)
        self.frontier = Frontier(admitted.prompt)
        self.sources: tuple[CandidateSource, ...] = ()
        self.parents: list[str] = []
        self.prefill_us = 0.0
        self.cached_tokens = 0
        self.round_id = 0
        self._name = name
        self._peers = peers
        self._settings = settings
        self._tenant = tenant
        self._cache_scope = cache_scope
        self._generation = 0
        self._ids: list[str] = []
        self._proposers: list[ProposerSession] = []
        self._feeds: list[HiddenFeed] = []
        self._preparing: set[asyncio.Task[None]] = set()

    @property
    def session_id(self) -> str:
        return self._ids[-1]

    @property
    def sessions(self) -> int:
        """How many replicas the request has lived on."""
        return len(self._ids)

    @property
    def published(self) -> int:
        return len(self.frontier) - len(self.admitted.prompt)

    @property
    def remaining(self) -> int:
        """How many tokens may still be published."""
        return self.admitted.policy.max_tokens - self.published

    async def open(self, budget: Budget) -> None:
        """Opens the session at the verifier, and at the proposers on the side; sources that read the target's hidden rows
        are given the prompt's where the budget finds that worth it. Raises what the verifier raises.
        """
        self._ids.append(f"{self._name}.{len(self._ids)}")
        self._bind()
        opened = await open_surely(
            self._peers.verifier,
            OpenSession(
                session_id=self.session_id,
                manifest=self.manifest,
                policy=self.admitted.policy,
                prompt=self.frontier.tokens,
                published=self.published,
                lease_ms=self._settings.lease_ms,
                cache_scope=self._cache_scope,
            ),
            self._settings,
            # A request that has begun is not refused for want of room while its deadline lasts.
            patient=self.sessions > 1,
        )
        self.prefill_us += opened.prefill_us
        if self.sessions == 1:
            self.cached_tokens = opened.cached_tokens
        self._generation, self.round_id = opened.generation, 0
        await self._prepare(budget)

    async def reopen(self, budget: Budget) -> None:
        """Goes on elsewhere. Raises Unavailable after too many moves, FailedPrecondition if the law differs there."""
        if self.sessions > self._settings.reopen_attempts:
            raise Unavailable("verifier", f"the session was lost {self.sessions} times")
        for attempt in range(self._settings.reopen_attempts):
            self._peers.catalogue.invalidate()
            served = (await self._peers.catalogue.view()).verifier
            manifest = successor(self.manifest, served)
            if manifest is not self.manifest:
                self.parents.append(self.manifest.hash)
                self.manifest = manifest
            try:
                return await self.open(budget)
            except FailedPrecondition:
                # The description came from one replica and the call reached another.
                if attempt + 1 == self._settings.reopen_attempts:
                    raise
                await pause(self._settings, attempt)

    def plan(self, ready: Sequence[CandidateSource], reaches: Mapping[str, int]) -> tuple[SourcePlan, ...]:
        """The round's shares over the sources that are to be asked. reaches: see `policy.shares`."""
        depth = useful_depth(self.manifest.max_depth, self.remaining)
        return shares(self.manifest.node_budget, depth, [source.description for source in ready], reaches)

    def round_manifest(self, plan: tuple[SourcePlan, ...], ready: Sequence[CandidateSource]) -> RoundManifest:
        """The coordinates of the round that comes next."""
        live = [source.generation for source in ready if source.retrieves]
        return RoundManifest(
            manifest_hash=self.manifest.hash,
            session_id=self.session_id,
            round_id=self.round_id,
            prefix_len=len(self.frontier),
            frontier=self.frontier.digest,
            target_generation=self._generation,
            plan=plan,
            source_generations={source.description.name: source.generation for source in ready},
            live_generation=live[0] if live else 0,
        )

    def publish(self, receipt: Receipt, kept: int) -> None:
        """Moves the frontier over the first `kept` tokens of a receipt (fewer than all only where the request ends)."""
        self.frontier.publish(receipt.tokens[:kept])
        self._feeds[-1].follow(receipt.hidden)
        self._generation = receipt.generation
        self.round_id += 1

    async def close(self) -> None:
        """Gives every peer's state back, as far as they answer in time; leases clear away the rest."""
        for task in self._preparing:
            task.cancel()
        for feed in self._feeds:
            feed.close()
        closings: list[Callable[[], Coroutine[Any, Any, None]]] = [proposer.close for proposer in self._proposers]
        closings += [partial(self._peers.verifier.close_session, session_id) for session_id in self._ids]
        await asyncio.gather(*(self._quietly(close) for close in closings))

    async def _prepare(self, budget: Budget) -> None:
        """Waits a while for sources to run over the prompt's rows; a round would not. Who fails is asked all the same."""
        rows = len(self.frontier) - 1
        reading = [
            source
            for source in self.sources
            if isinstance(source, ProposerSource)
            and source.description.taps
            and budget.prepares(source.description.name, rows - source.base, self.remaining)
        ]
        if not reading:
            return
        manifest = self.round_manifest(self.plan(self.sources, {}), self.sources)
        for source in reading:
            name, ahead = source.description.name, rows - source.base
            ask = ProposeRequest(name, manifest, self.admitted.policy, self.frontier.tokens, node_budget=0, max_depth=0)
            task = asyncio.create_task(source.prepare(ask))
            self._preparing.add(task)
            task.add_done_callback(partial(self._prepared, budget, name, ahead, time.perf_counter_ns()))
        await asyncio.wait(tuple(self._preparing), timeout=self._settings.prepare_deadline_ms / 1000)

    def _prepared(self, budget: Budget, source: str, rows: int, started_ns: int, task: asyncio.Task[None]) -> None:
        self._preparing.discard(task)
        # Looked at, so that nobody reports a failure as never seen.
        if not task.cancelled() and task.exception() is None:
            budget.prepared(source, rows, (time.perf_counter_ns() - started_ns) / 1e3)

    async def _quietly(self, close: Callable[[], Coroutine[Any, Any, None]]) -> None:
        with contextlib.suppress(DraftproofError, TimeoutError):
            async with asyncio.timeout(self._settings.close_timeout_ms / 1000):
                await close()

    def _bind(self) -> None:
        opened: dict[int, ProposerSession] = {}
        sources: list[CandidateSource] = []
        # Another replica is another session: its rows are exported anew, for the same published prefix.
        self._feeds.append(HiddenFeed(self._peers.verifier, self.session_id))
        for binding in self.admitted.bindings:
            if binding.index is not None:
                sources.append(
                    RetrievalSource(
                        self._peers.retrievers[binding.port],
                        binding.description,
                        binding.index,
                        tenant=self._tenant,
                        max_suffix=self._settings.max_suffix,
                        min_match=self._settings.retrieval_min_match,
                        spec_factor=self._settings.retrieval_spec_factor,
                    )
                )
                continue
            if binding.port not in opened:
                port = self._peers.proposers[binding.port]
                opened[binding.port] = ProposerSession(port, self.session_id, self.manifest)
                opened[binding.port].start()
            feed, prompt_len = self._feeds[-1], len(self.admitted.prompt)
            sources.append(ProposerSource(opened[binding.port], binding.description, feed, prompt_len))
        self._proposers.extend(opened.values())
        self.sources = tuple(sources)
