"""Prompts to calibrate on: questions of a JSON-lines file, or passages of documentation to go on from.

A tree tuned on the prompts that it is judged by proves nothing, so the project's evaluation sets are refused by name
(docs/trees.md says what that does not catch).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from contracts.errors import InvalidArgument, NotFound

_EVALUATION = ("spec_bench", "humaneval", "edit_eval", "gsm8k_test")
_QUESTION_KEYS = ("question", "prompt", "text", "instruction")
_PROSE = {".md", ".rst", ".txt"}
_PASSAGE_CHARS = 1200


@dataclass(frozen=True)
class SeedPrompts:
    """files: their names. messages: one conversation each."""

    files: tuple[str, ...]
    messages: tuple[tuple[dict[str, str], ...], ...]


def read_seed_prompts(paths: Sequence[Path], count: int) -> SeedPrompts:
    """`count` prompts, taken from the paths in turn.

    A .jsonl file gives the first of question, prompt, text and instruction of each line; a .md, .rst or .txt file, or a
    folder of them, passages to be explained. Raises InvalidArgument for an evaluation set or a line without a question,
    NotFound for a path that is not there or holds nothing.
    """
    streams: list[Iterator[str]] = []
    for path in paths:
        if any(name in path.name.lower() for name in _EVALUATION):
            raise InvalidArgument("prompts", f"{path.name} is an evaluation set; calibrate on something else")
        if not path.exists():
            raise NotFound("prompts", f"{path} is not there")
        streams.append(_questions(path) if path.suffix == ".jsonl" else _passages(path))
    found: list[str] = []
    while streams and len(found) < count:
        for stream in list(streams):
            text = next(stream, None)
            if text is None:
                streams.remove(stream)
            elif len(found) < count:
                found.append(text)
    if not found:
        raise NotFound("prompts", "there is nothing to ask in " + (", ".join(map(str, paths)) or "no path"))
    return SeedPrompts(
        tuple(path.name for path in paths), tuple(({"role": "user", "content": text},) for text in found)
    )


def digest_of(prompts: Sequence[Sequence[int]]) -> str:
    """SHA-256 hex over the prompts' token ids, each with its length, as little-endian int64."""
    sha = hashlib.sha256()
    for prompt in prompts:
        for number in (len(prompt), *prompt):
            sha.update(int(number).to_bytes(8, "little"))
    return sha.hexdigest()


def _questions(path: Path) -> Iterator[str]:
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file):
            row = json.loads(line)
            text = next((row[key] for key in _QUESTION_KEYS if row.get(key)), None)
            if text is None:
                raise InvalidArgument(f"prompts.{path.name}[{number}]", f"has none of {', '.join(_QUESTION_KEYS)}")
            yield str(text)


def _passages(path: Path) -> Iterator[str]:
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.suffix in _PROSE)
    for file in files:
        text = file.read_text(encoding="utf-8", errors="replace")
        for start in range(0, len(text), _PASSAGE_CHARS):
            passage = text[start : start + _PASSAGE_CHARS].strip()
            if len(passage) > _PASSAGE_CHARS // 3:
                yield f"Explain the following passage.\n\n{passage}"
