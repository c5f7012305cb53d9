"""The built-in models; they return logits of classes, or values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from trainwright.errors import ModelError
from trainwright.require import require


def mlp(
    input_shape: Sequence[int],
    out_features: int,
    hidden: Sequence[int],
    dropout: float,
    activation: str,
    normalization: str,
) -> Any:
    """Build a multilayer perceptron, which maps (rows, ...) to (rows, out_features) float32.

    Args:
        input_shape: Shape of one sample.
        out_features: Number of outputs.
        hidden: Width of each hidden layer.
        dropout: Dropout rate after each hidden layer; 0 adds no dropout layers.
        activation: Name of the activation.
        normalization: `none`, `batch` or `layer`, before each activation.
    """
    keras: Any = require("keras", "keras")
    layers = keras.layers
    norms = {"batch": layers.BatchNormalization, "layer": layers.LayerNormalization}
    stack = [keras.Input(tuple(input_shape)), layers.Flatten()]
    for width in hidden:
        stack.append(layers.Dense(width))
        if normalization in norms:
            stack.append(norms[normalization]())
        stack.append(layers.Activation(activation))
        if dropout:
            stack.append(layers.Dropout(dropout))
    return keras.Sequential([*stack, layers.Dense(out_features, dtype="float32")])


def cnn(
    input_shape: Sequence[int],
    out_features: int,
    filters: Sequence[int],
    kernel_size: int,
    hidden: Sequence[int],
    dropout: float,
    activation: str,
    normalization: str,
    image_shape: Sequence[int] | None,
) -> Any:
    """Build a convolutional network with global average pooling before its dense layers.

    It maps (rows, height, width[, channels]), or rows that are reshaped to `image_shape`, to (rows,
    out_features) float32.

    Args:
        input_shape: Shape of one sample.
        out_features: Number of outputs.
        filters: Number of filters of each convolution; each is followed by a 2 x 2 max pooling.
        kernel_size: Height and width of the kernels.
        hidden: Width of each dense layer after the pooling.
        dropout: Dropout rate after each of these dense layers.
        activation: Name of the activation.
        normalization: `none` or `batch`, before the activation of each convolution.
        image_shape: (height, width[, channels]); None takes `input_shape`.

    Raises:
        ModelError: The samples are not images, or cannot be reshaped to `image_shape`.
    """
    keras: Any = require("keras", "keras")
    layers = keras.layers
    image = _image(input_shape, image_shape)
    stack = [keras.Input(tuple(input_shape)), layers.Reshape(image)]
    for count in filters:
        stack.append(layers.Conv2D(count, kernel_size, padding="same", data_format="channels_last"))
        if normalization == "batch":
            stack.append(layers.BatchNormalization())
        stack += [
            layers.Activation(activation),
            layers.MaxPooling2D(padding="same", data_format="channels_last"),
        ]
    stack.append(layers.GlobalAveragePooling2D(data_format="channels_last"))
    for width in hidden:
        stack += [
            layers.Dense(width),
            layers.Activation(activation),
            *([layers.Dropout(dropout)] if dropout else []),
        ]
    return keras.Sequential([*stack, layers.Dense(out_features, dtype="float32")])


def _image(input_shape: Sequence[int], image_shape: Sequence[int] | None) -> tuple[int, int, int]:
    """Return the (height, width, channels) of the images."""
    image = tuple(image_shape or input_shape)
    if len(image) not in (2, 3):
        raise ModelError(
            f"model keras_cnn: samples of shape {tuple(input_shape)} are not images "
            "(height, width[, channels]); set model.params.image_shape, for example to [8, 8]"
        )
    count, needed = math.prod(input_shape), math.prod(image)
    if count != needed:
        raise ModelError(
            f"model.params.image_shape: {list(image)} needs {needed} features per row, "
            f"but the data have {count}"
        )
    height, width, channels = (*image, 1)[:3]
    return height, width, channels


BUILT_IN = {"keras_mlp": mlp, "keras_cnn": cnn}
