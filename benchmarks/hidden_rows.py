"""What a round pays for the target's hidden rows: reading them in the pass, carrying them to a head, exporting a prompt's.

    python -m benchmarks.hidden_rows --head DIRECTORY [--rounds N] [--json FILE]

Verifier and proposer run as processes on the default model. Two sessions say the same text from the same candidates, round
by round in turn: one bound to prompt lookup, one to the head. Added times are medians of paired differences; a call's
overhead is its wall time less what its service says it computed. A third session asks the head for nothing and without rows:
its overhead is a call to a source with a thread of its own. Over links, then over gRPC.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import numpy as np
from rich.console import Console

from benchmarks.figures import write
from benchmarks.prompts import spec_bench_prompts
from benchmarks.stacks import checkpoint_directory
from contracts.capability import SourceDescription
from contracts.frontier import Frontier
from contracts.graph import merge_by_full_prefix
from contracts.hidden import HiddenRows, joined
from contracts.manifest import Manifest, RoundManifest, SourcePlan
from contracts.payload import payload_digest
from contracts.ports import OpenSession, ProposeRequest, VerifyRequest
from contracts.proposal import Proposal
from contracts.receipt import Receipt
from contracts.sampling import SamplingPolicy
from services.clients.proposer import ProposerClient
from services.clients.verifier import VerifierClient
from services.link.address import link_to
from services.settings import AllSettings, load
from services.stack import running_stack
from services.text import CheckpointTokenizer

T = TypeVar("T")
NODES, DEPTH = 8, 4
_PORTS = {f"{name}_port": 0 for name in ("verifier", "proposer", "retriever", "orchestrator", "redis")}


async def timed(call: Awaitable[T]) -> tuple[T, float]:
    """The answer and its wall time in milliseconds."""
    started = time.perf_counter()
    answer = await call
    return answer, 1e3 * (time.perf_counter() - started)


class Asking:
    """One session bound to one source."""

    def __init__(
        self, verifier: VerifierClient, proposer: ProposerClient, source: SourceDescription, name: str
    ) -> None:
        self.verifier, self.proposer, self.source, self.name = verifier, proposer, source, name
        self.generation = self.round_id = 0

    async def open(self, prompt: list[int], policy: SamplingPolicy) -> None:
        target = (await self.verifier.describe()).target
        self.policy, self.frontier = policy, Frontier(prompt)
        self.manifest = Manifest(target, policy.to_json(), (self.source,), "greedy", "exact", NODES, DEPTH)
        await self.verifier.open_session(OpenSession(self.name, self.manifest, policy, self.frontier.tokens))
        await self.proposer.open_session(self.name, self.manifest)
        self.rows: HiddenRows | None = None

    def coordinates(self) -> RoundManifest:
        frontier = self.frontier
        plan = (SourcePlan(self.source.name, NODES, DEPTH),)
        here = (self.manifest.hash, self.name, self.round_id, len(frontier), frontier.digest, self.generation, plan)
        return RoundManifest(*here)

    async def export(self) -> tuple[int, float]:
        """Fetches the prompt's rows; their bytes and the time it took."""
        started, stop = time.perf_counter(), len(self.frontier) - 1
        parts: list[HiddenRows] = []
        while not parts or parts[-1].stop < stop:
            parts.append(await self.verifier.export_hidden(self.name, parts[-1].stop if parts else 0, stop))
        self.rows = joined(parts)
        return self.rows.count * self.rows.row_bytes, 1e3 * (time.perf_counter() - started)

    async def propose(self, nodes: int = NODES) -> tuple[Proposal, float]:
        hidden = None if self.rows is None else self.rows.only(self.source.taps)
        request = ProposeRequest(
            self.source.name, self.coordinates(), self.policy, self.frontier.tokens, nodes, DEPTH, hidden=hidden
        )
        return await timed(self.proposer.propose(request))

    async def verify(self, proposal: Proposal) -> tuple[Receipt, float]:
        coordinates = self.coordinates()
        graph = merge_by_full_prefix([replace(proposal, round_hash=coordinates.hash)], budget=NODES)
        request = VerifyRequest(coordinates, graph, payload_digest(coordinates, graph), self.round_id - 1)
        receipt, wall_ms = await timed(self.verifier.verify(request))
        self.frontier.publish(np.array(receipt.tokens))
        self.generation, self.round_id, self.rows = receipt.generation, self.round_id + 1, receipt.hidden
        return receipt, wall_ms

    async def close(self) -> None:
        await self.proposer.close_session(self.name)
        await self.verifier.close_session(self.name)


