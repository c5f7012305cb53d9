"""The section of an explanation: whole, partial, damaged and hostile ones, and its charts."""

from __future__ import annotations

import json
import re
from copy import deepcopy
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from trainwright.reports.explanation_charts import (
    Bar,
    Curve,
    Dependence,
    Dots,
    bars,
    dependence,
    mark,
    shade,
    swarm,
)
from trainwright.reports.explanations import ranking
from trainwright.reports.html import write_report
from written import write_record

HOSTILE = '<script>alert("1")</script>&\x00;,'
WHOLE: dict[str, Any] = {
    "version": 1,
    "split": "test",
    "rows": 300,
    "columns": 2,
    "task": "classification",
    "target": "buys",
    "notes": ["something is left out"],
    "importance": [
        {"kind": "total_gain", "features": [{"name": "age", "value": 12.5}, {"name": "city", "value": "NaN"}]}
    ],
    "permutation": {
        "metric": "roc_auc",
        "mode": "max",
        "baseline": 0.91,
        "rows": 300,
        "repeats": 5,
        "features": [
            {"name": "age", "mean": 0.25, "std": 0.0125},
            {"name": "city", "mean": -0.001, "std": 0.002},
        ],
    },
    "shap": {
        "explainer": "tree",
        "unit": "log-odds",
        "rows": 4,
        "background": 0,
        "gap": 1e-7,
        "outputs": ["yes"],
        "features": [
            {"name": "age", "mean": 1.5, "by_output": [1.5]},
            {"name": "city", "mean": 0.5, "by_output": [0.5]},
        ],
        "swarms": [
            {
                "output": "yes",
                "features": [
                    {
                        "name": "age",
                        "shap": [-1.0, 0.0, 1.0, 2.0],
                        "rank": [0.0, 0.33, None, 1.0],
                        "correlation": 0.95,
                    },
                    {"name": "city", "shap": [0.5, 0.5, 0.5, 0.5], "rank": None, "correlation": None},
                ],
            }
        ],
    },
    "dependence": [
        {
            "name": "age",
            "kind": "number",
            "grid": [20.0, 40.0, 60.0],
            "outputs": [
                {"name": "yes", "mean": [0.1, 0.5, 0.9], "low": [0.0, 0.4, 0.8], "high": [0.2, 0.6, 1.0]}
            ],
        },
        {
            "name": "city",
            "kind": "category",
            "grid": ["Oslo", "Rome"],
            "outputs": [{"name": "yes", "mean": [0.25, 0.75], "low": [0.2, 0.7], "high": [0.3, 0.8]}],
        },
    ],
}


