"""Compaction: live outputs become part of a release, under the rules that the release's documents went by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from contracts.errors import FailedPrecondition, PermissionDenied
from contracts.retrieval import PublishedOutput
from retriever.compaction import OutputRules, compact
from retriever.corpus import Corpus
from retriever.exclusion import exclusion_of
from retriever.library import Library
from retriever.live import LiveLibrary, LivePolicy
from retriever.memory_store import MemoryStore
from retriever.release import ReleaseManifest
from retriever.retriever import Retriever
from retriever.trie import QueryLimits
from tests.unit.retriever.corpora import TRACE, put_up

LIMITS = QueryLimits(max_suffix=8, max_continuation=4)
QUESTION = "the quick brown fox jumps over the lazy dog"
EXCLUSION = exclusion_of([QUESTION])


def decode(tokens: Sequence[int]) -> str:
    return "".join(map(chr, tokens))


RULES = OutputRules(decode)


def policies(*tenants: str, shared: bool = False) -> dict[str, LivePolicy]:
    return {"py": LivePolicy(frozenset(tenants), 49_152, shared)}


class Index:
    """An index of tenant a's with live outputs."""

    def __init__(self, directory: Path, **manifest: str) -> None:
        self.store = MemoryStore()
        put_up(self.store, "py", [TRACE], tenants=("a",), **manifest)
        self.library = Library(self.store, directory)
        self.library.poll()
        self.live = LiveLibrary(self.store, policies("a"), self.library.tokenizers)
        self.generation = 0

    def record(self, *texts: str) -> None:
        for text in texts:
            tokens = np.array([ord(letter) for letter in text])
            self.generation = Retriever(self.library, self.live).record(PublishedOutput("py", "a", text, tokens))
        self.live.poll()

    def compact(self, rules: OutputRules) -> tuple[int, int, int]:
        done = compact(self.store, self.live, "py", "a", self.library.current("py", "a"), self.generation, rules)
        self.library.poll()
        self.live.poll()
        return done.outputs, done.excluded_exact, done.excluded_overlap

    @property
    def manifest(self) -> ReleaseManifest:
        return self.library.current("py", "a").release.manifest

    def holds(self, text: str) -> bool:
        segments = self.library.current("py", "a").segments
        return segments.longest([ord(letter) for letter in text], QueryLimits(max_suffix=32)) == len(text)


def test_outputs_pass_the_exclusion_that_the_documents_passed(tmp_path: Path) -> None:
    index = Index(tmp_path, exclusion_sha256=EXCLUSION.sha256)
    index.record(QUESTION.upper(), f"well, {QUESTION} indeed", "something else entirely")
    assert index.compact(replace(RULES, exclusion=EXCLUSION)) == (1, 1, 1)
    assert index.manifest.exclusion_sha256 == EXCLUSION.sha256
    assert index.holds("something else")
    assert not index.holds("lazy dog")
    assert not index.holds("LAZY DOG")
    # They are not left over for the next compaction either.
    assert (
        index.live.documents(
            "py", "a", index.live.generation("py", "a", tokenizer="tokenizer-1"), tokenizer="tokenizer-1"
        )
        == []
    )


@pytest.mark.parametrize(
    ("bound", "given"),
    [
        (EXCLUSION.sha256, []),
        (EXCLUSION.sha256, ["other texts than those that were excluded"]),
        ("", [QUESTION]),
    ],
)
def test_a_release_takes_no_outputs_under_another_exclusion_than_its_own(
    tmp_path: Path, bound: str, given: list[str]
) -> None:
    index = Index(tmp_path, exclusion_sha256=bound)
    index.record("something else entirely")
    before = index.store.aliases()
    with pytest.raises(FailedPrecondition, match=r"exclusion: the release excludes"):
        index.compact(replace(RULES, exclusion=exclusion_of(given)))
    assert index.store.aliases() == before


