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


def one_edit(tokens: Sequence[int], *, max_ngram: int, wanted: int, min_ngram: int = 1) -> list[int]:
    """docs/decisions/0013: over all occurrences inside tokens[:-n], the strongest, then the longest, then the last."""
    ids = list(tokens)
    best = (0, 0, 0)
    for start in range(1, len(ids)):
        lengths = [n for n in range(min_ngram, max_ngram + 1) if start <= len(ids) - n and _ends(ids, start, n)]
        if lengths:
            strength = min(max_ngram, lengths[-1] + _before_edit(ids, start - lengths[-1], len(ids) - lengths[-1]) // 2)
            best = max(best, (strength, lengths[-1], start))
    return ids[best[2] : best[2] + wanted] if best[2] else []


def _ends(ids: list[int], start: int, n: int) -> bool:
    return start >= n and ids[start - n : start] == ids[-n:]


def _before_edit(ids: list[int], theirs: int, ours: int) -> int:
    best = 0
    for new, old in ((1, 1), (1, 0), (0, 1), (2, 0), (0, 2), (2, 1), (1, 2), (2, 2)):
        i, j, matched = ours - new, theirs - old, 0
        while j < i and j - matched >= 1 and matched < 8 and ids[i - matched - 1] == ids[j - matched - 1]:
            matched += 1
        best = max(best, matched)
    return best
