"""Boosting rounds of XGBoost that a new booster resumes bit-identically.

XGBoost seeds the randomness of a round by the round's number (`seed_per_iteration`), with one exception: the
generator that samples features is seeded when a booster grows its first tree and is never seeded again. A
resumed booster would therefore sample other features. So, where rows or features are sampled, the tree
updater is reset every 50 rounds: the uninterrupted run does there what a resume must do. A reset in every
round would cost 5 to 30% of the time; every 50 rounds it costs 0.1%. With a million rows or more, where a
round is slow, it happens every 10 rounds and costs 1%.

Everything else that a resume rebuilds has no memory. The margins of the rows are sums of leaf values in the
order of the trees, and have the same bits whether the trees are added one at a time or all at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trainwright.errors import ModelError, TrainingError
from trainwright.frameworks.base import WEIGHTS_FILE, LearnerInputs
from trainwright.frameworks.boosting.learner import BoosterLearner
from trainwright.frameworks.support.stored import Files, bytes_array, read_arrays, read_model
from trainwright.frameworks.xgboost.library import chosen_device, translated, xgboost
from trainwright.frameworks.xgboost.matrices import Matrices
from trainwright.frameworks.xgboost.model import XgboostModel
from trainwright.frameworks.xgboost.native import check_categories, check_initial_model, constraints
from trainwright.frameworks.xgboost.params import XgboostParams
from trainwright.frameworks.xgboost.spec import built_in_objective, model_spec, reported_loss
from trainwright.frameworks.xgboost.targets import targets_of
from trainwright.order import STEP, stream_seed
from trainwright.require import require
from trainwright.types import StepResult

if TYPE_CHECKING:
    import xgboost as xgb

_STATE_FILE = "boosting.safetensors"
_OTHER_METHOD = {"hist": "approx", "approx": "hist", "exact": "hist"}


class XgboostLearner(BoosterLearner[XgboostParams]):
    """An `xgboost.Booster` in training."""

    def __init__(self, inputs: LearnerInputs) -> None:
        library = xgboost()
        require("safetensors", "xgboost")
        spec = model_spec(inputs.config, inputs.model)
        device = chosen_device(inputs.config.training.device, spec.params.grown_by)
        super().__init__(library, inputs, spec, device)
        self._objective = built_in_objective(spec.params, inputs.info)
        self._loss = reported_loss(spec, inputs.info)
        check_categories(spec.params, inputs.info)
        self._matrices = Matrices(inputs, spec.params)
        self._boundary = spec.params.boundary(inputs.order.samples)
        self._initial_rounds = 0  # rounds that came with the initial weights
        self._has_grown = False  # whether this booster has grown a tree since it was built
        self._learning_rate: float | None = None
        with translated("this model cannot be built", ModelError):
            self._sample = self._matrices.sample()
            self._booster = self._build_booster()
        self._model = XgboostModel(inputs, spec, self._matrices.of, self._booster)

    def step(self, step: int, lr: float) -> StepResult:
        """Run one boosting round and return the loss on a sample of the training rows.

        Raises:
            ModelError: XGBoost rejects the options or the data in the first round.
            TrainingError: XGBoost fails later.
        """
        # The library checks the targets, and some options, only in the first update.
        with translated(f"step {step + 1} failed", TrainingError if step else ModelError):
            if self._has_grown and self._boundary > 1 and step % self._boundary == 0:
                self._reset_updater()
            self._has_grown = True
            if lr != self._learning_rate:
                self._booster.set_param({"learning_rate": lr})
                self._learning_rate = lr
            train = self._matrices.train
            if self._spec.objective is not None:
                # With custom gradients the library draws the trees that dart drops before it seeds the round.
                self._booster.set_param({"seed": _step_seed(self._inputs, step)})
            self._booster.update(train, self._initial_rounds + step, self._spec.objective)
            return StepResult(self._model.mean_loss(self._sample), len(self._inputs.splits["train"]))

    def model(self) -> XgboostModel:
        """Return the view of the live booster; it keeps the margins of the run's own splits."""
        return self._model

    def restore(self, folder: Path, *, weights_only: bool = False) -> None:
        """Restore the model from the files in `folder`.

        Raises:
            ModelError: The weights are not an XGBoost model, or do not fit the run.
        """
        raw = bytearray(read_model(folder / WEIGHTS_FILE, "an XGBoost"))
        with translated("these weights cannot be loaded", ModelError):
            self._booster = self._model.booster = self._build_booster(raw)
        self._has_grown, self._learning_rate = False, None
        self._initial_rounds = self._booster.num_boosted_rounds()
        if not weights_only:
            self._initial_rounds = int(read_arrays(folder / _STATE_FILE)["first"][0])

    def definition(self) -> Mapping[str, str]:
        """Return the class and options of an estimator, with the objective that `fit` gives it."""
        definition = super().definition()
        if definition.get("objective") != "binary:logistic":
            return definition
        return {**definition, "objective": built_in_objective(self._spec.params, self._inputs.info)}

    def _custom_calls(self) -> Sequence[Callable[[], Any]]:
        info, matrix = self._inputs.info, self._sample
        width = targets_of(info).width(self._objective)
        margins = np.zeros((matrix.num_row(), width), np.float32)  # as before the first round
        functions = [one for one in (self._spec.objective, self._spec.metric) if one is not None]
        return [partial(one, margins[:, 0] if width == 1 else margins, matrix) for one in functions]

    def _build_booster(self, raw: bytearray | None = None) -> xgb.Booster:
        """Return a booster with the run's options; `raw` is a serialized model that it starts from."""
        inputs, objective = self._inputs, self._objective
        options = self._spec.params.native() | constraints(self._spec.params, inputs.info)
        options |= {"nthread": inputs.threads, "device": self._device, "eval_metric": self._loss.metric}
        options |= {"objective": objective, "seed": _seed(inputs), "seed_per_iteration": True}
        if objective.startswith("multi:"):
            options["num_class"] = inputs.info.outputs
        if raw is not None:
            check_initial_model(raw, inputs, self._spec.params, objective)
            # `raw` holds a base score for each output; set again, it would be stored in another form.
            options.pop("base_score", None)
        booster: xgb.Booster = self._library.Booster(options, [self._matrices.train], raw)
        booster.save_config()  # makes the library check the options now
        booster.feature_names = None  # the matrices have none
        return booster

    def _reset_updater(self) -> None:
        """Discard the tree updater and the state of its feature sampler, but keep the margins of the rows."""
        method = self._spec.params.grown_by
        self._booster.set_param("tree_method", _OTHER_METHOD[method])
        self._booster.save_config()  # applies the change: the library builds another updater
        self._booster.set_param("tree_method", method)
        if method == "approx":
            self._matrices.drop_train()  # its bins may come from the rows that an earlier tree was grown on

    def _files(self, weights_only: bool, step: int | None = None) -> Files:
        rounds = None if step is None else self._initial_rounds + step
        with translated("the model cannot be copied", TrainingError):
            if rounds is not None and rounds >= self._booster.num_boosted_rounds():
                rounds = None
            files = {WEIGHTS_FILE: {"model": bytes_array(self._model.serialized("ubj", rounds))}}
        return files if weights_only else files | {_STATE_FILE: {"first": np.array([self._initial_rounds])}}


def _seed(inputs: LearnerInputs) -> int:
    """Return the seed of the run itself, so that the library, given the same one, makes the same model."""
    return inputs.config.experiment.seed & 0x7FFFFFFF


def _step_seed(inputs: LearnerInputs, step: int) -> int:
    return stream_seed(inputs.config.experiment.seed, STEP, step) & 0x7FFFFFFF
