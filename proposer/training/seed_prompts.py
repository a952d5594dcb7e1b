"""Seed prompts for self-distillation: eight kinds of request, made from templates, documentation and source text.

Two stages. The first asks for articles, chat answers and the like; the second builds on its answers: articles become the
passages of summaries, extraction and retrieval-style questions, chats get a second turn. Everything follows from the
arguments and the seed. Evaluation files are never an input (DECISIONS 26); `disjoint` proves it of the result.
"""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from proposer.training import seed_words as words

Message = Mapping[str, str]

# A passage longer than this makes prefill cost more than the answer it leads to.
_PASSAGE_CHARACTERS = 2200


@dataclass(frozen=True)
class SeedPrompt:
    """One request to the target. kind: what it trains for. temperature: 0 greedy, 1 sampled. max_new: most tokens."""

    name: str
    kind: str
    messages: tuple[Message, ...]
    temperature: float = 0.0
    max_new: int = 192


@dataclass(frozen=True)
class SeedTexts:
    """Outside text: questions of maths training sets, prose of documentation, functions of source files."""

    maths: Sequence[str] = ()
    passages: Sequence[str] = ()
    functions: Sequence[str] = ()


class Maker:
    """Fills frames with words drawn from one generator; every tenth request is sampled rather than greedy."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._sampled_share = 0.15

    def pick(self, options: Sequence[str]) -> str:
        return self._random.choice(options)

    def fill(self, frame: str, **given: str) -> str:
        topic, other = self._random.sample(words.TOPICS, 2)
        values = {
            "topic": topic,
            "other": other,
            "person": self.pick(words.PEOPLE),
            "country": self.pick(words.COUNTRIES),
            "thing": self.pick(words.THINGS),
            "task": self.pick(words.TASKS),
        }
        return frame.format(**{**values, **given})

    def german(self) -> str:
        thing, verb = self._random.choice(words.GERMAN_RESTS)
        frame = self.pick(words.GERMAN_VERBS)
        body = frame.format(rest=f"{thing} zu {verb}", rest2=f"{thing} {verb}")
        return f"{self.pick(words.GERMAN_SUBJECTS)} {body}{self.pick(words.GERMAN_ENDS)} ."

    def prompt(self, name: str, kind: str, text: str, max_new: int = 192, before: Iterable[Message] = ()) -> SeedPrompt:
        temperature = 1.0 if self._random.random() < self._sampled_share else 0.0
        return SeedPrompt(name, kind, (*before, {"role": "user", "content": text}), temperature, max_new)


def first_stage(texts: SeedTexts, *, rounds: int, seed: int) -> list[SeedPrompt]:
    """`rounds` prompts of each kind that needs no earlier answer, kinds interleaved, so that any cut is balanced."""
    make = Maker(seed)
    prompts: list[SeedPrompt] = []
    for index in range(rounds):
        prompts += [
            make.prompt(f"article/{index}", "article", make.fill(make.pick(words.ARTICLE)), 288),
            make.prompt(f"qa/{2 * index}", "qa", make.fill(make.pick(words.QUESTIONS))),
            make.prompt(f"qa/{2 * index + 1}", "qa", make.fill(make.pick(words.QUESTIONS))),
            make.prompt(f"writing/{index}", "chat", make.fill(make.pick(words.WRITING))),
            make.prompt(f"explain/{index}", "chat", make.fill(make.pick(words.EXPLAIN))),
            make.prompt(
                f"translation/{index}", "translation", make.fill(make.pick(words.TRANSLATE), german=make.german()), 96
            ),
        ]
        if index % 2 == 0:
            prompts.append(make.prompt(f"coding/{index}", "coding", make.fill(make.pick(words.CODING))))
        if 2 * index + 1 < len(texts.maths):
            prompts += [
                make.prompt(f"maths/{number}", "maths", texts.maths[number]) for number in (2 * index, 2 * index + 1)
            ]
        if index < len(texts.functions) and index % 2:
            frame = make.pick(words.EDITS)
            prompts.append(make.prompt(f"edit/{index}", "edit", frame.replace("{code}", texts.functions[index])))
        if index < len(texts.passages) and index % 3 == 0:
            frame = make.pick(words.SUMMARISE)
            prompts.append(make.prompt(f"docs/{index}", "summary", frame.replace("{passage}", texts.passages[index])))
    return prompts


def second_stage(answered: Sequence[tuple[SeedPrompt, str]], *, seed: int) -> list[SeedPrompt]:
    """Prompts over the answers of the first stage, in its order."""
    make = Maker(seed + 1)
    prompts: list[SeedPrompt] = []
    articles = [text[:_PASSAGE_CHARACTERS] for prompt, text in answered if prompt.kind == "article"]
    chats = [(prompt, text) for prompt, text in answered if prompt.kind == "chat"]
    for index, article in enumerate(articles):
        prompts.append(
            make.prompt(f"summary/{index}", "summary", make.pick(words.SUMMARISE).replace("{passage}", article))
        )
        other = articles[(index * 7 + 3) % len(articles)]
        # Without a heading an article rarely says its topic in so many words: ask about one of its own capitalised terms.
        terms = re.findall(r"(?<=[a-z,] )[A-Z][a-z]+(?: [A-Z][a-z]+)*", article) or [make.pick(words.TOPICS)]
        question = make.pick(words.PASSAGE_QUESTIONS).format(topic=make.pick(terms))
        passage = f"{article}\n{other}"[:_PASSAGE_CHARACTERS]
        frame = make.pick(words.RAG)
        prompts.append(
            make.prompt(f"rag/{index}", "rag", frame.replace("{passage}", passage).replace("{question}", question))
        )
        if index % 3 == 0:
            frame = make.pick(words.EXTRACTION)
            prompts.append(make.prompt(f"extraction/{index}", "extraction", frame.replace("{passage}", article)))
        if index < len(chats) and index % 2 == 0:
            first, answer = chats[index]
            before = (*first.messages, {"role": "assistant", "content": answer})
            prompts.append(
                make.prompt(f"followup/{index}", "followup", make.pick(words.FOLLOW_UPS), 160, before=before)
            )
    return prompts


def read_passages(roots: Iterable[Path], count: int, *, seed: int) -> list[str]:
    """Prose paragraphs of .md, .rst and .txt files below `roots`, at most one a file, `count` at most."""
    files = sorted(path for root in roots for suffix in ("*.md", "*.rst", "*.txt") for path in root.rglob(suffix))
    random.Random(seed).shuffle(files)
    found: list[str] = []
    for path in files:
        if len(found) == count:
            break
        paragraphs = re.split(r"\n\s*\n", read_text(path))
        prose = [part.strip() for part in paragraphs if _is_prose(part)]
        passage = "\n\n".join(prose)[:_PASSAGE_CHARACTERS]
        if len(passage) > 600:
            found.append(passage)
    return found


def read_functions(roots: Iterable[Path], count: int, *, seed: int) -> list[str]:
    """Source of short functions in .py files below `roots`, at most one a file, `count` at most."""
    files = sorted(path for root in roots for path in root.rglob("*.py"))
    random.Random(seed).shuffle(files)
    found: list[str] = []
    for path in files:
        if len(found) == count:
            break
        source = read_text(path)
        try:
            tree = ast.parse(source)
        except (SyntaxError, ValueError):
            continue
        for node in tree.body:
            code = ast.get_source_segment(source, node) if isinstance(node, ast.FunctionDef) else None
            if code and 200 < len(code) < 900:
                found.append(code)
                break
    return found


def read_text(path: Path) -> str:
    """The file's text; empty where it is not readable as UTF-8."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


def _is_prose(paragraph: str) -> bool:
    letters = sum(character.isalpha() or character.isspace() for character in paragraph)
    return len(paragraph) > 150 and letters > 0.9 * len(paragraph) and paragraph.count(". ") >= 1
