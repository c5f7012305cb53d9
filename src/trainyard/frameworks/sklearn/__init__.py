"""scikit-learn, on the processor: any classifier or regressor, by short name, import path or as an object."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from pydantic import BaseModel

from trainyard.config.schema import ConstantSchedule, RunConfig
from trainyard.datasets.base import Split
from trainyard.errors import InputError, ModelError, TrainingError, TrainyardError
from trainyard.frameworks.base import WEIGHTS_FILE, Framework, FrameworkInputs, Plan, Snapshot, minibatch_plan
from trainyard.frameworks.definition import of_estimator
from trainyard.frameworks.sklearn import storage
from trainyard.frameworks.sklearn.estimator import either, prepared, unfitted
from trainyard.frameworks.sklearn.models import ITERATIONS, PER_STEP, Models, defaults, entry
from trainyard.frameworks.sklearn.outputs import ROWS, Outputs, flat, loss_of, parts_of, take_all
from trainyard.frameworks.sklearn.steps import (
    FAMILIES,
    LEARNERS,
    Means,
    family_of,
    kind_of,
    parameters_of,
    rate_of,
)
from trainyard.frameworks.stored import Files, StoredSnapshot, buffers, read_arrays
from trainyard.require import require
from trainyard.types import Array, Batch, Determinism, NamedBuffer, Predictions, StepResult

log = logging.getLogger("trainyard")
REST_FILE = "training.safetensors"  # what a resume needs besides the model
SAMPLE = 2000  # training rows that tell the loss of a step on all of them
EXPECTED = (  # warnings of what is meant to be
    "ConvergenceWarning: Stochastic Optimizer: Maximum iterations",  # a step makes one
    "UserWarning: class_weight presets",  # all rows are seen from the beginning
    "FutureWarning: 'n_jobs' has no effect",  # the threads are given to all that take them
)


class SklearnFramework(Framework):
    """Trains one estimator; how it goes from step to step stands in `steps.py`."""

    models: ClassVar[Mapping[str, type[BaseModel]]] = Models()
    base_modules: ClassVar[Sequence[str]] = ("sklearn",)
    model_bases: ClassVar[Sequence[str]] = ("sklearn.base:BaseEstimator",)
    formats: ClassVar[Sequence[str]] = ("skops",)

    @staticmethod
    def defaults(model: str) -> Mapping[str, Any]:
        return defaults(model)

    @staticmethod
    def training_keys(model: str, params: Mapping[str, Any]) -> Collection[str]:  # noqa: ARG004 - they change nothing here
        found = entry(model)
        if found is None or found["steps"] == "batches":
            return ("epochs", "max_steps", "batch_size", "scheduler")
        return ("scheduler",) if model == "hist_gradient_boosting" else ()

    @staticmethod
    def plan(config: RunConfig, rows: int, model: Any = None) -> Plan:
        estimator = unfitted(config, model)
        kind = kind_of(estimator)
        # The data may be for either task, which only they tell; and of one name, one estimator may have a rate and the other not.
        estimator = next((one for one in either(config, model) if rate_of(one)), estimator)
        rate = rate_of(estimator)
        scheduler = config.training.scheduler
        varies = type(scheduler) is not ConstantSchedule or scheduler.warmup_steps
        if (
            rate is None and varies and entry(config.model.type) is None
        ):  # of those with a name, the log tells
            raise ModelError(
                f"training.scheduler: {config.model.type} has no learning rate that changes from step to step"
            )
        lr = None if rate is None else float(getattr(estimator, rate))
        if kind == "batches":
            return minibatch_plan(config, rows)._replace(learning_rate=lr)
        family = family_of(estimator)
        if kind == "once" or family is None:
            return Plan(rows, 1, lr)
        return Plan(rows, -(-getattr(estimator, family.count) // _per_step(config)), lr, cumulative=True)

    @staticmethod
    def determinism(config: RunConfig) -> Determinism:  # noqa: ARG004 - all of them
        return Determinism("bitwise", "seeds by step, a pinned number of threads, sums in a fixed order")

    def __init__(self, inputs: FrameworkInputs) -> None:
        self._version = str(require("sklearn", "sklearn").__version__)
        for module in ("skops", "safetensors", "threadpoolctl"):
            require(module, "sklearn")
        from threadpoolctl import ThreadpoolController

        estimator = prepared(inputs)
        self._kind, self._own = kind_of(estimator), parameters_of(estimator)
        theirs = inputs.model is not None or ":" in inputs.config.model.type
        self._trust = storage.trust_in(estimator) if theirs else storage.Trust()
        self._untried = (
            theirs or self._kind != "once"
        )  # of ours, the first step of many is small enough to be tried
        means = Means(inputs.config.experiment.seed, inputs.threads, inputs.info, _per_step(inputs.config))
        self._inputs, self._learner = inputs, LEARNERS[self._kind](estimator, means)
        self._outputs, self._pools, self._said = (
            Outputs(inputs.info, inputs.threads),
            ThreadpoolController(),
            set[str](),
        )
        self._train = (
            take_all(inputs.splits["train"]) if inputs.order is not None and self._kind != "batches" else None
        )
        if self._kind == "once" and inputs.order is not None:
            log.info(
                "%s fits in one step: it cannot be resumed in the middle, stopped early or pruned",
                inputs.config.model.type,
            )

    def describe(self) -> Mapping[str, str]:
        return {"scikit-learn": self._version, "device": "cpu"}

    def definition(self) -> Mapping[str, str]:
        return {} if self._inputs.model is None else of_estimator(self._inputs.model)

    def step(self, step: int, lr: float) -> StepResult:
        with self._running(f"step {step + 1}", first=step == 0):
            batch = self._train or self._batch(step)
            self._learner.step(step, lr, *batch)
            if self._untried:  # what the model makes of itself must be fit to be stored
                storage.unpack(storage.pack(self._learner.model()), self._trust)
                self._untried = False
            return StepResult(self._loss(batch), len(batch.features))

    def predict(self, split: Split) -> Iterator[Predictions]:
        key = next((name for name, one in self._inputs.splits.items() if one is split), None)
        forest = family_of(self._learner.estimator) is FAMILIES["BaseForest"]
        size = len(split) if forest else self._inputs.config.evaluation.batch_size or ROWS
        for ids in parts_of(len(split), size):
            features, targets = take_all(split) if forest else flat(split.take(ids))
            with self._running("a prediction"):
                outputs = self._outputs.of(self._learner.estimator, features, key)
            yield Predictions(
                ids, outputs.astype(np.float32), targets, loss_of(outputs, targets, self._inputs.info)
            )

    def snapshot(self, *, weights_only: bool = False, step: int | None = None) -> Snapshot:
        return StoredSnapshot(self._files(weights_only, step))

    def restore(self, folder: Path, *, weights_only: bool = False) -> None:
        estimator = storage.unpack(read_arrays(folder / WEIGHTS_FILE), self._trust)
        rest = {} if weights_only else storage.unpack(read_arrays(folder / REST_FILE), self._trust)
        mine, name = type(self._learner.estimator), self._inputs.config.model.type
        if type(estimator) is not mine:
            raise ModelError(
                f"these are weights of {type(estimator).__name__}, but model {name} is {mine.__name__}"
            )
        features = int(np.prod(self._inputs.info.input_shape))
        if getattr(estimator, "n_features_in_", features) != features:
            raise ModelError(
                f"these are weights for {estimator.n_features_in_} features, but the data have {features}"
            )
        # Those that are alike stay: a fitted ensemble may share them with its parts.
        estimator.set_params(
            **{
                name: value
                for name, value in self._own.items()
                if not storage.same(getattr(estimator, name, None), value)
            }
        )
        self._learner.take(estimator, rest)
        self._outputs.forget()

    def state(self, *, weights_only: bool = False) -> Iterator[NamedBuffer]:
        yield from buffers(self._files(weights_only, None))

    @property
    def native(self) -> Any:
        return self._learner.model()

    def importance(self) -> Mapping[str, Array]:
        estimator, features = self._learner.model(), int(np.prod(self._inputs.info.input_shape))
        found: dict[str, Array] = {}
        for kind, attribute in (("impurity", "feature_importances_"), ("coefficient", "coef_")):
            values = getattr(estimator, attribute, None)
            if isinstance(values, np.ndarray) and values.shape[-1:] == (features,):
                found[kind] = np.abs(values.astype(np.float64)).reshape(-1, features).mean(axis=0)
        return found

    def export(self, path: Path, form: str) -> None:
        if form not in self.formats:
            raise InputError(f"form {form!r} is unknown; allowed: {', '.join(self.formats)}")
        storage.imported().dump(self._learner.model(), path)

    def _files(self, weights_only: bool, step: int | None) -> Files:
        weights = {WEIGHTS_FILE: storage.pack(self._learner.model(step))}
        return weights if weights_only else {**weights, REST_FILE: storage.pack(self._learner.rest())}

    def _batch(self, step: int) -> Batch:
        assert self._inputs.order is not None, "made only to predict"
        return flat(self._inputs.splits["train"].take(self._inputs.order.batch(step)))

    def _loss(self, batch: Batch) -> float:
        """The mean loss after the step: of a minibatch, or of rows that lie evenly among all (before the first step there is
        nothing to predict with).
        """
        thin = -(-len(batch.features) // SAMPLE)
        features, targets = batch.features[::thin], batch.targets[::thin]
        outputs = self._outputs.of(self._learner.estimator, features, SAMPLE if self._train else None)
        return loss_of(outputs, targets, self._inputs.info) / len(targets)

    @contextmanager
    def _running(self, what: str, *, first: bool = False) -> Iterator[None]:
        """Pins the threads, hands scikit-learn's warnings to the log, once each, and translates its errors."""
        parallel_config = require("joblib", "sklearn").parallel_config
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                with self._pools.limit(limits=self._inputs.threads), parallel_config(backend="threading"):
                    yield
            except TrainyardError:
                raise
            except Exception as error:
                raise _translated(error, what, first) from error
        for warning in caught:
            self._say(f"{warning.category.__name__}: {warning.message}")

    def _say(self, text: str) -> None:
        if text not in self._said and not text.startswith(EXPECTED):
            log.warning("scikit-learn: %s", text)
        self._said.add(text)


def _per_step(config: RunConfig) -> int:
    found = config.model.params.get(PER_STEP, ITERATIONS)
    if not isinstance(found, int) or found < 1:
        raise ModelError(f"model.params.{PER_STEP}: expected a whole number of at least 1")
    return found


def _translated(error: Exception, what: str, first: bool) -> TrainyardError:
    hint = "see where with --debug"
    if "contains NaN" in str(error):
        hint = "this model takes no missing values: give data.impute"
    message = f"{what} failed: {type(error).__name__}: {error}; {hint}"
    # What scikit-learn finds wrong at once lies in the options or in the data.
    return (
        ModelError(message) if first and isinstance(error, ValueError | TypeError) else TrainingError(message)
    )
