"""One candidate source of one session, whichever service it lives in."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Protocol

from contracts.capability import SourceDescription
from contracts.errors import FailedPrecondition, NotFound
from contracts.hidden import HIDDEN_BASE
from contracts.manifest import Manifest
from contracts.ports import AnswersAtOnce, ProposeRequest, ProposerPort
from contracts.proposal import Proposal
from orchestrator.hidden_feed import HiddenFeed


class CandidateSource(Protocol):
    """Answers a round's request. `generation` is the state or live-index generation that the next round acts on.

    at_once: it answers without waiting for anything, so asking it needs no task and no deadline.
    """

    @property
    def description(self) -> SourceDescription: ...

    @property
    def generation(self) -> int: ...

    @property
    def retrieves(self) -> bool: ...

    @property
    def at_once(self) -> bool: ...

    async def offer(self, request: ProposeRequest) -> Proposal: ...


class ProposerSession:
    """A session on one proposer endpoint, shared by all its sources. Opens on its own and again after a restart."""

    def __init__(self, port: ProposerPort, session_id: str, manifest: Manifest) -> None:
        self._port = port
        self._session_id = session_id
        self._manifest = manifest
        # Found out once: to ask what protocol an object has takes longer than many answers.
        self._answers_at_once = port.answers_at_once if isinstance(port, AnswersAtOnce) else None
        self._opening: asyncio.Task[None] | None = None

    def start(self) -> asyncio.Task[None]:
        """The task that opens the session; a new one if the last one failed."""
        if self._opening is None or (self._opening.done() and not _succeeded(self._opening)):
            self._opening = asyncio.create_task(self._port.open_session(self._session_id, self._manifest))
            # A failure is raised to whoever asks for candidates; if nobody does, it is no one's concern.
            self._opening.add_done_callback(_succeeded)
        return self._opening

    def answers_at_once(self, source: str) -> bool:
        """Whether the session is open and the proposer answers for this source without waiting for anything."""
        if self._answers_at_once is None or self._opening is None:
            return False
        return self._opening.done() and self._answers_at_once(source)

    async def propose(self, request: ProposeRequest) -> Proposal:
        """One offer. A proposer that forgot the session gets it opened once more. Raises what is refused after that, and
        at once where hidden rows are missing.
        """
        opening = self.start()
        await asyncio.shield(opening)
        try:
            return await self._port.propose(request)
        except (NotFound, FailedPrecondition) as error:
            if error.field == HIDDEN_BASE:
                raise
            if self._opening is opening:
                self._opening = None
            await asyncio.shield(self.start())
            return await self._port.propose(request)

    async def close(self) -> None:
        """Gives the proposer's state back."""
        if self._opening is not None:
            self._opening.cancel()
            await self._port.close_session(self._session_id)


def _succeeded(task: asyncio.Task[None]) -> bool:
    return not task.cancelled() and task.exception() is None


class ProposerSource:
    """One named source of a proposer endpoint. feed: the rows of the session, for a source with taps. prompt_len: tokens of
    the session's prompt."""

    retrieves = False

    def __init__(
        self, session: ProposerSession, description: SourceDescription, feed: HiddenFeed, prompt_len: int
    ) -> None:
        self._session = session
        self._feed = feed
        # The first row it reads, wherever the session has moved since.
        self.base = max(0, prompt_len - 1 - description.prompt_rows) if description.prompt_rows else 0
        self._carried = self.base
        self.description = description
        self.generation = 0

    @property
    def at_once(self) -> bool:
        return not self.description.taps and self._session.answers_at_once(self.description.name)

    async def offer(self, request: ProposeRequest) -> Proposal:
        """Raises the proposer's errors, and for a source with taps the verifier's where rows cannot be had."""
        if not self.description.taps:
            proposal = await self._session.propose(request)
        else:
            try:
                proposal = await self._with_rows(request)
            except FailedPrecondition as error:
                if error.field != HIDDEN_BASE:
                    raise
                self._carried = self.base
                proposal = await self._with_rows(request)
        self.generation = proposal.state.generation
        return proposal

    async def prepare(self, request: ProposeRequest) -> None:
        """Before the first round: where the source reads hidden rows, it gets those of the prefix and runs what it can."""
        if self.description.taps:
            await self._with_rows(replace(request, node_budget=0))

    async def _with_rows(self, request: ProposeRequest) -> Proposal:
        stop = len(request.prefix) - 1
        if self._carried >= stop:
            return await self._session.propose(request)
        rows = await self._feed.rows(self._carried, stop, self.description.taps)
        # What is on its way counts as carried: a call given up late has brought its rows, and where rows went astray the
        # proposer says so.
        self._carried = stop
        *ahead, last = rows.based(self.base).parts()
        for part in ahead:
            await self._session.propose(replace(request, hidden=part, node_budget=0))
        return await self._session.propose(replace(request, hidden=last))
