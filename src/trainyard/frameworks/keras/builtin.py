"""The built-in models; their outputs are logits of classes, or values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trainyard.errors import ModelError
from trainyard.require import require


def mlp(
    input_shape: Sequence[int],
    out_features: int,
    hidden: Sequence[int],
    dropout: float,
    activation: str,
    normalization: str,
) -> Any:
    """Dense layers of the widths `hidden`, each followed by normalization, activation and dropout where asked for.

    Takes (rows, ...) and gives (rows, out_features).
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
    """Convolutions of so many `filters`, each followed by a pooling of 2 x 2; their means over the image go through dense layers.

    Takes (rows, height, width[, channels]), or rows that `image_shape` makes images of, and gives (rows, out_features).

    Raises:
        ModelError: the features make no image.
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


def _image(given: Sequence[int], wanted: Sequence[int] | None) -> tuple[int, ...]:
    image = tuple(wanted or given)
    if len(image) not in (2, 3):
        raise ModelError(
            f"model keras_cnn: samples of shape {tuple(given)} are no images (height, width[, channels]); "
            "set model.params.image_shape, [8, 8] for example"
        )
    count, needed = 1, 1
    for length in given:
        count *= length
    for length in image:
        needed *= length
    if count != needed:
        raise ModelError(
            f"model.params.image_shape: {list(image)} takes {needed} features a row, but the data has {count}"
        )
    return (*image, 1) if len(image) == 2 else image


BUILT_IN = {"keras_mlp": mlp, "keras_cnn": cnn}
