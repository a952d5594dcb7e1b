"""The command line: `draftproof` and `python -m services.cli`."""

from __future__ import annotations

import sys

import typer
from rich.console import Console

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


def build_app() -> typer.Typer:
    """All commands. Each imports what it needs when it runs, so that --help is quick."""
    from services.cli import calibrate, chat, demo, doctor, generate, index, model, serve, settings, train, up

    app = typer.Typer(
        name="draftproof", help=HELP, no_args_is_help=True, rich_markup_mode="rich", pretty_exceptions_enable=False
    )
    app.command("up")(up.up)
    app.add_typer(serve.app, name="serve")
    app.command("generate")(generate.generate)
    app.command("chat")(chat.chat)
    app.add_typer(index.app, name="index")
    app.add_typer(model.app, name="model")
    app.add_typer(train.app, name="train")
    app.command("calibrate")(calibrate.calibrate)
    app.command("doctor")(doctor.doctor)
    app.command("settings")(settings.settings)
    app.command("demo")(demo.demo)
    return app


def main() -> None:
    """Entry point. Typed errors become one line and exit status 2."""
    try:
        build_app()()
    except DraftproofError as error:
        Console(stderr=True, highlight=False).print(f"[red]{type(error).code.lower()}[/red]: ", end="")
        print(error, file=sys.stderr)
        sys.exit(2)
