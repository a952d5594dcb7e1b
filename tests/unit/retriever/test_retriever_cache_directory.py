"""The segment cache's directory over restarts, several indexes and several processes: what is needed stays on the disk."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from contracts.errors import NotFound, Unavailable
from retriever import local_copy
from retriever.library import Library
from retriever.local_copy import ABANDONED_S, RENEW_S, LocalCopy
from retriever.memory_store import MemoryStore
from retriever.publish import publish
from retriever.segment_cache import SegmentCache
from retriever.store import Alias
from tests.unit.retriever.corpora import TRACE, put_up, release_and_bytes

TWO_HOURS_S = 7_200.0


class Store(MemoryStore):
    """A store that can be away."""

    away = False

    def aliases(self) -> dict[str, Alias]:
        if self.away:
            raise Unavailable("store", "gone")
        return super().aliases()


def age(directory: Path, pattern: str = "*.segment", seconds: float = TWO_HOURS_S) -> None:
    """As if nobody had touched these files for so long."""
    for path in directory.glob(pattern):
        os.utime(path, (time.time() - seconds,) * 2)


def segments(directory: Path) -> set[str]:
    return {path.stem for path in directory.glob("*.segment")}


def test_a_restart_without_the_store_keeps_and_serves_every_index(tmp_path: Path) -> None:
    store = Store()
    for name, follower in (("a", 1), ("b", 2), ("c", 3)):
        put_up(store, name, [[0, follower]])
    Library(store, tmp_path).poll()
    store.away = True
    for _ in range(2):
        age(tmp_path)
        library = Library(store, tmp_path)
        library.poll()
        assert library.visible_indexes().keys() == {"a", "b", "c"}
    assert len(segments(tmp_path)) == 3


def test_a_restart_with_the_store_keeps_the_segments_of_indexes_not_yet_loaded(tmp_path: Path) -> None:
    store = Store()
    for name, follower in (("a", 1), ("b", 2), ("c", 3)):
        put_up(store, name, [[0, follower]])
    Library(store, tmp_path).poll()
    age(tmp_path)
    store._chunks.clear()
    library = Library(store, tmp_path)
    library.poll()
    assert library.visible_indexes().keys() == {"a", "b", "c"}


def test_what_no_release_needs_any_more_goes_after_an_hour(tmp_path: Path) -> None:
    store = Store()
    library = Library(store, tmp_path, keep_releases=1)
    put_up(store, "a", [[0, 1]])
    library.poll()
    (old,) = segments(tmp_path)
    put_up(store, "a", [[0, 2]])
    library.poll()
    assert old in segments(tmp_path)
    age(tmp_path)
    put_up(store, "a", [[0, 3]])
    library.poll()
    assert old not in segments(tmp_path)


def test_a_segment_just_opened_is_not_pruned(tmp_path: Path) -> None:
    put_up(store := Store(), "a", [TRACE])
    Library(store, tmp_path).poll()
    age(tmp_path)
    (digest,) = segments(tmp_path)
    cache = SegmentCache(tmp_path)
    assert cache.open(digest) is not None
    assert cache.prune(()) == []
    age(tmp_path)
    assert cache.prune(()) == [digest]


def test_retrievers_that_share_a_directory_leave_each_other_their_segments(tmp_path: Path) -> None:
    stores = Store(), Store()
    libraries = [Library(store, tmp_path, local_name=f"serving-{n}") for n, store in enumerate(stores)]
    for n, (store, library) in enumerate(zip(stores, libraries, strict=True)):
        put_up(store, "py", [[n, n + 1]])
        library.poll()
    first = segments(tmp_path)
    age(tmp_path)
    put_up(stores[1], "py", [[5, 6]])
    libraries[1].poll()
    assert first <= segments(tmp_path)
    stores[0].away = True
    again = Library(stores[0], tmp_path, local_name="serving-0")
    again.poll()
    assert again.current("py").segments.tokens == 2


def test_a_copy_that_nobody_has_renewed_for_a_month_holds_no_segment(tmp_path: Path) -> None:
    store, other = Store(), Store()
    put_up(other, "py", [[8, 9]])
    Library(other, tmp_path, local_name="serving-gone").poll()
    (gone,) = segments(tmp_path)
    age(tmp_path)
    age(tmp_path, "serving-gone.json", ABANDONED_S + 60)
    put_up(store, "py", [[1, 2]])
    Library(store, tmp_path).poll()
    assert gone not in segments(tmp_path)


def test_a_running_retriever_renews_its_copy_with_the_store_and_without(tmp_path: Path) -> None:
    store = Store()
    put_up(store, "py", [TRACE])
    library = Library(store, tmp_path)
    library.poll()
    for away in (False, True):
        store.away = away
        age(tmp_path, "serving.json", RENEW_S + 60)
        library.poll()
        assert (tmp_path / "serving.json").stat().st_mtime > time.time() - RENEW_S


def test_a_visitor_leaves_no_copy_and_takes_nothing_away(tmp_path: Path) -> None:
    store = Store()
    put_up(store, "a", [[0, 1]])
    put_up(store, "b", [[0, 2]])
    Library(store, tmp_path).poll()
    files = set(tmp_path.iterdir())
    age(tmp_path)
    age(tmp_path, "*.json", ABANDONED_S + 60)
    visitor = Library(store, tmp_path, indexes=["a"], local_name="")
    visitor.poll()
    assert visitor.visible_indexes().keys() == {"a"}
    assert set(tmp_path.iterdir()) == files
    store.away = True
    visitor = Library(store, tmp_path, local_name="")
    visitor.poll()
    assert not visitor.visible_indexes()


def test_a_restart_beside_a_damaged_new_release_serves_the_one_before_it(tmp_path: Path) -> None:
    store = Store()
    good = put_up(store, "py", [TRACE])
    other = put_up(store, "docs", [[1, 2]])
    Library(store, tmp_path).poll()
    bad = put_up(store, "py", [[7, 8, 9]])
    for chunks in store._chunks.values():
        chunks[0] = b"x" + chunks[0][1:]
    for _ in range(2):
        age(tmp_path)
        library = Library(store, tmp_path)
        library.poll()
        status = library.status()
        assert (status.indexes["py"].serving_release, status.indexes["py"].wanted_release) == (good, bad)
        assert "sha256" in status.indexes["py"].error
        assert library.current("docs").release_id == other
        assert not status.from_local_copy


def test_a_copy_made_by_an_earlier_version_is_read_where_there_is_none_yet(tmp_path: Path) -> None:
    store = Store()
    put_up(store, "py", [TRACE])
    Library(store, tmp_path, local_name="serving-old").poll()
    store.away = True
    library = Library(store, tmp_path, local_name="serving-new", earlier_name="serving-old")
    library.poll()
    assert library.visible_indexes().keys() == {"py"}
    store.away = False
    put_up(store, "py", [[1, 2]])
    library.poll()
    assert LocalCopy(tmp_path / "serving-new.json").aliases() == store.aliases()


@pytest.mark.parametrize("release", ["1", '"{}"', '"not a release"'])
def test_what_is_no_copy_neither_holds_segments_nor_stops_a_retriever(tmp_path: Path, release: str) -> None:
    (tmp_path / "other.json").write_text(f'{{"py": {{"version": "x1", "release": {release}}}}}')
    (tmp_path / "note.json").write_text(f'{{"py": {{"version": 1, "release": {release}}}}}')
    assert local_copy.held_by_copies(tmp_path) == set()
    put_up(store := Store(), "py", [TRACE])
    library = Library(store, tmp_path, local_name="other")
    store.away = True
    library.poll()
    store.away = False
    library.poll()
    assert library.visible_indexes().keys() == {"py"}


def test_a_disk_or_memory_that_fails_is_told_and_outlived(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store()
    first = put_up(store, "py", [TRACE])
    library = Library(store, tmp_path, retry_s=0)
    library.poll()

    def no_room(*_: object) -> None:
        raise MemoryError("no room")

    release, sources = release_and_bytes([[7, 8]])
    publish(store, release, sources)
    store.set_alias("py", release.release_id, 1)
    with monkeypatch.context() as patched:
        patched.setattr("retriever.library.load_release", no_room)
        library.poll()
    assert library.current("py").release_id == first
    assert library.status().indexes["py"].error == "MemoryError: no room"
    library.poll()
    assert library.current("py").release_id == release.release_id
    with pytest.raises(NotFound):
        library.current("docs")
