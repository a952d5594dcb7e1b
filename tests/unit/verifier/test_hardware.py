"""The hardware's name says which processor, how many of them, and how many threads where that is not one each."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import pytest

from verifier import hardware
from verifier.hardware import hardware_profile

FACTS = "processor\t: 0\nmodel name\t: Some CPU 9000 @ 2.0GHz\nprocessor\t: 1\nmodel name\t: Some CPU 9000 @ 2.0GHz\n"


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cpuinfo").write_text(FACTS)
    monkeypatch.setattr(hardware, "_CPU_FACTS", tmp_path / "cpuinfo")
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 3, 5})
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")


@pytest.mark.usefixtures("machine")
def test_the_profile_names_the_processor_and_counts_those_this_process_may_use() -> None:
    assert hardware_profile() == "x86_64 Some CPU 9000 @ 2.0GHz x3"


@pytest.mark.usefixtures("machine")
def test_threads_are_named_unless_they_are_one_a_processor() -> None:
    """So a calibration made with other threads is another machine's, and those made before threads were named still hold."""
    assert hardware_profile(threads=3) == hardware_profile(threads=0) == hardware_profile()
    assert hardware_profile(threads=1) == "x86_64 Some CPU 9000 @ 2.0GHz x3, 1 thread"
    assert hardware_profile(threads=2) == "x86_64 Some CPU 9000 @ 2.0GHz x3, 2 threads"


def test_without_a_list_of_processors_the_profile_still_tells_machines_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hardware, "_CPU_FACTS", tmp_path / "absent")
    monkeypatch.setattr(platform, "processor", lambda: "arm")
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0})
    one = hardware_profile()
    monkeypatch.setattr(platform, "machine", lambda: "other")
    assert one.endswith(" arm x1")
    assert hardware_profile() != one
