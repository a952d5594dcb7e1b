"""What all sessions of an orchestrator learn from and start with."""

from __future__ import annotations

from collections.abc import Sequence

from contracts.receipt import Receipt
from orchestrator.budget.acceptance import Trials
from orchestrator.budget.pass_times import PassTimes
from orchestrator.budget.preparing import Preparing
from orchestrator.budget.reaches import Reaches
from orchestrator.budget.running import Running

# Rounds over all sessions after which a source's worth is known, and that it is a running mean of.
_WORTH_KNOWN_AFTER = 48
_WORTH_MEMORY = 64
_WAIT_FLOOR_US = 500.0
# Sessions of which one asks a source that earlier ones lost by.
_TRIED_EVERY = 8


class Experience:
    """Chances, times at the present load, what sources were worth, and what preparing them is. Times in microseconds.

    idle_us: how long the target stands still before a session's pass, what rounds wait for dear sources aside. sessions:
    those that share one.
    """

    def __init__(self) -> None:
        self.trials = Trials()
        self.times = PassTimes()
        self.preparing = Preparing()
        self.reaches = Reaches()
        self.idle_us = Running(1_000.0)
        self.sessions = Running(2.0)
        self._worths: dict[tuple[str, int], tuple[float, int]] = {}
        self._waits: dict[str, Running] = {}
        self._begun: dict[tuple[str, int], int] = {}
        # By candidates, until the next round is learned from; and how many of these to have at hand then.
        self._passes_us: list[float] = []
        self._costs_us: list[float] = []
        self._lately = 0

    def add_round(self, receipt: Receipt, *, pass_us: float, idle_us: float) -> None:
        """A round: its receipt, how long the pass took that it rode in, and how long the target had waited for it."""
        self.times.add(receipt.pass_rows, pass_us)
        self.idle_us.add(idle_us)
        self.sessions.add(max(1.0, float(receipt.pass_sessions)))
        # Beforehand: the next choice is made while nothing else goes on.
        self._tabulate(self._lately)

    def costs_us(self, candidates: int, waits_us: float = 0.0) -> Sequence[float]:
        """What a round takes of the target with 0, 1, ... `candidates` and possibly more: the pass, and how long the target
        waits for it, `waits_us` of that for dear sources.

        The others in the pass are taken to verify as many: they choose by the same rule. Taken as they are, a row among
        their many would always look cheap, and all would go on verifying too much.
        """
        if len(self._costs_us) <= candidates:
            self._tabulate(candidates)
        self._lately = max(candidates, self._lately)
        if not waits_us:
            return self._costs_us
        idle_us = self.idle_us.value + waits_us
        return [idle_us + pass_us for pass_us in self._passes_us]

    def _tabulate(self, candidates: int) -> None:
        idle_us = self.idle_us.value
        self._passes_us = self.times.by_rows(self.sessions.value, candidates + 1)
        self._costs_us = [idle_us + pass_us for pass_us in self._passes_us]
        # For rounds like the latest ones, so that one with many candidates is not paid for ever after.
        self._lately = candidates - 1

    def worth_us(self, source: str, strength: int = 0) -> float | None:
        """What a round gained by the source where others had offered something so strong, over recent sessions; None as long
        as too few such rounds are known.
        """
        mean, rounds = self._worths.get((source, strength), (0.0, 0))
        return mean if rounds >= _WORTH_KNOWN_AFTER else None

    def pauses_from_the_start(self, source: str, strength: int, margin_us: float) -> bool:
        """Whether a session begins without asking it: where it lost more than the margin, but for every eighth session, so
        that a source that has become better is found out even if all sessions are short.
        """
        worth_us = self.worth_us(source, strength)
        if worth_us is None or worth_us >= -margin_us:
            return False
        begun = self._begun[source, strength] = self._begun.get((source, strength), 0) + 1
        return begun % _TRIED_EVERY != 0

    def wait_us(self, source: str) -> float:
        """How much longer rounds are for asking it; 0 before the first."""
        wait = self._waits.get(source)
        return 0.0 if wait is None else wait.value

    def add_worth(self, source: str, wait_us: float, gained_us: float, strength: int = 0) -> None:
        """One round in which it was asked."""
        self._waits.setdefault(source, Running(_WAIT_FLOOR_US)).add(wait_us)
        mean, rounds = self._worths.get((source, strength), (0.0, 0))
        rounds = min(rounds + 1, _WORTH_MEMORY)
        self._worths[source, strength] = mean + (gained_us - mean) / rounds, rounds
