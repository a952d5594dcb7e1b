"""Progress of a training run on the console: two bars, and a line of figures an interval."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from proposer.training.loop import Figures
    from proposer.training.prepared import Reports


def command_line() -> str:
    """What this process was called with, as a shell reads it."""
    return shlex.join(["draftproof", *sys.argv[1:]])


@contextmanager
def reports_of(name: str, tokens: int) -> Iterator[Reports]:
    """Where a run called `name` with this token budget reports to."""
    from proposer.training.prepared import Reports
    from services.cli.console import err, progress_bars

    with progress_bars() as bars:
        preparing = bars.add_task("data", total=None)
        training = bars.add_task(name, total=tokens)

        def step(what: str, done: int, total: int) -> None:
            bars.update(preparing, description=what, completed=done, total=total)

        def row(figures: Figures, budget: int) -> None:
            depths = " ".join(f"{value:.3f}" for value in figures.held_out or figures.accuracy)
            kind = "held out" if figures.held_out else "training"
            bars.update(training, completed=min(figures.tokens, budget))
            err.print(
                f"step {figures.step} tokens {figures.tokens}/{budget} {figures.seconds:.0f} s loss {figures.loss:.4f} "
                f"accuracy by depth ({kind}) {depths}"
            )

        yield Reports(step, row)
