"""The reader's preparation of raw columns, compared with that of the run, and what it makes of outputs."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trainwright import api
from trainwright.datasets.tables.preparation import TabularPreparation
from trainwright.exporters.certificates.columns import features_of, open_prepared, predictions_of, scaled
from trainwright.exporters.certificates.inputs import inputs_of
from trainwright.exporters.certificates.reader import column, differing
from trainwright.exporters.certificates.samples import edge_rows, real_rows
from trainwright.exporters.certificates.script import reader_source
from trainwright.exporters.prepared import about
from trainwright.plugins import adapter, names
from trainwright.testing.exporter_suite import write_rows

_TEXTS = ["very good and fast", "bad", "", "Good, GOOD food", "slow and bad Straße"]


def _trained(folder: Path, overrides: dict[str, Any]) -> Any:
    write_rows(folder / "rows.csv")
    lines = (folder / "rows.csv").read_text().splitlines()
    more = [f'{line},"{_TEXTS[i % len(_TEXTS)]}"' for i, line in enumerate(lines[1:])]
    (folder / "rows.csv").write_text("\n".join([f"{lines[0]},said", *more]))
    settings = {"training.max_steps": 3, "data.columns": {"said": {"type": "text"}}, **overrides}
    return api.train(
        {"data": {"type": "csv", "path": str(folder / "rows.csv"), "target": "churn"}, "model": "lightgbm"},
        overrides=[f"{key}={json.dumps(value)}" for key, value in settings.items()],
        runs_dir=folder / "runs",
        quiet=True,
    )


@pytest.mark.parametrize(
    "overrides",
    [
        {},
        {"data.encode": "onehot", "data.impute": "median"},
        {"data.encode": "ordinal", "data.impute": "most_frequent", "data.standardize": True},
        {"data.encode": "frequency", "data.standardize": True},
        {"data.encode": "target", "data.impute": "mean", "data.standardize": True},
    ],
    ids=lambda overrides: overrides.get("data.encode", "own"),
)
def test_features_have_the_bits_of_the_run(tmp_path: Path, overrides: dict[str, Any]) -> None:
    predictor = api.load(_trained(tmp_path, overrides))
    preparation = predictor.preparation
    assert isinstance(preparation, TabularPreparation)
    inputs = inputs_of(predictor)
    known = json.loads(json.dumps(about(predictor)))
    real = real_rows(predictor.load_data(), predictor, inputs)
    assert real is not None
    for sample in (real, edge_rows(predictor, inputs)):
        np.testing.assert_array_equal(
            features_of(known, sample.feeds(inputs)), preparation.features(sample.rows), strict=True
        )


def test_missing_values_are_refused_where_training_had_none() -> None:
    known = {
        "columns": [
            {"kind": "number", "name": "age", "mean": 0.0, "scale": 1.0, "fill": None, "keep": False}
        ],
        "dtype": "float32",
    }
    with pytest.raises(ValueError, match="column 'age' has no value in row 1"):
        features_of(known, {"age": np.array([[1.0], [np.nan]])})


def test_outputs_of_tokens_and_masks() -> None:
    classes = np.array([[0.9, 0.1], [0.2, 0.8], [0.3, 0.7]], np.float32)
    known = {"gives": "classes", "axis": 2, "classes": ["O", "B"], "link": "identity"}
    assert predictions_of(known, classes[None])["label"].tolist() == [["O", "B", "B"]]
    known = {"gives": "masks", "axis": 1, "classes": [0, 7], "link": "identity"}
    pixels = classes.T.reshape(1, 2, 1, 3)  # (rows, classes, height, width)
    assert predictions_of(known, pixels)["mask"].tolist() == [[[0, 7, 7]]]


def test_colors_are_scaled() -> None:
    pixels = np.array([[[[0, 255, 51]]]], np.uint8)  # (rows, height, width, channels)
    found = scaled({"mean": [0.5, 0.5, 0.2], "std": [0.5, 0.25, 0.1]}, pixels)
    np.testing.assert_allclose(found.ravel(), [-1, 2, 0], atol=1e-6)
    assert found.shape == (1, 3, 1, 1)


def test_outputs_of_classes_and_values() -> None:
    known = {"gives": "classes", "axis": 1, "classes": ["no", "yes"], "link": "sigmoid"}
    found = predictions_of(known, np.array([0.0, 2.0]))
    np.testing.assert_allclose(found["probabilities"], [[0.5, 0.5], [0.1192029, 0.8807971]], rtol=1e-6)
    assert found["label"].tolist() == ["no", "yes"]
    values = {"gives": "values", "link": "identity", "offset": [3.0], "transform": {"kind": "sqrt"}}
    found = predictions_of(values, np.array([1.0, -4.0], np.float32))
    assert found["prediction"].tolist() == [[16.0], [0.0]]
    scaled = {"kind": "standardize", "columns": [{"mean": 10.0, "scale": 2.0}]}
    found = predictions_of({**values, "offset": [], "transform": scaled}, np.array([0.5]))
    assert found["prediction"].tolist() == [[11.0]]


def test_the_modules_of_a_reader_define_different_names() -> None:
    """They become one file."""
    for name in names("exporter"):
        if not (runtime := adapter("exporter", name).runtime):
            continue  # weights alone
        source = reader_source(runtime)
        assert "trainwright." not in source
        bound: dict[str, str] = {}
        for node in ast.parse(source).body:
            match node:
                case ast.Import() | ast.ImportFrom():
                    origin = node.module if isinstance(node, ast.ImportFrom) else ""
                    own = {alias.asname or alias.name: f"{origin}.{alias.name}" for alias in node.names}
                case ast.FunctionDef() | ast.ClassDef():
                    own = {node.name: f"line {node.lineno}"}
                case ast.Assign():
                    own = {ast.unparse(target): f"line {node.lineno}" for target in node.targets}
                case _:
                    own = {}
            for key, value in own.items():
                assert bound.setdefault(key, value) == value, f"{name}: {key}"


@pytest.mark.parametrize(
    ("cell", "reads", "value"),
    [
        ("1.234,5", {"decimal": ","}, 1234.5),
        ("$60,425", {}, 60425.0),
        ("120 m²", {"unit": "m²"}, 120.0),
        (" Ja ", {}, 1.0),
        ("n/a", {}, np.nan),
        ("-1", {"missing": [-1]}, np.nan),
    ],
)
def test_numbers_in_text(cell: str, reads: dict[str, Any], value: float) -> None:
    (found,) = column({"dtype": "float64", "reads": reads}, [cell])
    np.testing.assert_array_equal(found, [value])


@pytest.mark.parametrize(
    ("cell", "reads", "day"),
    [
        ("24.04.2002", {"order": "day first"}, "2002-04-24"),
        ("03/04/2026", {"order": "month first"}, "2026-03-04"),
        ("03/04/2026", {"order": "day first"}, "2026-04-03"),
        ("1981 Q2", {}, "1981-04-01"),
        ("20260131", {"format": "%Y%m%d"}, "2026-01-31"),
        ("1769817600", {"unit": "s"}, "2026-01-31"),
        ("2026-01-31T02:00:00+02:00", {}, "2026-01-31"),
        ("?", {}, "NaT"),
    ],
)
def test_times_in_text(cell: str, reads: dict[str, Any], day: str) -> None:
    (found,) = column({"dtype": "int64", "reads": reads}, [cell])
    assert found.astype("datetime64[us]")[0] == np.datetime64(day) or (day == "NaT" and found[0] == -(2**63))


def test_other_text_is_refused() -> None:
    with pytest.raises(ValueError, match="'many' is no number"):
        column({"dtype": "float64", "reads": {}}, ["many"])


def test_of_equally_probable_classes_either_may_be_named() -> None:
    probabilities = np.array([[0.5, 0.5], [0.2, 0.8]], np.float32)
    wanted = {"label": np.array(["a", "b"], object), "probabilities": probabilities}
    found = {"label": np.array(["b", "b"], object), "probabilities": probabilities}
    assert differing(found, wanted, ["first", "second"], 1e-5) == []
    found["label"] = np.array(["b", "a"], object)
    assert differing(found, wanted, ["first", "second"], 1e-5) == ["second: label a instead of b"]


def test_a_newer_format_of_columns_is_refused(tmp_path: Path) -> None:
    (tmp_path / "columns.json").write_text(json.dumps({"format_version": 2, "columns": None}))
    with pytest.raises(ValueError, match=r"columns.json has format 2, and this reader reads 1: use that of"):
        open_prepared(tmp_path, lambda folder, known: lambda feeds: feeds)
