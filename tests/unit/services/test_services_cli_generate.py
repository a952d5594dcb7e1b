"""`draftproof generate` and `chat` over an orchestrator of fakes: what is asked, what is printed, what is refused."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

import pytest
from typer.testing import CliRunner, Result

from contracts.errors import InvalidArgument, Unavailable
from contracts.sampling import SamplingPolicy
from orchestrator.events import GenerateEvent
from orchestrator.request import GenerateRequest
from services import cli
from services.cli import requests
from tests.helpers.fakes import FakeVerifier
from tests.helpers.generation import orchestrator, reciter


class Recording:
    """An orchestrator that keeps what it is asked, and refuses what speaks of `refused`."""

    def __init__(self, text: str | None = None) -> None:
        self._orchestrator = orchestrator(FakeVerifier() if text is None else reciter(text))
        self.asked: list[GenerateRequest] = []

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[GenerateEvent]:
        self.asked.append(request)
        if request.messages and request.messages[-1]["content"] == "refused":
            raise InvalidArgument("messages", "are refused")
        async for event in self._orchestrator.generate(request):
            yield event


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> Recording:
    recording = Recording()

    @asynccontextmanager
    async def generating(*, local: bool, endpoint: str) -> AsyncIterator[Recording]:
        yield recording

    monkeypatch.setattr(requests, "generating", generating)
    return recording


def run(*words: str, told: str = "") -> Result:
    return CliRunner().invoke(cli.build_app(), list(words), input=told, env={"COLUMNS": "200"})


def test_the_text_streams_to_standard_output_and_the_summary_to_standard_error(source: Recording) -> None:
    plain = run("generate", "--raw", "--max-tokens", "9", "a prompt")
    record = json.loads(run("generate", "--raw", "--max-tokens", "9", "--json", "a prompt").stdout)
    assert plain.exit_code == 0
    assert plain.stdout == record["text"] + "\n"
    assert "9 tokens" in plain.stderr
    assert record["usage"]["completion"] == len(record["token_ids"]) == 9
    assert record["certificate"]["manifest"]["verifier"] == "greedy"


def test_every_flag_reaches_the_request(source: Recording) -> None:
    done = run(
        "generate", "--system", "Be brief.", "--temperature", "0.5", "--top-p", "0.9", "--top-k", "7", "--min-p", "0.1",
        "--seed", "3", "--max-tokens", "8", "--min-tokens", "2", "--stop", "x", "--stop", "y", "--stop-id", "5",
        "--sources", "prompt_lookup, retrieval", "--index", "book", "--option", "retrieval.min_match=3",
        "--option", "retrieval.spec_factor=1", "--node-budget", "6", "--max-depth", "4", "--verifier", "membership",
        "--no-speculation", "--heuristic", "--tenant", "a", "--deadline-ms", "9000", "--logprobs", "2", "--json", "hello",
    )  # fmt: skip
    (asked,) = source.asked
    assert isinstance(done.exception, InvalidArgument), "the fakes serve no index"
    assert asked == GenerateRequest(
        messages=({"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello"}),
        policy=SamplingPolicy(
            temperature=0.5,
            top_p=0.9,
            top_k=7,
            min_p=0.1,
            seed=3,
            max_tokens=8,
            min_tokens=2,
            stop_strings=("x", "y"),
            stop_ids=(5,),
            logprobs=2,
        ),
        sources=("prompt_lookup", "retrieval"),
        speculation=False,
        node_budget=6,
        max_depth=4,
        verifier="membership",
        exact_mode=False,
        deadline_ms=9000,
        tenant="a",
        indexes={"retrieval": "book"},
        options={"retrieval": {"min_match": 3, "spec_factor": 1}},
    )


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--raw", "--system", "x"), "--raw and --system exclude each other"),
        (("--logprobs", "2"), "--logprobs is reported with --json only"),
        (("--ledger", "--json"), "--ledger and --json exclude each other"),
        (("--option", "prompt_lookup"), "is not SOURCE.NAME=NUMBER"),
        (("--option", "a.b=x"), "is not SOURCE.NAME=NUMBER"),
        (("--option", "a.b=1", "--option", "a.b=2"), "is given twice"),
        (("--sources", ","), "--sources ',' has an empty name"),
        (("--sources", "prompt_lookup,,head"), "has an empty name"),
        (("--sources", ""), "--no-speculation for none"),
        (("--temperature", "warm"), "--temperature"),
    ],
)
def test_flags_that_would_do_nothing_are_refused(flags: tuple[str, ...], said: str, source: Recording) -> None:
    done = run("generate", *flags, "hello")
    assert done.exit_code == 2
    assert said in done.output
    assert not source.asked


@pytest.mark.parametrize("command", [("generate", "hello"), ("chat",)])
def test_local_with_an_endpoint_is_refused(command: tuple[str, ...]) -> None:
    done = run(*command, "--local", "--endpoint", "127.0.0.1:1")
    assert done.exit_code == 2
    assert "--local and --endpoint exclude each other" in done.output


def test_a_dash_reads_the_prompt_from_standard_input(source: Recording) -> None:
    assert run("generate", "--raw", "-", told="from a file").exit_code == 0
    assert source.asked[0].text == "from a file"


def test_a_typed_error_is_one_line_and_status_2(
    source: Recording, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["draftproof", "generate", "refused"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    assert capsys.readouterr().err == "invalid_argument: messages: are refused\n"


def test_a_conversation_keeps_its_history_until_it_is_undone_or_reset(source: Recording) -> None:
    lines = ["one", "two", "/undo", "three", "refused", "/reset", "four"]
    done = run(
        "chat", "--system", "Be brief.", "--max-tokens", "3", "--temperature", "0", told="\n".join(lines) + "\n\n"
    )
    assert done.exit_code == 0
    assert "invalid_argument: messages: are refused" in done.stderr
    said = [
        [message["content"] for message in request.messages or () if message["role"] != "assistant"]
        for request in source.asked
    ]
    assert said == [
        ["Be brief.", "one"],
        ["Be brief.", "one", "two"],
        ["Be brief.", "one", "three"],
        ["Be brief.", "one", "three", "refused"],
        ["Be brief.", "four"],
    ]
    assert [message["role"] for message in source.asked[1].messages or ()] == ["system", "user", "assistant", "user"]


def test_chat_takes_the_flags_of_a_generation(source: Recording) -> None:
    done = run("chat", "--top-k", "5", "--stop", "x", "--tenant", "a", "--max-depth", "3", "--heuristic", told="hi\n\n")
    assert done.exit_code == 0, done.output
    (asked,) = source.asked
    assert (asked.policy.top_k, asked.policy.stop_strings) == (5, ("x",))
    assert (asked.tenant, asked.max_depth, asked.exact_mode) == ("a", 3, False)


@pytest.mark.parametrize("told", ["", None])
def test_an_empty_prompt_is_refused(source: Recording, told: str | None) -> None:
    done = run("generate", "" if told is None else "-", told=told or "")
    assert done.exit_code == 2
    assert "the prompt is empty" in done.output
    assert source.asked == []


def test_a_standard_input_that_is_no_text_is_refused(source: Recording) -> None:
    done = CliRunner().invoke(cli.build_app(), ["generate", "-"], input=b"\xff\xfe", env={"COLUMNS": "200"})
    assert done.exit_code == 2
    assert "standard input is no text" in done.output


@pytest.mark.parametrize("endpoint", ["nonsense", "127.0.0.1:0", "127.0.0.1:99999", "http://127.0.0.1:7601/"])
def test_an_endpoint_that_is_none_is_refused(endpoint: str) -> None:
    done = run("generate", "--endpoint", endpoint, "hi")
    assert done.exit_code == 2
    assert f"'{endpoint}' is not host:port" in done.output


def test_where_nothing_answers_the_error_says_what_to_do() -> None:
    nobody = requests.hinted(Unavailable("", "connection refused"))
    assert "draftproof up" in str(nobody)
    draining = Unavailable("verifier", "is draining")
    assert requests.hinted(draining) is draining
