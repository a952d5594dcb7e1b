"""`draftproof index` against an embedded Redis: what each command leaves in the store."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from contracts.errors import FailedPrecondition, NotFound, PermissionDenied
from contracts.retrieval import PublishedOutput
from models.checkpoint import tokenizer_digest
from retriever.exclusion import exclusion_of
from retriever.library import Library
from retriever.live import LiveLibrary
from retriever.redis_store import RedisStore
from retriever.retriever import Retriever
from retriever.segment_cache import SegmentCache
from retriever.segment_format import build_segment, segment_digest
from retriever.trie import QueryLimits
from services.cli import build_app
from services.redis_embedded import embedded_redis
from services.retriever_service.live_policies import parse_policies
from tests.contract.tiny_service import tiny_service_checkpoint
from tests.unit.retriever.corpora import TRACE, put_up

EXCLUDED = "a text that must not be in any index"
POLICIES = '{"py": {"tenants": ["a"]}}'


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RedisStore]:
    with embedded_redis(tmp_path / "redis") as server:
        monkeypatch.setenv("DRAFTPROOF_REDIS_URL", server.url)
        monkeypatch.setenv("DRAFTPROOF_CACHE_DIR", str(tmp_path / "cache"))
        monkeypatch.setenv("COLUMNS", "200")
        store = RedisStore(server.url)
        yield store
        store.close()


def index(*words: str) -> str:
    done = CliRunner().invoke(build_app(), ["index", *words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_list_history_rollback_and_gc_agree_with_the_store(store: RedisStore) -> None:
    releases = [put_up(store, "py", [[1, n]], licence_policy=f"L{n}") for n in range(4)]
    shown = index("list")
    assert releases[3][:16] in shown
    assert "L3" in shown
    told = index("history", "py")
    assert [told.index(release) for release in reversed(releases)] == sorted(told.index(r) for r in releases)
    index("rollback", "py", "--steps", "2")
    assert store.aliases()["py"].release_id == releases[1]
    assert store.aliases()["py"].version == 5
    gone = index("gc", "--keep", "2", "--grace-minutes", "0")
    assert releases[0] in gone
    assert releases[2] in gone
    assert store.get_release(releases[1])
    assert store.get_release(releases[3])
    with pytest.raises(NotFound):
        store.get_release(releases[0])
    with pytest.raises(NotFound, match="index"):
        index("history", "none")
    with pytest.raises(NotFound, match="steps"):
        index("rollback", "py", "--steps", "9")


def test_compact_folds_live_outputs_into_a_release(
    store: RedisStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = tiny_service_checkpoint(tmp_path)
    monkeypatch.setenv("DRAFTPROOF_LIVE_POLICIES", POLICIES)
    monkeypatch.setenv("DRAFTPROOF_MODEL", str(checkpoint))
    bound = {"tenants": ("a",), "tokenizer_sha256": tokenizer_digest(checkpoint)}
    put_up(store, "py", [TRACE], **bound, exclusion_sha256=exclusion_of([EXCLUDED]).sha256)
    # What others share the cache directory for stays there.
    segments = tmp_path / "cache" / "segments"
    kept = SegmentCache(segments).put(segment_digest(other := build_segment([[1, 2]])), [other])
    os.utime(kept, (0, 0))
    library = Library(store, tmp_path / "segments")
    library.poll()
    live = LiveLibrary(store, parse_policies(POLICIES), library.tokenizers)
    Retriever(library, live).record(PublishedOutput("py", "a", "r", np.array([4, 5, 6, 77])))
    with pytest.raises(FailedPrecondition, match="the release excludes"):
        index("compact", "py", "--tenant", "a")
    excluded = tmp_path / "excluded.txt"
    excluded.write_text(EXCLUDED)
    options = ("--tenant", "a", "--exclude", str(excluded), "--licence", "internal")
    told = index("compact", "py", *options)
    assert "version 2" in told
    assert "1 outputs" in told
    assert kept.exists()
    assert not list(segments.glob("*.json"))
    library.poll()
    assert library.current("py", "a").segments.retrieve([4, 5, 6], QueryLimits()).match_count == 3
    assert library.current("py", "a").release.manifest.licence_policy.endswith("live outputs: internal")
    with pytest.raises(FailedPrecondition, match="holds no outputs"):
        index("compact", "py", *options)
    put_up(store, "other", [TRACE])
    with pytest.raises(FailedPrecondition, match=r"release\.tokenizer_sha256"):
        index("compact", "other", "--tenant", "a")
    put_up(store, "open", [TRACE], tokenizer_sha256=bound["tokenizer_sha256"])
    with pytest.raises(PermissionDenied, match="live"):
        index("compact", "open", "--tenant", "a")


@pytest.mark.parametrize(
    "words",
    [("gc", "--keep", "0"), ("gc", "--keep", "-3"), ("gc", "--grace-minutes", "-5"), ("rollback", "x", "--steps", "0")],
)
def test_numbers_that_make_no_sense_are_usage_errors(words: tuple[str, ...]) -> None:
    done = CliRunner().invoke(build_app(), ["index", *words], env={"COLUMNS": "200"})
    assert done.exit_code == 2
    assert words[-2] in done.output
