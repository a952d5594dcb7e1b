"""Many sessions on a noisy machine: what the budget chooses stays put, alone and together, and costs next to nothing."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
import pytest

from contracts.graph import merge_by_full_prefix
from contracts.ledger import RoundLedger
from contracts.receipt import Closing, Receipt, VerifyTimings
from orchestrator.budget.adaptive import AdaptiveBudget
from orchestrator.budget.experience import Experience
from orchestrator.budget.pass_times import PassTimes
from tests.unit.orchestrator.test_orchestrator_budget import chain

OFFERED, HOLDS = 8, 0.7
IDLE_US = 2_000.0


def pass_us(rows: int) -> float:
    """Passes as measured on two cores: memory until about six rows, then arithmetic."""
    return max(16_000.0, 8_000.0 + 1_500.0 * rows)


@dataclass
class Played:
    """By tick: rows that all sessions verified, passes' true times, tokens published."""

    rows: np.ndarray
    us: np.ndarray
    tokens: np.ndarray

    @property
    def us_per_token(self) -> float:
        return float(self.us.sum() / self.tokens.sum())


def play(sessions: int, ticks: int, *, seed: int, fixed: int | None = None, noise: float = 0.08) -> Played:
    """Sessions in step: all choose, share one pass, and learn. fixed: all verify so many candidates."""
    rng = np.random.default_rng(seed)
    experience = Experience()
    budgets = [AdaptiveBudget(experience) for _ in range(sessions)]
    proposal = chain(OFFERED)
    graph = merge_by_full_prefix([proposal], budget=64)
    rows, times, tokens = [], [], []
    slow = 1.0
    for _ in range(ticks):
        # A slow spell begins or ends now and then, and some passes stall.
        slow = slow if rng.random() > 0.01 else float(rng.choice([1.0, 1.5]))
        asked = [budget.asked("lookup") for budget in budgets] if fixed is None else []
        choices = [
            budget.choose(graph, [proposal]) if yes else budget.choose(merge_by_full_prefix([], budget=64), [])
            for budget, yes in zip(budgets, asked, strict=False)
        ]
        sizes = [len(choice.graph) for choice in choices] if fixed is None else [fixed] * sessions
        held = [int(h) for h in rng.geometric(1.0 - HOLDS, sessions) - 1]
        whole = sessions + sum(sizes)
        clean = pass_us(whole) + IDLE_US
        seen = (
            pass_us(whole)
            * slow
            * float(np.exp(noise * rng.standard_normal()))
            * (5.0 if rng.random() < 0.005 else 1.0)
        )
        rows.append(sum(sizes))
        times.append(clean)
        tokens.append(sum(1 + min(size, h) for size, h in zip(sizes, held, strict=True)))
        for budget, choice, size, h in zip(budgets, choices, sizes, held, strict=False):
            accepted = min(size, h)
            share = seen * (size + 1) / whole
            receipt = Receipt(
                "s", 0, "", "", 1, 1, (7,) * accepted + (7 if h > accepted else 99,), tuple(range(accepted)), Closing.BONUS,
                timings=VerifyTimings(queue_us=seen - share, target_us=share), pass_rows=whole, pass_sessions=sessions,
            )  # fmt: skip
            ledger = RoundLedger(verify=share, queue=seen - share, other=IDLE_US, committed=accepted + 1)
            waits = {"lookup": 300.0} if choice.offered else {}
            budget.learn(choice, receipt, ledger, waits)
    return Played(np.array(rows[ticks // 3 :]), np.array(times[ticks // 3 :]), np.array(tokens[ticks // 3 :]))


def changes(played: Played) -> float:
    """The share of ticks in which the sessions together verify another number of rows than the tick before."""
    return float((np.diff(played.rows) != 0).mean())


def best_fixed(sessions: int) -> float:
    """Microseconds a token of the best choice that never changes."""
    return min(play(sessions, 300, seed=99, fixed=size).us_per_token for size in range(OFFERED + 1))


@pytest.mark.parametrize("sessions", [1, 4, 8])
def test_choices_stay_put_on_steady_text_though_times_are_noisy(sessions: int) -> None:
    played = play(sessions, 450, seed=sessions)
    assert changes(played) <= 0.15
    assert played.us_per_token <= 1.05 * best_fixed(sessions)


def test_the_claim_tells_a_budget_that_believes_its_latest_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    latest: deque[tuple[int, float]] = deque([(1, 16_000.0)], maxlen=6)

    def add(_: PassTimes, rows: int, us: float) -> None:
        latest.append((rows, us))

    def believed(_: PassTimes, rows: float) -> float:
        sizes, times = np.array(latest).T
        slope = np.polyfit(sizes, times, 1)[0] if len(set(sizes)) > 1 else 1_000.0
        return float(times.mean() + max(0.0, slope) * (rows - sizes.mean()))

    monkeypatch.setattr(PassTimes, "known", property(lambda _: len(latest) > 1))
    monkeypatch.setattr(PassTimes, "add", add)
    monkeypatch.setattr(PassTimes, "us", believed)
    assert changes(play(4, 450, seed=4)) > 0.15
