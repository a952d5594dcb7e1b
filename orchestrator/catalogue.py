"""What the other services say about themselves, remembered for a short while, and asked for anew beside the requests.

A peer that does not answer keeps its last description: a source seen before stays bound while its service is down, one
never seen is absent.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from contracts.capability import SourceDescription
from contracts.ports import ProposerPort, RetrieverPort, VerifierDescription, VerifierPort
from contracts.retrieval import IndexDescription

T = TypeVar("T")
Indexes = tuple[Sequence[IndexDescription] | None, ...]
TENANTS_KEPT = 256


@dataclass(frozen=True)
class View:
    """One look. None stands for a peer that never answered; positions are those of the ports. fresh: nothing in it is
    older than the catalogue's `ttl_s`.
    """

    verifier: VerifierDescription
    proposers: tuple[Sequence[SourceDescription] | None, ...]
    retrievers: Indexes
    fresh: bool


class Catalogue:
    """Descriptions of all peers, asked for side by side when older than `ttl_s` or after `invalidate`.

    For another `stale_s` an old one is used while a new one is on its way: whoever would refuse a request by it looks again
    first. Not so indexes with live outputs, which the next request is meant to draft from. Indexes are described as each
    tenant may see them; TENANTS_KEPT of the tenants seen last are remembered.
    """

    def __init__(
        self,
        verifier: VerifierPort,
        proposers: Sequence[ProposerPort],
        retrievers: Sequence[RetrieverPort],
        *,
        ttl_s: float,
        stale_s: float,
        timeout_s: float,
    ) -> None:
        self._verifier = verifier
        self._proposers = proposers
        self._retrievers = retrievers
        self._ttl_s = ttl_s
        self._stale_s = stale_s
        self._timeout_s = timeout_s
        self._view: View | None = None
        self._until = -math.inf
        self._indexes: OrderedDict[str, tuple[float, Indexes]] = OrderedDict()
        self._lock = asyncio.Lock()
        self._refreshing: dict[str, asyncio.Task[View]] = {}

    def invalidate(self) -> None:
        """Something did not behave as described: ask again before the next use."""
        self._until = -math.inf
        for tenant, (_, known) in self._indexes.items():
            self._indexes[tenant] = (-math.inf, known)

    @property
    def verifier(self) -> VerifierDescription | None:
        """As it described itself last, if it ever did."""
        return None if self._view is None else self._view.verifier

    async def view(self, tenant: str = "", *, fresh: bool = False) -> View:
        """What a request of this tenant may use. Raises the verifier's error if it never answered."""
        known_until, known = self._indexes.get(tenant, (-math.inf, ()))
        until, now = min(self._until, known_until), time.monotonic()
        live = any(index.live_generation for indexes in known for index in indexes or ())
        if fresh or self._view is None or now >= until + (0.0 if live else self._stale_s):
            return await self._fresh_view(tenant)
        if now >= until and tenant not in self._refreshing:
            task = self._refreshing[tenant] = asyncio.create_task(self._fresh_view(tenant))
            task.add_done_callback(partial(self._refreshed, tenant))
        return replace(self._view, retrievers=known, fresh=now < until)

    async def close(self) -> None:
        """Gives up what is being asked for on the side."""
        tasks = tuple(self._refreshing.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _refreshed(self, tenant: str, task: asyncio.Task[View]) -> None:
        del self._refreshing[tenant]
        if not task.cancelled():
            # Looked at, so that nobody reports it as never seen: what is old is asked for again.
            task.exception()

    async def _fresh_view(self, tenant: str) -> View:
        async with self._lock:
            view, indexes = await asyncio.gather(self._shared_view(), self._indexes_of(tenant))
            return replace(view, retrievers=indexes)

    async def _shared_view(self) -> View:
        if self._view is None or time.monotonic() >= self._until:
            self._view = await self._refresh()
            self._until = time.monotonic() + self._ttl_s
        return self._view

    async def _indexes_of(self, tenant: str) -> Indexes:
        until, known = self._indexes.get(tenant, (-math.inf, (None,) * len(self._retrievers)))
        if time.monotonic() >= until:
            known = tuple(
                await asyncio.gather(
                    *(
                        self._or_last(partial(retriever.describe, tenant), last)
                        for retriever, last in zip(self._retrievers, known, strict=True)
                    )
                )
            )
            self._indexes[tenant] = (time.monotonic() + self._ttl_s, known)
        self._indexes.move_to_end(tenant)
        while len(self._indexes) > TENANTS_KEPT:
            self._indexes.popitem(last=False)
        return known

    async def _refresh(self) -> View:
        old = self._view
        proposers = old.proposers if old else (None,) * len(self._proposers)
        verifier, sources = await asyncio.gather(
            self._describe_verifier(),
            asyncio.gather(
                *(self._or_last(p.describe, last) for p, last in zip(self._proposers, proposers, strict=True))
            ),
        )
        return View(verifier, tuple(sources), (), fresh=True)

    async def _describe_verifier(self) -> VerifierDescription:
        last = self._view.verifier if self._view else None
        try:
            async with asyncio.timeout(None if last is None else self._timeout_s):
                return await self._verifier.describe()
        except Exception:
            if last is None:
                raise
            return last

    async def _or_last(self, describe: Callable[[], Awaitable[T]], last: T | None) -> T | None:
        try:
            async with asyncio.timeout(self._timeout_s):
                return await describe()
        except Exception:
            # Also a port's own bug: no source may take the request down with it.
            return last
