"""The committed stubs are what the generator makes of the committed .proto files, and these lint clean."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_stubs_are_up_to_date(tmp_path: Path) -> None:
    script = ROOT / "scripts" / "generate_stubs.py"
    done = subprocess.run(
        [sys.executable, str(script), "--out", str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    made = {path.relative_to(tmp_path): path.read_text() for path in tmp_path.rglob("*.py*")}
    here = {
        path.relative_to(ROOT): path.read_text()
        for path in (ROOT / "protos").rglob("*_pb2*.py*")
        if path.suffix != ".pyc"
    }
    assert made.keys() == here.keys()
    stale = [str(path) for path, text in made.items() if here[path] != text]
    assert not stale, f"run scripts/generate_stubs.py: {stale}"


def test_protos_lint_clean() -> None:
    buf = shutil.which("buf", path=str(Path(sys.executable).parent)) or shutil.which("buf")
    if buf is None:
        pytest.skip("buf is not installed (the dev extra brings it)")
    done = subprocess.run([buf, "lint"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
