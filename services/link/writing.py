"""Frames that leave where they are written: libuv's loop would send them at the end of its turn, after all that is ready."""

from __future__ import annotations

import asyncio
import os


class Writer:
    """Writes to a socket's transport, past the loop where the socket takes it."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._descriptor: int = transport.get_extra_info("socket").fileno()

    def write(self, data: bytes) -> None:
        """All of it, at once or behind what was written before; nothing where the transport is closing."""
        transport = self._transport
        if transport.is_closing():
            # Its number may belong to another socket by now.
            return
        if not transport.get_write_buffer_size():
            try:
                taken = os.write(self._descriptor, data)
            except OSError:
                # Full, or broken: which of them, the transport finds out.
                taken = 0
            if taken == len(data):
                return
            data = data[taken:]
        transport.write(data)
