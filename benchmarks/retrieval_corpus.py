"""Real text as tokens, each document once (`retrieval_text.py`), tokenised once and kept; and what queries ask of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.retrieval_text import batches, files
from services.text import CheckpointTokenizer

_SPAN = 10_000


@dataclass(frozen=True)
class TokenCorpus:
    """tokens: uint16 or uint32 [N], the documents one after the other; ends: int64 [D], where each ends.

    unique_share: how much of it is text that occurs for the first time. seconds: what tokenising took, 0 if it was kept.
    """

    tokens: NDArray[np.generic]
    ends: NDArray[np.int64]
    unique_share: float
    seconds: float

    def documents(self, most: int | None = None) -> list[NDArray[np.generic]]:
        """The documents of the first `most` tokens; the last one is cut."""
        limit = len(self.tokens) if most is None else min(most, len(self.tokens))
        starts = np.concatenate([np.zeros(1, np.int64), self.ends[:-1]])
        return [
            self.tokens[start : min(end, limit)]
            for start, end in zip(starts.tolist(), self.ends.tolist(), strict=True)
            if start < limit
        ]


def real_corpus(
    tokenizer: CheckpointTokenizer, tokens: int, cache: Path, told: Callable[[int], None] = lambda _: None
) -> TokenCorpus:
    """At least `tokens` tokens if the machine has as many, of documents that differ from one another.

    A smaller corpus is the beginning of a larger one. told: is called with the tokens there are, now and then.
    """
    kept = cache / f"text-{tokenizer.digest[:12]}-{tokens}.npz"
    if kept.exists():
        with np.load(kept) as found:
            return TokenCorpus(found["tokens"], found["ends"], 1.0, 0.0)
    started = time.perf_counter()
    rows: list[NDArray[np.generic]] = []
    total = 0
    width = np.uint16 if tokenizer.vocab_size < 2**16 else np.uint32
    for batch in batches(files()):
        for row in tokenizer.encode_documents(batch):
            if row:
                rows.append(np.asarray(row, width))
                total += len(row)
        told(total)
        if total >= tokens:
            break
    corpus = TokenCorpus(
        np.concatenate(rows), np.cumsum([len(row) for row in rows]), 1.0, time.perf_counter() - started
    )
    cache.mkdir(parents=True, exist_ok=True)
    np.savez(kept, tokens=corpus.tokens, ends=corpus.ends)
    return corpus


def grown(corpus: TokenCorpus, tokens: int, *, seed: int = 0) -> TokenCorpus:
    """`tokens` tokens: the corpus, and where it runs out spans of it in another order with one token in 50 replaced."""
    have = len(corpus.tokens)
    if have >= tokens:
        return TokenCorpus(
            corpus.tokens[:tokens], np.append(corpus.ends[corpus.ends < tokens], tokens), corpus.unique_share, 0.0
        )
    generator = np.random.default_rng(seed)
    parts = [corpus.tokens]
    ends: list[int] = corpus.ends.tolist()
    total = have
    while total < tokens:
        start = int(generator.integers(0, have - _SPAN))
        span = corpus.tokens[start : start + min(_SPAN, tokens - total)].copy()
        changed = generator.random(len(span)) < 0.02
        span[changed] = generator.choice(corpus.tokens, int(changed.sum()))
        parts.append(span)
        total += len(span)
        ends.append(total)
    return TokenCorpus(np.concatenate(parts), np.array(ends, np.int64), have / total, 0.0)


def contexts(
    held_out: Sequence[NDArray[np.generic]], number: int, length: int, *, seed: int = 0
) -> list[NDArray[np.int64]]:
    """The `length` tokens before `number` places drawn over the held-out documents."""
    generator = np.random.default_rng(seed)
    long = [document for document in held_out if len(document) > length]
    weights = np.array([len(document) for document in long], np.float64)
    chosen = generator.choice(len(long), number, p=weights / weights.sum())
    out = []
    for index in chosen.tolist():
        at = int(generator.integers(length, len(long[index])))
        out.append(long[index][at - length : at].astype(np.int64))
    return out


def distinct_windows(tokens: NDArray[np.generic], length: int) -> float:
    """Distinct windows of `length` tokens over all windows: how much of the text says something new."""
    windows = len(tokens) - length + 1
    hashes = np.zeros(windows, np.uint64)
    for offset in range(length):
        hashes = hashes * np.uint64(0x9E3779B97F4A7C15) + tokens[offset : offset + windows].astype(np.uint64)
    return len(np.unique(hashes)) / windows
