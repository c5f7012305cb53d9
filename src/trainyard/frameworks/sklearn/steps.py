"""How an estimator is brought from one step to the next.

`growth`: ensembles of trees that go on where they stopped (`warm_start`). A step adds some trees, so the model after a step is
the first part of every later one. It is the very model that scikit-learn's own `fit` makes at once.
`batches`: estimators with `partial_fit`. A step is a minibatch.
`once`: all others. The only step is a `fit` of all rows; so is that of an estimator which decides by itself when to stop.
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

from trainyard.frameworks.sklearn.binning import Bins
from trainyard.order import INIT, STEP, stream_seed
from trainyard.types import Array, DataInfo

Kind = Literal["growth", "batches", "once"]


@dataclass(frozen=True)
class Family:
    """Ensembles that grow alike.

    `count` is the parameter that says how many iterations there are; `lists` are the attributes that hold an entry for each
    iteration, and `generator` the one that draws the random numbers of all of them, one after the other.
    """

    count: str
    lists: tuple[str, ...]
    generator: str | None = None


FAMILIES = {
    "BaseForest": Family("n_estimators", ("estimators_",)),
    "BaseBagging": Family("n_estimators", ("estimators_", "estimators_features_", "_seeds")),
    "BaseGradientBoosting": Family(
        "n_estimators", ("estimators_", "train_score_", "oob_improvement_", "oob_scores_"), "_rng"
    ),
    "BaseHistGradientBoosting": Family("max_iter", ("_predictors",), "_feature_subsample_rng"),
}
SEEDS = 2**31  # scikit-learn's own code takes seeds below it everywhere


def family_of(estimator: Any) -> Family | None:
    """How the ensemble grows; None where it is none, or one whose `fit` is not scikit-learn's own."""
    if not getattr(getattr(type(estimator), "fit", None), "__module__", "").startswith("sklearn.ensemble."):
        return None
    names = {base.__name__ for base in type(estimator).__mro__}
    return next((family for name, family in FAMILIES.items() if name in names), None)


def kind_of(estimator: Any) -> Kind:
    """How it learns."""
    stops = getattr(estimator, "early_stopping", False) is True
    if family_of(estimator) is not None:
        stops |= (
            not hasattr(estimator, "early_stopping")
            and getattr(estimator, "n_iter_no_change", None) is not None
        )
        return "once" if stops or getattr(estimator, "oob_score", False) else "growth"
    needs_all = stops or getattr(estimator, "class_weight", None) == "balanced"
    return "batches" if callable(getattr(estimator, "partial_fit", None)) and not needs_all else "once"


def rate_of(estimator: Any) -> str | None:
    """The parameter that is its learning rate and may change from step to step."""
    if kind_of(estimator) == "once":
        return None
    if hasattr(estimator, "eta0"):
        return (
            "eta0" if getattr(estimator, "learning_rate", "constant") in {"constant", "invscaling"} else None
        )
    if hasattr(estimator, "learning_rate_init"):
        return "learning_rate_init"
    # Gradient boosting multiplies all trees by its present rate, the histogram-based each by that which it grew with.
    return (
        "learning_rate"
        if (family := family_of(estimator)) is not None and family.count == "max_iter"
        else None
    )


def parameters_of(estimator: Any) -> dict[str, Any]:
    """Its parameters, without those that hold estimators, which `fit` may change, and without the count of one that grows."""
    from sklearn.base import BaseEstimator

    def holds(value: Any) -> bool:
        return isinstance(value, BaseEstimator) or (
            isinstance(value, list | tuple) and any(holds(one) for one in value)
        )

    family = family_of(estimator)
    found: dict[str, Any] = estimator.get_params(deep=False)
    return {
        name: value
        for name, value in found.items()
        if not holds(value) and (family is None or name != family.count)
    }


def seed_of(*parts: int) -> int:
    """A seed that scikit-learn takes."""
    return stream_seed(*parts) % SEEDS


@contextmanager
def settings(estimator: Any, **values: Any) -> Iterator[None]:
    """Sets those of the parameters that it has, and sets them back: they are no part of the model."""
    before = {name: getattr(estimator, name) for name in values if hasattr(estimator, name)}
    try:
        for name in before:
            setattr(estimator, name, values[name])
        yield
    finally:
        for name, value in before.items():
            setattr(estimator, name, value)


@dataclass(frozen=True)
class Means:
    """What a step is made with: the run's seed, its threads, and how many iterations each step adds, if it adds some."""

    seed: int
    threads: int
    info: DataInfo
    per_step: int


class Learner(ABC):
    """Carries an estimator on."""

    def __init__(self, estimator: Any, means: Means) -> None:
        self.estimator = estimator
        self.means = means

    @abstractmethod
    def step(self, step: int, lr: float, features: Array, targets: Array) -> None:
        """Makes step number `step`.

        Args:
            features: (rows, features) float32: of all training rows, or of the step's minibatch.
            targets: (rows,) int64 classes, or (rows,) / (rows, outputs) float32.
        """

    def model(self, step: int | None = None) -> Any:  # noqa: ARG002 - of one that does not grow there is one model
        """The estimator as a prediction needs it: as it is, or as it was after `step` steps."""
        return self.estimator

    def rest(self) -> dict[str, Any]:
        """What a resume needs besides the model."""
        return {}

    def take(self, estimator: Any, rest: Mapping[str, Any]) -> None:  # noqa: ARG002 - most have none
        """Goes on from what `model` and `rest` gave; without `rest`, from initial weights."""
        self.estimator = estimator


