"""One contract for every store: the in-memory one, Valkey, and Redis behind mutual TLS with an ACL user."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from contracts.errors import FailedPrecondition, NotFound
from retriever.live_store import NOWHERE, chained, decode_entry
from retriever.memory_store import MemoryStore
from retriever.redis_store import RedisStore
from retriever.store import HISTORY_LIMIT, Alias, SegmentRecord
from tests.helpers.redis_server import (
    RunningServer,
    make_certificates,
    running_server,
    system_binary,
)

HOUR_MS = 3_600_000
ACL = "user retriever on >secret ~draftproof-* +@all -@dangerous +info"


@pytest.fixture(scope="module")
def valkey() -> Iterator[RunningServer]:
    with running_server() as server:
        yield server


@pytest.fixture(scope="module")
def redis_with_tls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningServer, dict[str, Any]]]:
    binary = system_binary()
    if binary is None or shutil.which("openssl") is None:
        pytest.skip("needs redis-server and openssl on PATH")
    directory = tmp_path_factory.mktemp("tls")
    files = make_certificates(directory)
    (directory / "users.acl").write_text(f"user default off\n{ACL}\n")
    options = ["--tls-ca-cert-file", str(files["ca"]), "--tls-cert-file", str(files["cert"])]
    options += ["--tls-key-file", str(files["key"]), "--aclfile", str(directory / "users.acl")]
    with running_server(binary, options, tls=True) as server:
        yield (
            server,
            {
                "ssl_ca_certs": str(files["ca"]),
                "ssl_certfile": str(files["cert"]),
                "ssl_keyfile": str(files["key"]),
                "username": "retriever",
                "password": "secret",
            },
        )


@pytest.fixture(params=["memory", "valkey", "redis with TLS and ACL"])
def store(request: pytest.FixtureRequest) -> Iterator[MemoryStore | RedisStore]:
    if request.param == "memory":
        yield MemoryStore()
        return
    namespace = f"draftproof-{uuid.uuid4().hex}"
    if request.param == "valkey":
        adapter = RedisStore(request.getfixturevalue("valkey").url, namespace=namespace)
    else:
        server, connection = request.getfixturevalue("redis_with_tls")
        adapter = RedisStore(server.url, namespace=namespace, **connection)
    yield adapter
    adapter.close()


Store = MemoryStore | RedisStore


def put_segment(store: Store, digest: str, chunks: int = 1) -> None:
    for index in range(chunks):
        store.put_chunk(digest, index, f"{digest}-{index}".encode())
    store.seal_segment(SegmentRecord(digest, 10 * chunks, ("00",) * chunks))


def put_release(store: Store, release_id: str, *digests: str) -> None:
    for digest in digests:
        put_segment(store, digest)
    store.put_release(release_id, f"bytes of {release_id}".encode(), digests)


def test_chunks_and_records_come_back(store: Store) -> None:
    put_segment(store, "s", 2)
    assert store.get_chunk("s", 1) == b"s-1"
    assert store.segment("s") == SegmentRecord("s", 20, ("00", "00"))
    blob = bytes(range(256)) * 4096 * 4
    store.put_chunk("s", 0, blob)
    assert store.get_chunk("s", 0) == blob


def test_what_is_not_there_is_not_found(store: Store) -> None:
    assert store.segment("s") is None
    assert store.aliases() == {}
    assert store.history("i") == ()
    with pytest.raises(NotFound, match="chunk"):
        store.get_chunk("s", 0)
    with pytest.raises(NotFound, match="release_id"):
        store.get_release("r")
    with pytest.raises(NotFound, match="release_id"):
        store.set_alias("i", "r", 0)


def test_a_segment_with_a_missing_chunk_cannot_be_sealed(store: Store) -> None:
    store.put_chunk("s", 0, b"x")
    with pytest.raises(FailedPrecondition, match="1 of 2"):
        store.seal_segment(SegmentRecord("s", 2, ("00", "00")))
    assert store.segment("s") is None


def test_a_release_of_an_unsealed_segment_cannot_be_stored(store: Store) -> None:
    put_segment(store, "a")
    store.put_chunk("b", 0, b"x")
    with pytest.raises(FailedPrecondition, match="b is not sealed"):
        store.put_release("r", b"bytes", ["a", "b"])
    with pytest.raises(NotFound):
        store.get_release("r")


def test_an_alias_moves_by_compare_and_set(store: Store) -> None:
    put_release(store, "r1", "a")
    put_release(store, "r2", "a", "b")
    assert store.set_alias("i", "r1", 0) == Alias("i", "r1", 1)
    with pytest.raises(FailedPrecondition, match="expected_version"):
        store.set_alias("i", "r2", 0)
    assert store.aliases() == {"i": Alias("i", "r1", 1)}
    store.set_alias("i", "r2", 1)
    store.set_alias("i", "r1", 2)
    assert [(a.release_id, a.version) for a in store.history("i")] == [("r1", 3), ("r2", 2), ("r1", 1)]


def test_a_repeated_alias_change_changes_nothing(store: Store) -> None:
    put_release(store, "r1", "a")
    cursor = store.event_cursor()
    assert store.set_alias("i", "r1", 0) == store.set_alias("i", "r1", 0)
    assert len(store.history("i")) == 1
    assert store.events(cursor, 0)[1] == (Alias("i", "r1", 1),)


def test_a_late_repeat_does_not_undo_a_rollback(store: Store) -> None:
    put_release(store, "r1", "a")
    put_release(store, "r2", "a")
    store.set_alias("i", "r1", 0)
    store.set_alias("i", "r2", 1)
    store.set_alias("i", "r1", 2)
    with pytest.raises(FailedPrecondition):
        store.set_alias("i", "r2", 1)


def test_history_is_bounded(store: Store) -> None:
    put_release(store, "r1", "a")
    put_release(store, "r2", "a")
    for version in range(HISTORY_LIMIT + 3):
        store.set_alias("i", f"r{version % 2 + 1}", version)
    assert len(store.history("i")) == HISTORY_LIMIT
    assert store.history("i")[0].version == HISTORY_LIMIT + 3


def test_events_after_a_cursor_are_told_once_and_in_order(store: Store) -> None:
    put_release(store, "r1", "a")
    put_release(store, "r2", "a")
    store.set_alias("before", "r1", 0)
    cursor = store.event_cursor()
    assert store.events(cursor, 1) == (cursor, ())
    store.set_alias("i", "r1", 0)
    store.set_alias("i", "r2", 1)
    cursor, changes = store.events(cursor, 1000)
    assert changes == (Alias("i", "r1", 1), Alias("i", "r2", 2))
    assert store.events(cursor, 1)[1] == ()


def test_collect_takes_what_nothing_reaches(store: Store) -> None:
    put_release(store, "old", "shared", "only-old")
    put_release(store, "new", "shared", "only-new")
    put_release(store, "never", "only-never")
    put_segment(store, "loose")
    store.put_chunk("cut", 0, b"x")
    store.set_alias("i", "old", 0)
    store.set_alias("i", "new", 1)
    assert store.collect(HOUR_MS, 1) == ()
    assert store.collect(0, 2) == ("cut", "loose", "never", "only-never")
    assert store.collect(0, 1) == ("old", "only-old")
    assert store.collect(0, 0) == ()
    assert store.get_release("new") == b"bytes of new"
    assert store.get_chunk("shared", 0) == b"shared-0"
    with pytest.raises(NotFound):
        store.get_chunk("only-old", 0)


def test_collect_spares_a_publication_in_progress(store: Store) -> None:
    store.lease("p", {"s"}, HOUR_MS)
    store.lease("p", {"r"}, HOUR_MS)
    store.put_chunk("s", 0, b"x")
    assert store.collect(0, 1) == ()
    store.seal_segment(SegmentRecord("s", 1, ("00",)))
    store.put_release("r", b"bytes", ["s"])
    assert store.collect(0, 1) == ()
    store.end_lease("p")
    store.end_lease("p")
    assert store.collect(0, 1) == ("r", "s")


def test_live_entries_keep_their_order_and_their_generation(store: Store) -> None:
    a = store.append_live("scope", "a", b"Ta", 10)
    b = store.append_live("scope", "b", b"Tb", 10)
    assert (b.sequence, store.live_head("scope")) == (a.sequence + 1, b)
    assert store.append_live("scope", "a", b"Ta", 10) == a
    entries = store.read_live("scope", 0, 10)
    assert [(e.point, e.entry_id) for e in entries[1:]] == [(a, "a"), (b, "b")]
    assert decode_entry(entries[0].payload) == entries[0].sequence - 1 == a.sequence - 2
    assert [e.entry_id for e in store.read_live("scope", a.sequence, 10)] == ["b"]
    assert [e.sequence for e in store.read_live("scope", 0, 2)] == [a.sequence - 1, a.sequence]
    assert store.read_live("other", 0, 10) == ()
    assert store.live_head("other") == NOWHERE


def test_every_live_entry_carries_the_digest_of_what_came_before_it(store: Store) -> None:
    points = [store.append_live("scope", f"{n}", b"T\x00\xff" * n, 10) for n in range(4)]
    entries = store.read_live("scope", 0, 10)
    chain = ""
    for entry in entries:
        assert entry.before == chain
        chain = chained(chain, entry.entry_id, entry.payload)
    assert [entry.point for entry in entries[1:]] == points
    assert len({point.generation for point in points}) == 4
    assert all(0 < point.generation < 2**63 for point in points)


def test_live_streams_drop_their_oldest_entries(store: Store) -> None:
    newest = [store.append_live("scope", name, b"T", 2) for name in "abcd"][-1].sequence
    assert [e.entry_id for e in store.read_live("scope", 0, 10)] == ["c", "d"]
    assert store.append_live("scope", "a", b"T", 2).sequence == newest + 1
    store.trim_live("scope", newest)
    assert [e.entry_id for e in store.read_live("scope", 0, 10)] == ["a"]
    assert store.append_live("scope", "d", b"T", 2).sequence == newest + 2


def test_an_expired_lease_protects_nothing_and_an_age_is_an_age() -> None:
    now = [1_000]
    store = MemoryStore(lambda: now[0])
    store.lease("p", {"s"}, 500)
    store.put_chunk("s", 0, b"x")
    now[0] += 499
    assert store.collect(0, 1) == ()
    now[0] += 1
    assert store.collect(501, 1) == ()
    assert store.collect(500, 1) == ("s",)
