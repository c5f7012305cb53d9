"""scikit-learn on the CPU: any classifier or regressor, by short name, by import path or as an object."""

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
from trainyard.frameworks.sklearn import storage, unsaved
from trainyard.frameworks.sklearn.estimator import build_estimator, candidates, unfitted
from trainyard.frameworks.sklearn.models import ITERATIONS, PER_STEP, Models, defaults, entry
from trainyard.frameworks.sklearn.outputs import (
    ROWS,
    Outputs,
    flatten_features,
    row_ranges,
    take_all,
    total_loss,
)
from trainyard.frameworks.sklearn.steps import (
    FAMILIES,
    STEPPERS,
    StepSettings,
    ensemble_family,
    learning_rate_name,
    own_parameters,
    step_kind,
)
from trainyard.frameworks.support.definition import of_estimator
from trainyard.frameworks.support.stored import Files, StoredSnapshot, buffers, read_arrays
from trainyard.require import require
from trainyard.types import FEATURES, TARGET, Array, Batch, Determinism, NamedBuffer, Predictions, StepResult

log = logging.getLogger("trainyard")
TRAINING_FILE = "training.safetensors"  # what a resume needs in addition to the model
SAMPLE = 2000  # approximate number of training rows on which the loss of a full-data step is estimated
EXPECTED_WARNINGS = (  # not logged, since they warn of what Trainyard does on purpose
    "ConvergenceWarning: Stochastic Optimizer: Maximum iterations",  # a step makes one iteration
    "UserWarning: class_weight presets",  # every fit sees all rows, so the presets are right
    "FutureWarning: 'n_jobs' has no effect",  # `n_jobs` is set on every estimator that has it
)


