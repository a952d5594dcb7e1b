"""services/link/writing.py: what is written has left, all of it arrives in order, and a closed socket is let alone."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import pytest
import uvloop

from services.link.writing import Writer

LOOPS = pytest.mark.parametrize("make_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
Loops = Callable[[], asyncio.AbstractEventLoop]


async def _connected(ours: socket.socket) -> asyncio.Transport:
    transport, _ = await asyncio.get_running_loop().create_unix_connection(asyncio.Protocol, sock=ours)
    return transport


@LOOPS
def test_what_is_written_has_left_before_the_loop_turns(make_loop: Loops) -> None:
    ours, theirs = socket.socketpair()

    async def write() -> bytes:
        transport = await _connected(ours)
        Writer(transport).write(b"question")
        got = theirs.recv(64, socket.MSG_DONTWAIT)
        transport.close()
        return got

    with theirs, asyncio.Runner(loop_factory=make_loop) as runner:
        assert runner.run(write()) == b"question"


@LOOPS
def test_what_a_socket_does_not_take_at_once_follows_in_order(make_loop: Loops) -> None:
    ours, theirs = socket.socketpair()
    parts = [bytes([number]) * 400_000 for number in range(6)]

    async def write() -> bytes:
        transport = await _connected(ours)
        writer = Writer(transport)
        for part in parts:
            writer.write(part)
        reader, closing = await asyncio.open_unix_connection(sock=theirs)
        got = await reader.readexactly(sum(map(len, parts)))
        closing.close()
        await closing.wait_closed()
        transport.close()
        return got

    with asyncio.Runner(loop_factory=make_loop) as runner:
        assert runner.run(write()) == b"".join(parts)


@LOOPS
def test_a_closing_transport_takes_nothing(make_loop: Loops) -> None:
    ours, theirs = socket.socketpair()

    async def write() -> None:
        transport = await _connected(ours)
        writer = Writer(transport)
        transport.close()
        writer.write(b"lost")
        await asyncio.sleep(0)

    with theirs, asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(write())
        assert theirs.recv(64) == b""
