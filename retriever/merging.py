"""A release larger than one retriever: the groups' answers, merged without loss.

A group's own pruned trie is not enough: a node that no group ranks high may lead in the sum. The merge is the
three-phase uniform threshold algorithm (Cao and Wang, "Efficient top-K query calculation in distributed networks", PODC
2004) over trie nodes, after one question for the match length:

    longest   the longest match anywhere, L
    best      each group's pruned trie below the last L tokens. The partial sums give t, a count that at least
              node_budget nodes reach (1 where there are fewer nodes in all)
    above     each group's nodes with a local count of at least ceil(t / groups): every node of total t is among them
    count     the exact counts, everywhere, of all nodes seen

Nodes of total >= t are ancestor-closed and at least node_budget many, so best-first selection never leaves them. The
dialogue is a generator without I/O: the caller carries each question to all groups, side by side if it can.
"""

from __future__ import annotations

import heapq
from collections.abc import Generator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from contracts.errors import InvalidArgument
from contracts.retrieval import Retrieval
from retriever.trie import MAX_NODE_BUDGET, QueryLimits, Tokens, context_array, miss, trie_rows

DEFAULT_MAX_NODES = MAX_NODE_BUDGET
Path = tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class LongestQuestion:
    """How long is the longest match of the context? Reply: tokens, 0 for none."""

    context: NDArray[np.int64]
    limits: QueryLimits


@dataclass(frozen=True, slots=True, eq=False)
class BestQuestion:
    """The pruned trie below exactly this suffix. Reply: a Retrieval."""

    suffix: NDArray[np.int64]
    limits: QueryLimits


@dataclass(frozen=True, slots=True, eq=False)
class AboveQuestion:
    """All nodes below the suffix whose local count reaches min_count. Reply: a Retrieval."""

    suffix: NDArray[np.int64]
    max_continuation: int
    min_count: int
    max_nodes: int


@dataclass(frozen=True, slots=True, eq=False)
class CountQuestion:
    """Local counts of the nodes tokens, parents, depths (int64 [n], topological). Reply: int64 [n]."""

    suffix: NDArray[np.int64]
    tokens: NDArray[np.int64]
    parents: NDArray[np.int64]
    depths: NDArray[np.int64]


Question = LongestQuestion | BestQuestion | AboveQuestion | CountQuestion
Reply = int | Retrieval | NDArray[np.int64]


def merged(
    groups: int, context: Tokens, limits: QueryLimits, max_nodes: int = DEFAULT_MAX_NODES
) -> Generator[Question, Sequence[Reply], Retrieval]:
    """Ask all `groups` groups the yielded questions (send the replies, one a group, each segment in one group only);
    returns what one retriever over all segments answers.

    max_nodes: most nodes a group may send for one question; it raises ResourceExhausted beyond.
    """
    row = context_array(context, limits.max_suffix)
    lengths = yield LongestQuestion(row, limits)
    length = max((_whole(reply) for reply in lengths), default=0)
    if length == 0:
        return miss()
    suffix = row[row.shape[0] - length :]
    pruned = [_trie(reply) for reply in (yield BestQuestion(suffix, limits))]
    partial = _sum(pruned)
    reached = sorted(partial.values(), reverse=True)[: limits.node_budget]
    threshold = reached[-1] if len(reached) == limits.node_budget else 1
    least = max(1, -(-threshold // groups))
    listed = [_trie(reply) for reply in (yield AboveQuestion(suffix, limits.max_continuation, least, max_nodes))]
    paths = sorted(partial.keys() | _sum(listed).keys(), key=lambda path: (len(path), path))
    rows = {path: index for index, path in enumerate(paths)}
    tokens = np.array([path[-1] for path in paths], np.int64)
    parents = np.array([rows[path[:-1]] if len(path) > 1 else -1 for path in paths], np.int64)
    depths = np.array([len(path) for path in paths], np.int64)
    local = [_counts(reply) for reply in (yield CountQuestion(suffix, tokens, parents, depths))]
    exact: list[int] = np.stack(local).sum(axis=0, dtype=np.int64).tolist()
    totals = dict(zip(paths, exact, strict=True))
    matches = sum(trie.match_count for trie in pruned)
    more = any(trie.truncated for trie in pruned)
    return _select(length, matches, totals, limits.node_budget, more)


def _select(length: int, matches: int, totals: dict[Path, int], budget: int, more: bool) -> Retrieval:
    """Best-first selection (order: `trie.py`) among nodes whose totals are exact."""
    children: dict[Path, list[Path]] = {}
    for path in totals:
        children.setdefault(path[:-1], []).append(path)
    rows: list[tuple[int, int, int, int]] = []
    waiting = [(-totals[path], path[-1], 1, -1, path) for path in children.get((), [])]
    heapq.heapify(waiting)
    while waiting and len(rows) < budget:
        negative, token, depth, parent, path = heapq.heappop(waiting)
        for child in children.get(path, ()):
            heapq.heappush(waiting, (-totals[child], child[-1], depth + 1, len(rows), child))
        rows.append((token, parent, -negative, depth))
    table = np.array(rows, np.int64).reshape(len(rows), 4).T
    return trie_rows(length, matches, table, more or len(totals) > len(rows))


def _sum(tries: Sequence[Retrieval]) -> dict[Path, int]:
    totals: dict[Path, int] = {}
    for trie in tries:
        for path, count in zip(trie.paths(), trie.counts.tolist(), strict=True):
            totals[path] = totals.get(path, 0) + count
    return totals


def _whole(reply: Reply) -> int:
    if isinstance(reply, int):
        return reply
    raise InvalidArgument("reply", f"a length was asked for, not {type(reply).__name__}")


def _trie(reply: Reply) -> Retrieval:
    if isinstance(reply, Retrieval):
        return reply
    raise InvalidArgument("reply", f"a trie was asked for, not {type(reply).__name__}")


def _counts(reply: Reply) -> NDArray[np.int64]:
    if isinstance(reply, np.ndarray):
        return reply
    raise InvalidArgument("reply", f"counts were asked for, not {type(reply).__name__}")
