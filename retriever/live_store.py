"""The port through which published outputs reach every retriever: an append-only stream per scope."""

from __future__ import annotations

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

    Generations of a scope are consecutive and never given twice, not even by a store that lost its data: a new stream
    starts at the store's clock (ms since 1970), with a floor entry that says that nothing lies before it.
    """

    generation: int
    entry_id: str
    payload: bytes


def encode_output(tokens: NDArray[np.uint32]) -> bytes:
    """An output's stream payload: b"T", then the ids as little-endian uint32."""
    return OUTPUT + tokens.astype("<u4").tobytes()


def encode_floor(generation: int) -> bytes:
    """The payload that retires all entries up to the generation: b"F", then it as little-endian uint64."""
    return FLOOR + struct.pack("<Q", generation)


def decode_entry(payload: bytes) -> NDArray[np.uint32] | int:
    """The output's ids, or the floor. Raises DataLoss for any other bytes."""
    kind, body = payload[:1], payload[1:]
    if kind == OUTPUT and len(body) % 4 == 0:
        return np.frombuffer(body, "<u4").astype(np.uint32)
    if kind == FLOOR and len(body) == 8:
        (generation,) = struct.unpack("<Q", body)
        return int(generation)
    raise DataLoss("live.payload", f"{len(payload)} bytes of kind {kind!r} are no live entry")


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
