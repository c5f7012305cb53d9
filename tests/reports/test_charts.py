"""Charts are well-formed XML, say what they show, and stay small."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import numpy as np
import pytest

from trainwright.reports.charts import Line, LineChart, Marker, heat_map, line_chart, scatter, symbol
from trainwright.reports.curves import single_points

SVG = ElementTree.Element
HOSTILE = '<script>alert("1")</script>&\x00\x1b'


def parsed(svg: str) -> SVG:
    root = ElementTree.fromstring(svg)
    assert root.tag == "svg"
    assert not re.search(
        r"(nan|inf)\b",
        " ".join(value for node in root.iter() for key, value in node.items() if key in ("d", "x", "y")),
    )
    return root


def texts(root: SVG, kind: str) -> list[str]:
    return [node.text or "" for node in root.iter("text") if kind in node.get("class", "").split()]


def curve(values, kind: str = "val", name: str = "validation") -> Line:
    return Line(name, single_points(np.arange(1, len(values) + 1), np.array(values, dtype=float)), kind)


def test_a_line_chart_says_what_it_shows():
    marks = [Marker(2, "best", "best model at step 2"), Marker(3, "resume", "attempt 2")]
    root = parsed(
        line_chart(LineChart("Loss", [curve([3, 2, 1], "train", "train"), curve([3.5, 2.5, 2])], marks))
    )
    assert root.find("title").text == "Loss"
    assert "train: from 3.000 to 1.000" in root.find("desc").text
    assert "best model at step 2" in root.find("desc").text
    assert texts(root, "end") == ["train", "validation"]
    assert texts(root, "value") == ["1.000", "2.000"]
    assert [group.find("title").text for group in root.iter("g")] == ["best model at step 2", "attempt 2"]


@pytest.mark.parametrize(
    "values",
    [[], [1.0], [np.nan] * 3, [np.inf, 1, np.nan, 2], [0.0, 0.0], [1e300, 1, 2], [1e-300, 1e90], [-5, 5]],
)
@pytest.mark.parametrize("log", [None, False])
def test_odd_values_still_make_a_chart(values, log):
    parsed(line_chart(LineChart("odd", [curve(values)], [Marker(1, "stop", "stop")], log=log)))


def test_a_chart_without_lines_says_so():
    assert parsed(line_chart(LineChart("nothing", []))).find("desc").text == "no values."


def test_a_gap_where_values_are_not_finite():
    root = parsed(line_chart(LineChart("gap", [curve([1, 2, np.nan, 2, 1])])))
    line = next(node for node in root.iter("path") if "line" in node.get("class").split())
    assert line.get("d").count("M") == 2


def test_a_long_series_is_cut_short_but_keeps_its_spike():
    values = np.ones(1_000_000)
    values[500_000] = 1.5
    svg = line_chart(LineChart("long", [curve(values)]))
    assert len(svg) < 60_000
    band = next(node for node in parsed(svg).iter("path") if node.get("class") == "band val")
    assert len({point.split()[1] for point in re.findall(r"[\d.]+ [\d.]+", band.get("d"))}) > 1


def test_markers_of_one_kind_at_one_place_are_drawn_once():
    marks = [Marker(step, "event", f"event {step}") for step in range(100_000)]
    root = parsed(line_chart(LineChart("many", [curve([1, 2])], marks)))
    assert len(list(root.iter("g"))) < 100


def test_a_heat_map_holds_counts_and_names_the_worst_confusion():
    root = parsed(heat_map(["cat", "dog"], [[5, 2], [0, 7]], "Confusion"))
    assert texts(root, "count") == ["5", "2", "7"]
    assert (
        root.find("desc").text
        == "12 of 14 rows lie on the diagonal. Most often confused: cat taken for dog 2 times."
    )
    assert "2 rows of cat predicted as dog (28.6%)" in [node.text for node in root.iter("title")]


@pytest.mark.parametrize("count", [1, 2, 17, 40, 200])
def test_heat_maps_of_any_size(count):
    matrix = np.eye(count, dtype=int) * 12345
    root = parsed(heat_map([f"class {index}" for index in range(count)], matrix.tolist(), "Confusion"))
    assert float(root.get("viewBox").split()[2]) <= 1100
    assert "Nothing is confused." in root.find("desc").text


def test_a_scatter_plot_of_many_points_stays_small():
    rng = np.random.default_rng(0)
    true = rng.normal(size=2000)
    svg = scatter(true.tolist(), (true + rng.normal(size=2000)).tolist(), "Predicted against true", "price")
    assert len(svg) < 60_000
    assert texts(parsed(svg), "label") == ["true price", "predicted price"]
    parsed(scatter([], [], "none", "y"))
    parsed(scatter([1.0, float("nan")], [1.0, 2.0], "one", "y"))


def test_hostile_names_stay_text():
    svgs = [
        line_chart(
            LineChart(
                HOSTILE,
                [curve([1, 2], name=HOSTILE), curve([2, 3], name=HOSTILE)],
                [Marker(1, HOSTILE, HOSTILE)],
            )
        ),
        heat_map([HOSTILE, "b"], [[1, 1], [1, 1]], HOSTILE),
        scatter([1, 2], [1, 2], HOSTILE, HOSTILE),
    ]
    for svg in svgs:
        assert "<script" not in svg
        assert list(parsed(svg).iter("script")) == []
        shown = "".join(parsed(svg).itertext())
        assert '<script>alert("1")</script>&' in shown, "the name is not shown at all"


def test_symbols_differ():
    kinds = ("best", "resume", "drop", "stop", "event")
    assert len({re.search(r' d="([^"]*)"', symbol(kind)).group(1) for kind in kinds}) == len(kinds)
