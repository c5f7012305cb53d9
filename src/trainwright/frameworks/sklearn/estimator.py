"""Construct the estimator of a run, and check that it suits the data."""

from __future__ import annotations

import copy
import importlib
import inspect
import logging
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from trainwright.config.schema import RunConfig
from trainwright.config.words import some
from trainwright.errors import InputError, ModelError
from trainwright.frameworks.base import LearnerInputs, ModelInputs
from trainwright.frameworks.sklearn.params import PER_STEP, changed_options, entry, names_of_task
from trainwright.frameworks.sklearn.steps import ensemble_family, sklearn_seed, step_kind
from trainwright.frameworks.sklearn.targets import targets_of
from trainwright.frameworks.support.inputs import require_plain_numbers
from trainwright.order import INIT
from trainwright.require import import_path, require
from trainwright.types import FEATURES, DataInfo

log = logging.getLogger("trainwright")

# Models to suggest in place of one that does not do the task, where the usual suggestion is not the closest.
INSTEAD: Mapping[str, str] = {
    "gaussian_nb": "bayesian_ridge",
    "linear_regression": "logistic_regression or ridge",
    "logistic_regression": "linear_regression or ridge",
    "linear_discriminant_analysis": "linear_regression or ridge",
    "perceptron": "sgd",
    "elastic_net": "sgd, or logistic_regression with solver: saga and l1_ratio",
    "lasso": "sgd with penalty: l1, or logistic_regression with solver: saga and l1_ratio: 1",
}
TASKS: tuple[str, ...] = ("classification", "regression")
USUAL = "random_forest, hist_gradient_boosting, svm or k_neighbors, which do both"
# Parameters that the run sets: it decides on the threads, and estimators must not overwrite its rows.
SET_BY_RUN = {"n_jobs": None, "copy": True, "copy_X": True, "copy_X_train": True}


def unfitted(config: RunConfig, model: Any = None, task: str | None = None) -> Any:
    """Construct the estimator with its options, without setting seeds.

    Args:
        config: The resolved config.
        model: An object that was passed in Python; it is cloned, so that nothing it has learned is kept.
        task: The task of the data; None allows any task of the model.

    Raises:
        ModelError: The estimator cannot be constructed, or does not do the task.
    """
    require("sklearn", "sklearn")
    if model is not None:
        return _cloned(model)
    name, params = config.model.type, config.model.params
    if ":" in name:
        return _from_path(name, {key: value for key, value in params.items() if key != PER_STEP})
    options = changed_options(name, params)
    tasks = [task] if task else [one for one in TASKS if one in (entry(name) or {})]
    classes = [_class_of(name, one) for one in tasks]
    cls = next((one for one in classes if set(options) <= set(one._get_param_names())), classes[0])
    return _construct(name, cls, options, cls._get_param_names())


def candidates(config: RunConfig, model: Any = None) -> Iterator[Any]:
    """Yield the estimators that the config may stand for.

    A short name can stand for a classifier and a regressor; those that do not accept the options are skipped.
    An object or an import path stands for one estimator.
    """
    if model is not None or entry(config.model.type) is None:
        yield unfitted(config, model)
        return
    for task in TASKS:
        if task in (entry(config.model.type) or {}):
            with suppress(ModelError):
                yield unfitted(config, None, task)


def _class_of(name: str, task: str) -> Any:
    """Import the class that a short name stands for."""
    described = entry(name)
    if described is None:
        raise ModelError(
            f"model {name}: scikit-learn has no such model; `trainwright config names model` "
            "lists those that there are"
        )
    if task not in described:
        other = next(one for one in TASKS if one != task)
        usual = INSTEAD.get(name, USUAL)
        raise ModelError(
            f"model {name} does {other}, but the data are for {task}; use {usual}, or set data.task: {other}"
        )
    module, _, attribute = described[task].partition(":")
    cls = getattr(importlib.import_module(module), attribute, None)
    if cls is None:
        version = require("sklearn", "sklearn").__version__
        raise ModelError(
            f"model {name}: the installed scikit-learn {version} has no {module}.{attribute}; "
            "install a version that has it, or choose another model"
        )
    return cls


def _from_path(path: str, options: Mapping[str, Any]) -> Any:
    """Construct the user's estimator: import an estimator, or call an imported class or function."""
    from sklearn.base import BaseEstimator

    try:
        target = import_path(path)
    except InputError as error:
        raise ModelError(f"model.type: {error}") from error
    if isinstance(target, BaseEstimator):
        try:
            return _cloned(target).set_params(**options)
        except ValueError as error:
            raise ModelError(f"model {path}: {error}") from error
    if not callable(target):
        kind = type(target).__name__
        raise ModelError(
            f"model {path}: {kind} given; allowed: an estimator, an estimator class, or a function"
        )
    estimator = _construct(path, target, options, inspect.signature(target).parameters)
    if not isinstance(estimator, BaseEstimator):
        kind = type(estimator).__name__
        raise ModelError(f"model {path}: it returned a {kind}; expected a scikit-learn estimator")
    try:
        return copy.deepcopy(estimator)  # seeds will be set in it, and its parts may belong to the module
    except (TypeError, RuntimeError) as error:
        raise ModelError(f"model {path}: {type(estimator).__name__} cannot be copied: {error}") from error


