"""Everything in one process: the same orchestrator over in-process adapters, for `--local` and for tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from contracts.ports import RetrieverPort
from models.checkpoint import resolve
from orchestrator.generate import Orchestrator
from services.orchestrator_service.process import orchestrator_settings
from services.proposer_service.process import build_proposer
from services.redis_embedded import is_listening
from services.retriever_service.port import LocalRetriever
from services.retriever_service.process import build_retriever
from services.settings import AllSettings
from services.text import CheckpointTokenizer
from services.verifier_service.build import build_worker
from verifier.local import LocalVerifier


@asynccontextmanager
async def local_orchestrator(settings: AllSettings) -> AsyncIterator[Orchestrator]:
    """An orchestrator with all its peers in this process. There is a retriever where a Redis is named or, as for the
    `index` commands, where the embedded one of `draftproof up` listens.
    """
    async with AsyncExitStack() as stack:
        worker = await asyncio.to_thread(build_worker, settings)
        verifier = await stack.enter_async_context(LocalVerifier(worker))
        proposer = await asyncio.to_thread(build_proposer, settings)
        stack.callback(proposer.shutdown)
        retrievers: list[RetrieverPort] = []
        if settings.redis_url or is_listening(settings.redis_port):
            retriever = build_retriever(settings.model_copy(update={"redis_url": settings.store_url}))
            await asyncio.to_thread(retriever.library.poll)
            if retriever.live is not None:
                await asyncio.to_thread(retriever.live.poll)
            retrievers.append(LocalRetriever(retriever))
        tokenizer = CheckpointTokenizer(resolve(settings.model, settings.models_dir))
        orchestrator = Orchestrator(verifier, [proposer], retrievers, tokenizer, orchestrator_settings(settings))
        stack.push_async_callback(orchestrator.aclose)
        yield orchestrator
