"""Steps of the training of an estimator, by kind.

`growth`: ensembles that can continue to grow (`warm_start`). A step adds some iterations, so the model after
a step is a prefix of every later one. The final model equals that of a single `fit` by scikit-learn.
`batches`: estimators with `partial_fit`. A step is a minibatch.
`once`: all others, and estimators that decide by themselves when to stop. The only step is a `fit` on all
rows.
"""

from __future__ import annotations

import copy
import inspect
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from trainwright.errors import ModelError
from trainwright.frameworks.sklearn.binning import BinCache
from trainwright.order import INIT, STEP, stream_seed
from trainwright.types import FEATURES, TARGET, WEIGHT, Array, Batch, DataInfo

Kind = Literal["growth", "batches", "once"]


@dataclass(frozen=True)
class EnsembleFamily:
    """A family of scikit-learn's ensembles, and the names of the attributes involved in growing one.

    Attributes:
        count: The parameter with the number of iterations.
        lists: Attributes that hold one entry per iteration.
        generator: Attribute with the random generator that all iterations draw from in turn, if there is one.
    """

    count: str
    lists: tuple[str, ...]
    generator: str | None = None


FAMILIES = {
    "BaseForest": EnsembleFamily("n_estimators", ("estimators_",)),
    "BaseBagging": EnsembleFamily("n_estimators", ("estimators_", "estimators_features_", "_seeds")),
    "BaseGradientBoosting": EnsembleFamily(
        "n_estimators", ("estimators_", "train_score_", "oob_improvement_", "oob_scores_"), "_rng"
    ),
    "BaseHistGradientBoosting": EnsembleFamily("max_iter", ("_predictors",), "_feature_subsample_rng"),
}
SMALL_BATCH = 10_000_000  # features times outputs of a minibatch
SEEDS = 2**31  # all of scikit-learn accepts seeds below this number


def ensemble_family(estimator: Any) -> EnsembleFamily | None:
    """Return the family of an ensemble; None for other estimators and for subclasses that override `fit`."""
    if not getattr(getattr(type(estimator), "fit", None), "__module__", "").startswith("sklearn.ensemble."):
        return None
    names = {base.__name__ for base in type(estimator).__mro__}
    return next((family for name, family in FAMILIES.items() if name in names), None)


def step_kind(estimator: Any) -> Kind:
    """Return the kind of step that trains an estimator; see the module's docstring."""
    stops = getattr(estimator, "early_stopping", False) is True
    if ensemble_family(estimator) is not None:
        stops |= (
            not hasattr(estimator, "early_stopping")
            and getattr(estimator, "n_iter_no_change", None) is not None
        )
        return "once" if stops or getattr(estimator, "oob_score", False) else "growth"
    needs_all = stops or getattr(estimator, "class_weight", None) == "balanced"
    return "batches" if callable(getattr(estimator, "partial_fit", None)) and not needs_all else "once"


def learning_rate_name(estimator: Any) -> str | None:
    """Return the name of the learning rate parameter; None if the rate cannot change between steps."""
    if step_kind(estimator) == "once":
        return None
    if hasattr(estimator, "eta0"):
        return (
            "eta0" if getattr(estimator, "learning_rate", "constant") in {"constant", "invscaling"} else None
        )
    if hasattr(estimator, "learning_rate_init"):
        return "learning_rate_init"
    # GradientBoosting multiplies all its trees by the current rate. HistGradientBoosting multiplies each tree
    # by the rate at which it was grown, so only there the rate can change.
    return (
        "learning_rate"
        if (family := ensemble_family(estimator)) is not None and family.count == "max_iter"
        else None
    )


def fixed_parameters(estimator: Any) -> dict[str, Any]:
    """Return the parameters of an estimator that stay the same while it is trained.

    Parameters that hold estimators are left out, since `fit` may change these, and so is an ensemble's
    iteration count.
    """
    from sklearn.base import BaseEstimator

    def holds_estimator(value: Any) -> bool:
        return isinstance(value, BaseEstimator) or (
            isinstance(value, list | tuple) and any(holds_estimator(one) for one in value)
        )

    family = ensemble_family(estimator)
    parameters: dict[str, Any] = estimator.get_params(deep=False)
    return {
        name: value
        for name, value in parameters.items()
        if not holds_estimator(value) and (family is None or name != family.count)
    }


def sklearn_seed(*parts: int) -> int:
    """Return a seed in the range that scikit-learn accepts, derived from `parts`."""
    return stream_seed(*parts) % SEEDS


@contextmanager
def temporary_parameters(estimator: Any, **values: Any) -> Iterator[None]:
    """Set parameters that are not part of the model, where the estimator has them, and reset them on exit."""
    before = {name: getattr(estimator, name) for name in values if hasattr(estimator, name)}
    try:
        for name in before:
            setattr(estimator, name, values[name])
        yield
    finally:
        for name, value in before.items():
            setattr(estimator, name, value)


