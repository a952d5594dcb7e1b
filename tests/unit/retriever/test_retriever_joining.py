"""Joined segments answer as their parts do, and a library exchanges the one for the other beside its queries."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from retriever.joining import joinable, joined
from retriever.library import Library
from retriever.loading import LoadedRelease, Part
from retriever.memory_store import MemoryStore
from retriever.query import SegmentSet
from retriever.segment import Segment, segment_from_documents
from retriever.segment_cache import SegmentCache
from retriever.settling import Settler
from retriever.shares import shares_of
from retriever.trie import QueryLimits
from tests.unit.retriever.corpora import put_up
from tests.unit.retriever.test_retriever_shares import short_documents, suffix

HEAPS = [[[n, 1, 2, n + 1]] * (n + 1) for n in range(5)]


def parts_of(documents: list[list[int]], parts: int) -> list[Segment]:
    return [segment_from_documents(documents[part::parts]) for part in range(parts)]


@pytest.mark.parametrize("parts", [1, 2, 3, 5, 8, 11])
@pytest.mark.parametrize("depth", [3, 40, 4_000])
def test_suffixes_stand_in_the_order_of_their_first_codes(parts: int, depth: int) -> None:
    segments = parts_of(short_documents(parts, 600), parts)
    whole = joined(segments, depth)
    texts = [tuple(suffix(whole, rank)[:depth]) for rank in range(whole.tokens)]
    assert texts == sorted(texts)
    assert sorted(whole.offsets_low.tolist()) == np.flatnonzero(whole.codes).tolist()
    assert [d.tolist() for d in whole.token_documents()] == [d.tolist() for s in segments for d in s.token_documents()]
    assert (whole.tokens, whole.documents) == (sum(s.tokens for s in segments), sum(s.documents for s in segments))
    assert whole.max_token == 6


def test_its_shares_are_those_made_of_its_text() -> None:
    large = joined(parts_of(short_documents(5, 12_000), 4), 4_000)
    made = shares_of(large.codes, large.offsets_low, large.offsets_high)
    assert made is not None
    assert large.shares is not None
    assert np.array_equal(large.shares.fine, made.fine)
    assert np.array_equal(large.shares.coarse, made.coarse)
    assert large.signposts is not None


@pytest.mark.parametrize("above", [0, 65_533])
def test_answers_are_those_of_the_parts(above: int) -> None:
    """Codes of two bytes each, and of four, which segments of large ids have where all ids below them occur."""
    rows = [[above + token for token in row] for row in short_documents(7, 2_500, ids=4)]
    if above:
        rows.append(list(range(1 << 17)))
    segments = parts_of(rows, 3)
    segments = [s for s in segments if s.alphabet.size == 0]
    one, several = SegmentSet([joined(segments, 24)]), SegmentSet(segments)
    for context in ([0], [1, 2], [3, 3, 1], [2, 0, 1, 1], [0] * 8):
        suffix = [above + token for token in context]
        for depth, budget in ((1, 4), (5, 64), (16, 200)):
            limits = QueryLimits(8, 1, depth, budget)
            assert one.retrieve(suffix, limits).same_as(several.retrieve(suffix, limits))


def test_only_codes_of_one_meaning_and_width_go_together_and_no_more_than_offsets_reach() -> None:
    small, other = segment_from_documents([[1, 2, 3]]), segment_from_documents([[4, 5]])
    wide = segment_from_documents([range(70_000)])
    ranked = segment_from_documents([[1 << 20]])
    five = segment_from_documents([[1, 2, 3]], wide_offsets=True)
    assert joinable([small, ranked, other, wide, five, small, wide]) == [[0, 2, 5], [1], [3, 6], [4]]
    assert joinable([small, small, other, small], most_codes=8) == [[0, 1], [2, 3]]
    assert joinable([small, small, other], most_codes=3) == [[0], [1], [2]]
    assert joinable([]) == []


def copying(store: MemoryStore, directory: Path) -> Library:
    library = Library(store, directory, copied_segments=True)
    library.poll()
    return library


def settle(library: Library) -> None:
    assert library.settler is not None
    library.settler.settle()


def test_a_release_of_several_segments_is_served_mapped_and_then_joined(tmp_path: Path) -> None:
    store = MemoryStore()
    release = put_up(store, "py", *HEAPS)
    library = copying(store, tmp_path)
    mapped = library.acquire("py", release)
    assert len(mapped.segments.segments) == 5
    settle(library)
    loaded = library.acquire("py", release)
    assert len(loaded.segments.segments) == 1
    assert len(loaded.parts[0].digests) == len(loaded.held) == 5
    for limits in (QueryLimits(2, 1, 3, 20), QueryLimits(1, 1, 16, 2)):
        assert loaded.segments.retrieve([1], limits).same_as(mapped.segments.retrieve([1], limits))
    # What is settled stays as it is.
    settle(library)
    assert library.acquire("py", release) is loaded


def test_a_later_release_shares_what_was_joined_and_joins_the_rest(tmp_path: Path) -> None:
    store = MemoryStore()
    put_up(store, "py", *HEAPS[:3])
    library = copying(store, tmp_path)
    settle(library)
    before = library.current("py").segments.segments[0]
    put_up(store, "py", *HEAPS)
    library.poll()
    settle(library)
    now = library.current("py")
    assert now.segments.segments[0] is before
    assert [len(part.digests) for part in now.parts] == [3, 2]
    plain = SegmentSet([segment_from_documents([row for heap in HEAPS for row in heap])])
    assert now.segments.retrieve([1], QueryLimits(1, 1, 4, 9)).same_as(plain.retrieve([1], QueryLimits(1, 1, 4, 9)))


def test_a_release_that_is_asked_for_more_codes_is_joined_anew(tmp_path: Path) -> None:
    store = MemoryStore()
    put_up(store, "py", *HEAPS)
    library = copying(store, tmp_path)
    settle(library)
    shallow = library.current("py")
    put_up(store, "py", *HEAPS, context_length=200)
    library.poll()
    settle(library)
    deep = library.current("py")
    assert (shallow.parts[0].depth, deep.parts[0].depth) == (48, 216)
    assert deep.segments.segments[0] is not shallow.segments.segments[0]


def test_segments_with_alphabets_of_their_own_are_copied_one_by_one(tmp_path: Path) -> None:
    store = MemoryStore()
    put_up(store, "py", [[1 << 20, 1]], [[1 << 20, 2]], vocabulary_size=1 << 21)
    library = copying(store, tmp_path)
    settle(library)
    loaded = library.current("py")
    assert [part.copied for part in loaded.parts] == [True, True]
    assert loaded.segments.retrieve([1 << 20], QueryLimits(1, 1, 1, 4)).tokens.tolist() == [1, 2]


def test_what_cannot_be_settled_stays_mapped_and_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStore()
    release = put_up(store, "py", [[1 << 20, 1]], [[1 << 20, 2]], vocabulary_size=1 << 21)
    library = copying(store, tmp_path)
    mapped = library.acquire("py", release)
    for path in tmp_path.glob("*.segment"):
        path.unlink()
    with caplog.at_level(logging.WARNING):
        settle(library)
        settle(library)
    assert [record.message for record in caplog.records] == [f"release {release[:16]} stays mapped"]
    assert library.acquire("py", release) is mapped
    assert mapped.segments.retrieve([1 << 20], QueryLimits(1, 1, 1, 4)).tokens.tolist() == [1, 2]


def test_the_thread_settles_what_comes_after_it_was_woken(tmp_path: Path) -> None:
    store = MemoryStore()
    put_up(store, "py", *HEAPS)
    mapped = Library(store, tmp_path)
    mapped.poll()
    shelf, done = [mapped.current("py")], threading.Event()

    def exchange(old: LoadedRelease, new: LoadedRelease) -> None:
        assert old is shelf[0]
        shelf[0] = new
        done.set()

    settler = Settler(SegmentCache(tmp_path, copied=True), lambda: shelf, exchange)
    settler.start()
    settler.wake()
    try:
        assert done.wait(60)
    finally:
        settler.stop()
    assert len(shelf[0].segments.segments) == 1
    shelf[0] = replace(shelf[0], parts=(Part((), 0, False),))
    settler.settle()
    assert shelf[0].parts[0].copied is False
