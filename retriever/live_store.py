"""The port through which published outputs reach every retriever: an append-only stream per scope."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class LiveEntry:
    """One stream entry. `generation` counts the scope's entries from 1 without gaps and is never given twice."""

    generation: int
    entry_id: str
    payload: bytes


class LiveStore(Protocol):
    """Streams of published outputs. Errors as in `store.ReleaseStore`."""

    def append_live(self, scope: str, entry_id: str, payload: bytes, max_entries: int) -> int:
        """Add an entry and drop the oldest beyond max_entries; its generation. A repeat of an entry id that the stream
        still holds changes nothing and returns the generation it had.
        """

    def read_live(self, scope: str, after: int, limit: int) -> tuple[LiveEntry, ...]:
        """The oldest `limit` entries with a generation above `after`."""

    def trim_live(self, scope: str, through: int) -> None:
        """Drop all entries up to and including the generation."""
