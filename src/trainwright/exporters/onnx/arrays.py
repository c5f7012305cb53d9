"""The first nodes of a model of ONNX that takes images, tokens or other arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from onnx import TensorProto, helper

from trainwright.datasets.images.preparation import ImagePreparation
from trainwright.exporters.base import Input
from trainwright.exporters.onnx.graph import Graph, Value
from trainwright.inference.predictor import Predictor
from trainwright.types import FEATURES, INPUT_IDS

LENGTH = "length"  # the name of the axis of tokens, of any number up to that of training


def add_inputs(
    graph: Graph, predictor: Predictor, inputs: Sequence[Input], *, any_length: bool
) -> Mapping[str, Value]:
    """Add the inputs, and return the arrays that the model is called with, by name.

    Args:
        graph: The graph.
        predictor: The model of a run.
        inputs: The inputs.
        any_length: Whether rows of tokens may be shorter than in training.
    """
    if isinstance(predictor.preparation, ImagePreparation):
        (image,) = inputs
        pixels = graph.input(image.name, TensorProto.UINT8, image.shape)
        return {FEATURES: _scaled(graph, pixels, predictor.preparation)}
    return {
        one.name: graph.input(
            one.name,
            helper.np_dtype_to_tensor_dtype(np.dtype(one.dtype)),
            [LENGTH] if any_length else one.shape,
        )
        for one in inputs
    }


def takes_tokens(inputs: Sequence[Input]) -> bool:
    """Return whether all inputs are rows of tokens of one length, (rows, length)."""
    names = [one.name for one in inputs]
    return INPUT_IDS in names and len({tuple(one.shape) for one in inputs if len(one.shape) == 1}) == 1


def _scaled(graph: Graph, pixels: Value, preparation: ImagePreparation) -> Value:
    """Return images (rows, height, width, channels) uint8 as (rows, channels, height, width) float32."""
    planes = graph.add("Transpose", graph.cast(pixels, TensorProto.FLOAT), perm=[0, 3, 1, 2])
    floats = graph.add("Div", planes, graph.constant(np.float32(255)))
    mean, std = preparation.scaling
    if mean is None or std is None:
        return floats
    means, stds = (np.array(one, np.float32)[:, None, None] for one in (mean, std))
    return graph.add("Div", graph.add("Sub", floats, graph.constant(means)), graph.constant(stds))
