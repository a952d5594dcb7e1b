"""Links: who may have one, and what is left of a call when the other end goes away."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from contracts.errors import DeadlineExceeded, InvalidArgument, Unavailable
from services.link.address import link_of, link_to
from services.link.client import LinkClient
from services.link.frames import Kind
from services.link.server import LinkServer


class Echo:
    """Answers with what it got; `b"wait"` is never answered, `b"refuse"` is refused."""

    def __init__(self) -> None:
        self.waiting = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.forgotten: list[str] = []
        self.told = asyncio.Event()

    async def answer(self, kind: Kind, payload: bytes) -> bytes:
        if payload == b"refuse":
            raise InvalidArgument("payload", "is refused")
        if payload == b"wait":
            self.waiting.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.cancelled.set()
        return payload

    def forget(self, session_id: str) -> None:
        self.forgotten.append(session_id)
        self.told.set()


@asynccontextmanager
async def linked(path: Path) -> AsyncIterator[tuple[Echo, LinkClient]]:
    echo = Echo()
    async with LinkServer(path, lambda: echo):
        client = LinkClient(path)
        try:
            yield echo, client
        finally:
            client.close()


async def test_answers_find_their_questions(tmp_path: Path) -> None:
    async with linked(tmp_path / "s") as (_, client):
        assert await client.up()
        payloads = [bytes([index]) * (1 + index * 10_000) for index in range(8)]
        answers = await asyncio.gather(*(client.ask(Kind.VERIFY, payload, timeout_s=30) for payload in payloads))
        assert answers == payloads


async def test_an_error_arrives_as_itself(tmp_path: Path) -> None:
    async with linked(tmp_path / "s") as (_, client):
        assert await client.up()
        with pytest.raises(InvalidArgument) as refused:
            await client.ask(Kind.VERIFY, b"refuse", timeout_s=30)
        assert refused.value.field == "payload"


async def test_a_late_answer_is_deadline_exceeded_and_the_question_is_taken_back(tmp_path: Path) -> None:
    async with linked(tmp_path / "s") as (echo, client):
        assert await client.up()
        with pytest.raises(DeadlineExceeded):
            await client.ask(Kind.VERIFY, b"wait", timeout_s=0.01)
        await echo.cancelled.wait()
        assert await client.ask(Kind.VERIFY, b"next", timeout_s=30) == b"next"


async def test_a_cancelled_question_is_taken_back(tmp_path: Path) -> None:
    async with linked(tmp_path / "s") as (echo, client):
        assert await client.up()
        asking = asyncio.create_task(client.ask(Kind.VERIFY, b"wait", timeout_s=30))
        await echo.waiting.wait()
        asking.cancel()
        await echo.cancelled.wait()


async def test_a_broken_connection_fails_what_waits_and_is_made_anew(tmp_path: Path) -> None:
    echo = Echo()
    server = LinkServer(tmp_path / "s", lambda: echo)
    async with server:
        client = LinkClient(tmp_path / "s")
        assert await client.up()
        first = client.generation
        asking = asyncio.create_task(client.ask(Kind.VERIFY, b"wait", timeout_s=30))
        await echo.waiting.wait()
        client._connection._transport.abort()  # type: ignore[union-attr]
        with pytest.raises(Unavailable):
            await asking
        assert await client.up()
        assert client.generation == first + 1
        assert await client.ask(Kind.VERIFY, b"again", timeout_s=30) == b"again"
        client.close()


async def test_without_a_socket_there_is_no_link(tmp_path: Path) -> None:
    client = LinkClient(tmp_path / "nobody")
    assert not await client.up()
    with pytest.raises(Unavailable):
        await client.ask(Kind.VERIFY, b"", timeout_s=1)


async def test_what_is_told_arrives_before_the_next_question(tmp_path: Path) -> None:
    async with linked(tmp_path / "s") as (echo, client):
        assert await client.up()
        client.tell(Kind.FORGET, b"session")
        await client.ask(Kind.VERIFY, b"x", timeout_s=30)
        assert echo.forgotten == ["session"]


async def test_a_socket_left_by_a_crash_is_replaced_and_only_its_owner_may_connect(tmp_path: Path) -> None:
    path = tmp_path / "s"
    path.touch()
    async with linked(path) as (_, client):
        assert await client.up()
        assert await client.ask(Kind.VERIFY, b"x", timeout_s=30) == b"x"
        assert path.stat().st_mode & 0o777 == 0o600
    assert not path.exists()


@pytest.mark.parametrize(
    ("endpoint", "linked"),
    [
        ("127.0.0.1:7602", True),
        ("localhost:7602", True),
        ("[::1]:7602", True),
        ("10.0.0.7:7602", False),
        ("verifier.pool:7602", False),
        ("127.0.0.1", False),
    ],
)
def test_only_this_machine_is_reached_by_link(tmp_path: Path, endpoint: str, linked: bool) -> None:
    assert (link_to(tmp_path, "verifier", endpoint) is not None) is linked
    assert link_to(None, "verifier", endpoint) is None


def test_a_path_too_long_for_a_socket_is_refused_by_name() -> None:
    with pytest.raises(InvalidArgument) as refused:
        link_of(Path("/" + "d" * 120), "verifier", 7602)
    assert refused.value.field == "DRAFTPROOF_LINK_DIR"
