"""One generation through the services, with what a benchmark reads off it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from contracts.ledger import LedgerSum, RoundLedger
from contracts.sampling import SamplingPolicy
from orchestrator.events import Chunk, Final
from orchestrator.request import GenerateRequest
from services.clients.generate import GenerateClient

MODES: dict[str, tuple[str, ...]] = {
    "off": (),
    "lookup": ("prompt_lookup",),
    "retrieval": ("retrieval",),
    "both": ("prompt_lookup", "retrieval"),
}


@dataclass(frozen=True)
class Outcome:
    """tokens: published ids. seconds: from the call to the end, prefill and all. rounds: each round's ledger."""

    tokens: tuple[int, ...]
    text: str
    seconds: float
    rounds: tuple[RoundLedger, ...]
    ledger: LedgerSum


def greedy(max_tokens: int) -> SamplingPolicy:
    return SamplingPolicy(temperature=0.0, max_tokens=max_tokens)


async def generate(
    client: GenerateClient, prompt_ids: Sequence[int], mode: str, policy: SamplingPolicy, **options: object
) -> Outcome:
    """Runs one request in one of MODES; `options` are further fields of the request.

    Unless they say otherwise, requests of one mode share the KV of common prompt starts, and no two modes do: the first
    would pay the prefill for all.
    """
    fields = {"cache_salt": mode, **options}
    request = GenerateRequest(prompt_ids=tuple(prompt_ids), policy=policy, sources=MODES[mode], **fields)  # type: ignore[arg-type]
    tokens: list[int] = []
    text: list[str] = []
    rounds: list[RoundLedger] = []
    final: Final | None = None
    started = time.perf_counter()
    async for event in client.generate(request):
        if isinstance(event, Chunk):
            tokens.extend(event.token_ids)
            text.append(event.text)
            if event.round is not None:
                rounds.append(event.round.ledger)
        else:
            final = event
    seconds = time.perf_counter() - started
    if final is None:
        raise RuntimeError("the stream ended without a final message")
    return Outcome(tuple(tokens), "".join(text), seconds, tuple(rounds), final.certificate.ledger)


async def generate_all(
    client: GenerateClient,
    prompts: Sequence[Sequence[int]],
    mode: str,
    policy: SamplingPolicy,
    *,
    concurrency: int,
    done: Callable[[], None],
    salt: str = "",
) -> list[Outcome]:
    """Runs all prompts in one mode, several at a time; outcomes in the prompts' order.

    salt: where given, no prompt shares KV with another, or with the same one under another salt.
    """
    places = asyncio.Semaphore(concurrency)

    async def one(number: int, prompt: Sequence[int]) -> Outcome:
        async with places:
            scope = {"cache_salt": f"{salt}-{number}"} if salt else {}
            outcome = await generate(client, prompt, mode, policy, **scope)
            done()
            return outcome

    return list(await asyncio.gather(*(one(number, prompt) for number, prompt in enumerate(prompts))))
