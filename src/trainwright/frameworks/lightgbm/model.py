"""The model that predicts: the view of trees in training, or one that was loaded and owns its trees."""

from __future__ import annotations

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
from trainwright.frameworks.lightgbm.boosting import Boosting
from trainwright.frameworks.lightgbm.cutting import cut_text
from trainwright.frameworks.lightgbm.data import Rows, Scores
from trainwright.frameworks.lightgbm.library import lightgbm, translated
from trainwright.frameworks.lightgbm.objective import build_objective
from trainwright.frameworks.lightgbm.spec import LightgbmSpec, model_spec
from trainwright.frameworks.lightgbm.trees import Trees, join_model
from trainwright.frameworks.support.fewer_trees import TreeSum
from trainwright.frameworks.support.passed import class_labels
from trainwright.frameworks.support.stored import bytes_array, check_features, read_model
from trainwright.tasks.support.precision import learned
from trainwright.types import Array, DataInfo, Predictions


class LightgbmModel(Model):
    """A booster of LightGBM, whose sums of trees become predictions and losses.

    Args:
        library: The module `lightgbm`.
        spec: The definition of the model.
        objective: Its objective.
    """

    def __init__(self, library: Any, spec: LightgbmSpec, objective: Objective) -> None:
        self._library = library
        self._spec = spec
        self._objective = objective

    def predict(self, split: Split) -> Iterator[Predictions]:
        """Yield the outputs for all rows of a split, block by block.

        Raises:
            TrainingError: LightGBM or the user's metric fails.
        """
        with translated("a prediction failed", TrainingError):
            scores = self._scores_of(split)
            raw, rows = scores.raw, scores.rows
            if self._spec.params.boosting == "rf":
                raw = raw / max(1, scores.rounds)
        yield from predicted_in_blocks(raw, rows.targets, rows.weights, self._evaluate)

    def _evaluate(self, raw: Array, targets: Array, weights: Array | None) -> tuple[Array, float]:
        with translated("a prediction failed", TrainingError):
            predictions = self._objective.predictions(raw)
            (loss,) = self.losses(predictions, targets, 1, weights)
        return self._objective.answers(predictions), loss

    def losses(
        self, predictions: Array, targets: Array, count: int, weights: Array | None = None
    ) -> list[float]:
        """Return the mean loss of each of `count` models; 0 if all weights are zero.

        Args:
            predictions: (count * rows, width), one model after the other.
            targets: (rows,), as the data hold them.
            count: The number of models.
            weights: (rows,) weights of the rows; None: all count the same.

        Raises:
            ModelError: Higher values of the user's metric are better.
        """
        targets = learned(targets, self._objective.info)
        if self._spec.metric is None:
            losses = self._objective.losses(self._objective.outputs(predictions), np.tile(targets, count))
            return [mean_loss(of_model, weights) for of_model in losses.reshape(count, -1)]
        single = predictions[:, 0] if self._objective.width == 1 else predictions
        # The metric gets a dataset that holds targets and weights, but neither features nor bins.
        empty = np.empty((len(targets), 0))
        values = [
            self._spec.metric(part, self._library.Dataset(empty, label=targets, weight=weights))
            for part in np.split(single, count)
        ]
        if any(higher for _, _, higher in values):
            raise ModelError(
                "model.params.metric: higher is better, but it is the loss; return its negative, and False"
            )
        return [float(value) for _, value, _ in values]

    @property
    def objective(self) -> str:
        """The name of the objective; `none` for the user's."""
        return self._objective.name

    @property
    def link(self) -> str:
        """The function from predictions to the outputs: LightGBM applies that of its own objectives."""
        return self._objective.link if self._objective.name == "none" else "identity"

    def importance(self) -> Mapping[str, Array]:
        """Return the importance of each feature, (features,) float64.

        `gain` is the sum of the gains of the feature's splits, `split` the number of them.
        """
        booster = self._booster()
        return {kind: booster.feature_importance(kind).astype(np.float64) for kind in ("gain", "split")}

    @abstractmethod
    def _booster(self) -> Any:
        """Return a `lightgbm.Booster` of all trees."""

    @abstractmethod
    def _scores_of(self, split: Split) -> Scores:
        """Return the scores of all trees for a split."""


