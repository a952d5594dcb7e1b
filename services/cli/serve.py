"""`draftproof serve ...`: one service in this process, for Kubernetes and for `draftproof up`."""

from __future__ import annotations

from typing import Annotated

import typer

from services import garbage
from services.start import run_service

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
    run_service("verifier", follow_stdin=follow_stdin)


@app.command()
def proposer(follow_stdin: FollowStdin = False) -> None:
    """Sources of candidates: prompt lookup, and a draft model where DRAFTPROOF_DRAFT_MODEL names one."""
    run_service("proposer", follow_stdin=follow_stdin)


@app.command()
def retriever(follow_stdin: FollowStdin = False) -> None:
    """Suffix matches in the indexes of the release store that DRAFTPROOF_REDIS_URL names."""
    run_service("retriever", follow_stdin=follow_stdin)


@app.command()
def orchestrator(follow_stdin: FollowStdin = False) -> None:
    """Generate over the other three; their addresses come from DRAFTPROOF_*_ENDPOINT."""
    run_service("orchestrator", follow_stdin=follow_stdin)
