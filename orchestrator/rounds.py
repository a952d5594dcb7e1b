"""A request's rounds, one after another in one task: what is done with a round is done while the next one's target runs."""

from __future__ import annotations

import asyncio

from contracts.receipt import FinishReason
from orchestrator.round import Round, RoundOutcome

# A round's outcome waits no longer for slow sources of the next one.
_PATIENCE_S = 0.01


class Rounds:
    """Runs rounds until one ends the generation or fails, one ahead of whoever takes them. Use `close` when done."""

    def __init__(self, round: Round) -> None:
        self._round = round
        self._made: asyncio.Queue[RoundOutcome | Exception] = asyncio.Queue(1)
        self._task: asyncio.Task[None] | None = None

    async def next(self, deadline: float | None) -> RoundOutcome:
        """The next outcome, when the round after it is on its way. Raises what the round raised, and TimeoutError at
        `deadline` (the event loop's clock, seconds; None: never), after which there are no more.
        """
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        try:
            async with asyncio.timeout_at(deadline):
                outcome = await self._made.get()
        except TimeoutError:
            self._task.cancel()
            raise
        if isinstance(outcome, Exception):
            raise outcome
        if outcome.finish is FinishReason.NONE:
            patience = asyncio.get_running_loop().call_later(_PATIENCE_S, self._round.asked.set)
            await self._round.asked.wait()
            patience.cancel()
        return outcome

    async def close(self) -> None:
        """Gives up the round that runs, and waits until it is gone."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))

    async def _run(self) -> None:
        try:
            while True:
                outcome = await self._round.run()
                self._round.asked.clear()
                await self._made.put(outcome)
                if outcome.finish is not FinishReason.NONE:
                    return
        except Exception as error:
            await self._made.put(error)
