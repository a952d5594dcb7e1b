"""What the top-down verifiers share: positions, coin numbers and the closing token.

Coin numbers depend on the plan alone, never on drawn tokens: an accept coin is named by its draw's source and by the
number of that draw among the source's draws of the round; the one residual or bonus coin of a round is number 0 of the
verifier's own name. No coin decides two things.
"""

from __future__ import annotations

from contracts.errors import InvalidArgument
from contracts.graph import CandidateGraph
from contracts.randomness import Chooser, Purpose
from contracts.receipt import Closing
from models.law_rows import Law, draw_from
from verifier.selection.base import Selection


def coin_numbers(graph: CandidateGraph) -> tuple[int, ...]:
    """Per draw of the graph, its number among the draws of its source."""
    seen: dict[str, int] = {}
    numbers: list[int] = []
    for draw in graph.draws:
        number = seen.get(draw.source, 0)
        numbers.append(number)
        seen[draw.source] = number + 1
    return tuple(numbers)


def numbered_draws(graph: CandidateGraph) -> dict[int, tuple[int, ...]]:
    """Per parent row (-1: the anchor) the indices of its draws in order."""
    out: dict[int, list[int]] = {}
    for index, draw in enumerate(graph.draws):
        out.setdefault(draw.parent, []).append(index)
    return {parent: tuple(indices) for parent, indices in out.items()}


def ratio_of(p: float, q: float, index: int) -> float:
    """p / q for the accept coin of draw `index`. Raises InvalidArgument where its law could not have drawn the token."""
    if q <= 0.0:
        raise InvalidArgument(f"graph.draws[{index}]", "has probability 0 in the law it is said to be drawn from")
    return p / q


def close(rows: list[int], law: Law, chooser: Chooser, name: str, *, tested: bool) -> Selection:
    """Ends a round with one token from `law`; `tested` says that draws at the last row were tested and rejected."""
    token = draw_from(law, chooser, Purpose.RESIDUAL, name, 0)
    return Selection(tuple(rows), token, Closing.RESIDUAL if tested else Closing.BONUS)
