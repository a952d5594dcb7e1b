"""Charts: the points are where the numbers say."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from contracts.errors import InvalidArgument
from services.charts import Series, line_chart, write_line_chart

SVG = "{http://www.w3.org/2000/svg}"


def points_of(chart: str) -> list[list[tuple[float, float]]]:
    lines = ElementTree.fromstring(chart).iter(f"{SVG}polyline")
    return [[tuple(map(float, pair.split(","))) for pair in line.attrib["points"].split()] for line in lines]  # type: ignore[misc]


def test_a_chart_is_well_formed_and_escapes_what_it_is_given() -> None:
    chart = line_chart("a < b & c", "x", "y", [Series('"quoted" <s>', [1, 2], [3, 4])])
    texts = [element.text for element in ElementTree.fromstring(chart).iter(f"{SVG}text")]
    assert "a < b & c" in texts
    assert '"quoted" <s>' in texts


def test_points_are_placed_in_proportion() -> None:
    chart = line_chart("t", "x", "y", [Series("s", [0, 5, 10], [0, 1, 2]), Series("u", [10], [1])])
    first, second = points_of(chart)
    (x0, y0), (x1, y1), (x2, y2) = first
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.2)
    assert y0 - y1 == pytest.approx(y1 - y2, abs=0.2)
    assert y0 > y2
    assert second == [(x2, y1)]


@pytest.mark.parametrize("values", [[3.0], [0.0], [-2.0, 7.3], [1e-6, 3e-6], [1234.0, 99999.0], [5.0, 5.0]])
def test_axes_enclose_every_point(values: list[float]) -> None:
    chart = line_chart("t", "x", "y", [Series("s", values, values)])
    for x, y in points_of(chart)[0]:
        assert 64 <= x <= 720 - 176
        assert 40 <= y <= 420 - 52
    assert len(re.findall("<circle", chart)) == len(values)


def test_nothing_and_what_is_not_finite_cannot_be_drawn(tmp_path: Path) -> None:
    for series in ([], [Series("s", [1.0], [float("nan")])]):
        with pytest.raises(InvalidArgument, match="series"):
            write_line_chart(tmp_path / "deep" / "c.svg", "t", "x", "y", series)
    assert not (tmp_path / "deep").exists()
    write_line_chart(tmp_path / "deep" / "c.svg", "t", "x", "y", [Series("s", [1], [1])])
    ElementTree.parse(tmp_path / "deep" / "c.svg")
