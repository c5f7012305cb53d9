"""PMML: a model with the preparation of its rows, as a document for JPMML and other engines of PMML 4.4."""

from __future__ import annotations

import importlib
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from trainwright.datasets.tables.preparation import TabularPreparation
from trainwright.errors import InputError, MissingExtraError
from trainwright.exporters.base import Exporter, Input
from trainwright.exporters.certificates.inputs import inputs_of
from trainwright.inference.predictor import Predictor
from trainwright.plugins import name_of_framework
from trainwright.require import require
from trainwright.types import FEATURES, Array
from trainwright.version import VERSION

if TYPE_CHECKING:
    from trainwright.exporters.pmml.preparation import Features

_NAMESPACE = "http://www.dmg.org/PMML-4_4"
# The modules that convert the models of a framework: `model_of(model, info, features, target)`.
_CONVERTERS = {
    "sklearn": "trainwright.exporters.pmml.of_sklearn",
    "xgboost": "trainwright.exporters.pmml.of_xgboost",
    "lightgbm": "trainwright.exporters.pmml.of_lightgbm",
    "torch": "trainwright.exporters.pmml.of_torch",
}


class PmmlExporter(Exporter):
    """An exporter of PMML documents, which hold preparation, model, and the unit or labels of outputs."""

    summary = "a document for engines of PMML 4.4, with raw columns"
    suffix = ".pmml"
    runtime = "trainwright.exporters.pmml.runtime"
    packages = ("jpmml_evaluator", "pandas", "numpy")
    extra = "pmml"
    frameworks = tuple(_CONVERTERS)

    @classmethod
    def check_runtime(cls) -> None:
        """Check that JPMML and Java are installed; see `Exporter.check_runtime`."""
        super().check_runtime()
        home = os.environ.get("JAVA_HOME")
        if shutil.which("java") is None and not (home and Path(home, "bin", "java").exists()):
            raise MissingExtraError(
                "JPMML, which opens PMML, needs Java, and there is none on this machine: apt-get install "
                "default-jre-headless (or set JAVA_HOME)"
            )

    def write(self, predictor: Predictor, path: Path, metadata: Mapping[str, str]) -> None:
        """Write the model as a document of PMML; see `Exporter.write`."""
        self.check_runtime()
        root = document_of(predictor, metadata, self.inputs(predictor))
        ElementTree.ElementTree(root).write(path, encoding="utf-8", xml_declaration=True)

    def inputs(self, predictor: Predictor) -> Sequence[Input]:
        """Return the raw columns; the array where the data set brought features."""
        is_table = isinstance(predictor.preparation, TabularPreparation)
        if not is_table and (predictor.preparation is not None or list(predictor.info.inputs) != [FEATURES]):
            raise InputError(
                f"run {predictor.run.id}: --format pmml takes models of tables and of one array of features; "
                "export with --format onnx"
            )
        return inputs_of(predictor)

    def steps(self, path: Path, feeds: Mapping[str, Array]) -> Mapping[str, Array]:
        """Return the features."""
        import numpy as np

        from trainwright.exporters.pmml.runtime import evaluated

        jpmml_evaluator = require("jpmml_evaluator", "pmml")
        space = f"{{{_NAMESPACE}}}"
        tree = ElementTree.parse(path)
        model = tree.getroot()[-1]
        names = [
            one.get("name", "")
            for one in model.iterfind(f"{space}LocalTransformations/{space}DerivedField")
            if one.get("name", "").startswith("feature(")
        ]
        output = model.find(f"{space}Output")
        assert output is not None
        for i, name in enumerate(names):
            attributes = {"name": f"feature {i}", "optype": "continuous", "dataType": "double"}
            attributes["feature"] = "transformedValue"
            field = ElementTree.SubElement(output, f"{space}OutputField", attributes)
            ElementTree.SubElement(field, f"{space}FieldRef", field=name)
        with tempfile.TemporaryDirectory() as folder:
            changed = Path(folder, "steps.pmml")
            tree.write(changed)
            found = evaluated(jpmml_evaluator.make_evaluator(str(changed)), feeds)
        columns = [found[f"feature {i}"].astype(np.float64) for i in range(len(names))]
        return {"features": np.stack(columns, axis=1)} if columns else {}


def document_of(
    predictor: Predictor, metadata: Mapping[str, str], inputs: Sequence[Input]
) -> ElementTree.Element:
    """Return the document of a run's model.

    Raises:
        InputError: PMML cannot hold it.
    """
    from trainwright.exporters.pmml import models
    from trainwright.exporters.pmml.preparation import features_of_arrays, features_of_columns
    from trainwright.exporters.pmml.xml import element, schema

    info, preparation = predictor.info, predictor.preparation
    models.check_outputs(info)
    if isinstance(preparation, TabularPreparation):
        features, target = features_of_columns(preparation), preparation.target.columns[0]
    else:
        features, target = features_of_arrays(inputs[0]), "target"
    convert = importlib.import_module(_CONVERTERS[name_of_framework(predictor.framework)])
    taken: Features
    model, taken = convert.model_of(predictor.trained_model, info, features, target)
    first = [schema(taken.mining, target), models.output(info)]
    if taken.derived:
        first.append(element("LocalTransformations", *taken.derived))
    model[:0] = first
    return element(
        "PMML",
        element(
            "Header",
            *(element("Extension", name=name, value=value) for name, value in metadata.items()),
            element("Application", name="Trainwright", version=VERSION),
        ),
        element("DataDictionary", *taken.data, models.data_field(info, target)),
        model,
        xmlns=_NAMESPACE,
        version="4.4",
    )
