"""Strict requests: their text is bit for bit that of plain decoding on the same target, or they are refused.

A candidate's row has the bits of plain decoding where its pass is one that the target claims row invariance for. A target
that claims it for any rows (`cpu-llvm`) serves strict requests as it serves all. One that claims it up to n rows gets
chains of at most n - 1 candidates, in passes that a strict session shares with nobody: branching changes the order of sums.
One that claims nothing can verify no candidate at all.
"""

from __future__ import annotations

from contracts.capability import Exactness, VerifierCapability
from contracts.errors import FailedPrecondition
from contracts.graph import CandidateGraph, keep_rows
from contracts.manifest import Manifest, TargetIdentity
from contracts.topology import ANCHOR


def strict_budget(budget: int, capability: VerifierCapability, target: TargetIdentity) -> int:
    """What of the node budget a strict request may use. Raises FailedPrecondition (`strict`) where the promise cannot be
    kept with candidates; `budget` 0 is plain decoding, which always keeps it.
    """
    rows = target.strict_rows
    if budget == 0:
        return 0
    if capability.needs_law or capability.exactness is not Exactness.EXACT:
        raise FailedPrecondition("strict", f"the text of verifier {capability.name!r} depends on what was proposed")
    if rows is not None and rows < 2:
        raise FailedPrecondition(
            "strict",
            f"backend {target.backend!r} gives no two rows of a pass the bits they have alone; decode without speculation, "
            "or without strict",
        )
    return budget if rows is None else min(budget, rows - 1)


def one_path(manifest: Manifest) -> bool:
    """Whether the session's candidates must be a chain."""
    return manifest.strict and manifest.target.strict_rows is not None


def longest_path(graph: CandidateGraph) -> CandidateGraph:
    """The path to the deepest candidate, the first of several."""
    if graph.deepest == len(graph):
        return graph
    row, rows = graph.depth_list.index(graph.deepest), list[int]()
    while row != ANCHOR:
        rows.append(row)
        row = graph.parent_list[row]
    return keep_rows(graph, rows[::-1])


def check_move(manifest: Manifest, target: TargetIdentity) -> None:
    """Raises FailedPrecondition (`strict`) where a session that goes on at `target` would not keep its bits: another
    target's rows differ, and published tokens are run again as a prompt, many rows a pass.
    """
    if not manifest.strict:
        return
    if target != manifest.target:
        raise FailedPrecondition("strict", f"the replica left to go on with computes otherwise: {target.backend!r}")
    if target.strict_rows is not None:
        raise FailedPrecondition("strict", "the replica is gone, and what was published cannot be run again row by row")
