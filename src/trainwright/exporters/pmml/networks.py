"""Small networks of dense layers as models of PMML."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from trainwright.exporters.base import names_classes
from trainwright.exporters.pmml.models import Labels, function_of
from trainwright.exporters.pmml.preparation import Features
from trainwright.exporters.pmml.xml import Element, element, field
from trainwright.types import Array, DataInfo


class Layer(NamedTuple):
    """A dense layer.

    Attributes:
        weights: (outputs, inputs).
        bias: (outputs,).
        activation: PMML's name of the function of its outputs.
    """

    weights: Array
    bias: Array
    activation: str


def network(layers: Sequence[Layer], features: Features, info: DataInfo, target: str) -> Element:
    """Return a network without its schema, of features that are not missing.

    The last layer gives a value, or the logarithms of classes' shares; one such output is the second class's
    beside 0, so that sigmoid and softmax are the same.
    """
    if names_classes(info) and len(layers[-1].bias) == 1:
        weights, bias, activation = layers[-1]
        last = Layer(np.vstack([np.zeros_like(weights), weights]), np.append([0.0], bias), activation)
        layers = [*layers[:-1], last]
    inputs = [
        element("NeuralInput", _value(field(name)), id=f"0/{i}") for i, name in enumerate(features.names)
    ]
    made = [_layer(layer, number) for number, layer in enumerate(layers, start=1)]
    if names_classes(info):
        made[-1].set("normalizationMethod", "softmax")
        ends = [element("NormDiscrete", field=target, value=one) for one in Labels(info).values]
    else:
        ends = [field(target)]
    outputs = [
        element("NeuralOutput", _value(end), outputNeuron=f"{len(layers)}/{i}") for i, end in enumerate(ends)
    ]
    return element(
        "NeuralNetwork",
        element("NeuralInputs", *inputs, numberOfInputs=len(inputs)),
        *made,
        element("NeuralOutputs", *outputs, numberOfOutputs=len(outputs)),
        functionName=function_of(info),
        activationFunction="identity",
    )


def _value(expression: Element) -> Element:
    return element("DerivedField", expression, optype="continuous", dataType="double")


def _layer(layer: Layer, number: int) -> Element:
    """Return a layer, whose neurons are called `number/index`."""
    neurons = []
    for i, (row, bias) in enumerate(zip(layer.weights.tolist(), layer.bias.tolist(), strict=True)):
        weights = [element("Con", from_=f"{number - 1}/{k}", weight=float(one)) for k, one in enumerate(row)]
        neurons.append(element("Neuron", *weights, id=f"{number}/{i}", bias=float(bias)))
    return element("NeuralLayer", *neurons, activationFunction=layer.activation)
