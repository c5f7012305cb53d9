"""Load runs' models for MLflow: the loader module of the models that `trackers.mlflow` logs.

`mlflow.pyfunc.load_model` and `mlflow models serve` import this module by the name in `MLmodel`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trainwright.inference.predictor import Predictor
from trainwright.records.run_dir import RunDir
from trainwright.runs.predictor import open_predictor
from trainwright.runs.workdir import working_for


class PyfuncModel:
    """A run's model as MLflow calls it: raw rows in, a data frame of predictions out."""

    def __init__(self, predictor: Predictor) -> None:
        self._predictor = predictor

    def predict(self, model_input: Any, params: dict[str, Any] | None = None) -> Any:  # noqa: ARG002
        """Return the predictions of `Predictor.predict`.

        Args:
            model_input: A data frame with the columns of the training data, or the arrays that the model
                takes, as the signature says.
            params: Unused; MLflow passes it.
        """
        return self._predictor.predict(model_input)

    @property
    def predictor(self) -> Predictor:
        """The predictor, for `outputs` and the library's own model."""
        return self._predictor


def _load_pyfunc(path: str) -> PyfuncModel:
    """Return the model of the portable run in a folder; MLflow calls it."""
    run = RunDir(Path(path))
    with working_for(run):
        return PyfuncModel(open_predictor(run, pinned=False))
