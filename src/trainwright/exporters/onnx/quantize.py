"""Round the weights of a network in ONNX to 8 bits, by onnxruntime's quantization; the rest stays as it is.

The model alone is taken out of the graph, rounded, and put back: no node of the preparation or of the outputs
is touched.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_dynamic, quantize_static

from trainwright.datasets.base import DataBundle
from trainwright.errors import InputError
from trainwright.evaluation.baselines import spaced
from trainwright.exporters.onnx.graph import Graph, quiet
from trainwright.types import FEATURES, Array

_CALIBRATION = 512  # rows
_BATCH = 64  # rows that are measured together
_LINEAR = ("MatMul", "Gemm")
_WEIGHTED = (*_LINEAR, "Conv", "ConvTranspose")
# Between convolutions, these take and give 8 bits.
_BETWEEN = ("Relu", "Clip", "MaxPool", "AveragePool", "GlobalAveragePool", "Add", "Reshape", "Flatten")
_AXES = {"MatMul": 1, "Gemm": 1, "Conv": 0, "ConvTranspose": 1}  # of outputs, in a weight
Feeds = Mapping[str, Array]


def quantized(model: onnx.ModelProto, how: str, rows: Sequence[Feeds]) -> onnx.ModelProto:
    """Return a model whose network has weights of 8 bits.

    Weights have 7 bits where inputs are rounded, too: the sums of 8 bits are cut off on CPUs without VNNI, so
    that outputs would depend on the CPU.

    Args:
        model: The model.
        how: int8-dynamic, int8-static or int8-weight-only.
        rows: For int8-static the arrays that the network takes, in batches of rows.

    Raises:
        InputError: It has no layers that can be rounded so.
    """
    network = _network(model)
    kinds = {"int8-dynamic": _LINEAR, "int8-static": _WEIGHTED}.get(how, (*_WEIGHTED, "Gather"))
    if not [*_weights(network.graph, kinds)]:
        raise InputError(
            f"quantize={how} rounds weights of {', '.join(kinds)}, and this model has none; leave it out"
        )
    if how == "int8-weight-only":
        rounded = _rounded(network)
    else:
        with tempfile.TemporaryDirectory() as folder, quiet():
            path = Path(folder, "model.onnx")
            seven_bits = {"per_channel": True, "reduce_range": True, "weight_type": QuantType.QInt8}
            if how == "int8-dynamic":
                quantize_dynamic(network, path, op_types_to_quantize=list(_LINEAR), **seven_bits)
            else:
                quantize_static(
                    network,
                    path,
                    _Rows(network, rows),
                    op_types_to_quantize=[*_WEIGHTED, *_between(network.graph)],
                    nodes_to_exclude=_without_weights(network.graph),
                    activation_type=QuantType.QUInt8,
                    # Sums of linear layers stay float32: it costs nothing, and they may be the outputs.
                    extra_options={"OpTypesToExcludeOutputQuantization": list(_LINEAR)},
                    **seven_bits,
                )
            rounded = onnx.load(path)
    return _with(model, rounded)


def calibration_rows(bundle: DataBundle) -> list[Feeds]:
    """Return evenly spaced rows of the training split, as they are without augmentation, in batches."""
    train = bundle.splits["train"]
    ids = spaced(len(train), _CALIBRATION)
    return [train.take(ids[start : start + _BATCH]) for start in range(0, len(ids), _BATCH)]


def _between(graph: onnx.GraphProto) -> Sequence[str]:
    """Return the layers without weights that are rounded, too: only convolutions get faster by that."""
    return _BETWEEN if any(node.op_type == "Conv" for node in graph.node) else ()


def _without_weights(graph: onnx.GraphProto) -> list[str]:
    """Return the names of products of two inputs, as of attention, and of sums with a bias."""
    constants = {one.name for one in graph.initializer}
    return [
        node.name
        for node in graph.node
        if (node.op_type == "Add" and constants & {*node.input})
        or (node.op_type in _WEIGHTED and node.input[1] not in constants)
    ]


class _Rows(CalibrationDataReader):  # type: ignore[misc]
    """Batches of rows, for onnxruntime."""

    def __init__(self, network: onnx.ModelProto, rows: Sequence[Feeds]) -> None:
        self._dtypes = {
            one.name: helper.tensor_dtype_to_np_dtype(one.type.tensor_type.elem_type)
            for one in network.graph.input
        }
        self._rows = iter(rows)

    def get_next(self) -> dict[str, Array] | None:
        """Return the inputs of the network for the next batch; None: there is none."""
        batch = next(self._rows, None)
        if batch is None:
            return None
        # A network of several arrays takes the graph's inputs; one of features has a name of the graph's.
        return {
            name: batch[name if name in batch else FEATURES].astype(of) for name, of in self._dtypes.items()
        }


def _is_own(node: onnx.NodeProto) -> bool:
    """Return whether a node is one of the network's."""
    return node.name.startswith(f"{Graph.prefix}model/") or any(
        name.startswith(f"{Graph.prefix}model/") for name in node.output
    )


