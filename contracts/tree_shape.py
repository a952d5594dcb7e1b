"""The planned shape of a candidate tree: who has how many children, before any token is known.

A node is named by its *rank path* in the Medusa paper's manner: (1, 0) is the first child of the anchor's second child.
Nodes are numbered breadth first, siblings by rank, so that a shape is exactly a non-decreasing list of parents, and cutting
it to a smaller budget or depth drops a suffix of the draw order (docs/decisions/0004-merging.md). The anchor is no node.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from contracts.errors import InvalidArgument
from contracts.manifest import canonical_bytes, sha256_hex
from contracts.topology import ANCHOR, Topology, check_parents, shape_of

RankPath = tuple[int, ...]


@dataclass(frozen=True)
class TreeShape:
    """parents[i]: the parent of node i, -1 the anchor; non-decreasing. Raises InvalidArgument for anything else."""

    parents: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        check_parents(self.parents, "shape")
        if any(right < left for left, right in pairwise(self.parents)):
            raise InvalidArgument("shape", "parents must not decrease: nodes are numbered breadth first")

    def __len__(self) -> int:
        return len(self.parents)

    @cached_property
    def paths(self) -> tuple[RankPath, ...]:
        """The rank path of each node."""
        out: list[RankPath] = []
        for node, parent in enumerate(self.parents):
            above = out[parent] if parent >= 0 else ()
            out.append((*above, node - self.first_child(parent)))
        return tuple(out)

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """Depth of each node, 1 for the anchor's children; never decreasing."""
        return tuple(len(path) for path in self.paths)

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        """Rank of each node among its siblings, from 0."""
        return tuple(path[-1] for path in self.paths)

    @cached_property
    def _children(self) -> tuple[tuple[int, int], ...]:
        """(first child, children) of the anchor and of each node."""
        counts = [0] * (len(self.parents) + 1)
        for parent in self.parents:
            counts[parent + 1] += 1
        firsts = np.concatenate([[0], np.cumsum(counts)[:-1]]).tolist()
        return tuple(zip(firsts, counts, strict=True))

    def children(self, node: int) -> int:
        """How many children `node` has; -1 is the anchor."""
        return self._children[node + 1][1]

    def first_child(self, node: int) -> int:
        """The number of the first child of `node`, and so of the coin that draws it; meaningless without children."""
        return self._children[node + 1][0]

    @property
    def max_depth(self) -> int:
        """Depth of the deepest node, 0 for the empty shape."""
        return self.depths[-1] if self.parents else 0

    @cached_property
    def topology(self) -> Topology:
        """The narrowest topology that proposals of this shape have."""
        return shape_of(self.parents, self.parents)

    def within(self, nodes: int, depth: int | None = None) -> TreeShape:
        """The first `nodes` nodes that are at most `depth` deep: always a prefix of the numbering."""
        kept = len(self) if depth is None else int(np.searchsorted(self.depths, depth, side="right"))
        kept = max(0, min(kept, nodes))
        return self if kept == len(self) else TreeShape(self.parents[:kept])

    @cached_property
    def digest(self) -> str:
        """SHA-256 hex of the parents in canonical form."""
        return sha256_hex(canonical_bytes({"parents": self.parents}))


def chain(nodes: int) -> TreeShape:
    """Each node the only child of the one before."""
    return TreeShape(tuple(range(ANCHOR, nodes - 1)))


def shape_from_paths(paths: Iterable[RankPath]) -> TreeShape:
    """The shape of the given rank paths in any order (Medusa's `choices`).

    Raises InvalidArgument for a repeated or empty path, one whose parent is missing, or a rank whose elder sibling is
    missing: children are drawn in rank order, so a rank cannot be had without those before it.
    """
    ordered = sorted((tuple(path) for path in paths), key=lambda path: (len(path), path))
    number: dict[RankPath, int] = {(): ANCHOR}
    parents: list[int] = []
    for path in ordered:
        if path in number:
            raise InvalidArgument("shape.paths", f"{path} is empty or given twice")
        if path[:-1] not in number:
            raise InvalidArgument("shape.paths", f"{path} is given without its parent")
        if path[-1] < 0 or (path[-1] > 0 and (*path[:-1], path[-1] - 1) not in number):
            raise InvalidArgument("shape.paths", f"{path} is given without its elder sibling")
        number[path] = len(parents)
        parents.append(number[path[:-1]])
    return TreeShape(tuple(parents))
