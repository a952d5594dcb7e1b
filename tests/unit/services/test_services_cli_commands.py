"""The commands that look, build and show: settings, doctor, demo, index build, and where generations come from."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from contracts.errors import InvalidArgument, Unavailable
from orchestrator.events import GenerateEvent
from orchestrator.request import GenerateRequest
from retriever.library import Library
from retriever.redis_store import RedisStore
from retriever.trie import QueryLimits
from services import stack, telemetry
from services.cli import build_app, console, demo, doctor, requests
from services.cli.console import progress_bars
from services.cli.index import StepBars
from services.clients import generate
from services.indexing import read_excluded
from services.redis_embedded import EmbeddedRedis, embedded_redis, free_port, is_listening
from services.settings import PREFIX, AllSettings
from services.text import CheckpointTokenizer
from tests.contract.tiny_service import tiny_service_checkpoint
from tests.helpers.fakes import FakeVerifier
from tests.helpers.generation import orchestrator
from tests.unit.retriever.corpora import put_up


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in list(os.environ):
        if name.upper().startswith((PREFIX, "OTEL_")):
            monkeypatch.delenv(name)


def run(*words: str) -> Result:
    return CliRunner().invoke(build_app(), list(words), env={"COLUMNS": "300"})


def test_settings_lists_every_variable_with_its_present_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAFTPROOF_NODE_BUDGET", "17")
    monkeypatch.setattr(console, "out", Console(width=300))
    done = run("settings")
    assert done.exit_code == 0
    lines = {words[1]: words[3] for line in done.output.splitlines() if len(words := line.split()) > 3}
    assert {PREFIX + name.upper() for name in AllSettings.model_fields} <= set(lines)
    assert lines["DRAFTPROOF_NODE_BUDGET"] == "17"


@pytest.mark.parametrize("command", ["settings", "up", "demo", "chat", "generate"])
def test_a_wrong_setting_stops_every_command_by_its_name(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAFTPROOF_MAX_DEPTH", "1000")
    done = run(command, *(["hello"] if command == "generate" else []))
    assert isinstance(done.exception, InvalidArgument)
    assert done.exception.field == "DRAFTPROOF_MAX_DEPTH"


def test_doctor_says_what_to_mend_and_ends_with_status_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAFTPROOF_DEFAULT_SOURCES", "nonsense")
    done = run("doctor")
    assert done.exit_code == 1
    assert "DRAFTPROOF_DEFAULT_SOURCES: 'nonsense' is no source" in " ".join(done.output.split())


def test_doctor_notes_what_would_be_missing_at_the_first_request(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ports = {f"{name}_PORT": str(free_port()) for name in ("VERIFIER", "PROPOSER", "RETRIEVER", "ORCHESTRATOR")}
    given = {"DEFAULT_SOURCES": "prompt_lookup,head", "CACHE_DIR": str(tmp_path), "LIVE_POLICIES": "{}", **ports}
    for name, value in given.items():
        monkeypatch.setenv(PREFIX + name, value)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "http://collector:4317")
    findings = {finding.what: finding for finding in doctor.examine()}
    note = findings["head is among the default sources, but DRAFTPROOF_HEAD is empty"]
    assert (note.level, note.mend) == ("note", "set DRAFTPROOF_HEAD")
    assert "metrics: to http://collector:4317" in findings
    assert "traces: off (OTEL_EXPORTER_OTLP_ENDPOINT)" in findings
    monkeypatch.setenv("DRAFTPROOF_LIVE_POLICIES", "[]")
    assert any(one.level == "bad" and "live_policies" in one.what.lower() for one in doctor.examine())


def test_doctor_names_a_host_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAFTPROOF_HOST", "999.1.1.1")
    bad = [finding for finding in doctor.examine() if finding.level == "bad"]
    assert any(finding.what.startswith("host '999.1.1.1'") for finding in bad)


@pytest.mark.parametrize("model", ["", "/nowhere", "a/b/c", "[/red]"])
def test_doctor_does_not_promise_to_fetch_what_is_no_model(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAFTPROOF_MODEL", model)
    done = run("doctor")
    assert done.exit_code == 1
    assert f"model: {model!r} is no directory and no model id" in " ".join(done.output.split())


class Client:
    """Stands for the client of a running orchestrator."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self._orchestrator = orchestrator(FakeVerifier())

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[GenerateEvent]:
        sources = None if request.sources is None else ("prompt_lookup",)
        asked = GenerateRequest(text="a prompt, a prompt", policy=request.policy, sources=sources)
        async for event in self._orchestrator.generate(asked):
            yield event

    async def close(self) -> None:
        await self._orchestrator.aclose()


async def test_without_an_endpoint_the_one_of_the_settings_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generate, "GenerateClient", Client)
    monkeypatch.setenv("DRAFTPROOF_ORCHESTRATOR_PORT", "7777")
    async with requests.generating(local=False, endpoint="") as source:
        assert isinstance(source, Client)
        assert source.endpoint == "127.0.0.1:7777"
    async with requests.generating(local=False, endpoint="elsewhere:1") as source:
        assert isinstance(source, Client)
        assert source.endpoint == "elsewhere:1"


async def test_local_exports_telemetry_until_the_orchestrator_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    happened: list[str] = []

    orchestrating = Client("")

    @asynccontextmanager
    async def local(_: AllSettings) -> AsyncIterator[Client]:
        happened.append("loaded")
        yield orchestrating
        happened.append("closed")

    def start(service: str) -> object:
        happened.append(service)
        return lambda: happened.append("flushed")

    monkeypatch.setattr("services.local.local_orchestrator", local)
    monkeypatch.setattr(telemetry, "start", start)
    monkeypatch.setattr(console, "fetch_model", lambda *_: None)
    async with requests.generating(local=True, endpoint="") as source:
        assert source is orchestrating
    assert happened == ["draftproof-local", "loaded", "closed", "flushed"]