class Page(HTMLParser):
    """Checks that tags nest, and collects words, scripts and the inline pictures."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.scripts = 0
        self.words: list[str] = []
        self.feed(source)
        assert self.open == []
        self.text = re.sub(r"\s+", " ", " ".join(self.words))
        self.pictures = [
            ElementTree.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", source, re.DOTALL)
        ]

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.scripts += tag == "script"
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        pass

    def handle_data(self, data: str) -> None:
        if not {"script", "style"} & set(self.open):
            self.words.append(data)


def page(folder: Path, explanation: Any) -> Page:
    (folder / "evaluation").mkdir(exist_ok=True)
    if explanation is not None:
        path = folder / "evaluation" / "explanation.json"
        if isinstance(explanation, str):
            path.write_text(explanation)
        else:
            write_record(path, explanation)
    return Page(write_report(folder).read_text(encoding="utf-8"))


def parsed(svg: str) -> ElementTree.Element:
    root = ElementTree.fromstring(svg)
    places = [value for node in root.iter() for key, value in node.items() if key in ("d", "x", "y", "width")]
    assert not re.search(r"(nan|inf)\b", " ".join(places))
    return root


def texts(root: ElementTree.Element, kind: str) -> list[str]:
    return [
        "".join(node.itertext()) for node in root.iter("text") if kind in (node.get("class") or "").split()
    ]


def test_a_whole_explanation_is_shown(tmp_path):
    shown = page(tmp_path, WHOLE)
    for fact in (
        "What the model looks at",
        "300 rows of the test split",
        "Something is left out.",
        "How much worse the roc auc gets when a column is shuffled",
        "Unshuffled it is 0.9100.",
        "drop of roc auc",
        "log-odds of yes on average over 4 rows; SHAP values, exact for these trees",
        "adds to the log-odds of yes",
        "+0.95",
        "The probability of yes, on average over the rows",
        "Oslo",
        "The library's own: total gain",
    ):
        assert fact in shown.text, fact
    assert "could not be drawn" not in shown.text
    assert "Mean |SHAP| of each output" not in shown.text
    assert shown.scripts == 1


def test_no_explanation_no_section(tmp_path):
    assert "What the model looks at" not in page(tmp_path, None).text


def test_notes_alone_are_shown(tmp_path):
    nothing = {"importance": [], "permutation": None, "shap": None, "dependence": [], "rows": 0, "columns": 0}
    shown = page(
        tmp_path,
        WHOLE
        | nothing
        | {"notes": ["samples of shape (1, 8, 8) have no columns: only tabular data can be explained"]},
    )
    assert "Samples of shape (1, 8, 8) have no columns" in shown.text
    assert "Partial dependence" not in shown.text


def several() -> dict[str, Any]:
    """An explanation of three classes."""
    made = deepcopy(WHOLE)
    made["shap"] |= {
        "outputs": ["a", "b", "c"],
        "explainer": "permutation",
        "background": 100,
        "unit": "probability",
    }
    for row in made["shap"]["features"]:
        row["by_output"] = [0.1, 0.2, 0.9]
    for row in made["dependence"]:
        row["outputs"] = [row["outputs"][0] | {"name": name} for name in ("a", "b", "c")]
    return made


def test_several_classes_are_shown_together(tmp_path):
    shown = page(tmp_path, several())
    assert "Mean |SHAP| of each output: probability" in shown.text
    assert "4 rows, and over the classes; SHAP values, sampled against 100 rows" in shown.text
    assert "SHAP values: yes" in shown.text
    assert "The probability, on average over the rows" in shown.text
    ends = [text for root in shown.pictures for text in texts(root, "end")]
    assert ends == ["a", "b", "c"]


def test_a_regression_is_explained_in_the_words_of_its_target(tmp_path):
    made = deepcopy(WHOLE) | {"task": "regression", "target": "price"}
    made["shap"] |= {"outputs": ["price"], "unit": "value"}
    made["permutation"] |= {"metric": "rmse", "mode": "min"}
    for row in made["dependence"]:
        row["outputs"][0]["name"] = "price"
    shown = page(tmp_path, made)
    assert "moves the price on average" in shown.text
    assert "rise of rmse" in shown.text
    assert "The predicted price, on average" in shown.text


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"version": 2}', json.dumps(WHOLE | {"shap": 3})])
def test_a_damaged_file_costs_its_section_only(tmp_path, content):
    shown = page(tmp_path, content)
    assert "explanations: could not be drawn" in shown.text
    assert "Repeat this run" in shown.text


def test_names_from_outside_stay_text(tmp_path):
    text = json.dumps(several()).replace('"age"', json.dumps(HOSTILE)).replace('"a"', json.dumps(HOSTILE))
    text = text.replace('"Oslo"', json.dumps(HOSTILE)).replace('"total_gain"', json.dumps(HOSTILE))
    shown = page(tmp_path, json.loads(text))
    assert shown.scripts == 1
    assert '<script>alert("1")' in shown.text
    assert "could not be drawn" not in shown.text


def test_what_is_told_under_the_pointer_can_be_read_back(tmp_path):
    shown = page(tmp_path, WHOLE)
    (root,) = [root for root in shown.pictures if root.get("data-x")]
    (line,) = [node for node in root.iter("path") if node.get("data-points")]
    points = [point.split("|") for point in line.get("data-points").split(";")]
    assert root.get("data-x") == "age"
    assert [point[1:] for point in points] == [["20", "0.1000"], ["40", "0.5000"], ["60", "0.9000"]]


def test_only_the_first_bars_are_drawn(tmp_path):
    made = deepcopy(WHOLE)
    made["permutation"]["features"] = [
        {"name": f"pixel {i}", "mean": 1.0 / (i + 1), "std": 0.0} for i in range(40)
    ]
    shown = page(tmp_path, made | {"columns": 64})
    assert "pixel 14" in shown.text
    assert "pixel 15" not in shown.text
    assert "The first 15 of 64 columns." in shown.text


def test_bars_show_value_and_error():
    root = parsed(bars([Bar("a", 2.0, 0.5), Bar("b" * 40, -1.0)], "Importance", "gain"))
    assert root.find("title").text == "Importance"
    assert root.find("desc").text.startswith("gain: a 2.000;")
    assert texts(root, "value") == ["2.000", "-1.000"]
    counts = bars([Bar("a", 12.0), Bar("b", 0.0)], "Importance", "split")
    assert texts(parsed(counts), "value") == ["12", "0"]
    assert [group.find("title").text for group in root.iter("g")] == [
        "a: 2.000 ± 0.5000",
        f"{'b' * 40}: -1.000",
    ]
    first, second = root.iter("rect")
    zero = float(first.get("x"))
    assert float(second.get("x")) + float(second.get("width")) == pytest.approx(zero, abs=0.2)
    assert float(first.get("width")) == pytest.approx(2 * float(second.get("width")), abs=0.3)


@pytest.mark.parametrize("values", [[], [0.0, 0.0], [np.nan, np.inf], [1e300, -1e300], [1e-300], [5.0, 5.0]])
def test_odd_values_still_make_charts(values):
    parsed(bars([Bar(str(i), value) for i, value in enumerate(values)], "odd", "x"))
    points = np.array(values, np.float64)
    parsed(swarm([Dots("a", points, np.zeros(len(points)))], "odd", "x"))


def test_a_swarm_shades_by_value_and_moves_dense_points_apart():
    values = np.concatenate([np.zeros(50), np.linspace(-1, 1, 5)])
    shades = np.concatenate([np.full(50, np.nan), [0.0, 0.3, 0.5, 0.7, 1.0]])
    root = parsed(swarm([Dots("age", values, shades, -0.8)], "SHAP", "adds"))
    dots = {
        node.get("class"): node.get("d") for node in root.iter("path") if node.get("class").startswith("dot")
    }
    assert set(dots) == {"dot", "dot s0", "dot s1", "dot s2", "dot s3", "dot s4"}
    heights = [float(y) for _, y in re.findall(r"M([\d.]+) ([\d.]+)", dots["dot"])]
    assert len(heights) == 50
    assert 8 < max(heights) - min(heights) <= 22
    assert "high values lower it" in root.find("desc").text
    assert texts(root, "value") == ["−0.80"]


def test_a_curve_has_its_band_and_where_the_values_are():
    curve = Curve(np.array([0.0, 1.0]), np.array([-1.0, 0.5]), np.array([0.5, 1.5]))
    root = parsed(
        dependence(Dependence("age", [20.0, 60.0], False, [curve], ["yes"]), (-1.0, 1.5), "probability")
    )
    assert [node.get("class") for node in root.iter("path") if "val" in node.get("class", "")] == [
        "band val",
        "line val",
    ]
    assert any(node.get("class") == "rug" for node in root.iter("path"))
    assert root.find("desc").text == "yes: from 0.000 to 1.000."


def test_categories_have_a_mark_for_each_output():
    curves = [Curve(*(np.array(values) for values in ([0.1, 0.2], [0.0, 0.1], [0.2, 0.3]))) for _ in range(4)]
    root = parsed(
        dependence(
            Dependence("city", ["Oslo", HOSTILE], True, curves, list("abcd")), (0.0, 1.0), "probability"
        )
    )
    marks = [node.get("class") for node in root.iter("path") if node.get("class", "").startswith("mark")]
    assert sorted(set(marks)) == ["mark fourth", "mark other", "mark train", "mark val"]
    assert len(marks) == 8
    parsed(mark("val"))
    parsed(shade(0))


def test_columns_are_ranked_by_the_measures_that_are_there():
    assert ranking(WHOLE) == [("age", 0.25, 1.5), ("city", -0.001, 0.5)]
    assert ranking(WHOLE | {"shap": None}) == [("age", 0.25, None), ("city", -0.001, None)]
    assert ranking(WHOLE | {"permutation": None}) == [("age", None, 1.5), ("city", None, 0.5)]
    assert ranking(WHOLE | {"permutation": None, "shap": None}) == []
