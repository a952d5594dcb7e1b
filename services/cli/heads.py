"""`draftproof heads ...`: head packages."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from services.settings import ModelSettings, load, names_in

app = typer.Typer(no_args_is_help=True, rich_markup_mode="rich", help="Packages of draft heads.")


@app.callback()
def _group() -> None:
    """Packages of draft heads."""


@app.command("import")
def import_(
    directory: Annotated[Path, typer.Argument(help="A published head: config.json and safetensors.")],
    out: Annotated[Path, typer.Option(help="Directory of the package to write.")],
    base: Annotated[str, typer.Option(help="The target it was trained for, named as DRAFTPROOF_MODEL is.")],
    taps: Annotated[
        str, typer.Option(help="Rows that an EAGLE-3 head fuses, e.g. layer:1,layer:15,layer:28; default: as it says.")
    ] = "",
) -> None:
    """Make a package of a published Medusa, EAGLE, EAGLE-3 or `speculators` head, bound to the base by its digest.

    Every tensor must be there, have its shape and be known. Pickled weights are not opened.

    Example: draftproof heads import ./EAGLE3-LLaMA3.1-Instruct-8B --base ./Llama-3.1-8B-Instruct --out heads/eagle3
    """
    from proposer.heads.published.importing import import_head
    from services.checkpoint_files import eos_ids, model_name
    from services.cli.console import err, fetch_model

    checkpoint = fetch_model(base, load(ModelSettings).models_dir)
    made = import_head(
        directory,
        out,
        checkpoint,
        target_name=model_name(base),
        eos_ids=eos_ids(checkpoint),
        taps=names_in(taps),
    )
    err.print(f"{made.family}, {made.vocabulary_size} tokens, reads {', '.join(made.taps)}; target {made.target}")
    print(out)
