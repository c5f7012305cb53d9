"""Predict with an estimator of scikit-learn. It needs scikit-learn, skops and NumPy, no Trainwright.

python reader.py predict rows.csv          # the predictions, as CSV
python reader.py verify [rows.csv]         # compares the model with its certificate

In Python, with pandas, a Pipeline that takes data frames:

    import runpy
    open_pipeline = runpy.run_path("FOLDER/reader.py")["open_pipeline"]
    pipeline = open_pipeline("FOLDER")
    pipeline.predict(pandas.read_csv("new.csv"))
"""

import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from sklearn import utils
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin

from trainwright.exporters.certificates.columns import (
    About,
    features_of,
    open_prepared,
    predictions_of,
    read_columns,
)
from trainwright.exporters.certificates.reader import Arrays, Model, column, main

# What skops leaves to its callers to trust: functions of these names, and classes of these packages.
_FUNCTIONS = (
    "sklearn.utils.validation.check_array",
    "sklearn.metrics._classification.balanced_accuracy_score",
)
_NAMES = ("collections.OrderedDict", "numpy.dtype", "random.Random", "functools.partial")
_PACKAGES = ("sklearn", "scipy")


def open_artifact(path: Path) -> Model:
    """Return a function from inputs to outputs, both arrays (rows, ...) by name."""
    return open_prepared(path, open_model)


def open_model(folder: Path, about: About) -> Callable[[Arrays], Any]:
    """Return a function from features, (rows, features), to the model's outputs."""
    estimator = open_estimator(folder)

    def predict(feeds: Arrays) -> Any:
        return outputs_of(estimator, feeds["features"] if "features" in feeds else frame_of(feeds), about)

    return predict


def frame_of(feeds: Arrays) -> Any:
    """Return raw columns, (rows, 1) by name, as a data frame for a pipeline; times are int64."""
    import pandas as pd

    columns: dict[str, Any] = {}
    for name, values in feeds.items():
        flat: Any = np.asarray(values)[:, 0]
        flat = flat.astype("datetime64[us]") if flat.dtype.kind == "i" else flat
        if flat.dtype.kind == "O":
            flat = pd.Series([np.nan if one == "" else one for one in flat], dtype=object)
        columns[name] = flat
    return pd.DataFrame(columns)


def open_estimator(folder: Path) -> Any:
    """Return the estimator, if it is of types that belong to scikit-learn alone."""
    file = folder / "model.skops"
    skops = import_skops()
    types = skops.get_untrusted_types(file=file)
    strange = [name for name in types if not is_harmless(name)]
    if strange:
        sys.exit(f"{file.name} names types that are not scikit-learn's, so it is not opened: {strange}")
    return skops.load(file, trusted=types)


def import_skops() -> Any:
    """Import and return `skops.io`, which would import all of scikit-learn first, for seconds."""
    all_estimators, utils.all_estimators = utils.all_estimators, list
    try:
        return importlib.import_module("skops.io")
    finally:
        utils.all_estimators = all_estimators


def is_harmless(name: str) -> bool:
    """Return whether a name is a class of scikit-learn or SciPy, or one of a few others."""
    if name in _FUNCTIONS or name in _NAMES:
        return True
    module, _, inner = name.rpartition(".")
    if module.partition(".")[0] not in _PACKAGES:
        return False
    return isinstance(getattr(importlib.import_module(module), inner, None), type)


def outputs_of(estimator: Any, features: Any, about: About) -> Any:
    """Return probabilities (rows, classes) or values (rows,) / (rows, targets), float64."""
    features = features if hasattr(features, "iloc") else features.reshape(len(features), -1)
    if about["gives"] == "values":
        return np.asarray(estimator.predict(features), dtype=np.float64)
    if about["gives"] == "classes":
        found = np.zeros((len(features), len(about["classes"])))
        known = np.asarray(estimator.classes_)
        found[:, known.astype(np.int64)] = probabilities(estimator, features, known)
        return found
    if not hasattr(estimator, "predict_proba"):
        if hasattr(estimator, "decision_function"):
            return 1 / (1 + np.exp(-np.asarray(estimator.decision_function(features))))
        return np.asarray(estimator.predict(features), dtype=np.float64)
    by_label = estimator.predict_proba(features)
    if not isinstance(by_label, list):
        return np.asarray(by_label, dtype=np.float64)
    columns = [
        own[:, 1] if own.shape[1] == 2 else np.full(len(features), float(known[0]))
        for own, known in zip(by_label, estimator.classes_, strict=True)
    ]
    return np.stack(columns, axis=1)


