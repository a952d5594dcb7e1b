"""Keeping evaluation material out of an index: a document that repeats any of it is dropped, and counted.

Both sides are reduced to lower-case words (runs of letters, digits and underscores). A document is *exact* when its
words are those of an excluded text, and *overlapping* when it shares any n consecutive words with one (n = 13 is
the customary length: Brown et al., GPT-3, 2020, appendix C); an excluded text of fewer than n words, but at least
`MIN_WORDS`, counts as one shorter n-gram.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from contracts.errors import InvalidArgument

WORD = re.compile(r"\w+")
MIN_WORDS = 5
NGRAM = 13
_FACTOR = np.uint64(0x9E3779B97F4A7C15)


class Verdict(Enum):
    """What the exclusion says of a document."""

    KEEP = "keep"
    EXACT = "exact"
    OVERLAP = "overlap"


def words_of(text: str) -> list[str]:
    """The words that comparisons are made of."""
    return WORD.findall(text.lower())


@dataclass(frozen=True, slots=True, eq=False)
class Exclusion:
    """Immutable; build with `exclusion_of`. `sha256` names the excluded texts, their order aside, and the n-gram length."""

    sha256: str
    ngram: int
    _vocabulary: Mapping[str, int]
    _exact: frozenset[tuple[str, ...]]
    _grams: Mapping[int, frozenset[tuple[int, ...]]]
    _hashes: Mapping[int, NDArray[np.uint64]]

    def verdict(self, text: str) -> Verdict:
        """Whether the document may be indexed."""
        if not self._exact:
            return Verdict.KEEP
        words = words_of(text)
        if tuple(words) in self._exact:
            return Verdict.EXACT
        ids = np.array([self._vocabulary.get(word, 0) for word in words], np.uint64)
        for length, hashes in self._hashes.items():
            # Equal hashes only nominate: the words themselves decide.
            rolled = _rolling(ids, length)
            nearest = hashes[np.minimum(np.searchsorted(hashes, rolled), hashes.size - 1)]
            for start in np.flatnonzero(nearest == rolled).tolist():
                if tuple(ids[start : start + length].tolist()) in self._grams[length]:
                    return Verdict.OVERLAP
        return Verdict.KEEP


def exclusion_of(texts: Sequence[str], ngram: int = NGRAM) -> Exclusion:
    """The exclusion of these texts (one prompt or answer each); of none, NO_EXCLUSION.

    Raises InvalidArgument for ngram below MIN_WORDS, and for what is no Unicode text.
    """
    if ngram < MIN_WORDS:
        raise InvalidArgument("ngram", f"{ngram} is below {MIN_WORDS}: too much of any text would match")
    if not texts:
        return NO_EXCLUSION
    try:
        digests = sorted(hashlib.sha256(text.encode()).hexdigest() for text in texts)
    except UnicodeEncodeError as error:
        raise InvalidArgument("excluded", f"a text is no Unicode text: {error}") from error
    vocabulary: dict[str, int] = {}
    grams: dict[int, set[tuple[int, ...]]] = {}
    exact = set()
    for text in texts:
        words = words_of(text)
        if not words:
            continue
        exact.add(tuple(words))
        ids = [vocabulary.setdefault(word, len(vocabulary) + 1) for word in words]
        length = min(ngram, len(ids))
        if length >= MIN_WORDS:
            grams.setdefault(length, set()).update(
                tuple(ids[start : start + length]) for start in range(len(ids) - length + 1)
            )
    record = {
        "method": "words-lower;exact|ngram",
        "min_words": MIN_WORDS,
        "ngram": ngram,
        "texts": digests,
    }
    return Exclusion(
        sha256=hashlib.sha256(json.dumps(record, sort_keys=True, separators=(",", ":")).encode()).hexdigest(),
        ngram=ngram,
        _vocabulary=vocabulary,
        _exact=frozenset(exact),
        _grams={length: frozenset(found) for length, found in grams.items()},
        _hashes={
            length: np.unique(_rolling(np.array(sorted(found), np.uint64).reshape(-1), length)[::length])
            for length, found in grams.items()
        },
    )


NO_EXCLUSION = Exclusion("", NGRAM, {}, frozenset(), {}, {})


def _rolling(ids: NDArray[np.uint64], length: int) -> NDArray[np.uint64]:
    """A 64-bit polynomial hash of every window of `length` ids: uint64 [max(0, n - length + 1)]."""
    windows = max(0, ids.shape[0] - length + 1)
    hashes = np.zeros(windows, np.uint64)
    for offset in range(length):
        hashes = hashes * _FACTOR + ids[offset : offset + windows]
    return hashes
