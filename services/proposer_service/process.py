"""The proposer process: its sources, served."""

from __future__ import annotations

import logging
import os

from proposer.host import SourceHost, TakesRows
from proposer.local import LocalProposer
from proposer.prompt_lookup import PromptLookup, PromptLookupSettings
from proposer.source import Source
from protos.draftproof.v1 import proposer_pb2_grpc
from services import loop, telemetry
from services.checkpoint_files import eos_ids
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
    """Prompt lookup, and the draft model and the draft head where they are set (which import torch)."""
    sources: list[Source] = [prompt_lookup(settings)]
    hidden: TakesRows | None = None
    if settings.draft_model:
        sources.append(_draft_model(settings))
    if settings.head:
        from services.proposer_service.head import build_head

        head, hidden = build_head(settings)
        sources.append(head)
    return LocalProposer(SourceHost(sources, hidden=hidden))


def _draft_model(settings: ProposerSettings) -> Source:
    from contracts.topology import SamplingRelation
    from models.checkpoint import resolve, tokenizer_digest
    from models.load import load_backend
    from proposer.draft_model import DraftModel, DraftModelSettings
    from services.trees import tree_of

    directory = resolve(settings.draft_model, settings.models_dir, _log.info)
    backend = load_backend(
        directory,
        dtype=settings.draft_dtype,
        kv_budget_tokens=settings.draft_kv_tokens,
        threads=settings.draft_threads or len(os.sched_getaffinity(0)),
    )
    tree = DraftModelSettings(SamplingRelation(settings.draft_relation), tree_of(settings.draft_tree))
    return DraftModel(backend, tree, tokenizer_digest=tokenizer_digest(directory), eos_ids=eos_ids(directory))


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
