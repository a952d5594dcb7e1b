"""Publishing again over a store whose copy is damaged: it is mended, or the damage is told."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from contracts.errors import DataLoss, DraftproofError
from retriever.library import Library
from retriever.memory_store import MemoryStore
from retriever.publish import activate, in_store, publish, send_segment
from retriever.redis_store import RedisStore
from retriever.store import MIN_CHUNK_BYTES
from tests.helpers.redis_server import running_server
from tests.unit.retriever.corpora import TRACE, release_and_bytes


class Counting(MemoryStore):
    """Counts the chunks that are put in."""

    put = 0

    def put_chunk(self, digest: str, index: int, data: bytes) -> None:
        self.put += 1
        super().put_chunk(digest, index, data)


def documents(seed: int = 5) -> list[list[int]]:
    return [np.random.default_rng(seed).integers(0, 40_000, 400_000).tolist()]


def harm(store: MemoryStore, digest: str, damage: str) -> None:
    chunks, record = store._chunks[digest], store._segments[digest]
    if damage == "changed":
        chunks[1] = b"x" + chunks[1][1:]
    elif damage == "truncated":
        chunks[0] = chunks[0][:-1]
    elif damage == "missing":
        del chunks[1]
    elif damage == "record of another segment":
        store._segments[digest] = next(r for d, r in store._segments.items() if d != digest)
    else:
        assert damage == "chunks of another segment"
        other = next(d for d in store._segments if d != digest)
        store._chunks[digest] = dict(store._chunks[other])
        store._segments[digest] = type(record)(digest, record.size_bytes, store._segments[other].chunk_sha256)


DAMAGES = ("changed", "truncated", "missing", "record of another segment", "chunks of another segment")


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("chunk_bytes", [MIN_CHUNK_BYTES, 4 * MIN_CHUNK_BYTES])
def test_publishing_again_mends_a_damaged_segment(tmp_path: Path, damage: str, chunk_bytes: int) -> None:
    store = MemoryStore()
    release, sources = release_and_bytes(documents(), documents(6))
    publish(store, release, sources, chunk_bytes=MIN_CHUNK_BYTES)
    activate(store, "py", release.release_id)
    digest = release.segments[0].digest
    harm(store, digest, damage)
    library = Library(store, tmp_path, retry_s=0)
    library.poll()
    assert library.status().indexes["py"].error
    publish(store, release, sources, chunk_bytes=chunk_bytes)
    library.poll()
    assert library.current("py").release_id == release.release_id
    assert library.status().indexes["py"].error == ""


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_segment_that_nobody_has_a_source_of_is_told(damage: str) -> None:
    store = MemoryStore()
    release, sources = release_and_bytes(documents(), documents(6))
    publish(store, release, sources, chunk_bytes=MIN_CHUNK_BYTES)
    harm(store, release.segments[0].digest, damage)
    with pytest.raises(DraftproofError, match=release.segments[0].digest):
        publish(store, release, {})


def test_a_sound_segment_is_not_sent_again() -> None:
    store = Counting()
    release, sources = release_and_bytes(documents(), [TRACE])
    publish(store, release, sources)
    sent = store.put
    told: list[tuple[int, int]] = []
    publish(store, release, sources, progress=lambda *step: told.append(step))
    assert store.put == sent
    total = sum(entry.size_bytes for entry in release.segments)
    assert told[-1] == (total, total)


def test_what_the_caller_has_read_back_itself_is_not_read_again() -> None:
    class Unread(MemoryStore):
        def get_chunk(self, digest: str, index: int) -> bytes:
            assert not self.aliases(), "read again"
            return super().get_chunk(digest, index)

    store = Unread()
    release, sources = release_and_bytes(documents(), [TRACE])
    publish(store, release, sources)
    activate(store, "py", release.release_id)
    publish(store, release, {}, checked=[entry.digest for entry in release.segments])
    with pytest.raises(AssertionError, match="read again"):
        publish(store, release, {})


def test_chunks_left_by_a_publication_that_cut_smaller_ones_are_no_obstacle() -> None:
    release, sources = release_and_bytes(documents())
    (entry,) = release.segments
    with running_server() as server:
        redis = RedisStore(server.url)
        for store in (MemoryStore(), redis):
            pieces = send_segment(store, "dead", entry, sources[entry.digest], MIN_CHUNK_BYTES)
            for _ in range(3):
                next(pieces)
            pieces.close()
            publish(store, release, sources, chunk_bytes=4 * MIN_CHUNK_BYTES)
            assert in_store(store, entry)
        redis.close()


def test_a_record_that_cannot_be_read_is_written_anew() -> None:
    release, sources = release_and_bytes([TRACE])
    (entry,) = release.segments
    with running_server() as server:
        store = RedisStore(server.url)
        publish(store, release, sources)
        store._client.set(f"draftproof:segment:{entry.digest}", b"{")
        with pytest.raises(DataLoss):
            in_store(store, entry, complain=True)
        publish(store, release, sources)
        assert in_store(store, entry)
        store.close()
