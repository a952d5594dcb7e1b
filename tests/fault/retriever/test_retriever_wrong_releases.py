"""Releases that are whole but not for this retriever: a typed reason naming the field, and the old release served on."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from contracts.errors import InvalidArgument
from contracts.retrieval import Retrieval
from retriever.corpus import Corpus
from retriever.library import Library
from retriever.memory_store import MemoryStore
from retriever.merging import BestQuestion
from retriever.publish import activate, publish
from retriever.release import Binding, Release, SegmentEntry
from retriever.retriever import Retriever
from retriever.segment_format import build_segment, segment_digest
from retriever.store import SegmentRecord
from retriever.trie import QueryLimits
from tests.unit.retriever.corpora import TRACE, manifest, put_up

LIMITS = QueryLimits(max_suffix=8, max_continuation=4)
BINDING = Binding(tokenizer_sha256="tokenizer-1", vocabulary_size=49_152, target_family="toy")


def library_with_old(store: MemoryStore, directory: Path) -> tuple[Library, str]:
    library = Library(store, directory, binding=BINDING)
    old = put_up(store, "py", [TRACE])
    library.poll()
    assert library.current("py").release_id == old
    return library, old


def refused(library: Library, old: str, words: str) -> None:
    """The reason is in the status, and the old release answers."""
    library.poll()
    status = library.status().indexes["py"]
    assert words in status.error
    assert status.serving_release == old
    assert status.wanted_release != old
    (answer,) = Retriever(library).retrieve(Corpus("py", old), [[4, 5, 6]], LIMITS)
    assert answer.match_count == 2


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tokenizer_sha256": "tokenizer-2"}, "release.tokenizer_sha256: the release has 'tokenizer-2'"),
        ({"vocabulary_size": 50_000}, "release.vocabulary_size"),
        ({"target_family": "other"}, "release.target_family"),
        ({"byte_order": "big"}, "release.byte_order: the release has 'big'"),
        ({"key_encoding": "ids"}, "release.key_encoding"),
        ({"counter_bits": 32}, "release.counter_bits"),
        ({"pruning": "hash order"}, "release.pruning"),
    ],
)
def test_a_release_bound_otherwise_is_refused_by_field(tmp_path: Path, changes: dict[str, object], words: str) -> None:
    store = MemoryStore()
    library, old = library_with_old(store, tmp_path)
    put_up(store, "py", [[1, 2]], **changes)
    refused(library, old, words)


def put_segment(store: MemoryStore, data: bytes, tokens: int) -> None:
    """A release of one segment with these very bytes, which `publish` would take as they are."""
    entry = SegmentEntry(segment_digest(data), len(data), tokens)
    release = Release(manifest(), (entry,))
    store.put_chunk(entry.digest, 0, data)
    store.seal_segment(SegmentRecord(entry.digest, len(data), (hashlib.sha256(data).hexdigest(),)))
    publish(store, release, {})
    activate(store, "py", release.release_id)


def test_a_segment_of_the_other_byte_order_is_refused(tmp_path: Path) -> None:
    store = MemoryStore()
    library, old = library_with_old(store, tmp_path)
    data = build_segment([[1, 2, 3]])
    put_segment(store, data.replace(b'"byte_order":"little"', b'"byte_order":"bigger"'), 3)
    refused(library, old, "segment.byte_order: 'bigger'")


def test_a_segment_with_ids_beyond_the_vocabulary_is_refused(tmp_path: Path) -> None:
    store = MemoryStore()
    library, old = library_with_old(store, tmp_path)
    put_segment(store, build_segment([[1, 49_152]]), 2)
    refused(library, old, "release.vocabulary_size")


def test_a_release_that_was_collected_is_reported(tmp_path: Path) -> None:
    store = MemoryStore()
    library, old = library_with_old(store, tmp_path)
    new = put_up(store, "py", [[1, 2]])
    del store._releases[new]
    refused(library, old, f"the store has no release {new}")


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        (QueryLimits(max_suffix=8, max_continuation=17), "max_continuation: 17 is above the release's 16"),
        (QueryLimits(max_suffix=33), "max_suffix: 33 is above the release's 32"),
    ],
)
def test_an_oversized_query_is_refused_and_the_next_is_answered(
    tmp_path: Path, limits: QueryLimits, words: str
) -> None:
    library, old = library_with_old(MemoryStore(), tmp_path)
    retriever = Retriever(library)
    with pytest.raises(InvalidArgument, match=words):
        retriever.retrieve(Corpus("py", old), [[4]], limits)
    assert retriever.retrieve(Corpus("py", old), [[4, 5, 6]], LIMITS)[0].match_count == 2


def test_a_group_refuses_a_suffix_that_is_longer_than_the_release_s_whatever_the_limits_say(tmp_path: Path) -> None:
    library, old = library_with_old(MemoryStore(), tmp_path)
    retriever = Retriever(library)
    with pytest.raises(InvalidArgument, match="max_suffix: 33 is above the release's 32"):
        retriever.part(Corpus("py", old), BestQuestion(np.zeros(33, np.int64), LIMITS))
    reply = retriever.part(Corpus("py", old), BestQuestion(np.array([4, 5, 6]), LIMITS))
    assert isinstance(reply, Retrieval)
    assert reply.match_count == 2
