"""Live streams of stores that went back in time: one generation, one answer, whoever gives it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from retriever.live import LiveLibrary, LivePolicy
from retriever.live_index import LiveIndex
from retriever.live_store import LiveEntry, LivePoint, encode_output
from retriever.memory_store import MemoryStore

POLICY = {"py": LivePolicy(frozenset({"a"}), 1_000, max_entries=8)}
Snapshot = Callable[[], None]


def snapshot(store: MemoryStore) -> Snapshot:
    """Takes one now; calling it brings the store back to it."""
    live, heads = copy.deepcopy(store._live), dict(store._live_heads)

    def restore() -> None:
        store._live, store._live_heads = copy.deepcopy(live), dict(heads)

    return restore


def publish(live: LiveLibrary, name: str, *tokens: int) -> int:
    generation = live.publish("py", "a", name, tokens)
    live.poll()
    return generation


def outputs(live: LiveLibrary, generation: int) -> list[list[int]] | None:
    segments = live.segments("py", "a", generation)
    return None if segments is None else sorted(d.tolist() for s in segments for d in s.token_documents() if d.size)


def replica(store: MemoryStore) -> LiveLibrary:
    live = LiveLibrary(store, POLICY)
    live.poll()
    return live


@pytest.mark.parametrize("later", [1, 2, 3, 12])
def test_a_restored_snapshot_gives_no_generation_a_second_content(later: int) -> None:
    store = MemoryStore()
    lived = LiveLibrary(store, POLICY)
    said: dict[int, Any] = {}
    for n in range(3):
        generation = publish(lived, f"{n}", 1, n)
        said[generation] = outputs(lived, generation)
        if n == 0:
            restore = snapshot(store)
    restore()
    for n in range(later):
        generation = publish(lived, f"new-{n}", 1, 100 + n)
        assert said.setdefault(generation, outputs(lived, generation)) == outputs(lived, generation)
    restarted = replica(store)
    for live in (lived, restarted):
        for generation, content in said.items():
            assert outputs(live, generation) in (content, None)
    newest = lived.generation("py", "a")
    assert newest == restarted.generation("py", "a") == generation
    assert outputs(lived, newest) == outputs(restarted, newest) == said[newest]


def test_a_retriever_that_lived_through_it_notices_before_anything_new_is_published() -> None:
    store = MemoryStore()
    lived = LiveLibrary(store, POLICY)
    first = publish(lived, "1", 1, 2)
    restore = snapshot(store)
    second = publish(lived, "2", 1, 3)
    restore()
    lived.poll()
    assert lived.generation("py", "a") == first
    assert outputs(lived, second) is None
    assert list(lived.status().restarts.values()) == [1]
    lived.poll()
    assert list(lived.status().restarts.values()) == [1]


def test_a_replica_that_read_nothing_in_between_notices_when_the_numbers_have_caught_up() -> None:
    store = MemoryStore()
    writer, sleeper = LiveLibrary(store, POLICY), LiveLibrary(store, POLICY)
    publish(writer, "1", 1, 2)
    restore = snapshot(store)
    lost = publish(writer, "2", 1, 3)
    sleeper.poll()
    restore()
    same_number = publish(writer, "3", 1, 4)
    assert same_number != lost
    publish(writer, "4", 1, 5)
    sleeper.poll()
    assert outputs(sleeper, writer.generation("py", "a")) == [[1, 2], [1, 4], [1, 5]]
    assert outputs(sleeper, lost) is None


def test_the_same_history_again_is_the_same_generation() -> None:
    store = MemoryStore()
    lived = LiveLibrary(store, POLICY)
    publish(lived, "1", 1, 2)
    restore = snapshot(store)
    before = publish(lived, "2", 1, 3)
    restore()
    lived.poll()
    assert publish(lived, "2", 1, 3) == before


def test_retiring_what_a_lost_history_held_is_refused() -> None:
    store = MemoryStore()
    lived = LiveLibrary(store, POLICY)
    publish(lived, "1", 1, 2)
    restore = snapshot(store)
    lost = publish(lived, "2", 1, 3)
    restore()
    lived.poll()
    with pytest.raises(Exception, match="live_generation"):
        lived.retire("py", "a", lost)
    assert outputs(replica(store), replica(store).generation("py", "a")) == [[1, 2]]


def test_entries_of_earlier_versions_are_read_and_continued() -> None:
    def entry(sequence: int, token: int, before: str | None) -> LiveEntry:
        return LiveEntry(sequence, f"{sequence}", encode_output(np.array([token], np.uint32)), before)

    index = LiveIndex(10, 10)
    start = 1_796_049_047_415
    old = [entry(start, 1, None), entry(start + 1, 2, None)]
    index.append(old)
    assert (index.newest, index.newest.generation) == (LivePoint(start + 1, ""), start + 1)
    new = entry(start + 2, 3, "")
    assert index.continued_by(new)
    index.append([new])
    assert index.newest.generation == new.point.generation != start + 2
    # A retriever of an earlier version writes once more.
    mixed = entry(start + 3, 4, None)
    assert index.continued_by(mixed)
    index.append([mixed])
    assert not index.continued_by(entry(start + 4, 5, new.point.chain))
    assert index.continued_by(entry(start + 4, 5, ""))
