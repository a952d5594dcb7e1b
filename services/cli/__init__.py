"""The command line: `draftproof` and `python -m services.cli`."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import typer
from rich.console import Console
from typer.core import TyperGroup

from contracts.errors import DraftproofError

HELP = """Speculative decoding as a pipeline of services: faster text, and the same text.

[bold]First steps[/bold]

  draftproof doctor                         is everything here?
  draftproof demo                           the whole thing in three minutes, nothing left running
  draftproof up                             start all services; in another terminal:
  draftproof generate "What is a monad?"    stream an answer from them
  draftproof chat                           talk

[bold]One process, no services[/bold]

  draftproof generate --local "Write a haiku about compilers."

Settings come from DRAFTPROOF_* variables: `draftproof settings` lists them with their present values.
"""
# Modules of this package, each with a command or an application of its name, in the order that help shows.
COMMANDS = (
    "up", "generate", "chat", "demo", "doctor", "settings", "calibrate", "serve", "index", "model", "train", "heads",
)  # fmt: skip


class LazyCommands(TyperGroup):
    """Imports a command's module when it is asked for: a service that starts pays for its own imports alone."""

    def list_commands(self, ctx: Any) -> list[str]:
        """All names."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command or group of that name, None where there is none."""
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"services.cli.{cmd_name}")
        holder = typer.Typer(rich_markup_mode="rich", pretty_exceptions_enable=False)
        # With a callback it is a group even of one command.
        holder.callback()(_nothing)
        group: typer.Typer | None = getattr(module, "app", None)
        if group is None:
            holder.command(cmd_name)(getattr(module, cmd_name))
        else:
            holder.add_typer(group, name=cmd_name)
        return typer.main.get_group(holder).commands[cmd_name]


def build_app() -> typer.Typer:
    """The application; its commands are imported as they are asked for."""
    app = typer.Typer(
        name="draftproof",
        cls=LazyCommands,
        help=HELP,
        no_args_is_help=True,
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
    )
    app.callback()(_nothing)
    return app


def _nothing() -> None:
    return None


def main() -> None:
    """Entry point. Typed errors become one line and exit status 2."""
    try:
        build_app()()
    except DraftproofError as error:
        Console(stderr=True, highlight=False).print(f"[red]{type(error).code.lower()}[/red]: ", end="")
        print(error, file=sys.stderr)
        sys.exit(2)
