"""The library: loading, swapping, keeping, hiding, surviving."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from contracts.errors import FailedPrecondition, InvalidArgument, NotFound, Unavailable
from retriever.corpus import Corpus
from retriever.library import Library
from retriever.memory_store import MemoryStore
from retriever.placement import Share
from retriever.publish import rollback
from retriever.release import Binding
from retriever.retriever import Retriever
from retriever.store import Alias
from retriever.trie import QueryLimits
from tests.unit.retriever.corpora import TRACE, put_up

LIMITS = QueryLimits(max_suffix=8, max_continuation=4)


class BrokenAtWill(MemoryStore):
    """A store that can be made unreachable."""

    def __init__(self) -> None:
        super().__init__()
        self.broken = False

    def aliases(self) -> dict[str, Alias]:
        if self.broken:
            raise Unavailable("store", "gone")
        return super().aliases()

    def event_cursor(self) -> str:
        if self.broken:
            raise Unavailable("store", "gone")
        return super().event_cursor()


def test_an_index_is_served_after_a_poll(tmp_path: Path) -> None:
    store = MemoryStore()
    release_id = put_up(store, "py", [TRACE])
    library = Library(store, tmp_path)
    with pytest.raises(NotFound, match="index"):
        library.current("py")
    library.poll()
    assert library.current("py").release_id == release_id
    answer = Retriever(library).retrieve(Corpus("py", release_id), [[4, 5, 6]], LIMITS)[0]
    assert (answer.release, answer.match_count) == (release_id, 2)


def test_a_request_gets_the_release_it_names_or_a_refusal(tmp_path: Path) -> None:
    store = MemoryStore()
    library = Library(store, tmp_path, keep_releases=2)
    ids = []
    for follower in (1, 2, 3):
        ids.append(put_up(store, "py", [[0, follower]]))
        library.poll()
    retriever = Retriever(library)
    for release_id, follower in zip(ids[1:], (2, 3), strict=True):
        answer = retriever.retrieve(Corpus("py", release_id), [[0]], LIMITS)[0]
        assert answer.tokens.tolist() == [follower]
    with pytest.raises(FailedPrecondition, match="release_id"):
        retriever.retrieve(Corpus("py", ids[0]), [[0]], LIMITS)


def test_a_request_in_flight_keeps_its_release(tmp_path: Path) -> None:
    store = MemoryStore()
    library = Library(store, tmp_path, keep_releases=1)
    release_id = put_up(store, "py", [[0, 1]])
    library.poll()
    held = library.acquire("py", release_id)
    put_up(store, "py", [[0, 2]])
    library.poll()
    assert held.segments.retrieve([0], LIMITS).tokens.tolist() == [1]


def test_rollback_is_a_new_version_that_retrievers_follow(tmp_path: Path) -> None:
    store = MemoryStore()
    library = Library(store, tmp_path)
    first = put_up(store, "py", [[0, 1]])
    put_up(store, "py", [[0, 2]])
    library.poll()
    assert rollback(store, "py") == Alias("py", first, 3)
    library.poll()
    assert library.current("py").release_id == first
    with pytest.raises(NotFound, match="steps"):
        rollback(store, "py", 3)


def test_indexes_live_side_by_side_and_can_be_chosen(tmp_path: Path) -> None:
    store = MemoryStore()
    put_up(store, "py", [[0, 1]])
    put_up(store, "docs", [[0, 2]])
    put_up(store, "other", [[0, 3]])
    library = Library(store, tmp_path, indexes={"py", "docs"})
    library.poll()
    assert set(library.visible_indexes()) == {"py", "docs"}


def test_an_index_of_other_tenants_looks_like_none(tmp_path: Path) -> None:
    store = MemoryStore()
    release_id = put_up(store, "secret", [TRACE], tenants=("a", "b"))
    library = Library(store, tmp_path)
    library.poll()
    assert library.acquire("secret", release_id, "a")
    assert library.visible_indexes("c") == {}
    with pytest.raises(NotFound, match="no index 'secret'"):
        library.acquire("secret", release_id, "c")


def test_a_release_that_does_not_fit_leaves_the_old_one_serving(tmp_path: Path) -> None:
    store = MemoryStore()
    library = Library(store, tmp_path, binding=Binding(tokenizer_sha256="tokenizer-1"))
    good = put_up(store, "py", [TRACE])
    library.poll()
    bad = put_up(store, "py", [TRACE], tokenizer_sha256="tokenizer-2")
    library.poll()
    assert library.current("py").release_id == good
    status = library.status().indexes["py"]
    assert (status.serving_release, status.wanted_release) == (good, bad)
    assert "release.tokenizer_sha256" in status.error


def test_ids_outside_the_vocabulary_are_refused(tmp_path: Path) -> None:
    store = MemoryStore()
    library = Library(store, tmp_path)
    put_up(store, "py", [TRACE], vocabulary_size=11)
    library.poll()
    assert "release.vocabulary_size" in library.status().indexes["py"].error


def test_limits_beyond_the_release_are_refused(tmp_path: Path) -> None:
    store = MemoryStore()
    release_id = put_up(store, "py", [TRACE])
    library = Library(store, tmp_path)
    library.poll()
    retriever = Retriever(library)
    with pytest.raises(InvalidArgument, match="max_continuation"):
        retriever.retrieve(Corpus("py", release_id), [[4]], QueryLimits(max_continuation=17))
    with pytest.raises(InvalidArgument, match="max_suffix"):
        retriever.retrieve(Corpus("py", release_id), [[4]], QueryLimits(max_suffix=33))


def test_the_store_may_go_and_come_back(tmp_path: Path) -> None:
    store = BrokenAtWill()
    library = Library(store, tmp_path)
    first = put_up(store, "py", [TRACE])
    library.poll()
    store.broken = True
    library.poll()
    assert library.current("py").release_id == first
    assert (library.status().store_connected, library.status().store_error) == (False, "store: gone")
    store.broken = False
    second = put_up(store, "py", [TRACE, [1]])
    library.poll()
    assert library.current("py").release_id == second
    assert library.status().store_connected


def test_a_failed_load_is_tried_again_only_after_the_pause(tmp_path: Path) -> None:
    now = [0.0]
    store = MemoryStore()
    library = Library(store, tmp_path, retry_s=10, clock=lambda: now[0])
    release_id = put_up(store, "py", [TRACE])
    chunks = dict(store._chunks)
    store._chunks.clear()
    library.poll()
    assert "chunk" in library.status().indexes["py"].error
    store._chunks.update(chunks)
    now[0] = 9.0
    library.poll()
    assert library.status().indexes["py"].serving_release == ""
    now[0] = 10.0
    library.poll()
    assert library.current("py").release_id == release_id
    assert library.status().indexes["py"].error == ""


def test_the_watcher_follows_changes_and_reconnects(tmp_path: Path) -> None:
    store = BrokenAtWill()
    swapped = threading.Semaphore(0)
    library = Library(store, tmp_path, on_swap=lambda index, release: swapped.release())
    store.broken = True
    library.start(wait_ms=20, reconnect_s=0.001)
    try:
        store.broken = False
        for follower in (1, 2):
            release_id = put_up(store, "py", [[0, follower]])
            assert swapped.acquire(timeout=30)
            assert library.current("py").release_id == release_id
    finally:
        library.stop()
    assert library.status().swaps == 2


def test_a_second_library_finds_the_segments_on_disk(tmp_path: Path) -> None:
    store = MemoryStore()
    release_id = put_up(store, "py", [TRACE])
    Library(store, tmp_path).poll()
    store._chunks.clear()
    again = Library(store, tmp_path)
    again.poll()
    assert again.current("py").release_id == release_id


def test_a_start_without_the_store_serves_what_this_disk_holds(tmp_path: Path) -> None:
    store = BrokenAtWill()
    release_id = put_up(store, "py", [TRACE])
    put_up(store, "docs", [[1, 2]])
    Library(store, tmp_path).poll()
    store.broken = True
    library = Library(store, tmp_path)
    library.poll()
    status = library.status()
    assert (status.store_connected, status.from_local_copy) == (False, True)
    assert library.visible_indexes().keys() == {"py", "docs"}
    assert library.acquire("py", release_id).segments.retrieve([4, 5, 6], LIMITS).match_count == 2
    only = Library(store, tmp_path, indexes=["docs"])
    only.poll()
    assert only.visible_indexes().keys() == {"docs"}
    store.broken = False
    new = put_up(store, "py", [[0, 1]])
    library.poll()
    assert library.current("py").release_id == new
    assert not library.status().from_local_copy


def test_a_start_without_the_store_and_without_its_segment_serves_nothing_until_the_store_is_back(
    tmp_path: Path,
) -> None:
    store = BrokenAtWill()
    release_id = put_up(store, "py", [TRACE])
    Library(store, tmp_path).poll()
    (segment,) = tmp_path.glob("*.segment")
    segment.unlink()
    store.broken = True
    library = Library(store, tmp_path)
    library.poll()
    assert "is not in the local cache" in library.status().indexes["py"].error
    with pytest.raises(NotFound, match="index"):
        library.current("py")
    store.broken = False
    library.poll()
    assert library.current("py").release_id == release_id


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"py": 1}', '{"py": {"version": 1}}', '{"py": {"version": 1, "release": "{}"}}']
)
def test_a_damaged_local_copy_is_no_copy(tmp_path: Path, content: str) -> None:
    store = BrokenAtWill()
    release_id = put_up(store, "py", [TRACE])
    Library(store, tmp_path).poll()
    (tmp_path / "serving.json").write_text(content)
    store.broken = True
    library = Library(store, tmp_path)
    library.poll()
    assert not library.visible_indexes()
    store.broken = False
    library.poll()
    assert library.current("py").release_id == release_id


def test_a_group_fetches_its_own_segments_only(tmp_path: Path) -> None:
    store = MemoryStore()
    put_up(store, "py", *[[[n, n + 1]] for n in range(12)])
    held = []
    for group in ("a", "b"):
        library = Library(store, tmp_path / group, share=Share(group, ("a", "b")))
        library.poll()
        assert len(list((tmp_path / group).glob("*.segment"))) == len(library.current("py").held)
        held.append({entry.digest for entry in library.current("py").held})
    assert len(held[0]) + len(held[1]) == 12
    assert not held[0] & held[1]


def test_segments_may_be_mapped_or_copied(tmp_path: Path) -> None:
    store = MemoryStore()
    release = put_up(store, "py", [TRACE])
    for copied in (False, True):
        library = Library(store, tmp_path, copied_segments=copied)
        library.poll()
        (segment,) = library.acquire("py", release).segments.segments
        assert segment.codes.tolist() == [token + 1 for token in TRACE] + [0]
        assert not segment.codes.flags.writeable
        under: object = segment.codes
        while isinstance(under, np.ndarray):
            mapped, under = isinstance(under, np.memmap), under.base
        assert mapped is not copied
