"""What the target writes for held-out prompts, with its hidden rows: made once, drafted against by every head.

Greedy text and membership's samples do not depend on what is proposed, so a head's committed tokens per round follow from
the text alone: each round drafts from the published prefix and commits as far as the text goes along, plus one token. The
target need not run again for each head.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.prompts import Prompt, spec_bench_prompts
from models.backend import Backend
from proposer.training.dataset import Dataset
from proposer.training.generate import Conversation, Encoded, generate
from proposer.training.seed_prompts import SeedPrompt
from services.text import CheckpointTokenizer

CATEGORIES = ("multi_turn", "translation", "summarization", "qa", "math_reasoning", "rag")
_SPEC_BENCH = 240


@dataclass(frozen=True)
class Trajectory:
    """tokens: prompt and answer. answer_start: where the answer begins. hidden: per tap float32 [N - 1, H]. prompt_rows: of
    the prompt's hidden rows a head reads so many, the last; 0: all."""

    name: str
    kind: str
    tokens: Tensor
    answer_start: int
    hidden: Mapping[str, Tensor]
    prompt_rows: int = 0

    @property
    def base(self) -> int:
        """Implements HiddenStates."""
        return max(0, self.answer_start - 1 - self.prompt_rows) if self.prompt_rows else 0

    def rows(self, start: int, stop: int) -> Mapping[str, Tensor]:
        """Implements HiddenStates."""
        return {tap: value[start:stop] for tap, value in self.hidden.items()}


def category(prompt: Prompt) -> str:
    """Spec-Bench's six: the eight kinds of MT-bench are its multi-turn conversations (their first turn here)."""
    return prompt.kind if prompt.kind in CATEGORIES else "multi_turn"


def held_out_prompts(per_category: int, skip: int = 0) -> list[Prompt]:
    """The first `per_category` Spec-Bench prompts of each category behind the first `skip`."""
    per_category += skip
    found: dict[str, list[Prompt]] = {name: [] for name in CATEGORIES}
    for prompt in spec_bench_prompts(_SPEC_BENCH):
        if len(found[category(prompt)]) < per_category:
            found[category(prompt)].append(prompt)
    return [prompt for name in CATEGORIES for prompt in found[name][skip:]]


def trajectories(
    cache: Path,
    backend: Backend,
    tokenizer: CheckpointTokenizer,
    *,
    taps: Sequence[str],
    eos_ids: Sequence[int],
    per_category: int,
    max_new: int,
    temperature: float,
    skip: int = 0,
) -> list[Trajectory]:
    """Made with `backend` where `cache` does not hold them yet. skip: as `held_out_prompts`."""
    prompts = held_out_prompts(per_category, skip)
    identity = {
        "use": "evaluation only: never training data",
        "target": backend.info.checkpoint_digest,
        "dtype": backend.info.dtype,
        "per_category": per_category,
        "max_new": max_new,
        "temperature": temperature,
        "taps": list(taps),
    } | ({"skip": skip} if skip else {})
    dataset = Dataset(cache, identity)
    missing = [prompt for prompt in prompts if prompt.name not in dataset.names()]
    encoded = (
        Encoded(
            SeedPrompt(prompt.name, category(prompt), tuple(prompt.messages), temperature, max_new),
            tokenizer.encode_chat(prompt.messages),
        )
        for prompt in missing
    )
    made = list(generate(backend, encoded, taps=taps, eos_ids=eos_ids, width=16))
    if made:
        dataset.append(made)
    return [_trajectory(one) for one in dataset.conversations()]


def _trajectory(one: Conversation) -> Trajectory:
    hidden = {tap: torch.from_numpy(rows).float() for tap, rows in one.hidden.items()}
    return Trajectory(one.name, one.kind, torch.from_numpy(one.tokens).long(), one.answer_start, hidden)
