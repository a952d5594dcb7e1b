"""Live indexes: who may write and read, generations, replay, compaction."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from contracts.errors import DataLoss, InvalidArgument, PermissionDenied, Unavailable
from contracts.retrieval import PublishedOutput
from retriever.corpus import Corpus
from retriever.library import Library
from retriever.live import LiveLibrary, LivePolicy
from retriever.live_index import LiveIndex
from retriever.live_store import LiveEntry, LivePoint, decode_entry, encode_floor, encode_output
from retriever.memory_store import MemoryStore
from retriever.retriever import Retriever
from retriever.trie import QueryLimits
from tests.unit.retriever.corpora import TRACE, put_up

LIMITS = QueryLimits(max_suffix=8, max_continuation=4)


def policy(*tenants: str, shared: bool = False, max_entries: int = 100, keep: int = 50) -> dict[str, LivePolicy]:
    return {"py": LivePolicy(frozenset(tenants), 49_152, shared, max_entries, 8, keep)}


def followers(live: LiveLibrary, tenant: str, generation: int) -> list[int] | None:
    """The tokens that the generation has seen after token 1."""
    segments = live.segments("py", tenant, generation)
    if segments is None:
        return None
    return sorted(d[1] for s in segments for d in (x.tolist() for x in s.token_documents()) if d[0] == 1)


def test_what_one_replica_published_another_drafts_from(tmp_path: Path) -> None:
    store = MemoryStore()
    release_id = put_up(store, "py", [TRACE])
    library = Library(store, tmp_path)
    library.poll()
    writer = Retriever(library, LiveLibrary(store, policy("a"), library.tokenizers))
    reader = LiveLibrary(store, policy("a"), library.tokenizers)
    generation = writer.record(PublishedOutput("py", "a", "request-1", np.array([4, 5, 6, 77])))
    reader.poll()
    retriever = Retriever(library, reader)
    (described,) = retriever.describe("a")
    assert (described.release, described.live_generation, described.records) == (release_id, generation, True)
    answer = retriever.retrieve(Corpus("py", release_id, "a", generation), [[4, 5, 6]], LIMITS)[0]
    assert answer.match_count == 3
    without = retriever.retrieve(Corpus("py", release_id, "a"), [[4, 5, 6]], LIMITS)[0]
    assert without.match_count == 2


def test_a_generation_that_is_gone_is_a_miss_that_says_so(tmp_path: Path) -> None:
    store = MemoryStore()
    release_id = put_up(store, "py", [TRACE])
    library = Library(store, tmp_path)
    library.poll()
    live = LiveLibrary(store, policy("a", keep=2), library.tokenizers)
    retriever = Retriever(library, live)
    generations = [retriever.record(PublishedOutput("py", "a", f"{n}", np.array([1, n]))) for n in range(4)]
    live.poll()
    for generation, gone in zip((*generations, generations[-1] + 1), (True, True, False, False, True), strict=True):
        (answer,) = retriever.retrieve(Corpus("py", release_id, "a", generation), [[4, 5, 6]], LIMITS)
        assert (answer.live_gone, answer.miss) == (gone, gone)
    (answer,) = Retriever(library).retrieve(Corpus("py", release_id, live_generation=5), [[4]], LIMITS)
    assert answer.live_gone


def test_nothing_is_recorded_or_read_without_a_policy() -> None:
    live = LiveLibrary(MemoryStore(), policy("a"))
    for index, tenant in (("py", "b"), ("docs", "a")):
        with pytest.raises(PermissionDenied, match="live"):
            live.publish(index, tenant, "x", [1])
        with pytest.raises(PermissionDenied, match="live"):
            live.segments(index, tenant, 3)
        assert live.generation(index, tenant) == 0


def test_tenants_see_their_own_outputs_only_unless_the_policy_shares_them() -> None:
    for shared in (False, True):
        live = LiveLibrary(MemoryStore(), policy("a", "b", shared=shared))
        live.publish("py", "a", "x", [1, 10])
        live.publish("py", "b", "y", [1, 20])
        live.poll()
        assert followers(live, "a", live.generation("py", "a")) == ([10, 20] if shared else [10])
        assert followers(live, "b", live.generation("py", "b")) == ([10, 20] if shared else [20])


@pytest.mark.parametrize("tokens", [[], [[1]], [49_152], [-1], [1] * 9, [0.5]])
def test_outputs_outside_the_policy_are_refused(tokens: list[float]) -> None:
    with pytest.raises(InvalidArgument, match="tokens"):
        LiveLibrary(MemoryStore(), policy("a")).publish("py", "a", "x", tokens)


def test_outputs_of_one_tokenizer_never_meet_an_index_of_another(tmp_path: Path) -> None:
    store = MemoryStore()
    put_up(store, "py", [TRACE])
    library = Library(store, tmp_path, keep_releases=1)
    library.poll()
    live = LiveLibrary(store, policy("a"), library.tokenizers)
    retriever = Retriever(library, live)
    generation = retriever.record(PublishedOutput("py", "a", "x", np.array([4, 5, 6, 77])))
    live.poll()
    moved = put_up(store, "py", [TRACE], tokenizer_sha256="tokenizer-2")
    library.poll()
    live.poll()
    assert retriever.describe("a")[0].live_generation == 0
    (answer,) = retriever.retrieve(Corpus("py", moved, "a", generation), [[4, 5, 6]], LIMITS)
    assert answer.live_gone


def test_an_output_with_ids_beyond_the_indexs_vocabulary_is_refused(tmp_path: Path) -> None:
    store = MemoryStore()
    put_up(store, "py", [[1, 2]], vocabulary_size=100)
    library = Library(store, tmp_path)
    library.poll()
    retriever = Retriever(library, LiveLibrary(store, policy("a"), library.tokenizers))
    with pytest.raises(InvalidArgument, match="below the vocabulary size 100"):
        retriever.record(PublishedOutput("py", "a", "x", np.array([100])))
    with pytest.raises(PermissionDenied, match="live"):
        Retriever(library).record(PublishedOutput("py", "a", "x", np.array([1])))


def test_queries_do_not_wait_for_a_store_that_hangs() -> None:
    asked, released = threading.Event(), threading.Event()

    class Hanging(MemoryStore):
        def read_live(self, scope: str, after: int, limit: int) -> tuple[LiveEntry, ...]:
            if after:
                asked.set()
                assert released.wait(30)
            return super().read_live(scope, after, limit)

    live = LiveLibrary(Hanging(), policy("a"))
    generation = live.publish("py", "a", "x", [1, 2])
    polling = threading.Thread(target=live.poll)
    polling.start()
    assert asked.wait(30)
    assert followers(live, "a", generation) == [2]
    released.set()
    polling.join()


def test_a_repeated_publication_counts_once() -> None:
    live = LiveLibrary(MemoryStore(), policy("a"))
    assert live.publish("py", "a", "x", [1, 2]) == live.publish("py", "a", "x", [1, 2])
    live.poll()
    assert followers(live, "a", live.generation("py", "a")) == [2]


@pytest.mark.parametrize("max_entries", [1, 3, 8, 100])
def test_a_generation_is_the_same_set_whoever_replays_it_and_whenever(max_entries: int) -> None:
    store = MemoryStore()
    rules = policy("a", max_entries=max_entries, keep=40)
    steady, late = LiveLibrary(store, rules), LiveLibrary(store, rules)
    generations = []
    for n in range(30):
        generations.append(steady.publish("py", "a", f"{n}", [1, n]))
        steady.poll()
        assert followers(steady, "a", generations[-1]) == list(range(max(0, n - max_entries + 1), n + 1))
        if n == 17:
            late.poll()
    late.poll()
    fresh = LiveLibrary(store, rules)
    fresh.poll()
    for n, generation in enumerate(generations):
        expected = list(range(max(0, n - max_entries + 1), n + 1))
        assert followers(steady, "a", generation) == expected
        for other in (late, fresh):
            assert followers(other, "a", generation) in (expected, None)
    assert followers(fresh, "a", generations[-1]) == followers(late, "a", generations[-1])


def test_a_store_that_lost_its_streams_reuses_no_generation() -> None:
    now = [1_000]
    store = MemoryStore(lambda: now[0])
    live = LiveLibrary(store, policy("a"))
    before = [live.publish("py", "a", f"{n}", [1, n]) for n in range(5)]
    live.poll()
    store._live.clear()
    store._live_heads.clear()
    after = live.publish("py", "a", "0", [1, 99])
    assert after not in before
    live.poll()
    assert followers(live, "a", after) == [99]
    assert followers(live, "a", before[-1]) is None


def test_a_store_failure_is_reported_and_what_is_known_stays() -> None:
    class Broken(MemoryStore):
        def live_head(self, scope: str) -> LivePoint:
            if self.aliases():
                raise Unavailable("store", "gone")
            return super().live_head(scope)

    store = Broken()
    live = LiveLibrary(store, policy("a"))
    live.publish("py", "a", "x", [1, 2])
    live.poll()
    put_up(store, "py", [TRACE])
    live.poll()
    assert live.status().store_error == "store: gone"
    assert followers(live, "a", live.generation("py", "a")) == [2]


def test_the_watcher_reads_what_is_published() -> None:
    read = threading.Event()

    class Telling(MemoryStore):
        def read_live(self, scope: str, after: int, limit: int) -> tuple[LiveEntry, ...]:
            entries = super().read_live(scope, after, limit)
            if after and not entries:
                read.set()
            return entries

    live = LiveLibrary(Telling(), policy("a"))
    live.start(interval_s=0.001)
    generation = live.publish("py", "a", "x", [1, 2])
    assert read.wait(30)
    live.stop()
    assert followers(live, "a", generation) == [2]


def test_an_unreadable_entry_is_counted_and_holds_nothing() -> None:
    index = LiveIndex(10, 10)
    index.append([LiveEntry(1, "a", encode_output(np.array([1, 2], np.uint32))), LiveEntry(2, "b", b"Z")])
    assert index.unreadable == 1
    assert index.outputs(2) is not None
    assert [o.tolist() for o in index.outputs(2) or []] == [[1, 2]]


def test_payloads_come_back_and_others_are_data_loss() -> None:
    tokens = np.array([0, 65_536, 2**32 - 1], np.uint32)
    decoded = decode_entry(encode_output(tokens))
    assert isinstance(decoded, np.ndarray)
    assert decoded.tolist() == tokens.tolist()
    assert decode_entry(encode_floor(2**40)) == 2**40
    for payload in (b"", b"T123", b"F1", b"X"):
        with pytest.raises(DataLoss, match=r"live\.payload"):
            decode_entry(payload)
