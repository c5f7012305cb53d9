"""The estimator that a config or an object means, not fitted yet, and whether it suits the data."""

from __future__ import annotations

import copy
import importlib
import inspect
import logging
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import numpy as np

from trainyard.config.schema import RunConfig
from trainyard.errors import InputError, ModelError
from trainyard.frameworks.base import FrameworkInputs, refuse_gaps
from trainyard.frameworks.sklearn.models import PER_STEP, chosen, entry, names_for
from trainyard.frameworks.sklearn.steps import family_of, kind_of, seed_of
from trainyard.order import INIT
from trainyard.require import import_path, require
from trainyard.types import DataInfo, Task

log = logging.getLogger("trainyard")

INSTEAD: Mapping[str, str] = {  # where the usual answer is not the nearest
    "gaussian_nb": "bayesian_ridge",
    "linear_regression": "logistic_regression or ridge",
    "logistic_regression": "linear_regression or ridge",
    "linear_discriminant_analysis": "linear_regression or ridge",
    "perceptron": "sgd",
    "elastic_net": "sgd, or logistic_regression with solver: saga and l1_ratio",
    "lasso": "sgd with penalty: l1, or logistic_regression with solver: saga and l1_ratio: 1",
}
TASKS: tuple[Task, ...] = ("classification", "regression")
USUAL = "random_forest, hist_gradient_boosting, svm or k_neighbors, which do both"
OURS = {
    "n_jobs": None,
    "copy": True,
    "copy_X": True,
    "copy_X_train": True,
}  # threads are the run's; its rows stay as they are


def unfitted(config: RunConfig, model: Any = None, task: Task | None = None) -> Any:
    """The estimator with its options, still without a seed.

    Args:
        model: an object that was passed in Python; it is cloned, so whatever it was fitted to is left behind.
        task: what it is for; None: any that it does.

    Raises:
        ModelError: it cannot be made.
    """
    require("sklearn", "sklearn")
    if model is not None:
        return _cloned(model)
    name, params = config.model.type, config.model.params
    if ":" in name:
        return _imported(name, {key: value for key, value in params.items() if key != PER_STEP})
    options = chosen(name, params)
    classes = [
        _named(name, one) for one in ((task,) if task else TASKS) if task or one in (entry(name) or {})
    ]
    cls = next((one for one in classes if set(options) <= set(one._get_param_names())), classes[0])
    return _made(name, cls, options, cls._get_param_names())


def either(config: RunConfig, model: Any = None) -> Iterator[Any]:
    """The estimators that a short name may mean, as far as they take its options; what else is given, as it is."""
    if model is not None or entry(config.model.type) is None:
        yield unfitted(config, model)
        return
    for task in entry(config.model.type) or {}:
        if task in TASKS:
            with suppress(ModelError):
                yield unfitted(config, None, task)


def _named(name: str, task: Task) -> Any:
    found = entry(name)
    if found is None:
        raise ModelError(f"model {name}: scikit-learn has no such model")
    if task not in found:
        other = next(one for one in TASKS if one != task)
        usual = INSTEAD.get(name, USUAL)
        raise ModelError(
            f"model {name} does {other}, but the data are for {task}; use {usual}, or set data.task: {other}"
        )
    module, _, attribute = found[task].partition(":")
    cls = getattr(importlib.import_module(module), attribute, None)
    if cls is None:
        version = require("sklearn", "sklearn").__version__
        raise ModelError(f"model {name}: the installed scikit-learn {version} has no {module}.{attribute}")
    return cls


def _imported(path: str, options: Mapping[str, Any]) -> Any:
    """Of the user's: an estimator with other options, or what a class or a function gives with them."""
    from sklearn.base import BaseEstimator

    try:
        found = import_path(path)
    except InputError as error:
        raise ModelError(f"model.type: {error}") from error
    if isinstance(found, BaseEstimator):
        try:
            return _cloned(found).set_params(**options)
        except ValueError as error:
            raise ModelError(f"model {path}: {error}") from error
    if not callable(found):
        raise ModelError(
            f"model {path}: {type(found).__name__} given; an estimator, its class, or a function is needed"
        )
    made = _made(path, found, options, inspect.signature(found).parameters)
    if not isinstance(made, BaseEstimator):
        raise ModelError(f"model {path}: it gives a {type(made).__name__}, and no scikit-learn estimator")
    try:
        return copy.deepcopy(made)  # it may hold what belongs to its module, and seeds will be set in it
    except (TypeError, RuntimeError) as error:
        raise ModelError(f"model {path}: {type(made).__name__} cannot be copied: {error}") from error


