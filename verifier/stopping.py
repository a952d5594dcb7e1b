"""Where a round's publication ends: EOS, stop ids and the length limit cut it inside the accepted path too."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec
import numpy as np

from contracts.graph import CandidateGraph, Draw
from contracts.receipt import Closing, FinishReason


class Publication(msgspec.Struct, frozen=True):
    """What a round makes public. `rows`: candidate rows whose tokens are published, from the anchor's child downwards.

    `tokens` has one entry more than `rows` if the closing token survived the cut; else `closing` is NONE.
    """

    tokens: tuple[int, ...]
    rows: tuple[int, ...]
    closing: Closing
    finish: FinishReason

    @property
    def kv_rows(self) -> tuple[int, ...]:
        """Rows of the verification pass to commit, the anchor's (0) first: one for each published token.

        The newest published token becomes the next anchor, whose KV is not due yet. So where the cut fell inside the
        path, its last row is published and not committed.
        """
        return (0, *(row + 1 for row in self.rows[: len(self.tokens) - 1]))


def cut(
    path: tuple[int, ...], rows: tuple[int, ...], token: int, closing: Closing, *, stop: Collection[int], room: int
) -> Publication:
    """Publishes up to the first stop token, itself included, and at most `room` (>= 1) tokens.

    path, rows: tokens and candidate rows of the accepted path; token, closing: what the verifier put after it. A stop
    token in the last place that the limit allows counts as a stop.
    """
    offered = (*path, token)
    end = min(len(offered), room)
    finish = FinishReason.LENGTH if len(offered) >= room else FinishReason.NONE
    for index, published in enumerate(offered[:end]):
        if published in stop:
            end, finish = index + 1, FinishReason.STOP
            break
    return Publication(
        tokens=offered[:end],
        rows=rows[:end],
        closing=closing if end == len(offered) else Closing.NONE,
        finish=finish,
    )


def within_reach(graph: CandidateGraph, depth: int) -> tuple[CandidateGraph, Sequence[int]]:
    """The graph without candidates deeper than `depth`, and the original row of each row that is left.

    Deeper ones lie past the length limit: never published, and possibly past the context. What goes depends on depth
    alone and not on the tokens drawn, so every verifier keeps its law (docs/decisions/0004-merging.md).
    """
    if graph.deepest <= depth:
        return graph, range(len(graph))
    kept = graph.depths <= depth
    renumbered = np.cumsum(kept) - 1
    parents = np.where(graph.parents < 0, graph.parents, renumbered[graph.parents])[kept]
    originals: list[int] = np.flatnonzero(kept).tolist()
    return (
        CandidateGraph(
            token_ids=graph.token_ids[kept],
            parents=parents,
            sources=tuple(graph.sources[row] for row in originals),
            draws=tuple(
                Draw(
                    -1 if draw.parent < 0 else int(renumbered[draw.parent]),
                    int(renumbered[draw.row]),
                    draw.source,
                    draw.law,
                )
                for draw in graph.draws
                if kept[draw.row]
            ),
            laws=graph.laws,
            semantics=graph.semantics,
            relations=graph.relations,
        ),
        originals,
    )
