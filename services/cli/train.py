"""`draftproof train ...`: data from the target, draft heads from the data."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from services.settings import VerifierSettings, load

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Self-distilled data and draft heads for the model of the settings.",
)

DATA_TAPS = ("final_norm", "layer:2", "layer:14", "layer:26")


@app.command()
def data(
    directory: Annotated[Path, typer.Argument(help="Where the data set is kept; an interrupted one is continued.")],
    rounds: Annotated[int, typer.Option(min=1, help="Prompts of each kind in the first stage.")] = 200,
    width: Annotated[int, typer.Option(min=1, help="Conversations side by side.")] = 32,
    seed: Annotated[int, typer.Option(help="Seed of prompts and sampling.")] = 0,
    maths: Annotated[list[Path] | None, typer.Option(help="JSON lines with a `question` each.")] = None,
    prose: Annotated[list[Path] | None, typer.Option(help="Folders of .md, .rst and .txt documentation.")] = None,
    source: Annotated[list[Path] | None, typer.Option(help="Folders of Python source.")] = None,
    evaluation: Annotated[
        list[Path] | None, typer.Option(help="JSON lines of evaluation prompts: nothing that overlaps them is used.")
    ] = None,
) -> None:
    """Let the target answer seed prompts and keep tokens and hidden states.

    Example:

      draftproof train data .cache/data --maths gsm8k_train.jsonl --prose /usr/share/doc --evaluation spec_bench.jsonl
    """
    from models.load import load_backend
    from proposer.training.data import DataPlan, build
    from proposer.training.dataset import Dataset
    from proposer.training.seed_prompts import SeedTexts, read_functions, read_passages
    from services.checkpoint_files import eos_ids
    from services.cli.console import err, fetch_model, progress_bars
    from services.text import CheckpointTokenizer

    settings = load(VerifierSettings)
    checkpoint = fetch_model(settings.model, settings.models_dir)
    texts = SeedTexts(
        maths=[row["question"] for path in maths or () for row in _rows(path)][: 2 * rounds],
        passages=read_passages(prose or (), rounds, seed=seed),
        functions=read_functions(source or (), rounds, seed=seed),
    )
    err.print(f"{len(texts.maths)} questions, {len(texts.passages)} passages, {len(texts.functions)} functions")
    backend = load_backend(
        checkpoint, dtype=settings.dtype, kv_budget_tokens=1100 * width, threads=settings.threads or None
    )
    with progress_bars() as bars:
        task = bars.add_task("conversations", total=None)

        def progress(done: int, planned: int, tokens: int) -> None:
            bars.update(task, completed=done, total=planned, description=f"conversations, {tokens} answer tokens")

        dataset = build(
            lambda identity: Dataset(directory, identity),
            backend,
            CheckpointTokenizer(checkpoint),
            texts,
            [text for path in evaluation or () for row in _rows(path) for text in _strings(row)],
            DataPlan(rounds=rounds, seed=seed, width=width, taps=DATA_TAPS),
            eos_ids=eos_ids(checkpoint),
            progress=progress,
        )
    err.print(f"{len(dataset.names())} conversations in {directory}, digest {dataset.digest}")


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)


def _strings(value: object) -> Iterator[str]:
    """All texts of a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _strings(item)
