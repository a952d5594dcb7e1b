"""`draftproof serve ...`: one service in this process, for Kubernetes and for `draftproof up`."""

from __future__ import annotations

from typing import Annotated

import typer

from services import garbage
from services import settings as known
from services.logs import set_up_logging

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    help=(
        "Run one service in this process: what a container starts. Settings come from DRAFTPROOF_* variables.\n\n"
        "Example: DRAFTPROOF_LOOKUP_MAX_NGRAM=4 draftproof serve proposer"
    ),
)

FollowStdin = Annotated[bool, typer.Option("--follow-stdin", help="Stop when standard input ends.", hidden=True)]


@app.callback()
def _serve(context: typer.Context) -> None:
    garbage.postpone()
    context.call_on_close(garbage.resume)


@app.command()
def verifier(follow_stdin: FollowStdin = False) -> None:
    """Sessions on the target. Starts an engine process of its own.

    Example: DRAFTPROOF_MODEL=/models/qwen DRAFTPROOF_VERIFIER_PORT=7602 draftproof serve verifier
    """
    from services.verifier_service.front import run

    settings = known.load(known.VerifierSettings)
    set_up_logging("verifier", settings.log_level)
    run(settings, follow_stdin=follow_stdin)


@app.command()
def proposer(follow_stdin: FollowStdin = False) -> None:
    """Sources of candidates: prompt lookup, and a draft model where DRAFTPROOF_DRAFT_MODEL names one."""
    from services.proposer_service.process import run

    settings = known.load(known.ProposerSettings)
    set_up_logging("proposer", settings.log_level)
    run(settings, follow_stdin=follow_stdin)


@app.command()
def retriever(follow_stdin: FollowStdin = False) -> None:
    """Suffix matches in the indexes of the release store that DRAFTPROOF_REDIS_URL names."""
    from services.retriever_service.process import run

    settings = known.load(known.RetrieverSettings)
    set_up_logging("retriever", settings.log_level)
    run(settings, follow_stdin=follow_stdin)


@app.command()
def orchestrator(follow_stdin: FollowStdin = False) -> None:
    """Generate over the other three; their addresses come from DRAFTPROOF_*_ENDPOINT."""
    from services.orchestrator_service.process import run

    settings = known.load(known.OrchestratorServiceSettings)
    set_up_logging("orchestrator", settings.log_level)
    run(settings, follow_stdin=follow_stdin)