def weight_options(estimator: Any, weights: Array | None, kind: Kind) -> dict[str, Array]:
    """Return the options of `fit` (`partial_fit` for batches) that pass the weights of the rows.

    Args:
        estimator: The estimator; of a pipeline, the last step gets the weights.
        weights: (rows,) float64; None: there are none.
        kind: How the estimator is trained.

    Raises:
        ModelError: It takes no weights.
    """
    if weights is None:
        return {}
    steps = getattr(estimator, "steps", None)
    is_pipeline = isinstance(steps, list) and bool(steps) and isinstance(steps[-1], tuple)
    prefix, last = (f"{steps[-1][0]}__", steps[-1][1]) if is_pipeline and steps else ("", estimator)
    method = "partial_fit" if kind == "batches" else "fit"
    if "sample_weight" not in inspect.signature(getattr(last, method)).parameters:
        raise ModelError(
            f"{type(last).__name__}.{method} has no sample_weight, so that it takes no weights: leave "
            "data.weight and training.class_weights out, or use another model"
        )
    return {f"{prefix}sample_weight": weights}


@dataclass(frozen=True)
class StepSettings:
    """The settings of a run that a step needs; `per_step` is the number of iterations that a step adds."""

    seed: int
    threads: int
    info: DataInfo
    per_step: int


class Stepper(ABC):
    """Train an estimator step by step."""

    def __init__(self, estimator: Any, settings: StepSettings) -> None:
        self.estimator = estimator
        self.settings = settings

    @abstractmethod
    def step(self, step: int, lr: float, batch: Batch) -> None:
        """Train one step.

        Args:
            step: The step number, counted from 0.
            lr: The learning rate.
            batch: All training rows, or the step's minibatch: features (rows, features), targets
                (rows,) int64 class indices, or (rows,) / (rows, outputs) values, and maybe weights
                (rows,) float64.
        """

    def model(self, step: int | None = None) -> Any:  # noqa: ARG002 - only ensembles keep the models of earlier steps
        """Return the estimator for prediction: as it is now, or as it was after `step` steps."""
        return self.estimator

    def training_state(self) -> dict[str, Any]:
        """Return what a resume needs in addition to the model."""
        return {}

    def restore(self, estimator: Any, training_state: Mapping[str, Any]) -> None:  # noqa: ARG002 - most have none
        """Continue from a saved model; with an empty training state, treat it as initial weights."""
        self.estimator = estimator


def first_iterations(estimator: Any, family: EnsembleFamily, count: int) -> Any:
    """Return a shallow copy of an ensemble, cut to its first `count` iterations."""
    model = copy.copy(estimator)
    for name in family.lists:
        if hasattr(model, name):
            setattr(model, name, getattr(model, name)[:count])
    setattr(model, family.count, count)
    if hasattr(model, "n_estimators_"):
        model.n_estimators_ = count
    if hasattr(model, "oob_scores_"):
        model.oob_score_ = model.oob_scores_[-1]
    if family.generator is not None:
        model.__dict__.pop(family.generator, None)
    return model


