"""The retriever process: a library that follows the store, served."""

from __future__ import annotations

import asyncio

from contracts.errors import FailedPrecondition
from protos.draftproof.v1 import retriever_pb2_grpc
from retriever.library import Library
from retriever.redis_store import RedisStore
from retriever.retriever import Retriever
from services import telemetry
from services.retriever_service.port import LocalRetriever
from services.retriever_service.servicer import SERVICE, RetrieverServicer
from services.server import Listen, ServiceServer, until_told_to_stop
from services.settings import RetrieverSettings, names_in


def build_library(settings: RetrieverSettings) -> Library:
    """A library over the store that the settings name; `start` makes it follow. Raises FailedPrecondition without one."""
    if not settings.redis_url:
        raise FailedPrecondition(
            "DRAFTPROOF_REDIS_URL", "is not set; `draftproof up` starts an embedded Redis by itself"
        )
    return Library(
        RedisStore(settings.redis_url, namespace=settings.redis_namespace),
        settings.segments_dir,
        keep_releases=settings.keep_releases,
        indexes=names_in(settings.indexes) or None,
    )


async def serve(settings: RetrieverSettings, *, follow_stdin: bool = False) -> None:
    """Serves until told to stop. It serves without a store too: what was loaded stays, and a store is picked up."""
    library = build_library(settings)
    server = ServiceServer(
        [SERVICE], Listen(settings.host, settings.retriever_port, settings.drain_ms, settings.grace_ms)
    )
    servicer = RetrieverServicer(LocalRetriever(Retriever(library)))
    retriever_pb2_grpc.add_RetrieverServiceServicer_to_server(servicer, server.grpc_server)
    async with server:
        # The first look loads what is there, so that SERVING means indexes are in memory.
        await asyncio.to_thread(library.poll)
        library.start()
        await server.set_serving(True)
        try:
            await until_told_to_stop(follow_stdin=follow_stdin)
        finally:
            await asyncio.to_thread(library.stop)


def run(settings: RetrieverSettings, *, follow_stdin: bool = False) -> None:
    """`serve` in a loop of its own, with telemetry."""
    stop_telemetry = telemetry.start("draftproof-retriever")
    asyncio.run(serve(settings, follow_stdin=follow_stdin))
    stop_telemetry()
