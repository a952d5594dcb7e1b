"""A request's rounds, one after another in one task: what is done with a round is done while the next one's target runs."""

from __future__ import annotations

import asyncio

from contracts.receipt import FinishReason
from orchestrator.round import Round, RoundOutcome

# A round's outcome waits no longer for slow sources of the next one.
_PATIENCE_S = 0.01


class Rounds:
    """Runs rounds until one ends the generation or fails, one ahead of whoever takes them. Use `close` when done.

    An outcome is kept back until the round after it has asked the verifier: who takes it wakes no sooner, since on few cores
    that would be part of the next round.
    """

    def __init__(self, round: Round) -> None:
        self._round = round
        self._made: asyncio.Queue[RoundOutcome | Exception] = asyncio.Queue(1)
        self._kept: RoundOutcome | None = None
        self._due = False
        self._patience: asyncio.TimerHandle | None = None
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
            self._give_out()
            if self._made.empty():
                self._task.cancel()
                raise
            # It was over in time.
            outcome = self._made.get_nowait()
        if self._due:
            self._give_out()
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def close(self) -> None:
        """Gives up the round that runs, and waits until it is gone."""
        if self._patience is not None:
            self._patience.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))

    async def _run(self) -> None:
        try:
            while True:
                try:
                    outcome = await self._round.run(self._give_out)
                finally:
                    self._give_out()
                late, self._kept = self._kept, None
                if late is not None:
                    await self._made.put(late)
                if outcome.finish is not FinishReason.NONE:
                    return await self._made.put(outcome)
                self._kept, self._due = outcome, False
                self._patience = asyncio.get_running_loop().call_later(_PATIENCE_S, self._give_out)
        except Exception as error:
            if self._kept is not None:
                late, self._kept = self._kept, None
                await self._made.put(late)
            await self._made.put(error)

    def _give_out(self) -> None:
        if self._kept is None:
            return
        if self._patience is not None:
            self._patience.cancel()
        # Where the one before was not taken yet, it goes when that is.
        self._due = self._made.full()
        if not self._due:
            self._made.put_nowait(self._kept)
            self._kept = None
