"""The last nodes of a model of ONNX: its outputs in the target's unit, and the labels of classes."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from trainwright.exporters.base import class_axis, names_classes
from trainwright.exporters.onnx.arrays import LENGTH
from trainwright.exporters.onnx.graph import Graph, Value
from trainwright.plugins import task_for
from trainwright.tasks.support.transforms import TargetTransform, transform_of
from trainwright.types import DataInfo


def add_outputs(graph: Graph, outputs: Value, info: DataInfo, *, any_length: bool = False) -> None:
    """Add the outputs: `label` (or `mask`) and `probabilities`, these alone, `prediction`, or `logits`.

    Args:
        graph: The graph.
        outputs: What the model predicts, (rows, classes), (rows, labels) or (rows, targets); of tokens (rows,
            length, classes), of pixels (rows, classes, height, width).
        info: The description of the data.
        any_length: Whether the axis of tokens has any length.
    """
    task = task_for(info)
    shape: list[int | str] = list(task.output_shape)
    if any_length and (task.has_inner_labels or task.generates_text):
        shape[0] = LENGTH
    if task.generates_text:
        graph.output(graph.cast(outputs, TensorProto.FLOAT), "logits", TensorProto.FLOAT, shape)
    elif names_classes(info):
        probabilities = graph.cast(outputs, TensorProto.FLOAT)
        axis = class_axis(info)
        chosen = graph.add("ArgMax", probabilities, axis=axis, keepdims=0)
        labels, dtype = (_numbers(info), TensorProto.INT64) if task.gives_masks else _labels(info)
        name = "mask" if task.gives_masks else "label"
        rest = shape[: axis - 1] + shape[axis:]
        graph.output(graph.add("Gather", graph.constant(labels), chosen), name, dtype, rest)
        shape[axis - 1] = info.outputs
        graph.output(probabilities, "probabilities", TensorProto.FLOAT, shape)
    elif task.gives_probabilities:
        graph.output(
            graph.cast(outputs, TensorProto.FLOAT), "probabilities", TensorProto.FLOAT, [info.outputs]
        )
    else:
        values = graph.add("Reshape", outputs, graph.constant([-1, info.outputs], np.int64))
        values = graph.cast(values, TensorProto.DOUBLE)
        if info.target_offset:
            values = graph.add("Add", values, graph.constant([info.target_offset], np.float64))
        if (transform := transform_of(info)) is not None:
            values = _restored(graph, values, transform)
        graph.output(values, "prediction", TensorProto.DOUBLE, [info.outputs])


def _numbers(info: DataInfo) -> np.ndarray:
    """Return the numbers that masks hold, (classes,) int64; named classes are numbered."""
    labels = info.classes or range(info.outputs)
    return np.array([one if isinstance(one, int) else i for i, one in enumerate(labels)], np.int64)


def _labels(info: DataInfo) -> tuple[np.ndarray, int]:
    """Return the labels of classes, and their dtype of `TensorProto`: numbers stay numbers."""
    labels = list(info.classes) if info.classes is not None else list(range(info.outputs))
    if all(isinstance(one, int | np.integer) and not isinstance(one, bool) for one in labels):
        return np.array(labels, np.int64), TensorProto.INT64
    if all(isinstance(one, bool | np.bool_) for one in labels):
        return np.array(labels, bool), TensorProto.BOOL
    if all(isinstance(one, int | float | np.number) for one in labels):
        return np.array(labels, np.float64), TensorProto.DOUBLE
    return np.array([str(one) for one in labels], object), TensorProto.STRING


def _restored(graph: Graph, values: Value, transform: TargetTransform) -> Value:
    """Return values, (rows, targets) float64, in the target's original units."""
    if transform.kind == "log":
        return graph.add("Exp", values)
    if transform.kind == "log1p":
        return graph.add("Sub", graph.add("Exp", values), graph.constant(1.0))
    if transform.kind == "sqrt":
        positive = graph.add("Max", values, graph.constant(0.0))
        return graph.add("Mul", positive, positive)
    if all("scale" in column for column in transform.columns):
        scales = graph.constant([[column["scale"] for column in transform.columns]], np.float64)
        means = graph.constant([[column["mean"] for column in transform.columns]], np.float64)
        return graph.add("Add", graph.add("Mul", values, scales), means)
    columns = [
        _interpolated(graph, _column(graph, values, i), column["scores"], column["values"])
        for i, column in enumerate(transform.columns)
    ]
    return columns[0] if len(columns) == 1 else graph.add("Concat", *columns, axis=1)


def _column(graph: Graph, values: Value, index: int) -> Value:
    return graph.add("Gather", values, graph.constant([index], np.int64), axis=1)


def _interpolated(graph: Graph, value: Value, xs: list[float], ys: list[float]) -> Value:
    """Return a piecewise linear function of (rows, 1) values, constant beyond its ends, as `numpy.interp`."""
    if len(xs) == 1:
        return graph.add("Add", graph.add("Mul", value, graph.constant(0.0)), graph.constant(ys[0]))
    knots, heights = np.array(xs), np.array(ys)
    slopes = np.diff(heights) / np.diff(knots)
    clipped = graph.add("Min", graph.add("Max", value, graph.constant(knots[0])), graph.constant(knots[-1]))
    inner = graph.constant(knots[1:-1][None]) if len(knots) > 2 else None
    if inner is None:
        place = graph.add("Mul", graph.cast(clipped, TensorProto.INT64), graph.constant(0, np.int64))
    else:
        above = graph.cast(graph.add("GreaterOrEqual", clipped, inner), TensorProto.INT64)
        place = graph.add("ReduceSum", above, graph.constant([1], np.int64), keepdims=1)  # (rows, 1)
    start = graph.add("Gather", graph.constant(knots[:-1]), place)
    height = graph.add("Gather", graph.constant(heights[:-1]), place)
    slope = graph.add("Gather", graph.constant(slopes), place)
    return graph.add("Add", height, graph.add("Mul", slope, graph.add("Sub", clipped, start)))
