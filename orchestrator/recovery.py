"""When a reply is lost or a replica is gone: no token is lost, none is published twice, nothing is rolled again.

A Verify call whose outcome is unknown is settled by its receipt, and repeated only where no receipt exists; the call is
idempotent, so a repeat that crosses the original still publishes once. A session that is gone is opened elsewhere with
the published tokens as its prompt; tokens committed there but never received were never published, and are decoded again.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import msgspec

from contracts.errors import (
    Cancelled,
    DeadlineExceeded,
    DraftproofError,
    FailedPrecondition,
    Internal,
    NotFound,
    ResourceExhausted,
    Unavailable,
)
from contracts.manifest import Manifest
from contracts.ports import OpenSession, SessionOpened, VerifierDescription, VerifierPort, VerifyRequest
from contracts.receipt import Receipt
from orchestrator.patience import Patience
from orchestrator.settings import OrchestratorSettings
from orchestrator.spans import now_ns
from orchestrator.strictness import check_move

LOST = (Unavailable, DeadlineExceeded, Cancelled, TimeoutError)
MAY_DIFFER = ("backend", "build", "hardware", "row_invariant_up_to", "batching")


class SessionLost(Exception):
    """The session, or the replica that held it, is gone. Never leaves the orchestrator."""


class Answer(msgspec.Struct, frozen=True):
    """A settled Verify call. wall_us: over all attempts, waited_us of it for room in a full queue.

    `recovered`: some call was lost on the way.
    """

    receipt: Receipt
    started_ns: int
    wall_us: float
    recovered: bool
    waited_us: float = 0.0


async def pause(settings: OrchestratorSettings, attempt: int, *, at_least_ms: float = 0.0) -> None:
    """Waits before repeating; attempt counts from 0."""
    delays = settings.retry_delays_ms
    await asyncio.sleep(max(at_least_ms, delays[min(attempt, len(delays) - 1)]) / 1000)


async def verify_surely(
    port: VerifierPort, request: VerifyRequest, settings: OrchestratorSettings, patience: Patience
) -> Answer:
    """The round's receipt, whatever happens to replies. patience: of whoever makes one call after another.

    A full queue is waited out for `verify_timeout_ms` in all: the session is alive and holds its KV. Raises SessionLost
    where the session is unknown or its replica stays silent, and the verifier's refusals as they are.
    """
    started_ns, started = now_ns(), time.perf_counter()
    losses, waited_us = 0, 0.0
    while losses < settings.verify_attempts:
        called = time.perf_counter()
        try:
            with patience.within(settings.verify_timeout_ms / 1000):
                receipt: Receipt | None = await port.verify(request)
        except NotFound as error:
            raise SessionLost(str(error)) from error
        except ResourceExhausted as busy:
            if (time.perf_counter() - started) * 1000 > settings.verify_timeout_ms:
                raise
            await pause(settings, 0, at_least_ms=busy.retry_after_ms or 0)
            waited_us += (time.perf_counter() - called) * 1e6
            continue
        except LOST:
            losses += 1
            receipt = await _find_receipt(port, request, settings)
            if receipt is None and losses < settings.verify_attempts:
                await pause(settings, losses - 1)
        if receipt is not None:
            _check_receipt(receipt, request)
            wall_us = (time.perf_counter() - started) * 1e6
            return Answer(receipt, started_ns, wall_us, recovered=losses > 0, waited_us=waited_us)
    raise SessionLost(f"no answer after {settings.verify_attempts} attempts")


async def _find_receipt(port: VerifierPort, request: VerifyRequest, settings: OrchestratorSettings) -> Receipt | None:
    manifest = request.manifest
    try:
        async with asyncio.timeout(settings.verify_timeout_ms / 1000):
            return await port.get_receipt(manifest.session_id, manifest.round_id)
    except (NotFound, *LOST):
        return None


def _check_receipt(receipt: Receipt, request: VerifyRequest) -> None:
    manifest = request.manifest
    expected = (
        manifest.session_id,
        manifest.round_id,
        request.payload_digest,
        manifest.prefix_len + len(receipt.tokens),
    )
    found = (receipt.session_id, receipt.round_id, receipt.payload_digest, receipt.prefix_len)
    if found != expected or not receipt.tokens:
        raise Internal("receipt", f"is for {found} with {len(receipt.tokens)} tokens, expected {expected}")


async def open_surely(
    port: VerifierPort, request: OpenSession, settings: OrchestratorSettings, *, patient: bool = False
) -> SessionOpened:
    """Opens a session, repeating lost calls (they are idempotent). Raises Unavailable at the end, refusals as they are.

    patient: a full queue is waited out on its hints for `open_timeout_ms` in all, since what was published is lost to the
    client otherwise; else it is a refusal, which the client is to hear of.
    """
    last: BaseException | None = None
    losses, started = 0, time.perf_counter()
    while losses < settings.reopen_attempts:
        try:
            async with asyncio.timeout(settings.open_timeout_ms / 1000):
                return await port.open_session(request)
        except ResourceExhausted as full:
            if not patient or (time.perf_counter() - started) * 1000 > settings.open_timeout_ms:
                raise
            await pause(settings, 0, at_least_ms=full.retry_after_ms or 0)
        except (*LOST, NotFound) as error:
            # Not found: the replica lost the session between taking the call and answering it.
            last = error
            losses += 1
            if losses < settings.reopen_attempts:
                await pause(settings, losses - 1)
    if isinstance(last, DraftproofError):
        raise Unavailable(last.field, last.message, retry_after_ms=last.retry_after_ms) from last
    raise Unavailable("verifier", f"no session after {settings.reopen_attempts} attempts") from last


def successor(manifest: Manifest, served: VerifierDescription) -> Manifest:
    """The manifest to go on under at another replica: the same one, or a child where its machine differs.

    Raises FailedPrecondition where it serves another law (checkpoint, tokenizer, context or dtype), and where a strict
    session would not keep its bits.
    """
    check_move(manifest, served.target)
    for name, old in manifest.target.__dict__.items():
        new = getattr(served.target, name)
        if name not in MAY_DIFFER and new != old:
            raise FailedPrecondition(f"target.{name}", f"the replica left to go on with has {new!r}, not {old!r}")
    budget = min(manifest.node_budget, served.max_rows)
    child = replace(manifest, target=served.target, node_budget=budget)
    return manifest if child == manifest else replace(child, parent=manifest.hash)
