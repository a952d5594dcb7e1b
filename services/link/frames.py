"""Frames: a fixed header and a serialised protobuf message.

Header, little-endian: payload length uint32, call id uint64, kind uint8. A call id names a question and its one answer.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
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


def frame(kind: Kind, call_id: int, payload: bytes = b"") -> bytes:
    """One frame's bytes."""
    return _HEADER.pack(len(payload), call_id, kind) + payload


class Splitter:
    """Cuts a byte stream into frames, however it arrives."""

    def __init__(self) -> None:
        self._pending = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[Kind, int, bytes]]:
        """(kind, call id, payload) of each frame that is now whole. Raises DataLoss for what is no frame."""
        self._pending += data
        while len(self._pending) >= _HEADER.size:
            length, call_id, kind = _HEADER.unpack_from(self._pending)
            if length > MAX_MESSAGE_BYTES:
                raise DataLoss("frame.length", f"{length} bytes, at most {MAX_MESSAGE_BYTES}")
            end = _HEADER.size + length
            if len(self._pending) < end:
                return
            payload = bytes(self._pending[_HEADER.size : end])
            del self._pending[:end]
            yield Kind(kind), call_id, payload
