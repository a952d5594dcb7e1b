"""What a retriever serves: for each index the present release and its last few predecessors, following the store.

Readers take one reference out of an immutable map and keep it for the request, so a swap neither waits for them nor
changes what they read. Only `poll` (one at a time) replaces the map. Whatever goes wrong there is recorded in `status`,
and what was served before is served on, after a restart too: from this machine's disk.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from contracts.errors import DraftproofError, FailedPrecondition, NotFound, Unavailable
from retriever.library_status import IndexStatus, LibraryStatus
from retriever.loading import LoadedRelease, load_release
from retriever.local_copy import LocalCopy, held_by_copies
from retriever.placement import EVERYTHING, Share
from retriever.release import Binding
from retriever.segment_cache import SegmentCache
from retriever.settling import Settler
from retriever.store import Alias, ReleaseReader, ReleaseStore


@dataclass(frozen=True, slots=True)
class _Shelf:
    """The releases of one index, newest first, and the alias that brought the newest."""

    alias: Alias
    releases: tuple[LoadedRelease, ...]


@dataclass(frozen=True, slots=True)
class _Failure:
    alias: Alias
    error: str
    retry_at: float


class Library:
    """Loaded releases by index. Thread-safe.

    binding: what every release must agree with, or who knows it when a release is loaded. keep_releases: how many per index
    stay askable, at least 1. copied_segments: to lie in memory of the process's own, joined (`settling.py`).
    indexes: only these names; None for all. retry_s: pause before a release that failed to load is tried again.
    share: which segments of each release to hold. local_name: tells the copies of several retrievers in one cache directory
    apart; "" for a visitor, who leaves no copy there and takes nothing away. earlier_name: that of an earlier version.
    on_swap: told (index, release) after each change, from the polling thread.
    """

    def __init__(
        self,
        store: ReleaseStore,
        cache_directory: Path,
        *,
        binding: Binding | Callable[[], Binding] = Binding,
        keep_releases: int = 3,
        copied_segments: bool = False,
        indexes: Collection[str] | None = None,
        retry_s: float = 30.0,
        share: Share = EVERYTHING,
        local_name: str = "serving",
        earlier_name: str = "",
        clock: Callable[[], float] = time.monotonic,
        on_swap: Callable[[str, LoadedRelease], None] | None = None,
    ) -> None:
        self._store = store
        self._cache = SegmentCache(cache_directory, copied=copied_segments)
        self._copy = (
            LocalCopy(
                cache_directory / f"{local_name}.json",
                cache_directory / f"{earlier_name}.json" if earlier_name else None,
            )
            if local_name
            else None
        )
        self._from_copy = False
        self.share = share
        self._binding = binding
        self._keep = max(1, keep_releases)
        self._only = None if indexes is None else frozenset(indexes)
        self._retry_s = retry_s
        self._clock = clock
        self._on_swap = on_swap
        self._shelves: Mapping[str, _Shelf] = {}
        self._wanted: Mapping[str, Alias] = {}
        self._failures: dict[str, _Failure] = {}
        self._store_error = "not asked yet"
        self._swaps = 0
        self._polling = threading.Lock()
        self.settler = Settler(self._cache, self._releases, self._exchange) if copied_segments else None
        self._watcher: threading.Thread | None = None
        self._stopping = threading.Event()

    def current(self, index: str, tenant: str = "") -> LoadedRelease:
        """The release that a manifest sealed now should name. Raises NotFound for an index the tenant cannot see."""
        return self._visible(index, tenant)[0]

    def acquire(self, index: str, release_id: str, tenant: str = "") -> LoadedRelease:
        """Exactly the named release.

        Raises NotFound for an index the tenant cannot see, FailedPrecondition where the release is not (or no longer) here.
        """
        shelf = self._shelves.get(index)
        if shelf is not None:
            for loaded in shelf.releases:
                if loaded.release_id == release_id and loaded.visible_to(tenant):
                    return loaded
        here = ", ".join(loaded.release_id for loaded in self._visible(index, tenant))
        raise FailedPrecondition("release_id", f"{index} has {here} here, not {release_id}")

    def visible_indexes(self, tenant: str = "") -> dict[str, str]:
        """Index name to present release id, for what the tenant can see."""
        shelves = self._shelves
        return {n: s.releases[0].release_id for n, s in shelves.items() if s.releases[0].visible_to(tenant)}

    def poll(self) -> None:
        """Ask the store what each index points to and load what changed. Raises nothing of the store's: see `status`."""
        with self._polling:
            try:
                wanted = self._store.aliases()
            except DraftproofError as error:
                self._store_error = str(error)
                if not self._shelves:
                    self._restore()
                return
            finally:
                if self._copy:
                    self._copy.renew()
            if self._store_error:
                # What failed to load may have failed for the store's sake.
                self._failures.clear()
            self._store_error = ""
            self._from_copy = False
            self._wanted = {n: a for n, a in wanted.items() if self._served(n)}
            swaps = self._swaps
            for alias in self._wanted.values():
                self._follow(alias, self._store)
            if self._swaps != swaps:
                self._save()

    def status(self) -> LibraryStatus:
        """A snapshot; it asks nobody."""
        shelves, wanted = self._shelves, self._wanted
        return LibraryStatus(
            store_connected=not self._store_error,
            store_error=self._store_error,
            from_local_copy=self._from_copy,
            swaps=self._swaps,
            indexes={
                name: self._index_status(shelves.get(name), wanted.get(name), name) for name in {**shelves, **wanted}
            },
        )

    def start(self, wait_ms: int = 500, reconnect_s: float = 0.5) -> None:
        """Follow the event stream in a thread until `stop`. wait_ms: how long one read waits, so also how often every
        alias is read afresh (a lost event costs no more than that). reconnect_s: pause after the store failed.
        """
        self._stopping.clear()
        if self.settler:
            self.settler.start()
        self._watcher = threading.Thread(
            target=self._watch, args=(wait_ms, reconnect_s), name="release-watcher", daemon=True
        )
        self._watcher.start()

    def stop(self) -> None:
        """End the watcher; what is loaded stays."""
        self._stopping.set()
        if self.settler:
            self.settler.stop()
        if self._watcher:
            self._watcher.join()
            self._watcher = None

    def _watch(self, wait_ms: int, reconnect_s: float) -> None:
        cursor = None
        while not self._stopping.is_set():
            try:
                # The cursor is taken before the aliases are read: a change in between is then seen twice, not never.
                cursor = cursor or self._store.event_cursor()
                self.poll()
                cursor, _ = self._store.events(cursor, wait_ms)
            except DraftproofError as error:
                self._store_error = str(error)
                cursor = None
                self._stopping.wait(reconnect_s)

    def _visible(self, index: str, tenant: str) -> tuple[LoadedRelease, ...]:
        shelf = self._shelves.get(index)
        releases = tuple(loaded for loaded in shelf.releases if loaded.visible_to(tenant)) if shelf else ()
        if not releases:
            raise NotFound("index", f"no index {index!r} here for tenant {tenant!r}")
        return releases

    def tokenizers(self, index: str) -> frozenset[str]:
        """Digests of the tokenizers that the index's releases here are bound to."""
        shelf = self._shelves.get(index)
        return frozenset(r.release.manifest.tokenizer_sha256 for r in shelf.releases) if shelf else frozenset()

    def _restore(self) -> None:
        """The store is away and nothing is loaded: what was served last, as far as it lies on this disk.

        Nothing on the disk is changed: what does not load now may do so once the store is back.
        """
        if self._copy is None:
            return
        self._wanted = {n: a for n, a in self._copy.aliases().items() if self._served(n)}
        for alias in self._wanted.values():
            self._follow(alias, self._copy)
        self._from_copy = bool(self._shelves)

    def _served(self, index: str) -> bool:
        return self._only is None or index in self._only

    def _save(self) -> None:
        """Bring the disk up to date: the copy, and the segments that neither it nor anybody else's copy needs go."""
        if self._copy is None:
            return
        served = {n: (s.alias, s.releases[0].release.canonical_bytes()) for n, s in self._shelves.items()}
        waiting = self._wanted.keys() - served.keys()
        # A disk that cannot take the copy costs a later start without the store, not the service.
        with contextlib.suppress(OSError):
            self._copy.save({**{n: kept for n, kept in self._copy.saved().items() if n in waiting}, **served})
            held = {e.digest for s in self._shelves.values() for r in s.releases for e in r.release.segments}
            self._cache.prune(held | held_by_copies(self._cache.directory))

    def _follow(self, alias: Alias, source: ReleaseReader) -> None:
        shelf = self._shelves.get(alias.index)
        failure = self._failures.get(alias.index)
        if shelf and shelf.alias == alias:
            return
        if failure and failure.alias == alias and self._clock() < failure.retry_at:
            return
        try:
            self._shelve(alias, source)
        except Exception as error:
            # Also a disk that fails or memory that does not suffice: the watcher must outlive whatever a release holds.
            known = isinstance(error, DraftproofError)
            told = str(error) if known else f"{type(error).__name__}: {error}"
            self._failures[alias.index] = _Failure(alias, told, self._clock() + self._retry_s)
            if isinstance(error, Unavailable):
                self._store_error = str(error)
            if shelf is None and source is not self._copy:
                self._fall_back(alias.index)
            return
        self._failures.pop(alias.index, None)

    def _fall_back(self, index: str) -> None:
        """What the store points to does not load and nothing is served: what was served before the restart may."""
        before = self._copy.aliases().get(index) if self._copy else None
        if before is not None and self._copy is not None:
            # The failure that is told is the new release's.
            with contextlib.suppress(Exception):
                self._shelve(before, self._copy)

    def _shelve(self, alias: Alias, source: ReleaseReader) -> None:
        shelf = self._shelves.get(alias.index)
        present = list(self._releases())
        binding = self._binding if isinstance(self._binding, Binding) else self._binding()
        loaded = next((p for p in present if p.release_id == alias.release_id), None) or load_release(
            source, self._cache, alias.release_id, binding, present, self.share
        )
        older = tuple(r for r in shelf.releases if r.release_id != alias.release_id) if shelf else ()
        self._shelves = {**self._shelves, alias.index: _Shelf(alias, (loaded, *older)[: self._keep])}
        self._swaps += 1
        if self.settler:
            self.settler.wake()
        if self._on_swap:
            self._on_swap(alias.index, loaded)

    def _releases(self) -> Iterator[LoadedRelease]:
        return (loaded for shelf in self._shelves.values() for loaded in shelf.releases)

    def _exchange(self, old: LoadedRelease, new: LoadedRelease) -> None:
        with self._polling:
            shelves = self._shelves.items()
            self._shelves = {
                n: replace(s, releases=tuple(new if r is old else r for r in s.releases)) for n, s in shelves
            }

    def _index_status(self, shelf: _Shelf | None, wanted: Alias | None, name: str) -> IndexStatus:
        failure = self._failures.get(name)
        return IndexStatus(
            serving_release=shelf.releases[0].release_id if shelf else "",
            serving_version=shelf.alias.version if shelf else 0,
            wanted_release=wanted.release_id if wanted else "",
            wanted_version=wanted.version if wanted else 0,
            releases_kept=tuple(loaded.release_id for loaded in shelf.releases) if shelf else (),
            resident_bytes=sum(loaded.segments.resident_bytes for loaded in shelf.releases) if shelf else 0,
            error=failure.error if failure else "",
        )
