"""The shipped head end to end: tokens a second through the services, with and without it and prompt lookup, by category.

    python -m benchmarks.head_serving [--prompts N] [--tokens N] [--head PACKAGE] [--json FILE]

One stack, held-out Spec-Bench prompts, greedy, one request at a time; the ways take turns on every prompt, in an order that
turns too. One further prompt of each category goes before: what the budget learns of a head is of all text that was served,
and it has served none yet. Speed-ups compare sums of seconds over a category's prompts, prefill and all. Settings are tuned
on prompts behind those that figures are given of (`--skip`).
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.figures import write
from benchmarks.head_trajectories import CATEGORIES, category, held_out_prompts
from benchmarks.runs import greedy
from benchmarks.stacks import checkpoint_directory
from contracts.ledger import COMPONENTS, RoundLedger
from orchestrator.events import Chunk, Final
from orchestrator.request import GenerateRequest
from services.clients.generate import GenerateClient
from services.settings import DEFAULT_MODEL, AllSettings, load
from services.stack import running_stack
from services.text import CheckpointTokenizer

WAYS: dict[str, tuple[str, ...]] = {
    "off": (),
    "head": ("head",),
    "lookup": ("prompt_lookup",),
    "head_lookup": ("head", "prompt_lookup"),
}
_PORTS = {f"{name}_port": 0 for name in ("verifier", "proposer", "retriever", "orchestrator", "redis")}


@dataclass
class Rounds:
    """Sums over rounds of one kind."""

    count: int = 0
    committed: int = 0
    us: float = 0.0

    def add(self, ledger: RoundLedger) -> None:
        """One round."""
        self.count += 1
        self.committed += ledger.committed
        self.us += ledger.total_us

    def cell(self) -> str:
        """How many, tokens a round, milliseconds a round."""
        if not self.count:
            return "-"
        return f"{self.count}: {self.committed / self.count:.2f}, {self.us / self.count / 1e3:.1f} ms"


@dataclass
class Tally:
    """Sums over one way's requests. first_s: to the first chunk. offered: first rounds that verified a head's candidates.

    Rounds by whether a proposer was asked, and of those that did whether any of its candidates was verified.
    """

    seconds: float = 0.0
    first_s: float = 0.0
    tokens: int = 0
    requests: int = 0
    offered: int = 0
    late: int = 0
    unasked: Rounds = field(default_factory=Rounds)
    asked_in_vain: Rounds = field(default_factory=Rounds)
    verified: Rounds = field(default_factory=Rounds)
    components_us: dict[str, float] = field(default_factory=dict)

    @property
    def per_second(self) -> float:
        return self.tokens / self.seconds if self.seconds else 0.0

    @property
    def rounds(self) -> int:
        return self.unasked.count + self.asked_in_vain.count + self.verified.count

    @property
    def committed(self) -> int:
        return self.unasked.committed + self.asked_in_vain.committed + self.verified.committed

    def add_round(self, ledger: RoundLedger) -> None:
        """One round of a request."""
        kind = self.unasked if not ledger.proposal else self.verified if ledger.candidates else self.asked_in_vain
        kind.add(ledger)
        self.late += len(ledger.failures)
        for name in COMPONENTS:
            self.components_us[name] = self.components_us.get(name, 0.0) + getattr(ledger, name)

    def merge(self, one: Tally) -> None:
        """Adds another's sums."""
        for name in ("seconds", "first_s", "tokens", "requests", "offered", "late"):
            setattr(self, name, getattr(self, name) + getattr(one, name))
        for name in ("unasked", "asked_in_vain", "verified"):
            mine, other = getattr(self, name), getattr(one, name)
            setattr(self, name, Rounds(mine.count + other.count, mine.committed + other.committed, mine.us + other.us))
        for name, spent in one.components_us.items():
            self.components_us[name] = self.components_us.get(name, 0.0) + spent


async def ask(
    client: GenerateClient, prompt: Sequence[int], way: str, tokens: int, salt: str
) -> tuple[list[int], Tally]:
    """One request and what it took; its salt keeps it from sharing another's prefill."""
    request = GenerateRequest(
        prompt_ids=tuple(prompt), policy=greedy(tokens), sources=WAYS[way], cache_salt=f"{way}-{salt}"
    )
    tally = Tally()
    out: list[int] = []
    started = time.perf_counter()
    async for event in client.generate(request):
        if isinstance(event, Chunk):
            if event.round is not None:
                tally.add_round(event.round.ledger)
                if not out:
                    tally.offered = event.round.ledger.proposed_by.get("head", 0) > 0
            if not out:
                tally.first_s = time.perf_counter() - started
            out.extend(event.token_ids)
        elif isinstance(event, Final):
            tally.seconds, tally.tokens, tally.requests = time.perf_counter() - started, len(out), 1
    return out, tally


