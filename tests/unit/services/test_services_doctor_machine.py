"""What `doctor` says of settings that the machine cannot hold, before a service fails by them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import pytest

from services.cli import doctor, doctor_machine
from services.cli.findings import Finding
from services.settings import AllSettings, load
from tests.helpers.tiny_models import tiny_checkpoint


def levels(found: Iterable[Finding]) -> list[tuple[str, str]]:
    return [(finding.level, finding.what) for finding in found]


def test_more_threads_than_cores_are_noted() -> None:
    cores = len(os.sched_getaffinity(0))
    assert not levels(doctor_machine.threads(AllSettings(threads=cores)))
    ((level, what),) = levels(doctor_machine.threads(AllSettings(draft_threads=cores + 1)))
    assert level == "note"
    assert what.startswith(f"DRAFTPROOF_DRAFT_THREADS: {cores + 1} threads")


def test_kv_that_the_machine_cannot_hold_is_to_mend(tmp_path: Path) -> None:
    model = tiny_checkpoint(tmp_path)
    fits = load(AllSettings, model=str(model))
    assert [level for level, _ in levels(doctor_machine.kv(fits))] == ["ok"]
    huge = load(AllSettings, model=str(model), kv_tokens=1 << 60)
    found = list(doctor_machine.kv(huge))
    assert found[0].level == "bad"
    assert f"KV: {1 << 60} tokens take" in found[0].what
    assert found[0].mend.startswith("set DRAFTPROOF_KV_TOKENS to ")


def test_a_head_that_is_nowhere_is_to_mend(tmp_path: Path) -> None:
    ((level, what),) = levels(doctor._head(AllSettings(head=str(tmp_path))))
    assert level == "bad"
    assert "no directory of a head package" in what
    assert levels(doctor._head(AllSettings(head="smollm2-135m-instruct")))[0][0] == "ok"
    assert not levels(doctor._head(AllSettings()))


@pytest.mark.parametrize(
    ("directory", "level"),
    [("x" * 100, "bad"), ("a file/links", "bad"), ("links", "ok")],
    ids=["long", "none", "short"],
)
def test_a_link_directory_must_take_sockets(directory: str, level: str, tmp_path: Path) -> None:
    (tmp_path / "a file").touch()
    settings = AllSettings(link_dir=str(tmp_path / directory))
    assert [found for found, _ in levels(doctor_machine.links(settings))] == [level]


def test_without_a_link_directory_nothing_is_said() -> None:
    assert not levels(doctor_machine.links(AllSettings()))
    assert not levels(doctor_machine.links(AllSettings(link_dir="-")))
