"""`draftproof demo`: the whole thing from nothing to a table, and nothing left running."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from contracts.ledger import LedgerSum, add_sums
from contracts.sampling import SamplingPolicy
from orchestrator.events import Final
from orchestrator.request import GenerateRequest
from services.settings import AllSettings, load

if TYPE_CHECKING:
    from services.clients.generate import GenerateClient

# Compiling what searches takes a minute of a quick core, and several of a slow one.
_INDEXED_WITHIN_S = 600.0
INDEX = "stdlib"
WAYS: Mapping[str, tuple[str, ...]] = {
    "off": (),
    "lookup": ("prompt_lookup",),
    "both": ("prompt_lookup", "retrieval"),
    "head": ("prompt_lookup", "head"),
}
PROMPTS: Mapping[str, str] = {
    "chat": "Why do leaves change colour in autumn? Answer in a short paragraph.",
    "code": (
        "Write a Python class `Stack` with methods push, pop, peek and __len__, each with a docstring. "
        "Then write unittest tests for it."
    ),
    "edit": (
        "Repeat the following text, but with every `node` renamed to `vertex`. Give only the text.\n\n"
        "def walk(node, visit):\n"
        "    visit(node)\n"
        "    for child in node.children:\n"
        "        if child is not node.parent:\n"
        "            walk(child, visit)\n\n"
        "def depth(node):\n"
        "    if node.parent is None:\n"
        "        return 0\n"
        "    return 1 + depth(node.parent)\n\n"
        "def leaves(node):\n"
        "    if not node.children:\n"
        "        return [node]\n"
        "    return [leaf for child in node.children for leaf in leaves(child)]\n"
    ),
}


@dataclass(frozen=True)
class Outcome:
    """One prompt decoded one way."""

    token_ids: tuple[int, ...]
    final: Final

    @property
    def ledger(self) -> LedgerSum:
        return self.final.certificate.ledger


def demo(
    max_tokens: Annotated[int, typer.Option(min=1, help="New tokens a prompt.")] = 96,
    dtype: Annotated[str, typer.Option(help="float32 shows identity; bfloat16 is faster.")] = "float32",
) -> None:
    """Start everything, answer three prompts several ways, compare texts and costs, stop everything.

    The ways: no speculation, prompt lookup, prompt lookup and retrieval, and, where a draft head is shipped for the
    model or named by DRAFTPROOF_HEAD, prompt lookup and the head.

    Fetches the default model and converts it once, indexes Python's own library, and runs each service as a process of
    its own beside an embedded Redis on free ports, so it does not meet a running `draftproof up`.

    Example: draftproof demo --max-tokens 64
    """
    from proposer.heads.shipped import shipped_head
    from services.checkpoint_files import origin
    from services.cli.console import fetch_model, out

    free = dict.fromkeys(("verifier_port", "proposer_port", "retriever_port", "orchestrator_port", "redis_port"), 0)
    settings = load(AllSettings, **free, dtype=dtype, redis_namespace="demo", default_index=INDEX)
    if not settings.head and shipped_head(settings.model) is not None:
        settings = settings.model_copy(update={"head": settings.model})
    out.rule("Draftproof: the target's own text, faster")
    checkpoint = fetch_model(settings.model, settings.models_dir, out)
    out.print(f"model {settings.model}, {dtype}, greedy")
    out.print(f"[dim]{_first_paragraph(origin(checkpoint))}[/dim]")
    results = asyncio.run(_run(settings, checkpoint, max_tokens))
    report(results)


def _first_paragraph(text: str) -> str:
    paragraphs = [part for part in text.split("\n\n") if part and not part.startswith("#")]
    return paragraphs[0] if paragraphs else "the checkpoint does not say where it comes from"


async def _run(settings: AllSettings, checkpoint: Path, max_tokens: int) -> dict[str, dict[str, Outcome]]:
    from services.cli.console import out, progress_bars
    from services.clients.generate import GenerateClient
    from services.stack import running_stack

    # Apart from those of a running `draftproof up`.
    logs = settings.cache_dir / "demo-logs"
    stack_context = running_stack(settings, lambda *_: None, logs=logs, redis_dir="demo-redis")
    with progress_bars(out) as bars:
        task = bars.add_task("starting verifier, proposer, retriever, orchestrator and Redis", total=None)
        stack = await stack_context.__aenter__()
        bars.update(task, total=1, completed=1)
    try:
        await asyncio.to_thread(_index, settings, stack.redis_url, checkpoint)
        services = [f"{name} {endpoint} (process {stack.pid(name)})" for name, endpoint in stack.endpoints.items()]
        out.print(f"services: {', '.join(services)}; logs in {logs}")
        client = GenerateClient(stack.endpoints["orchestrator"])
        try:
            await _until_indexed(stack.endpoints["retriever"])
            ways = {way: sources for way, sources in WAYS.items() if settings.head or "head" not in sources}
            await _warm_up(client, ways)
            return {name: await _prompt(client, name, prompt, ways, max_tokens) for name, prompt in PROMPTS.items()}
        finally:
            await client.close()
    finally:
        with progress_bars(out) as bars:
            task = bars.add_task("stopping what was started", total=None)
            await stack_context.__aexit__(None, None, None)
            bars.update(task, total=1, completed=1)


def _index(settings: AllSettings, redis_url: str, checkpoint: Path) -> None:
    from retriever.redis_store import RedisStore
    from services.cli.console import out, progress_bars
    from services.cli.index import StepBars
    from services.indexing import build_index, standard_library

    store = RedisStore(redis_url, namespace=settings.redis_namespace)
    try:
        with progress_bars(out) as bars:
            built = build_index(
                store,
                INDEX,
                standard_library(),
                checkpoint,
                settings.cache_dir / "build",
                licence="PSF-2.0",
                progress=StepBars(bars, INDEX),
            )
    finally:
        store.close()
    report = built.report
    out.print(f"index {INDEX}: {report.documents} files of Python's library, {report.release.tokens} tokens")


async def _until_indexed(endpoint: str) -> None:
    """The retriever follows the store by itself; this waits until it has. On a new machine it compiles its search first."""
    from services.cli.console import out, progress_bars
    from services.clients.retriever import RetrieverClient

    client = RetrieverClient(endpoint)
    try:
        with progress_bars(out) as bars:
            task = bars.add_task("loading the index (the first time its search is compiled: a minute)", total=None)
            async with asyncio.timeout(_INDEXED_WITHIN_S):
                while not await client.describe():
                    await asyncio.sleep(0.1)
            bars.update(task, total=1, completed=1)
    finally:
        await client.close()


def _request(prompt: str, sources: Sequence[str], max_tokens: int) -> GenerateRequest:
    return GenerateRequest(
        messages=({"role": "user", "content": prompt},),
        policy=SamplingPolicy(temperature=0.0, max_tokens=max_tokens),
        sources=tuple(sources) or None,
        speculation=bool(sources),
        # Else the first way would prefill for all.
        cache_salt=",".join(sources),
    )


async def _warm_up(client: GenerateClient, ways: Mapping[str, Sequence[str]]) -> None:
    """A few tokens each way, so that no way pays for first calls. The orchestrator learns of the new index meanwhile."""
    from services.cli.generate import stream_out

    for sources in ways.values():
        await stream_out(client, _request("Count to ten.", sources, 8), stream=False)


async def _prompt(
    client: GenerateClient, name: str, prompt: str, ways: Mapping[str, Sequence[str]], max_tokens: int
) -> dict[str, Outcome]:
    from services.cli.console import out
    from services.cli.generate import stream_out

    outcomes = {}
    for way, sources in ways.items():
        out.rule(f"{name}: {way}", style="dim")
        chunks, final = await stream_out(client, _request(prompt, sources, max_tokens))
        print()
        outcomes[way] = Outcome(tuple(token for chunk in chunks for token in chunk.token_ids), final)
    return outcomes


def report(results: Mapping[str, Mapping[str, Outcome]]) -> None:
    """Identity, tokens a pass and time a token of each way, and the ledger."""
    from services.cli.console import ledger_table, out

    out.rule("what came out")
    table = Table("prompt", "way", "same text", "tokens", "passes", "tokens/pass", "ms/token", "speed")
    for name, outcomes in results.items():
        off = outcomes["off"]
        for way, outcome in outcomes.items():
            ledger = outcome.ledger
            ratio = off.ledger.time_per_committed_token_us / ledger.time_per_committed_token_us
            table.add_row(
                name if way == "off" else "",
                way,
                "-" if way == "off" else _identity(off.token_ids, outcome.token_ids),
                str(ledger.committed),
                str(ledger.rounds),
                f"{ledger.tokens_per_pass:.2f}",
                f"{ledger.time_per_committed_token_us / 1000:.1f}",
                "-" if way == "off" else f"{ratio:.2f}x",
            )
        table.add_section()
    out.print(table)
    ways = [
        (way, add_sums([outcomes[way].ledger for outcomes in results.values()])) for way in next(iter(results.values()))
    ]
    out.print(ledger_table("round cost ledger, all three prompts", ways))
    same = all(
        outcome.token_ids == outcomes["off"].token_ids for outcomes in results.values() for outcome in outcomes.values()
    )
    out.print(
        "[green]every text is identical to plain decoding[/green]" if same else "[red]texts differ: see above[/red]"
    )
    out.print("[dim]Times are from this one run on this machine, with whatever else it was doing.[/dim]")


def _identity(off: Sequence[int], other: Sequence[int]) -> str:
    if off == other:
        return "yes"
    parting = next((i for i, (a, b) in enumerate(zip(off, other, strict=False)) if a != b), min(len(off), len(other)))
    return f"no, from token {parting}"
