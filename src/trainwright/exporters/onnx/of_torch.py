"""Modules of PyTorch in ONNX, by `torch.onnx.export`."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
import torch
from torch import Tensor

from trainwright.exporters.onnx.graph import OPSET, Graph, Value
from trainwright.exporters.programs import exporting
from trainwright.types import FEATURES, DataInfo

_TRACE = "pkg.torch.onnx.stack_trace"  # torch's: where in the sources a node was called


def add_model(graph: Graph, model: Any, info: DataInfo, features: Value) -> Value:
    """Add a module, and return its predictions, (rows, outputs, ...) or (rows,) float32.

    Raises:
        InputError: torch cannot export it.
    """
    return add_module(graph, model, info, {FEATURES: features}, any_length=False)


def add_module(
    graph: Graph, model: Any, info: DataInfo, arrays: Mapping[str, Value], *, any_length: bool
) -> Value:
    """Add a module that takes arrays by name; see `add_model`.

    Args:
        graph: The graph.
        model: The model.
        info: The description of its data.
        arrays: The values of its inputs, in the order of `input_names`.
        any_length: Whether rows of tokens may be shorter than in training.
    """
    samples = []
    for name in model.input_names:
        spec = info.inputs[name]
        samples.append(torch.zeros(2, *spec.shape, dtype=getattr(torch, spec.dtype)))
    axes: dict[int, Any] = {0: torch.export.Dim("rows", min=1)}
    if any_length:
        axes[1] = torch.export.Dim("length", min=1, max=samples[0].shape[1])
    # The module takes any number of arrays: one argument of torch.export's.
    program = _exported(model.predicting.cpu(), samples, (tuple(dict(axes) for _ in samples),))
    (outputs,) = graph.include(program, [arrays[name] for name in model.input_names])
    return outputs


def exported(module: torch.nn.Module, sample: Tensor) -> onnx.ModelProto:
    """Return a module of one array as a model of ONNX, with any number of rows.

    Raises:
        InputError: torch cannot export it.
    """
    return _exported(module, [sample], ({0: torch.export.Dim("rows", min=1)},))


def _exported(module: torch.nn.Module, samples: Sequence[Tensor], axes: Any) -> onnx.ModelProto:
    """Return a module as a model of ONNX, of any size along some axes of its inputs; see `exported`."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.onnx")
        with exporting("onnx"):
            # torch.onnx.export would try other ways where this one fails, which fix the number of rows.
            traced = torch.export.export(module, tuple(samples), dynamic_shapes=axes)
            program: Any = torch.onnx.export(traced, dynamo=True, opset_version=OPSET, external_data=False)
            program.save(path)
        return _without_traces(onnx.load(path))


def _without_traces(made: onnx.ModelProto) -> onnx.ModelProto:
    """Take the stack of each node out of a model: it names folders of this machine."""
    for node in (*made.graph.node, *(node for one in made.functions for node in one.node)):
        kept = [one for one in node.metadata_props if one.key != _TRACE]
        del node.metadata_props[:]
        node.metadata_props.extend(kept)
    return made
