"""Trees as settings name them: widths, growth by value, or a calibration's file."""

from __future__ import annotations

from pathlib import Path

from contracts.calibration import CalibrationUse, calibration_from_bytes
from contracts.errors import NotFound
from proposer.topology.calibrated import plan_of
from proposer.topology.plan import CompleteTree, GrownByValue, TreePlan
from services.setting_rules import BY_VALUE, FORCED, WIDTHS


def tree_of(text: str, *, nodes: int | None = None) -> TreePlan | GrownByValue:
    """ "2,1": widths by depth, the last for all deeper; "by_value:4x6": EAGLE-2's, 4 children over 6 levels; else the path
    of a calibration, "forced:PATH" to use it also where it does not hold. nodes: most candidates of a calibrated tree.

    Raises InvalidArgument for widths out of range and for a file that is no calibration of this format, NotFound where there
    is none, DataLoss where it was changed.
    """
    if WIDTHS.fullmatch(text):
        return CompleteTree(tuple(map(int, text.split(","))))
    if (found := BY_VALUE.fullmatch(text)) is not None:
        return GrownByValue(int(found[1]), int(found[2]))
    path = Path(text.removeprefix(FORCED))
    if not text or not path.is_file():
        raise NotFound("tree", f"{text!r} is neither widths, nor by_value:KxD, nor a calibration's file")
    use = CalibrationUse(calibration_from_bytes(path.read_bytes()), forced=text.startswith(FORCED))
    return plan_of(use, nodes=nodes)
