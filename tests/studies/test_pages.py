"""The pages of studies: well-formed, whole even where the study is not, and safe with odd names."""

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from trainwright.records.study_results import BenchmarkResult, CrossValidationResult
from trainwright.reports.studies import benchmark_rows, markdown_table, metric_rows, write_report
from trainwright.reports.study_charts import Point, Spread, dot_plot, point_plot, trade_off
from trainwright.studies.ranking import COLUMNS
from written import write_record

ODD = "<script>alert('|')</script>"


def row(rank: int | None, model: str, mean: Any = 0.9, **more: Any) -> dict[str, Any]:
    nothing = dict.fromkeys([*COLUMNS, "test", "effect", "effect_low", "effect_high", "untested"])
    cost = {
        "train_seconds": 0.5 * (rank or 1),
        "model_bytes": 2048,
        "one_row_ms": 0.5,
        "rows_per_second": 1e6,
    }
    found = {
        "rank": rank,
        "model": model,
        "metric": "test_f1",
        "values": [mean, mean],
        "mean": mean,
        "std": 0.01,
        **cost,
    }
    return {**nothing, **found, "runs": [f"run-{model}"], **more}


def study(
    folder: Path, kind: str, result: dict[str, Any] | None, state: str = "completed", **more: Any
) -> str:
    runs = [{"label": {"fold": 0}, "run_id": "run-0"}]
    named = {"study_id": folder.name, "created": 0.0}
    described = {**named, "kind": kind, "experiment": "odd <names>", "status": state, "runs": runs, **more}
    write_record(folder / "study.json", described)
    if result is not None:
        write_record(folder / "result.json", result)
    return write_report(folder).read_text(encoding="utf-8")


def charts(page: str) -> list[ElementTree.Element]:
    return [
        ElementTree.fromstring(found) for found in re.findall(r"<svg class=\"chart.*?</svg>", page, re.DOTALL)
    ]


def test_the_page_of_a_benchmark_names_its_models_and_what_failed(tmp_path: Path) -> None:
    models = [
        row(1, "best"),
        row(2, ODD, "NaN", p_value=0.01, p_adjusted=0.02),
        row(3, "odd", 0.7, untested="other rows"),
    ]
    failed = {**row(None, "gone", None), "values": [], "runs": [], "error": "not installed: <b>"}
    page = study(tmp_path, "benchmark", {"folds": 2, "models": [*models, failed]}, "failed")
    assert "<script>alert" not in page
    assert "not installed: &lt;b&gt;" in page
    assert "odd: not tested against the best: other rows" in page
    assert "1 of 2" in page  # significantly worse
    assert "models worse than the best by more than chance, p &lt; 0.05, Holm's method over all pairs" in (
        page.replace("&#39;", "'")
    )
    assert [chart.attrib["class"] for chart in charts(page)] == ["chart spread", "chart trade"]
    assert "odd &lt;names&gt;" in page


def test_a_benchmark_of_one_model_and_of_none(tmp_path: Path) -> None:
    page = study(tmp_path, "benchmark", {"folds": None, "models": [row(1, "alone", values=[0.9], std=None)]})
    assert "test split, without folds" in page
    assert "<th>metric</th>" not in page  # it is the same in all rows
    assert ">std</th>" not in page  # of one value
    assert "loss</th>" in page or "accuracy</th>" in page or "F1</th>" in page
    page = study(
        tmp_path, "benchmark", {"folds": None, "models": [{**row(None, "gone"), "error": "no"}]}, "failed"
    )
    assert not charts(page)


@pytest.mark.parametrize(
    ("p_adjusted", "size", "is_told"), [(0.4, 900, True), (0.4, 9000, False), (0.01, 900, False)]
)
def test_a_smaller_model_that_is_as_good_is_named(
    p_adjusted: float, size: int, is_told: bool, tmp_path: Path
) -> None:
    other = row(2, "line", 0.89, p_adjusted=p_adjusted, model_bytes=size)
    page = study(tmp_path, "benchmark", {"folds": 2, "models": [row(1, "trees"), other]})
    assert ("Use the simpler one: line is smaller, and as good within the noise." in page) == is_told


