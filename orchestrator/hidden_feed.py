"""The target's hidden rows of one verifier session, for those of its sources that read them.

A round's receipt brings the rows that its commit made known, so the usual round asks for nothing. What a source lacks from
before (the prompt at the start, all of it after its proposer restarted) is exported once more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from contracts.hidden import HiddenRows, joined
from contracts.ports import VerifierPort

# Rows of receipts that are remembered: for sources that sat out a few rounds.
TAIL_ROWS = 256


class HiddenFeed:
    """Rows of receipts are remembered for TAIL_ROWS positions, exports until they are fetched."""

    def __init__(self, port: VerifierPort, session_id: str) -> None:
        self._port = port
        self._session_id = session_id
        self._tail: list[HiddenRows] = []
        self._exports: dict[range, asyncio.Task[HiddenRows]] = {}

    def follow(self, hidden: HiddenRows | None) -> None:
        """Takes a receipt's rows."""
        if hidden is None:
            return
        self._tail.append(hidden)
        while hidden.stop - self._tail[0].stop >= TAIL_ROWS:
            del self._tail[0]

    async def rows(self, start: int, stop: int, taps: Sequence[str]) -> HiddenRows:
        """Rows [start, stop) of these taps. Raises what `export_hidden` raises, InvalidArgument where rows lack a tap."""
        last = self._tail[-1] if self._tail else None
        if last is not None and (last.start, last.stop, *last.taps) == (start, stop, *taps):
            # The usual round: what its receipt brought, as it came.
            return last
        parts = [part.between(max(start, part.start), part.stop) for part in self._tail if part.stop > start]
        kept = parts[0].start if parts else stop
        if start < kept:
            parts.insert(0, await self._export(range(start, kept)))
        return joined([part.only(taps) for part in parts]).between(start, stop)

    def close(self) -> None:
        """Nobody waits for rows any more."""
        for task in self._exports.values():
            task.cancel()

    async def _export(self, wanted: range) -> HiddenRows:
        """Goes on where its caller gives up, so that a late round's export is there for the next one."""
        task = self._exports.get(wanted)
        if task is None or _failed(task):
            task = self._exports[wanted] = asyncio.create_task(self._export_all(wanted))
            # Its failure is raised to whoever waits for it; if nobody does, it is no one's concern.
            task.add_done_callback(_failed)
        rows = await asyncio.shield(task)
        self._exports.pop(wanted, None)
        return rows

    async def _export_all(self, wanted: range) -> HiddenRows:
        parts: list[HiddenRows] = []
        start = wanted.start
        while start < wanted.stop:
            part = await self._port.export_hidden(self._session_id, start, wanted.stop)
            parts.append(part)
            start = part.stop
        return joined(parts)


def _failed(task: asyncio.Task[HiddenRows]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)
