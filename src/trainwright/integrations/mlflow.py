"""Load runs' models for MLflow: the loader module of the models that `trackers.mlflow` logs.

`mlflow.pyfunc.load_model` and `mlflow models serve` import this module by the name in `MLmodel`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trainwright.datasets.tables.preparation import TabularPreparation
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
        return self._predictor.predict(self._with_all_columns(model_input))

    def _with_all_columns(self, rows: Any) -> Any:
        """Return rows with missing values in the columns that MLflow lets out, as they are optional."""
        import numpy as np
        import pandas as pd

        preparation = self._predictor.preparation
        if not (isinstance(preparation, TabularPreparation) and isinstance(rows, pd.DataFrame)):
            return rows
        missing = {"text": None, "time": np.datetime64("NaT"), "number": np.nan}
        absent = {
            column.name: missing[column.reads]
            for column in preparation.columns
            if column.accepts_missing and column.name not in rows
        }
        return rows.assign(**absent) if absent else rows

    @property
    def predictor(self) -> Predictor:
        """The predictor, for `outputs` and the library's own model."""
        return self._predictor


def _load_pyfunc(path: str) -> PyfuncModel:
    """Return the model of the portable run in a folder; MLflow calls it."""
    run = RunDir(Path(path))
    with working_for(run):
        return PyfuncModel(open_predictor(run, pinned=False))
