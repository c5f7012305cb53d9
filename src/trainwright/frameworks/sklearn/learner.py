"""Training of an estimator, step by step; `steps.py` defines what a step is."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import combinations, islice
from pathlib import Path
from typing import Any

import numpy as np

from trainwright.datasets.base import ArraySplit, Split
from trainwright.frameworks.base import WEIGHTS_FILE, Learner, LearnerInputs, Snapshot
from trainwright.frameworks.sklearn import storage
from trainwright.frameworks.sklearn.estimator import build_estimator, check_data, without_future_warnings
from trainwright.frameworks.sklearn.model import EstimatorModel, is_users, read_estimator, sklearn_errors
from trainwright.frameworks.sklearn.outputs import OutputCache, flatten_features, take_all, total_loss
from trainwright.frameworks.sklearn.params import iterations_per_step, quantile_of
from trainwright.frameworks.sklearn.process import SETTINGS_LOCK, thread_pools
from trainwright.frameworks.sklearn.steps import (
    STEPPERS,
    Stepper,
    StepSettings,
    fixed_parameters,
    step_kind,
    weight_options,
)
from trainwright.frameworks.support.definition import of_estimator
from trainwright.frameworks.support.fingerprint import LIMIT, Fingerprint, fingerprint, kept_by_class
from trainwright.frameworks.support.stored import Files, StoredSnapshot, buffers, read_arrays
from trainwright.require import require
from trainwright.types import FEATURES, TARGET, WEIGHT, Array, Batch, NamedBuffer, Predictions, StepResult

log = logging.getLogger("trainwright")
_MAX_WORK = 10_000  # of finding out whether two views of one array overlap
TRAINING_FILE = "training.safetensors"  # what a resume needs in addition to the model
SAMPLE = 2000  # approximate number of training rows on which the loss of a full-data step is estimated
EXPECTED_WARNINGS = (  # not logged, since they warn of what Trainwright does on purpose
    "ConvergenceWarning: Stochastic Optimizer: Maximum iterations",  # a step makes one iteration
    "UserWarning: class_weight presets",  # every fit sees all rows, so the presets are right
    "FutureWarning: 'n_jobs' has no effect",  # `n_jobs` is set on every estimator that has it
)


class SklearnLearner(Learner):
    """Train one estimator."""

    def __init__(self, inputs: LearnerInputs) -> None:
        with without_future_warnings():
            estimator = build_estimator(inputs)
        check_data(estimator, inputs)
        self._inputs = inputs
        self._kind, self._own = step_kind(estimator), fixed_parameters(estimator)
        train = inputs.splits["train"]
        if isinstance(train, ArraySplit) and WEIGHT in train.arrays:
            weight_options(estimator, train.arrays[WEIGHT], self._kind)  # refuses one that takes none
        by_user = is_users(inputs)
        self._trust = storage.trust_for(estimator) if by_user else storage.Trust()
        # Test after the first step that the model can be stored, as built-in models with one step always can.
        self._check_storable = by_user or self._kind != "once"
        self._stepper = _stepper(estimator, inputs)
        self._outputs = OutputCache(inputs.info, inputs.threads)
        self._context = LearnerContext(inputs.threads)
        self._model = LiveModel(inputs, self._stepper, self._outputs, self._context)
        self._train = take_all(inputs.splits["train"], inputs.info) if self._kind != "batches" else None
        if self._kind == "once":
            log.info(
                "%s fits in a single step: it cannot be resumed midway, stopped early or pruned",
                inputs.config.model.type,
            )

    def describe(self) -> Mapping[str, str]:
        """Return scikit-learn's version and the device."""
        return {"scikit-learn": str(require("sklearn", "sklearn").__version__), "device": "cpu"}

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
        with self._context.entered(f"step {step + 1}", first=step == 0):
            batch = self._train or self._batch(step)
            self._stepper.step(step, lr, batch)
            if self._check_storable:  # fitting may have created objects that cannot be stored
                storage.unpack(storage.pack(self._stepper.model()), self._trust)
                self._check_storable = False
            return StepResult(self._loss(batch), len(batch[FEATURES]))

    def model(self) -> LiveModel:
        """Return the view of the estimator in training."""
        return self._model

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
        estimator = read_estimator(self._inputs, folder, type(self._stepper.estimator), self._trust)
        training_state = (
            {} if weights_only else storage.unpack(read_arrays(folder / TRAINING_FILE), self._trust)
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
        """Return a fingerprint of what `partial_fit` may change and no checkpoint holds."""
        return _unsaved(self._stepper.estimator) if self._kind == "batches" else {}

    def _files(self, weights_only: bool, step: int | None) -> Files:
        """Pack the model, as after `step` steps, and the training state into arrays by file."""
        weights = {WEIGHTS_FILE: storage.pack(self._stepper.model(step))}
        if weights_only:
            return weights
        return {**weights, TRAINING_FILE: storage.pack(self._stepper.training_state())}

    def _batch(self, step: int) -> Batch:
        rows = self._inputs.splits["train"].take(self._inputs.order.batch(step))
        return flatten_features(rows, self._inputs.info)

    def _loss(self, batch: Batch) -> float:
        """Return the mean loss after the step, on at most `SAMPLE` evenly spaced rows of the batch.

        It is the loss after the step, because before the first one the estimator cannot predict.
        """
        stride = -(-len(batch[FEATURES]) // SAMPLE)
        features, targets = batch[FEATURES][::stride], batch[TARGET][::stride]
        outputs = self._outputs.of(self._stepper.estimator, features, SAMPLE if self._train else None)
        quantile = quantile_of(self._inputs.config)
        if WEIGHT not in batch:
            return total_loss(outputs, targets, self._inputs.info, quantile=quantile) / len(targets)
        weights = batch[WEIGHT][::stride]
        return total_loss(outputs, targets, self._inputs.info, weights, quantile) / (
            float(weights.sum()) or 1.0
        )


class LiveModel(EstimatorModel):
    """The estimator of a learner, as it is at each call; sums over a forest's trees are kept."""

    def __init__(
        self, inputs: LearnerInputs, stepper: Stepper, outputs: OutputCache, context: LearnerContext
    ) -> None:
        super().__init__(inputs.config, inputs.info)
        self._splits, self._stepper = inputs.splits, stepper
        self._outputs, self._context = outputs, context

    @property
    def native(self) -> Any:
        """The scikit-learn estimator."""
        return self._stepper.model()

    def predict(self, split: Split) -> Iterator[Predictions]:
        """Yield the outputs of a split.

        Raises:
            TrainingError: The library fails.
        """
        estimator = self._stepper.estimator
        key = next((name for name, one in self._splits.items() if one is split), None)
        for ids, batch in self._batches(split, estimator):
            with self._context.entered("prediction"):
                outputs = self._outputs.of(estimator, batch[FEATURES], key)
            yield self._predictions(ids, outputs, batch)


class LearnerContext:
    """The context of a learner's calls to scikit-learn."""

    def __init__(self, threads: int) -> None:
        # After the estimator is built, whose class may load libraries.
        self._pools = thread_pools()
        self._threads = threads
        self._logged: set[str] = set()

    @contextmanager
    def entered(self, what: str, *, first: bool = False) -> Iterator[None]:
        """Pin the threads, log each of scikit-learn's warnings once, and translate its errors.

        Args:
            what: What the body does, for the message.
            first: Whether the body is the first step.
        """
        with SETTINGS_LOCK, warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with self._pools.limit(limits=self._threads), sklearn_errors(what, first=first):
                yield
        for warning in caught:
            self._log_once(f"{warning.category.__name__}: {warning.message}")

    def _log_once(self, text: str) -> None:
        if text not in self._logged and not text.startswith(EXPECTED_WARNINGS):
            log.warning("scikit-learn: %s", text)
        self._logged.add(text)


def _stepper(estimator: Any, inputs: LearnerInputs) -> Stepper:
    """Return what makes the steps of an estimator."""
    config = inputs.config
    settings = StepSettings(config.experiment.seed, inputs.threads, inputs.info, iterations_per_step(config))
    return STEPPERS[step_kind(estimator)](estimator, settings)


def _unsaved(estimator: Any) -> dict[str, str]:
    """Return a hash of what the user's classes keep, and which arrays share memory, by name.

    Arrays that are views of one another are stored one by one, so after a resume they share nothing.
    """
    hashes = dict(
        fingerprint(value, name, Fingerprint()) for name, value in kept_by_class(type(estimator)).items()
    )
    if type(estimator).__module__.partition(".")[0] == "sklearn":  # which makes its views again in each step
        return hashes
    by_owner: dict[int, dict[str, Array]] = {}
    for name, array in islice(_arrays(vars(estimator)), LIMIT):
        by_owner.setdefault(id(_owner(array)), {})[name] = array
    for arrays in by_owner.values():
        for (name, array), (other, view) in islice(combinations(arrays.items(), 2), LIMIT):
            if array is not view and _overlap(array, view):
                hashes[f"{name} (which shares memory with {other})"] = "shared"
    return hashes


def _arrays(values: Mapping[str, Any]) -> Iterator[tuple[str, Array]]:
    """Yield the arrays among values, and in lists, tuples and dictionaries of them, with their names."""
    for name, value in values.items():
        if isinstance(value, np.ndarray):
            yield name, value
        elif isinstance(value, Mapping):
            yield from _arrays({f"{name}[{key!r}]": item for key, item in value.items()})
        elif isinstance(value, list | tuple):
            yield from _arrays({f"{name}[{index}]": item for index, item in enumerate(value)})


def _owner(array: Array) -> Any:
    """Return the object to which the memory of an array belongs."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array if array.base is None else array.base


def _overlap(one: Array, other: Array) -> bool:
    try:
        return np.shares_memory(one, other, max_work=_MAX_WORK)  # type: ignore[arg-type]  # a number, too
    except np.exceptions.TooHardError:
        return True
