"""What a round verifies and why, as attributes of its span. Called only where somebody traces."""

from __future__ import annotations

from collections.abc import Sequence

from opentelemetry.trace import Span

from contracts.manifest import SourcePlan
from orchestrator import telemetry_names as names
from orchestrator.budget.base import Budget, Choice, Standing
from orchestrator.gather import Gathered
from orchestrator.session import Session
from orchestrator.sources import CandidateSource


def set_choice(
    span: Span,
    session: Session,
    budget: Budget,
    choice: Choice,
    *,
    willing: Sequence[CandidateSource],
    ready: Sequence[CandidateSource],
    plan: Sequence[SourcePlan],
    gathered: Gathered,
) -> None:
    """The choice, the times that it was made by, and by source what became of it in this round and how it stands.

    willing: the sources that the budget lets be asked; ready: those of them that do not back off; plan: those that got a
    share of the candidates.
    """
    bound = [source.description.name for source in session.sources]
    standings = [budget.standing(name, choice) for name in bound]
    offered = {offer.source: offer.failure for offer in gathered.offers}
    planned = {share.source for share in plan}
    asked = {source.description.name for source in ready}
    wanted = {source.description.name for source in willing}

    def state(name: str, standing: Standing) -> str:
        if name in offered:
            return names.STATE_FAILED if offered[name] else names.STATE_ASKED
        if name in planned:
            return names.STATE_NOT_WORTH
        if name in asked:
            return names.STATE_NO_SHARE
        if name in wanted:
            return names.STATE_BACKING_OFF
        return names.STATE_LEFT_OUT if standing.left_out else names.STATE_PAUSED

    span.set_attributes(
        {
            names.BUDGET_POLICY: session.manifest.budget,
            names.BUDGET_OFFERED: choice.offered,
            names.BUDGET_EXPECTED_TOKENS: choice.expected_tokens,
            names.BUDGET_EXPECTED_US: choice.expected_us,
            names.BUDGET_ROWS_US: choice.rows_us,
            names.BUDGET_IDLE_US: choice.idle_us,
            names.BUDGET_SESSIONS: choice.sessions,
            names.BUDGET_ONE_ROW_US: max(0.0, choice.expected_us - choice.rows_us - choice.idle_us),
            names.BUDGET_PASS_US: max(0.0, choice.expected_us - choice.idle_us),
            names.BUDGET_SOURCES: bound,
            names.BUDGET_STATES: [state(name, standing) for name, standing in zip(bound, standings, strict=True)],
            names.BUDGET_WORTHS_US: [standing.worth_us for standing in standings],
            names.BUDGET_TRIED: [standing.tried for standing in standings],
            names.BUDGET_ACCEPTED: [standing.accepted for standing in standings],
        }
    )
