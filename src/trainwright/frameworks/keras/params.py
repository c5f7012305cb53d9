"""Options of models and optimizers, readable without Keras.

An optimizer's options have the same names and defaults as under torch, so that a config means the same under
both.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from trainwright.config.fields import Section
from trainwright.frameworks.support.optimizers import AdamParams, Betas, RmspropParams, Share

Width = Annotated[int, Field(gt=0)]
Activation = Literal["relu", "gelu", "silu", "tanh"]

COMPILED = "compiled"  # the optimizer type that stands for the one the model was compiled with


class BackendParams(Section):
    """Options that all models share."""

    backend: Literal["tensorflow", "jax", "torch"] | None = Field(
        None,
        description="Keras's backend; default: KERAS_BACKEND, or the first of these that is installed",
    )


class KerasMlpParams(BackendParams):
    """A multilayer perceptron."""

    hidden: list[Width] = Field(default_factory=lambda: [128, 64], description="width of each hidden layer")
    dropout: Share = Field(0.0, description="share of the values that are dropped after each hidden layer")
    activation: Activation = "relu"
    normalization: Literal["none", "batch", "layer"] = Field("none", description="before each activation")


class KerasCnnParams(BackendParams):
    """A convolutional network for images (height, width) or (height, width, channels)."""

    filters: list[Width] = Field(
        default_factory=lambda: [32, 64],
        min_length=1,
        description="number of filters of each convolution; each is followed by a 2 x 2 pooling",
    )
    kernel_size: int = Field(3, gt=0)
    hidden: list[Width] = Field(
        default_factory=lambda: [64], description="width of each dense layer after the convolutions"
    )
    dropout: Share = Field(0.0, description="share of the values that are dropped after each dense layer")
    activation: Activation = "relu"
    normalization: Literal["none", "batch"] = Field(
        "none", description="before each activation of a convolution"
    )
    image_shape: list[Width] | None = Field(
        None,
        min_length=2,
        max_length=3,
        description="shape to which the features of a row are reshaped; default: the shape in the data",
    )


class KerasFileParams(BackendParams):
    """A model saved with `model.save("model.keras")`: its layers, its weights and its compile options."""

    file: str = Field(
        description="a .keras file; no code in it is executed, so files with Lambda layers are refused"
    )
    custom_objects: list[str] = Field(
        default_factory=list,
        description="your own layers, losses ... that the file uses, as package.module:Name",
    )


class NadamParams(Section):
    """NAdam (Dozat, 2016) and Adamax (Kingma and Ba, 2015)."""

    betas: Betas = Field(default_factory=lambda: [0.9, 0.999])
    eps: float = Field(1e-8, gt=0)


class LionParams(Section):
    """Lion (Chen et al., 2023)."""

    betas: Betas = Field(default_factory=lambda: [0.9, 0.99])


class SgdParams(Section):
    """Stochastic gradient descent."""

    momentum: Share = 0.0
    nesterov: bool = False


class AdagradParams(Section):
    """Adagrad (Duchi et al., 2011)."""

    eps: float = Field(1e-10, gt=0)
    initial_accumulator_value: float | None = Field(
        None, ge=0, description="the sum of squared gradients to begin with; default: 0, Keras's own is 0.1"
    )


class CompiledParams(Section):
    """The optimizer and learning rate that the model was compiled with; AdamW if it was not compiled."""


MODELS: dict[str, type[Section]] = {
    "keras": KerasFileParams,
    "keras_mlp": KerasMlpParams,
    "keras_cnn": KerasCnnParams,
}

OPTIMIZERS: dict[str, type[Section]] = {
    "adamw": AdamParams,
    "adam": AdamParams,
    "sgd": SgdParams,
    "rmsprop": RmspropParams,
    "adagrad": AdagradParams,
    "nadam": NadamParams,
    "adamax": NadamParams,
    "lion": LionParams,
    COMPILED: CompiledParams,
}

LOSSES = ("auto", "cross_entropy", "mse", "mae", "huber", "l1", "smooth_l1")
