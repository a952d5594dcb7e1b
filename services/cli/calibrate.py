"""`draftproof calibrate`: measure what trees are shaped by, on this machine, and write it down."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from contracts.errors import InvalidArgument
from services.settings import AllSettings, load

DRAFT_MODEL, HEAD = "draft_model", "head"

if TYPE_CHECKING:
    from contracts.calibration import Calibration
    from contracts.topology import SamplingRelation
    from services.calibration.measure import Measuring
    from services.calibration.prompts import SeedPrompts


def calibrate(
    out: Annotated[Path, typer.Argument(help="The artifact to write.")],
    prompts: Annotated[
        list[Path], typer.Option("--prompts", help="JSON lines with a `question` each, or documentation. Repeatable.")
    ],
    draft_model: Annotated[str, typer.Option(help="Calibrate this draft model, named as DRAFTPROOF_MODEL is.")] = "",
    source: Annotated[
        str, typer.Option(help="draft_model, head, or another source of the settings, tree and all.")
    ] = DRAFT_MODEL,
    relation: Annotated[
        str, typer.Option(help="beam, shared_noise, without_replacement or independent; empty: beam.")
    ] = "",
    verifier: Annotated[str, typer.Option(help="Default: by temperature.")] = "",
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    top_p: Annotated[float, typer.Option(help="Nucleus mass; 1 is off.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Seed of the first prompt; the next ones count up.")] = 0,
    count: Annotated[int, typer.Option(min=1, help="Prompts.")] = 24,
    max_tokens: Annotated[int, typer.Option(min=2, help="Tokens a prompt.")] = 64,
    ranks: Annotated[int, typer.Option(min=1, max=64, help="Children tried below each node.")] = 4,
    depth: Annotated[int, typer.Option(min=1, max=16, help="Levels tried.")] = 6,
    rows: Annotated[int, typer.Option(min=2, max=513, help="Largest pass to time.")] = 64,
    plots: Annotated[Path | None, typer.Option(help="Folder for charts (SVG).")] = None,
    sizes: Annotated[int, typer.Option(min=0, help="With --plots: tree sizes whose speed-up is measured.")] = 4,
) -> None:
    """Measure acceptance by depth and rank, t(n) and the cost of drafting; choose the tree; write a hashed artifact.

    The source is calibrated as it is served: temperature, verifier and machine are part of what the artifact holds for.
    Calibrate on text like yours, never on what you evaluate by.

    Example:

      draftproof calibrate draft.json --draft-model ./my-draft --prompts gsm8k_train.jsonl --plots charts
    """
    from contracts.sampling import SamplingPolicy
    from contracts.topology import SamplingRelation
    from services.calibration.drafts import LARGEST
    from services.calibration.measure import Measuring
    from services.calibration.plots import write_plots
    from services.calibration.prompts import read_seed_prompts
    from services.cli.console import err

    drafted = source in (DRAFT_MODEL, HEAD)
    if not drafted and relation:
        raise InvalidArgument("relation", f"{relation!r}: {source} has the relation and tree of its settings")
    if draft_model and source != DRAFT_MODEL:
        raise InvalidArgument("draft_model", f"{draft_model!r} is not what --source {source} calibrates")
    relation = relation or SamplingRelation.BEAM
    if relation not in set(SamplingRelation):
        raise InvalidArgument("relation", f"{relation!r} is none of {', '.join(SamplingRelation)}")
    settings = load(AllSettings, **({"draft_model": draft_model} if draft_model else {}))
    most = min(settings.max_node_budget, LARGEST)
    if drafted and ranks * depth > most:
        raise InvalidArgument(
            "ranks",
            f"{ranks} ranks x {depth} levels (--ranks, --depth) are {ranks * depth} candidates, a round has at most {most} "
            "(DRAFTPROOF_MAX_NODE_BUDGET)",
        )
    # Those beyond `count` are for comparing expected with measured speed-up: not the prompts that were calibrated on.
    read = read_seed_prompts(prompts, count + max(2, count // 4))
    measuring = Measuring(
        source,
        depth,
        ranks,
        SamplingPolicy(temperature=temperature, top_p=top_p, seed=seed, max_tokens=max_tokens),
        verifier,
        node_budget=settings.max_node_budget,
        prompts=read.files,
        made_on=datetime.now(UTC).date().isoformat(),
    )
    calibration, speedups = _run(
        settings, measuring, SamplingRelation(relation), read, count, rows, sizes if plots is not None else 0
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_bytes(calibration.to_bytes())
    _report(calibration)
    for path in write_plots(calibration, plots, speedups) if plots is not None else ():
        err.print(f"chart: {path}")
    print(f"{out} {calibration.hash}")


def _run(
    settings: AllSettings,
    measuring: Measuring,
    relation: SamplingRelation,
    read: SeedPrompts,
    count: int,
    rows: int,
    sizes: int,
) -> tuple[Calibration, list[tuple[int, float, float]]]:
    """The calibration on the first `count` prompts, and (candidates, expected, measured speed-up) on the others."""
    from contracts.calibration import CalibrationUse
    from proposer.topology.calibrated import comb, plan_of
    from proposer.topology.plan import FixedTree
    from services.calibration.compare import PLAIN, Way, best_of_size, compare
    from services.calibration.drafts import Drafts
    from services.calibration.heads import Heads, hidden_of
    from services.calibration.measure import CONTEXT, measure
    from services.calibration.passes import ROWS, load_target, measure_passes
    from services.calibration.stack import local_stack
    from services.cli.console import fetch_model, progress_bars
    from services.text import CheckpointTokenizer

    checkpoint = fetch_model(settings.model, settings.models_dir)
    tokenizer = CheckpointTokenizer(checkpoint)
    encoded = [tokenizer.encode_chat(messages) for messages in read.messages]
    drafts: Drafts | Heads | None = None
    if measuring.source == DRAFT_MODEL:
        drafts = Drafts(settings)
    elif measuring.source == HEAD:
        drafts = Heads(settings)
        drafts.check_depth(measuring.depths)
    if drafts is not None:
        measuring = replace(measuring, drafter=drafts.digest, drafting=drafts.drafting)
    with progress_bars() as bars:
        passes = bars.add_task("t(n)", total=16)
        target = load_target(settings)
        timed = sorted({*(n for n in ROWS if n < rows), rows})
        curve = measure_passes(target, timed, context=CONTEXT, done=lambda: bars.advance(passes))
        del target
        acceptance = bars.add_task("acceptance", total=min(count, len(encoded)))

        async def calibrated() -> Calibration:
            tried = FixedTree(comb(measuring.ranks, measuring.depths))
            sources = None if drafts is None else [drafts.source(relation, tried, name=measuring.source)]
            async with local_stack(settings, sources, hidden=hidden_of(drafts)) as stack:
                return await measure(stack, encoded[:count], curve, measuring, done=lambda: bars.advance(acceptance))

        calibration = asyncio.run(calibrated())
        if drafts is None or not sizes or len(encoded) <= count:
            return calibration, []
        plan = plan_of(CalibrationUse(calibration))
        wanted = sorted({2, 4} | {max(1, plan.nodes * k // sizes) for k in range(1, sizes + 1)})
        found = [best for nodes in wanted if nodes <= plan.nodes and (best := best_of_size(plan, nodes)) is not None]
        ways = [Way(f"tree_{len(shape)}", len(shape), shape.max_depth) for shape, _ in found]
        speed = bars.add_task("speed-up", total=(len(encoded) - count) * (len(ways) + 1))

        async def compared() -> list[tuple[int, float, float]]:
            sources = [
                drafts.source(relation, FixedTree(shape), name=way.source)
                for way, (shape, _) in zip(ways, found, strict=True)
            ]
            async with local_stack(settings, sources, hidden=hidden_of(drafts)) as stack:
                results = await compare(
                    stack,
                    encoded[count:],
                    measuring.policy,
                    ways,
                    verifier=measuring.verifier,
                    done=lambda: bars.advance(speed),
                )
            plain = results[PLAIN].tokens_per_second
            return [
                (len(shape), choice.speedup, results[way.source].tokens_per_second / plain)
                for way, (shape, choice) in zip(ways, found, strict=True)
            ]

        return calibration, asyncio.run(compared())


def _report(calibration: Calibration) -> None:
    from rich.table import Table

    from contracts.calibration import CalibrationUse
    from proposer.topology.calibrated import costs_of, plan_of, rates
    from services.cli.console import err

    table = Table(title=f"selected child, {calibration.rounds} rounds, {calibration.verifier}")
    table.add_column("depth")
    for rank in range(len(calibration.trials[0])):
        table.add_column(f"rank {rank}", justify="right")
    table.add_column("reached", justify="right")
    for depth, row in enumerate(rates(calibration.trials, calibration.hits), start=1):
        table.add_row(str(depth), *(f"{value:.3f}" for value in row), str(calibration.trials[depth - 1][0]))
    err.print(table)
    costs = costs_of(calibration)
    err.print(
        f"t(1) {costs.target.at(1) / 1e3:.1f} ms, t({calibration.curve[-1][0]}) {calibration.curve[-1][1] / 1e6:.1f} ms, "
        f"drafting {costs.draft_us / 1e3:.1f} ms a level, overhead {costs.overhead_us / 1e3:.1f} ms a round"
    )
    plan = plan_of(CalibrationUse(calibration))
    choice = plan.choice(plan.nodes, plan.depth)
    err.print(
        f"chosen: {len(calibration.tree)} candidates, {choice.depth} deep, {choice.expected:.2f} tokens a round expected, "
        f"{choice.speedup:.2f}x plain rounds"
    )
