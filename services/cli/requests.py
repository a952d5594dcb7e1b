"""Options of a generation, shared by `generate` and `chat`, and the request they make."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Annotated

import typer

from contracts.sampling import SamplingPolicy
from orchestrator.request import GenerateRequest
from services.orchestrator_service.servicer import Generating
from services.settings import AllSettings, OrchestratorServiceSettings, load, names_in

Temperature = Annotated[float, typer.Option(help="0 is greedy.")]
Seed = Annotated[int, typer.Option(help="Seed of all randomness: the same text for a seed, speculation on or off.")]
MaxTokens = Annotated[int, typer.Option(help="At most this many new tokens.")]
TopP = Annotated[float, typer.Option(help="Nucleus mass; 1 is off.")]
Stop = Annotated[list[str] | None, typer.Option(help="Text that ends the output; may be given several times.")]
Sources = Annotated[
    str | None, typer.Option(help="Sources separated by commas: prompt_lookup,retrieval,draft_model. Default: all.")
]
NodeBudget = Annotated[int | None, typer.Option(help="Candidates a round.")]
Verifier = Annotated[str, typer.Option(help="greedy, membership, rejection ... Default: by temperature.")]
Off = Annotated[bool, typer.Option("--no-speculation", help="Plain decoding, one token a pass.")]
Heuristic = Annotated[bool, typer.Option("--heuristic", help="Admit verifiers without a proof.")]
DeadlineMs = Annotated[int | None, typer.Option(help="End after this many milliseconds with what there is.")]
Local = Annotated[bool, typer.Option("--local", help="Everything in this process; no services needed.")]
Endpoint = Annotated[str, typer.Option(help="host:port of the Generate service. Default: the one of `draftproof up`.")]


def make_request(
    prompt: str | tuple[dict[str, str], ...],
    *,
    temperature: float,
    top_p: float,
    seed: int,
    max_tokens: int,
    stop: list[str] | None,
    sources: str | None,
    node_budget: int | None,
    verifier: str,
    speculation: bool,
    exact: bool = True,
    deadline_ms: int | None = None,
    logprobs: int | None = None,
) -> GenerateRequest:
    """A text prompt or a conversation with the options given."""
    return GenerateRequest(
        text=prompt if isinstance(prompt, str) else None,
        messages=prompt if isinstance(prompt, tuple) else None,
        policy=SamplingPolicy(
            temperature=temperature,
            top_p=top_p,
            seed=seed,
            max_tokens=max_tokens,
            stop_strings=tuple(stop or ()),
            logprobs=logprobs,
        ),
        sources=names_in(sources) if sources is not None else None,
        speculation=speculation,
        node_budget=node_budget,
        verifier=verifier,
        exact_mode=exact,
        deadline_ms=deadline_ms,
    )


@asynccontextmanager
async def generating(*, local: bool, endpoint: str) -> AsyncIterator[Generating]:
    """What generates: everything in this process, or the service at `endpoint`."""
    if local:
        from services import telemetry
        from services.cli.console import err, fetch_model, progress_bars
        from services.local import local_orchestrator

        settings = load(AllSettings)
        fetch_model(settings.model, settings.models_dir)
        stop_telemetry = telemetry.start("draftproof-local")
        try:
            async with AsyncExitStack() as stack:
                with progress_bars(err) as bars:
                    bars.add_task("loading", total=None)
                    orchestrator = await stack.enter_async_context(local_orchestrator(settings))
                yield orchestrator
        finally:
            stop_telemetry()
        return
    from services.clients.generate import GenerateClient

    if not endpoint:
        known = load(OrchestratorServiceSettings)
        endpoint = f"{known.host}:{known.orchestrator_port}"
    client = GenerateClient(endpoint)
    try:
        yield client
    finally:
        await client.close()
