"""Models of Keras in ONNX: those of TensorFlow by tf2onnx, those of PyTorch by `torch.onnx.export`."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from trainwright.errors import InputError
from trainwright.exporters.base import names_classes
from trainwright.exporters.onnx.graph import OPSET, Graph, Value, quiet
from trainwright.require import require
from trainwright.types import FEATURES, DataInfo

_TF2ONNX_OPSET = 18  # the newest of tf2onnx


def add_model(graph: Graph, model: Any, info: DataInfo, features: Value) -> Value:
    """Add a model, and return its predictions, (rows, classes), (rows, targets) or (rows,) float32.

    Raises:
        InputError: Its backend, or a layer, cannot be exported.
    """
    converters = {"tensorflow": _of_tensorflow, "torch": _of_torch}
    if (convert := converters.get(model.backend)) is None:
        raise InputError(
            f"Keras models of the backend {model.backend} cannot be exported to ONNX, only those of "
            f"{' and '.join(converters)}; export with --format keras, or train with another backend"
        )
    try:
        with quiet():
            converted = convert(model.native, info)
    except InputError:
        raise
    except Exception as error:
        reason = str(error).strip().partition("\n")[0]
        raise InputError(
            f"the Keras model cannot be converted to ONNX: {type(error).__name__}: {reason}; export with "
            "--format keras"
        ) from error
    dtype = converted.graph.input[0].type.tensor_type.elem_type
    (outputs,) = graph.include(converted, [graph.cast(features, dtype)])
    if names_classes(info):
        return _probabilities(graph, outputs, model.meaning)
    scaled = graph.add("Mul", outputs, graph.constant(info.target_scale, np.float32))
    return graph.add("Add", scaled, graph.constant(info.target_mean, np.float32))


def _probabilities(graph: Graph, outputs: Value, meaning: Any) -> Value:
    """Return the probabilities of classes, (rows, classes) float32; see `losses.Outputs.to_predictions`."""
    if meaning.single:
        second = graph.add("Reshape", outputs, graph.constant([-1, 1], np.int64))
        second = graph.add("Sigmoid", second) if meaning.logits else second
        return graph.add("Concat", graph.add("Sub", graph.constant(1, np.float32), second), second, axis=1)
    if not (meaning.logits or meaning.independent):
        return outputs
    if not meaning.logits:
        least = graph.constant(np.finfo(np.float32).tiny, np.float32)
        outputs = graph.add("Log", graph.add("Max", outputs, least))
    elif meaning.independent:
        outputs = graph.add("Neg", graph.add("Softplus", graph.add("Neg", outputs)))
    return graph.add("Softmax", outputs, axis=1)


def _of_tensorflow(native: Any, info: DataInfo) -> onnx.ModelProto:  # noqa: ARG001 - torch needs it
    require("tf2onnx", "onnx")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.onnx")
        native.export(str(path), format="onnx", opset_version=_TF2ONNX_OPSET, verbose=False)
        model = onnx.load(path)
    _express_erfc(model.graph)
    if unknown := sorted({node.op_type for node in model.graph.node if not _is_known(node)}):
        raise InputError(
            f"tf2onnx cannot convert {', '.join(unknown)} of the Keras model; export with --format keras"
        )
    if len(model.graph.input) != 1:
        raise InputError(
            f"tf2onnx leaves out constants of the Keras model ({model.graph.input[1].name}); export with "
            "--format keras"
        )
    return onnx.version_converter.convert_version(model, OPSET)


def _is_known(node: onnx.NodeProto) -> bool:
    return node.domain != "" or onnx.defs.has(node.op_type)


def _express_erfc(graph: onnx.GraphProto) -> None:
    """Replace TensorFlow's Erfc (of GELU), which tf2onnx leaves as it is, by 1 - Erf."""
    nodes = list(graph.node)
    del graph.node[:]
    for node in nodes:
        if node.op_type == "Erfc":
            own = f"{node.output[0]}/erf"
            graph.node.append(onnx.helper.make_node("Erf", node.input, [own], name=own))
            graph.node.append(onnx.helper.make_node("Sub", [_ONE, own], node.output, name=node.name))
            if all(one.name != _ONE for one in graph.initializer):
                graph.initializer.append(onnx.numpy_helper.from_array(np.array(1, np.float32), _ONE))
        else:
            graph.node.append(node)


_ONE = "/tw/one"


def _of_torch(native: Any, info: DataInfo) -> onnx.ModelProto:
    import torch

    from trainwright.exporters.onnx.of_torch import exported

    class Predicting(torch.nn.Module):
        """The model in evaluation mode, as a module of one argument."""

        def __init__(self) -> None:
            super().__init__()
            self.model = native

        def forward(self, features: torch.Tensor) -> Any:
            return self.model(features, training=False)

    spec = info.inputs[FEATURES]
    with torch.no_grad():
        return exported(Predicting().eval(), torch.zeros(2, *spec.shape, dtype=getattr(torch, spec.dtype)))
