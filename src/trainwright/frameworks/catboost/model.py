"""The model that predicts: the view of rounds in training, or one that was loaded and owns its trees."""

from __future__ import annotations

import tempfile
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from trainwright.datasets.base import Split
from trainwright.errors import ModelError, TrainingError
from trainwright.frameworks.base import WEIGHTS_FILE, LearnerInputs, Model, ModelInputs
from trainwright.frameworks.boosting.calls import predicted_in_blocks
from trainwright.frameworks.boosting.estimators import check_estimator
from trainwright.frameworks.boosting.objective import Objective, mean_loss
from trainwright.frameworks.catboost.canonical import from_bytes, to_bytes
from trainwright.frameworks.catboost.data import make_pool, rows_of
from trainwright.frameworks.catboost.library import catboost, translated
from trainwright.frameworks.catboost.objective import build_objective
from trainwright.frameworks.catboost.params import model_spec
from trainwright.frameworks.catboost.rounds import Rounds
from trainwright.frameworks.support.fewer_trees import TreeSum
from trainwright.frameworks.support.stored import bytes_array, check_features, read_model
from trainwright.tasks.support.precision import learned
from trainwright.types import FEATURES, TARGET, WEIGHT, Array, Predictions

_ESTIMATORS = {  # CatBoost's class of the models of a task
    "classification": "CatBoostClassifier",
    "multilabel": "CatBoostClassifier",
    "regression": "CatBoostRegressor",
}
PoolOfSplit = tuple[Any, Array, Array | None]  # the pool, the targets, and the weights if there are any


class CatboostModel(Model):
    """A CatBoost model, of which the first rounds predict.

    Args:
        library: The module `catboost`.
        inputs: What the model is built from.
        objective: Its objective.
        metric: A metric of the user's that is reported as the loss, or None.
    """

    def __init__(self, library: Any, inputs: ModelInputs, objective: Objective, metric: Any = None) -> None:
        self.rounds = 0  # of the model; more may have been trained ahead
        self._library = library
        self._inputs = inputs
        self._objective = objective
        self._metric = metric

    def predict(self, split: Split) -> Iterator[Predictions]:
        """Yield the outputs for all rows of a split, block by block.

        Raises:
            TrainingError: CatBoost or the user's metric fails.
        """
        with translated("a prediction failed", TrainingError):
            pool, targets, weights = self._pool_of(split)
            raw = self.raw(pool, self.rounds)
        yield from predicted_in_blocks(raw, targets, weights, self._evaluate)

    def _evaluate(self, raw: Array, targets: Array, weights: Array | None) -> tuple[Array, float]:
        with translated("a prediction failed", TrainingError):
            loss = self.loss(raw, targets, weights)
        return self._objective.answers(self._objective.predictions(raw)), loss

    def loss(self, raw: Array, targets: Array, weights: Array | None = None) -> float:
        """Return the mean over the rows of the user's metric, or of the objective's loss; 0 without weight.

        Args:
            raw: (rows, width) raw values.
            targets: (rows,) class indices or values, or (rows, outputs) values, as the data hold them.
            weights: (rows,) weights of the rows; None: all count the same.
        """
        objective, targets = self._objective, learned(targets, self._inputs.info)
        if self._metric is not None:
            sums = self._metric.evaluate(list(raw.T.copy()), targets, weights)
            return float(self._metric.get_final_error(*sums))
        return mean_loss(objective.losses(objective.outputs(objective.predictions(raw)), targets), weights)

    def raw(self, pool: Any, rounds: int) -> Array:
        """Return (rows, width) float64 raw values of the first `rounds` rounds for a pool."""
        trained = self._trained()
        if trained is None or not rounds:
            return np.zeros((pool.num_row(), self._objective.width))
        end = min(rounds, trained.tree_count_)
        raw = trained.predict(
            pool, prediction_type="RawFormulaVal", ntree_end=end, thread_count=self._inputs.threads
        )
        return np.asarray(raw, dtype=np.float64).reshape(pool.num_row(), -1)

    @property
    def native(self) -> Any:
        """A `catboost.CatBoostClassifier` or `CatBoostRegressor`; a new one at each call."""
        return from_bytes(
            self.serialized(self.rounds), getattr(self._library, _ESTIMATORS[self._inputs.info.task])
        )

    @property
    def link(self) -> str:
        """The function from raw values to the outputs."""
        return self._objective.link

    def importance(self) -> Mapping[str, Array]:
        """Return CatBoost's `PredictionValuesChange`, (features,) float64; it sums to 100."""
        importance = self.native.get_feature_importance()
        return {"prediction_change": np.asarray(importance, dtype=np.float64)}

    @abstractmethod
    def serialized(self, rounds: int) -> bytes:
        """Return the serialized model of the first `rounds` rounds; empty without any."""

    @abstractmethod
    def _trained(self) -> Any:
        """Return the `catboost.CatBoost` of at least `rounds` rounds, or None before the first one."""

    def _pool_of(self, split: Split) -> PoolOfSplit:
        """Return the pool, the targets and the weights of a split."""
        rows = rows_of(split)
        pool = make_pool(self._library, self._inputs.info, rows[FEATURES], None, self._inputs.threads)
        return pool, rows[TARGET], rows.get(WEIGHT)


