"""Ranges of hidden rows: cut, joined and compared bit by bit."""

import numpy as np
import pytest

from contracts.errors import InvalidArgument
from contracts.hidden import HiddenRows, joined, rows_within

TABLE = np.random.default_rng(3).standard_normal((20, 3)).astype(np.float32)


def rows(start: int, stop: int, *taps: str) -> HiddenRows:
    return HiddenRows(start, dict.fromkeys(taps or ("a", "b"), TABLE[start:stop]))


@pytest.mark.parametrize("most_bytes", [1, 24, 25, 100, 10_000])
def test_parts_join_to_the_whole(most_bytes: int) -> None:
    parts = list(rows(2, 19).parts(most_bytes))
    assert joined(parts) == rows(2, 19)
    assert all(part.count == 1 or part.count * part.row_bytes <= most_bytes for part in parts)


def test_cuts_are_by_position() -> None:
    assert rows(5, 12).between(7, 9) == rows(7, 9)
    assert rows(5, 12).only(("b",)) == rows(5, 12, "b")
    for start, stop in ((4, 6), (6, 13), (8, 7)):
        with pytest.raises(InvalidArgument):
            rows(5, 12).between(start, stop)
    with pytest.raises(InvalidArgument, match="'c'"):
        rows(5, 12).only(("c",))


def test_the_base_goes_with_every_part_and_is_part_of_what_is_equal() -> None:
    based = rows(5, 12).based(4)
    assert based != rows(5, 12)
    assert based.based(4) is based
    assert {part.base for part in [*based.parts(25), based.between(7, 9), based.only(("b",))]} == {4}
    assert joined(list(based.parts(25))) == based
    for base in (-1, 6):
        with pytest.raises(InvalidArgument, match="outside"):
            rows(5, 12).based(base)


def test_what_does_not_follow_is_not_joined() -> None:
    for other in (rows(6, 8), rows(4, 8), rows(5, 8, "a")):
        with pytest.raises(InvalidArgument):
            joined([rows(2, 5), other])


def test_equal_means_every_bit_and_position() -> None:
    changed = TABLE[2:5].copy()
    changed[1, 1] = np.nextafter(changed[1, 1], np.float32(9))
    assert rows(2, 5, "a") != HiddenRows(2, {"a": changed})
    assert rows(2, 5, "a") != HiddenRows(3, {"a": TABLE[2:5]})
    assert rows(2, 5, "a") != rows(2, 5)
    assert hash(rows(2, 5)) == hash(rows(2, 5))


def test_ragged_rows_are_refused() -> None:
    for wrong in ({}, {"a": TABLE[:2], "b": TABLE[:3]}, {"a": TABLE[0]}, {"a": TABLE, "b": TABLE[:, 0]}):
        with pytest.raises(InvalidArgument):
            HiddenRows(0, wrong)
    with pytest.raises(InvalidArgument):
        HiddenRows(-1, {"a": TABLE})


def test_a_message_carries_at_least_one_row() -> None:
    assert [rows_within(100, size) for size in (1000, 100, 40, 0)] == [1, 1, 2, 100]
