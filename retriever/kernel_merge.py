"""Compiled merging of several segments' suffix arrays into one over their codes, which stand one after the other.

A tournament of losers (Knuth, TAOCP 3, section 5.4.1) in which every waiting suffix knows how many codes it shares with
the one that beat it, as Ng and Kakehi merge strings ("Merging string sequences by longest common prefixes", IPSJ 2008):
of two that wait, the one that shares more with the last winner comes first, and only those that share equally much are
compared, from there on. So a suffix's codes are read about once. What neighbours share comes out of it too, and with it
the segment's shares (`shares.py`).
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, call-arg, attr-defined"

from __future__ import annotations

import numpy as np

from retriever.kernel_ranks import fetch_place
from retriever.kernel_shares import BLOCK_BITS, MOST_SHARED
from retriever.kernel_table import CODES, ENTRIES, WIDTH, code_from, compiled, shared_from, suffix_start

# How many suffixes of each segment are on their way, and how many bytes of each, by lines of memory.
AHEAD = 12
FETCHED_BYTES, LINE_BYTES = 256, 64


@compiled
def _fetch(table, base, width, segment, rank, shift):
    """Have the beginning of a segment's suffix on its way, where there is one of that rank."""
    if rank < table[segment, ENTRIES]:
        place = shift + suffix_start(table, segment, rank)
        for line in range(0, FETCHED_BYTES, LINE_BYTES):
            fetch_place(base, width, place + line // width)


@compiled
def _duel(memory, tree, node, held, places, shares, most):
    """Play list `held` up the tree from a node; the list that wins, -1 where it waits at a place that was free.

    Of two lists the loser stays. Equal suffixes win by the lists' order.
    """
    base, width = memory[0, CODES], memory[0, WIDTH]
    while node > 0:
        other = tree[node]
        if other < 0:
            tree[node] = held
            return np.int64(-1)
        loses = shares[held] < shares[other]
        if shares[held] == shares[other] and places[held] >= 0:
            known = shares[held]
            shared = shared_from(memory, 0, places[held], places[other], known, most)
            loses = other < held
            if shared < most:
                code = code_from(base, width, places[held] + shared)
                against = code_from(base, width, places[other] + shared)
                loses = code > against or (code == against and loses)
            shares[held if loses else other] = shared
        if loses:
            tree[node], held = held, other
        node >>= 1
    return held


@compiled
def merged(table, memory, shifts, most, low, fine):
    """Fill low (uint32 [N]) with the suffix array of all segments' codes, in the order of their first `most` codes.

    table: the segments. memory: a table of one row, of their codes one after the other, those of segment s at shifts[s]
    (int64 [S]). fine (uint8 [(N - 1) // 16]): `Shares.fine` of the merged segment, up to `most`.
    """
    segments = table.shape[0]
    base, width = memory[0, CODES], memory[0, WIDTH]
    leaves = 1
    while leaves < segments:
        leaves *= 2
    tree = np.full(leaves, -1, np.int64)
    # Of each list, empty ones that fill the tree up included: the next suffix's rank and place (-1: none), and what it
    # shares with the last winner; -1 for a list that has ended, which loses to all that have not.
    ranks, places = np.zeros(leaves, np.int64), np.full(leaves, -1, np.int64)
    shares = np.full(leaves, -1, np.int64)
    winner = np.int64(-1)
    for s in range(leaves):
        if s < segments and table[s, ENTRIES] > 0:
            for rank in range(AHEAD):
                _fetch(table, base, width, s, rank, shifts[s])
            places[s], shares[s] = shifts[s] + suffix_start(table, s, 0), 0
        winner = _duel(memory, tree, (s + leaves) >> 1, s, places, shares, most)
    least = np.int64(MOST_SHARED)
    for out in range(low.shape[0]):
        least = min(least, shares[winner])
        if out & ((1 << BLOCK_BITS) - 1) == 0:
            if out > 0:
                fine[(out >> BLOCK_BITS) - 1] = least
            least = np.int64(MOST_SHARED)
        place = places[winner]
        low[out] = place
        ranks[winner] += 1
        rank = ranks[winner]
        if rank < table[winner, ENTRIES]:
            _fetch(table, base, width, winner, rank + AHEAD, shifts[winner])
            following = shifts[winner] + suffix_start(table, winner, rank)
            shares[winner] = shared_from(memory, 0, place, following, np.int64(0), most)
            places[winner] = following
        else:
            places[winner], shares[winner] = -1, -1
        winner = _duel(memory, tree, (winner + leaves) >> 1, winner, places, shares, most)
