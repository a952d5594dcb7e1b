"""The supervisor and the embedded Redis: a died child comes back, everything ends with the block."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest
import redis

from contracts.errors import FailedPrecondition
from services.redis_embedded import embedded_redis, free_port
from services.supervisor import ChildSpec, Supervisor, await_health


def retriever_spec(redis_url: str, directory: Path) -> ChildSpec:
    port = free_port()
    return ChildSpec(
        "retriever",
        [sys.executable, "-m", "services.start", "retriever"],
        f"127.0.0.1:{port}",
        {
            "DRAFTPROOF_RETRIEVER_PORT": str(port),
            "DRAFTPROOF_REDIS_URL": redis_url,
            "DRAFTPROOF_CACHE_DIR": str(directory),
        },
        log=directory / "log",
    )


async def test_a_died_child_is_started_again_and_all_end_with_the_block(tmp_path: Path) -> None:
    events: list[tuple[str, str]] = []
    again = asyncio.Event()

    def on_event(name: str, what: str) -> None:
        events.append((name, what))
        if sum(what.startswith("started") for _, what in events) == 2:
            again.set()

    with embedded_redis(tmp_path / "redis") as store:
        spec = retriever_spec(store.url, tmp_path)
        async with Supervisor([spec], on_event) as supervisor:
            await supervisor.start()
            (child,) = supervisor.children
            first = child.pid
            assert first is not None
            os.kill(first, signal.SIGKILL)
            async with asyncio.timeout(60):
                await again.wait()
            await await_health(spec.endpoint, 60)
            second = child.pid
            assert second not in (None, first)
            assert child.restarts == 1
        assert not os.path.exists(f"/proc/{second}")


async def test_a_child_that_cannot_start_is_said(tmp_path: Path) -> None:
    spec = ChildSpec("broken", [sys.executable, "-c", "raise SystemExit(4)"], "127.0.0.1:1", log=tmp_path / "log")
    async with Supervisor([spec], lambda *_: None) as supervisor:
        with pytest.raises(FailedPrecondition, match="broken: ended with status 4"):
            await supervisor.start()


async def test_a_child_whose_supervisor_is_gone_stops(tmp_path: Path) -> None:
    with embedded_redis(tmp_path / "redis") as store:
        spec = retriever_spec(store.url, tmp_path)
        process = await asyncio.create_subprocess_exec(
            *spec.command, stdin=asyncio.subprocess.PIPE, env={**os.environ, **spec.environment}
        )
        await await_health(spec.endpoint, 60)
        assert process.stdin is not None
        process.stdin.close()
        async with asyncio.timeout(60):
            assert await process.wait() == 0


def test_the_embedded_redis_keeps_its_data_and_its_port(tmp_path: Path) -> None:
    with embedded_redis(tmp_path) as server:
        with redis.Redis.from_url(server.url) as client:
            client.set("key", "value")
        port, first = server.port, server.pid
        server.stop()
        assert not server.alive()
        server.restart()
        assert server.port == port
        assert server.pid != first
        with redis.Redis.from_url(server.url) as client:
            assert client.get("key") == b"value"
    assert not server.alive()
