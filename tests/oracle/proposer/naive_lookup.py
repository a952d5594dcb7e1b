"""Prompt lookup as two loops, straight from the three published descriptions; nothing here is fast or shared."""

from __future__ import annotations

from collections.abc import Sequence


def m77_lookup(tokens: Sequence[int], *, max_ngram: int, wanted: int, min_ngram: int = 1) -> list[int]:
    """M7.7 section 0x04A: the last occurrence inside tokens[:-n], clipped."""
    ids = list(tokens)
    for n in range(min(max_ngram, len(ids)), min_ngram - 1, -1):
        suffix, before = ids[-n:], ids[:-n]
        found = [i for i in range(len(before) - n + 1) if before[i : i + n] == suffix]
        if found:
            start = found[-1] + n
            return ids[start : start + wanted]
    return []


def earliest_full_length(tokens: Sequence[int], *, max_ngram: int, wanted: int, min_ngram: int = 1) -> list[int]:
    """The original matcher: the first occurrence whose continuation is whole and starts before the suffix."""
    ids = list(tokens)
    for n in range(max_ngram, min_ngram - 1, -1):
        for i in range(len(ids) - n + 1):
            start, end = i + n, i + n + wanted
            if ids[i:start] == ids[-n:] and end <= len(ids) and start < len(ids) - n:
                return ids[start:end]
    return []


def latest_full_length(tokens: Sequence[int], *, max_ngram: int, wanted: int, min_ngram: int = 1) -> list[int]:
    """The last occurrence inside tokens[:-n] whose continuation is whole."""
    ids = list(tokens)
    for n in range(min(max_ngram, len(ids)), min_ngram - 1, -1):
        for i in range(len(ids) - 2 * n, -1, -1):
            start, end = i + n, i + n + wanted
            if ids[i:start] == ids[-n:] and end <= len(ids):
                return ids[start:end]
    return []


def earliest_clipped(tokens: Sequence[int], *, max_ngram: int, wanted: int, min_ngram: int = 1) -> list[int]:
    """Transformers' matcher: the first occurrence, the continuation cut at the end of the prefix."""
    ids = list(tokens)
    for n in range(min(max_ngram, len(ids) - 1), min_ngram - 1, -1):
        for i in range(len(ids) - n + 1):
            continuation = ids[i + n : i + n + wanted]
            if ids[i : i + n] == ids[-n:] and continuation:
                return continuation
    return []