def test_the_demo_compares_its_ways_on_data_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    started: list[tuple[AllSettings, object, object]] = []

    @asynccontextmanager
    async def running(settings: AllSettings, _: object, *, logs: Path, redis_dir: str) -> AsyncIterator[object]:
        started.append((settings, logs, redis_dir))
        endpoints = dict.fromkeys(("orchestrator", "retriever"), "127.0.0.1:1")
        yield SimpleNamespace(redis_url="", endpoints=endpoints, pid=lambda _: 1)

    async def indexed(_: str) -> None:
        pass

    monkeypatch.setenv("DRAFTPROOF_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(stack, "running_stack", running)
    monkeypatch.setattr(demo, "_index", lambda *_: None)
    monkeypatch.setattr(demo, "_until_indexed", indexed)
    monkeypatch.setattr(generate, "GenerateClient", Client)
    monkeypatch.setattr(console, "fetch_model", lambda *_: tmp_path)
    monkeypatch.setattr(console, "out", Console(width=200))
    done = run("demo", "--max-tokens", "12")
    assert done.exit_code == 0, done.output
    ((settings, logs, redis_dir),) = started
    assert (redis_dir, logs) == ("demo-redis", tmp_path / "demo-logs")
    assert settings.redis_port == settings.orchestrator_port == 0
    assert "every text is identical to plain decoding" in done.output
    for prompt in demo.PROMPTS:
        assert f"{prompt}: both" in done.output


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[EmbeddedRedis]:
    with embedded_redis(tmp_path / "redis") as server:
        yield server


def test_index_build_leaves_out_what_is_excluded_and_points_the_name_at_the_release(
    redis: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    checkpoint = tiny_service_checkpoint(tmp_path / "model")
    for name, value in (("REDIS_PORT", redis.port), ("CACHE_DIR", tmp_path / "cache"), ("MODEL", checkpoint)):
        monkeypatch.setenv(f"DRAFTPROOF_{name}", str(value))
    monkeypatch.setattr(console, "out", Console(width=300))
    secret = "the quick brown fox jumps over the lazy dog while nobody at all looks on"
    records = tmp_path / "notes.jsonl"
    records.write_text("".join(json.dumps({"body": text}) + "\n" for text in ("hello hello world", secret)))
    unwanted = tmp_path / "evaluation.jsonl"
    unwanted.write_text(json.dumps({"question": secret}) + "\n")
    build = ("index", "build", "notes", str(records), "--kind", "jsonl", "--field", "body", "--exclude", str(unwanted))
    done = run(*build, "--licence", "CC0", "--tenant", "alice")
    assert done.exit_code == 0, done.output
    assert "notes version 1" in done.output
    assert "1 documents" in done.output
    assert "1 repeat an excluded text" in done.output
    store = RedisStore(redis.url)
    library = Library(store, tmp_path / "segments")
    library.poll()
    held = library.current("notes", "alice")
    assert held.release.manifest.licence_policy == "CC0"
    encode = CheckpointTokenizer(checkpoint).encode
    assert held.segments.retrieve(np.array(encode("hello")), QueryLimits()).match_count == 2
    assert held.segments.retrieve(np.array(encode("fox")), QueryLimits()).match_length < 3
    store.close()
    refused = run(*build[:4], "--kind", "film")
    assert refused.exit_code == 2
    assert "'film' is not one of text, jsonl, parquet, arrow" in refused.output


@pytest.mark.parametrize(
    ("default", "indexes", "said"),
    [
        ("", ["a"], None),
        ("a", ["a", "b"], None),
        ("", ["a", "b"], "several indexes and no default"),
        ("c", ["a", "b"], "the default index 'c' is not in the store"),
    ],
)
def test_doctor_notes_an_index_that_no_request_would_reach(
    default: str, indexes: list[str], said: str | None, redis: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = RedisStore(redis.url)
    for name in indexes:
        put_up(store, name, [[1, 2]])
    store.close()
    monkeypatch.setenv("DRAFTPROOF_REDIS_URL", redis.url)
    monkeypatch.setenv("DRAFTPROOF_DEFAULT_INDEX", default)
    notes = [finding.what for finding in doctor.examine() if finding.level == "note" and "index" in finding.what]
    assert [note.startswith(said or "-") for note in notes] == ([True] if said else [])


def test_index_commands_say_where_no_store_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAFTPROOF_REDIS_PORT", str(free_port()))
    assert isinstance(run("index", "list").exception, Unavailable)


def test_a_listener_is_found_and_nobody_listens_on_port_0(redis: EmbeddedRedis) -> None:
    assert is_listening(redis.port)
    assert not is_listening(free_port())
    assert not is_listening(0)


def test_a_build_shows_one_bar_a_step() -> None:
    with progress_bars(Console(quiet=True)) as bars:
        show = StepBars(bars, "notes")
        for step, done in (("building", 0), ("building", 2), ("publishing", 5)):
            show(step, done, 5)
        assert [(task.description, task.completed, task.total) for task in bars.tasks] == [
            ("index notes: building", 2, 5),
            ("index notes: publishing", 5, 5),
        ]


def test_excluded_texts_are_every_string_of_json_lines_or_a_whole_file(tmp_path: Path) -> None:
    lines = tmp_path / "a.jsonl"
    lines.write_text('{"q": "one", "turns": ["two", {"x": "three"}], "n": 4}\n\n"four"\n')
    assert read_excluded(lines) == ["one", "two", "three", "four"]
    whole = tmp_path / "a.txt"
    whole.write_text("one\ntwo")
    assert read_excluded(whole) == ["one\ntwo"]
