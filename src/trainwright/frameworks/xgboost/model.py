"""The model that predicts: the view of a booster in training, or one that was loaded and owns its booster."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trainwright.datasets.base import ArraySplit, Split
from trainwright.datasets.samples.arrays import Arrays
from trainwright.errors import ModelError, TrainingError
from trainwright.frameworks.base import WEIGHTS_FILE, Model, ModelInputs
from trainwright.frameworks.boosting.estimators import check_estimator
from trainwright.frameworks.support.fewer_trees import TreeSum
from trainwright.frameworks.support.stored import bytes_array, check_features, read_model
from trainwright.frameworks.xgboost.cutting import cut_json
from trainwright.frameworks.xgboost.library import chosen_device, translated, xgboost
from trainwright.frameworks.xgboost.matrices import Rows, feature_names, named_matrix
from trainwright.frameworks.xgboost.spec import XgboostSpec, model_spec, reported_loss
from trainwright.frameworks.xgboost.targets import targets_of
from trainwright.require import require
from trainwright.tasks.support.precision import restored
from trainwright.types import WEIGHT, Array, Predictions

if TYPE_CHECKING:
    import xgboost as xgb


class XgboostModel(Model):
    """A booster of XGBoost.

    XGBoost promises that several threads may predict with one booster of trees, dart included. It does not
    promise that for its metrics, and its Python code sets names of columns when it computes them.

    Args:
        inputs: What the model is built from.
        spec: The definition of the model.
        rows_of: Returns the matrix and the targets of a split.
        booster: The booster; a learner replaces it at a restore.
    """

    def __init__(
        self,
        inputs: ModelInputs,
        spec: XgboostSpec,
        rows_of: Callable[[Split], Rows],
        booster: xgb.Booster,
    ) -> None:
        self.booster = booster
        self._inputs = inputs
        self._spec = spec
        self._rows_of = rows_of
        self._targets = targets_of(inputs.info)
        self._power = reported_loss(spec, inputs.info).power
        self._metrics = threading.Lock()

    def predict(self, split: Split) -> Iterator[Predictions]:
        """Yield the outputs for all rows of a split, in one piece.

        Raises:
            TrainingError: XGBoost or the user's metric fails.
        """
        with translated("a prediction failed", TrainingError):
            matrix, targets = self._rows_of(split)
            outputs = self._outputs(matrix)
            weights = split.arrays.get(WEIGHT) if isinstance(split, Arrays | ArraySplit) else None
            loss = self.mean_loss(matrix) * (len(split) if weights is None else float(weights.sum()))
        yield Predictions(np.arange(len(split), dtype=np.int64), outputs, targets, loss, weights=weights)

    def mean_loss(self, matrix: xgb.DMatrix) -> float:
        """Return the mean over the rows of the user's metric, or of the objective's built-in loss.

        The built-in loss is the mean by the weights of the rows; a metric of the user's gets the matrix,
        which has them.
        """
        if self._spec.metric is not None:
            return float(self._spec.metric(self.booster.predict(matrix), matrix)[1])
        with self._metrics:
            line = self.booster.eval_set([(matrix, "")])
        return float(line.rpartition(":")[2]) ** self._power

    @property
    def native(self) -> xgb.Booster:
        """The booster itself."""
        return self.booster

    def importance(self) -> Mapping[str, Array]:
        """Return the importance of each feature, (features,) float64, by XGBoost's measures.

        `gain` is the mean gain of the feature's splits, `weight` the number of them, `cover` the mean sum of
        second derivatives that they cover.
        """
        size = int(np.prod(self._inputs.info.input_shape))
        names = self.booster.feature_names or [f"f{i}" for i in range(size)]
        positions = {name: i for i, name in enumerate(names)}
        scores = {kind: np.zeros(size) for kind in ("gain", "weight", "cover")}
        with translated("the feature importance cannot be computed", TrainingError):
            for kind, values in scores.items():
                for name, value in self.booster.get_score(importance_type=kind).items():
                    values[positions[name]] = value
        return scores

    @property
    def trees(self) -> TreeSum:
        """The trees, for compression."""
        return TreeSum(
            "XGBoost",
            self.booster.num_boosted_rounds(),
            lambda count: {"model": bytes_array(self.serialized("ubj", count))},
            cut=lambda share: {"model": bytes_array(self._cut(share))},
        )

    def _cut(self, share: float) -> bytearray:
        """Return the model without a share of the leaves of each tree."""
        raw: bytearray = type(self.booster)(model_file=cut_json(self.serialized("json"), share)).save_raw(
            "ubj"
        )
        return raw

    def serialized(self, form: str, rounds: int | None = None) -> bytearray:
        """Return the model in one of XGBoost's formats, with the feature names.

        Args:
            form: `ubj` or `json`.
            rounds: Take only the first rounds; None for all.
        """
        booster = self.booster if rounds is None else self.booster[:rounds]
        names = feature_names(self._inputs.info)
        if booster.feature_names == names:
            return booster.save_raw(form)
        booster.feature_names = names  # in training it has none, as its matrices
        raw = booster.save_raw(form)
        booster.feature_names = None
        return raw

    def _outputs(self, matrix: xgb.DMatrix) -> Array:
        """Return float32 probabilities (rows, classes), or values (rows,) or (rows, outputs)."""
        outputs = np.asarray(self._targets.outputs(self.booster.predict(matrix)), dtype=np.float32)
        return restored(outputs, self._inputs.info)


def load_model(inputs: ModelInputs, folder: Path) -> XgboostModel:
    """Return the model in `folder`; see `Framework.load`."""
    library: Any = xgboost()
    require("safetensors", "xgboost")
    spec = model_spec(inputs.config, inputs.model)
    check_estimator(inputs, spec.task)
    options = {
        "nthread": inputs.threads,  # of this booster only
        "device": chosen_device(inputs.config.training.device, spec.params.grown_by),
        "eval_metric": reported_loss(spec, inputs.info).metric,
    }
    if options["eval_metric"] == "quantile":  # which has the quantile from the options, not from the file
        options["quantile_alpha"] = spec.params.quantile_alpha
    raw = bytearray(read_model(folder / WEIGHTS_FILE, "an XGBoost"))
    with translated("these weights cannot be loaded", ModelError):
        booster = library.Booster(options, model_file=raw)
        booster.save_config()  # makes the library apply the options now, and not in the first predictions
    check_features(booster.num_features(), inputs.info)
    return XgboostModel(inputs, spec, partial(named_matrix, inputs), booster)
