"""The command line: help that teaches, errors in one line, doctor's verdicts."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from services.cli import doctor

ROOT = Path(__file__).resolve().parents[3]


def run(words: Sequence[str], **environment: str) -> subprocess.CompletedProcess[str]:
    import os

    clean = {name: value for name, value in os.environ.items() if not name.startswith("DRAFTPROOF_")}
    return subprocess.run(
        [sys.executable, "-m", "services.cli", *words],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**clean, "COLUMNS": "120", **environment},
        timeout=120,
    )


@pytest.mark.parametrize(
    "command",
    [
        "up",
        "generate",
        "chat",
        "demo",
        "doctor",
        "index build",
        "index compact",
        "index gc",
        "index history",
        "index list",
        "serve",
    ],
)
def test_help_shows_how(command: str) -> None:
    done = run([*command.split(), "--help"])
    assert done.returncode == 0
    assert "draftproof" in done.stdout
    assert "Example" in done.stdout


def test_an_unknown_setting_is_one_line_and_a_hint() -> None:
    done = run(["settings"], DRAFTPROOF_VERIFER_PORT="1")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "DRAFTPROOF_VERIFIER_PORT" in done.stderr


def test_services_that_do_not_run_are_said() -> None:
    done = run(["generate", "hello", "--endpoint", "127.0.0.1:1"])
    assert done.returncode == 2
    assert done.stderr.startswith("unavailable")


def test_doctor_names_what_to_mend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "pytorch_model.bin").write_bytes(b"x")
    monkeypatch.setenv("DRAFTPROOF_MODEL", str(model))
    monkeypatch.setenv("DRAFTPROOF_REDIS_URL", "redis://127.0.0.1:1/0")
    bad = [finding for finding in doctor.examine() if finding.level == "bad"]
    assert any("pickled" in finding.what for finding in bad)
    assert any(finding.what.startswith("Redis") and finding.mend for finding in bad)
    monkeypatch.setenv("DRAFTPROOF_NONSENSE", "1")
    assert any("DRAFTPROOF_NONSENSE" in finding.what for finding in doctor.examine())


def test_doctor_tells_what_prompts_may_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAFTPROOF_MODEL", str(tmp_path / "none"))
    monkeypatch.setenv("DRAFTPROOF_KV_TOKENS", "4096")

    def told() -> tuple[str, str]:
        (finding,) = (finding for finding in doctor.examine() if finding.what.startswith("KV"))
        return finding.level, finding.mend

    level, mend = told()
    assert (level, "at most 4096" in mend) == ("note", True)
    monkeypatch.setenv("DRAFTPROOF_PREFIX_CACHE_TOKENS", "4096")
    assert told() == ("ok", "")
    monkeypatch.setenv("DRAFTPROOF_PREFIX_SHARING", "false")
    level, mend = told()
    assert (level, "DRAFTPROOF_PREFIX_SHARING" in mend) == ("note", True)
