"""Prompts on their way into the KV, a chunk of rows a pass: beside rounds, so that weights are read once for both."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from contracts.ports import SessionOpened
from models.backend import Backend, RowBlock
from models.host_rows import Floats, rows_at
from verifier.session import Session
from verifier.step_clock import StepClock

# Rounds are being served as long as the last pass of any is not longer ago.
_ROUNDS_LAST_NS = 250_000_000
_NOTHING = np.zeros(0, dtype=np.int64)


@dataclass(eq=False)
class Chunk:
    """The next rows of a session's prompt as its block of a pass, which asks for no logits. committed: their KV is kept.
    error: why not, where their pass did run.
    """

    session: Session
    block: RowBlock
    committed: bool = False
    error: Exception | None = None

    def __len__(self) -> int:
        return len(self.block.token_ids)


def next_chunk(session: Session, rows: int) -> Chunk | None:
    """At most `rows` prompt rows that follow the committed ones; None where none follow."""
    prompt, slot = session.prefix[:-1], session.slot
    start, stop = slot.length, min(slot.length + rows, len(prompt))
    if start >= stop:
        return None
    order = np.arange(stop - start, dtype=np.int64)
    return Chunk(session, RowBlock(slot, prompt[start:stop], start + order, order - 1, _NOTHING))


def commit_chunk(backend: Backend, chunk: Chunk, hidden: Mapping[str, Tensor | Floats]) -> None:
    """Keeps the rows of a chunk whose pass has run. hidden: by tap float32 [rows, hidden_size]."""
    session, rows = chunk.session, range(len(chunk))
    fresh = None if session.hidden is None else session.hidden.pick(hidden, rows)
    backend.commit(session.slot, rows)
    if session.hidden is not None and fresh is not None:
        session.hidden.append(fresh)
    chunk.committed = True


def opened(session: Session) -> SessionOpened | None:
    """The answer to the open call, and the session open with it, once its whole prompt is committed."""
    if session.opened is None and session.slot.length == session.prefix_len - 1:
        session.opened = SessionOpened(
            session.request.session_id,
            session.generation,
            session.prefix_len,
            session.prefill_us,
            session.queue_us,
            session.cached,
        )
    return session.opened


class Prefill:
    """Runs prompts, alone or in the passes of rounds. chunk_rows: prompt rows of a pass at most.

    slowdown: while rounds are served, a pass with prompt rows takes about this multiple of one without, at most, by what a
    row was measured to add. Where the backend's results depend on how rows are cut into passes, prompts are run in whole
    chunks alone, and rounds have the pass to themselves until they have made up for it by the same measure.
    """

    def __init__(
        self, backend: Backend, steps: StepClock, clock: Callable[[], int], *, chunk_rows: int, slowdown: float
    ) -> None:
        self._backend = backend
        self._steps = steps
        self._clock = clock
        self._chunk_rows = chunk_rows
        self._slowdown = slowdown
        self._rows_alike = backend.info.row_invariant_up_to
        self._rounds_ns = -_ROUNDS_LAST_NS
        self._owed_us = 0.0
        self.joins = self._rows_alike >= chunk_rows

    def rounds_ran(self, pass_us: float) -> None:
        """A pass with rounds has taken so long."""
        self._rounds_ns = self._clock()
        self._owed_us = max(0.0, self._owed_us - pass_us)

    @property
    def owes(self) -> bool:
        """Whether rounds that wait are to be served before the next chunk alone."""
        return self._owed_us > 0.0

    def beside(self, session: Session, rows: int) -> Chunk | None:
        """What of the prompt joins a pass of `rows` rows of rounds."""
        return next_chunk(session, self._rows_beside(rows))

    def run(self, session: Session) -> None:
        """The next chunk in a pass of its own."""
        started = self._clock()
        live = started - self._rounds_ns < _ROUNDS_LAST_NS
        # As if it joined a pass of one row: a round that comes meanwhile waits no longer for it than for that.
        chunk = next_chunk(session, 1 + self._rows_beside(1) if live and self.joins else self._chunk_rows)
        if chunk is None:
            return
        hidden = self._backend.forward([chunk.block], taps=session.taps).hidden
        commit_chunk(self._backend, chunk, {tap: rows_at(blocks, 0) for tap, blocks in hidden.items()})
        us = (self._clock() - started) / 1e3
        session.prefill_us += us
        self._steps.record(len(chunk), us)
        if live and not self.joins:
            self._owed_us = us / (self._slowdown - 1.0)

    def _rows_beside(self, rows: int) -> int:
        most = min(self._chunk_rows, self._rows_alike - rows)
        line = self._steps.line()
        if line is None or line.row_us <= 0.0:
            return max(0, most)
        room_us = (self._slowdown - 1.0) * line.pass_us(rows)
        return max(0, min(most, max(1, int(room_us / line.row_us))))