async def measure(
    verifier: VerifierClient, proposer: ProposerClient, prompts: list[list[int]], rounds: int, way: str
) -> dict[str, float | int | str | bool]:
    """Figures of one transport."""
    described = {source.name: source for source in await proposer.describe()}
    policy = SamplingPolicy(temperature=0.0, max_tokens=rounds * (DEPTH + 1) + 8, ignore_eos=True)
    wall: dict[str, list[float]] = {"plain": [], "taps": []}
    inside: dict[str, list[float]] = {"plain": [], "taps": []}
    around: dict[str, list[float]] = {"plain": [], "taps": [], "idle": []}
    sizes: list[int] = []
    exports: list[tuple[int, float]] = []
    for number, prompt in enumerate(prompts):
        pair = {
            "plain": Asking(verifier, proposer, described["prompt_lookup"], f"{way}-plain-{number}"),
            "taps": Asking(verifier, proposer, described["head"], f"{way}-taps-{number}"),
        }
        idle = Asking(verifier, proposer, described["head"], f"{way}-idle-{number}")
        for asking in (*pair.values(), idle):
            await asking.open(prompt, policy)
        exports.append(await pair["taps"].export())
        for turn in range(rounds):
            kinds = ("plain", "taps", "idle")
            offers = {}
            for kind in (*kinds[turn % 3 :], *kinds[: turn % 3]):
                offers[kind], wall_ms = await (idle.propose(0) if kind == "idle" else pair[kind].propose())
                if turn:
                    around[kind].append(wall_ms - offers[kind].cost.compute_us / 1e3)
            for kind in ("plain", "taps") if turn % 2 else ("taps", "plain"):
                receipt, wall_ms = await pair[kind].verify(offers["taps"])
                wall[kind].append(wall_ms)
                inside[kind].append(receipt.timings.total_us / 1e3)
                if receipt.hidden is not None:
                    sizes.append(receipt.hidden.count * receipt.hidden.row_bytes)
            idle.frontier.publish(np.array(receipt.tokens))
            assert np.array_equal(pair["plain"].frontier.tokens, pair["taps"].frontier.tokens)
        for asking in (*pair.values(), idle):
            await asking.close()

    def added(of: dict[str, list[float]]) -> float:
        return statistics.median(b - a for a, b in zip(of["plain"], of["taps"], strict=True))

    return {
        f"{way}_verify_ms": statistics.median(wall["plain"]),
        f"{way}_verify_added_ms": added(wall),
        f"{way}_verify_added_inside_ms": added(inside),
        f"{way}_verify_overhead_ms": statistics.median(wall["plain"]) - statistics.median(inside["plain"]),
        f"{way}_propose_overhead_inline_ms": statistics.median(around["plain"]),
        f"{way}_propose_overhead_thread_ms": statistics.median(around["idle"]),
        f"{way}_propose_overhead_rows_ms": statistics.median(around["taps"]),
        f"{way}_round_added_ms": added(wall) + statistics.median(around["taps"]) - statistics.median(around["idle"]),
        f"{way}_rows_bytes_per_round": statistics.median(sizes),
        f"{way}_export_prompt_bytes": statistics.median(size for size, _ in exports),
        f"{way}_export_prompt_ms": statistics.median(ms for _, ms in exports),
        f"{way}_rounds": len(wall["taps"]),
    }


async def run(head: Path, rounds: int) -> dict[str, float | int | str | bool]:
    cache = load(AllSettings).cache_dir
    tokenizer = CheckpointTokenizer(checkpoint_directory(cache))
    prompts = [tokenizer.encode_chat(prompt.messages) for prompt in spec_bench_prompts(4)]
    figures: dict[str, float | int | str | bool] = {}
    with tempfile.TemporaryDirectory(prefix="links-") as links:
        settings = load(AllSettings, cache_dir=cache, head=str(head), link_dir=links, **_PORTS)
        logs = cache / "benchmark-logs"
        logs.mkdir(parents=True, exist_ok=True)
        async with running_stack(settings, lambda *_: None, logs=logs, redis_dir="benchmark-redis") as stack:
            ends = {name: stack.endpoints[name] for name in ("verifier", "proposer")}
            for way in ("link", "grpc"):
                paths = {name: link_to(Path(links), name, end) if way == "link" else None for name, end in ends.items()}
                verifier = VerifierClient(ends["verifier"], link=paths["verifier"])
                proposer = ProposerClient(ends["proposer"], link=paths["proposer"])
                await measure(verifier, proposer, prompts[:1], 3, f"warm-{way}")
                figures |= await measure(verifier, proposer, prompts, rounds, way)
                await verifier.close()
                await proposer.close()
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--head", type=Path, required=True, help="a head package for the default model")
    parser.add_argument("--rounds", type=int, default=25, help="rounds a prompt")
    parser.add_argument("--json", type=Path, default=None)
    arguments = parser.parse_args()
    figures = asyncio.run(run(arguments.head.resolve(), arguments.rounds))
    write(figures, arguments.json, Console(), "hidden rows, per round")


if __name__ == "__main__":
    main()
