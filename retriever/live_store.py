"""The port through which published outputs reach every retriever: an append-only stream per scope.

Entries are numbered one by one, but a number names no content: a store that comes back from an older snapshot, or a replica
that was behind and takes over, gives numbers again. So every entry carries the digest of all that came before it, and what
a manifest names, a *generation*, is made of number and digest: no two histories share one.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from contracts.errors import DataLoss

OUTPUT, FLOOR = b"T", b"F"


@dataclass(frozen=True, slots=True)
class LiveEntry:
    """One stream entry.

    Sequence numbers of a stream are consecutive; a new one starts at the store's clock (ms since 1970), with a floor entry
    that says that nothing lies before it. before: the chain up to the entry before this one, "" for the first; None in
    entries of versions that kept no chain.
    """

    sequence: int
    entry_id: str
    payload: bytes
    before: str | None = None

    @property
    def point(self) -> LivePoint:
        """The stream up to and including this entry."""
        if self.before is None:
            return LivePoint(self.sequence, "")
        return LivePoint(self.sequence, chained(self.before, self.entry_id, self.payload))


@dataclass(frozen=True, slots=True)
class LivePoint:
    """A place in a stream. chain: sha1 (hexadecimal) over all entries up to it; "" where nobody kept one."""

    sequence: int
    chain: str

    @property
    def generation(self) -> int:
        """Its name in manifests, from 1, below 2^63: the sequence number modulo 2^31, then 32 bits of the chain.

        Two histories give one generation to different outputs only where 32 bits of sha1 agree by chance. Generations grow
        with the stream as a rule, but nothing may rely on that.
        """
        if not self.chain:
            return self.sequence
        return max(1, (self.sequence % 2**31) << 32 | int(self.chain[:8], 16))


NOWHERE = LivePoint(0, "")


def chained(before: str, entry_id: str, payload: bytes) -> str:
    """The chain after an entry. The id's length tells id and payload apart."""
    name = entry_id.encode()
    return hashlib.sha1(b"%s %d %s%s" % (before.encode(), len(name), name, payload), usedforsecurity=False).hexdigest()


def encode_output(tokens: NDArray[np.uint32]) -> bytes:
    """An output's stream payload: b"T", then the ids as little-endian uint32."""
    return OUTPUT + tokens.astype("<u4").tobytes()


def encode_floor(sequence: int) -> bytes:
    """The payload that retires all entries up to the sequence number: b"F", then it as little-endian uint64."""
    return FLOOR + struct.pack("<Q", sequence)


def decode_entry(payload: bytes) -> NDArray[np.uint32] | int:
    """The output's ids, or the floor. Raises DataLoss for any other bytes."""
    kind, body = payload[:1], payload[1:]
    if kind == OUTPUT and len(body) % 4 == 0:
        return np.frombuffer(body, "<u4").astype(np.uint32)
    if kind == FLOOR and len(body) == 8:
        (sequence,) = struct.unpack("<Q", body)
        return int(sequence)
    raise DataLoss("live.payload", f"{len(payload)} bytes of kind {kind!r} are no live entry")


class LiveStore(Protocol):
    """Streams of published outputs. Errors as in `store.ReleaseStore`."""

    def append_live(self, scope: str, entry_id: str, payload: bytes, max_entries: int) -> LivePoint:
        """Add an entry and drop the oldest beyond max_entries; where it stands. A repeat of an entry id that the stream
        still holds changes nothing and returns where that stands.
        """

    def live_head(self, scope: str) -> LivePoint:
        """Where the newest entry stands; NOWHERE for a stream without any."""

    def read_live(self, scope: str, after: int, limit: int) -> tuple[LiveEntry, ...]:
        """The oldest `limit` entries with a sequence number above `after`."""

    def trim_live(self, scope: str, through: int) -> None:
        """Drop all entries up to and including the sequence number."""
