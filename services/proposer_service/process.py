"""The proposer process: its sources, served."""

from __future__ import annotations

import logging

from proposer.host import SourceHost, TakesRows
from proposer.local import LocalProposer
from proposer.prompt_lookup import PromptLookup, PromptLookupSettings
from proposer.source import Source
from protos.draftproof.v1 import proposer_pb2_grpc
from services import loop, telemetry
from services.link.address import link_of
from services.link.server import LinkServer
from services.proposer_service.servicer import SERVICE, ProposerServicer
from services.proposer_service.stream import ProposeLink
from services.server import Listen, ServiceServer, until_told_to_stop
from services.settings import LookupSettings, ProposerSettings

_log = logging.getLogger(__name__)


def prompt_lookup(settings: LookupSettings) -> PromptLookup:
    """Prompt lookup as the settings say."""
    return PromptLookup(
        PromptLookupSettings(
            rule=settings.lookup_rule,
            continuation=settings.lookup_continuation,
            min_ngram=settings.lookup_min_ngram,
            max_ngram=settings.lookup_max_ngram,
            branches=settings.lookup_branches,
            spec_factor=settings.lookup_spec_factor,
        )
    )


def build_proposer(settings: ProposerSettings) -> LocalProposer:
    """Prompt lookup, and draft models and the draft head where they are set (which import torch)."""
    sources: list[Source] = [prompt_lookup(settings)]
    hidden: TakesRows | None = None
    if settings.draft_model:
        from services.proposer_service.drafts import build_drafts

        sources.extend(build_drafts(settings))
    if settings.head:
        from services.proposer_service.head import build_head

        head, hidden = build_head(settings)
        sources.append(head)
    return LocalProposer(SourceHost(sources, hidden=hidden))


async def serve(settings: ProposerSettings, *, follow_stdin: bool = False) -> None:
    """Serves until told to stop."""
    proposer = build_proposer(settings)
    server = ServiceServer(
        [SERVICE], Listen(settings.host, settings.proposer_port, settings.drain_ms, settings.grace_ms)
    )
    proposer_pb2_grpc.add_ProposerServiceServicer_to_server(ProposerServicer(proposer), server.grpc_server)
    link = link_of(settings.links, "proposer", settings.proposer_port)
    async with LinkServer(link, lambda: ProposeLink(proposer)), server:
        await server.set_serving(True)
        await until_told_to_stop(follow_stdin=follow_stdin)
    proposer.shutdown()


def run(settings: ProposerSettings, *, follow_stdin: bool = False) -> None:
    """`serve` in a loop of its own, with telemetry."""
    stop_telemetry = telemetry.start("draftproof-proposer")
    loop.run(serve(settings, follow_stdin=follow_stdin))
    stop_telemetry()
