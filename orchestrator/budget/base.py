"""What a budget is asked, and the fixed one: every source in every round, and all that is offered is verified."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

import msgspec

from contracts.graph import CandidateGraph
from contracts.ledger import RoundLedger
from contracts.proposal import Proposal
from contracts.receipt import Receipt


class Choice(msgspec.Struct, frozen=True):
    """What a round verifies of `offered` candidates, and what was thought: tokens it will publish, microseconds of the
    target's time that it will take, how much of that for the candidates and how much without a pass, and sessions that share
    the pass. Zeros where nothing was thought.
    """

    graph: CandidateGraph
    offered: int
    expected_tokens: float = 0.0
    expected_us: float = 0.0
    rows_us: float = 0.0
    idle_us: float = 0.0
    sessions: float = 0.0


class Standing(msgspec.Struct, frozen=True):
    """What a budget thinks of a source, for the trace. worth_us: what a round gains by it, where others offered what they
    did; tried, accepted: its candidates in this session, older ones counting for less. left_out: the request does without
    it. Zeros where nothing was thought.
    """

    worth_us: float = 0.0
    tried: float = 0.0
    accepted: float = 0.0
    left_out: bool = False


class Budget(Protocol):
    """One request's choices. First, for each source that reads the prompt's hidden rows: `prepares`, and `prepared` for
    those it is true of. Then in order, once a round: `asked`, `worth_asking`, `choose`; and `learn` for every round
    that was committed, in their order, while the next one's target runs or later.
    """

    @property
    def reaches(self) -> Mapping[str, int]:
        """By dear source, how deep it need draft: deeper candidates would not be verified."""
        ...

    def prepares(self, source: str, rows: int, tokens: int) -> bool:
        """Whether the source is run over the prompt's `rows` rows for a request of up to `tokens` more tokens; if not, the
        request does without it."""
        ...

    def prepared(self, source: str, rows: int, us: float) -> None:
        """That took so many microseconds."""
        ...

    def asked(self, source: str) -> bool:
        """Whether the round that comes may ask the source."""
        ...

    def dear(self, source: str) -> bool:
        """Whether the source takes so long that `worth_asking` decides."""
        ...

    def worth_asking(self, source: str, offers: Sequence[Proposal]) -> bool:
        """Whether the round asks a dear source, given what those that answer at once have offered."""
        ...

    def choose(self, graph: CandidateGraph, proposals: Sequence[Proposal]) -> Choice:
        """What of the merged offers is verified."""
        ...

    def learn(self, choice: Choice, receipt: Receipt, ledger: RoundLedger, waits_us: Mapping[str, float]) -> None:
        """After the round. waits_us: by source that answered, how much shorter the round would have been without it."""
        ...

    def standing(self, source: str, choice: Choice) -> Standing:
        """After `choose` and before `learn`: for whoever traces."""
        ...


class FixedBudget:
    """Looks at nothing, so a request's rounds depend on its text alone."""

    reaches: Mapping[str, int] = MappingProxyType({})

    def prepares(self, source: str, rows: int, tokens: int) -> bool:
        return True

    def prepared(self, source: str, rows: int, us: float) -> None:
        """Nothing to learn."""

    def asked(self, source: str) -> bool:
        return True

    def dear(self, source: str) -> bool:
        return False

    def worth_asking(self, source: str, offers: Sequence[Proposal]) -> bool:
        return True

    def choose(self, graph: CandidateGraph, proposals: Sequence[Proposal]) -> Choice:
        return Choice(graph, len(graph))

    def learn(self, choice: Choice, receipt: Receipt, ledger: RoundLedger, waits_us: Mapping[str, float]) -> None:
        """Nothing to learn."""

    def standing(self, source: str, choice: Choice) -> Standing:
        return Standing()
