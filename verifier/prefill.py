"""A session's prompt on its way into the KV, a chunk of rows a pass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from contracts.ports import SessionOpened
from models.backend import Backend, RowBlock
from verifier.session import Session

_NOTHING = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Chunk:
    """The next rows of a session's prompt as its block of a pass, which asks for no logits."""

    session: Session
    block: RowBlock

    def __len__(self) -> int:
        return len(self.block.token_ids)


def next_chunk(session: Session, rows: int) -> Chunk | None:
    """At most `rows` prompt rows that follow the committed ones; None where the whole prompt is there."""
    prompt, slot = session.prefix[:-1], session.slot
    start, stop = slot.length, min(slot.length + rows, len(prompt))
    if start == stop:
        return None
    order = np.arange(stop - start, dtype=np.int64)
    return Chunk(session, RowBlock(slot, prompt[start:stop], start + order, order - 1, _NOTHING))


def commit_chunk(backend: Backend, chunk: Chunk, hidden: Mapping[str, Tensor]) -> None:
    """Keeps the rows of a chunk whose pass has run. hidden: by tap float32 [rows, hidden_size]."""
    session, rows = chunk.session, range(len(chunk))
    fresh = None if session.hidden is None else session.hidden.pick(hidden, rows)
    backend.commit(session.slot, rows)
    if session.hidden is not None and fresh is not None:
        session.hidden.append(fresh)


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
