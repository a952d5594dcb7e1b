"""Trees as settings name them: widths, a comb to calibrate with, growth by value, or what a calibration's file gives."""

from __future__ import annotations

from pathlib import Path

from contracts.calibration import CalibrationUse, calibration_from_bytes
from contracts.errors import InvalidArgument, NotFound
from contracts.proposal import MAX_NODES
from contracts.tree_shape import TreeShape
from proposer.topology.calibrated import comb, plan_of, sparse_plan_of
from proposer.topology.plan import CompleteTree, FixedTree, GrownByValue, TreePlan
from services.setting_rules import BY_VALUE, COMB, FORCED, MEDUSA, WIDTHS


def tree_of(text: str, *, nodes: int | None = None, drafting: str = "") -> TreePlan | GrownByValue:
    """ "2,1": widths by depth, the last for all deeper; "by_value:4x6": EAGLE-2's, 4 children over 6 levels; "comb:4x6": 4
    siblings at each of 6 levels below the first of the level above; else the path of a calibration: the tree that is fastest
    by it, or with "medusa:PATH" Medusa's sparse tree; "forced:PATH", "medusa:forced:PATH": also where it does not hold.
    nodes: most candidates of a calibrated tree. drafting: what its source drafts with (`services.drafting`); "" asks for
    none.

    Raises InvalidArgument for sizes out of range and for a file that is no calibration of this format, NotFound where there
    is none, DataLoss where it was changed, FailedPrecondition where it is of other drafting and not forced.
    """
    if WIDTHS.fullmatch(text):
        return CompleteTree(tuple(map(int, text.split(","))))
    if (found := BY_VALUE.fullmatch(text)) is not None:
        return GrownByValue(int(found[1]), int(found[2]))
    if (found := COMB.fullmatch(text)) is not None:
        return FixedTree(_comb(int(found[1]), int(found[2])))
    named = text.removeprefix(MEDUSA)
    path = Path(named.removeprefix(FORCED))
    if not text or not path.is_file():
        raise NotFound("tree", f"{text!r} is neither widths, nor by_value:KxD, comb:KxD or a calibration's file")
    use = CalibrationUse(calibration_from_bytes(path.read_bytes()), forced=named.startswith(FORCED))
    if drafting:
        use.check_drafting(drafting)
    return sparse_plan_of(use, nodes=nodes) if named != text else plan_of(use, nodes=nodes)


def _comb(ranks: int, depth: int) -> TreeShape:
    if not 1 <= ranks * depth <= MAX_NODES:
        raise InvalidArgument("tree", f"comb:{ranks}x{depth} has {ranks * depth} nodes, outside [1, {MAX_NODES}]")
    return comb(ranks, depth)