class EnsembleStepper(Stepper):
    """Add iterations to an ensemble; the kind `growth`."""

    def __init__(self, estimator: Any, settings: StepSettings) -> None:
        super().__init__(estimator, settings)
        family = ensemble_family(estimator)
        assert family is not None, "the kind `growth` is for ensembles only"
        self._family, self._total = family, getattr(estimator, family.count)
        self._initial = 0  # iterations of the initial weights, before step 0
        self._bin_cache = BinCache()

    @property
    def iterations(self) -> int:
        """The current number of iterations."""
        return len(getattr(self.estimator, self._family.lists[0], ()))

    def step(self, step: int, lr: float, batch: Batch) -> None:
        """Continue to fit, up to the number of iterations after this step."""
        values: dict[str, Any] = {"warm_start": True, "n_jobs": self.settings.threads}
        if (rate := learning_rate_name(self.estimator)) is not None:
            values[rate] = lr
        seeds = getattr(self.estimator, "_seeds", ())
        self._provide_generator()
        setattr(self.estimator, self._family.count, self._iterations_after(step + 1))
        with temporary_parameters(self.estimator, **values), self._bin_cache.reused(self.estimator):
            # Pass views: if each step's trees kept references to the same array objects, storage would record
            # that they are shared, and after a resume they would not be.
            options = weight_options(self.estimator, batch.get(WEIGHT), "growth")
            self.estimator.fit(batch[FEATURES][:], batch[TARGET][:], **options)
        self._clean_up(seeds)

    def _clean_up(self, previous_seeds: Any) -> None:
        """Make the estimator look as if it was fitted only once; `previous_seeds` are from earlier fits."""
        if len(previous_seeds):  # bagging keeps only the seeds of its last fit
            self.estimator._seeds = np.concatenate([previous_seeds, self.estimator._seeds])
        # Each tree refers to the generator, whose state continues to change.
        if self._family.generator == "_rng":
            for tree in self.estimator.estimators_.flat:
                tree.random_state = None
        if hasattr(self.estimator, "_bin_mapper"):  # the thread count does not belong to the model
            self.estimator._bin_mapper.n_threads = 1

    def model(self, step: int | None = None) -> Any:
        """Return a shallow copy of the ensemble, cut to its iterations after `step` steps."""
        if not self.iterations:
            return copy.copy(self.estimator)
        count = self.iterations if step is None else self._iterations_after(step)
        return first_iterations(self.estimator, self._family, count)

    def training_state(self) -> dict[str, Any]:
        """Return the number of initial iterations, and the generator that the next iterations draw from."""
        name = self._family.generator
        return {"first": self._initial, "generator": getattr(self.estimator, name, None) if name else None}

    def restore(self, estimator: Any, training_state: Mapping[str, Any]) -> None:
        """Continue from a saved ensemble; without training state, all its iterations are initial ones."""
        super().restore(estimator, training_state)
        self._bin_cache = BinCache()
        self._initial = training_state.get("first", self.iterations)
        if self._family.generator is not None and training_state.get("generator") is not None:
            setattr(estimator, self._family.generator, training_state["generator"])

    def _iterations_after(self, steps: int) -> int:
        """Return the number of iterations after a number of steps, initial ones included."""
        return int(self._initial + min(self._total, steps * self.settings.per_step))

    def _provide_generator(self) -> None:
        """Create a generator if the iterations are initial weights, which come without a generator."""
        name = self._family.generator
        if name is not None and self.iterations and not hasattr(self.estimator, name):
            seed = sklearn_seed(self.settings.seed, INIT, self.iterations)
            generator = np.random.RandomState(seed) if name == "_rng" else np.random.default_rng(seed)
            setattr(self.estimator, name, generator)


class MinibatchStepper(Stepper):
    """Call `partial_fit` on minibatches; the kind `batches`."""

    def __init__(self, estimator: Any, settings: StepSettings) -> None:
        super().__init__(estimator, settings)
        self._rate = learning_rate_name(estimator)
        takes_classes = "classes" in inspect.signature(estimator.partial_fit).parameters
        self._fit_options = {"classes": np.arange(settings.info.outputs)} if takes_classes else {}

    def step(self, step: int, lr: float, batch: Batch) -> None:
        """Fit one minibatch, with a seed of the step's own."""
        seed = sklearn_seed(self.settings.seed, STEP, step)
        work = batch[FEATURES].shape[0] * batch[FEATURES].shape[1] * self.settings.info.outputs
        values: dict[str, Any] = {
            "random_state": seed,
            # A pool of threads takes longer to start than most minibatches to compute; no bit depends on it.
            "n_jobs": self.settings.threads if work > SMALL_BATCH else 1,
            "batch_size": len(batch[FEATURES]),
        }
        if self._rate is not None:
            values[self._rate] = lr
        with temporary_parameters(self.estimator, **values):
            self._set_optimizer(lr)
            options = self._fit_options | weight_options(self.estimator, batch.get(WEIGHT), "batches")
            self.estimator.partial_fit(batch[FEATURES], batch[TARGET], **options)
        if hasattr(self.estimator, "loss_curve_"):  # grows with every step; the journal has the losses
            self.estimator.loss_curve_ = self.estimator.loss_curve_[-1:]

    def _set_optimizer(self, lr: float) -> None:
        """Set the learning rate of an MLP's optimizer, which otherwise keeps the first one."""
        optimizer = getattr(self.estimator, "_optimizer", None)
        if optimizer is not None and hasattr(optimizer, "learning_rate_init"):
            optimizer.learning_rate_init = lr
            if getattr(optimizer, "lr_schedule", "") == "constant":
                optimizer.learning_rate = lr


class SingleFitStepper(Stepper):
    """Fit all rows in a single step; the kind `once`."""

    def step(self, step: int, lr: float, batch: Batch) -> None:  # noqa: ARG002 - one step, no rate
        """Fit all rows."""
        options = weight_options(self.estimator, batch.get(WEIGHT), "once")
        with temporary_parameters(self._final_estimator, n_jobs=self.settings.threads):
            self.estimator.fit(batch[FEATURES], batch[TARGET], **options)

    @property
    def _final_estimator(self) -> Any:
        """The estimator itself; for a pipeline, the estimator of its last step."""
        steps = getattr(self.estimator, "steps", None)
        return (
            steps[-1][1]
            if isinstance(steps, list) and steps and isinstance(steps[-1], tuple)
            else self.estimator
        )


STEPPERS: dict[Kind, type[Stepper]] = {
    "growth": EnsembleStepper,
    "batches": MinibatchStepper,
    "once": SingleFitStepper,
}
