"""How a draft model's node gets its children: one choice per sampling relation, over contracts/drawing.py.

Laws are the draft's own under the request's sampling parameters; relations whose verifiers need no q carry scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from contracts.draft_law import DraftLaw
from contracts.drawing import DraftCoins, draw_independent, draw_shared_noise, draw_without_replacement
from contracts.sampling import SamplingPolicy
from contracts.topology import SamplingRelation
from models.laws import TargetLaws

WITH_LAW = frozenset({SamplingRelation.INDEPENDENT, SamplingRelation.WITHOUT_REPLACEMENT})
RELATIONS = WITH_LAW | {SamplingRelation.SHARED_NOISE, SamplingRelation.BEAM}


@dataclass(frozen=True)
class Siblings:
    """Children of one node in draw order, duplicates kept: tokens, log-probabilities where ranked, the law where drawn."""

    tokens: Sequence[int]
    log_probs: Sequence[float] = ()
    law: DraftLaw | None = None


class Choose(Protocol):
    """Chooses `count` children at `depth` of the row with law `laws.row(row)`, by the coins from `first_draw` on."""

    def __call__(self, laws: TargetLaws, row: int, *, depth: int, count: int, first_draw: int) -> Siblings: ...


def choice_of(
    relation: SamplingRelation, policy: SamplingPolicy, *, frontier: int, source: str, support: int
) -> Choose:
    """The choice of one round. frontier: published length at its start. support: tokens of a law.

    relation: one of RELATIONS.
    """
    coins = DraftCoins(policy.seed, frontier, source)

    def independent(laws: TargetLaws, row: int, *, depth: int, count: int, first_draw: int) -> Siblings:
        law = laws.draft_law(row, support=support)
        return Siblings(draw_independent(law, count, coins, first_draw=first_draw), law=law)

    def without_replacement(laws: TargetLaws, row: int, *, depth: int, count: int, first_draw: int) -> Siblings:
        law = laws.draft_law(row, support=support)
        size = laws.vocab_size
        return Siblings(draw_without_replacement(law, count, coins, first_draw=first_draw, vocab_size=size), law=law)

    def shared_noise(laws: TargetLaws, row: int, *, depth: int, count: int, first_draw: int) -> Siblings:
        ids, probabilities = laws.row(row).top(support)
        log_probs = np.log(probabilities)
        tokens = draw_shared_noise(ids, log_probs, count, seed=policy.seed, position=frontier + depth - 1)
        log_prob_of = dict(zip(ids.tolist(), log_probs.tolist(), strict=True))
        return Siblings(tokens, [log_prob_of[token] for token in tokens])

    def beam(laws: TargetLaws, row: int, *, depth: int, count: int, first_draw: int) -> Siblings:
        ids, probabilities = laws.row(row).top(count)
        return Siblings(ids.tolist(), np.log(probabilities).tolist())

    choices: dict[SamplingRelation, Choose] = {
        SamplingRelation.INDEPENDENT: independent,
        SamplingRelation.WITHOUT_REPLACEMENT: without_replacement,
        SamplingRelation.SHARED_NOISE: shared_noise,
        SamplingRelation.BEAM: beam,
    }
    return choices[relation]