def _made(name: str, make: Any, options: Mapping[str, Any], known: Iterable[str]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of classes that a later version drops
        try:
            return make(**options)
        except TypeError as error:
            takes = ", ".join(known)
            raise ModelError(
                f"model {name}: {make.__name__} does not take these options: {error}; it takes {takes}"
            ) from error


def _cloned(model: Any) -> Any:
    from sklearn.base import BaseEstimator, clone

    if not isinstance(model, BaseEstimator):
        raise ModelError(
            f"model: {type(model).__name__} is no scikit-learn estimator (a sklearn.base.BaseEstimator)"
        )
    try:
        return clone(model)
    except (TypeError, RuntimeError) as error:
        raise ModelError(f"model: {type(model).__name__} cannot be cloned: {error}") from error


def prepared(inputs: FrameworkInputs) -> Any:
    """The estimator of a run: with a seed wherever there is none, and with what the data ask for.

    Raises:
        ModelError: it cannot be made, an option has no such value, or it does not suit the data.
    """
    estimator = unfitted(inputs.config, inputs.model, inputs.info.task)
    name = inputs.config.model.type
    _check_task(name, estimator, inputs.info)
    _set_deep(estimator, inputs.config.experiment.seed)
    if family_of(estimator) is not None:
        _set_growing(estimator, inputs)
    if isinstance(weights := getattr(estimator, "class_weight", None), dict):
        estimator.class_weight = _by_index(weights, inputs.info)
    _check_options(name, estimator)
    if inputs.order is not None:
        _check_data(name, estimator, inputs)
    return estimator


def _check_task(name: str, estimator: Any, info: DataInfo) -> None:
    from sklearn.base import is_classifier, is_regressor

    right = is_classifier if info.task == "classification" else is_regressor
    if not right(estimator):
        known = ", ".join(names_for(info.task)[:60])
        raise ModelError(
            f"model {name}: {type(estimator).__name__} does no {info.task}, as the data need; there are: {known}"
        )


def _set_deep(estimator: Any, seed: int) -> None:
    """Sets seeds where there are none, and what the run decides for all estimators inside it."""
    values: dict[str, Any] = {}
    for number, (name, value) in enumerate(
        sorted(estimator.get_params(deep=True).items(), key=lambda item: item[0])
    ):
        last = name.rpartition("__")[2]
        if last == "random_state":
            if value is None:
                values[name] = seed_of(seed, INIT) if name == last else seed_of(seed, INIT, number)
            elif isinstance(value, np.random.RandomState):
                values[name] = int(value.randint(2**31 - 1))  # else it would be drawn from at each step
        elif last in OURS:
            values[name] = OURS[last]
    estimator.set_params(**values)
    for number, one in enumerate(_unseeded(estimator)):
        given = (
            one.random_state
        )  # a generator would be drawn from at each step, and with None, some make one of their own
        one.random_state = seed_of(seed, INIT, number, 1) if given is None else int(given.randint(2**31 - 1))


def _unseeded(value: Any) -> Iterator[Any]:
    """Splitters without a seed, and estimators in lists and mappings of options: parameters that have no names of their own."""
    from sklearn.base import BaseEstimator

    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for one in value:
            yield from _unseeded(one)
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
    return value is not None and not isinstance(value, np.random.RandomState)


def _set_growing(estimator: Any, inputs: FrameworkInputs) -> None:
    """It neither stops by itself nor guesses which features are categories."""
    if getattr(estimator, "early_stopping", None) == "auto":
        estimator.early_stopping = False
    if any(inputs.info.categories) and getattr(estimator, "categorical_features", None) == "from_dtype":
        most = estimator.max_bins
        estimator.categorical_features = [0 < count <= most for count in inputs.info.categories]
        if any(count > most for count in inputs.info.categories):
            log.warning(
                "columns of more than %d categories are taken for numbers: that many are the most (max_bins)",
                most,
            )


def _by_index(weights: Mapping[Any, float], info: DataInfo) -> dict[int, float]:
    """Weights by class index, of those by label."""
    labels = {str(label): index for index, label in enumerate(info.classes or range(info.outputs))}
    unknown = [str(label) for label in weights if str(label) not in labels]
    if unknown:
        raise ModelError(
            f"model.params.class_weight: no class {', '.join(unknown)}; the classes are {', '.join(labels)}"
        )
    return {labels[str(label)]: weight for label, weight in weights.items()}


def _check_options(name: str, estimator: Any) -> None:
    """Asks scikit-learn about the values of the options, which else it would do in `fit`."""
    for part in _parts(estimator):
        if not hasattr(part, "_parameter_constraints"):
            continue  # of someone's own
        try:
            part._validate_params()
        except (ValueError, TypeError) as error:
            said = str(error).partition(" Got ")[0]  # what was given may be a secret from the environment
            raise ModelError(f"model {name}: {said}") from error


def _parts(estimator: Any) -> Iterator[Any]:
    """The estimator, and those that it is made of."""
    from sklearn.base import BaseEstimator

    yield estimator
    yield from (one for one in estimator.get_params(deep=True).values() if isinstance(one, BaseEstimator))


def _check_data(name: str, estimator: Any, inputs: FrameworkInputs) -> None:
    from sklearn.utils import get_tags

    tags, info = get_tags(estimator), inputs.info
    if any(info.categories) and not hasattr(estimator, "categorical_features"):
        raise ModelError(
            f"data.encode: category gives codes, which {name} would take for amounts; give onehot or ordinal"
        )
    if (
        len(list(_parts(estimator))) == 1
    ):  # those of other estimators are not told reliably by that which holds them
        if not tags.input_tags.allow_nan:
            refuse_gaps(inputs)
        if (
            tags.input_tags.positive_only
            and (
                np.asarray(inputs.splits["train"].take(np.arange(len(inputs.splits["train"]))).features) < 0
            ).any()
        ):
            raise ModelError(
                f"model {name}: it takes no negative values; set data.standardize: false, or leave such columns out"
            )
    several = info.task == "regression" and info.outputs > 1
    if several and not (tags.target_tags.multi_output or tags.target_tags.two_d_labels):
        raise ModelError(
            f"model {name}: {type(estimator).__name__} predicts one value, but the data have {info.outputs}; use random_forest, "
            "ridge or k_neighbors, or pass a sklearn.multioutput.MultiOutputRegressor"
        )
    if not several and not tags.target_tags.single_output:
        raise ModelError(
            f"model {name}: {type(estimator).__name__} needs several values to predict, but the data have one"
        )
    if kind_of(estimator) == "once" and inputs.config.model.init_from:
        raise ModelError(
            f"model.init_from: {name} fits in one step, from nothing: initial weights have no effect on it"
        )