class LiveModel(LightgbmModel):
    """Predict with the trees that a learner grows.

    The scores of the run's own splits, which are predicted repeatedly, are kept.

    Args:
        inputs: The inputs of the learner.
        spec: The definition of the model.
        objective: Its objective.
        trees: The trees.
        boosting: What grows them.
    """

    def __init__(
        self,
        inputs: LearnerInputs,
        spec: LightgbmSpec,
        objective: Objective,
        trees: Trees,
        boosting: Boosting,
    ) -> None:
        super().__init__(trees.library, spec, objective)
        self._inputs = inputs
        self._trees = trees
        self._boosting = boosting
        self._kept: dict[int, Scores] = {}

    @property
    def native(self) -> Any:
        """A `lightgbm.Booster` with the present trees; a copy."""
        return self._booster()

    def forget(self) -> None:
        """Discard the scores that are kept, after the trees were replaced."""
        self._kept.clear()

    def _booster(self) -> Any:
        self._boosting.collect()
        return self._trees.booster()

    def _scores_of(self, split: Split) -> Scores:
        """Return the scores of all trees; recompute them where earlier trees may have changed."""
        boosting = self._boosting
        scores = self._kept.get(id(split)) or Scores(Rows(split), self._objective.width)
        if self._inputs.owns(split):
            self._kept[id(split)] = scores
        if 0 < scores.rounds <= boosting.rounds and self._spec.params.boosting != "dart":
            scores.advance(boosting.rounds, boosting)
        else:
            boosting.collect()
            scores.recompute(self._trees)
        return scores


class LoadedModel(LightgbmModel):
    """Predict with trees that never change.

    LightGBM predicts with one booster from several threads, if all of them ask for the same rounds. A user
    may ask for others, so `native` is another booster.

    Args:
        library: The module `lightgbm`.
        spec: The definition of the model.
        objective: Its objective.
        text: The model in LightGBM's format.
    """

    def __init__(self, library: Any, spec: LightgbmSpec, objective: Objective, text: str) -> None:
        super().__init__(library, spec, objective)
        self._text = text
        self._trees = Trees(library, objective.width, threads=None)
        self._trees.parse(text)
        self._trees.booster()  # it is cached, so that all threads have the same one

    @property
    def trees(self) -> TreeSum:
        """The trees, for compression."""
        trees = self._trees
        return TreeSum(
            "LightGBM",
            trees.rounds,
            lambda count: {"model": bytes_array(join_model(*trees.part(count)).encode())},
            cut=lambda share: {
                "model": bytes_array(
                    join_model(trees.head, [cut_text(one, share) for one in trees.texts]).encode()
                )
            },
        )

    @property
    def features(self) -> int:
        """The number of features that it takes."""
        return int(self._trees.booster().num_feature())

    @property
    def native(self) -> Any:
        """A `lightgbm.Booster`; a new one at each call."""
        return self._library.Booster(model_str=self._text)

    def _booster(self) -> Any:
        return self._trees.booster()

    def _scores_of(self, split: Split) -> Scores:
        scores = Scores(Rows(split), self._objective.width)
        scores.recompute(self._trees)
        return scores


def load_model(inputs: ModelInputs, folder: Path) -> LoadedModel:
    """Return the model in `folder`; see `Framework.load`."""
    library = lightgbm()
    spec = model_spec(inputs.config, inputs.model)
    check_estimator(inputs, spec.task)
    objective = build_objective(spec, inputs.info)
    text = read_model(folder / WEIGHTS_FILE, "a LightGBM").decode()
    with translated("these weights cannot be loaded", ModelError):
        model = LoadedModel(library, spec, objective, text)
    check_features(model.features, inputs.info)
    return model


def give(model: Model, estimator: Any, info: DataInfo) -> None:
    """Give an `LGBMModel` the booster of a model, as its `fit` does.

    Args:
        model: The model.
        estimator: The estimator.
        info: What the model was trained on.
    """
    assert isinstance(model, LightgbmModel)
    booster = model.native
    features = booster.num_feature()
    vars(estimator).update(
        _Booster=booster, _n_features=features, _n_features_in=features, _best_iteration=0, fitted_=True
    )
    estimator._objective = estimator.objective or model.objective
    if hasattr(type(estimator), "predict_proba"):
        from sklearn.preprocessing import LabelEncoder

        labels, encoder = class_labels(info), LabelEncoder()
        encoder.classes_ = classes = np.arange(info.outputs) if labels is None else labels
        class_map = dict(zip(classes, range(len(classes)), strict=True))
        vars(estimator).update(_classes=classes, _n_classes=len(classes), _le=encoder, _class_map=class_map)
