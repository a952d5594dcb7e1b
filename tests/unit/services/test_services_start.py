"""How services start: what one imports, how a refusal is said, and how many start at a time."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from contracts.errors import FailedPrecondition
from services import start
from services.supervisor import Child, ChildSpec, Supervisor

NEEDLESS = ("torch", "transformers", "typer", "rich", "pydantic_settings", "opentelemetry.exporter", "ray")


@pytest.mark.parametrize("service", ["verifier", "proposer", "retriever", "orchestrator"])
def test_a_service_starts_without_what_it_does_not_need(service: str) -> None:
    program = (
        "import importlib, sys; from services.start import _SERVICES; import services.start\n"
        f"importlib.import_module(_SERVICES[{service!r}][0])\n"
        f"print(*[name for name in {NEEDLESS!r} if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "\n"


def test_a_refused_setting_is_one_line_and_status_2(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "services.start", "proposer"],
        env={**os.environ, "DRAFTPROOF_PROPOSER_PORT": "-1", "DRAFTPROOF_CACHE_DIR": str(tmp_path)},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith("invalid_argument: DRAFTPROOF_PROPOSER_PORT")
    assert done.stderr.count("\n") == 1


def test_every_service_of_a_stack_can_be_started() -> None:
    from services.stack import SERVICES

    assert set(SERVICES) == set(start._SERVICES)


class Starts:
    """In place of `Child.start`: who began, and an end for each that the test sets."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.ends: dict[str, asyncio.Event] = {}

    async def start(self, child: Child) -> None:
        self.begun.append(child.spec.name)
        self.ends[child.spec.name] = asyncio.Event()
        await self.ends[child.spec.name].wait()


def supervised(monkeypatch: pytest.MonkeyPatch, processors: int) -> tuple[Supervisor, Starts]:
    starts = Starts()
    monkeypatch.setattr(Child, "start", lambda child: starts.start(child))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(processors)))
    specs = [ChildSpec(name, ["none"], "127.0.0.1:1") for name in ("first", "second", "third")]
    return Supervisor(specs, lambda *_: None), starts


async def _turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_as_many_start_at_a_time_as_there_are_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    supervisor, starts = supervised(monkeypatch, 2)
    starting = asyncio.create_task(supervisor.start())
    await _turns()
    assert starts.begun == ["first", "second"]
    starts.ends["second"].set()
    await _turns()
    assert starts.begun == ["first", "second", "third"]
    for end in starts.ends.values():
        end.set()
    await starting


async def test_one_that_waits_for_something_lets_others_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    supervisor, starts = supervised(monkeypatch, 1)
    ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    starting = asyncio.create_task(supervisor.start({"first": ready}))
    await _turns()
    assert starts.begun == ["second"]
    ready.set_result(None)
    for name in ("second", "third", "first"):
        await _turns()
        starts.ends[name].set()
    await starting
    assert starts.begun == ["second", "third", "first"]


async def test_what_is_awaited_in_vain_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    supervisor, _ = supervised(monkeypatch, 4)
    failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    failed.set_exception(FailedPrecondition("redis", "did not start"))
    with pytest.raises(FailedPrecondition, match="did not start"):
        await supervisor.start({"second": failed})
