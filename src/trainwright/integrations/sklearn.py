"""A run's model as a scikit-learn pipeline that takes raw rows, saved with skops.

    pipeline = skops.io.load("model.skops", trusted=skops.io.get_untrusted_types(file="model.skops"))
    pipeline.predict(pandas.read_csv("new.csv"))

The parts that are ours, `RowPreparation` and the wrapper of the model, hold plain text; the estimator in the
wrapper is scikit-learn's own: `pipeline["model"].estimator`. Read the list of types before you trust it, as
with every file of skops. Nothing here reads such a file back.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, TransformerMixin
from sklearn.pipeline import Pipeline

from trainwright.datasets.tables.preparation import from_json
from trainwright.errors import InputError
from trainwright.frameworks.sklearn import SklearnFramework
from trainwright.frameworks.sklearn.outputs import flatten_features, outputs_of
from trainwright.frameworks.sklearn.storage import import_skops
from trainwright.inference.predictor import Predictor
from trainwright.inference.whole_files import write_whole
from trainwright.plugins import name_of_framework, task_for
from trainwright.runs.semantics import changed, in_words
from trainwright.tasks.support.transforms import transform_of
from trainwright.types import FEATURES, TARGET, Array, DataInfo

_FITTED = (
    "this pipeline is fitted already, by a run of trainwright: train another run to fit it to other rows"
)
_THREADS = 1  # the outputs of a forest do not depend on them


class RowPreparation(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """The preparation of a run's rows: a data frame with the columns of the training data becomes features.

    Args:
        preparation: What was fitted on the training rows, as JSON.
        about: The description of the data, and the versions of our code that the run began with, as JSON.
    """

    def __init__(self, preparation: str, about: str) -> None:
        self.preparation = preparation
        self.about = about

    def fit(self, X: Any, y: Any = None) -> Self:  # noqa: N803, ARG002 - scikit-learn's names
        """Refuse: it is fitted already, on the run's training rows.

        Raises:
            InputError: Always.
        """
        raise InputError(_FITTED)

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def transform(self, X: Any) -> Any:  # noqa: N803
        """Return the features, (rows, features), or a data frame if the model preprocesses columns itself.

        Raises:
            DataError: A column is missing, or a value cannot be used; names both column and row.
        """
        info = _read(self.about)
        features = from_json(json.loads(self.preparation)).features(X)
        return flatten_features({FEATURES: features, TARGET: np.empty(0)}, info)[FEATURES]

    def get_feature_names_out(self, input_features: Any = None) -> Array:  # noqa: ARG002
        """Return the names of the features."""
        return np.array(from_json(json.loads(self.preparation)).feature_names, dtype=object)


class _RunModel(BaseEstimator):  # type: ignore[misc]
    """A fitted estimator that answers as the run does: labels, and values in the target's original units.

    Args:
        estimator: The estimator, which knows classes by their index.
        about: As of `RowPreparation`.
    """

    def __init__(self, estimator: Any, about: str) -> None:
        self.estimator = estimator
        self.about = about

    def fit(self, X: Any, y: Any = None) -> Self:  # noqa: N803, ARG002
        """Refuse, as `RowPreparation.fit` does.

        Raises:
            InputError: Always.
        """
        raise InputError(_FITTED)

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def _outputs(self, features: Any) -> Array:
        """Return probabilities (rows, classes), or values (rows,) or (rows, outputs)."""
        info = _read(self.about)
        outputs = outputs_of(self.estimator, features, info, _THREADS)
        transform = transform_of(info)
        return outputs if transform is None else transform.inverse(outputs).astype(outputs.dtype)


class RunClassifier(ClassifierMixin, _RunModel):  # type: ignore[misc]
    """A run's classifier, of one label for each row or of several (`multilabel`)."""

    @property
    def classes_(self) -> Array:
        """The labels, in the order of the probabilities."""
        info = _read(self.about)
        return np.asarray(info.classes if info.classes is not None else range(info.outputs))

    def predict_proba(self, X: Any) -> Array:  # noqa: N803
        """Return the probabilities, (rows, classes)."""
        return self._outputs(X)

    def predict(self, X: Any) -> Array:  # noqa: N803
        """Return the most probable labels, (rows,); of `multilabel` 0 or 1 for each, (rows, labels)."""
        outputs, info = self._outputs(X), _read(self.about)
        columns = task_for(info).columns(outputs)
        if "prediction" in columns:
            return np.asarray(self.classes_[outputs.argmax(axis=1)])
        return np.column_stack([columns[f"prediction_{label}"] for label in self.classes_])


class RunRegressor(RegressorMixin, _RunModel):  # type: ignore[misc]
    """A run's regressor."""

    def predict(self, X: Any) -> Array:  # noqa: N803
        """Return the values, (rows,) or (rows, outputs)."""
        return self._outputs(X)


def pipeline_of(predictor: Predictor) -> Pipeline:
    """Return the model of a run as a pipeline that takes raw rows.

    Raises:
        InputError: The model is no estimator of scikit-learn, or its data set brought features.
    """
    run, preparation = predictor.run, predictor.preparation
    if predictor.framework is not SklearnFramework:
        raise InputError(
            f"--format sklearn is for models of scikit-learn; run {run.id} trained one of "
            f"{name_of_framework(predictor.framework)}: use --format mlflow, or native for a booster"
        )
    if preparation is None:
        raise InputError(
            f"run {run.id} was trained on arrays, which need no preparation: export its "
            "estimator with --format skops"
        )
    manifest, info = run.manifest(), predictor.info
    about = json.dumps({"info": info.to_json(), "versions": manifest.semantics if manifest else {}})
    wrapper = RunClassifier if task_for(info).gives_probabilities else RunRegressor
    prepared = RowPreparation(json.dumps(preparation.to_json()), about)
    return Pipeline([("preparation", prepared), ("model", wrapper(predictor.native, about))])


def export_pipeline(predictor: Predictor, path: Path) -> Path:
    """Write the pipeline of a run as a file of skops, and return its path.

    Raises:
        InputError: See `pipeline_of`; or the folder does not exist.
    """
    pipeline = pipeline_of(predictor)
    write_whole(path, lambda made: import_skops().dump(pipeline, made))
    return path


def _read(about: str) -> DataInfo:
    """Return the description of the data.

    Raises:
        InputError: Another version of our code made the pipeline, and computes otherwise.
    """
    data = json.loads(about)
    if others := changed(data["versions"]):
        raise InputError(
            f"another version of Trainwright made this pipeline, and computes otherwise: {in_words(others)}; "
            "export it again from a run of this version"
        )
    return DataInfo.from_json(data["info"])
