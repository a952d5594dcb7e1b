"""`draftproof up`: all services in the foreground."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from services.settings import AllSettings, load

if TYPE_CHECKING:
    from services.stack import Stack


def up(
    logs: Annotated[
        Path | None, typer.Option(help="Directory for one log file a service; default: this terminal.")
    ] = None,
) -> None:
    """Start all services, each in a process of its own, and keep them running until Ctrl-C.

    The model is fetched and converted first where that was not done. A service that dies is started again. Without
    DRAFTPROOF_REDIS_URL an embedded Redis is started too.

    Examples:

      draftproof up

      DRAFTPROOF_MODEL=Qwen/Qwen2.5-0.5B-Instruct DRAFTPROOF_DTYPE=float32 draftproof up --logs .cache/logs
    """
    from services.cli.console import err, fetch_model
    from services.logs import set_up_logging

    settings = load(AllSettings)
    set_up_logging("up", settings.log_level)
    fetch_model(settings.model, settings.models_dir)
    asyncio.run(_up(settings, logs))
    err.print("all services have stopped")


async def _up(settings: AllSettings, logs: Path | None) -> None:
    from services.cli.console import err, out, progress_bars
    from services.server import until_told_to_stop
    from services.stack import running_stack

    def on_event(name: str, what: str) -> None:
        err.print(f"[dim]{name} {what}[/dim]")

    stopping = asyncio.create_task(until_told_to_stop())
    stack_context = running_stack(settings, on_event, logs=logs)
    with progress_bars() as bars:
        bars.add_task("starting services", total=None)
        starting = asyncio.ensure_future(stack_context.__aenter__())
        await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            return
    stack = starting.result()
    try:
        out.print(_table(stack))
        out.print('ready: draftproof generate "..." in another terminal; Ctrl-C stops everything')
        await stopping
    finally:
        err.print("stopping")
        await stack_context.__aexit__(None, None, None)


def _table(stack: Stack) -> Table:
    table = Table("service", "endpoint", "process")
    for name, endpoint in stack.endpoints.items():
        table.add_row(name, endpoint, str(stack.pid(name)))
    table.add_row("redis", stack.redis_url, str(stack.redis.pid) if stack.redis else "not ours")
    return table
