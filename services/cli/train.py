"""`draftproof train ...`: data from the target, draft heads from the data."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from services.cli import train_models
from services.cli.train_cluster import Ray, Workers, check_workers, steps_over
from services.cli.train_reports import command_line, reports_of
from services.settings import VerifierSettings, load

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Self-distilled data and draft heads for the model of the settings.",
)

for command in (train_models.medusa2, train_models.backbone, train_models.draft):
    app.command()(command)

DATA_TAPS = ("final_norm", "layer:2", "layer:14", "layer:26")


@app.command()
def data(
    directory: Annotated[Path, typer.Argument(help="Where the data set is kept; an interrupted one is continued.")],
    rounds: Annotated[int, typer.Option(min=0, help="Prompts of each kind in the first stage.")] = 200,
    width: Annotated[int, typer.Option(min=1, help="Conversations side by side.")] = 32,
    seed: Annotated[int, typer.Option(help="Seed of prompts and sampling.")] = 0,
    maths: Annotated[list[Path] | None, typer.Option(help="JSON lines with a `question` each.")] = None,
    maths_skip: Annotated[int, typer.Option(min=0, help="Questions passed over: those that other data sets have.")] = 0,
    prose: Annotated[list[Path] | None, typer.Option(help="Folders of .md, .rst and .txt documentation.")] = None,
    source: Annotated[list[Path] | None, typer.Option(help="Folders of Python source.")] = None,
    foreign: Annotated[list[Path] | None, typer.Option(help="Folders of German prose, to translate from.")] = None,
    translations: Annotated[int, typer.Option(min=0, help="Sentences of `--foreign` to translate.")] = 0,
    articles: Annotated[
        list[Path] | None, typer.Option(help="Folders of articles, to summarise and to answer from.")
    ] = None,
    summaries: Annotated[int, typer.Option(min=0, help="Stretches of `--articles` to summarise.")] = 0,
    retrievals: Annotated[int, typer.Option(min=0, help="Sets of passages of `--articles` to answer from.")] = 0,
    evaluation: Annotated[
        list[Path] | None, typer.Option(help="JSON lines of evaluation prompts: nothing that overlaps them is used.")
    ] = None,
    ray: Ray = "",
) -> None:
    """Let the target answer seed prompts and keep tokens and hidden states.

    Example:

      draftproof train data .cache/data --maths gsm8k_train.jsonl --prose /usr/share/doc --evaluation spec_bench.jsonl
    """
    from contracts.errors import InvalidArgument
    from models.load import chosen_dtype, load_backend
    from proposer.training.blocks import Decoding, in_process
    from proposer.training.data import DataPlan, build
    from proposer.training.dataset import Dataset
    from proposer.training.seed_domains import DomainTexts, read_articles, read_retrievals, read_sentences
    from proposer.training.seed_prompts import SeedTexts, read_functions, read_passages
    from services.checkpoint_files import eos_ids
    from services.cli.console import err, fetch_model, progress_bars
    from services.text import CheckpointTokenizer

    if maths_skip and not maths:
        raise InvalidArgument("maths_skip", f"{maths_skip} questions of none: give --maths")
    if translations and not foreign:
        raise InvalidArgument("translations", f"{translations} sentences of none: give --foreign")
    if (summaries or retrievals) and not articles:
        raise InvalidArgument("articles", f"{summaries} summaries and {retrievals} questions of none: give --articles")
    if not evaluation:
        err.print("no --evaluation given: nothing shows that these data share no text with an evaluation set")
    settings = load(VerifierSettings)
    checkpoint = fetch_model(settings.model, settings.models_dir)
    texts = SeedTexts(
        maths=[row["question"] for path in maths or () for row in _rows(path)][maths_skip : maths_skip + 2 * rounds],
        passages=read_passages(prose or (), rounds, seed=seed),
        functions=read_functions(source or (), rounds, seed=seed),
    )
    err.print(f"{len(texts.maths)} questions, {len(texts.passages)} passages, {len(texts.functions)} functions")
    domains = DomainTexts(
        sentences=read_sentences(foreign or (), translations, seed=seed),
        articles=read_articles(articles or (), summaries, seed=seed),
        passages=read_retrievals(articles or (), retrievals, seed=seed),
    )
    err.print(
        f"{len(domains.sentences)} sentences, {len(domains.articles)} articles, {len(domains.passages)} retrievals"
    )
    decoding = Decoding(DATA_TAPS, eos_ids(checkpoint), seed, width)
    with ExitStack() as stack:
        if ray:
            from services.jobs.data_generation import on_ray, target_on_ray
            from services.jobs.data_task import DataOrder
            from services.jobs.ray_cluster import ray_cluster

            connected = stack.enter_context(ray_cluster(ray))
            dtype = chosen_dtype(checkpoint) if settings.dtype == "auto" else settings.dtype
            order = DataOrder(checkpoint.resolve(), dtype, decoding)
            target = target_on_ray(connected, order)
            produce = on_ray(connected, order, target)
        else:
            threads = settings.threads or None
            backend = load_backend(checkpoint, dtype=settings.dtype, kv_budget_tokens=1100 * width, threads=threads)
            target, produce = backend.info, in_process(backend, decoding)
        bars = stack.enter_context(progress_bars())
        task = bars.add_task("conversations", total=None)

        def progress(done: int, planned: int, tokens: int) -> None:
            bars.update(task, completed=done, total=planned, description=f"conversations, {tokens} answer tokens")

        dataset = build(
            lambda identity: Dataset(directory, identity),
            target,
            produce,
            CheckpointTokenizer(checkpoint),
            texts,
            [text for path in evaluation or () for row in _rows(path) for text in _strings(row)],
            DataPlan(rounds=rounds, seed=seed, taps=DATA_TAPS, command=command_line()),
            progress=progress,
            domains=domains,
        )
    err.print(f"{len(dataset.names())} conversations in {directory}, digest {dataset.digest}")


@app.command()
def head(
    family: Annotated[str, typer.Argument(help="eagle, eagle3, medusa, medusa-own, hydra, hydra++ or clover.")],
    out: Annotated[Path, typer.Argument(help="Directory of the package; an interrupted run is continued.")],
    data: Annotated[list[Path], typer.Option(help="Data sets made by `draftproof train data`.")],
    tokens: Annotated[int, typer.Option(min=1, help="Labels to train on, repeats counted.")] = 500_000,
    vocabulary: Annotated[int, typer.Option(min=2, help="Tokens of the draft vocabulary.")] = 4096,
    depth: Annotated[int, typer.Option(min=0, help="Heads, or steps of training-time test; 0: the family's.")] = 0,
    inner: Annotated[int, typer.Option(min=0, help="Width of the decoder layer's MLP; 0: the target's.")] = 0,
    taps: Annotated[str, typer.Option(help="Hidden rows that eagle3 reads, separated by commas.")] = "",
    batch: Annotated[int, typer.Option(min=1, help="Labels of a step.")] = 512,
    rate: Annotated[float, typer.Option(min=0.0, help="Learning rate; 0: the family's.")] = 0.0,
    prompts: Annotated[
        bool, typer.Option("--prompts", help="Labels in the prompts too, not in answers alone.")
    ] = False,
    noise: Annotated[float, typer.Option(min=0.0, help="Noise on eagle's hidden rows, a share of their size.")] = 0.0,
    own: Annotated[
        bool, typer.Option("--own", help="Labels of eagle outside the vocabulary, too, that their text has before.")
    ] = False,
    start: Annotated[Path | None, typer.Option(help="A package of the same sizes to go on from.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of initial weights and order.")] = 0,
    threads: Annotated[int, typer.Option(min=0, help="Threads of torch; 0: its own choice.")] = 0,
    ray: Ray = "",
    workers: Workers = 0,
) -> None:
    """Train a draft head for the model of the settings; write its package, figures.csv and plots.

    Example: draftproof train head eagle3 .cache/heads/eagle3 --data .cache/data --tokens 500000
    """
    import torch

    from proposer.training.dataset import Dataset
    from proposer.training.loop import Recipe
    from proposer.training.recipes import recipe_of
    from proposer.training.run import HeadPlan, train_head
    from services.checkpoint_files import eos_ids, model_name
    from services.cli.console import err, fetch_model

    check_workers(ray, workers)
    settings = load(VerifierSettings)
    if threads:
        torch.set_num_threads(threads)
    read = tuple(filter(None, taps.split(",")))
    chosen = recipe_of(family, depth=depth, inner=inner, taps=read, noise=noise, own=own)
    checkpoint = fetch_model(settings.model, settings.models_dir)
    recipe = Recipe(token_budget=tokens, batch_tokens=batch, learning_rate=rate or chosen.learning_rate, seed=seed)
    with ExitStack() as stack:
        last = train_head(
            HeadPlan(chosen, vocabulary, recipe, prompts=prompts, start=start),
            [Dataset(path) for path in data],
            checkpoint,
            out,
            target_name=model_name(settings.model),
            eos_ids=eos_ids(checkpoint),
            command=command_line(),
            reports=stack.enter_context(reports_of(family, tokens)),
            gradients_of=steps_over(stack, ray, workers),
        )
    err.print(
        f"{family}: budget {tokens}, loss {last.loss:.4f}, about {last.expected_tokens:.2f} tokens a greedy chain"
    )


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
