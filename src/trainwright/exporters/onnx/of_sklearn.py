"""Estimators of scikit-learn in ONNX: trees, margins and support vectors by us, all others by skl2onnx."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import onnxruntime
from onnx import TensorProto
from sklearn.ensemble._hist_gradient_boosting.gradient_boosting import BaseHistGradientBoosting

from trainwright.errors import InputError
from trainwright.exporters.base import names_classes
from trainwright.exporters.onnx.graph import OPSET, Graph, Value
from trainwright.exporters.onnx.of_sklearn_margins import add_by_margins
from trainwright.exporters.onnx.of_sklearn_trees import add_single_trees
from trainwright.exporters.onnx.trees import add_ensemble
from trainwright.exporters.trees.sklearn import boosted
from trainwright.frameworks.base import Model
from trainwright.plugins import task_for
from trainwright.require import require
from trainwright.types import DataInfo


def add_model(graph: Graph, model: Model, info: DataInfo, features: Value) -> Value:
    """Add an estimator, and return its predictions, (rows, outputs) or (rows, 1).

    Raises:
        InputError: skl2onnx cannot convert it, it has no probabilities, or the training rows lack a class.
    """
    estimator = model.native
    if names_classes(info) and list(estimator.classes_) != list(range(info.outputs)):
        raise InputError(
            "the training rows lack a class, so that others would take its place in ONNX; export with "
            "--format sklearn"
        )
    if isinstance(estimator, BaseHistGradientBoosting):
        return add_ensemble(graph, boosted(estimator, info), info, features)
    single = graph.add("Flatten", graph.cast(features, TensorProto.FLOAT))  # as scikit-learn's trees compare
    if (outputs := add_single_trees(graph, estimator, info, single)) is not None:
        return outputs
    flat = graph.add("Flatten", graph.cast(features, TensorProto.DOUBLE))
    if (outputs := add_by_margins(graph, estimator, info, flat)) is not None:
        return outputs
    has_probabilities = hasattr(estimator, "predict_proba")
    if task_for(info).gives_probabilities and not has_probabilities:
        raise InputError(
            f"{type(estimator).__name__} has no probabilities, and what stands for them is not part of "
            "ONNX; export with --format sklearn"
        )
    converted, axes = _converted(estimator, int(np.prod(info.input_shape)), has_probabilities)
    is_double = converted.graph.input[0].type.tensor_type.elem_type == TensorProto.DOUBLE
    outputs = graph.include(converted, [flat if is_double else single])[-1]
    if axes == 3:  # (labels, rows, 2)
        ones = graph.add("Gather", outputs, graph.constant([1], np.int64), axis=2)
        by_row = graph.add("Transpose", ones, perm=[1, 0, 2])
        return graph.add("Reshape", by_row, graph.constant([-1, info.outputs], np.int64))
    return outputs


def _converted(estimator: Any, features: int, has_probabilities: bool) -> tuple[Any, int]:
    """Return an estimator as skl2onnx converts it, for features of float64 or else float32, and its rank.

    The rank is that of its last output.

    Raises:
        InputError: skl2onnx cannot convert it, or onnxruntime cannot run what it made.
    """
    skl2onnx = require("skl2onnx", "onnx")
    if getattr(estimator, "flatten_transform", False):  # of voting; predictions know nothing of it
        estimator = copy.copy(estimator)
        estimator.flatten_transform = False
    from skl2onnx.common.data_types import DoubleTensorType, FloatTensorType

    reasons = []
    for kind, dtype in ((DoubleTensorType, np.float64), (FloatTensorType, np.float32)):
        try:
            made = skl2onnx.to_onnx(
                estimator,
                initial_types=[("X", kind([None, features]))],
                target_opset={"": OPSET, "ai.onnx.ml": 3},
                options={id(estimator): {"zipmap": False}} if has_probabilities else None,
            )
            session = onnxruntime.InferenceSession(
                made.SerializeToString(), providers=["CPUExecutionProvider"]
            )
            outputs = session.run(None, {"X": np.zeros((1, features), dtype)})[-1]
            if isinstance(outputs, list):
                raise InputError("it gives a list")
            return made, outputs.ndim
        except Exception as error:
            reasons.append(str(error).strip().partition("\n")[0])
    raise InputError(
        f"skl2onnx cannot convert {type(estimator).__name__}: {reasons[0]}; export with --format sklearn"
    )
