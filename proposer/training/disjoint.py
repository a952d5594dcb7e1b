"""Proof that training text repeats no evaluation prompt: exact matches and shared word n-grams, counted, not assumed."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from contracts.manifest import canonical_bytes, sha256_hex

NGRAM_WORDS = 8


@dataclass(frozen=True)
class Overlap:
    """evaluated: prompts checked against. exact, shared: training texts dropped for an equal text or a common n-gram."""

    evaluated: int
    exact: int
    shared: int
    ngram_words: int = NGRAM_WORDS


class Guard:
    """Knows the evaluation texts; `admits` says whether a training text is disjoint from all of them.

    Texts are compared as lower-case words: no difference of layout or punctuation hides a repeat.
    """

    def __init__(self, evaluation: Iterable[str], ngram_words: int = NGRAM_WORDS) -> None:
        self._size = ngram_words
        self._whole: set[tuple[str, ...]] = set()
        self._grams: set[tuple[str, ...]] = set()
        for text in evaluation:
            tokens = _words(text)
            self._whole.add(tokens)
            self._grams.update(self._ngrams(tokens))
        self._exact = self._shared = 0

    @property
    def digest(self) -> str:
        """SHA-256 hex over the evaluation texts' words, in whatever order they came: which texts, not only how many."""
        return sha256_hex(canonical_bytes({"texts": sorted(" ".join(words) for words in self._whole)}))

    def admits(self, text: str) -> bool:
        """False for a text that equals an evaluation text or shares an n-gram with one; counted either way."""
        tokens = _words(text)
        if tokens in self._whole:
            self._exact += 1
            return False
        if any(gram in self._grams for gram in self._ngrams(tokens)):
            self._shared += 1
            return False
        return True

    def report(self) -> Overlap:
        return Overlap(len(self._whole), self._exact, self._shared, self._size)

    def _ngrams(self, tokens: tuple[str, ...]) -> Iterable[tuple[str, ...]]:
        return (tokens[start : start + self._size] for start in range(len(tokens) - self._size + 1))


def _words(text: str) -> tuple[str, ...]:
    return tuple(re.findall(r"\w+", text.lower()))
