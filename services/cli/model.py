"""`draftproof model ...`: checkpoints on this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from services.settings import ModelSettings, load

app = typer.Typer(no_args_is_help=True, rich_markup_mode="rich", help="Checkpoints on this machine.")


@app.command()
def fetch(source: Annotated[str, typer.Argument(help="Default: the model of the settings.")] = "") -> None:
    """Fetch a model and convert it to safetensors, once; print its directory.

    Examples: draftproof model fetch; draftproof model fetch Qwen/Qwen2.5-0.5B-Instruct
    """
    from services.cli.console import fetch_model

    settings = load(ModelSettings)
    print(fetch_model(source or settings.model, settings.models_dir))