@pytest.mark.parametrize(("count", "ticks"), [(3, ["0", "1", "2"]), (2, ["0", "1"])])
def test_numbers_of_trials_have_whole_ticks(count: int, ticks: list[str]) -> None:
    svg = point_plot([Point(str(i), float(i), 0.5 + i) for i in range(count)], "title", ("trial", "loss"))
    root = ElementTree.fromstring(svg)
    found = [
        one.text
        for one in root.iter("text")
        if one.get("text-anchor") == "middle" and one.get("class") == "tick"
    ]
    assert found == ticks


def test_equal_models_are_the_best_together(tmp_path: Path) -> None:
    page = study(
        tmp_path,
        "benchmark",
        {"folds": 2, "models": [row(1, "one"), row(1, "other", p_adjusted=1.0), row(3, "last", 0.7)]},
    )
    assert "of one and 1 more, the best" in page


def test_a_cross_validation_with_values_that_are_not_finite(tmp_path: Path) -> None:
    spread = {"mean": "NaN", "std": "NaN", "low": "NaN", "high": "NaN"}
    folds = [
        {
            "fold": i,
            "run_id": f"run-{i}",
            "rows": {"train": 9, "test": 3},
            "metrics": {"test_r2": value},
            "train_seconds": 1.0,
        }
        for i, value in enumerate([0.5, "NaN"])
    ]
    page = study(
        tmp_path, "cv", {"metrics": {"test_r2": spread}, "folds": folds, "rows": 6, "train_seconds": 2.0}
    )
    (chart,) = charts(page)
    assert "fold 0: 0.5000" in "".join(chart.itertext())
    assert "../run-1/report.html" in page


@pytest.mark.parametrize("state", ["running", "preempted", "failed"])
def test_a_study_without_a_result_has_a_page(tmp_path: Path, state: str) -> None:
    page = study(tmp_path, "cv", None, state, error="no & more" if state == "failed" else None)
    assert ("no &amp; more" in page) == (state == "failed")
    assert "../run-0/report.html" in page


def test_a_page_is_made_of_damaged_records(tmp_path: Path) -> None:
    (tmp_path / "study.json").write_text("{", encoding="utf-8")
    assert "unknown" in write_report(tmp_path).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("kind", "result"), [("cv", {"folds": [1]}), ("benchmark", {"models": [{"rank": 1}]})]
)
def test_a_page_is_made_of_a_damaged_result(kind: str, result: dict[str, Any], tmp_path: Path) -> None:
    assert "../run-0/report.html" in study(tmp_path, kind, result)


def test_tables_have_a_row_for_each_model() -> None:
    given = [row(1, "best"), row(2, ODD, p_adjusted=0.0345), {**row(None, "gone"), "error": "no"}]
    models = BenchmarkResult.of({"models": given}).models
    shown = benchmark_rows(models)
    assert shown[0] == [
        "1",
        "best",
        "test_f1",
        "0.9000",
        "0.01000",
        "best",
        "0.5000",
        "2.000",
        "0.5000",
        "1,000,000",
    ]
    assert shown[1][5] == "0.03450"
    assert shown[2][:3] == ["", "gone", "failed"]
    assert "alert('\\|')" in markdown_table(models)
    result = {"metrics": {"test_f1": {"mean": 0.5, "std": 0.1, "low": 0.4, "high": 0.6}}}
    assert metric_rows(CrossValidationResult.of(result).metrics) == [
        ["test_f1", "0.5000", "0.1000", "0.4000 to 0.6000"]
    ]


def test_a_chart_of_nothing_is_a_chart() -> None:
    for empty in (
        dot_plot([], "t", "x"),
        trade_off([], "t", ("x", "y")),
        dot_plot([Spread("a", [], float("nan"))], "t", "x"),
    ):
        assert ElementTree.fromstring(empty).tag == "svg"
    points = [Point("a", 0.0, 0.5), Point("b", 1.0, float("nan")), Point("c & d", 2.0, 0.7)]
    drawn = ElementTree.fromstring(trade_off(points, "t", ("x", "y")))
    assert [text.text for text in drawn.iter("text") if text.attrib["class"] == "end"] == ["c & d"]


def test_a_name_at_the_right_edge_ends_within_the_chart() -> None:
    points = [Point("quick", 1.0, 0.5), Point("logistic_regression", 6.0, 0.7)]
    drawn = ElementTree.fromstring(trade_off(points, "t", ("x", "y")))
    anchors = {
        text.text: text.get("text-anchor") for text in drawn.iter("text") if text.get("class") == "end"
    }
    assert anchors == {"quick": None, "logistic_regression": "end"}