class LiveModel(CatboostModel):
    """Predict with the rounds that a learner runs.

    The pools of the run's own splits, which are predicted repeatedly, are kept.

    Args:
        library: The module `catboost`.
        inputs: The inputs of the learner.
        objective: Its objective.
        metric: A metric of the user's that is reported as the loss, or None.
        source: The growing model.
    """

    def __init__(
        self, library: Any, inputs: LearnerInputs, objective: Objective, metric: Any, source: Rounds
    ) -> None:
        super().__init__(library, inputs, objective, metric)
        self._owns = inputs.owns
        self._source = source
        self._pools: dict[int, PoolOfSplit] = {}
        self._serialized: tuple[int, bytes] | None = None  # (rounds, the model of these rounds)

    def restore(self, rounds: int, data: bytes) -> None:
        """Take the number of rounds of a restored model, and its serialization."""
        self.rounds, self._serialized = rounds, (rounds, data)

    def serialized(self, rounds: int) -> bytes:
        """Return the serialized model of the first `rounds` rounds; empty without any."""
        if self._serialized is None or self._serialized[0] != rounds:
            model = self._source.model
            self._serialized = rounds, to_bytes(model, rounds) if model is not None and rounds else b""
        return self._serialized[1]

    def _trained(self) -> Any:
        return self._source.model

    def _pool_of(self, split: Split) -> PoolOfSplit:
        """Return the pool, the targets and the weights; those of the run's own splits are kept."""
        if id(split) in self._pools:
            return self._pools[id(split)]
        pool = super()._pool_of(split)
        if self._owns(split):
            self._pools[id(split)] = pool
        return pool


class LoadedModel(CatboostModel):
    """Predict with trees that never change; CatBoost does so from several threads.

    Args:
        library: The module `catboost`.
        inputs: What the model is built from.
        objective: Its objective.
        metric: A metric of the user's that is reported as the loss, or None.
        data: The serialized model.
    """

    def __init__(
        self, library: Any, inputs: ModelInputs, objective: Objective, metric: Any, data: bytes
    ) -> None:
        super().__init__(library, inputs, objective, metric)
        self._data = data
        self._model = from_bytes(data, library.CatBoost) if data else None
        if self._model is not None:
            self.rounds = self._model.tree_count_
            check_features(len(self._model.feature_names_), inputs.info)

    @property
    def trees(self) -> TreeSum:
        """The trees, for compression."""
        return TreeSum("CatBoost", self.rounds, lambda count: {"model": bytes_array(self.serialized(count))})

    def serialized(self, rounds: int) -> bytes:
        """Return the serialized model of the first `rounds` rounds."""
        if self._model is None or rounds == self.rounds:
            return self._data
        return to_bytes(self._model, rounds)

    def _trained(self) -> Any:
        return self._model


def load_model(inputs: ModelInputs, folder: Path) -> LoadedModel:
    """Return the model in `folder`; see `Framework.load`."""
    library = catboost()
    spec = model_spec(inputs.config, inputs.model)
    check_estimator(inputs, spec.task)
    objective = build_objective(spec, inputs.info)
    with translated("these weights cannot be loaded", ModelError):
        data = read_model(folder / WEIGHTS_FILE, "a CatBoost")
        return LoadedModel(library, inputs, objective, spec.metric, data)


def give(trained: Any, estimator: Any) -> None:
    """Load the trees of a model into an estimator, whose options stay; the library loads from files alone."""
    options = dict(estimator._init_params)
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder) / "model.cbm")
        trained.save_model(file)
        estimator.load_model(file)
    estimator._init_params = options
