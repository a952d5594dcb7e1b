from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner

from services import garbage
from services.cli.serve import app


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    """The test process's own collector, as it was."""
    yield
    gc.unfreeze()
    gc.enable()


def test_nothing_is_collected_between_postpone_and_resume() -> None:
    garbage.postpone()
    assert not gc.isenabled()
    garbage.resume()
    assert gc.isenabled()


def test_what_was_made_before_resume_is_out_of_the_collectors_sight() -> None:
    made: list[object] = []
    garbage.postpone()
    garbage.resume()
    later: list[object] = []
    seen = {id(thing) for thing in gc.get_objects()}
    assert id(made) not in seen
    assert id(later) in seen


def test_a_service_that_does_not_start_leaves_the_collector_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAFTPROOF_PROPOSER_PORT", "-1")
    result = CliRunner().invoke(app, ["proposer"])
    assert result.exit_code != 0
    assert gc.isenabled()
