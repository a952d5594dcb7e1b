"""The services as separate processes, with a small index over Python's own library, for as long as a benchmark runs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.progress import Progress

from contracts.errors import InvalidArgument
from contracts.sampling import SamplingPolicy
from models.checkpoint import resolve
from orchestrator.events import Final
from orchestrator.request import GenerateRequest
from retriever.redis_store import RedisStore
from services.clients.generate import GenerateClient
from services.indexing import build_index, standard_library
from services.settings import DEFAULT_MODEL, AllSettings, load
from services.stack import Stack, running_stack

INDEX = "stdlib"
_PORTS = {f"{name}_port": 0 for name in ("verifier", "proposer", "retriever", "orchestrator", "redis")}


@dataclass(frozen=True)
class Serving:
    """A running stack and a client of its Generate."""

    stack: Stack
    client: GenerateClient


def checkpoint_directory(cache: Path) -> Path:
    """The default model's directory; fetched and converted on the first call."""
    return resolve(DEFAULT_MODEL, cache / "models")


@asynccontextmanager
async def serving(dtype: str, cache: Path, progress: Progress, **changes: object) -> AsyncIterator[Serving]:
    """A healthy stack of the given target dtype, its index published and served."""
    task = progress.add_task(f"start services, {dtype}", total=None)
    settings = load(AllSettings, cache_dir=cache, dtype=dtype, **_PORTS, **changes)
    logs = cache / "benchmark-logs"
    logs.mkdir(parents=True, exist_ok=True)
    async with running_stack(settings, lambda *_: None, logs=logs, redis_dir="benchmark-redis") as stack:
        store = RedisStore(stack.redis_url, namespace=settings.redis_namespace)
        try:
            await asyncio.to_thread(
                build_index,
                store,
                INDEX,
                standard_library(),
                checkpoint_directory(cache),
                cache / "index",
                licence="PSF-2.0",
                progress=lambda *_: None,
            )
        finally:
            store.close()
        client = GenerateClient(stack.endpoints["orchestrator"])
        await _until_retrieval_is_bound(client)
        progress.update(task, total=1, completed=1)
        try:
            yield Serving(stack, client)
        finally:
            await client.close()


async def _until_retrieval_is_bound(client: GenerateClient) -> None:
    """Asks for one token until the certificate no longer calls the index absent; five minutes at most."""
    request = GenerateRequest(
        prompt_ids=(1,), policy=SamplingPolicy(temperature=0.0, max_tokens=1), sources=("retrieval",)
    )
    async with asyncio.timeout(300):
        while True:
            # A retriever that has not loaded the index yet makes it an unknown source.
            with contextlib.suppress(InvalidArgument):
                events = [event async for event in client.generate(request)]
                last = events[-1]
                if isinstance(last, Final) and not last.certificate.absent:
                    return
            await asyncio.sleep(0.1)
