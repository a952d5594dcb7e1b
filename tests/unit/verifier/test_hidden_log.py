"""The log of hidden rows: what a round will commit is copied once, behind what is kept."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from verifier.hidden_log import HiddenLog

TAPS = ("a", "b")


def block(first: float) -> dict[str, np.ndarray]:
    """Rows first, first + 1, ... of three numbers, within wider ones as a pass gives them."""
    return {tap: np.full((5, 8), first, np.float32)[:, :3] + np.arange(5, dtype=np.float32)[:, None] for tap in TAPS}


@pytest.mark.parametrize("rows", [(0,), (0, 1, 2), (0, 2, 3), range(5)])
def test_picked_rows_are_the_next_of_the_log_once_they_are_appended(rows: tuple[int, ...]) -> None:
    log = HiddenLog(TAPS, 12, 3)
    log.append(log.pick(block(10.0), (0, 1)))
    picked = log.pick({tap: torch.from_numpy(array) for tap, array in block(20.0).items()}, rows)
    assert len(log) == 2
    assert (picked.start, picked.count) == (2, len(rows))
    log.append(picked)
    kept = log.export(0, len(log))
    for tap in TAPS:
        assert kept.taps[tap][:, 0].tolist() == [10.0, 11.0, *[20.0 + row for row in rows]]
        assert np.array_equal(picked.taps[tap], kept.taps[tap][2:])


def test_rows_that_were_picked_but_not_committed_give_way_and_those_handed_out_stay() -> None:
    log = HiddenLog(TAPS, 8, 3)
    handed_out = log.pick(block(1.0), (0, 1))
    log.append(handed_out)
    before = handed_out.taps["a"].copy()
    log.pick(block(50.0), (0, 1, 2))
    log.append(log.pick(block(7.0), (0, 3)))
    assert log.export(2, 4).taps["b"][:, 0].tolist() == [7.0, 10.0]
    assert np.array_equal(handed_out.taps["a"], before)


def test_another_logs_first_rows_are_copied() -> None:
    donor, log = HiddenLog(TAPS, 8, 3), HiddenLog(("b",), 8, 3)
    donor.append(donor.pick(block(4.0), (0, 1, 2)))
    log.take_over(donor.start(2))
    donor.start(3).taps["b"][:] = 0.0
    assert log.export(0, 2).taps["b"][:, 0].tolist() == [4.0, 5.0]
    assert len(log) == 2