def _construct(name: str, make: Any, options: Mapping[str, Any], known: Iterable[str]) -> Any:
    """Call `make` with the options; `known` are the names that it accepts, for the message."""
    try:
        return make(**options)
    except TypeError as error:
        allowed = ", ".join(known)
        raise ModelError(
            f"model {name}: {make.__name__} does not accept these options: {error}; allowed: {allowed}"
        ) from error


@contextmanager
def without_future_warnings() -> Iterator[None]:
    """Ignore warnings of classes that a later scikit-learn will remove; use it where no other thread runs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        yield


def _cloned(model: Any) -> Any:
    """Return an unfitted copy of the user's estimator."""
    from sklearn.base import BaseEstimator, clone

    if not isinstance(model, BaseEstimator):
        raise ModelError(
            f"model: {type(model).__name__} given; expected a scikit-learn estimator (a BaseEstimator)"
        )
    try:
        return clone(model)
    except (TypeError, RuntimeError) as error:
        raise ModelError(f"model: {type(model).__name__} cannot be cloned: {error}") from error


def build_estimator(inputs: ModelInputs) -> Any:
    """Construct the estimator of a run, with seeds set and adapted to the data.

    Raises:
        ModelError: The estimator cannot be constructed, an option is invalid, or it does not do the task.
    """
    estimator = unfitted(inputs.config, inputs.model, targets_of(inputs.info).estimators)
    name = inputs.config.model.type
    _check_task(name, estimator, inputs.info)
    _set_seeds(estimator, inputs.config.experiment.seed)
    if ensemble_family(estimator) is not None:
        _adapt_ensemble(estimator, inputs)
    if isinstance(weights := getattr(estimator, "class_weight", None), dict):
        estimator.class_weight = _by_index(weights, inputs.info)
    _check_options(name, estimator)
    return estimator


def stored_class(inputs: ModelInputs) -> Any:
    """Return the class of the estimators that a short name stands for.

    Raises:
        ModelError: The name has no estimator for the task.
    """
    return _class_of(inputs.config.model.type, targets_of(inputs.info).estimators)


def _check_task(name: str, estimator: Any, info: DataInfo) -> None:
    """Raise a ModelError unless the estimator is a classifier or regressor, as the data require."""
    targets = targets_of(info)
    if not targets.fit(estimator):
        kind = type(estimator).__name__
        allowed = some(names_of_task(targets.estimators), kind.lower(), "model")
        raise ModelError(
            f"model {name}: {kind} does not do {info.task}, but the data require it; allowed: {allowed}"
        )


def _set_seeds(estimator: Any, seed: int) -> None:
    """Set missing seeds and the parameters of `SET_BY_RUN`, in the estimator and in all estimators inside it.

    Generators are replaced by seeds drawn from them, since every step would draw from a generator again.
    """
    values: dict[str, Any] = {}
    for number, (name, value) in enumerate(
        sorted(estimator.get_params(deep=True).items(), key=lambda item: item[0])
    ):
        last = name.rpartition("__")[2]
        if last == "random_state":
            if value is None:
                values[name] = sklearn_seed(seed, INIT) if name == last else sklearn_seed(seed, INIT, number)
            elif isinstance(value, np.random.RandomState):
                values[name] = int(value.randint(2**31 - 1))
        elif last in SET_BY_RUN:
            values[name] = SET_BY_RUN[last]
    estimator.set_params(**values)
    for number, part in enumerate(_unseeded(estimator)):
        state = part.random_state
        part.random_state = (
            sklearn_seed(seed, INIT, number, 1) if state is None else int(state.randint(2**31 - 1))
        )


def _unseeded(value: Any) -> Iterator[Any]:
    """Yield the unseeded parts of a value that `get_params` does not list.

    These are cross-validation splitters, and estimators in lists or mappings of options.
    """
    from sklearn.base import BaseEstimator

    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for item in value:
            yield from _unseeded(item)
    elif isinstance(value, BaseEstimator):
        options = value.get_params(deep=False)
        if "random_state" in options and not _is_seed(options["random_state"]):
            yield value
        yield from _unseeded(options)
    elif (
        hasattr(value, "split")
        and getattr(value, "shuffle", True)
        and not _is_seed(getattr(value, "random_state", 0))
    ):
        yield value