def probabilities(estimator: Any, features: Any, classes: Any) -> Any:
    """Return the probability of each class that the training rows have, (rows, classes)."""
    if hasattr(estimator, "predict_proba"):
        found = np.asarray(estimator.predict_proba(features), dtype=np.float64)
        return np.where(np.isnan(found), 1 / len(classes), found)  # of a row without neighbors
    if hasattr(estimator, "decision_function"):
        values = np.asarray(estimator.decision_function(features), dtype=np.float64)
        values = np.stack([np.zeros_like(values), values], axis=1) if values.ndim == 1 else values
        if values.shape[1] == len(classes):
            raised = np.exp(values - values.max(axis=1, keepdims=True))
            return raised / raised.sum(axis=1, keepdims=True)
    return (np.asarray(estimator.predict(features))[:, None] == classes).astype(np.float64)


def open_pipeline(folder: str | Path) -> Any:
    """Return a Pipeline that takes data frames with the raw columns, as the certificate lists them."""
    from sklearn.pipeline import Pipeline

    folder = Path(folder)
    about = read_columns(folder)
    inputs = json.loads((folder / "certificate.json").read_text(encoding="utf-8"))["inputs"]
    kind = Regressor if about["gives"] == "values" else Classifier
    model = kind(open_estimator(folder), about)
    return Pipeline([("preparation", Preparation(about, inputs)), ("model", model)])


class Preparation(BaseEstimator):  # type: ignore[misc]
    """The step from a data frame to features."""

    def __init__(self, about: About, inputs: Any) -> None:
        self.about = about
        self.inputs = inputs

    def fit(self, rows: Any, target: Any = None) -> Any:  # noqa: ARG002
        """Refuse: it was fitted to the training rows."""
        raise TypeError("this pipeline is fitted already: train another run to fit it to other rows")

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def transform(self, rows: Any) -> Any:
        """Return the features, (rows, features)."""
        if self.about["columns"] is None:
            return rows
        return features_of(
            self.about, {one["name"]: frame_column(one, rows[one["name"]]) for one in self.inputs}
        )


def frame_column(about: Any, cells: Any) -> Any:
    """Return a column of a data frame as an input, (rows, 1); text is read as the cells of a file are."""
    if about["dtype"] == "float64" and cells.dtype.kind in "iufb":
        return cells.to_numpy(np.float64)[:, None]
    if about["dtype"] == "int64" and cells.dtype.kind == "M":
        return cells.to_numpy().astype("datetime64[us]").astype(np.int64)[:, None]
    texts = ["" if absent else text_of(one) for one, absent in zip(cells.tolist(), cells.isna(), strict=True)]
    return column(about, texts)


def text_of(value: Any) -> str:
    """Return a cell as text; whole numbers have no decimal point."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


class Predicting(BaseEstimator):  # type: ignore[misc]
    """The step from features to labels or values; `estimator` is scikit-learn's own."""

    def __init__(self, estimator: Any, about: About) -> None:
        self.estimator = estimator
        self.about = about

    def __sklearn_is_fitted__(self) -> bool:
        return True

    @property
    def classes_(self) -> Any:
        """The labels, in the order of the probabilities."""
        return np.asarray(self.about["classes"])

    def fit(self, features: Any, target: Any = None) -> Any:  # noqa: ARG002
        """Refuse, as `Preparation.fit` does."""
        raise TypeError("this pipeline is fitted already: train another run to fit it to other rows")

    def _predictions(self, features: Any) -> Any:
        return predictions_of(self.about, np.asarray(outputs_of(self.estimator, features, self.about)))

    def predict(self, features: Any) -> Any:
        """Return labels (rows,), 0 or 1 for each of several (rows, labels), or values (rows[, targets])."""
        found = self._predictions(features)
        if "label" in found:
            return found["label"]
        if "probabilities" in found:
            return (found["probabilities"] > 0.5).astype(np.int64)
        values = found["prediction"]
        return values[:, 0] if values.shape[1] == 1 else values

    def predict_proba(self, features: Any) -> Any:
        """Return probabilities, (rows, classes)."""
        return self._predictions(features)["probabilities"]


class Classifier(ClassifierMixin, Predicting):  # type: ignore[misc]
    """A model of classes, or of several labels."""


class Regressor(RegressorMixin, Predicting):  # type: ignore[misc]
    """A model of values."""


if __name__ == "__main__":
    main(sys.argv[1:], open_artifact)
