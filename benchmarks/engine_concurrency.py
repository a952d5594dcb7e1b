"""Phase `concurrency`: closed loops of 1 to 16 requests, ours without speculation, fixed and adaptive, and a peer's
batching.

A *burst* is 2c requests, c at a time, of the same prompts in every way; the ways of a burst follow one another at once, in
an order that turns, so bursts are paired. Fixed and adaptive budgets are two stacks, of which one idles. Sources are the
default ones.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.progress import Progress

from benchmarks.engine_load import Others
from benchmarks.engine_prompts import concurrent_prompts
from benchmarks.engine_records import Records
from benchmarks.figures import ratio_of_totals
from benchmarks.peers.engines import BATCHING, start
from benchmarks.runs import Outcome, generate_all, greedy
from benchmarks.stacks import checkpoint_directory, serving
from services.clients.generate import GenerateClient
from services.text import CheckpointTokenizer

LEVELS = (1, 2, 4, 8, 16)
OURS = ("off", "fixed", "adaptive")


@dataclass(frozen=True)
class ConcurrencyPlan:
    """bursts: by level. max_tokens: of a request."""

    bursts: dict[int, int]
    max_tokens: int


async def measure(records: Records, plan: ConcurrencyPlan, cache: Path, progress: Progress) -> dict[str, str]:
    """Adds one unit per level and burst: {"way": {"tokens", "seconds", ...}}. Returns why peers are missing, by peer."""
    # Levels in turn, so that a cut run has some of each and drift is spread.
    keys = [(level, burst) for burst in range(max(plan.bursts.values())) for level in LEVELS]
    keys = [(level, burst) for level, burst in keys if burst < plan.bursts.get(level, 0)]
    task = progress.add_task("concurrency, bursts", total=len(keys))
    if not any(records.wants(_key(*key)) for key in keys):
        return {}
    checkpoint = checkpoint_directory(cache)
    tokenizer = CheckpointTokenizer(checkpoint)
    prompts = [tokenizer.encode_chat(prompt.messages) for prompt in concurrent_prompts()]
    async with AsyncExitStack() as stack:
        peers, missing = start(BATCHING, checkpoint, cache / "peers", stack.enter_context(ExitStack()))
        clients: dict[str, GenerateClient] = {}
        for budget in ("fixed", "adaptive"):
            clients[budget] = (
                await stack.enter_async_context(serving("bfloat16", cache, progress, budget=budget))
            ).client
        clients["off"] = clients["adaptive"]
        ways = [*OURS, *peers]

        async def run(way: str, chosen: Sequence[Sequence[int]], level: int, name: str, max_tokens: int) -> Any:
            if way in peers:
                answer = peers[way].batch(chosen, max_tokens, level)
                return {"tokens": sum(len(tokens) for tokens in answer["tokens"]), "seconds": answer["seconds"]}
            mode = "off" if way == "off" else "both"
            started = time.perf_counter()
            outcomes = await generate_all(
                clients[way],
                chosen,
                mode,
                greedy(max_tokens),
                concurrency=level,
                done=lambda: None,
                salt=f"{name}-{way}",
            )
            return _unit(outcomes, time.perf_counter() - started)

        for way in ways:
            await run(way, prompts[:4], 4, "warm", 24)
        records.begin()
        for level, burst in keys:
            if records.wants(_key(level, burst)):
                at = burst * 2 * level
                chosen = [prompts[(at + index) % len(prompts)] for index in range(2 * level)]
                turn = burst % len(ways)
                others = Others()
                unit: dict[str, Any] = {}
                for way in (*ways[turn:], *ways[:turn]):
                    unit[way] = await run(way, chosen, level, f"{level}-{burst}", plan.max_tokens)
                records.add(_key(level, burst), {**unit, "others": others.share()})
            progress.advance(task)
    return missing


def _key(level: int, burst: int) -> str:
    return f"concurrency/{level:02}/{burst:03}"


def _unit(outcomes: Sequence[Outcome], seconds: float) -> dict[str, float]:
    rounds = [ledger for outcome in outcomes for ledger in outcome.rounds]
    return {
        "tokens": sum(len(outcome.tokens) for outcome in outcomes),
        "seconds": seconds,
        "rounds": len(rounds),
        "candidates": sum(ledger.candidates for ledger in rounds),
        "accepted": sum(ledger.accepted for ledger in rounds),
        "round_ms": statistics.mean(ledger.total_us for ledger in rounds) / 1e3,
    }


def figures(records: Records) -> dict[str, float | int | str | bool]:
    """Tokens a second by level and way; adaptive over the better of off and fixed, least over levels; ours over the peer."""
    out: dict[str, float | int | str | bool] = {}
    least: tuple[float, float, float] | None = None
    for level in LEVELS:
        units = records.of(f"concurrency/{level:02}/")
        if not units:
            continue
        out[f"conc{level}_others_share"] = statistics.mean(unit["others"] for unit in units)
        ways = [way for way in units[0] if way != "others" and all(way in unit for unit in units)]
        pairs = {way: [(unit[way]["tokens"], unit[way]["seconds"]) for unit in units] for way in ways}
        speeds = {
            way: sum(tokens for tokens, _ in values) / sum(seconds for _, seconds in values)
            for way, values in pairs.items()
        }
        out[f"conc{level}_bursts"] = len(units)
        for way, speed in speeds.items():
            out[f"conc{level}_{way}_tokens_per_s"] = speed
            if way in OURS:
                total = {name: sum(unit[way][name] for unit in units) for name in ("tokens", "rounds", "candidates")}
                out[f"conc{level}_{way}_tokens_per_round"] = total["tokens"] / total["rounds"]
                out[f"conc{level}_{way}_candidates_per_round"] = total["candidates"] / total["rounds"]
        better = max(("off", "fixed"), key=lambda way: speeds[way])
        out[f"conc{level}_better"] = better
        found = ratio_of_totals(pairs["adaptive"], pairs[better])
        least = found if least is None else min(least, found)
        _put(out, f"adaptive_over_best_conc{level}", found)
        for way in ways:
            if way not in OURS:
                _put(out, f"vs_{way}_conc{level}", ratio_of_totals(pairs["adaptive"], pairs[way]))
    if least is not None:
        _put(out, "adaptive_over_best", least)
    if "vs_openvino_batching_conc8" in out:
        out["vs_peer_conc8"] = out["vs_openvino_batching_conc8"]
    return out


def _put(out: dict[str, float | int | str | bool], name: str, found: tuple[float, float, float]) -> None:
    out[name], out[f"{name}_low"], out[f"{name}_high"] = found
