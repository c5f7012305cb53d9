"""Modules of PyTorch in ONNX, by `torch.onnx.export`."""

from __future__ import annotations

import logging
import tempfile
import warnings
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import onnx
import torch
from torch import Tensor

from trainwright.errors import InputError
from trainwright.exporters.onnx.graph import OPSET, Graph, Value
from trainwright.types import FEATURES, DataInfo


def add_model(graph: Graph, model: Any, info: DataInfo, features: Value) -> Value:
    """Add a module, and return its predictions, (rows, outputs) or (rows,) float32.

    Raises:
        InputError: torch cannot export it.
    """
    spec = info.inputs[FEATURES]
    sample = torch.zeros(2, *spec.shape, dtype=getattr(torch, spec.dtype))
    module: torch.nn.Module = model.predicting
    (outputs,) = graph.include(exported(module.cpu(), sample), [features])
    return outputs


def exported(module: torch.nn.Module, sample: Tensor) -> onnx.ModelProto:
    """Return a module as a model of ONNX, with any number of rows.

    Raises:
        InputError: torch cannot export it.
    """
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(), _quiet():
        warnings.simplefilter("ignore")
        try:
            program: Any = torch.onnx.export(
                module,
                (sample,),
                dynamo=True,
                dynamic_shapes=({0: torch.export.Dim("rows", min=1)},),
                opset_version=OPSET,
                external_data=False,
            )
        except Exception as error:
            reason = str(error).strip().splitlines()
            raise InputError(
                f"torch cannot export the model to ONNX: {reason[-1] if reason else type(error).__name__}"
            ) from error
        path = Path(folder, "model.onnx")
        program.save(path)
        return onnx.load(path)


class _quiet:  # noqa: N801 - a context manager
    """Silence what torch's exporter prints and logs."""

    def __enter__(self) -> None:
        self._out, self._err = redirect_stdout(StringIO()), redirect_stderr(StringIO())
        self._out.__enter__()
        self._err.__enter__()
        self._level = logging.root.manager.disable
        logging.disable(logging.WARNING)

    def __exit__(self, *error: object) -> None:
        logging.disable(self._level)
        self._err.__exit__(None, None, None)
        self._out.__exit__(None, None, None)