def _network(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the network of a model alone."""
    inferred = onnx.shape_inference.infer_shapes(model).graph
    types = {one.name: one for one in (*inferred.value_info, *inferred.input, *inferred.output)}
    nodes = [node for node in model.graph.node if _is_own(node)]
    others = [node for node in model.graph.node if not _is_own(node)]
    made = {name for node in nodes for name in node.output}
    used = {name for node in nodes for name in _used(node)}
    constants = [one for one in model.graph.initializer if one.name in used]
    known = made | {one.name for one in constants}
    wanted = {name for node in others for name in node.input} & made
    graph = helper.make_graph(
        nodes,
        "network",
        [types[name] for name in sorted(used - known) if name],
        [types[name] for name in sorted(wanted)],
        constants,
    )
    return helper.make_model(
        graph, opset_imports=model.opset_import, functions=model.functions, ir_version=model.ir_version
    )


def _used(node: onnx.NodeProto) -> Iterator[str]:
    """Yield the values that a node takes, also in the bodies of loops and branches."""
    yield from node.input
    for attribute in node.attribute:
        for body in [attribute.g, *attribute.graphs]:
            inner = {name for one in body.node for name in _used(one)}
            yield from (
                inner
                - {name for one in body.node for name in one.output}
                - {one.name for one in (*body.input, *body.initializer)}
            )


def _with(model: onnx.ModelProto, network: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model with another network in the place of its own."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    nodes = [*model.graph.node]
    first = next(i for i, node in enumerate(nodes) if _is_own(node))
    before, after = nodes[:first], [node for node in nodes[first:] if not _is_own(node)]
    del made.graph.node[:], made.graph.initializer[:]
    made.graph.node.extend([*before, *network.graph.node, *after])
    used = {name for node in (*before, *after) for name in _used(node)}
    made.graph.initializer.extend(one for one in model.graph.initializer if one.name in used)
    made.graph.initializer.extend(network.graph.initializer)
    onnx.checker.check_model(made)
    return made


def _weights(graph: onnx.GraphProto, kinds: Sequence[str]) -> Iterator[tuple[onnx.TensorProto, int]]:
    """Yield the constant float weights of some kinds of layers, each once, and their axis of outputs."""
    constants = {
        one.name: one for one in graph.initializer if one.data_type == TensorProto.FLOAT and len(one.dims) > 1
    }
    for node in graph.node:
        if node.op_type not in kinds:
            continue
        place = 0 if node.op_type == "Gather" else 1
        if (weight := constants.pop(node.input[place], None)) is not None:
            is_turned = any(one.name == "transB" and one.i for one in node.attribute)
            axis = 0 if is_turned or node.op_type == "Gather" else _AXES[node.op_type]
            yield weight, len(weight.dims) - 1 if node.op_type == "MatMul" else axis


def _rounded(network: onnx.ModelProto) -> onnx.ModelProto:
    """Return a network whose weights are 8 bits with a scale for each output, or row of a table."""
    made = onnx.ModelProto()
    made.CopyFrom(network)
    constants = {one.name: one for one in network.graph.initializer}
    nodes: list[onnx.NodeProto] = []
    for weight, axis in _weights(network.graph, (*_WEIGHTED, "Gather")):
        values = numpy_helper.to_array(weight)
        others = tuple(i for i in range(values.ndim) if i != axis)
        scale = np.abs(values).max(axis=others) / np.float32(127)
        scale = np.where(scale > 0, scale, np.float32(1)).astype(np.float32)
        integers = np.rint(values / np.expand_dims(scale, others)).astype(np.int8)
        own: dict[str, Any] = {f"{weight.name}_quantized": integers, f"{weight.name}_scale": scale}
        nodes.append(
            helper.make_node(
                "DequantizeLinear", [*own], [weight.name], name=f"{weight.name}_DequantizeLinear", axis=axis
            )
        )
        del constants[weight.name]
        constants |= {name: numpy_helper.from_array(array, name) for name, array in own.items()}
    del made.graph.node[:], made.graph.initializer[:]
    made.graph.node.extend([*nodes, *network.graph.node])
    made.graph.initializer.extend(constants.values())
    return made