class Growth(Learner):
    """Adds iterations to an ensemble."""

    def __init__(self, estimator: Any, means: Means) -> None:
        super().__init__(estimator, means)
        family = family_of(estimator)
        assert family is not None, "a growing one"
        self._family, self._total = family, getattr(estimator, family.count)
        self._first = 0  # iterations that were there before step 0, of initial weights
        self._bins = Bins()

    @property
    def grown(self) -> int:
        """How many iterations there are."""
        return len(getattr(self.estimator, self._family.lists[0], ()))

    def step(self, step: int, lr: float, features: Array, targets: Array) -> None:
        values: dict[str, Any] = {"warm_start": True, "n_jobs": self.means.threads}
        if (rate := rate_of(self.estimator)) is not None:
            values[rate] = lr
        seeds = getattr(self.estimator, "_seeds", ())
        self._provide_generator()
        setattr(self.estimator, self._family.count, self._iterations(step + 1))
        with settings(self.estimator, **values), self._bins.kept(self.estimator):
            # Views: what is kept of the rows is not shared with earlier steps, which another process may have made.
            self.estimator.fit(features[:], targets[:])
        self._tidy(seeds)

    def _tidy(self, seeds: Any) -> None:
        """Mends what the last `fit` left as if it had been the only one; `seeds` are those of the earlier ones."""
        if len(seeds):  # bagging remembers its last
            self.estimator._seeds = np.concatenate([seeds, self.estimator._seeds])
        if (
            self._family.generator == "_rng"
        ):  # every tree holds the generator, and with it what becomes of it later
            for tree in self.estimator.estimators_.flat:
                tree.random_state = None
        if hasattr(self.estimator, "_bin_mapper"):  # of this machine, and of no use any more
            self.estimator._bin_mapper.n_threads = 1

    def model(self, step: int | None = None) -> Any:
        cut = copy.copy(self.estimator)
        if not self.grown:
            return cut
        count = self.grown if step is None else self._iterations(step)
        for name in self._family.lists:
            if hasattr(cut, name):
                setattr(cut, name, getattr(cut, name)[:count])
        setattr(cut, self._family.count, count)
        if hasattr(cut, "n_estimators_"):
            cut.n_estimators_ = count
        if hasattr(cut, "oob_scores_"):
            cut.oob_score_ = cut.oob_scores_[-1]
        if self._family.generator is not None:
            cut.__dict__.pop(self._family.generator, None)
        return cut

    def rest(self) -> dict[str, Any]:
        name = self._family.generator
        return {"first": self._first, "generator": getattr(self.estimator, name, None) if name else None}

    def take(self, estimator: Any, rest: Mapping[str, Any]) -> None:
        super().take(estimator, rest)
        self._bins = Bins()
        self._first = rest.get("first", self.grown)
        if self._family.generator is not None and rest.get("generator") is not None:
            setattr(estimator, self._family.generator, rest["generator"])

    def _iterations(self, steps: int) -> int:
        return int(self._first + min(self._total, steps * self.means.per_step))

    def _provide_generator(self) -> None:
        """Where the trees came as initial weights, the generator that grew them did not."""
        name = self._family.generator
        if name is not None and self.grown and not hasattr(self.estimator, name):
            seed = seed_of(self.means.seed, INIT, self.grown)
            made = np.random.RandomState(seed) if name == "_rng" else np.random.default_rng(seed)
            setattr(self.estimator, name, made)


class Batches(Learner):
    """Learns from minibatches."""

    def __init__(self, estimator: Any, means: Means) -> None:
        super().__init__(estimator, means)
        self._rate = rate_of(estimator)
        takes_classes = "classes" in inspect.signature(estimator.partial_fit).parameters
        self._more = {"classes": np.arange(means.info.outputs)} if takes_classes else {}

    def step(self, step: int, lr: float, features: Array, targets: Array) -> None:
        seed = seed_of(self.means.seed, STEP, step)
        values: dict[str, Any] = {
            "random_state": seed,
            "n_jobs": self.means.threads,
            "batch_size": len(features),
        }
        if self._rate is not None:
            values[self._rate] = lr
        with settings(self.estimator, **values):
            self._set_optimizer(lr)
            self.estimator.partial_fit(features, targets, **self._more)
        if hasattr(self.estimator, "loss_curve_"):  # it grows with the steps, and the journal has it, too
            self.estimator.loss_curve_ = self.estimator.loss_curve_[-1:]

    def _set_optimizer(self, lr: float) -> None:
        """A perceptron with layers gives its rate to its optimizer, once."""
        optimizer = getattr(self.estimator, "_optimizer", None)
        if optimizer is not None and hasattr(optimizer, "learning_rate_init"):
            optimizer.learning_rate_init = lr
            if getattr(optimizer, "lr_schedule", "") == "constant":
                optimizer.learning_rate = lr


class Once(Learner):
    """Fits all rows at once."""

    def step(self, step: int, lr: float, features: Array, targets: Array) -> None:  # noqa: ARG002 - there is one, without a rate
        with settings(self._worker, n_jobs=self.means.threads):
            self.estimator.fit(features, targets)

    @property
    def _worker(self) -> Any:
        """What does the work: of a pipeline, the last of its steps."""
        steps = getattr(self.estimator, "steps", None)
        return (
            steps[-1][1]
            if isinstance(steps, list) and steps and isinstance(steps[-1], tuple)
            else self.estimator
        )


LEARNERS: dict[Kind, type[Learner]] = {"growth": Growth, "batches": Batches, "once": Once}
