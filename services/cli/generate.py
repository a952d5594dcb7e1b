"""`draftproof generate`: one prompt, streamed."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import sys
from typing import Annotated, Any

import typer
from rich.markup import escape

from orchestrator.events import Chunk, Final
from orchestrator.request import GenerateRequest
from services.cli import requests as opt
from services.cli.console import err, ledger_table, summary
from services.orchestrator_service.servicer import Generating


def generate(
    prompt: Annotated[str, typer.Argument(help="What to say; `-` reads standard input.")],
    raw: Annotated[
        bool, typer.Option("--raw", help="Continue the text as it stands, without the chat template.")
    ] = False,
    system: Annotated[str, typer.Option(help="A system message.")] = "",
    temperature: opt.Temperature = 0.0,
    top_p: opt.TopP = 1.0,
    top_k: opt.TopK = 0,
    min_p: opt.MinP = 0.0,
    seed: opt.Seed = 0,
    max_tokens: opt.MaxTokens = 256,
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
    tenant: opt.Tenant = "",
    heuristic: opt.Heuristic = False,
    deadline_ms: opt.DeadlineMs = None,
    logprobs: Annotated[int | None, typer.Option(help="Report this many alternatives a token (with --json).")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object at the end, not a stream; it has the ledger.")
    ] = False,
    ledger: Annotated[bool, typer.Option("--ledger", help="Show where the time went.")] = False,
    local: opt.Local = False,
    endpoint: opt.Endpoint = "",
) -> None:
    """Stream the answer to a prompt from running services, or with --local from this process.

    Examples:

      draftproof generate "Name three rivers."

      draftproof generate --temperature 0.8 --seed 7 "A limerick about caches."

      draftproof generate --no-speculation --ledger "Name three rivers."

      cat old.py | draftproof generate --sources prompt_lookup -
    """
    opt.refuse_together(raw=raw, system=bool(system))
    opt.refuse_together(ledger=ledger, json=as_json)
    if logprobs is not None and not as_json:
        raise typer.BadParameter("--logprobs is reported with --json only")
    text = _standard_input() if prompt == "-" else prompt
    if not text:
        raise typer.BadParameter("the prompt is empty")
    messages = ({"role": "system", "content": system},) if system else ()
    request = opt.make_request(
        text if raw else (*messages, {"role": "user", "content": text}),
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        min_p=min_p,
        seed=seed,
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
        speculation=not no_speculation,
        exact=not heuristic,
        tenant=tenant,
        deadline_ms=deadline_ms,
        logprobs=logprobs,
        budget=budget,
        strict=strict,
    )
    chunks, final = asyncio.run(_run(request, local=local, endpoint=endpoint, stream=not as_json))
    if as_json:
        print(json.dumps(as_record(chunks, final), ensure_ascii=False))
        return
    print()
    err.print(f"[dim]{escape(summary(final))}[/dim]")
    if ledger:
        err.print(ledger_table("round cost ledger", [("this request", final.certificate.ledger)]))


def _standard_input() -> str:
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise typer.BadParameter(f"standard input is no text: {error}") from error


async def _run(request: GenerateRequest, *, local: bool, endpoint: str, stream: bool) -> tuple[list[Chunk], Final]:
    async with opt.generating(local=local, endpoint=endpoint) as source:
        return await stream_out(source, request, stream=stream)


async def stream_out(source: Generating, request: GenerateRequest, *, stream: bool = True) -> tuple[list[Chunk], Final]:
    """Runs the request to its end, printing text as it comes."""
    chunks: list[Chunk] = []
    async for event in source.generate(request):
        if isinstance(event, Final):
            return chunks, event
        chunks.append(event)
        if stream:
            print(event.text, end="", flush=True)
    raise AssertionError("a generation ends with its certificate or an error")


def as_record(chunks: list[Chunk], final: Final) -> dict[str, Any]:
    """Everything about a generation as plain JSON."""
    certificate = dataclasses.asdict(final.certificate)
    certificate["forced_calibrations"] = dict(final.certificate.forced_calibrations)
    certificate["manifest"] = json.loads(final.certificate.manifest)
    record: dict[str, Any] = {
        "text": "".join(chunk.text for chunk in chunks),
        "token_ids": [token for chunk in chunks for token in chunk.token_ids],
        "finish": final.finish.value,
        "stop_string": final.stop_string,
        "stop_id": final.stop_id,
        "usage": dataclasses.asdict(final.usage),
        "certificate": certificate,
    }
    logprobs = [dataclasses.asdict(item) for chunk in chunks for item in chunk.logprobs]
    return {**record, "logprobs": logprobs} if logprobs else record
