"""A real server that is full, read-only, forbidding, or gone: typed errors, and the old release served."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
import redis

from contracts.errors import FailedPrecondition, PermissionDenied, ResourceExhausted, Unavailable
from retriever.library import Library
from retriever.live import LiveLibrary, LivePolicy
from retriever.live_store import LivePoint
from retriever.publish import activate, publish
from retriever.redis_store import RedisStore
from retriever.trie import QueryLimits
from services.redis_embedded import embedded_redis
from tests.helpers.redis_server import free_port, running_server
from tests.unit.retriever.corpora import TRACE, put_up, release_and_bytes


def test_a_full_server_refuses_and_the_old_release_is_served(tmp_path: Path) -> None:
    with running_server() as server:
        store = RedisStore(server.url)
        library = Library(store, tmp_path)
        old = put_up(store, "py", [TRACE])
        library.poll()
        with redis.Redis(port=server.port) as admin:
            admin.config_set("maxmemory", "3mb")
        release, sources = release_and_bytes([np.arange(1_000_000) % 40_000])
        with pytest.raises(ResourceExhausted, match=r"redis\.maxmemory"):
            publish(store, release, sources)
        library.poll()
        assert library.acquire("py", old).segments.retrieve([4, 5, 6], QueryLimits()).match_count == 2
        store.close()


def test_a_read_only_replica_refuses_writes_and_serves_reads(tmp_path: Path) -> None:
    with running_server() as server:
        store = RedisStore(server.url)
        old = put_up(store, "py", [TRACE])
        serving = Library(store, tmp_path / "serving")
        serving.poll()
        with redis.Redis(port=server.port) as admin:
            admin.config_set("replica-serve-stale-data", "yes")
            admin.replicaof("127.0.0.1", free_port())
        release, sources = release_and_bytes([[1, 2]])
        with pytest.raises(FailedPrecondition, match=r"redis\.role"):
            publish(store, release, sources)
        with pytest.raises(FailedPrecondition, match=r"redis\.role"):
            store.put_chunk("s", 0, b"x")
        with pytest.raises(FailedPrecondition, match=r"redis\.role"):
            activate(store, "another", old)
        for library in (serving, Library(store, tmp_path / "new")):
            library.poll()
            assert library.acquire("py", old).segments.retrieve([4, 5, 6], QueryLimits()).match_count == 2
        store.close()


def test_access_rules_refuse_by_name_and_the_old_release_is_served(tmp_path: Path) -> None:
    with running_server() as server:
        owner = RedisStore(server.url)
        old = put_up(owner, "py", [[0, 1]])
        owner.close()
        with redis.Redis(port=server.port) as admin:
            admin.acl_setuser("reader", enabled=True, passwords=["+pw"], keys=["draftproof:*"], categories=["+@read"])
            admin.acl_setuser("writer", enabled=True, passwords=["+pw"], keys=["other:*"], categories=["+@all"])
        release, sources = release_and_bytes([TRACE])
        for user in ("reader", "writer"):
            store = RedisStore(server.url, username=user, password="pw")
            with pytest.raises(PermissionDenied, match=r"redis\.acl"):
                publish(store, release, sources)
            with pytest.raises(PermissionDenied, match=r"redis\.acl"):
                store.put_chunk("s", 0, b"x")
            store.close()
        reader = RedisStore(server.url, username="reader", password="pw")
        library = Library(reader, tmp_path)
        library.poll()
        with redis.Redis(port=server.port) as admin:
            admin.acl_setuser("reader", enabled=True, reset_keys=True)
        library.poll()
        assert (library.status().store_connected, "redis.acl" in library.status().store_error) == (False, True)
        assert library.acquire("py", old).segments.retrieve([0], QueryLimits()).match_count == 1
        reader.close()
        stranger = RedisStore(server.url, username="reader", password="wrong")
        with pytest.raises(PermissionDenied, match=r"redis\.acl"):
            stranger.aliases()
        stranger.close()


def test_a_server_that_is_not_there_is_unavailable() -> None:
    store = RedisStore(f"redis://127.0.0.1:{free_port()}/0", timeout_s=1, retries=0)
    for call in (store.aliases, store.event_cursor, lambda: store.get_chunk("s", 0), lambda: store.events("0-0", 1)):
        with pytest.raises(Unavailable, match="redis"):
            call()
    store.close()


def test_a_server_that_dies_leaves_the_retriever_serving_and_its_return_is_noticed(tmp_path: Path) -> None:
    swapped = threading.Semaphore(0)
    port = free_port()
    with running_server(port=port) as server:
        store = RedisStore(server.url, timeout_s=2, retries=0)
        library = Library(store, tmp_path, on_swap=lambda index, release: swapped.release())
        library.start(wait_ms=50, reconnect_s=0.02)
        try:
            old = put_up(store, "py", [TRACE])
            assert swapped.acquire(timeout=30)
            server.stop()
            library.poll()
            assert not library.status().store_connected
            assert library.acquire("py", old).segments.retrieve([4, 5, 6], QueryLimits()).match_count == 2
            with running_server(port=port):
                new = put_up(store, "py", [[0, 1]])
                assert swapped.acquire(timeout=30)
                assert library.current("py").release_id == new
        finally:
            library.stop()
            store.close()


def test_a_lost_reply_does_not_move_an_alias_twice() -> None:
    with running_server() as server:
        store = RedisStore(server.url)
        release, sources = release_and_bytes([TRACE])
        publish(store, release, sources)
        cursor = store.event_cursor()
        assert activate(store, "py", release.release_id, 0) == activate(store, "py", release.release_id, 0)
        assert len(store.events(cursor, 100)[1]) == 1
        store.close()


def test_a_corrupt_chunk_in_the_server_is_found(tmp_path: Path) -> None:
    with running_server() as server:
        store = RedisStore(server.url)
        library = Library(store, tmp_path)
        release, sources = release_and_bytes([TRACE])
        publish(store, release, sources)
        with redis.Redis(port=server.port) as admin:
            admin.hset(f"draftproof:chunks:{release.segments[0].digest}", "0", b"garbage")
        activate(store, "py", release.release_id)
        library.poll()
        assert "fails its sha256" in library.status().indexes["py"].error
        store.close()


def test_a_live_stream_that_an_earlier_version_began_is_read_and_continued() -> None:
    with running_server() as server, redis.Redis(port=server.port) as admin:
        store = RedisStore(server.url, namespace="n")
        for sequence, name in ((1_000, "old-1"), (1_001, "old-2")):
            admin.xadd("n:live:s", {"id": name, "payload": b"T"}, id=f"{sequence}-0")
            admin.hset("n:live-ids:s", name, sequence)
            admin.set("n:live-newest:s", sequence)
        assert store.live_head("s") == LivePoint(1_001, "")
        assert store.append_live("s", "old-2", b"T", 10) == LivePoint(1_001, "")
        new = store.append_live("s", "new", b"T", 10)
        # The earlier version writes once more, and knows of no chain.
        admin.xadd("n:live:s", {"id": "old-3", "payload": b"T"}, id="1003-0")
        admin.incr("n:live-newest:s")
        assert store.live_head("s") == LivePoint(1_003, "")
        last = store.append_live("s", "newer", b"T", 10)
        entries = store.read_live("s", 0, 10)
        assert [entry.before for entry in entries] == [None, None, "", None, ""]
        assert [entry.point for entry in entries[2::2]] == [new, last]
        assert store.live_head("s") == last
        store.close()


def test_a_server_that_comes_back_from_an_older_snapshot_gives_no_generation_twice(tmp_path: Path) -> None:
    policies = {"py": LivePolicy(frozenset({"a"}), 1_000)}
    with embedded_redis(tmp_path) as server:
        store = RedisStore(server.url)
        lived = LiveLibrary(store, policies)
        kept = lived.publish("py", "a", "1", [1, 2])
        with redis.Redis(port=server.port) as admin:
            admin.save()
            lost = lived.publish("py", "a", "2", [1, 3])
            lived.poll()
            assert outputs(lived, lost) == [[1, 2], [1, 3]]
            admin.shutdown(nosave=True)
        server._process.wait(30)
        lived.poll()
        assert lived.status().store_error
        assert outputs(lived, lost) == [[1, 2], [1, 3]]
        server.restart()
        lived.poll()
        assert (lived.status().store_error, lived.generation("py", "a")) == ("", kept)
        new = lived.publish("py", "a", "3", [1, 4])
        assert new not in (kept, lost)
        restarted = LiveLibrary(store, policies)
        for live in (lived, restarted):
            live.poll()
            assert live.generation("py", "a") == new
            assert outputs(live, new) == [[1, 2], [1, 4]]
            assert outputs(live, lost) is None
        store.close()


def outputs(live: LiveLibrary, generation: int) -> list[list[int]] | None:
    segments = live.segments("py", "a", generation)
    return None if segments is None else sorted(d.tolist() for s in segments for d in s.token_documents() if d.size)
