"""Topologies, relations and semantics of proposals; pure functions over parent arrays.

Parents are row indices, -1 stands for the anchor. Depth starts at 1 for the anchor's children. Three coordinates never
alias: a candidate's input row, its predictor row (its parent, or the anchor) and its KV row (M7.7 section 0x07E).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from contracts.errors import InvalidArgument

ANCHOR = -1


class _Kind(StrEnum):
    """Hashed as the text it equals: an enumeration's own way is a call of Python for every look-up in a set.

    Reading a member off its class takes ten times as long as a name of the module (Python 3.11), so what a round asks for
    again and again has such a name.
    """

    __hash__ = str.__hash__


class ProbabilitySemantics(_Kind):
    """What the numbers beside a candidate mean."""

    NORMALIZED_CONDITIONAL = "normalized_conditional"
    SCORE_ONLY = "score_only"
    FREQUENCY = "frequency"
    ABSENT = "absent"


class SamplingRelation(_Kind):
    """How a parent's candidates were drawn. The last two extend M7.7's list."""

    INDEPENDENT = "independent"
    WITHOUT_REPLACEMENT = "without_replacement"
    BEAM = "beam"
    DETERMINISTIC_LOOKUP = "deterministic_lookup"
    SHARED_NOISE = "shared_noise"
    POPULATION = "population"


class Topology(_Kind):
    """The shape of a proposal. A metadata graph is materialised into a tree before it meets the target."""

    SEQUENCE = "sequence"
    SET = "set"
    TREE = "tree"
    METADATA_GRAPH = "metadata_graph"


def depths_of(parents: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Depth of each row, int64 [N]; parents must precede their children."""
    return np.array(depths_listed(parents.tolist()), dtype=np.int64)


def depths_listed(parents: Sequence[int]) -> list[int]:
    """As `depths_of`, from numbers to numbers."""
    depths: list[int] = []
    for parent in parents:
        depths.append(depths[parent] + 1 if parent >= 0 else 1)
    return depths


def check_parents(parents: Sequence[int], field: str = "nodes") -> None:
    """Raises InvalidArgument for a parent that is not -1 or an earlier row: no cycles, no forward references."""
    for row, parent in enumerate(parents):
        if not -1 <= parent < row:
            raise InvalidArgument(f"{field}[{row}].parent", f"{parent} is outside [-1, {row})")


def ancestor_mask(parents: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """bool [N, N]: entry (u, v) says row u sees row v, that is v is u or an ancestor of u."""
    n = len(parents)
    mask = np.zeros((n, n), dtype=np.bool_)
    for row, parent in enumerate(parents.tolist()):
        if parent >= 0:
            mask[row] = mask[parent]
        mask[row, row] = True
    return mask


def path_to(parents: npt.NDArray[np.int64], row: int) -> tuple[int, ...]:
    """Rows from a child of the anchor down to `row`; empty for the anchor."""
    path: list[int] = []
    while row >= 0:
        path.append(row)
        row = int(parents[row])
    return tuple(reversed(path))


def shape_of(draw_parents: Sequence[int], parents: Collection[int]) -> Topology:
    """The narrowest topology of draws (duplicates counted, by parent row) over rows with `parents`."""
    if len(draw_parents) == len(set(draw_parents)) and len(parents) <= len(set(parents)):
        return Topology.SEQUENCE
    if draw_parents.count(ANCHOR) == len(draw_parents):
        return Topology.SET
    return Topology.TREE


@dataclass(frozen=True)
class MetadataNode:
    """A planner's node that may have several parents; -1 among them stands for the anchor."""

    token: int
    parents: tuple[int, ...]


def materialise(nodes: Sequence[MetadataNode], *, limit: int) -> tuple[list[int], list[int], list[int]]:
    """Unfolds a DAG into parent-unique rows: (token per row, parent row per row, node per row), breadth first.

    Each distinct path from the anchor becomes its own row, because target state belongs to the full prefix. Raises
    InvalidArgument on cycles and forward or unknown parents, and past `limit` rows (the unfolding can be exponential).
    """
    for index, node in enumerate(nodes):
        if not node.parents or len(set(node.parents)) != len(node.parents):
            raise InvalidArgument(f"nodes[{index}].parents", "must be non-empty and without repeats")
        check_sorted = [p for p in node.parents if not -1 <= p < index]
        if check_sorted:
            raise InvalidArgument(f"nodes[{index}].parents", f"{check_sorted[0]} is outside [-1, {index})")
    children: dict[int, list[int]] = {}
    for index, node in enumerate(nodes):
        for parent in node.parents:
            children.setdefault(parent, []).append(index)
    tokens: list[int] = []
    rows: list[int] = []
    owners: list[int] = []
    queue: list[tuple[int, int]] = [(index, ANCHOR) for index in children.get(ANCHOR, [])]
    while queue:
        index, parent_row = queue.pop(0)
        row = len(tokens)
        if row >= limit:
            raise InvalidArgument("nodes", f"the metadata graph unfolds into more than {limit} rows")
        tokens.append(nodes[index].token)
        rows.append(parent_row)
        owners.append(index)
        queue.extend((child, row) for child in children.get(index, []))
    return tokens, rows, owners
