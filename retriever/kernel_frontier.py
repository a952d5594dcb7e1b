"""The compiled frontier of a walk: nodes that wait to be emitted, in the order of `trie.py`, the best of them last."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, call-arg, attr-defined"

from __future__ import annotations

from retriever.kernel_table import compiled


@compiled
def _place_of(frontier, waiting, count, token, depth, parent, slot):
    """Where a newcomer stands: by (count down, token up, depth up, parent row up), counted from the worst."""
    place = waiting
    while place > 0:
        other = frontier[place - 1]
        if count[other] != count[slot]:
            worse = count[other] < count[slot]
        elif token[other] != token[slot]:
            worse = token[other] > token[slot]
        elif depth[other] != depth[slot]:
            worse = depth[other] > depth[slot]
        else:
            worse = parent[other] > parent[slot]
        if worse:
            break
        place -= 1
    return place


@compiled
def enter(frontier, free, waiting, room, count, token, depth, parent):
    """Let the node in slot free[waiting] in, if it is among the best `room`; the number that wait then, -1 if it is not.

    frontier[:waiting] are the waiting nodes' slots; free[waiting:] are the unused ones, one more than there is room for.
    Mutates both. A node that has to go frees its slot.
    """
    slot = free[waiting]
    place = _place_of(frontier, waiting, count, token, depth, parent, slot)
    if waiting < room:
        for j in range(waiting, place, -1):
            frontier[j] = frontier[j - 1]
        frontier[place] = slot
        return waiting + 1
    if place == 0:
        return -1
    free[waiting] = frontier[0]
    for j in range(place - 1):
        frontier[j] = frontier[j + 1]
    frontier[place - 1] = slot
    return waiting
