"""Models of all frameworks in ONNX predict what their runs predict, from raw rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

import trainwright
from trainwright.datasets.tables.encoders.times import PERIODS, TimeColumn
from trainwright.datasets.tables.table import Table
from trainwright.errors import DifferentArtifactError, InputError
from trainwright.exporters.onnx import OnnxExporter
from trainwright.exporters.onnx.graph import Graph
from trainwright.exporters.onnx.preparation import NAT, add_preparation
from trainwright.testing.exporter_suite import ExporterSuite

MEDIAN = {"data.impute": "median"}


class TestOnnx(ExporterSuite):
    exporter = OnnxExporter
    form = "onnx"
    models: ClassVar[dict[str, dict[str, Any]]] = {
        "mlp": {**MEDIAN, "training.batch_size": 32},
        "lightgbm": {},
        "xgboost": {},
        "catboost": {"data.encode": "target", **MEDIAN},
        "random_forest": {},
        "hist_gradient_boosting": {},
        "logistic_regression": {"data.encode": "frequency", **MEDIAN},
        "price": {"model": "mlp", "data.target": "income", "data.target_transform": "log1p", **MEDIAN},
        "cost": {"model": "xgboost", "data.target": "income", "data.target_transform": "quantile"},
        "city": {"model": "lightgbm", "data.target": "city", "data.missing_target": "drop"},
    }

    def damage(self, path: Path) -> None:
        model = onnx.load(path)
        tensor = max(
            (one for one in model.graph.initializer if one.data_type == TensorProto.FLOAT),
            key=lambda one: np.prod(one.dims),
        )
        changed = numpy_helper.to_array(tensor).copy()
        changed.flat[0] += 0.5
        tensor.CopyFrom(numpy_helper.from_array(changed, tensor.name))
        onnx.save(model, path)

    def test_swapped_labels_are_found(
        self, run_of: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The probabilities are right, so that labels alone tell."""
        constant = Graph.constant

        def swapped(graph: Graph, values: Any, dtype: Any = None) -> str:
            labels = isinstance(values, np.ndarray) and values.tolist() == ["no", "yes"]
            return constant(graph, values[::-1] if labels else values, dtype)

        monkeypatch.setattr(Graph, "constant", swapped)
        with pytest.raises(DifferentArtifactError, match=r"label .* instead of"):
            trainwright.export(run_of("lightgbm"), tmp_path / "model.onnx")

    def test_the_column_that_differs_is_named(
        self, run_of: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ml = Graph.ml

        def unseen_is_first(graph: Graph, kind: str, *inputs: str, **attributes: Any) -> str:
            if kind == "LabelEncoder":
                attributes["default_int64"] = 2
            return ml(graph, kind, *inputs, **attributes)

        monkeypatch.setattr(Graph, "ml", unseen_is_first)
        with pytest.raises(DifferentArtifactError, match="first step that differs: column city"):
            trainwright.export(run_of("mlp"), tmp_path / "model.onnx")

    def test_what_onnx_cannot_hold_is_refused(
        self, tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A module whose code depends on the values of its inputs, say."""
        (folder / "branches.py").write_text(_BRANCHES)
        monkeypatch.syspath_prepend(str(folder))
        data = {"type": "csv", "path": "rows.csv", "target": "churn", "impute": "median"}
        config = {"data": data, "model": "branches:Branches", "training": {"max_steps": 1}}
        run = trainwright.train(config, runs_dir=folder / "runs", quiet=True)
        with pytest.raises(InputError, match="torch cannot export this model with --format onnx") as caught:
            trainwright.export(run, tmp_path / "model.onnx")
        assert "--format mlflow" in str(caught.value)
        assert len(str(caught.value).splitlines()) <= 4
        assert list(tmp_path.iterdir()) == []

    def test_a_module_that_draws_is_found(
        self, tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Dropout that is not switched off gives other predictions each time."""
        (folder / "draws.py").write_text(_DRAWS)
        monkeypatch.syspath_prepend(str(folder))
        data = {"type": "csv", "path": "rows.csv", "target": "churn", "impute": "median"}
        config = {"data": data, "model": "draws:Draws", "training": {"max_steps": 1}}
        run = trainwright.train(config, runs_dir=folder / "runs", quiet=True)
        with pytest.raises(DifferentArtifactError, match=r"that differs: layer module\.one") as caught:
            trainwright.export(run, tmp_path / "model.onnx")
        assert len(str(caught.value).splitlines()) <= 4
        assert list(tmp_path.iterdir()) == []


_BRANCHES = """
from torch import nn

class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.LazyLinear(2), nn.LazyLinear(2)

    def forward(self, features):
        first, second = self.one(features), self.two(features)
        return first if features.sum() > 0 else second
"""
_DRAWS = """
import torch
from torch import nn

class Draws(nn.Module):
    def __init__(self):
        super().__init__()
        self.one = nn.LazyLinear(2)

    def forward(self, features):
        return self.one(nn.functional.dropout(features, 0.5, training=True))
"""


def test_the_parts_of_times() -> None:
    """Of days in leap years and centuries, before 1970 too, as NumPy's calendar has them."""
    import onnxruntime

    from trainwright.datasets.tables.preparation import TabularPreparation
    from trainwright.datasets.tables.target import Target

    parts = ["days", "year", *PERIODS, *(f"{part}_{wave}" for part in PERIODS for wave in ("sin", "cos"))]
    column = TimeColumn("when", parts, [0.5] * len(parts), [2.0] * len(parts), keep=True)
    graph = Graph()
    features = add_preparation(
        graph, TabularPreparation([column], Target("y", "regression"), dtype="float64")
    )
    graph.output(features, "features", TensorProto.DOUBLE, [len(parts)])
    session = onnxruntime.InferenceSession(graph.model({}).SerializeToString())
    draws = np.random.default_rng(0).integers(-(2**52), 2**52, 5000)
    days = (
        np.arange("1896-02-25", "1904-03-05", dtype="datetime64[D]").astype("datetime64[us]").astype(np.int64)
    )
    moments = np.concatenate([draws, days, days - 1, [NAT, 0, -1]])
    expected = np.empty((len(moments), len(parts)))
    column.encode(Table({"when": moments.view("datetime64[us]")}), expected)
    (found,) = session.run(None, {"when": moments[:, None]})
    np.testing.assert_array_equal(found, expected)
