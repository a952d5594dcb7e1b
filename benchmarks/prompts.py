"""The evaluation prompts, read from `../shared/prompts` (or DRAFTPROOF_PROMPTS); never copied into the project."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Prompt:
    """One chat prompt: `kind` is edit, or Spec-Bench's category."""

    name: str
    kind: str
    text: str
    system: str = ""

    @property
    def messages(self) -> list[dict[str, str]]:
        system = [{"role": "system", "content": self.system}] if self.system else []
        return [*system, {"role": "user", "content": self.text}]


def prompt_folder() -> Path:
    """Where the prompt files lie. Raises FileNotFoundError saying how to point at them."""
    folder = Path(os.environ.get("DRAFTPROOF_PROMPTS", Path(__file__).parents[2] / "shared" / "prompts"))
    if not folder.is_dir():
        raise FileNotFoundError(f"no prompts at {folder}; set DRAFTPROOF_PROMPTS to the folder of the prompt files")
    return folder


def _lines(name: str, count: int) -> list[dict[str, object]]:
    with (prompt_folder() / name).open(encoding="utf-8") as file:
        return [json.loads(line) for _, line in zip(range(count), file, strict=False)]


EDITOR = "You are a code editor. You are given code and an instruction. Reply with the complete edited code and nothing else."  # noqa: E501


def edit_prompts(count: int) -> list[Prompt]:
    """The first `count` EditEval tasks: the code to change and the instruction, to a model told that it is an editor."""
    return [
        Prompt(str(row["task_id"]), "edit", f"{row['input']}\n\n{str(row['instruction']).strip()}", EDITOR)
        for row in _lines("edit_eval_half.jsonl", count)
    ]


def spec_bench_prompts(count: int) -> list[Prompt]:
    """The first turn of the first `count` Spec-Bench questions."""
    rows = _lines("spec_bench_half.jsonl", count)
    return [Prompt(f"spec/{row['question_id']}", str(row["category"]), row["turns"][0]) for row in rows]  # type: ignore[index]
