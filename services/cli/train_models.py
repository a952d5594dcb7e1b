"""`draftproof train medusa2|backbone|draft`: training that changes or copies the target's own layers."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from services.cli.train_cluster import Ray, Workers, check_workers, steps_over
from services.cli.train_reports import command_line, reports_of
from services.settings import VerifierSettings, load

Data = Annotated[list[Path], typer.Option(help="Data sets made by `draftproof train data`.")]
Tokens = Annotated[int, typer.Option(min=1, help="Labels to train on, repeats counted.")]
Batch = Annotated[int, typer.Option(min=1, help="Labels of a step.")]
Seed = Annotated[int, typer.Option(help="Seed of initial weights and order.")]
Threads = Annotated[int, typer.Option(min=0, help="Threads of torch; 0: its own choice.")]
Vocabulary = Annotated[int, typer.Option(min=2, help="Tokens of the draft vocabulary.")]


def medusa2(
    out: Annotated[Path, typer.Argument(help="Directory of the package; an interrupted run is continued.")],
    data: Data,
    tokens: Tokens = 200_000,
    vocabulary: Vocabulary = 4096,
    depth: Annotated[int, typer.Option(min=1, help="Heads.")] = 4,
    rank: Annotated[int, typer.Option(min=1, help="Rank of the backbone's adapter.")] = 8,
    direct: Annotated[
        bool, typer.Option("--direct", help="Keep the text's own tokens, not the teacher's law.")
    ] = False,
    warm_up: Annotated[int, typer.Option(min=0, help="Batches of the first stage, heads alone.")] = 50,
    backbone_rate: Annotated[float, typer.Option(help="Learning rate of the adapter, a share of the heads'.")] = 0.25,
    heads_weight: Annotated[float, typer.Option(help="Weight of the heads' loss beside the backbone's.")] = 0.2,
    batch: Batch = 512,
    rate: Annotated[float, typer.Option(min=0.0, help="Learning rate of the heads.")] = 1e-3,
    seed: Seed = 0,
    threads: Threads = 0,
    ray: Ray = "",
    workers: Workers = 0,
) -> None:
    """Train Medusa's heads together with a low-rank adapter of the backbone; the package carries both.

    Example: draftproof train medusa2 .cache/heads/medusa2 --data .cache/data --tokens 200000
    """
    import torch

    from proposer.training.dataset import Dataset
    from proposer.training.loop import Recipe
    from proposer.training.medusa2 import Medusa2Recipe
    from proposer.training.recipes import recipe_of
    from proposer.training.run import HeadPlan
    from proposer.training.run_medusa2 import Medusa2Plan, train_medusa2
    from services.checkpoint_files import eos_ids, model_name
    from services.cli.console import err, fetch_model

    check_workers(ray, workers)
    family = recipe_of("medusa", depth=depth)
    settings = load(VerifierSettings)
    if threads:
        torch.set_num_threads(threads)
    joint = Medusa2Recipe(backbone_rate=backbone_rate, heads_weight=heads_weight, warm_up=warm_up, distil=not direct)
    recipe = Recipe(token_budget=tokens, batch_tokens=batch, learning_rate=rate, seed=seed)
    checkpoint = fetch_model(settings.model, settings.models_dir)
    with ExitStack() as stack:
        last = train_medusa2(
            Medusa2Plan(HeadPlan(family, vocabulary, recipe), joint, rank),
            [Dataset(path) for path in data],
            checkpoint,
            out,
            target_name=model_name(settings.model),
            eos_ids=eos_ids(checkpoint),
            command=command_line(),
            reports=stack.enter_context(reports_of("medusa2", tokens)),
            gradients_of=steps_over(stack, ray, workers),
        )
    err.print(f"medusa2: budget {tokens}, loss {last.loss:.4f}; serve it by `draftproof train backbone`")


def backbone(
    package: Annotated[Path, typer.Argument(help="A package made by `draftproof train medusa2`.")],
    out: Annotated[Path, typer.Argument(help="Where the merged target and the heads bound to it go.")],
) -> None:
    """Merge a Medusa-2 package's adapter into a target of its own: OUT/target, and OUT/head bound to it.

    Example: draftproof train backbone .cache/heads/medusa2 .cache/medusa2
    """
    from proposer.training.run_medusa2 import HEAD, TARGET, bind
    from services.checkpoint_files import eos_ids
    from services.cli.console import err, fetch_model

    settings = load(VerifierSettings)
    checkpoint = fetch_model(settings.model, settings.models_dir)
    bind(package, checkpoint, out, eos_ids=eos_ids(checkpoint))
    err.print(f"{out / TARGET} is the target (DRAFTPROOF_MODEL), {out / HEAD} its heads")


def draft(
    out: Annotated[Path, typer.Argument(help="Directory of the checkpoint; an interrupted run is continued.")],
    data: Data,
    layers: Annotated[str, typer.Option(help="Layers of the target that the draft keeps, separated by commas.")],
    tokens: Tokens = 200_000,
    vocabulary: Annotated[int, typer.Option(min=2, help="Frequent tokens that the loss is taken over.")] = 6144,
    prompts: Annotated[bool, typer.Option(help="Labels in the prompts too, not in answers alone.")] = True,
    batch: Batch = 512,
    rate: Annotated[float, typer.Option(min=0.0, help="Learning rate.")] = 3e-4,
    seed: Seed = 0,
    threads: Threads = 0,
    ray: Ray = "",
    workers: Workers = 0,
) -> None:
    """Distil a small draft model out of some of the target's layers; OUT is an ordinary checkpoint (DRAFTPROOF_DRAFT_MODEL).

    Example: draftproof train draft .cache/draft --data .cache/data --layers 0,1,2,15,28,29
    """
    import torch

    from contracts.errors import InvalidArgument
    from proposer.training.dataset import Dataset
    from proposer.training.loop import Recipe
    from proposer.training.run_draft import DraftPlan, train_draft
    from services.checkpoint_files import eos_ids
    from services.cli.console import err, fetch_model

    check_workers(ray, workers)
    settings = load(VerifierSettings)
    if threads:
        torch.set_num_threads(threads)
    try:
        chosen = tuple(int(layer) for layer in layers.split(","))
    except ValueError:
        raise InvalidArgument("layers", f"{layers!r} is no list of numbers separated by commas") from None
    recipe = Recipe(token_budget=tokens, batch_tokens=batch, learning_rate=rate, seed=seed)
    checkpoint = fetch_model(settings.model, settings.models_dir)
    with ExitStack() as stack:
        last = train_draft(
            DraftPlan(chosen, vocabulary, recipe, prompts),
            [Dataset(path) for path in data],
            checkpoint,
            out,
            eos_ids=eos_ids(checkpoint),
            command=command_line(),
            reports=stack.enter_context(reports_of("draft", tokens)),
            gradients_of=steps_over(stack, ray, workers),
        )
    err.print(f"draft of layers {layers}: budget {tokens}, loss {last.loss:.4f}, next token {last.held_out[0]:.3f}")
