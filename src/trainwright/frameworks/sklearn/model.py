"""Models that predict; that of a learner is in `learner.py`."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from trainwright.config.schema import RunConfig
from trainwright.datasets.base import ArraySplit, Split
from trainwright.datasets.samples.arrays import Arrays
from trainwright.errors import InputError, ModelError, TrainingError, TrainwrightError
from trainwright.frameworks.base import WEIGHTS_FILE, Model, ModelInputs
from trainwright.frameworks.sklearn import storage
from trainwright.frameworks.sklearn.cutting import cut_estimator, is_one_tree
from trainwright.frameworks.sklearn.estimator import build_estimator, stored_class
from trainwright.frameworks.sklearn.mutable import MutableParts, changes_settings
from trainwright.frameworks.sklearn.outputs import (
    ROWS,
    flatten_features,
    is_forest,
    is_frame,
    outputs_of,
    parallel_jobs,
    row_ranges,
    take_all,
    total_loss,
)
from trainwright.frameworks.sklearn.params import quantile_of
from trainwright.frameworks.sklearn.process import settings_kept, thread_pools
from trainwright.frameworks.sklearn.steps import ensemble_family, first_iterations
from trainwright.frameworks.sklearn.targets import targets_of
from trainwright.frameworks.support.fewer_trees import TreeSum
from trainwright.frameworks.support.stored import read_arrays
from trainwright.require import require
from trainwright.types import FEATURES, TARGET, WEIGHT, Array, Batch, DataInfo, Predictions


class EstimatorModel(Model):
    """A model of this framework, live or loaded."""

    def __init__(self, config: RunConfig, info: DataInfo) -> None:
        self._config = config
        self._info = info

    @property
    def rows_together(self) -> int:
        """The rows of a call, of estimators that do not get all rows in one."""
        return self._config.evaluation.batch_size or ROWS

    @property
    def parameter_count(self) -> int | None:
        """The number of coefficients and intercepts; None if the estimator has none."""
        return _coefficients(self.native)

    def importance(self) -> Mapping[str, Array]:
        """Return impurity importances and absolute coefficients (mean over outputs), (features,) float64."""
        estimator, features = self.native, int(np.prod(self._info.input_shape))
        importances: dict[str, Array] = {}
        for kind, attribute in (("impurity", "feature_importances_"), ("coefficient", "coef_")):
            values = getattr(estimator, attribute, None)
            if isinstance(values, np.ndarray) and values.shape[-1:] == (features,):
                importances[kind] = np.abs(values.astype(np.float64)).reshape(-1, features).mean(axis=0)
        return importances

    def _batches(self, split: Split, estimator: Any) -> Iterator[tuple[Array, Batch]]:
        """Yield the rows that are predicted together: their ids and arrays.

        A forest predicts all rows at once, so that a learner can reuse its earlier sums. So does a pipeline,
        whose outputs then have the bits of one call.
        """
        in_frame = isinstance(split, Arrays | ArraySplit) and is_frame(split.arrays[FEATURES])
        at_once = is_forest(estimator) or in_frame
        size = len(split) if at_once else self.rows_together
        for ids in row_ranges(len(split), size):
            yield (
                ids,
                take_all(split, self._info) if at_once else flatten_features(split.take(ids), self._info),
            )

    def _predictions(self, ids: Array, outputs: Array, batch: Batch) -> Predictions:
        targets, weights = batch[TARGET], batch.get(WEIGHT)
        loss = total_loss(outputs, targets, self._info, weights, quantile_of(self._config))
        return Predictions(ids, outputs, targets, loss, weights=weights)


def _coefficients(estimator: Any) -> int | None:
    names = ("coef_", "intercept_", "coefs_", "intercepts_")
    found = [value for name in names if (value := getattr(estimator, name, None)) is not None]
    arrays = [array for value in found for array in (value if isinstance(value, list) else [value])]
    return sum(np.size(array) for array in arrays) if arrays else None


class LoadedModel(EstimatorModel):
    """A fitted estimator that many threads may use at once.

    Args:
        inputs: What the model is built from.
        estimator: The estimator, as it was stored.
    """

    def __init__(self, inputs: ModelInputs, estimator: Any) -> None:
        super().__init__(inputs.config, inputs.info)
        self._threads = inputs.threads
        self._native = estimator
        predicting = copy.copy(estimator)  # the number of jobs is not part of the model
        if hasattr(predicting, "n_jobs"):
            predicting.n_jobs = parallel_jobs(estimator, inputs.threads)
        self._estimator = predicting
        self._mutable = MutableParts(predicting)
        by_trees = is_forest(estimator) and targets_of(inputs.info).by_trees  # see `outputs_of`
        changes = not by_trees and changes_settings(estimator)
        self._pools = thread_pools() if changes else None

    @property
    def native(self) -> Any:
        """The scikit-learn estimator."""
        return self._native

    @property
    def trees(self) -> TreeSum:
        """The iterations of an ensemble, for compression.

        Raises:
            InputError: It is no ensemble that adds them up one by one.
        """
        estimator = self._native
        kind, family = type(estimator).__name__, ensemble_family(estimator)
        if is_one_tree(estimator):
            return TreeSum(kind, 1, lambda _: storage.pack(estimator), "trees", self._cut)
        if family is None:
            raise InputError(
                f"a {kind} cannot be compressed: only trees, forests and boosters of scikit-learn can"
            )
        return TreeSum(
            kind,
            len(getattr(estimator, family.lists[0], ())),
            lambda count: storage.pack(first_iterations(estimator, family, count)),
            "trees" if is_forest(estimator) else "rounds",
            self._cut,
        )

    def _cut(self, share: float) -> Mapping[str, Array]:
        return storage.pack(cut_estimator(self._native, share))

    def predict(self, split: Split) -> Iterator[Predictions]:
        """Yield the outputs of a split.

        Raises:
            TrainingError: The library fails.
        """
        estimator = self._mutable.copied(self._estimator)
        for ids, batch in self._batches(split, estimator):
            with self._settings_kept(), sklearn_errors("prediction"):
                outputs = outputs_of(estimator, batch[FEATURES], self._info, self._threads)
            yield self._predictions(ids, outputs, batch)

    def _settings_kept(self) -> AbstractContextManager[None]:
        """Return a context that restores the process's settings, if predictions change them."""
        return nullcontext() if self._pools is None else settings_kept(self._pools)


