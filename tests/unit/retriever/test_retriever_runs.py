"""The bar that a walk over samples sets: how frequent a node must be to be among the budget's."""

from __future__ import annotations

import numpy as np
import pytest

from retriever import kernel_runs


def runs(counts: list[int], levels: list[int], total: int) -> np.ndarray:
    """Nodes below one root, each of that many occurrences and levels."""
    nodes = np.zeros((len(counts) + 1, kernel_runs.RUN_COLUMNS), np.int32)
    nodes[0, kernel_runs.COUNT], nodes[0, kernel_runs.ABOVE] = total, -1
    nodes[1:, kernel_runs.COUNT], nodes[1:, kernel_runs.DEPTH] = counts, levels
    return nodes


@pytest.mark.parametrize("total", [40, 1_024, 1_025, 70_000, 2**31 - 1])
@pytest.mark.parametrize("budget", [1, 7, 64, 400])
def test_it_is_the_count_that_the_budget_s_last_node_has(total: int, budget: int) -> None:
    generator = np.random.default_rng(total % 97 + budget)
    counts = (total * generator.random(200) ** 6).astype(np.int64).tolist()
    levels = generator.integers(1, 4, 200).tolist()
    ranked = sorted((n for n, times in zip(counts, levels, strict=True) for _ in range(times)), reverse=True)
    for least in (1, ranked[budget // 2], ranked[min(budget, len(ranked)) - 1] + 1, total):
        reached = [count for count in ranked if count >= least]
        expected = reached[budget - 1] if len(reached) >= budget else 0
        assert kernel_runs.bar(runs(counts, levels, total), budget, least) == expected
