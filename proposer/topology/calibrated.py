"""From what was counted to what a plan needs: the tally of accepted ranks, its rates, and the plan of a calibration."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from contracts.calibration import Calibration, CalibrationUse, Counts
from contracts.errors import InvalidArgument
from contracts.graph import CandidateGraph
from contracts.proposal import MAX_NODES
from contracts.topology import ANCHOR
from contracts.tree_shape import TreeShape
from proposer.topology.acceptance import Float64Array
from proposer.topology.counting import without_root
from proposer.topology.hardware import RoundCosts, TargetCurve
from proposer.topology.plan import CalibratedTree, SparseTree

Int64Array = npt.NDArray[np.int64]

# How many trials of the pooled rank a depth of its own must outweigh. Deep levels are reached seldom: without it one lucky
# hit in two trials would make the search dig there.
_POOLED_TRIALS = 32.0


def comb(ranks: int, depth: int) -> TreeShape:
    """`depth` levels of `ranks` siblings below the first child of the level above: every rank of every depth is tried."""
    parents: list[int] = []
    above = ANCHOR
    for _ in range(depth):
        first = len(parents)
        parents.extend([above] * ranks)
        above = first
    return TreeShape(tuple(parents))


class AcceptanceTally:
    """Counts, over rounds, which rank below each reached parent was selected."""

    def __init__(self, depths: int, ranks: int) -> None:
        if depths < 1 or ranks < 1:
            raise InvalidArgument("tally", f"{depths} depths of {ranks} ranks")
        self._trials = np.zeros((depths, ranks), dtype=np.int64)
        self._hits = np.zeros((depths, ranks), dtype=np.int64)

    def add(self, graph: CandidateGraph, accepted_rows: Sequence[int], *, source: str, ended: bool = False) -> None:
        """One round: what `source` drew in the verified graph, and the rows on the published path.

        A drawn repeat counts for the rank of its first draw. ended: generation stopped there, so that what would have been
        selected below the last accepted row is not known. A path that leaves the source's draws ends its count: what was
        reached there, the source had no part in.
        """
        for depth, parent in enumerate((ANCHOR, *accepted_rows)):
            last = depth == len(accepted_rows)
            if (last and ended) or depth >= len(self._trials):
                return
            drawn = [draw.row for draw in graph.draws_at.get(parent, ()) if draw.source == source]
            offered = list(dict.fromkeys(drawn))
            self._trials[depth, : len(offered)] += 1
            if last or accepted_rows[depth] not in offered:
                return
            rank = offered.index(accepted_rows[depth])
            if rank < self._hits.shape[1]:
                self._hits[depth, rank] += 1

    @property
    def counts(self) -> tuple[Counts, Counts]:
        """(trials, hits), one row per depth."""
        return _counts(self._trials), _counts(self._hits)


def _counts(table: Int64Array) -> Counts:
    return tuple(tuple(row) for row in table.tolist())


def rates(trials: Counts, hits: Counts, *, by_depth: bool = True) -> Float64Array:
    """float64 [D, B] selected-child probabilities, or [1, B] pooled over depths (Sequoia's positional model).

    By depth, each is drawn towards its rank's pooled rate as by 32 trials of it. Rows sum to at most one: where repeats
    make that fail, the row is scaled.
    """
    tried, hit = np.array(trials, dtype=np.float64), np.array(hits, dtype=np.float64)
    pooled = hit.sum(axis=0) / np.maximum(tried.sum(axis=0), 1.0)
    table = (hit + _POOLED_TRIALS * pooled) / (tried + _POOLED_TRIALS) if by_depth else pooled[None, :]
    return np.asarray(table / np.maximum(table.sum(axis=1, keepdims=True), 1.0), dtype=np.float64)


def costs_of(calibration: Calibration) -> RoundCosts:
    """The measured times, in microseconds."""
    return RoundCosts(
        TargetCurve(tuple(rows for rows, _ in calibration.curve), tuple(ns / 1e3 for _, ns in calibration.curve)),
        draft_us=calibration.draft_ns / 1e3,
        fixed_us=calibration.fixed_ns / 1e3,
        overhead_us=calibration.overhead_ns / 1e3,
    )


def plan_of(use: CalibrationUse, *, nodes: int | None = None, depth: int | None = None) -> CalibratedTree:
    """The plan that a calibration gives. nodes: most candidates, default what was timed; depth: default what was counted."""
    calibration = use.calibration
    timed = without_root(calibration.curve[-1][0])
    return CalibratedTree(
        rates(calibration.trials, calibration.hits),
        costs_of(calibration),
        nodes=min(timed if nodes is None else nodes, timed, MAX_NODES),
        depth=len(calibration.trials) if depth is None else depth,
        calibration=use,
    )


def sparse_plan_of(use: CalibrationUse, *, nodes: int | None = None) -> SparseTree:
    """Medusa's search over the same counts. nodes: most candidates, default a round's own limit.

    The published accuracies are each head's on its own, whatever came before. Rounds show a depth only where the path to it
    held, so these are the chances there, which is what the search multiplies.
    """
    table = rates(use.calibration.trials, use.calibration.hits)
    return SparseTree(table, min(nodes or MAX_NODES, MAX_NODES), use)