def load_model(inputs: ModelInputs, folder: Path) -> LoadedModel:
    """Return the model that a snapshot wrote.

    Raises:
        ModelError: The files hold no trusted estimator, or one of another class or number of features.
    """
    if is_users(inputs):
        template = build_estimator(inputs)
        expected, trust = type(template), storage.trust_for(template)
    else:
        expected, trust = stored_class(inputs), storage.Trust()
    return LoadedModel(inputs, read_estimator(inputs, folder, expected, trust))


def is_users(inputs: ModelInputs) -> bool:
    """Return whether the estimator is the user's own object, class or function, and no short name."""
    return inputs.model is not None or ":" in inputs.config.model.type


def read_estimator(inputs: ModelInputs, folder: Path, expected: type, trust: storage.Trust) -> Any:
    """Read the estimator that a snapshot wrote, and check that it fits the run.

    Raises:
        ModelError: The file holds no trusted estimator, or one of another class or number of features.
    """
    estimator: Any = storage.unpack(read_arrays(folder / WEIGHTS_FILE), trust)
    name, features = inputs.config.model.type, int(np.prod(inputs.info.input_shape))
    if type(estimator) is not expected:
        raise ModelError(
            f"these are weights of {type(estimator).__name__}, but model {name} is {expected.__name__}"
        )
    if (fitted := getattr(estimator, "n_features_in_", features)) != features:
        raise ModelError(f"these are weights for {fitted} features, but the data have {features}")
    return estimator


@contextmanager
def sklearn_errors(what: str, *, first: bool = False) -> Iterator[None]:
    """Let joblib use threads only, in this thread, and translate scikit-learn's errors.

    Args:
        what: What the body does, for the message.
        first: Whether the body is the first step.
    """
    try:
        # One job wherever an estimator does not say how many, even inside a user's own parallel_config.
        with require("joblib", "sklearn").parallel_config(backend="threading", n_jobs=1):
            yield
    except TrainwrightError:
        raise
    except Exception as error:
        raise _translated(error, what, first) from error


def _translated(error: Exception, what: str, first: bool) -> TrainwrightError:
    """Return one of our errors for one of scikit-learn's."""
    hint = "see where with --debug"
    if "contains NaN" in str(error):
        hint = "this model does not accept missing values: set data.impute"
    message = f"{what} failed: {type(error).__name__}: {error}; {hint}"
    # A ValueError or TypeError in the very first step comes from the options or the data.
    return (
        ModelError(message) if first and isinstance(error, ValueError | TypeError) else TrainingError(message)
    )
