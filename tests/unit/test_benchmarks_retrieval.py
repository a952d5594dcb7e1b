"""What the retrieval benchmark's corpus is made of, and how it judges growth."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from benchmarks import retrieval_text
from benchmarks.retrieval_growth import over_log

SIZES = (10**5, 10**6, 10**7, 10**8)


def lines(first: int, last: int) -> str:
    return "\n".join(f"    the statement with the number {number}" for number in range(first, last))


def test_a_text_of_whose_lines_half_have_occurred_is_left_out() -> None:
    texts = [lines(0, 10), lines(0, 10), lines(5, 15), lines(14, 30)]
    assert list(retrieval_text.distinct(texts)) == [lines(0, 10), lines(14, 30)]


def test_lines_of_a_text_that_was_left_out_have_occurred_too() -> None:
    assert list(retrieval_text.distinct([lines(0, 10), lines(3, 13), lines(10, 13)])) == [lines(0, 10)]


def test_a_text_of_short_lines_alone_is_left_out() -> None:
    assert list(retrieval_text.distinct(["a\nb\nc"])) == []


def test_documents_come_in_an_order_that_no_folder_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        for number in range(50):
            (tmp_path / folder / f"{number}.py").write_text(lines(number, number + 3))
    (tmp_path / "a" / "picture.png").write_bytes(b"\x89PNG")
    monkeypatch.setattr(retrieval_text, "roots", lambda: [tmp_path])
    found = retrieval_text.files()
    assert len(found) == 100
    assert found == retrieval_text.files()
    assert 10 < sum(path.parent.name == "a" for path in found[:50]) < 40


@pytest.mark.parametrize(("start", "slope"), [(3.0, 2.0), (50.0, 0.0)])
def test_a_logarithm_grows_as_a_logarithm(start: float, slope: float) -> None:
    assert over_log(SIZES, [start + slope * math.log(size) for size in SIZES]) == pytest.approx(1.0)


def test_a_power_grows_faster_than_a_logarithm() -> None:
    assert over_log(SIZES, [size**0.3 for size in SIZES]) > 1.4


def test_what_levels_off_grows_slower_than_a_logarithm() -> None:
    assert over_log(SIZES, [10.0, 20.0, 25.0, 26.0]) < 0.9
