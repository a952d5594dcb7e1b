"""Generate, end to end: identity with Transformers, speed against no speculation, and the pipeline's own overhead.

    python -m benchmarks.generate [--quick] [--json FILE]

Services run as separate processes on the default model (converted from a Q4_1 file). Identity phases run several prompts
at once; speed phases run one at a time, the ways interleaved prompt by prompt, Transformers among them.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.figures import ratio_of_totals, write
from benchmarks.identity import References, first_difference, judge
from benchmarks.peers.client import Peer, transformers_peer
from benchmarks.prompts import edit_prompts, spec_bench_prompts
from benchmarks.runs import MODES, Outcome, generate, generate_all, greedy
from benchmarks.stacks import Serving, checkpoint_directory, serving
from contracts.sampling import SamplingPolicy
from models.load import load_backend
from services.text import CheckpointTokenizer

Figures = dict[str, float | int | str | bool]
CONCURRENCY = 8
_TRANSFORMERS_LOOKUP_TOKENS = 10


@dataclass(frozen=True)
class Plan:
    """How much to run."""

    edit: int
    spec: int
    seeded: int
    peer: int
    max_tokens: int


FULL = Plan(edit=40, spec=80, seeded=40, peer=12, max_tokens=128)
QUICK = Plan(edit=3, spec=3, seeded=2, peer=2, max_tokens=32)


class Benchmark:
    """State of one run: prompts as ids, the plan, where progress goes."""

    def __init__(self, plan: Plan, cache: Path, progress: Progress) -> None:
        self.plan, self.cache, self.progress = plan, cache, progress
        self.checkpoint = checkpoint_directory(cache)
        tokenizer = CheckpointTokenizer(self.checkpoint)
        self.edit = [tokenizer.encode_chat(prompt.messages) for prompt in edit_prompts(plan.edit)]
        self.spec = [tokenizer.encode_chat(prompt.messages) for prompt in spec_bench_prompts(plan.spec)]
        self.all = self.edit + self.spec
        self.figures: Figures = {"checkpoint": "SmolLM2-135M-Instruct, from a Q4_1 file"}

    async def outcomes(
        self, on: Serving, name: str, prompts: Sequence[Sequence[int]], mode: str, policy: SamplingPolicy
    ) -> list[Outcome]:
        """All prompts in one mode, with a progress bar."""
        task = self.progress.add_task(f"{name}: {mode}", total=len(prompts))
        return await generate_all(
            on.client, prompts, mode, policy, concurrency=CONCURRENCY, done=lambda: self.progress.advance(task)
        )

    async def identity_fp32(self) -> None:
        """Greedy fp32 against Transformers, and seeded sampling with speculation against without.

        Under the fixed budget, which verifies more candidates than the adaptive one and so has more to go wrong.
        """
        self.figures["prompts"] = len(self.all)
        async with serving("float32", self.cache, self.progress, budget="fixed") as on:
            policy = greedy(self.plan.max_tokens)
            found = {mode: await self.outcomes(on, "identity fp32", self.all, mode, policy) for mode in MODES}
            seeded = SamplingPolicy(temperature=0.8, top_p=0.95, seed=20_26, max_tokens=self.plan.max_tokens)
            prompts = self.all[:: max(1, len(self.all) // self.plan.seeded)][: self.plan.seeded]
            plain = await self.outcomes(on, "seeded fp32", prompts, "off", seeded)
            for mode in ("lookup", "both"):
                drawn = await self.outcomes(on, "seeded fp32", prompts, mode, seeded)
                same = sum(a.tokens == b.tokens for a, b in zip(plain, drawn, strict=True))
                self.figures[f"seeded_identical_fp32_{mode}"] = same / len(prompts)
        self.figures["seeded_identical_fp32"] = min(
            float(self.figures["seeded_identical_fp32_lookup"]), float(self.figures["seeded_identical_fp32_both"])
        )
        self._judge(found)

    def _judge(self, found: dict[str, list[Outcome]]) -> None:
        references = References(self.checkpoint, self.cache / "references", self.plan.max_tokens)
        backend = load_backend(self.checkpoint, dtype="float32", kv_budget_tokens=8192)
        excused = 0
        with ExitStack() as stack:
            peers: list[Peer] = []

            def peer() -> Peer:
                if not peers:
                    peers.append(stack.enter_context(transformers_peer(self.checkpoint, "float32")))
                return peers[0]

            task = self.progress.add_task("Transformers fp32", total=len(self.all))
            theirs = []
            for prompt in self.all:
                theirs.append(references.tokens(peer, prompt))
                self.progress.advance(task)
            shares = []
            for mode, outcomes in found.items():
                good = 0
                for prompt, ours, reference in zip(self.all, outcomes, theirs, strict=True):
                    parting = (
                        None if ours.tokens == reference else judge(backend, peer(), prompt, ours.tokens, reference)
                    )
                    good += parting is None or parting.excused
                    excused += parting is not None and parting.excused
                shares.append(good / len(self.all))
                self.figures[f"identical_fp32_{mode}"] = shares[-1]
        self.figures["identical_fp32"] = min(shares)
        self.figures["identical_fp32_excused"] = excused

    async def bf16(self) -> None:
        """Speed on edit prompts beside Transformers, overhead of rounds, identity with our own plain output."""
        self.figures["prompts"] = len(self.all)
        policy = greedy(self.plan.max_tokens)
        async with serving("bfloat16", self.cache, self.progress) as on:
            with transformers_peer(self.checkpoint, "bfloat16") as peer:
                ours, plain, assisted = await self._speed(on, peer, policy)
            self._speed_figures(ours)
            self._peer_figures(ours, {"transformers": plain, "transformers_lookup": assisted})
            others = {
                mode: ours[mode] + await self.outcomes(on, "identity bf16", self.spec, mode, policy) for mode in MODES
            }
        partings = []
        for mode in ("lookup", "retrieval", "both"):
            same = 0
            for a, b in zip(others["off"], others[mode], strict=True):
                at = first_difference(a.tokens, b.tokens)
                same += at is None
                partings += [] if at is None else [at]
            self.figures[f"identical_bf16_{mode}"] = same / len(self.all)
        self.figures["identical_bf16"] = min(float(self.figures[f"identical_bf16_{m}"]) for m in MODES if m != "off")
        self.figures["bf16_partings"] = len(partings)
        self.figures["bf16_first_parting"] = min(partings) if partings else -1

    async def speed(self) -> None:
        """Only what our own services take on edit prompts, with nothing loaded beside them."""
        self.figures["editeval_prompts"] = len(self.edit)
        async with serving("bfloat16", self.cache, self.progress) as on:
            ours, _, _ = await self._speed(on, None, greedy(self.plan.max_tokens))
        self._speed_figures(ours)
        same = [
            sum(a.tokens == b.tokens for a, b in zip(ours["off"], ours[mode], strict=True)) / len(self.edit)
            for mode in MODES
        ]
        self.figures["editeval_identical_bf16"] = min(same)

    async def _speed(
        self, on: Serving, peer: Peer | None, policy: SamplingPolicy
    ) -> tuple[dict[str, list[Outcome]], list[tuple[float, float]], list[tuple[float, float]]]:
        await generate(on.client, self.edit[0], "both", policy, cache_salt="warm-up")
        ours: dict[str, list[Outcome]] = {mode: [] for mode in MODES}
        plain: list[tuple[float, float]] = []
        assisted: list[tuple[float, float]] = []
        task = self.progress.add_task(
            f"speed on edit prompts, bf16{', interleaved with Transformers' if peer else ''}", total=len(self.edit)
        )
        for index, prompt in enumerate(self.edit):
            for mode in MODES:
                ours[mode].append(await generate(on.client, prompt, mode, policy))
            for rows, lookup in ((plain, 0), (assisted, _TRANSFORMERS_LOOKUP_TOKENS)):
                if peer is None or index >= self.plan.peer:
                    break
                answer = await asyncio.to_thread(peer.generate, prompt, policy.max_tokens, lookup)
                rows.append((len(answer["tokens"]), answer["seconds"]))
            self.progress.advance(task)
        return ours, plain, assisted

    def _speed_figures(self, ours: dict[str, list[Outcome]]) -> None:
        speeds = _speeds(ours)
        for mode in ("lookup", "retrieval", "both"):
            value, low, high = ratio_of_totals(speeds[mode], speeds["off"])
            self.figures[f"editeval_{mode}_speedup"] = value
            self.figures[f"editeval_{mode}_speedup_low"] = low
            self.figures[f"editeval_{mode}_speedup_high"] = high
        for mode, outcomes in ours.items():
            rounds = sum(o.ledger.rounds for o in outcomes)
            self.figures[f"editeval_{mode}_tokens_per_round"] = sum(o.ledger.committed for o in outcomes) / rounds
            self.figures[f"editeval_{mode}_tokens_per_s"] = _per_second(speeds[mode])
        overheads = {
            mode: np.array([r.overhead_us for o in outcomes for r in o.rounds]) / 1e3 for mode, outcomes in ours.items()
        }
        for mode, values in overheads.items():
            for share in (50, 99):
                self.figures[f"overhead_p{share}_ms_{mode}"] = float(np.percentile(values, share))
        # The worst mode is the figure: what a round costs beside target forward, selection and proposal compute.
        for share in (50, 99):
            self.figures[f"overhead_p{share}_ms"] = max(float(self.figures[f"overhead_p{share}_ms_{m}"]) for m in MODES)

    def _peer_figures(self, ours: dict[str, list[Outcome]], theirs: dict[str, list[tuple[float, float]]]) -> None:
        speeds = _speeds(ours)
        peer = len(theirs["transformers"])
        self.figures["editeval_peer_prompts"] = peer
        for name, pairs in theirs.items():
            self.figures[f"editeval_{name}_tokens_per_s"] = _per_second(pairs)
        for name, mode, other in (
            ("lookup_over_transformers_lookup", "lookup", "transformers_lookup"),
            ("off_over_transformers", "off", "transformers"),
        ):
            self.figures[f"editeval_{name}"] = ratio_of_totals(speeds[mode][:peer], theirs[other])[0]


def _speeds(ours: dict[str, list[Outcome]]) -> dict[str, list[tuple[float, float]]]:
    return {mode: [(len(o.tokens), o.seconds) for o in outcomes] for mode, outcomes in ours.items()}


def _per_second(pairs: list[tuple[float, float]]) -> float:
    return sum(tokens for tokens, _ in pairs) / sum(seconds for _, seconds in pairs)


async def run(plan: Plan, phases: Sequence[str], cache: Path, path: Path | None) -> None:
    """The phases asked for; figures are written after each, so that a cut run leaves what it measured."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        benchmark = Benchmark(plan, cache, progress)
        if "speed" in phases:
            await benchmark.speed()
        if "bf16" in phases:
            await benchmark.bf16()
            write(benchmark.figures, path, console, "Generate, bf16")
        if "fp32" in phases:
            await benchmark.identity_fp32()
    write(benchmark.figures, path, Console(), "Generate")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few short prompts, under two minutes")
    parser.add_argument(
        "--phase",
        choices=["bf16", "fp32", "speed"],
        help="one phase only: speed with peers and identity in bf16, identity in fp32, or our own speed alone",
    )
    parser.add_argument("--json", type=Path, help="where to write the figures as one flat object")
    parser.add_argument("--cache", type=Path, default=Path(".cache"), help="models, index and references")
    arguments = parser.parse_args()
    phases = [arguments.phase] if arguments.phase else ["bf16", "fp32"]
    asyncio.run(run(QUICK if arguments.quick else FULL, phases, arguments.cache, arguments.json))


if __name__ == "__main__":
    main()
