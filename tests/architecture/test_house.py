"""Tracked files carry no machine paths and no registry hosts, and rooms stay readable."""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
FORBIDDEN = re.compile(r"/(work|farm|root)/|pypi\.(org|io)|python" + r"hosted|registry\.npm" + r"js")


def _tracked(pattern: str) -> list[Path]:
    listing = subprocess.run(["git", "ls-files", "-z", pattern], cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / name for name in listing.stdout.split("\0") if name and (ROOT / name).exists()]


def test_no_tracked_file_names_a_machine_path_or_a_registry_host() -> None:
    here = Path(__file__).resolve()
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in _tracked("*")
        if path.is_file() and path.resolve() != here and path.suffix not in {".png", ".safetensors"}
        for number, line in enumerate(path.read_text(errors="ignore").splitlines(), 1)
        if FORBIDDEN.search(line)
    ]
    assert found == []


def test_no_room_is_longer_than_350_lines() -> None:
    rooms = [path for path in _tracked("*.py") if not path.name.endswith(("_pb2.py", "_pb2_grpc.py"))]
    long = {path.name: count for path in rooms if (count := len(path.read_text().splitlines())) > 350}
    assert long == {}
