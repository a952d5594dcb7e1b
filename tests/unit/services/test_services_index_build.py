"""`draftproof index build` against an embedded Redis: excluded texts, lengths, what was passed over, the builder's name."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

import pytest
from typer.testing import CliRunner

from contracts.errors import DraftproofError, InvalidArgument, NotFound
from retriever.exclusion import exclusion_of
from retriever.publish import in_store, segment_chunks
from retriever.redis_store import RedisStore
from retriever.release import Release, release_from_bytes
from retriever.sources import Kind, Source, plan_units
from services import revision
from services.cli import build_app
from services.indexing import read_excluded, recipe_for
from services.jobs.index_build import tokenizer_files
from services.jobs.unit_task import BuildOrder, UnitDone, run_unit
from services.orchestrator_service.process import orchestrator_settings
from services.redis_embedded import embedded_redis
from services.settings import OrchestratorServiceSettings, load
from tests.contract.tiny_service import tiny_service_checkpoint

SECRET = "the evaluation question that nobody may ever find in any index"


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RedisStore]:
    with embedded_redis(tmp_path / "redis") as server:
        monkeypatch.setenv("DRAFTPROOF_REDIS_URL", server.url)
        monkeypatch.setenv("DRAFTPROOF_CACHE_DIR", str(tmp_path / "cache"))
        monkeypatch.setenv("DRAFTPROOF_MODEL", str(tiny_service_checkpoint(tmp_path)))
        monkeypatch.setenv("COLUMNS", "200")
        store = RedisStore(server.url)
        yield store
        store.close()


def index(*words: str) -> str:
    done = CliRunner().invoke(build_app(), ["index", *words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def refused(*words: str) -> str:
    done = CliRunner().invoke(build_app(), ["index", *words])
    assert done.exit_code == 2, done.output
    return done.output


def current(store: RedisStore, name: str) -> Release:
    release_id = store.aliases()[name].release_id
    return release_from_bytes(store.get_release(release_id), release_id)


def test_a_build_says_what_it_took_left_out_and_passed_over(store: RedisStore, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "a.py").write_text("a = 1\n")
    (source / "b.js").write_text("var b = 2\n")
    (source / "c.c").write_text(f"// {SECRET}\n")
    (source / "d.js").write_bytes(b"\xff\n")
    excluded = tmp_path / "excluded.jsonl"
    excluded.write_text(json.dumps({"question": SECRET}) + "\n")
    told = index("build", "code", str(source), "--suffix", ".js", "--suffix", "c", "--exclude", str(excluded))
    assert "1 documents" in told
    assert "1 repeat an excluded text, 0 overlap with one, 1 are not Unicode text, 0 are null" in told
    assert "passed over: 1 files of other kinds (--suffix takes them): 1 .py" in told
    manifest = current(store, "code").manifest
    assert manifest.exclusion_sha256 == exclusion_of([SECRET]).sha256
    assert (manifest.context_length, manifest.continuation_length) == (64, 32)
    assert manifest.builder_commit == revision.builder_commit()
    index("build", "code", str(source), "--context-length", "100", "--continuation-length", "8")
    manifest = current(store, "code").manifest
    assert (manifest.context_length, manifest.continuation_length) == (100, 8)
    assert "passed over" not in index("build", "one", str(source / "a.py"))


def test_a_build_over_a_damaged_store_mends_it(store: RedisStore, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("some text of an index\n" * 20)
    index("build", "text", str(tmp_path / "a.txt"))
    (entry,) = current(store, "text").segments
    store.put_chunk(entry.digest, 0, b"x")
    assert not in_store(store, entry)
    assert "(1 built before)" in index("build", "text", str(tmp_path / "a.txt"))
    assert in_store(store, entry)


def test_a_ray_task_mends_what_it_finds_damaged(store: RedisStore, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("some text of an index\n" * 20)
    checkpoint = tmp_path / "tiny"
    recipe, _ = recipe_for(checkpoint, "CC0")
    (unit,) = plan_units([Source(tmp_path / "a.txt", Kind.TEXT)])

    def run(known: dict[str, object]) -> UnitDone:
        url = f"redis://127.0.0.1:{store._client.connection_pool.connection_kwargs['port']}/0"
        files = tokenizer_files(checkpoint)
        done = run_unit(BuildOrder(files, recipe, exclusion_of([]), known, url, "draftproof", "p"), unit)  # type: ignore[arg-type]
        assert isinstance(done, UnitDone)
        return done

    first = run({})
    known = {first.result.input_sha256: first.result}
    assert run(known).reused
    store.put_chunk(first.result.segment.digest, 0, b"x")
    again = run(known)
    assert (again.result, again.reused) == (first.result, False)
    assert b"".join(segment_chunks(store, first.result.segment))


@pytest.mark.parametrize(
    "words",
    [
        ("build", "x", "y", "--context-length", "0"),
        ("build", "x", "y", "--continuation-length", "513"),
        ("build", "x", "y", "--kind", "csv"),
        ("gc", "--keep", "0"),
        ("gc", "--grace-minutes", "-5"),
        ("rollback", "x", "--steps", "-1"),
    ],
)
def test_flags_out_of_range_are_refused(words: tuple[str, ...]) -> None:
    assert "Invalid value" in refused(*words)


@pytest.mark.parametrize("words", [("build", "x", "y"), ("compact", "x")])
def test_an_ngram_without_excluded_texts_is_refused_by_its_name(store: RedisStore, words: tuple[str, ...]) -> None:
    done = CliRunner().invoke(build_app(), ["index", *words, "--ngram", "8"])
    assert isinstance(done.exception, InvalidArgument)
    assert done.exception.field == "ngram"
    assert "--exclude" in str(done.exception)


@pytest.mark.parametrize(
    ("name", "content", "error"),
    [
        ("gone.jsonl", None, NotFound),
        ("bad.jsonl", b'{"a": "x"}\n{not json\n', InvalidArgument),
        ("deep.jsonl", b"[" * 100_000, InvalidArgument),
        ("latin.txt", b"caf\xe9", InvalidArgument),
    ],
)
def test_an_exclusion_that_cannot_be_read_is_refused_by_its_path(
    tmp_path: Path, name: str, content: bytes | None, error: type[DraftproofError]
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(error, match=name):
        read_excluded(tmp_path / name)


def test_every_string_of_json_lines_is_excluded_whatever_line_separators_it_holds(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text(json.dumps({"q": "one\u2028two", "more": ["three", {"n": 4}]}, ensure_ascii=False) + "\n\n")
    assert read_excluded(path) == ["one\u2028two", "three"]
    (tmp_path / "in.txt").write_text("all\nof it")
    assert read_excluded(tmp_path / "in.txt") == ["all\nof it"]


@pytest.mark.parametrize(("context", "continuation"), [(0, 8), (4097, 8), (8, 0), (8, 513)])
def test_lengths_out_of_range_are_refused(tmp_path: Path, context: int, continuation: int) -> None:
    with pytest.raises(InvalidArgument, match="length"):
        recipe_for(tmp_path, "CC0", context_length=context, continuation_length=continuation)


def test_the_builder_is_the_revision_of_the_checkout_and_says_where_files_differ(tmp_path: Path) -> None:
    def git(*words: str) -> str:
        identity = ("-c", "user.name=t", "-c", "user.email=t@example.com")
        done = subprocess.run(
            ["git", "-C", str(tmp_path), *identity, *words], capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    assert revision._of_checkout(tmp_path) == ""
    git("init", "-q")
    assert revision._of_checkout(tmp_path) == ""
    (tmp_path / "a.py").write_text("a")
    git("add", "a.py")
    git("commit", "-q", "-m", "first")
    assert revision._of_checkout(tmp_path) == git("rev-parse", "HEAD")
    (tmp_path / "a.py").write_text("b")
    assert revision._of_checkout(tmp_path) == git("rev-parse", "HEAD") + "+changed"
    # A package inside somebody else's checkout.
    (tmp_path / "site-packages").mkdir()
    assert revision._of_checkout(tmp_path / "site-packages") == ""


def test_an_installed_builder_is_its_recorded_revision_or_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    class Installed:
        version = "1.2.3"
        record: str | None = None

        def read_text(self, name: str) -> str | None:
            assert name == "direct_url.json"
            return self.record

    installed = Installed()
    monkeypatch.setattr(revision, "distribution", lambda name: installed)
    for record, expected in (
        (None, "draftproof 1.2.3"),
        ("{", "draftproof 1.2.3"),
        ('{"dir_info": {}}', "draftproof 1.2.3"),
        ('{"vcs_info": {"commit_id": "abc"}}', "abc"),
    ):
        installed.record = record
        assert revision._of_package() == expected
    monkeypatch.setattr(revision, "distribution", lambda name: distribution("no such package at all"))
    assert revision._of_package() == "draftproof from source"


def test_the_longest_suffix_is_a_setting_that_is_not_below_the_shortest() -> None:
    assert orchestrator_settings(load(OrchestratorServiceSettings)).max_suffix == 64
    given = load(OrchestratorServiceSettings, retrieval_max_match=4096)
    assert orchestrator_settings(given).max_suffix == 4096
    with pytest.raises(InvalidArgument, match="RETRIEVAL_MIN_MATCH"):
        orchestrator_settings(load(OrchestratorServiceSettings, retrieval_min_match=3, retrieval_max_match=2))
    with pytest.raises(InvalidArgument, match="RETRIEVAL_MAX_MATCH"):
        load(OrchestratorServiceSettings, retrieval_max_match=4097)
