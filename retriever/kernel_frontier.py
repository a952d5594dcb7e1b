"""The compiled frontier of a walk: nodes that wait to be emitted, in the order of `trie.py`, the best of them last.

Waiting nodes are rows, int64 [room + 1, NODE_COLUMNS], one more than there is room for: the newcomer's. frontier[:waiting]
are the rows of those that wait; free[waiting:] are the unused ones.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, call-arg, attr-defined"

from __future__ import annotations

from retriever.kernel_table import compiled

# A node's count, token, depth and parent row, by which nodes stand, and what else the walk knows it by.
COUNT, TOKEN, DEPTH, PARENT, NODE, NODE_COLUMNS = range(6)


@compiled
def enter(rows, frontier, free, waiting, room):
    """Let the node in row free[waiting] in, if it is among the best `room`; the number that wait then, -1 if it is not.

    Nodes stand by (count down, token up, depth up, parent row up). Mutates frontier and free: a node that has to go frees
    its row.
    """
    row = free[waiting]
    place = waiting
    while place > 0:
        other = frontier[place - 1]
        if rows[other, COUNT] != rows[row, COUNT]:
            worse = rows[other, COUNT] < rows[row, COUNT]
        elif rows[other, TOKEN] != rows[row, TOKEN]:
            worse = rows[other, TOKEN] > rows[row, TOKEN]
        elif rows[other, DEPTH] != rows[row, DEPTH]:
            worse = rows[other, DEPTH] > rows[row, DEPTH]
        else:
            worse = rows[other, PARENT] > rows[row, PARENT]
        if worse:
            break
        place -= 1
    if waiting < room:
        for j in range(waiting, place, -1):
            frontier[j] = frontier[j - 1]
        frontier[place] = row
        return waiting + 1
    if place == 0:
        return -1
    free[waiting] = frontier[0]
    for j in range(place - 1):
        frontier[j] = frontier[j + 1]
    frontier[place - 1] = row
    return waiting
