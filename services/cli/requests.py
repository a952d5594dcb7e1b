"""Options of a generation, shared by `generate` and `chat`, and the request they make."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Annotated

import typer

from contracts.errors import DraftproofError, Unavailable
from contracts.sampling import SamplingPolicy
from orchestrator.request import GenerateRequest
from services.orchestrator_service.servicer import Generating
from services.setting_rules import is_endpoint
from services.settings import AllSettings, OrchestratorServiceSettings, load, names_in

Temperature = Annotated[float, typer.Option(help="0 is greedy.")]
Seed = Annotated[int, typer.Option(help="Seed of all randomness: the same text for a seed, speculation on or off.")]
MaxTokens = Annotated[int, typer.Option(help="At most this many new tokens.")]
TopP = Annotated[float, typer.Option(help="Nucleus mass; 1 is off.")]
TopK = Annotated[int, typer.Option(help="Only so many of the likeliest tokens; 0 is off.")]
MinP = Annotated[float, typer.Option(help="Only tokens this share as likely as the likeliest; 0 is off.")]
MinTokens = Annotated[int, typer.Option(help="No end before so many new tokens.")]
StopId = Annotated[list[int] | None, typer.Option(help="Token id that ends the output; may be given several times.")]
Stop = Annotated[list[str] | None, typer.Option(help="Text that ends the output; may be given several times.")]
Sources = Annotated[
    str | None,
    typer.Option(
        help="Sources separated by commas: prompt_lookup, retrieval, retrieval:INDEX, draft_model, head. Default: those of "
        "DRAFTPROOF_DEFAULT_SOURCES (prompt_lookup, retrieval)."
    ),
]
Index = Annotated[
    str, typer.Option(help="Index that `retrieval` reads. Default: the only one, or the service's default.")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--option", help="SOURCE.NAME=NUMBER, such as prompt_lookup.max_ngram=4; may be given several times."),
]
NodeBudget = Annotated[int | None, typer.Option(help="Candidates a round.")]
MaxDepth = Annotated[int | None, typer.Option(help="Deepest candidate.")]
Tenant = Annotated[str, typer.Option(help="Whose indexes and cached prompts may be used. Default: everybody's.")]
Verifier = Annotated[str, typer.Option(help="greedy, membership, rejection ... Default: by temperature.")]
Budget = Annotated[
    str, typer.Option(help="fixed: verify all that is offered; adaptive: what pays. Default: the service's.")
]
Strict = Annotated[
    bool, typer.Option("--strict", help="Bit for bit the text of plain decoding on this target, or a refusal.")
]
Off = Annotated[bool, typer.Option("--no-speculation", help="Plain decoding, one token a pass, whatever the sources.")]
Heuristic = Annotated[bool, typer.Option("--heuristic", help="Admit verifiers without a proof.")]
DeadlineMs = Annotated[int | None, typer.Option(help="End after this many milliseconds with what there is.")]
Local = Annotated[bool, typer.Option("--local", help="Everything in this process; no services needed.")]
Endpoint = Annotated[str, typer.Option(help="host:port of the Generate service. Default: the one of `draftproof up`.")]
_OPTION = re.compile(r"(.+)\.(\w+)=(-?\d+)")


def make_request(
    prompt: str | tuple[dict[str, str], ...],
    *,
    temperature: float,
    top_p: float,
    top_k: int,
    min_p: float,
    seed: int,
    max_tokens: int,
    min_tokens: int,
    stop: list[str] | None,
    stop_id: list[int] | None,
    sources: str | None,
    index: str,
    options: list[str] | None,
    node_budget: int | None,
    max_depth: int | None,
    verifier: str,
    speculation: bool,
    exact: bool,
    tenant: str,
    deadline_ms: int | None = None,
    logprobs: int | None = None,
    budget: str = "",
    strict: bool = False,
) -> GenerateRequest:
    """A text prompt or a conversation with the options given. Raises BadParameter for an option that is not understood."""
    return GenerateRequest(
        text=prompt if isinstance(prompt, str) else None,
        messages=prompt if isinstance(prompt, tuple) else None,
        policy=SamplingPolicy(
            temperature=temperature,
            top_p=top_p,
            top_k=top_k,
            min_p=min_p,
            seed=seed,
            max_tokens=max_tokens,
            min_tokens=min_tokens,
            stop_strings=tuple(stop or ()),
            stop_ids=tuple(stop_id or ()),
            logprobs=logprobs,
        ),
        sources=_sources(sources),
        speculation=speculation,
        indexes={"retrieval": index} if index else {},
        options=_options(options or ()),
        node_budget=node_budget,
        max_depth=max_depth,
        verifier=verifier,
        exact_mode=exact,
        tenant=tenant,
        deadline_ms=deadline_ms,
        budget=budget,
        strict=strict,
    )


def _sources(listed: str | None) -> tuple[str, ...] | None:
    if listed is None:
        return None
    if not all(name.strip() for name in listed.split(",")):
        raise typer.BadParameter(
            f"--sources {listed!r} has an empty name; leave it out for the defaults, --no-speculation for none"
        )
    return names_in(listed)


def _options(given: Sequence[str]) -> dict[str, dict[str, int]]:
    options: dict[str, dict[str, int]] = {}
    for text in given:
        found = _OPTION.fullmatch(text)
        if found is None:
            raise typer.BadParameter(f"--option {text!r} is not SOURCE.NAME=NUMBER")
        source, name, value = found.groups()
        if name in options.setdefault(source, {}):
            raise typer.BadParameter(f"--option {source}.{name} is given twice")
        options[source][name] = int(value)
    return options


def refuse_together(**given: bool) -> None:
    """Raises BadParameter where all of these options are given: together one of them would do nothing."""
    if all(given.values()):
        raise typer.BadParameter(" and ".join(f"--{name.replace('_', '-')}" for name in given) + " exclude each other")


def hinted(error: DraftproofError) -> DraftproofError:
    """The error; where nothing answered at all, with what to do about it."""
    if isinstance(error, Unavailable) and not error.field:
        return Unavailable("", f"{error.message}; `draftproof up` starts the services, --local does without them")
    return error


@asynccontextmanager
async def generating(*, local: bool, endpoint: str) -> AsyncIterator[Generating]:
    """What generates: everything in this process, or the service at `endpoint`. Raises BadParameter for both, and for an
    endpoint that is none.
    """
    refuse_together(local=local, endpoint=bool(endpoint))
    if endpoint and not is_endpoint(endpoint):
        raise typer.BadParameter(f"--endpoint {endpoint!r} is not host:port, the port within [1, 65535]")
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
    except Unavailable as error:
        raise hinted(error) from error
    finally:
        await client.close()
