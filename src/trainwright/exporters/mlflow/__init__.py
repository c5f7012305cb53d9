"""MLflow: a folder that `mlflow.pyfunc` loads and MLflow serves, with the preparation of rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from trainwright.datasets.images.preparation import ImagePreparation
from trainwright.datasets.texts.preparation import TextPreparation
from trainwright.errors import DifferentArtifactError, InputError
from trainwright.exporters.base import Exporter, Input
from trainwright.exporters.certificates.export import export_certified
from trainwright.exporters.certificates.inputs import inputs_of
from trainwright.inference.predictor import Predictor
from trainwright.plugins import adapter, task_for
from trainwright.storage.portable import write_portable
from trainwright.trackers.support.mlflow_model import DATA, ONNX, write_model
from trainwright.types import Array


class MlflowExporter(Exporter):
    """An exporter of MLflow's models: the portable part of the run, and the wheel of Trainwright."""

    summary = "a folder that MLflow loads and serves; it needs Trainwright, which lies in it"
    advice = "serve it: mlflow models serve -m {path} --env-manager local"
    holds = "preparation, model, Trainwright"
    runtime = "trainwright.exporters.mlflow.runtime"
    packages = ("mlflow", "pandas", "numpy")
    extra = "mlflow"
    frameworks = ()
    executes_code = True  # MLmodel names the module that loads the model
    choices: ClassVar[Mapping[str, Mapping[str, str]]] = {
        "flavor": {
            "python_function": "`mlflow.pyfunc` loads the folder",
            "onnx": "`mlflow.onnx` does, too: `model.onnx` lies in it, with a certificate of its own",
        }
    }

    def write(self, predictor: Predictor, path: Path, metadata: Mapping[str, str]) -> None:
        """Write the folder; see `Exporter.write`."""
        path.mkdir()
        write_portable(predictor.run, predictor.stored.folder, path / DATA)
        has_onnx = self.options["flavor"] == "onnx"
        if has_onnx:
            _write_onnx(predictor, path / ONNX)
        write_model(path, metadata=metadata, onnx=has_onnx)

    def inputs(self, predictor: Predictor) -> Sequence[Input]:
        """Return the raw columns, or the arrays where the data set brought features."""
        task, preparation = task_for(predictor.info), predictor.preparation
        if task.gives_masks:
            raise InputError(f"the predictions of {task.name} are masks, which a table cannot hold")
        if task.sums:
            raise InputError(f"the predictions of {task.name} need targets, so that rows alone have none")
        if isinstance(preparation, TextPreparation) and not preparation.of_words:
            return [Input(preparation.column, "string", (1,), "text")]
        if isinstance(preparation, ImagePreparation | TextPreparation):
            raise InputError(
                f"run {predictor.run.id} predicts {preparation.noun}, for which an MLflow folder has no "
                "certificate yet; have the run logged instead: tracking: [mlflow]"
            )
        return inputs_of(predictor)

    def steps(self, path: Path, feeds: Mapping[str, Array]) -> Mapping[str, Array]:  # noqa: ARG002
        """Return no values: the preparation in the folder is the run's own."""
        return {}


def _write_onnx(predictor: Predictor, path: Path) -> None:
    """Write the model as a file of ONNX that is compared with the run on its own.

    Raises:
        InputError: ONNX cannot hold this model.
        DifferentArtifactError: The file does not predict what the run predicts.
    """
    adapter("exporter", "onnx").check_runtime()
    try:
        export_certified(predictor, path, "onnx")
    except InputError as error:
        raise InputError(f"flavor=onnx: {error}; or leave the option out") from error
    except DifferentArtifactError as error:
        raise DifferentArtifactError(
            f"flavor=onnx: {error}\n  (leave the option out, or export with --format onnx --tolerance ...)"
        ) from error
