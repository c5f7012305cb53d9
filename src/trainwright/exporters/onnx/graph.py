"""A graph of ONNX nodes that is built value by value."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import TensorProto, helper

OPSET = 20
ML = "ai.onnx.ml"  # the domain of label encoders and trees
_ML_OPSET = 4
_IR_VERSION = 10  # which onnxruntime 1.19 and later read
_ROWS = "rows"

Value: TypeAlias = str  # the name of a value in a graph


class Graph:
    """A graph with inputs, nodes, constants and outputs, all of whose inputs have the rows on the first axis.

    Values are meant by their names; names of inner ones begin with `prefix`, which no column has.
    """

    prefix = "/tw/"

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.functions: list[onnx.FunctionProto] = []
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []
        self._domains = {"": OPSET, ML: _ML_OPSET}
        self._count = 0

    def input(self, name: str, dtype: int, shape: Sequence[int | str]) -> Value:
        """Add an input, (rows, *shape), of a dtype of `TensorProto`; an axis with a name has any length."""
        self._inputs.append(helper.make_tensor_value_info(name, dtype, [_ROWS, *shape]))
        return name

    def output(self, value: Value, name: str, dtype: int, shape: Sequence[int | str]) -> None:
        """Make a value an output, (rows, *shape), under a name; see `input`."""
        self.nodes.append(helper.make_node("Identity", [value], [name], name=f"{self.prefix}output/{name}"))
        self._outputs.append(helper.make_tensor_value_info(name, dtype, [_ROWS, *shape]))

    def constant(self, values: Any, dtype: Any = None) -> Value:
        """Add a constant: an array, or something that NumPy makes one of; text becomes strings."""
        array = np.asarray(values, dtype)
        name = self._name("constant")
        if array.dtype.kind in "OU":
            texts = [str(one).encode() for one in array.ravel()]
            tensor = helper.make_tensor(name, TensorProto.STRING, array.shape, texts)  # type: ignore[arg-type]
        else:
            tensor = onnx.numpy_helper.from_array(np.ascontiguousarray(array), name)
        self.constants.append(tensor)
        return name

    def add(self, kind: str, *inputs: Value, domain: str = "", **attributes: Any) -> Value:
        """Add a node with one output, and return that."""
        name = self._name(kind)
        node = helper.make_node(kind, list(inputs), [name], name=name, domain=domain, **attributes)
        self.nodes.append(node)
        return name

    def ml(self, kind: str, *inputs: Value, **attributes: Any) -> Value:
        """Add a node of the domain ai.onnx.ml with one output, and return that."""
        return self.add(kind, *inputs, domain=ML, **attributes)

    def require(self, domain: str, version: int) -> None:
        """Take the operators of a domain in this version, if they would be older."""
        self._domains[domain] = max(version, self._domains.get(domain, version))

    def cast(self, value: Value, dtype: int) -> Value:
        """Add a cast to a dtype of `TensorProto`."""
        return self.add("Cast", value, to=dtype)

    def named(self, value: Value, name: str) -> Value:
        """Give a value an inner name that can be looked for when results differ."""
        self.nodes.append(helper.make_node("Identity", [value], [name], name=name))
        return name

    def include(self, model: onnx.ModelProto, inputs: Sequence[Value]) -> list[Value]:
        """Add the nodes of a model, called with `inputs` in the order of its own, and return its outputs.

        Args:
            model: The model, whose operators are of the versions of this graph.
            inputs: The values for its inputs.
        """
        prefix = f"{self.prefix}model/"
        names = dict(zip((one.name for one in model.graph.input), inputs, strict=True))
        named = onnx.compose.add_prefix(model, prefix)
        names = {f"{prefix}{name}": value for name, value in names.items()}
        for node in named.graph.node:
            node.input[:] = [names.get(name, name) for name in node.input]
            _rename_in_bodies(node, names)
        self.nodes += named.graph.node
        self.constants += named.graph.initializer
        self.functions += named.functions
        for one in model.opset_import:
            self.require(one.domain, one.version)
        return [one.name for one in named.graph.output]

    def model(self, metadata: dict[str, str]) -> onnx.ModelProto:
        """Return the model with these inputs and outputs.

        Raises:
            onnx.checker.ValidationError: It is not valid ONNX.
        """
        graph = helper.make_graph(self.nodes, "trainwright", self._inputs, self._outputs, self.constants)
        opsets = [helper.make_opsetid(domain, version) for domain, version in self._domains.items()]
        model = helper.make_model(graph, opset_imports=opsets, functions=self.functions)
        model.ir_version = _IR_VERSION
        model.producer_name = "trainwright"
        helper.set_model_props(model, metadata)
        onnx.checker.check_model(model)
        return model

    def _name(self, kind: str) -> Value:
        self._count += 1
        return f"{self.prefix}{kind}_{self._count}"


def _rename_in_bodies(node: onnx.NodeProto, names: dict[str, Value]) -> None:
    """Rename the values that the bodies of loops and branches take from outside."""
    for attribute in node.attribute:
        for body in [attribute.g, *attribute.graphs]:
            for inner in body.node:
                inner.input[:] = [names.get(name, name) for name in inner.input]
                _rename_in_bodies(inner, names)


@contextmanager
def quiet() -> Iterator[None]:
    """Silence what the converters log and warn of."""
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