def _is_seed(value: Any) -> bool:
    """Return whether a `random_state` is a seed, and neither None nor a generator."""
    return value is not None and not isinstance(value, np.random.RandomState)


def _adapt_ensemble(estimator: Any, inputs: ModelInputs) -> None:
    """Turn off automatic early stopping of an ensemble, and tell it which features are categorical."""
    if getattr(estimator, "early_stopping", None) == "auto":
        estimator.early_stopping = False
    if any(inputs.info.categories) and getattr(estimator, "categorical_features", None) == "from_dtype":
        maximum = estimator.max_bins
        estimator.categorical_features = [0 < count <= maximum for count in inputs.info.categories]
        if any(count > maximum for count in inputs.info.categories):
            log.warning(
                "columns with more than %d categories (max_bins) are treated as numbers",
                maximum,
            )


def _by_index(weights: Mapping[Any, float], info: DataInfo) -> dict[int, float]:
    """Translate class weights from labels to class indices."""
    labels = {str(label): index for index, label in enumerate(info.classes or range(info.outputs))}
    unknown = [str(label) for label in weights if str(label) not in labels]
    if unknown:
        raise ModelError(
            f"model.params.class_weight: no class {', '.join(unknown)}; the classes are {', '.join(labels)}"
        )
    return {labels[str(label)]: weight for label, weight in weights.items()}


def _check_options(name: str, estimator: Any) -> None:
    """Have scikit-learn validate the options now, which it would otherwise do in `fit`."""
    for part in _parts(estimator):
        if not hasattr(part, "_parameter_constraints"):
            continue  # not one of scikit-learn's estimators
        try:
            part._validate_params()
        except (ValueError, TypeError) as error:
            message = str(error).partition(" Got ")[0]  # the value may be a secret from the environment
            raise ModelError(f"model {name}: {message}") from error


def holds_pipeline(estimator: Any) -> bool:
    """Return whether an estimator prepares columns: it is or holds a pipeline or a column transformer."""
    from sklearn.compose import ColumnTransformer
    from sklearn.pipeline import Pipeline

    kinds = (Pipeline, ColumnTransformer)
    parts = (_of_lists(value) for value in [estimator, *estimator.get_params(deep=True).values()])
    return any(isinstance(part, kinds) for some in parts for part in some)


def _of_lists(value: Any) -> Iterator[Any]:
    """Yield a value, or what a list or tuple holds at any depth, such as the estimators of a vote."""
    if isinstance(value, list | tuple):
        for item in value:
            yield from _of_lists(item)
    else:
        yield value


def _parts(estimator: Any) -> Iterator[Any]:
    """Yield the estimator and all estimators among its parameters."""
    from sklearn.base import BaseEstimator

    yield estimator
    values = estimator.get_params(deep=True).values()
    yield from (value for value in values if isinstance(value, BaseEstimator))


def check_data(estimator: Any, inputs: LearnerInputs) -> None:
    """Raise a ModelError if the estimator cannot be trained on the data as they are prepared."""
    from sklearn.utils import get_tags

    tags, info, name = get_tags(estimator), inputs.info, inputs.config.model.type
    if any(info.categories) and not hasattr(estimator, "categorical_features"):
        raise ModelError(
            f"data.encode: category gives codes, which {name} would treat as quantities; "
            "set onehot or ordinal"
        )
    if len(list(_parts(estimator))) == 1:  # the tags of meta-estimators are not reliable
        if not tags.input_tags.allow_nan:
            require_plain_numbers(inputs)
        train = inputs.splits["train"]
        if (
            tags.input_tags.positive_only
            and (np.asarray(train.take(np.arange(len(train)))[FEATURES]) < 0).any()
        ):
            raise ModelError(
                f"model {name} accepts no negative values; "
                "set data.standardize: false, or exclude such columns"
            )
    of_classes, of_targets = tags.classifier_tags, tags.target_tags
    does_labels = of_targets.multi_output or (of_classes is not None and of_classes.multi_label)
    targets = targets_of(info)
    if targets.are_labels and not does_labels:
        raise ModelError(
            f"model {name}: {type(estimator).__name__} does not do multilabel; use random_forest or "
            "k_neighbors, or pass a sklearn.multioutput.MultiOutputClassifier"
        )
    if targets.several and not (does_labels or of_targets.two_d_labels):
        raise ModelError(
            f"model {name}: {type(estimator).__name__} predicts one value, but the data have {info.outputs}; "
            "use random_forest, ridge or k_neighbors, or pass a sklearn.multioutput.MultiOutputRegressor"
        )
    if not targets.several and not tags.target_tags.single_output:
        raise ModelError(
            f"model {name}: {type(estimator).__name__} needs several target values, but the data have one"
        )
    if step_kind(estimator) == "once" and inputs.config.model.init_from:
        raise ModelError(
            f"model.init_from: {name} fits in one step from scratch and ignores initial weights; remove it"
        )