async def run(
    head: str, per_category: int, tokens: int, changes: dict[str, object], *, ways: Sequence[str], skip: int
) -> dict[str, dict[str, Tally]]:
    """Tallies by way and category. skip: prompts of each category that are passed over."""
    settings = load(AllSettings, head=head, **_PORTS, **changes)
    tokenizer = CheckpointTokenizer(checkpoint_directory(settings.cache_dir))
    logs = settings.cache_dir / "benchmark-logs"
    logs.mkdir(parents=True, exist_ok=True)
    tallies = {way: {name: Tally() for name in CATEGORIES} for way in ways}
    drawn = held_out_prompts(per_category + 1, skip)
    # The last of each category only warms up.
    warming = drawn[per_category :: per_category + 1]
    prompts = [*warming, *(prompt for prompt in drawn if prompt not in warming)]
    async with running_stack(settings, lambda *_: None, logs=logs, redis_dir="benchmark-redis") as stack:
        client = GenerateClient(stack.endpoints["orchestrator"])
        try:
            for number, prompt in enumerate(prompts):
                kind = category(prompt)
                warm = number < len(warming)
                ids = tokenizer.encode_chat(prompt.messages)
                turn = [*ways[number % len(ways) :], *ways[: number % len(ways)]]
                texts = {}
                for way in turn:
                    texts[way], tally = await ask(client, ids, way, tokens, prompt.name)
                    if not warm:
                        tallies[way][kind].merge(tally)
                if len({tuple(text) for text in texts.values()}) > 1:
                    raise RuntimeError(f"{prompt.name}: the text depends on the way it was drafted")
        finally:
            await client.close()
    return tallies


def figures_of(tallies: dict[str, dict[str, Tally]], console: Console) -> dict[str, float | int | str | bool]:
    """Tables on the console; figures by name."""
    figures: dict[str, float | int | str | bool] = {}
    table = Table("way", *CATEGORIES, "all", title="tokens a second (speed-up)")
    costs = Table(
        "way", "tokens a round", "first chunk ms", "head offers at once", "failed offers", "ms a round", "of which"
    )
    sums = {}
    for way, by_kind in tallies.items():
        sums[way] = whole = Tally()
        for tally in by_kind.values():
            whole.merge(tally)
        speedups = {
            kind: tallies["off"][kind].seconds / tally.seconds for kind, tally in by_kind.items() if tally.seconds
        }
        overall = sums["off"].seconds / whole.seconds
        cells = [f"{by_kind[kind].per_second:.1f} ({speedups.get(kind, 0.0):.2f})" for kind in CATEGORIES]
        table.add_row(way, *cells, f"{whole.per_second:.1f} ({overall:.2f})")
        rounds = max(1, whole.rounds)
        spent = {name: us / rounds / 1e3 for name, us in whole.components_us.items() if us / rounds > 50}
        parts = ", ".join(f"{name} {ms:.2f}" for name, ms in sorted(spent.items(), key=lambda part: -part[1]))
        costs.add_row(
            way,
            f"{whole.committed / rounds:.2f}",
            f"{1e3 * whole.first_s / whole.requests:.0f}",
            f"{whole.offered} of {whole.requests}" if "head" in WAYS[way] else "",
            str(whole.late),
            f"{sum(whole.components_us.values()) / rounds / 1e3:.1f}",
            parts,
        )
        figures |= {
            f"{way}_tokens_per_second": whole.per_second,
            f"{way}_tokens_per_round": whole.committed / rounds,
            f"{way}_first_chunk_ms": 1e3 * whole.first_s / whole.requests,
            f"{way}_speedup": overall,
            f"{way}_min_category_speedup": min(speedups.values()),
        }
        figures |= {f"{way}_speedup_{kind}": value for kind, value in speedups.items()}
        figures |= {f"{way}_{name}_ms": ms for name, ms in spent.items()}
    console.print(table)
    console.print(costs)
    console.print(rounds_of(tallies))
    if "head" in sums:
        figures["shipped_head_min_category_speedup"] = figures["head_min_category_speedup"]
        figures["first_rounds_with_head_offer"] = sums["head"].offered / sums["head"].requests
    return figures


def rounds_of(tallies: dict[str, dict[str, Tally]]) -> Table:
    """Rounds of the ways that ask proposers, by what became of the question."""
    table = Table("way", "category", "first chunk ms", "rounds that asked none", "asked, none verified", "verified")
    for way, by_kind in tallies.items():
        if not WAYS[way]:
            continue
        for kind, tally in by_kind.items():
            first_ms = 1e3 * tally.first_s / max(1, tally.requests)
            plain_ms = 1e3 * tallies["off"][kind].first_s / max(1, tallies["off"][kind].requests)
            cells = (rounds.cell() for rounds in (tally.unasked, tally.asked_in_vain, tally.verified))
            table.add_row(way, kind, f"{first_ms:.0f} (off {plain_ms:.0f})", *cells)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=2, help="of each category")
    parser.add_argument("--skip", type=int, default=0, help="so many of each category are passed over")
    parser.add_argument("--ways", nargs="+", choices=tuple(WAYS), default=list(WAYS), help="off is always among them")
    parser.add_argument("--tokens", type=int, default=96, help="published of each prompt at most")
    parser.add_argument("--head", default=DEFAULT_MODEL, help="a package, or the model that one is shipped for")
    parser.add_argument("--tree", default="", help="tree of the head, as DRAFTPROOF_HEAD_TREE")
    parser.add_argument("--budget", default="", help="as DRAFTPROOF_BUDGET")
    parser.add_argument("--json", type=Path, default=None)
    arguments = parser.parse_args()
    changes = {name: value for name, value in (("head_tree", arguments.tree), ("budget", arguments.budget)) if value}
    console = Console(width=180)
    ways = [way for way in WAYS if way == "off" or way in arguments.ways]
    tallies = asyncio.run(
        run(arguments.head, arguments.prompts, arguments.tokens, dict(changes), ways=ways, skip=arguments.skip)
    )
    write(figures_of(tallies, console), arguments.json, console, "the head in serving")


if __name__ == "__main__":
    main()
