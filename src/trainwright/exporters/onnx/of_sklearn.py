"""Estimators of scikit-learn in ONNX: trees by us, all others by skl2onnx."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto
from sklearn.ensemble._hist_gradient_boosting.gradient_boosting import BaseHistGradientBoosting

from trainwright.errors import InputError
from trainwright.exporters.base import names_classes
from trainwright.exporters.onnx.graph import OPSET, Graph, Value
from trainwright.exporters.onnx.trees import add_averaged_trees, add_ensemble
from trainwright.exporters.trees.sklearn import averaged, boosted
from trainwright.frameworks.base import Model
from trainwright.plugins import task_for
from trainwright.require import require
from trainwright.types import DataInfo


def add_model(graph: Graph, model: Model, info: DataInfo, features: Value) -> Value:
    """Add an estimator, and return its predictions, (rows, outputs) or (rows, 1).

    Raises:
        InputError: skl2onnx cannot convert it, or it gives no probabilities of its classes.
    """
    estimator = model.native
    has_probabilities = hasattr(estimator, "predict_proba")
    if task_for(info).gives_probabilities and not has_probabilities:
        raise InputError(
            f"{type(estimator).__name__} has no probabilities, and what stands for them is not part of "
            "ONNX; export with --format sklearn"
        )
    if names_classes(info) and list(estimator.classes_) != list(range(info.outputs)):
        raise InputError(
            "the training rows lack a class, so that others would take its place in ONNX; export with "
            "--format sklearn"
        )
    if isinstance(estimator, BaseHistGradientBoosting):
        return add_ensemble(graph, boosted(estimator, info), info, features)
    # skl2onnx does not end where a tree has a split on missing values.
    if (trees := averaged(estimator)) is not None:
        single = graph.add("Flatten", graph.cast(features, TensorProto.FLOAT))  # as scikit-learn compares
        return add_averaged_trees(graph, trees, single)
    flat = graph.add("Flatten", graph.cast(features, TensorProto.DOUBLE))
    converted = _converted(estimator, int(np.prod(info.input_shape)), has_probabilities)
    return graph.include(converted, [flat])[-1]


def _converted(estimator: Any, features: int, has_probabilities: bool) -> Any:
    skl2onnx = require("skl2onnx", "onnx")
    from skl2onnx.common.data_types import DoubleTensorType

    try:
        return skl2onnx.to_onnx(
            estimator,
            initial_types=[("X", DoubleTensorType([None, features]))],
            target_opset={"": OPSET, "ai.onnx.ml": 3},
            options={id(estimator): {"zipmap": False}} if has_probabilities else None,
        )
    except Exception as error:
        reason = str(error).strip().partition("\n")[0]
        raise InputError(
            f"skl2onnx cannot convert {type(estimator).__name__}: {reason}; export with --format sklearn"
        ) from error
