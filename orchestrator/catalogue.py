"""What the other services say about themselves, remembered for a short while.

A peer that does not answer keeps its last description: a source seen before stays bound while its service is down, one
never seen is absent.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from contracts.capability import SourceDescription
from contracts.errors import DraftproofError
from contracts.ports import ProposerPort, RetrieverPort, VerifierDescription, VerifierPort
from contracts.retrieval import IndexDescription

T = TypeVar("T")
Indexes = tuple[Sequence[IndexDescription] | None, ...]
TENANTS_KEPT = 256


@dataclass(frozen=True)
class View:
    """One consistent look. None stands for a peer that never answered; positions are those of the ports."""

    verifier: VerifierDescription
    proposers: tuple[Sequence[SourceDescription] | None, ...]
    retrievers: Indexes


class Catalogue:
    """Descriptions of all peers, asked for side by side when older than `ttl_s` or after `invalidate`.

    Indexes are described as each tenant may see them; TENANTS_KEPT of the tenants seen last are remembered.
    """

    def __init__(
        self,
        verifier: VerifierPort,
        proposers: Sequence[ProposerPort],
        retrievers: Sequence[RetrieverPort],
        *,
        ttl_s: float,
        timeout_s: float,
    ) -> None:
        self._verifier = verifier
        self._proposers = proposers
        self._retrievers = retrievers
        self._ttl_s = ttl_s
        self._timeout_s = timeout_s
        self._view: View | None = None
        self._until = 0.0
        self._indexes: OrderedDict[str, tuple[float, Indexes]] = OrderedDict()
        self._lock = asyncio.Lock()

    def invalidate(self) -> None:
        """Something did not behave as described: ask again before the next use."""
        self._until = 0.0
        for tenant, (_, known) in self._indexes.items():
            self._indexes[tenant] = (0.0, known)

    async def view(self, tenant: str = "") -> View:
        """What a request of this tenant may use. Raises the verifier's error if it never answered."""
        async with self._lock:
            view, indexes = await asyncio.gather(self._shared_view(), self._indexes_of(tenant))
            return replace(view, retrievers=indexes)

    async def _shared_view(self) -> View:
        if self._view is None or time.monotonic() >= self._until:
            self._view = await self._refresh()
            self._until = time.monotonic() + self._ttl_s
        return self._view

    async def _indexes_of(self, tenant: str) -> Indexes:
        until, known = self._indexes.get(tenant, (0.0, (None,) * len(self._retrievers)))
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
        return View(verifier, tuple(sources), ())

    async def _describe_verifier(self) -> VerifierDescription:
        last = self._view.verifier if self._view else None
        try:
            async with asyncio.timeout(None if last is None else self._timeout_s):
                return await self._verifier.describe()
        except (DraftproofError, TimeoutError):
            if last is None:
                raise
            return last

    async def _or_last(self, describe: Callable[[], Awaitable[T]], last: T | None) -> T | None:
        try:
            async with asyncio.timeout(self._timeout_s):
                return await describe()
        except (DraftproofError, TimeoutError):
            return last
