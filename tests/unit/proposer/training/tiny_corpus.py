"""Packed batches of random conversations over the tiny heads' vocabulary."""

from __future__ import annotations

import numpy as np

from proposer.training.corpus import Batch, Example, pack, prepare
from proposer.training.generate import Conversation
from tests.unit.proposer.heads.tiny_heads import VOCABULARY, frozen, hidden_rows


def conversations(lengths: tuple[int, ...] = (12, 9, 20), answer_start: int = 4, seed: int = 0) -> list[Conversation]:
    """Texts that repeat themselves, so that there is something to learn."""
    generator = np.random.default_rng(seed)
    made = []
    for number, length in enumerate(lengths):
        phrase = generator.choice(VOCABULARY.ids, size=5)
        tokens = np.resize(phrase, length).astype(np.int32)
        hidden = {tap: rows.numpy().astype(np.float16) for tap, rows in hidden_rows(tokens[:-1]).items()}
        made.append(Conversation(f"c{number}", "qa", tokens, answer_start, hidden))
    return made


def examples(**options: object) -> list[Example]:
    return prepare(conversations(**options), VOCABULARY, frozen().rows(VOCABULARY))  # type: ignore[arg-type]


def batch(**options: object) -> Batch:
    return pack(examples(**options), VOCABULARY)
