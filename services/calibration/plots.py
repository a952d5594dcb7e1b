"""A calibration as charts: acceptance by depth, t(n), expected against measured speed-up."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from contracts.calibration import Calibration
from proposer.topology.calibrated import rates
from services.charts import Series, write_line_chart


def write_plots(
    calibration: Calibration, folder: Path, speedups: Sequence[tuple[int, float, float]] = ()
) -> tuple[Path, ...]:
    """Writes acceptance.svg and passes.svg, and speedup.svg where `speedups` (candidates, expected, measured) are given."""
    table = rates(calibration.trials, calibration.hits)
    depths = [depth + 1 for depth, row in enumerate(calibration.trials) if row[0]]
    ranks = range(len(calibration.trials[0]))
    written = [folder / "acceptance.svg", folder / "passes.svg"]
    write_line_chart(
        written[0],
        f"{calibration.source}: chance of the child selected ({calibration.verifier})",
        "depth",
        "probability, parent reached",
        [
            *(Series(f"rank {rank}", depths, [float(table[d - 1, rank]) for d in depths]) for rank in ranks),
            Series("any rank", depths, [float(table[d - 1].sum()) for d in depths]),
        ],
    )
    write_line_chart(
        written[1],
        f"t(n) over {calibration.context} committed rows, {calibration.target.dtype}",
        "rows of a pass",
        "milliseconds",
        [Series("target", [rows for rows, _ in calibration.curve], [ns / 1e6 for _, ns in calibration.curve])],
    )
    if speedups:
        sizes = [candidates for candidates, _, _ in speedups]
        written.append(folder / "speedup.svg")
        write_line_chart(
            written[2],
            f"{calibration.source}: speed-up over plain rounds",
            "candidates a round",
            "speed-up",
            [
                Series("expected", sizes, [expected for _, expected, _ in speedups]),
                Series("measured", sizes, [measured for _, _, measured in speedups]),
            ],
        )
    return tuple(written)
