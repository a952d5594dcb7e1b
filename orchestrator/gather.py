"""Asks a round's sources side by side; those that are long in answering only once it is known what the others offer.

Whatever goes wrong with one of them is recorded and never fails the round.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence

import msgspec

from contracts.capability import SourceDescription
from contracts.errors import InvalidArgument
from contracts.ports import ProposeRequest
from contracts.proposal import Proposal, check_proposal
from contracts.topology import Topology
from orchestrator.backoff import Backoff
from orchestrator.begun import Begun
from orchestrator.patience import Patience
from orchestrator.sources import CandidateSource
from orchestrator.spans import Spans, set_offer

_TREE = Topology.TREE
Ask = tuple[CandidateSource, ProposeRequest]
Dear = Callable[[str], bool]
Worth = Callable[[str, Sequence[Proposal]], bool]


class Offer(msgspec.Struct, frozen=True):
    """A source's part in a round. `busy_us`: its compute time; of a failed source, how long it kept the round waiting.
    `wall_us`: from the question to its answer.
    """

    source: str
    retrieves: bool
    busy_us: float
    proposal: Proposal | None = None
    failure: str = ""
    error: Exception | None = None
    wall_us: float = 0.0


class Gathered(msgspec.Struct, frozen=True):
    """The offers of those asked, in plan order, and the wall time that gathering them took."""

    offers: tuple[Offer, ...] = ()
    wall_us: float = 0.0

    @property
    def proposals(self) -> tuple[Proposal, ...]:
        return tuple(offer.proposal for offer in self.offers if offer.proposal is not None)

    @property
    def waits_us(self) -> Mapping[str, float]:
        """By source that answered, how much longer it kept the round than all others did."""
        return {
            offer.source: max(
                0.0, offer.wall_us - max((other.wall_us for other in self.offers if other is not offer), default=0.0)
            )
            for offer in self.offers
            if not offer.failure
        }

    @property
    def failures(self) -> Mapping[str, str]:
        return {offer.source: offer.failure for offer in self.offers if offer.failure}


class Gatherer:
    """The sources' health over one request.

    Where the verifier walks laws (`walks_laws`) a source must not drop out of single rounds, because its lateness may
    depend on what it drew: it is waited for, and after a failure it is out for the rest of the request
    (docs/decisions/0004-merging.md). Otherwise `deadline_s` bounds every round and failed sources come back by backoff.
    """

    def __init__(self, *, walks_laws: bool, deadline_s: float, vocab_size: int, spans: Spans) -> None:
        self._walks_laws = walks_laws
        self._deadline_s = deadline_s
        self._vocab_size = vocab_size
        self._spans = spans
        self._health: dict[str, Backoff] = {}
        self._late: set[asyncio.Task[Offer]] = set()
        self._patience = Patience()
        self._round = -1

    def begin_round(self, sources: Sequence[CandidateSource]) -> tuple[CandidateSource, ...]:
        """Those of the sources that are to be asked in the next round, in the same order."""
        self._round += 1
        return tuple(s for s in sources if self._health_of(s.description.name).ready(self._round))

    async def gather(self, asks: Sequence[Ask], *, dear: Dear, worth: Worth) -> Gathered:
        """dear: whether a source takes so long that it is asked only if it is `worth` that, given what those that answer at
        once have offered.

        Raises InvalidArgument only where a source refuses an option that the client set.
        """
        if not asks:
            return Gathered()
        started = time.perf_counter()
        at_once: list[Ask] = []
        waited_for: list[Ask] = []
        for ask in asks:
            (at_once if ask[0].at_once else waited_for).append(ask)
        if len(waited_for) > 1:
            made = await self._ask_together(waited_for, at_once, dear, worth)
        elif waited_for:
            made = await self._ask_one(waited_for[0], at_once, dear, worth)
        else:
            made = await self._ask_at_once(at_once)
        offers = tuple(made[request.source] for _, request in asks if request.source in made)
        for offer in offers:
            self._judge(offer)
        return Gathered(offers, (time.perf_counter() - started) * 1e6)

    async def _ask_one(self, waited_for: Ask, at_once: Sequence[Ask], dear: Dear, worth: Worth) -> dict[str, Offer]:
        """One source that is waited for, beside those that answer at once: without a task, which costs a turn of the loop at
        either end.
        """
        source, request = waited_for
        made: dict[str, Offer] = {}
        # Its question leaves before we compute.
        begun = None if dear(request.source) else Begun(self._ask(source, request))
        # For the answer, meanwhile: it is sealed once a round.
        _ = request.manifest.hash
        try:
            made.update(await self._ask_at_once(at_once))
            if begun is None and worth(request.source, _proposals(made)):
                begun = Begun(self._ask(source, request))
            if begun is not None:
                started = time.perf_counter()
                try:
                    with self._patience.within(self._deadline_s):
                        made[request.source] = await begun
                except TimeoutError:
                    made[request.source] = self._late_offer(source, (time.perf_counter() - started) * 1e6)
        finally:
            if begun is not None:
                begun.close()
        return made

    async def _ask_at_once(self, asks: Sequence[Ask]) -> dict[str, Offer]:
        """Without tasks of their own: a turn of the loop may serve much else first."""
        return {request.source: await self._ask(source, request) for source, request in asks}

    async def _ask_together(
        self, waited_for: Sequence[Ask], at_once: Sequence[Ask], dear: Dear, worth: Worth
    ) -> dict[str, Offer]:
        started = time.perf_counter()
        made: dict[str, Offer] = {}
        tasks: dict[str, asyncio.Task[Offer]] = {}
        try:
            for source, request in waited_for:
                if not dear(request.source):
                    tasks[request.source] = asyncio.create_task(self._ask(source, request))
            if tasks and at_once:
                # The questions to others leave before we compute.
                await asyncio.sleep(0)
            made.update(await self._ask_at_once(at_once))
            for source, request in waited_for:
                if request.source not in tasks and worth(request.source, _proposals(made)):
                    tasks[request.source] = asyncio.create_task(self._ask(source, request))
            if tasks:
                await asyncio.wait(tasks.values(), timeout=self._deadline_s)
        finally:
            for task in tasks.values():
                if not task.done():
                    self._abandon(task)
        wall_us = (time.perf_counter() - started) * 1e6
        for source, request in waited_for:
            asked = tasks.get(request.source)
            if asked is not None:
                made[request.source] = self._late_offer(source, wall_us) if asked in self._late else asked.result()
        return made

    def _late_offer(self, source: CandidateSource, wall_us: float) -> Offer:
        late = f"late: no answer within {self._deadline_s * 1000:g} ms"
        return Offer(source.description.name, source.retrieves, wall_us, failure=late, wall_us=wall_us)

    async def _ask(self, source: CandidateSource, request: ProposeRequest) -> Offer:
        started = time.perf_counter()
        with self._spans.offer(request.source, retrieves=source.retrieves) as span:
            try:
                proposal = await source.offer(request)
                _check_offer(proposal, request, source.description, vocab_size=self._vocab_size)
                wall_us = (time.perf_counter() - started) * 1e6
                offer = Offer(request.source, source.retrieves, proposal.cost.compute_us, proposal, wall_us=wall_us)
            except Exception as error:
                # Also a port's own bug: no source may take the request down with it.
                busy_us = (time.perf_counter() - started) * 1e6
                failure = f"{getattr(error, 'code', type(error).__name__)}: {error}"
                offer = Offer(request.source, source.retrieves, busy_us, failure=failure, error=error, wall_us=busy_us)
            except asyncio.CancelledError:
                set_offer(span, None, "abandoned")
                raise
            set_offer(span, offer.proposal, offer.failure)
        return offer

    def _judge(self, offer: Offer) -> None:
        health = self._health_of(offer.source)
        if not offer.failure:
            health.answered()
        elif isinstance(offer.error, InvalidArgument) and offer.error.field.startswith("options."):
            raise InvalidArgument(f"options.{offer.source}.{offer.error.field[8:]}", offer.error.message)
        elif self._walks_laws:
            health.drop()
        else:
            health.failed(self._round)

    def _abandon(self, task: asyncio.Task[Offer]) -> None:
        # The reference keeps a task that is slow to die from being collected; nobody reads its answer any more.
        self._late.add(task)
        task.add_done_callback(self._late.discard)
        task.cancel()

    def _health_of(self, source: str) -> Backoff:
        return self._health.setdefault(source, Backoff())


def _proposals(made: Mapping[str, Offer]) -> list[Proposal]:
    return [offer.proposal for offer in made.values() if offer.proposal is not None]


def _check_offer(
    proposal: Proposal, request: ProposeRequest, description: SourceDescription, *, vocab_size: int
) -> None:
    """Raises InvalidArgument or FailedPrecondition unless the offer is well formed and what its source declared."""
    check_proposal(proposal, vocab_size=vocab_size, round_hash=request.manifest.hash, max_nodes=request.node_budget)
    if proposal.source != request.source:
        raise InvalidArgument("proposal.source", f"{proposal.source!r} answered for {request.source!r}")
    if not proposal.nodes:
        return
    deepest = max([node.depth for node in proposal.nodes])
    if deepest > request.max_depth:
        raise InvalidArgument("proposal.nodes", f"{deepest} deep, at most {request.max_depth}")
    if proposal.semantics is not description.semantics:
        raise InvalidArgument(
            "proposal.semantics", f"{proposal.semantics}, its source declared {description.semantics}"
        )
    if proposal.relation is not description.relation:
        raise InvalidArgument("proposal.relation", f"{proposal.relation}, its source declared {description.relation}")
    if description.topology is not _TREE and description.topology is not proposal.topology:
        raise InvalidArgument("proposal.topology", f"{proposal.topology}, its source declared {description.topology}")
