"""ONNX: a model with the preparation of its rows, as one file for onnxruntime."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from trainwright.datasets.tables.preparation import TabularPreparation
from trainwright.errors import DataError, InputError
from trainwright.exporters.base import Exporter, Input
from trainwright.exporters.certificates.inputs import inputs_of, tokenizer_json
from trainwright.exporters.certificates.reader import TOKENIZER, beside
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
    "keras": "trainwright.exporters.onnx.of_keras",
    "torch": "trainwright.exporters.onnx.of_torch",
}
_NETWORKS = ("torch", "keras")  # whose weights can be rounded
_EXPORTED = ("fp16", "fp8")  # of the schemes of `compress`: they compute in floats that ONNX has

_MOST_PARAMETERS = 500_000_000  # of 4 bytes each, and room for constants


class OnnxExporter(Exporter):
    """An exporter of ONNX files, which hold preparation, model, and the unit and labels of its outputs."""

    summary = "a file for ONNX Runtime"
    suffix = ".onnx"
    runtime = "trainwright.exporters.onnx.runtime"
    packages = ("onnxruntime", "numpy")
    extra = "onnx"
    frameworks = tuple(_CONVERTERS)
    choices: ClassVar[Mapping[str, Mapping[str, str]]] = {
        "quantize": {
            "none": "weights are float32",
            "int8-dynamic": "linear layers multiply 8 bits; inputs are rounded by the range of each batch",
            "int8-static": "linear and convolution layers do, by ranges of the training rows",
            "int8-weight-only": "weights are stored in 8 bits, also of embeddings, and multiplied in float32",
        }
    }

    @property
    def rounds(self) -> bool:
        """Return whether the weights are rounded."""
        return self.options["quantize"] != "none"

    def write(self, predictor: Predictor, path: Path, metadata: Mapping[str, str]) -> None:
        """Write the model as a file of ONNX; see `Exporter.write`."""
        onnx = require("onnx", "onnx")
        from trainwright.exporters.onnx.graph import Graph
        from trainwright.exporters.onnx.outputs import add_outputs
        from trainwright.exporters.onnx.preparation import add_preparation

        count = predictor.model.parameter_count or 0
        if count > _MOST_PARAMETERS:
            raise InputError(
                f"run {predictor.run.id}: a file of ONNX holds 2 GB, and the model has {count:,} parameters "
                "of 4 bytes; export with --format pt2 or safetensors"
            )
        self._check_quantization(predictor)
        convert = importlib.import_module(_CONVERTERS[name_of_framework(predictor.framework)])
        graph = Graph()
        if isinstance(predictor.preparation, TabularPreparation):
            features = add_preparation(graph, predictor.preparation)
            outputs = _added(graph, predictor, convert, features)
            add_outputs(graph, outputs, predictor.info)
        else:
            graph = self._of_arrays(predictor, convert)
        made = graph.model(dict(metadata))
        onnx.save(self._quantized(made, predictor) if self.rounds else made, path)
        if (tokenizer := tokenizer_json(predictor)) is not None:
            beside(path, TOKENIZER).write_text(tokenizer, encoding="utf-8")

    def _check_quantization(self, predictor: Predictor) -> None:
        """Check that the weights of a model can be rounded, if they are to be.

        Raises:
            InputError: They decide exactly, or are rounded already.
        """
        how, framework = self.options["quantize"], name_of_framework(predictor.framework)
        if self.rounds and framework not in _NETWORKS:
            raise InputError(
                f"run {predictor.run.id}: --option quantize={how} is for networks of PyTorch and Keras; the "
                f"thresholds and coefficients of {framework} decide exactly: leave it out, or drop trees by "
                "`trainwright compress --prune`"
            )
        manifest = predictor.run.manifest()
        record = None if manifest is None else manifest.compression
        scheme = None if record is None else record.recipe.quantize
        if manifest is not None and scheme is not None and (self.rounds or scheme not in _EXPORTED):
            parent = "PARENT" if manifest.parent is None else manifest.parent.run_id
            nearest = how if self.rounds else scheme
            nearest = nearest if nearest in self.choices["quantize"] else "int8-weight-only"
            raise InputError(
                f"run {predictor.run.id} is quantized ({scheme}) for PyTorch's own kernels; for ONNX Runtime "
                "quantize its parent:\n"
                f"  trainwright export {parent} model.onnx --option quantize={nearest}"
            )

    def _quantized(self, made: Any, predictor: Predictor) -> Any:
        """Return a model with rounded weights.

        Raises:
            InputError: It has no layers for that, or the training rows are not there.
        """
        from trainwright.exporters.onnx.quantize import calibration_rows, quantized

        how = self.options["quantize"]
        if how != "int8-static":
            return quantized(made, how, [])
        try:
            rows = calibration_rows(predictor.load_data())
        except (InputError, DataError) as error:
            raise InputError(f"quantize=int8-static measures ranges on the training rows: {error}") from error
        return quantized(made, how, rows)

    def _of_arrays(self, predictor: Predictor, convert: Any) -> Any:
        """Return the graph of a model that takes images, tokens or other arrays.

        Raises:
            InputError: It cannot be exported.
        """
        from trainwright.exporters.onnx.arrays import add_inputs, takes_tokens
        from trainwright.exporters.onnx.graph import Graph
        from trainwright.exporters.onnx.outputs import add_outputs

        inputs = self.inputs(predictor)
        # The axis of tokens is fixed where the module's code depends on their number.
        for any_length in (True, False) if takes_tokens(inputs) else (False,):
            graph = Graph()
            arrays = add_inputs(graph, predictor, inputs, any_length=any_length)
            try:
                if list(arrays) == [FEATURES]:
                    outputs = _added(graph, predictor, convert, arrays[FEATURES])
                else:
                    outputs = convert.add_module(
                        graph, predictor.trained_model, predictor.info, arrays, any_length=any_length
                    )
                    outputs = graph.named(outputs, f"{graph.prefix}model")
            except InputError:
                if any_length:
                    continue
                raise
            break
        add_outputs(graph, outputs, predictor.info, any_length=any_length)
        return graph

    def inputs(self, predictor: Predictor) -> Sequence[Input]:
        """Return the raw columns; images, tokens or arrays."""
        inputs = inputs_of(predictor)
        is_torch = name_of_framework(predictor.framework) == "torch"
        if not is_torch and [*predictor.info.inputs] != [FEATURES]:
            raise InputError(
                f"run {predictor.run.id}: --format onnx takes several arrays, or tokens, of models of torch "
                "alone; export with --format mlflow"
            )
        return inputs

    def steps(self, path: Path, feeds: Mapping[str, Array]) -> Mapping[str, Array]:
        """Return the features of each column, all features, and the outputs of the model."""
        import onnx

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
        from trainwright.exporters.onnx.inside import values

        found = values(model, list(names), feeds)
        return {text: found[value] for value, text in names.items()}

    def inside(self, path: Path, predictor: Predictor, feeds: Mapping[str, Array], features: Array) -> str:
        """Return the first layer of a module, or tree of a booster, that differs; see `Exporter.inside`."""
        import onnx

        from trainwright.exporters.onnx.inside import first_layer, first_tree, rounds_of

        model, framework = onnx.load(path), name_of_framework(predictor.framework)
        trained: Any = predictor.trained_model
        if framework == "torch":
            return first_layer(model, feeds, trained.predicting, features)
        if framework in ("xgboost", "lightgbm", "catboost"):
            return first_tree(model, feeds, list(rounds_of(framework, trained, predictor.info, features)))
        return ""


def _added(graph: Any, predictor: Predictor, convert: Any, features: str) -> str:
    """Add the model to a graph, and return its outputs; both they and the features get names."""
    features = graph.named(features, f"{graph.prefix}features")
    outputs = convert.add_model(graph, predictor.trained_model, predictor.info, features)
    named: str = graph.named(outputs, f"{graph.prefix}model")
    return named
