"""ONNX: a model with the preparation of its rows, as one file for onnxruntime."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from trainwright.datasets.tables.preparation import TabularPreparation
from trainwright.errors import InputError
from trainwright.exporters.base import Exporter, Input, inputs_of
from trainwright.inference.predictor import Predictor
from trainwright.plugins import name_of_framework
from trainwright.require import require
from trainwright.types import FEATURES, Array

# The modules that convert the models of a framework: `add_model(graph, model, info, features)`.
_CONVERTERS = {
    "catboost": "trainwright.exporters.onnx.of_catboost",
    "sklearn": "trainwright.exporters.onnx.of_sklearn",
    "xgboost": "trainwright.exporters.onnx.of_xgboost",
    "lightgbm": "trainwright.exporters.onnx.of_lightgbm",
    "torch": "trainwright.exporters.onnx.of_torch",
}


class OnnxExporter(Exporter):
    """An exporter of ONNX files, which hold preparation, model, and the unit and labels of its outputs."""

    summary = "a file for ONNX Runtime"
    suffix = ".onnx"
    runtime = "trainwright.exporters.onnx.runtime"
    packages = ("onnxruntime", "numpy")
    extra = "onnx"
    frameworks = tuple(_CONVERTERS)

    def write(self, predictor: Predictor, path: Path, metadata: Mapping[str, str]) -> None:
        """Write the model as a file of ONNX; see `Exporter.write`."""
        onnx = require("onnx", "onnx")
        from trainwright.exporters.onnx.graph import Graph
        from trainwright.exporters.onnx.outputs import add_outputs
        from trainwright.exporters.onnx.preparation import add_arrays, add_preparation

        convert = importlib.import_module(_CONVERTERS[name_of_framework(predictor.framework)])
        graph = Graph()
        preparation = predictor.preparation
        if isinstance(preparation, TabularPreparation):
            features = add_preparation(graph, preparation)
        else:
            features = add_arrays(graph, self.inputs(predictor))
        features = graph.named(features, f"{graph.prefix}features")
        outputs = convert.add_model(graph, predictor.trained_model, predictor.info, features)
        add_outputs(graph, graph.named(outputs, f"{graph.prefix}model"), predictor.info)
        model = graph.model(dict(metadata))
        onnx.save(model, path)

    def inputs(self, predictor: Predictor) -> Sequence[Input]:
        """Return the raw columns; the arrays where the data set brought features."""
        is_table = isinstance(predictor.preparation, TabularPreparation)
        if not is_table and (predictor.preparation is not None or list(predictor.info.inputs) != [FEATURES]):
            raise InputError(
                f"run {predictor.run.id}: --format onnx takes models of tables and of one array of features; "
                "export with --format mlflow"
            )
        return inputs_of(predictor)

    def steps(self, path: Path, feeds: Mapping[str, Array]) -> Mapping[str, Array]:
        """Return the features of each column, all features, and the outputs of the model."""
        import onnx
        import onnxruntime

        model = onnx.load(path)
        from trainwright.exporters.onnx.graph import Graph

        prefixes = {f"{Graph.prefix}column/": "column ", f"{Graph.prefix}features": "features"}
        prefixes |= {f"{Graph.prefix}model": "model"}
        names = {
            value: text + value.removeprefix(prefix) if prefix.endswith("/") else text
            for node in model.graph.node
            if node.op_type == "Identity"
            for value in node.output
            for prefix, text in prefixes.items()
            if value == prefix or (prefix.endswith("/") and value.startswith(prefix))
        }
        for value in names:
            model.graph.output.append(onnx.ValueInfoProto(name=value))
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        found = session.run(list(names), {name: np.asarray(value) for name, value in feeds.items()})
        return dict(zip(names.values(), found, strict=True))
