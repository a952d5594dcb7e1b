"""The prompts of the engine's streams: four of each kind, from lines that nothing was tuned on.

Chat: Spec-Bench lines 3, 8, 33 and 38 (writing, roleplay, stem, humanities), first turns. Code: HumanEval lines 41 to 44,
as a request to complete the function. Edit: EditEval lines 41 to 44, whose answers repeat most of the prompt.
"""

from __future__ import annotations

import json

from benchmarks.prompts import EDITOR, Prompt, prompt_folder

KINDS = ("chat", "code", "edit")
_CHAT, _CODE, _EDIT = (3, 8, 33, 38), (41, 42, 43, 44), (41, 42, 43, 44)
# What concurrent requests draw from: more lines of the same kinds.
_MORE_CHAT, _MORE_CODE, _MORE_EDIT = (4, 5, 9, 10, 32, 34, 35, 39), range(45, 53), range(45, 53)


def _lines(name: str) -> list[dict[str, object]]:
    with (prompt_folder() / name).open(encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def _prompts(chat: tuple[int, ...], code: tuple[int, ...] | range, edit: tuple[int, ...] | range) -> list[Prompt]:
    spec, human, edits = (_lines(f"{name}_half.jsonl") for name in ("spec_bench", "humaneval", "edit_eval"))
    rows = [spec[line - 1] for line in chat]
    found = [Prompt(f"spec/{row['question_id']}", "chat", row["turns"][0]) for row in rows]  # type: ignore[index]
    for line in code:
        text = f"Complete this Python function. Reply with the whole function.\n\n{human[line - 1]['prompt']}"
        found.append(Prompt(str(human[line - 1]["task_id"]), "code", text))
    for line in edit:
        row = edits[line - 1]
        text = f"{row['input']}\n\n{str(row['instruction']).strip()}"
        found.append(Prompt(str(row["task_id"]), "edit", text, EDITOR))
    # Kinds in turn, so that a cut run has some of each.
    return [found[kind * len(chat) + index] for index in range(len(chat)) for kind in range(3)]


def stream_prompts() -> list[Prompt]:
    """Twelve, kinds in turn."""
    return _prompts(_CHAT, _CODE, _EDIT)


def concurrent_prompts() -> list[Prompt]:
    """Twenty-four others, kinds in turn."""
    return _prompts(_MORE_CHAT, _MORE_CODE, _MORE_EDIT)
