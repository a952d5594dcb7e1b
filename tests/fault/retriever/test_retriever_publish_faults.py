"""Publications that are cut off, sources and stores that hold other bytes than they should."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from contracts.errors import DataLoss, InvalidArgument, NotFound, Unavailable
from retriever.library import Library
from retriever.memory_store import MemoryStore
from retriever.publish import activate, publish
from retriever.release import Release, SegmentEntry
from retriever.store import MIN_CHUNK_BYTES
from retriever.trie import QueryLimits
from tests.unit.retriever.corpora import TRACE, manifest, put_up, release_and_bytes

STEPS = ("lease", "put_chunk", "get_chunk", "seal_segment", "put_release", "end_lease", "set_alias")


class Crashing(MemoryStore):
    """Raises at the n-th call of a step that a publisher makes, before or after doing it."""

    def __init__(self, crash_at: int, after: bool) -> None:
        super().__init__()
        self.calls_left = crash_at
        self.after = after
        self.armed = False

    def __getattribute__(self, name: str) -> object:
        method = super().__getattribute__(name)
        if name not in STEPS or not super().__getattribute__("armed"):
            return method

        def step(*arguments: object) -> object:
            self.calls_left -= 1
            if self.calls_left == 0 and not self.after:
                raise Unavailable("test", f"crash before {name}")
            result = method(*arguments)
            if self.calls_left == 0:
                raise Unavailable("test", f"crash after {name}")
            return result

        return step


def big_documents() -> list[list[int]]:
    return [np.random.default_rng(5).integers(0, 40_000, 400_000).tolist()]


def test_a_crash_at_any_step_leaves_the_old_release_and_a_repeat_succeeds(tmp_path: Path) -> None:
    release, sources = release_and_bytes(big_documents(), [TRACE])
    crashes = 0
    for turn in itertools.count(2):
        crash_at, after = turn // 2, turn % 2 == 1
        store = Crashing(crash_at, after)
        old = put_up(store, "py", [[0, 1]])
        library = Library(store, tmp_path)
        library.poll()
        store.armed = True
        try:
            publish(store, release, sources, chunk_bytes=MIN_CHUNK_BYTES)
            activate(store, "py", release.release_id)
        except Unavailable as error:
            crashes += 1
            library.poll()
            moved = "after set_alias" in str(error)
            assert library.current("py").release_id == (release.release_id if moved else old)
            store.armed = False
            # The dead publisher's lease, where there is one, holds its pieces; the served release is never touched.
            store.collect(0, 1)
            publish(store, release, sources, chunk_bytes=MIN_CHUNK_BYTES)
            activate(store, "py", release.release_id)
            library.poll()
            assert library.current("py").release_id == release.release_id
            continue
        break
    assert crashes > 2 * len(STEPS)


def test_leftovers_of_a_dead_publication_are_collected_after_its_lease() -> None:
    now = [0]
    store = MemoryStore(lambda: now[0])
    release, sources = release_and_bytes([TRACE], big_documents())
    del sources[release.segments[1].digest]
    with pytest.raises(InvalidArgument, match="sources"):
        publish(store, release, sources)
    assert store.collect(0, 1) == ()
    now[0] += 3_600_000
    assert store.collect(60_000, 1) == (release.segments[0].digest,)


def test_a_source_that_is_not_its_digest_is_never_sealed() -> None:
    store = MemoryStore()
    release, sources = release_and_bytes([TRACE])
    digest = release.segments[0].digest
    with pytest.raises(DataLoss, match="sources"):
        publish(store, release, {digest: sources[digest] + b"\0"})
    assert store.segment(digest) is None
    with pytest.raises(NotFound):
        store.get_release(release.release_id)


@pytest.mark.parametrize("size", [MIN_CHUNK_BYTES - 1, 4 * MIN_CHUNK_BYTES + 1])
def test_chunk_sizes_outside_one_to_four_megabytes_are_refused(size: int) -> None:
    release, sources = release_and_bytes([TRACE])
    with pytest.raises(InvalidArgument, match="chunk_bytes"):
        publish(MemoryStore(), release, sources, chunk_bytes=size)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ("changed", "chunk: chunk 0 of segment"),
        ("truncated", "chunk: chunk 0 of segment"),
        ("missing", "chunk"),
        ("swapped segment", "chunk: chunk 0 of segment"),
    ],
)
def test_a_damaged_chunk_is_reported_and_the_old_release_served(tmp_path: Path, damage: str, words: str) -> None:
    store = MemoryStore()
    library = Library(store, tmp_path)
    old = put_up(store, "py", [[0, 1]])
    library.poll()
    release, sources = release_and_bytes([TRACE])
    publish(store, release, sources)
    digest = release.segments[0].digest
    chunk = store._chunks[digest][0]
    if damage == "changed":
        store._chunks[digest][0] = chunk[:200] + bytes([chunk[200] ^ 1]) + chunk[201:]
    elif damage == "truncated":
        store._chunks[digest][0] = chunk[:-1]
    elif damage == "missing":
        del store._chunks[digest][0]
    else:
        store._segments[digest] = next(r for d, r in store._segments.items() if d != digest)
    activate(store, "py", release.release_id)
    library.poll()
    assert library.current("py").release_id == old
    assert library.current("py").segments.retrieve([0], QueryLimits()).tokens.tolist() == [1]
    assert library.status().indexes["py"].error.startswith(words)


def test_a_release_record_that_was_changed_is_reported(tmp_path: Path) -> None:
    store = MemoryStore()
    library = Library(store, tmp_path)
    release_id = put_up(store, "py", [TRACE])
    data, digests = store._releases[release_id]
    store._releases[release_id] = (data.replace(b"toy", b"ton"), digests)
    library.poll()
    assert "came under the name" in library.status().indexes["py"].error


def test_a_release_that_lies_about_its_segment_is_reported(tmp_path: Path) -> None:
    store = MemoryStore()
    release, sources = release_and_bytes([TRACE])
    (entry,) = release.segments
    lying = Release(manifest(), (SegmentEntry(entry.digest, entry.size_bytes, entry.tokens + 1),))
    publish(store, lying, sources)
    activate(store, "py", lying.release_id)
    library = Library(store, tmp_path)
    library.poll()
    assert "tokens" in library.status().indexes["py"].error


def test_a_file_damaged_in_the_cache_is_fetched_again(tmp_path: Path) -> None:
    store = MemoryStore()
    release_id = put_up(store, "py", [TRACE])
    Library(store, tmp_path).poll()
    (path,) = tmp_path.glob("*.segment")
    for damaged in (path.read_bytes()[:-70], b"", path.read_bytes()[:-1] + b"x"):
        path.write_bytes(damaged)
        library = Library(store, tmp_path)
        library.poll()
        assert library.acquire("py", release_id).segments.retrieve([4, 5, 6], QueryLimits()).match_count == 2
