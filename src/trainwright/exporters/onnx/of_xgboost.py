"""Boosters of XGBoost in ONNX."""

from __future__ import annotations

from trainwright.exporters.onnx.graph import Graph, Value
from trainwright.exporters.onnx.trees import add_ensemble
from trainwright.exporters.trees import xgboost
from trainwright.frameworks.base import Model
from trainwright.types import DataInfo


def add_model(graph: Graph, model: Model, info: DataInfo, features: Value) -> Value:
    """Add a booster, and return its predictions, (rows, outputs) float64.

    Raises:
        InputError: It is linear.
    """
    return add_ensemble(graph, xgboost.ensemble_of(model), info, features)
