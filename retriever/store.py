"""Where releases live so that all retrievers share them: the port, and the records that cross it.

Two adapters pass one contract suite: `memory_store.MemoryStore` and `redis_store.RedisStore`. A publication goes
lease, chunks, seal, release, alias (`publish.py`); nothing a reader follows exists before the last step, so a crash
anywhere leaves the old release serving and leftovers that `collect` removes.

Raised by every method of both adapters: Unavailable (store down, timed out), PermissionDenied (its access rules),
ResourceExhausted (it is full), FailedPrecondition (it is read-only).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

MIN_CHUNK_BYTES = 1 << 20
MAX_CHUNK_BYTES = 4 << 20
HISTORY_LIMIT = 64


@dataclass(frozen=True, slots=True)
class SegmentRecord:
    """A sealed segment: total size and the sha256 (hexadecimal) of each chunk, in order."""

    digest: str
    size_bytes: int
    chunk_sha256: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Alias:
    """What an index name points to. `version` counts the changes of this name, from 1."""

    index: str
    release_id: str
    version: int


class ReleaseReader(Protocol):
    """The part of a store that loading a release needs."""

    def get_release(self, release_id: str) -> bytes:
        """Its canonical bytes. Raises NotFound."""

    def segment(self, digest: str) -> SegmentRecord | None:
        """The record of a sealed segment."""

    def get_chunk(self, digest: str, index: int) -> bytes:
        """The chunk. Raises NotFound."""


class ReleaseStore(ReleaseReader, Protocol):
    """Releases in chunks, index aliases with history, and their change events."""

    def lease(self, publication: str, names: Collection[str], ttl_ms: int) -> None:
        """Keep the named segments and releases from `collect` for ttl_ms; a repeat renews and adds."""

    def end_lease(self, publication: str) -> None:
        """Give the lease up; harmless where there is none."""

    def put_chunk(self, digest: str, index: int, data: bytes) -> None:
        """Store one chunk of a segment; a repeat overwrites, also one of a sealed segment that is to be mended."""

    def seal_segment(self, record: SegmentRecord) -> None:
        """Declare a segment complete, and drop chunks beyond its last that an earlier cut into smaller ones has left.

        Raises FailedPrecondition where a chunk is missing.
        """

    def put_release(self, release_id: str, data: bytes, digests: Sequence[str]) -> None:
        """Store a release of sealed segments; a repeat is harmless. Raises FailedPrecondition where one is not sealed."""

    def aliases(self) -> dict[str, Alias]:
        """All index names and what they point to now."""

    def history(self, index: str) -> tuple[Alias, ...]:
        """The name's changes, newest (the present one) first, at most HISTORY_LIMIT; empty for an unknown name."""

    def set_alias(self, index: str, release_id: str, expected_version: int) -> Alias:
        """Point the name at the release if its version is still expected_version (0: the name is new), and tell the event
        stream. A repeat of the change that is already in place returns it and tells nobody.

        Raises NotFound (no such release), FailedPrecondition (another version).
        """

    def event_cursor(self) -> str:
        """A cursor after the newest event."""

    def events(self, cursor: str, timeout_ms: int) -> tuple[str, tuple[Alias, ...]]:
        """The alias changes after the cursor, waiting up to timeout_ms for the first; the cursor after them."""

    def collect(self, grace_ms: int, keep_history: int) -> tuple[str, ...]:
        """Delete segments and releases untouched for grace_ms that no lease holds and none of the newest keep_history (at
        least 1) aliases of any index reaches; their names. Safe beside running publications.
        """