def test_where_all_outputs_are_excluded_there_is_no_new_release(tmp_path: Path) -> None:
    index = Index(tmp_path, exclusion_sha256=EXCLUSION.sha256)
    index.record(QUESTION)
    with pytest.raises(FailedPrecondition, match="exclusion: drops all outputs"):
        index.compact(replace(RULES, exclusion=EXCLUSION))


def test_the_licence_and_the_builder_name_those_of_documents_and_outputs_once_each(tmp_path: Path) -> None:
    index = Index(tmp_path, licence_policy="MIT", builder_commit="first")
    for n in range(2):
        index.record(f"output number {n}")
        index.compact(replace(RULES, licence="internal", builder_commit="second"))
    assert index.manifest.licence_policy == "MIT; live outputs: internal"
    assert index.manifest.builder_commit == "first, second"
    index.record("another output")
    index.compact(RULES)
    assert index.manifest.licence_policy == "MIT; live outputs: internal; live outputs: unstated"


def test_shared_outputs_are_not_compacted_into_a_release_that_strangers_see(tmp_path: Path) -> None:
    store = MemoryStore()
    put_up(store, "py", [TRACE])
    library = Library(store, tmp_path)
    library.poll()
    live = LiveLibrary(store, policies("a", "b", shared=True), library.tokenizers)
    generation = Retriever(library, live).record(PublishedOutput("py", "a", "x", np.array([1, 2])))
    live.poll()
    with pytest.raises(PermissionDenied, match="everybody"):
        compact(store, live, "py", "a", library.current("py"), generation, RULES)


def test_compaction_moves_outputs_into_a_release_and_out_of_the_stream(tmp_path: Path) -> None:
    store = MemoryStore()
    put_up(store, "py", [TRACE], tenants=("a", "b"))
    library = Library(store, tmp_path)
    library.poll()
    rules = policies("a", "b", shared=True)
    live = LiveLibrary(store, rules, library.tokenizers)
    writer = Retriever(library, live)
    for n, tenant in enumerate("abab"):
        generation = writer.record(PublishedOutput("py", tenant, f"{n}", np.array([4, 5, 6, 20 + n])))
    live.poll()
    later = writer.record(PublishedOutput("py", "a", "later", np.array([4, 5, 6, 50])))
    compact(store, live, "py", "a", library.current("py", "a"), generation, RULES)
    library.poll()
    live.poll()
    fresh = LiveLibrary(store, rules, library.tokenizers)
    fresh.poll()
    for known in (live, fresh):
        retriever = Retriever(library, known)
        (described,) = retriever.describe("a")
        release_id, newest = described.release, described.live_generation
        assert newest not in (0, generation, later)
        (answer,) = retriever.retrieve(Corpus("py", release_id, "a", newest), [[4, 5, 6]], LIMITS)
        roots = dict(zip(answer.tokens.tolist(), answer.depths.tolist(), strict=True))
        assert answer.match_count == 7
        assert {20, 21, 22, 23, 50} <= roots.keys()


def test_compaction_never_shows_one_tenants_outputs_to_another(tmp_path: Path) -> None:
    store = MemoryStore()
    put_up(store, "py", [TRACE])
    library = Library(store, tmp_path)
    library.poll()
    live = LiveLibrary(store, policies("a", "b"), library.tokenizers)
    generation = Retriever(library, live).record(PublishedOutput("py", "a", "x", np.array([1, 2])))
    live.poll()
    with pytest.raises(PermissionDenied, match="everybody"):
        compact(store, live, "py", "a", library.current("py"), generation, RULES)
    put_up(store, "py", [TRACE], tenants=("a", "b"))
    library.poll()
    with pytest.raises(PermissionDenied, match="to b"):
        compact(store, live, "py", "a", library.current("py", "a"), generation, RULES)
    put_up(store, "py", [TRACE], tenants=("a",))
    library.poll()
    done = compact(store, live, "py", "a", library.current("py", "a"), generation, RULES)
    assert done.alias.version == 4
    with pytest.raises(FailedPrecondition, match="release_id"):
        compact(store, live, "py", "a", library.current("py", "a"), generation, RULES)