class SklearnFramework(Framework):
    """Train one estimator; `steps.py` defines what a step is."""

    models: ClassVar[Mapping[str, type[BaseModel]]] = Models()
    tasks: ClassVar[Collection[str] | None] = ("classification", "multilabel", "regression")
    base_modules: ClassVar[Sequence[str]] = ("sklearn",)
    model_bases: ClassVar[Sequence[str]] = ("sklearn.base:BaseEstimator",)
    formats: ClassVar[Sequence[str]] = ("skops",)
    unsaved_hint: ClassVar[str] = (
        "keep state in attributes of the estimator itself, and give each array memory of its own (copy())"
    )

    @staticmethod
    def defaults(model: str) -> Mapping[str, Any]:
        """Return the recommended data preparation and number of epochs of a short name."""
        return defaults(model)

    @staticmethod
    def training_keys(model: str, params: Mapping[str, Any]) -> Collection[str]:  # noqa: ARG004
        """Return the keys of `training` that matter to the model's kind of step."""
        described = entry(model)
        if described is None or described["steps"] == "batches":
            return ("epochs", "max_steps", "batch_size", "scheduler")
        return ("scheduler",) if model == "hist_gradient_boosting" else ()

    @staticmethod
    def reset() -> None:
        """Undo what code of the user's may have set in scikit-learn for the whole process."""
        from trainyard.frameworks.sklearn import settings

        settings.reset()

    @staticmethod
    def plan(config: RunConfig, rows: int, model: Any = None) -> Plan:
        """Plan minibatch steps, iterations of an ensemble, or a single `fit`; see `steps.py`.

        Raises:
            DataError: `training.batch_size` is larger than the number of training rows.
            ModelError: The estimator cannot be constructed, or a scheduler is set but it has no learning
                rate.
        """
        estimator = unfitted(config, model)
        kind = step_kind(estimator)
        # The task is not known yet. If one of a name's two estimators has a learning rate, take that one.
        estimator = next((one for one in candidates(config, model) if learning_rate_name(one)), estimator)
        rate = learning_rate_name(estimator)
        scheduler = config.training.scheduler
        varies = type(scheduler) is not ConstantSchedule or scheduler.warmup_steps
        # For short names, a scheduler without effect is only logged: see `training_keys`.
        if rate is None and varies and entry(config.model.type) is None:
            name = config.model.type
            raise ModelError(
                f"training.scheduler: {name} has no learning rate that can change; remove training.scheduler"
            )
        lr = None if rate is None else float(getattr(estimator, rate))
        if kind == "batches":
            return minibatch_plan(config, rows)._replace(learning_rate=lr)
        family = ensemble_family(estimator)
        if kind == "once" or family is None:
            return Plan(rows, 1, lr)
        return Plan(rows, -(-getattr(estimator, family.count) // _per_step(config)), lr, cumulative=True)

    @staticmethod
    def determinism(config: RunConfig) -> Determinism:  # noqa: ARG004 - the same for every config
        """Return `bitwise`: every estimator is repeatable under a fixed number of threads."""
        return Determinism("bitwise", "seeds by step, a pinned number of threads, sums in a fixed order")

    def __init__(self, inputs: FrameworkInputs) -> None:
        self._version = str(require("sklearn", "sklearn").__version__)
        for module in ("skops", "safetensors", "threadpoolctl"):
            require(module, "sklearn")
        from threadpoolctl import ThreadpoolController

        estimator = build_estimator(inputs)
        self._kind, self._own = step_kind(estimator), own_parameters(estimator)
        by_user = inputs.model is not None or ":" in inputs.config.model.type
        self._trust = storage.trust_for(estimator) if by_user else storage.Trust()
        # Test after the first step that the model can be stored, as built-in models with one step always can.
        self._check_storable = by_user or self._kind != "once"
        settings = StepSettings(
            inputs.config.experiment.seed, inputs.threads, inputs.info, _per_step(inputs.config)
        )
        self._inputs, self._stepper = inputs, STEPPERS[self._kind](estimator, settings)
        self._outputs = Outputs(inputs.info, inputs.threads)
        self._thread_pools = ThreadpoolController()
        self._logged_warnings: set[str] = set()
        self._train = (
            take_all(inputs.splits["train"]) if inputs.order is not None and self._kind != "batches" else None
        )
        if self._kind == "once" and inputs.order is not None:
            log.info(
                "%s fits in a single step: it cannot be resumed midway, stopped early or pruned",
                inputs.config.model.type,
            )

    @staticmethod
    def device_name(config: RunConfig) -> str:  # noqa: ARG004 - there is one
        """Return `cpu`."""
        return "cpu"

    def describe(self) -> Mapping[str, str]:
        """Return scikit-learn's version and the device."""
        return {"scikit-learn": self._version, "device": "cpu"}

    def definition(self) -> Mapping[str, str]:
        """Return the class and options of an estimator that was passed as an object."""
        return {} if self._inputs.model is None else of_estimator(self._inputs.model)

    def step(self, step: int, lr: float) -> StepResult:
        """Train one step: a minibatch, some iterations of an ensemble, or the whole `fit`.

        Raises:
            ModelError: The library rejects the options or the data in the first step, or the model cannot be
                stored.
            TrainingError: The library fails otherwise.
        """
        with self._sklearn_context(f"step {step + 1}", first=step == 0):
            batch = self._train or self._batch(step)
            self._stepper.step(step, lr, batch[FEATURES], batch[TARGET])
            if self._check_storable:  # fitting may have created objects that cannot be stored
                storage.unpack(storage.pack(self._stepper.model()), self._trust)
                self._check_storable = False
            return StepResult(self._loss(batch), len(batch[FEATURES]))

    def predict(self, split: Split) -> Iterator[Predictions]:
        """Yield the outputs of a split; a forest predicts all rows at once, to reuse its earlier sums.

        Raises:
            TrainingError: The library fails.
        """
        key = next((name for name, one in self._inputs.splits.items() if one is split), None)
        forest = ensemble_family(self._stepper.estimator) is FAMILIES["BaseForest"]
        size = len(split) if forest else self._inputs.config.evaluation.batch_size or ROWS
        for ids in row_ranges(len(split), size):
            batch = take_all(split) if forest else flatten_features(split.take(ids))
            targets = batch[TARGET]
            with self._sklearn_context("prediction"):
                outputs = self._outputs.of(self._stepper.estimator, batch[FEATURES], key)
            yield Predictions(
                ids, outputs.astype(np.float32), targets, total_loss(outputs, targets, self._inputs.info)
            )

    def snapshot(self, *, weights_only: bool = False, step: int | None = None) -> Snapshot:
        """Pack the estimator into arrays, as it is or, if `step` is given, as it was after that many steps.

        Raises:
            ModelError: The estimator holds something that cannot be stored safely.
        """
        return StoredSnapshot(self._files(weights_only, step))

    def restore(self, folder: Path, *, weights_only: bool = False) -> None:
        """Load an estimator, and apply this run's own parameters to it.

        Raises:
            ModelError: The files hold no trusted estimator, or one of another class or number of features.
        """
        estimator = storage.unpack(read_arrays(folder / WEIGHTS_FILE), self._trust)
        training_state = (
            {} if weights_only else storage.unpack(read_arrays(folder / TRAINING_FILE), self._trust)
        )
        expected, name = type(self._stepper.estimator), self._inputs.config.model.type
        if type(estimator) is not expected:
            raise ModelError(
                f"these are weights of {type(estimator).__name__}, but model {name} is {expected.__name__}"
            )
        features = int(np.prod(self._inputs.info.input_shape))
        if getattr(estimator, "n_features_in_", features) != features:
            raise ModelError(
                f"these are weights for {estimator.n_features_in_} features, but the data have {features}"
            )
        # Parameters that are equal are not set again: a fitted ensemble may share the objects with its parts.
        estimator.set_params(
            **{
                name: value
                for name, value in self._own.items()
                if not storage.same(getattr(estimator, name, None), value)
            }
        )
        self._stepper.restore(estimator, training_state)
        self._outputs.clear()

    def state(self, *, weights_only: bool = False) -> Iterator[NamedBuffer]:
        """Yield the packed estimator and, unless `weights_only`, the training state."""
        yield from buffers(self._files(weights_only, None))

    def unsaved_state(self) -> Mapping[str, str]:
        """Return a fingerprint of what `partial_fit` may change and no checkpoint holds; see `unsaved`."""
        return unsaved.fingerprints(self._stepper.estimator) if self._kind == "batches" else {}

    @property
    def native(self) -> Any:
        """The scikit-learn estimator."""
        return self._stepper.model()

    def importance(self) -> Mapping[str, Array]:
        """Return impurity importances and absolute coefficients (mean over outputs), (features,) float64."""
        estimator, features = self._stepper.model(), int(np.prod(self._inputs.info.input_shape))
        importances: dict[str, Array] = {}
        for kind, attribute in (("impurity", "feature_importances_"), ("coefficient", "coef_")):
            values = getattr(estimator, attribute, None)
            if isinstance(values, np.ndarray) and values.shape[-1:] == (features,):
                importances[kind] = np.abs(values.astype(np.float64)).reshape(-1, features).mean(axis=0)
        return importances

    def export(self, path: Path, form: str) -> None:
        """Write a .skops file (https://skops.readthedocs.io).

        Raises:
            InputError: The format is unknown.
        """
        if form not in self.formats:
            raise InputError(f"unknown export format {form!r}; allowed: {', '.join(self.formats)}")
        storage.import_skops().dump(self._stepper.model(), path)

    def _files(self, weights_only: bool, step: int | None) -> Files:
        """Pack the model, as after `step` steps, and the training state into arrays by file."""
        weights = {WEIGHTS_FILE: storage.pack(self._stepper.model(step))}
        if weights_only:
            return weights
        return {**weights, TRAINING_FILE: storage.pack(self._stepper.training_state())}

    def _batch(self, step: int) -> Batch:
        """Return the minibatch of a step."""
        assert self._inputs.order is not None, "constructed for prediction only"
        return flatten_features(self._inputs.splits["train"].take(self._inputs.order.batch(step)))

    def _loss(self, batch: Batch) -> float:
        """Return the mean loss after the step, on at most `SAMPLE` evenly spaced rows of the batch.

        It is the loss after the step, because before the first one the estimator cannot predict.
        """
        stride = -(-len(batch[FEATURES]) // SAMPLE)
        features, targets = batch[FEATURES][::stride], batch[TARGET][::stride]
        outputs = self._outputs.of(self._stepper.estimator, features, SAMPLE if self._train else None)
        return total_loss(outputs, targets, self._inputs.info) / len(targets)

    @contextmanager
    def _sklearn_context(self, what: str, *, first: bool = False) -> Iterator[None]:
        """Pin the threads, log each of scikit-learn's warnings once, and translate its errors.

        Args:
            what: What the body does, for the message.
            first: Whether the body is the first step.
        """
        parallel_config = require("joblib", "sklearn").parallel_config
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                with (
                    self._thread_pools.limit(limits=self._inputs.threads),
                    parallel_config(backend="threading"),
                ):
                    yield
            except TrainyardError:
                raise
            except Exception as error:
                raise _translated(error, what, first) from error
        for warning in caught:
            self._log_once(f"{warning.category.__name__}: {warning.message}")

    def _log_once(self, text: str) -> None:
        if text not in self._logged_warnings and not text.startswith(EXPECTED_WARNINGS):
            log.warning("scikit-learn: %s", text)
        self._logged_warnings.add(text)


def _per_step(config: RunConfig) -> int:
    """Return the number of iterations that a step adds to an ensemble."""
    iterations = config.model.params.get(PER_STEP, ITERATIONS)
    if not isinstance(iterations, int) or iterations < 1:
        raise ModelError(f"model.params.{PER_STEP}: expected a whole number of at least 1")
    return iterations


def _translated(error: Exception, what: str, first: bool) -> TrainyardError:
    """Return one of our errors for one of scikit-learn's."""
    hint = "see where with --debug"
    if "contains NaN" in str(error):
        hint = "this model does not accept missing values: set data.impute"
    message = f"{what} failed: {type(error).__name__}: {error}; {hint}"
    # A ValueError or TypeError in the very first step comes from the options or the data.
    return (
        ModelError(message) if first and isinstance(error, ValueError | TypeError) else TrainingError(message)
    )
