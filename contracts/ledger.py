"""The round cost ledger (M7.7 section 0x02C): where a round's time went, per component, in microseconds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

COMPONENTS = ("proposal", "retrieval", "packing", "wire", "queue", "verify", "selection", "state", "other")


@dataclass(frozen=True, slots=True)
class IndexMatch:
    """What an index found in a round: tokens of the longest suffix matched (0: a miss), its occurrences, and whether the
    budget cut its trie.
    """

    length: int
    count: int
    truncated: bool

    @property
    def miss(self) -> bool:
        """Nothing matched."""
        return self.length == 0


@dataclass(frozen=True, slots=True)
class RoundLedger:
    """Costs of one round, microseconds of wall time as the orchestrator saw the round pass.

    Proposal and retrieval run side by side, so they count what the round *waited* for them beyond each other: the
    gathering time is split in proportion to their compute times. `wire` is what remains of the calls once the peers' own
    times are taken out. The components add up to `total_us`. matches: by source, of sources that are indexes.
    """

    proposal: float = 0.0
    retrieval: float = 0.0
    packing: float = 0.0
    wire: float = 0.0
    queue: float = 0.0
    verify: float = 0.0
    selection: float = 0.0
    state: float = 0.0
    other: float = 0.0
    committed: int = 0
    candidates: int = 0
    accepted: int = 0
    proposed_by: Mapping[str, int] = field(default_factory=dict)
    accepted_by: Mapping[str, int] = field(default_factory=dict)
    failures: Mapping[str, str] = field(default_factory=dict)
    matches: Mapping[str, IndexMatch] = field(default_factory=dict)

    @property
    def total_us(self) -> float:
        return float(sum(getattr(self, name) for name in COMPONENTS))

    @property
    def overhead_us(self) -> float:
        """Time outside target forward, selection and proposal compute."""
        return self.total_us - self.proposal - self.retrieval - self.verify - self.selection


def _add(into: dict[str, int], more: Mapping[str, int]) -> None:
    for name, count in more.items():
        into[name] = into.get(name, 0) + count


@dataclass(frozen=True)
class LedgerSum:
    """Sums over the rounds of a request. `plain_step_us`: the target's own one-row step, measured; 0 if unknown.

    missed_by, truncated_by: rounds in which an index found nothing, or the budget cut what it found, by source.
    """

    rounds: int
    components_us: Mapping[str, float]
    committed: int
    candidates: int
    accepted: int
    proposed_by: Mapping[str, int]
    accepted_by: Mapping[str, int]
    failed_by: Mapping[str, int]
    plain_step_us: float = 0.0
    missed_by: Mapping[str, int] = field(default_factory=dict)
    truncated_by: Mapping[str, int] = field(default_factory=dict)

    @property
    def total_us(self) -> float:
        return sum(self.components_us.values())

    @property
    def time_per_committed_token_us(self) -> float:
        """round_cost / committed tokens, totals over totals; 0 before the first token."""
        return self.total_us / self.committed if self.committed else 0.0

    @property
    def tokens_per_pass(self) -> float:
        return self.committed / self.rounds if self.rounds else 0.0

    @property
    def speedup(self) -> float:
        """Against the target's own one-row step (C_AR * committed / round_cost); 0 where that step was not measured."""
        return self.plain_step_us * self.committed / self.total_us if self.total_us else 0.0


def add_sums(sums: Sequence[LedgerSum]) -> LedgerSum:
    """The sums of several requests as one; `plain_step_us` is the first's. Raises IndexError for none."""

    def total(name: str) -> int:
        return sum(getattr(one, name) for one in sums)

    def merged(name: str) -> dict[str, int]:
        out: dict[str, int] = {}
        for one in sums:
            _add(out, getattr(one, name))
        return out

    return LedgerSum(
        rounds=total("rounds"),
        components_us={name: sum(one.components_us[name] for one in sums) for name in COMPONENTS},
        committed=total("committed"),
        candidates=total("candidates"),
        accepted=total("accepted"),
        proposed_by=merged("proposed_by"),
        accepted_by=merged("accepted_by"),
        failed_by=merged("failed_by"),
        plain_step_us=sums[0].plain_step_us,
        missed_by=merged("missed_by"),
        truncated_by=merged("truncated_by"),
    )


def sum_ledgers(rounds: Iterable[RoundLedger], *, plain_step_us: float = 0.0) -> LedgerSum:
    """Adds up the rounds of one request."""
    components = dict.fromkeys(COMPONENTS, 0.0)
    proposed: dict[str, int] = {}
    accepted_by: dict[str, int] = {}
    failed: dict[str, int] = {}
    missed: dict[str, int] = {}
    truncated: dict[str, int] = {}
    count = committed = candidates = accepted = 0
    for ledger in rounds:
        count += 1
        for name in COMPONENTS:
            components[name] += getattr(ledger, name)
        committed += ledger.committed
        candidates += ledger.candidates
        accepted += ledger.accepted
        _add(proposed, ledger.proposed_by)
        _add(accepted_by, ledger.accepted_by)
        _add(failed, dict.fromkeys(ledger.failures, 1))
        _add(missed, {source: 1 for source, match in ledger.matches.items() if match.miss})
        _add(truncated, {source: 1 for source, match in ledger.matches.items() if match.truncated})
    return LedgerSum(
        count,
        components,
        committed,
        candidates,
        accepted,
        proposed,
        accepted_by,
        failed,
        plain_step_us,
        missed,
        truncated,
    )
