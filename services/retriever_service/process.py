"""The retriever process: a library that follows the store, served."""

from __future__ import annotations

import asyncio
import hashlib
import logging

from contracts.errors import FailedPrecondition
from protos.draftproof.v1 import retriever_pb2_grpc
from retriever.library import Library
from retriever.library_status import LibraryStatus
from retriever.live import LiveLibrary
from retriever.placement import Share
from retriever.redis_store import RedisStore
from retriever.release import Binding
from retriever.retriever import Retriever
from services import loop, telemetry
from services.checkpoint_files import tokenizer_here
from services.link.address import link_of
from services.link.server import LinkServer
from services.retriever_service import metrics
from services.retriever_service.live_policies import parse_policies
from services.retriever_service.port import LocalRetriever
from services.retriever_service.servicer import SERVICE, RetrieveLink, RetrieverServicer
from services.server import Listen, ServiceServer, until_told_to_stop
from services.settings import RetrieverSettings, names_in

# Health checks under this name say whether the store answers; the service itself serves without it.
STORE_HEALTH = "draftproof.store"
_WATCH_S = 0.2

_log = logging.getLogger(__name__)


def build_retriever(settings: RetrieverSettings) -> Retriever:
    """A retriever over the store that the settings name; `library.start` makes it follow.

    Raises FailedPrecondition without a store, InvalidArgument for groups or live policies that are wrong.
    """
    if not settings.redis_url:
        raise FailedPrecondition(
            "DRAFTPROOF_REDIS_URL", "is not set; `draftproof up` starts an embedded Redis by itself"
        )
    share = Share(settings.retriever_group, names_in(settings.retriever_groups))
    policies = parse_policies(settings.live_policies)
    store = RedisStore(settings.redis_url, namespace=settings.redis_namespace)
    library = Library(
        store,
        settings.segments_dir,
        binding=lambda: _binding(settings),
        keep_releases=settings.keep_releases,
        copied_segments=settings.segment_memory == "copied",
        indexes=names_in(settings.indexes) or None,
        share=share,
        local_name=_local_name(settings, settings.indexes),
        earlier_name=_local_name(settings),
    )
    return Retriever(library, LiveLibrary(store, policies, library.tokenizers) if policies else None)


def _binding(settings: RetrieverSettings) -> Binding:
    """Releases of another tokenizer than the model's are not served, where its files are on this machine to tell.

    Read for every release anew: on a first start the verifier may still be fetching the model.
    """
    tokenizer = tokenizer_here(settings.model, settings.models_dir)
    if tokenizer is None:
        _log.warning("%s is not on this machine, so a release of any tokenizer is served", settings.model)
    return Binding(tokenizer_sha256=tokenizer)


def _local_name(settings: RetrieverSettings, indexes: str = "") -> str:
    """Retrievers of other stores, namespaces, groups or indexes may share the cache directory."""
    of_store = (settings.redis_url, settings.redis_namespace, settings.retriever_group, settings.retriever_groups)
    parts = (*of_store, indexes) if indexes else of_store
    return f"serving-{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()[:16]}"


async def serve(settings: RetrieverSettings, *, follow_stdin: bool = False) -> None:
    """Serves until told to stop. It serves without a store too: what was loaded or lies on this disk stays, and a store
    that comes back is picked up.
    """
    retriever = build_retriever(settings)
    library, live = retriever.library, retriever.live
    metrics.observe(library, live)
    server = ServiceServer(
        [SERVICE], Listen(settings.host, settings.retriever_port, settings.drain_ms, settings.grace_ms)
    )
    port = LocalRetriever(retriever)
    servicer = RetrieverServicer(port, None if library.share.whole else port)
    retriever_pb2_grpc.add_RetrieverServiceServicer_to_server(servicer, server.grpc_server)
    link = LinkServer(link_of(settings.links, "retriever", settings.retriever_port), lambda: RetrieveLink(port))
    async with link, server:
        # The first look loads what is there, so that SERVING means indexes are in memory.
        await asyncio.to_thread(library.poll)
        library.start()
        if live is not None:
            await asyncio.to_thread(live.poll)
            live.start()
        await server.set_serving(True)
        watching = asyncio.create_task(_report(library, server))
        try:
            await until_told_to_stop(follow_stdin=follow_stdin)
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            await asyncio.to_thread(library.stop)
            if live is not None:
                await asyncio.to_thread(live.stop)


async def _report(library: Library, server: ServiceServer) -> None:
    """Says in health and log what changes: the store's coming and going, releases put in place or refused."""
    before: LibraryStatus | None = None
    while True:
        now = library.status()
        if before is None or now.store_connected != before.store_connected:
            await server.set_named(STORE_HEALTH, serving=now.store_connected)
            if not now.store_connected:
                where = "this disk" if now.from_local_copy else "memory"
                _log.warning("the store does not answer, serving from %s: %s", where, now.store_error)
            elif before is not None:
                _log.info("the store answers again")
        for name, index in now.indexes.items():
            known = before.indexes.get(name) if before else None
            if index.serving_release and (known is None or known.serving_release != index.serving_release):
                _log.info("index %s serves release %s", name, index.serving_release[:16])
            if index.error and (known is None or known.error != index.error):
                _log.error("index %s keeps release %s: %s", name, index.serving_release[:16] or "none", index.error)
        before = now
        await asyncio.sleep(_WATCH_S)


def run(settings: RetrieverSettings, *, follow_stdin: bool = False) -> None:
    """`serve` in a loop of its own, with telemetry."""
    stop_telemetry = telemetry.start("draftproof-retriever")
    loop.run(serve(settings, follow_stdin=follow_stdin))
    stop_telemetry()
