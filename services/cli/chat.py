"""`draftproof chat`: a conversation that keeps its history."""

from __future__ import annotations

import asyncio
import sys
from typing import Annotated

import typer
from rich.markup import escape

from contracts.errors import DraftproofError
from services.cli import requests as opt
from services.cli.console import err, summary
from services.cli.generate import stream_out


def chat(
    system: Annotated[str, typer.Option(help="A system message.")] = "",
    temperature: opt.Temperature = 0.7,
    top_p: opt.TopP = 0.95,
    top_k: opt.TopK = 0,
    min_p: opt.MinP = 0.0,
    seed: opt.Seed = 0,
    max_tokens: opt.MaxTokens = 512,
    min_tokens: opt.MinTokens = 0,
    stop: opt.Stop = None,
    stop_id: opt.StopId = None,
    sources: opt.Sources = None,
    index: opt.Index = "",
    option: opt.SetOption = None,
    node_budget: opt.NodeBudget = None,
    max_depth: opt.MaxDepth = None,
    verifier: opt.Verifier = "",
    budget: opt.Budget = "",
    strict: opt.Strict = False,
    no_speculation: opt.Off = False,
    heuristic: opt.Heuristic = False,
    tenant: opt.Tenant = "",
    local: opt.Local = False,
    endpoint: opt.Endpoint = "",
) -> None:
    """Talk to the model; /reset forgets, /undo takes the last turn back, an empty line or Ctrl-D leaves.

    Examples:

      draftproof chat

      draftproof chat --local --temperature 0
    """
    history: list[dict[str, str]] = [{"role": "system", "content": system}] if system else []

    async def talk() -> None:
        first = len(history)
        async with opt.generating(local=local, endpoint=endpoint) as source:
            while line := await asyncio.to_thread(_read):
                if line in ("/reset", "/undo"):
                    del history[first if line == "/reset" else max(first, len(history) - 2) :]
                    continue
                request = opt.make_request(
                    (*history, {"role": "user", "content": line}),
                    temperature=temperature,
                    top_p=top_p,
                    top_k=top_k,
                    min_p=min_p,
                    seed=seed + len(history),
                    max_tokens=max_tokens,
                    min_tokens=min_tokens,
                    stop=stop,
                    stop_id=stop_id,
                    sources=sources,
                    index=index,
                    options=option,
                    node_budget=node_budget,
                    max_depth=max_depth,
                    verifier=verifier,
                    budget=budget,
                    strict=strict,
                    speculation=not no_speculation,
                    exact=not heuristic,
                    tenant=tenant,
                )
                try:
                    chunks, final = await stream_out(source, request)
                except DraftproofError as error:
                    err.print(f"[red]{type(error).code.lower()}[/red]: ", end="")
                    print(opt.hinted(error), file=sys.stderr)
                    continue
                print()
                err.print(f"[dim]{escape(summary(final))}[/dim]")
                history.append({"role": "user", "content": line})
                history.append({"role": "assistant", "content": "".join(chunk.text for chunk in chunks)})

    asyncio.run(talk())


def _read() -> str:
    try:
        return input("> ").strip()
    except EOFError:
        return ""
