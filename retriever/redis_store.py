"""The release store and the live streams in Redis or Valkey, shared by all retrievers.

The only module that imports redis. Every change is one Lua step or an idempotent command, so the client library's
retries after a lost reply are harmless. Needs commands of Redis 6.2 or later. Not for Redis Cluster.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import redis
from redis.backoff import ExponentialBackoff
from redis.retry import Retry

from contracts.errors import (
    DataLoss,
    FailedPrecondition,
    NotFound,
    PermissionDenied,
    ResourceExhausted,
    Unavailable,
)
from retriever import redis_scripts
from retriever.live_store import LiveEntry, LivePoint
from retriever.store import HISTORY_LIMIT, Alias, SegmentRecord

# A blocking read must outlive its own wait: redis-py's default socket timeout would cut it.
BLOCKING_MARGIN_S = 5.0


class RedisStore:
    """See `store.ReleaseStore` and `live_store.LiveStore`. Thread-safe; `close` when done.

    url: redis://, rediss:// or unix://, with user, password and database as redis-py reads them.
    namespace: prefix of every key. timeout_s: of connecting and of each command.
    connection: further redis-py connection keywords (ssl_ca_certs, ssl_certfile, ssl_keyfile, username, password ...).
    """

    def __init__(
        self, url: str, *, namespace: str = "draftproof", timeout_s: float = 5.0, retries: int = 1, **connection: Any
    ) -> None:
        def client(read_timeout_s: float | None) -> Any:
            pool = redis.BlockingConnectionPool.from_url(
                url,
                protocol=2,
                socket_timeout=read_timeout_s,
                socket_connect_timeout=timeout_s,
                health_check_interval=30,
                retry=Retry(ExponentialBackoff(cap=0.2, base=0.02), retries),
                max_connections=32,
                timeout=timeout_s,
                **connection,
            )
            return redis.Redis(connection_pool=pool)

        self._namespace = namespace
        self._client = client(timeout_s)
        self._blocking: Callable[[float], Any] = client
        self._listener: tuple[float, Any] | None = None
        scripts = redis_scripts
        self._put_chunk = self._client.register_script(scripts.PUT_CHUNK)
        self._seal = self._client.register_script(scripts.SEAL)
        self._put_release = self._client.register_script(scripts.PUT_RELEASE)
        self._set_alias = self._client.register_script(scripts.SET_ALIAS)
        self._collect = self._client.register_script(scripts.COLLECT)
        self._append_live = self._client.register_script(scripts.APPEND_LIVE)
        self._trim_live = self._client.register_script(scripts.TRIM_LIVE)

    def close(self) -> None:
        """Drop all connections."""
        self._client.close()
        self._client.connection_pool.disconnect()
        if self._listener:
            self._listener[1].close()
            self._listener[1].connection_pool.disconnect()

    def lease(self, publication: str, names: Collection[str], ttl_ms: int) -> None:
        with _typed_errors(), self._client.pipeline(transaction=True) as steps:
            steps.sadd(self._key("lease", publication), *sorted(names))
            steps.pexpire(self._key("lease", publication), ttl_ms)
            steps.sadd(self._key("leases"), publication)
            steps.execute()

    def end_lease(self, publication: str) -> None:
        with _typed_errors():
            self._client.delete(self._key("lease", publication))

    def put_chunk(self, digest: str, index: int, data: bytes) -> None:
        with _typed_errors():
            self._put_chunk([self._key("chunks", digest), self._key("inventory")], [index, data, f"s:{digest}"])

    def get_chunk(self, digest: str, index: int) -> bytes:
        with _typed_errors():
            data: bytes | None = self._client.hget(self._key("chunks", digest), index)
        if data is None:
            raise NotFound("chunk", f"the store has no chunk {index} of segment {digest}")
        return data

    def seal_segment(self, record: SegmentRecord) -> None:
        keys = [self._key("chunks", record.digest), self._key("segment", record.digest), self._key("inventory")]
        value = json.dumps({"size_bytes": record.size_bytes, "chunk_sha256": record.chunk_sha256})
        with _typed_errors():
            held = self._seal(keys, [len(record.chunk_sha256), value, f"s:{record.digest}"])
        if held != len(record.chunk_sha256):
            raise FailedPrecondition("segment.chunks", f"{held} of {len(record.chunk_sha256)} are in the store")

    def segment(self, digest: str) -> SegmentRecord | None:
        with _typed_errors():
            data = self._client.get(self._key("segment", digest))
        if data is None:
            return None
        try:
            value = json.loads(data)
            return SegmentRecord(digest, int(value["size_bytes"]), tuple(value["chunk_sha256"]))
        except (ValueError, KeyError, TypeError) as error:
            raise DataLoss("segment", f"the store's record of {digest} cannot be read: {error}") from error

    def put_release(self, release_id: str, data: bytes, digests: Sequence[str]) -> None:
        with _typed_errors():
            missing = self._put_release([self._namespace, self._key("inventory")], [release_id, data, *digests])
        if missing:
            raise FailedPrecondition("release.segments", f"{missing.decode()} is not sealed")

    def get_release(self, release_id: str) -> bytes:
        with _typed_errors():
            data: bytes | None = self._client.get(self._key("release", release_id))
        if data is None:
            raise NotFound("release_id", f"the store has no release {release_id}")
        return data

    def aliases(self) -> dict[str, Alias]:
        with _typed_errors():
            names = sorted(name.decode() for name in self._client.smembers(self._key("indexes")))
            with self._client.pipeline(transaction=False) as steps:
                for name in names:
                    steps.lindex(self._key("history", name), 0)
                heads = steps.execute()
        return {name: _alias(name, head) for name, head in zip(names, heads, strict=True) if head is not None}

    def history(self, index: str) -> tuple[Alias, ...]:
        with _typed_errors():
            return tuple(_alias(index, entry) for entry in self._client.lrange(self._key("history", index), 0, -1))

    def set_alias(self, index: str, release_id: str, expected_version: int) -> Alias:
        keys = [
            self._key("release", release_id),
            self._key("history", index),
            self._key("indexes"),
            self._key("events"),
        ]
        with _typed_errors():
            outcome = self._set_alias(keys, [index, release_id, expected_version, HISTORY_LIMIT])
        if outcome == -2:
            raise NotFound("release_id", f"the store has no release {release_id}")
        if outcome != -1:
            raise FailedPrecondition("expected_version", f"{index} is at {outcome}, not {expected_version}")
        return Alias(index, release_id, expected_version + 1)

    def event_cursor(self) -> str:
        with _typed_errors():
            newest = self._client.xrevrange(self._key("events"), count=1)
        return newest[0][0].decode() if newest else "0-0"

    def events(self, cursor: str, timeout_ms: int) -> tuple[str, tuple[Alias, ...]]:
        with _typed_errors():
            # Redis reads BLOCK 0 as for ever.
            found = self._listening(timeout_ms).xread({self._key("events"): cursor}, block=max(1, timeout_ms))
        entries = found[0][1] if found else []
        changes = tuple(_alias(fields[b"index"].decode(), fields[b"entry"]) for _, fields in entries)
        return (entries[-1][0].decode() if entries else cursor), changes

    def collect(self, grace_ms: int, keep_history: int) -> tuple[str, ...]:
        with _typed_errors():
            gone = self._collect([self._namespace], [grace_ms, max(1, keep_history)])
        return tuple(sorted(name.decode() for name in gone))

    def append_live(self, scope: str, entry_id: str, payload: bytes, max_entries: int) -> LivePoint:
        keys = [self._key(kind, scope) for kind in ("live", "live-ids", "live-newest", "live-head")]
        with _typed_errors():
            return _point(self._append_live(keys, [entry_id, payload, max_entries]))

    def live_head(self, scope: str) -> LivePoint:
        with _typed_errors():
            newest, head = self._client.mget(self._key("live-newest", scope), self._key("live-head", scope))
        known = _point(head or b"0")
        # A counter that moved on without the chain was moved by a version that kept none.
        return known if newest is None or known.sequence == int(newest) else LivePoint(int(newest), "")

    def read_live(self, scope: str, after: int, limit: int) -> tuple[LiveEntry, ...]:
        with _typed_errors():
            found = self._client.xrange(self._key("live", scope), min=f"({after}-0", count=limit)
        return tuple(
            LiveEntry(
                int(name.split(b"-")[0]),
                fields[b"id"].decode(),
                fields[b"payload"],
                fields[b"before"].decode() if b"before" in fields else None,
            )
            for name, fields in found
        )

    def trim_live(self, scope: str, through: int) -> None:
        with _typed_errors():
            self._trim_live([self._key("live", scope), self._key("live-ids", scope)], [through])

    def _key(self, *parts: str) -> str:
        return ":".join((self._namespace, *parts))

    def _listening(self, timeout_ms: int) -> Any:
        wait_s = timeout_ms / 1000 + BLOCKING_MARGIN_S
        if self._listener is None or self._listener[0] < wait_s:
            self._listener = (wait_s, self._blocking(wait_s))
        return self._listener[1]


def _point(record: bytes) -> LivePoint:
    sequence, _, chain = record.decode().partition(" ")
    return LivePoint(int(sequence), chain)


def _alias(index: str, entry: bytes) -> Alias:
    version, _, release_id = entry.decode().partition(" ")
    return Alias(index, release_id, int(version))


@contextmanager
def _typed_errors() -> Iterator[None]:
    """Translate redis-py's exceptions and the server's error codes into ours."""
    try:
        yield
    except (redis.AuthenticationError, redis.exceptions.NoPermissionError) as error:
        raise PermissionDenied("redis.acl", str(error)) from error
    except redis.ReadOnlyError as error:
        raise FailedPrecondition("redis.role", f"the server is read-only: {error}") from error
    except redis.exceptions.OutOfMemoryError as error:
        raise ResourceExhausted("redis.maxmemory", str(error)) from error
    except (redis.ConnectionError, redis.TimeoutError) as error:
        raise Unavailable("redis", str(error)) from error
    except redis.ResponseError as error:
        text = str(error)
        if "ACL failure" in text or "NOPERM" in text:
            raise PermissionDenied("redis.acl", text) from error
        if "OOM" in text or "maxmemory" in text:
            raise ResourceExhausted("redis.maxmemory", text) from error
        if "READONLY" in text or "read only replica" in text:
            raise FailedPrecondition("redis.role", f"the server is read-only: {text}") from error
        raise Unavailable("redis", text) from error
