"""Frames: a fixed header and a serialised message.

Header, little-endian: payload length uint32, call id uint64, kind uint8. A call id names a question and its one answer.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from enum import IntEnum

from contracts.errors import DataLoss
from services.channel_options import MAX_MESSAGE_BYTES

_HEADER = struct.Struct("<IQB")


class Kind(IntEnum):
    """What a frame is. Questions go to the server, the last three come from it.

    CANCEL takes the question of its call id back. FORGET carries a session's id: its state on this connection may go.
    Neither is answered.
    """

    DESCRIBE = 1
    OPEN = 2
    VERIFY = 3
    GET_RECEIPT = 4
    CLOSE = 5
    CANCEL = 6
    PROPOSE = 7
    RETRIEVE = 8
    FORGET = 9
    EXPORT_HIDDEN = 10
    READY = 16
    REPLY = 17
    ERROR = 18


# Looked up here: an enumeration's own look-up by value is a function in Python.
_KINDS = {int(kind): kind for kind in Kind}


def frame(kind: Kind, call_id: int, payload: bytes = b"") -> bytes:
    """One frame's bytes."""
    return _HEADER.pack(len(payload), call_id, kind) + payload


class Splitter:
    """Cuts a byte stream into frames, however it arrives."""

    def __init__(self) -> None:
        self._pending = bytearray()

    def feed(self, data: bytes) -> Iterable[tuple[Kind, int, bytes]]:
        """(kind, call id, payload) of each frame that is now whole. Raises DataLoss for what is no frame."""
        if not self._pending and len(data) >= _HEADER.size:
            kind, call_id, end = _head(data)
            if len(data) == end:
                # What a question or an answer by itself is.
                return ((kind, call_id, data[_HEADER.size :]),)
        return self._cut(data)

    def _cut(self, data: bytes) -> Iterator[tuple[Kind, int, bytes]]:
        pending = self._pending
        pending += data
        while len(pending) >= _HEADER.size:
            kind, call_id, end = _head(pending)
            if len(pending) < end:
                return
            payload = bytes(pending[_HEADER.size : end])
            del pending[:end]
            yield kind, call_id, payload


def _head(data: bytes | bytearray) -> tuple[Kind, int, int]:
    """Kind, call id, and the frame's own length."""
    length, call_id, number = _HEADER.unpack_from(data)
    kind = _KINDS.get(number)
    if kind is None:
        raise DataLoss("frame.kind", f"{number} is none")
    if length > MAX_MESSAGE_BYTES:
        raise DataLoss("frame.length", f"{length} bytes, at most {MAX_MESSAGE_BYTES}")
    return kind, call_id, _HEADER.size + length
