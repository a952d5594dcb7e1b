"""The release store in this process: the fake for tests, and the store of a single-process set-up."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Sequence

from contracts.errors import FailedPrecondition, NotFound
from retriever.live_store import NOWHERE, LiveEntry, LivePoint, encode_floor
from retriever.store import HISTORY_LIMIT, Alias, SegmentRecord


class MemoryStore:
    """See `store.ReleaseStore` and `live_store.LiveStore`. Thread-safe. `now_ms` is the clock of leases and ages."""

    def __init__(self, now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000) -> None:
        self._now_ms = now_ms
        self._changed = threading.Condition()
        self._leases: dict[str, tuple[int, frozenset[str]]] = {}
        self._chunks: dict[str, dict[int, bytes]] = {}
        self._segments: dict[str, SegmentRecord] = {}
        self._releases: dict[str, tuple[bytes, tuple[str, ...]]] = {}
        self._touched: dict[str, int] = {}
        self._history: dict[str, list[Alias]] = {}
        self._events: list[Alias] = []
        self._live: dict[str, list[LiveEntry]] = {}
        self._live_heads: dict[str, LivePoint] = {}

    def lease(self, publication: str, names: Collection[str], ttl_ms: int) -> None:
        with self._changed:
            _, held = self._leases.get(publication, (0, frozenset[str]()))
            self._leases[publication] = (self._now_ms() + ttl_ms, held | set(names))

    def end_lease(self, publication: str) -> None:
        with self._changed:
            self._leases.pop(publication, None)

    def put_chunk(self, digest: str, index: int, data: bytes) -> None:
        with self._changed:
            self._chunks.setdefault(digest, {})[index] = data
            self._touched[digest] = self._now_ms()

    def get_chunk(self, digest: str, index: int) -> bytes:
        with self._changed:
            data = self._chunks.get(digest, {}).get(index)
        if data is None:
            raise NotFound("chunk", f"the store has no chunk {index} of segment {digest}")
        return data

    def seal_segment(self, record: SegmentRecord) -> None:
        with self._changed:
            wanted = range(len(record.chunk_sha256))
            held = {index: data for index, data in self._chunks.get(record.digest, {}).items() if index in wanted}
            if len(held) != len(wanted):
                raise FailedPrecondition("segment.chunks", f"{len(held)} of {len(wanted)} are in the store")
            self._chunks[record.digest] = held
            self._segments[record.digest] = record
            self._touched[record.digest] = self._now_ms()

    def segment(self, digest: str) -> SegmentRecord | None:
        with self._changed:
            return self._segments.get(digest)

    def put_release(self, release_id: str, data: bytes, digests: Sequence[str]) -> None:
        with self._changed:
            for digest in digests:
                if digest not in self._segments:
                    raise FailedPrecondition("release.segments", f"{digest} is not sealed")
            self._releases[release_id] = (data, tuple(digests))
            self._touched[release_id] = self._now_ms()

    def get_release(self, release_id: str) -> bytes:
        with self._changed:
            if release_id not in self._releases:
                raise NotFound("release_id", f"the store has no release {release_id}")
            return self._releases[release_id][0]

    def aliases(self) -> dict[str, Alias]:
        with self._changed:
            return {index: history[0] for index, history in self._history.items()}

    def history(self, index: str) -> tuple[Alias, ...]:
        with self._changed:
            return tuple(self._history.get(index, ()))

    def set_alias(self, index: str, release_id: str, expected_version: int) -> Alias:
        with self._changed:
            if release_id not in self._releases:
                raise NotFound("release_id", f"the store has no release {release_id}")
            history = self._history.get(index, [])
            version = history[0].version if history else 0
            changed = Alias(index, release_id, expected_version + 1)
            if history and history[0] == changed:
                return changed
            if version != expected_version:
                raise FailedPrecondition("expected_version", f"{index} is at {version}, not {expected_version}")
            self._history[index] = [changed, *history][:HISTORY_LIMIT]
            self._events.append(changed)
            self._changed.notify_all()
            return changed

    def event_cursor(self) -> str:
        with self._changed:
            return str(len(self._events))

    def events(self, cursor: str, timeout_ms: int) -> tuple[str, tuple[Alias, ...]]:
        with self._changed:
            self._changed.wait_for(lambda: len(self._events) > int(cursor), timeout_ms / 1000)
            return str(len(self._events)), tuple(self._events[int(cursor) :])

    def collect(self, grace_ms: int, keep_history: int) -> tuple[str, ...]:
        with self._changed:
            now = self._now_ms()
            held = {name for expiry, names in self._leases.values() if expiry > now for name in names}
            held |= {a.release_id for h in self._history.values() for a in h[: max(1, keep_history)]}
            gone = [r for r in self._releases if r not in held and self._touched[r] <= now - grace_ms]
            for release_id in gone:
                del self._releases[release_id], self._touched[release_id]
            held |= {digest for _, digests in self._releases.values() for digest in digests}
            lost = [d for d in self._touched if d not in self._releases and d not in held]
            for digest in [d for d in lost if self._touched[d] <= now - grace_ms]:
                del self._touched[digest]
                self._chunks.pop(digest, None)
                self._segments.pop(digest, None)
                gone.append(digest)
            return tuple(sorted(gone))

    def append_live(self, scope: str, entry_id: str, payload: bytes, max_entries: int) -> LivePoint:
        with self._changed:
            entries = self._live.setdefault(scope, [])
            for entry in entries:
                if entry.entry_id == entry_id:
                    return entry.point
            if scope not in self._live_heads:
                start = self._now_ms() + 1
                entries.append(LiveEntry(start, f"floor-{start - 1}", encode_floor(start - 1), ""))
                self._live_heads[scope] = entries[-1].point
            head = self._live_heads[scope]
            entries.append(LiveEntry(head.sequence + 1, entry_id, payload, head.chain))
            self._live_heads[scope] = entries[-1].point
            del entries[: max(0, len(entries) - max_entries)]
            self._changed.notify_all()
            return self._live_heads[scope]

    def live_head(self, scope: str) -> LivePoint:
        with self._changed:
            return self._live_heads.get(scope, NOWHERE)

    def read_live(self, scope: str, after: int, limit: int) -> tuple[LiveEntry, ...]:
        with self._changed:
            return tuple(entry for entry in self._live.get(scope, []) if entry.sequence > after)[:limit]

    def trim_live(self, scope: str, through: int) -> None:
        with self._changed:
            kept = [entry for entry in self._live.get(scope, []) if entry.sequence > through]
            self._live[scope] = kept
