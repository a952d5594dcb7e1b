"""Trees of equal nodes over one drafter: the calibrated DP tree, a chain, a Cartesian tree, EAGLE-2's growth by value.

    python -m benchmarks.trees [--quick] [--json FILE] [--draft-model DIR] [--source NAME] [--nodes 4,8]

The drafter is calibrated on GSM8K's training questions and measured on Spec-Bench prompts, over the stack in one process,
the ways interleaved prompt by prompt. Of n candidates each: `dp` is the best tree over all depths by predicted time a token,
`dp_tokens` by expected tokens a round, whatever drafting costs; `chain` is n deep; `cartesian` is binary, cut to n;
`by_value` is EAGLE-2's, as deep as `dp`. Ratios are of wall time, and of CPU time where it says so, which is what a busy
machine leaves comparable (set DRAFTPROOF_THREADS=1 and DRAFTPROOF_DRAFT_THREADS=1 there). Without `--draft-model` the
drafter is the target with layers left out (benchmarks/trees_draft.py), which no tree makes faster than plain rounds: ratios
between trees are the figures then.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.figures import ratio_of_totals, write
from benchmarks.prompts import prompt_folder, spec_bench_prompts
from benchmarks.stacks import checkpoint_directory
from benchmarks.trees_draft import skipping_draft
from contracts.calibration import Calibration, CalibrationUse
from contracts.sampling import SamplingPolicy
from contracts.topology import SamplingRelation
from contracts.tree_shape import TreeShape, chain
from proposer.source import Source
from proposer.topology.acceptance import expected_tokens
from proposer.topology.calibrated import comb, plan_of
from proposer.topology.cartesian import cartesian
from proposer.topology.counting import with_root, without_root
from proposer.topology.plan import CalibratedTree, FixedTree, GrownByValue, TreePlan
from proposer.topology.sequoia import best_shape
from services.calibration.compare import PLAIN, Result, Way, best_of_size, compare
from services.calibration.drafts import Drafts
from services.calibration.measure import CONTEXT, Measuring, measure
from services.calibration.passes import ROWS, load_target, measure_passes
from services.calibration.plots import write_plots
from services.calibration.prompts import read_seed_prompts
from services.calibration.stack import local_stack
from services.settings import AllSettings, load
from services.text import CheckpointTokenizer

Figures = dict[str, float | int | str | bool]
Make = Callable[[TreePlan | GrownByValue, str], Source]
FAMILIES = ("dp", "dp_tokens", "chain", "cartesian", "by_value")


@dataclass(frozen=True)
class Plan:
    """How much to run."""

    calibrated: int
    prompts: int
    max_tokens: int
    repeats: int
    nodes: tuple[int, ...]
    temperatures: tuple[float, ...]


FULL = Plan(calibrated=24, prompts=12, max_tokens=64, repeats=1, nodes=(4, 8), temperatures=(0.0, 1.0))
QUICK = Plan(calibrated=4, prompts=2, max_tokens=24, repeats=1, nodes=(4,), temperatures=(0.0,))
RANKS, DEPTHS = 4, 6
_LONGEST_PROMPT = 768
# The best of ten sets by the agreement of the shortened model's argmax with the whole one's on GSM8K's training text: 0.52.
SKIPPED = frozenset(range(12, 16))


def draft_sources(settings: AllSettings) -> Make:
    """One loaded draft model under any tree."""
    drafts = Drafts(settings)
    return lambda tree, name: drafts.source(SamplingRelation.BEAM, tree, name=name)


# A source that takes a tree joins the comparison by one entry: its name, and how it is built from the settings.
SOURCES: Mapping[str, Callable[[AllSettings], Make]] = {"draft_model": draft_sources}


def shapes_of(plan: CalibratedTree, nodes: int) -> tuple[dict[str, TreeShape], int]:
    """The planned shapes of `nodes` candidates, and the depth that the DP chose."""
    found = best_of_size(plan, nodes)
    if found is None:
        raise SystemExit(f"no tree of {nodes} candidates within {plan.depth} levels of {RANKS}")
    dp, _ = found
    shapes = {
        "dp": dp,
        "dp_tokens": best_shape(plan.acceptance, with_root(nodes), min(plan.depth, nodes)),
        "chain": chain(nodes),
        "cartesian": cartesian((2,), nodes=nodes, depth=nodes),
    }
    return shapes, dp.max_depth


class Benchmark:
    """One run: settings, prompts as ids, where progress goes, figures."""

    def __init__(self, plan: Plan, settings: AllSettings, make: Make, progress: Progress, charts: Path) -> None:
        self.plan, self.settings, self.make, self.progress, self.charts = plan, settings, make, progress, charts
        tokenizer = CheckpointTokenizer(Path(settings.model))
        seeds = read_seed_prompts([prompt_folder() / "gsm8k_train.jsonl"], plan.calibrated)
        self.seed_files = seeds.files
        self.seeds = [tokenizer.encode_chat(messages) for messages in seeds.messages]
        encoded = (tokenizer.encode_chat(prompt.messages) for prompt in spec_bench_prompts(10_000))
        # Longer ones would make prefill most of the run; the questions are grouped by category, so take them evenly.
        short = [ids for ids in encoded if len(ids) <= _LONGEST_PROMPT]
        self.prompts = [short[index * len(short) // plan.prompts] for index in range(plan.prompts)]
        self.figures: Figures = {"prompts": len(self.prompts), "calibration_prompts": len(self.seeds)}

    async def run(self, done: Callable[[Figures], None]) -> None:
        """Times passes once, then calibrates and compares at each temperature; `done` gets the figures after each."""
        task = self.progress.add_task("t(n)", total=16)
        target = load_target(self.settings)
        rows = [n for n in ROWS if n <= 64]
        curve = measure_passes(target, rows, context=CONTEXT, done=lambda: self.progress.advance(task))
        del target
        for temperature in self.plan.temperatures:
            policy = SamplingPolicy(temperature=temperature, seed=20_26, max_tokens=self.plan.max_tokens)
            calibration = await self.calibrate(policy, curve)
            await self.compare(policy, calibration)
            ratios = [float(value) for name, value in self.figures.items() if name.endswith("_dp_over_best_rival")]
            self.figures["trees_dp_over_rivals_min"] = min(ratios)
            done(self.figures)

    async def calibrate(self, policy: SamplingPolicy, curve: tuple[tuple[int, int], ...]) -> Calibration:
        """Acceptance on the seed prompts."""
        task = self.progress.add_task(f"acceptance, T = {policy.temperature:g}", total=len(self.seeds))
        source = self.make(FixedTree(comb(RANKS, DEPTHS)), "calibrated")
        measuring = Measuring(
            "calibrated",
            DEPTHS,
            RANKS,
            policy,
            prompts=self.seed_files,
            made_on=datetime.now(UTC).date().isoformat(),
        )
        async with local_stack(self.settings, [source]) as stack:
            return await measure(stack, self.seeds, curve, measuring, done=lambda: self.progress.advance(task))

    async def compare(self, policy: SamplingPolicy, calibration: Calibration) -> None:
        """All families at all sizes, interleaved."""
        plan = plan_of(CalibrationUse(calibration))
        at = f"t{policy.temperature:g}"
        choice = plan.choice(plan.nodes, plan.depth)
        self.figures |= {
            f"{at}_acceptance_first": float(plan.acceptance[0, 0]),
            f"{at}_draft_level_over_step": plan.costs.draft_us / plan.costs.target.at(1),
            f"{at}_chosen_nodes": without_root(choice.nodes),
            f"{at}_chosen_depth": choice.depth,
            f"{at}_chosen_expected_speedup": choice.speedup,
        }
        shapes: dict[str, TreeShape] = {}
        ways: list[Way] = []
        sources: list[Source] = []
        for nodes in self.plan.nodes:
            planned, depth = shapes_of(plan, nodes)
            for family, shape in planned.items():
                shapes[f"{family}_{nodes}"] = shape
                ways.append(Way(f"{family}_{nodes}", nodes, shape.max_depth))
                sources.append(self.make(FixedTree(shape), f"{family}_{nodes}"))
            ways.append(Way(f"by_value_{nodes}", nodes, depth))
            sources.append(self.make(GrownByValue(top_k=RANKS, depth=depth), f"by_value_{nodes}"))
        total = self.plan.repeats * len(self.prompts) * (len(ways) + 1)
        task = self.progress.add_task(f"compare, T = {policy.temperature:g}", total=total)
        async with local_stack(self.settings, sources) as stack:
            results = await compare(
                stack,
                self.prompts,
                policy,
                ways,
                repeats=self.plan.repeats,
                done=lambda: self.progress.advance(task),
            )
        for nodes in self.plan.nodes:
            self._figures(f"{at}_n{nodes}", nodes, plan, shapes, results)
        self._identity(at, results)
        speedups = [
            (nodes, best[1].speedup, float(self.figures[f"{at}_n{nodes}_dp_speedup"]))
            for nodes in self.plan.nodes
            if (best := best_of_size(plan, nodes)) is not None
        ]
        write_plots(calibration, self.charts / at, speedups)

    def _figures(
        self,
        prefix: str,
        nodes: int,
        plan: CalibratedTree,
        shapes: Mapping[str, TreeShape],
        results: Mapping[str, Result],
    ) -> None:
        for family in FAMILIES:
            name = f"{family}_{nodes}"
            result = results[name]
            if result.failures:
                raise SystemExit(f"{name} was silent: {sorted(result.failures)}")
            speedup, low, high = ratio_of_totals(result.pairs, results[PLAIN].pairs)
            self.figures[f"{prefix}_{family}_tokens_per_round"] = result.tokens_per_round
            self.figures[f"{prefix}_{family}_speedup"] = speedup
            self.figures[f"{prefix}_{family}_speedup_low"] = low
            self.figures[f"{prefix}_{family}_speedup_high"] = high
            if (shape := shapes.get(name)) is not None:
                g = expected_tokens(shape, plan.acceptance)
                self.figures[f"{prefix}_{family}_shape"] = " ".join("".join(map(str, path)) for path in shape.paths)
                self.figures[f"{prefix}_{family}_depth"] = shape.max_depth
                self.figures[f"{prefix}_{family}_tokens_per_round_expected"] = g
                self.figures[f"{prefix}_{family}_speedup_expected"] = plan.costs.speedup(
                    g, with_root(nodes), shape.max_depth
                )
        rivals = []
        for family in ("chain", "cartesian"):
            ratio, low, high = ratio_of_totals(results[f"dp_{nodes}"].pairs, results[f"{family}_{nodes}"].pairs)
            self.figures[f"{prefix}_dp_over_{family}"] = ratio
            self.figures[f"{prefix}_dp_over_{family}_low"] = low
            self.figures[f"{prefix}_dp_over_{family}_high"] = high
            rivals.append(ratio)
            by_cpu, low, high = ratio_of_totals(
                results[f"dp_{nodes}"].cpu_pairs, results[f"{family}_{nodes}"].cpu_pairs
            )
            self.figures[f"{prefix}_dp_over_{family}_cpu_time"] = by_cpu
            self.figures[f"{prefix}_dp_over_{family}_cpu_time_low"] = low
            self.figures[f"{prefix}_dp_over_{family}_cpu_time_high"] = high
        self.figures[f"{prefix}_dp_over_best_rival"] = min(rivals)
        best_rival = max(results[f"{family}_{nodes}"].tokens_per_round for family in ("chain", "cartesian"))
        most = results[f"dp_tokens_{nodes}"].tokens_per_round
        self.figures[f"{prefix}_dp_tokens_over_best_rival_tokens"] = most / best_rival

    def _identity(self, at: str, results: Mapping[str, Result]) -> None:
        """How many texts equal the plain ones: greedy and membership promise all, up to the backend's row invariance."""
        plain = results[PLAIN].texts
        same = [text == plain[i] for result in results.values() for i, text in enumerate(result.texts)]
        self.figures[f"{at}_identical"] = sum(same) / len(same)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="under two minutes, for a look")
    parser.add_argument("--json", type=Path)
    parser.add_argument(
        "--draft-model", default="", help="a checkpoint folder; default: the target without some layers"
    )
    parser.add_argument("--source", default="draft_model", choices=sorted(SOURCES))
    parser.add_argument("--nodes", default="", help="sizes, separated by commas")
    parser.add_argument("--prompts", type=int, default=0, help="Spec-Bench prompts")
    parser.add_argument("--calibrated", type=int, default=0, help="GSM8K training questions")
    parser.add_argument("--max-tokens", type=int, default=0)
    parser.add_argument("--temperatures", default="", help="separated by commas")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--cache", type=Path, default=Path(".cache"))
    parser.add_argument("--charts", type=Path, default=Path("out/trees"))
    given = parser.parse_args()
    plan = QUICK if given.quick else FULL
    plan = Plan(
        given.calibrated or plan.calibrated,
        given.prompts or plan.prompts,
        given.max_tokens or plan.max_tokens,
        plan.repeats,
        tuple(int(n) for n in given.nodes.split(",")) if given.nodes else plan.nodes,
        tuple(float(t) for t in given.temperatures.split(",")) if given.temperatures else plan.temperatures,
    )
    checkpoint = checkpoint_directory(given.cache)
    draft = given.draft_model
    if not draft and given.source == "draft_model":
        draft = str(skipping_draft(checkpoint, given.cache / "models" / f"skipping-{len(SKIPPED)}", SKIPPED))
    settings = load(
        AllSettings,
        model=str(checkpoint),
        cache_dir=given.cache,
        dtype=given.dtype,
        draft_dtype=given.dtype,
        draft_model=draft,
        draft_kv_tokens=14_000,
        kv_tokens=8_000,
    )
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        benchmark = Benchmark(plan, settings, SOURCES[given.source](settings), progress, given.charts)
        benchmark.figures |= {"drafter": Path(draft).name if draft else given.source, "dtype": given.dtype}
        asyncio.run(benchmark.run(lambda figures: write(figures, given.json, console, "trees")))


if __name__ == "__main__":
    main()
