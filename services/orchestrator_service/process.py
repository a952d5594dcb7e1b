"""The orchestrator process: clients as ports, an orchestrator over them, served."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from contracts.errors import InvalidArgument
from contracts.ports import ProposerPort
from models.checkpoint import resolve
from orchestrator.generate import Orchestrator
from orchestrator.settings import OrchestratorSettings
from proposer.host import SourceHost
from proposer.local import LocalProposer
from protos.draftproof.v1 import generate_pb2_grpc
from services import loop, telemetry
from services.clients.proposer import ProposerClient
from services.clients.retriever_groups import open_retriever
from services.clients.verifier import VerifierClient
from services.link.address import link_to
from services.orchestrator_service.servicer import SERVICE, GenerateServicer
from services.proposer_service.process import prompt_lookup
from services.server import Listen, ServiceServer, until_told_to_stop
from services.settings import OrchestratorServiceSettings, names_in
from services.text import CheckpointTokenizer

_log = logging.getLogger(__name__)


def orchestrator_settings(settings: OrchestratorServiceSettings) -> OrchestratorSettings:
    """The orchestrator's own record. Raises InvalidArgument for settings that contradict one another."""
    if settings.retrieval_min_match > settings.retrieval_max_match:
        raise InvalidArgument(
            "DRAFTPROOF_RETRIEVAL_MIN_MATCH",
            f"{settings.retrieval_min_match} is above DRAFTPROOF_RETRIEVAL_MAX_MATCH = {settings.retrieval_max_match}",
        )
    return OrchestratorSettings(
        default_sources=names_in(settings.default_sources),
        default_index=settings.default_index,
        budget=settings.budget,
        default_node_budget=settings.node_budget,
        max_node_budget=settings.max_node_budget,
        default_max_depth=settings.max_depth,
        max_suffix=settings.retrieval_max_match,
        retrieval_min_match=settings.retrieval_min_match,
        retrieval_spec_factor=settings.retrieval_spec_factor,
        propose_deadline_ms=settings.propose_deadline_ms,
        verify_timeout_ms=settings.verify_timeout_ms,
        lease_ms=settings.lease_ms,
    )


@asynccontextmanager
async def connected(settings: OrchestratorServiceSettings) -> AsyncIterator[Orchestrator]:
    """An orchestrator over clients of the endpoints that the settings name. Nothing is contacted yet."""
    tokenizer = CheckpointTokenizer(resolve(settings.model, settings.models_dir, _log.info))
    verifier = VerifierClient(
        settings.verifier_endpoint, link=link_to(settings.links, "verifier", settings.verifier_endpoint)
    )
    remote = [
        ProposerClient(endpoint, link=link_to(settings.links, "proposer", endpoint))
        for endpoint in (settings.proposer_endpoint,)
        if endpoint
    ]
    retrievers = [open_retriever(settings.retriever_endpoint, settings.links)] if settings.retriever_endpoint else []
    async with AsyncExitStack() as stack:
        stack.push_async_callback(verifier.close)
        # The first port that offers a source is the one that is asked.
        proposers: list[ProposerPort] = []
        if settings.inline_sources:
            inline = LocalProposer(SourceHost([prompt_lookup(settings)]))
            stack.callback(inline.shutdown)
            proposers.append(inline)
        for proposer in remote:
            stack.push_async_callback(proposer.close)
            proposers.append(proposer)
        for retriever in retrievers:
            stack.push_async_callback(retriever.close)
        orchestrator = Orchestrator(verifier, proposers, retrievers, tokenizer, orchestrator_settings(settings))
        stack.push_async_callback(orchestrator.aclose)
        yield orchestrator


async def serve(settings: OrchestratorServiceSettings, *, follow_stdin: bool = False) -> None:
    """Serves until told to stop."""
    server = ServiceServer(
        [SERVICE], Listen(settings.host, settings.orchestrator_port, settings.drain_ms, settings.grace_ms)
    )
    async with connected(settings) as orchestrator:
        generate_pb2_grpc.add_GenerateServiceServicer_to_server(GenerateServicer(orchestrator), server.grpc_server)
        async with server:
            await server.set_serving(True)
            await until_told_to_stop(follow_stdin=follow_stdin)


def run(settings: OrchestratorServiceSettings, *, follow_stdin: bool = False) -> None:
    """`serve` in a loop of its own, with telemetry."""
    stop_telemetry = telemetry.start("draftproof-orchestrator")
    loop.run(serve(settings, follow_stdin=follow_stdin))
    stop_telemetry()
