"""Changes of a run's config that mend a fault: proposed only where this config takes them and they matter."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple, TypeGuard

from pydantic import ValidationError

from trainwright.config import load
from trainwright.config.training import TrainingConfig
from trainwright.errors import ConfigError
from trainwright.reports.diagnosis.base import NO_CHANGES, Changes, params_of, setting
from trainwright.reports.framework import framework_of
from trainwright.reports.rundir import RunFiles, part

_OF_ENGINE = {"class_weights", "early_stopping"}  # of `training`, for every framework
_ADAPTIVE = ("adam", "lamb", "lion", "adafactor", "prop", "adagrad", "adan")  # parts of names of optimizers
# Options of models that weight classes by themselves, and the values that mean that they do not.
_OWN_WEIGHTS: Mapping[str, tuple[Any, ...]] = {
    "class_weight": (None,),
    "class_weights": (None,),
    "auto_class_weights": (None, "None"),
    "scale_pos_weight": (None, 1),
    "is_unbalance": (None, False),
}
_LEAF = 10  # rows of a leaf, in which weights of classes count
_OWN_RATES = {"learning_rate": 0.1, "learning_rate_init": 1e-3, "eta0": 0.01}  # of models: the usual ones


class Rate(NamedTuple):
    """The learning rate that has an effect on the model: its key, its value, and a usual one."""

    key: str
    value: float
    usual: float


def rate_of(run: RunFiles) -> Rate | None:
    """Return the learning rate of a run; None if its model has none that is known."""
    if "learning_rate" in training_keys(run):
        value = setting(run, "training.learning_rate")
        return Rate("training.learning_rate", value, _usual(run)) if is_number(value) and value > 0 else None
    for name, usual in _OWN_RATES.items():
        value = params_of(run).get(name)
        if is_number(value) and value > 0:
            own = default_of(run, name)
            return Rate(f"model.params.{name}", value, own if is_number(own) and own > 0 else usual)
    return None


def _usual(run: RunFiles) -> float:
    if params_of(run).get("path") or setting(run, "model.init_from"):
        return 5e-5  # of weights that know something
    optimizer = str(setting(run, "training.optimizer.type", "adamw")).lower()
    return 1e-3 if any(name in optimizer for name in _ADAPTIVE) else 1e-2


def training_keys(run: RunFiles) -> Collection[str]:
    """Return the keys of `training` that have an effect on the run's model, as far as that is known."""
    framework = framework_of(run)
    if framework is None:
        return set()
    return {*framework.training_keys(str(setting(run, "model.type")), params_of(run))}


def advised(run: RunFiles, *candidates: Mapping[str, Any]) -> Changes:
    """Return the first of several changes that the config takes and that change something; else none."""
    return next((one for one in candidates if one and takes(run, one)), NO_CHANGES)


def takes(run: RunFiles, changes: Mapping[str, Any]) -> bool:
    """Return whether each change has an effect on this run's model, differs from its value, and is valid."""
    known = part(run.settings, "model"), training_keys(run)
    for key, value in changes.items():
        section, _, name = key.partition(".")
        if setting(run, key) == value or (key == "data.exclude" and _has_own_width(run)):
            return False
        if section == "training" and name.partition(".")[0] not in {*known[1], *_OF_ENGINE}:
            return False
        if key.startswith("model.params.") and not _has_option(run, key.removeprefix("model.params.")):
            return False
    return _is_valid(run, changes)


def _has_own_width(run: RunFiles) -> bool:
    """Return whether the model is code of the user's that may expect a number of columns of its own.

    Networks do; an estimator or a pipeline of scikit-learn is fitted to the columns that there are.
    """
    is_own = run.passed_objects or ":" in str(setting(run, "model.type"))
    return is_own and (framework_of(run) is None or "learning_rate" in training_keys(run))


def _has_option(run: RunFiles, name: str) -> bool:
    framework, model = framework_of(run), str(setting(run, "model.type"))
    known = framework.models[model].model_fields if framework and model in framework.models else {}
    return name in params_of(run) or name in known


def _is_valid(run: RunFiles, changes: Mapping[str, Any]) -> bool:
    framework, model = framework_of(run), str(changes.get("model.type", setting(run, "model.type")))
    own = {
        key.removeprefix("model.params."): value
        for key, value in changes.items()
        if key.startswith("model.params.")
    }
    try:
        load(run.settings, dict(changes), objects=True, variables=False)
        if own and framework is not None and model in framework.models:
            framework.models[model].model_validate({**params_of(run), **own})
    except (ConfigError, ValidationError):
        return False
    return True


def weights_classes(run: RunFiles) -> bool:
    """Return whether something in the config makes rare classes count more already."""
    params = params_of(run)
    own = any(name in params and params[name] not in unset for name, unset in _OWN_WEIGHTS.items())
    set_keys = ("training.class_weights", "data.sampling", "data.weight")
    return own or any(setting(run, key) is not None for key in set_keys)


def balanced(run: RunFiles) -> Changes:
    """Return the change that balances classes by their weights; none where the model takes no weights.

    In leaves of one class, as trees have by default, weights move no answer: these need more rows.
    """
    framework, model = framework_of(run), str(setting(run, "model.type"))
    if framework is None or not framework.capabilities.weights or model in framework.advice.unweighted:
        return NO_CHANGES
    if ":" in model and "batch_size" not in training_keys(run):
        return NO_CHANGES  # a class or a pipeline may take none
    few = params_of(run).get("min_samples_leaf")
    leaves = {"model.params.min_samples_leaf": _LEAF} if is_number(few) and 1 <= few < _LEAF else {}
    weights = {} if weights_classes(run) else {"training.class_weights": "balanced"}
    return advised(run, {**weights, **leaves})


def longer(run: RunFiles, factor: int = 3) -> Changes:
    """Return the change that makes a training longer, by the key that sets its length."""
    keys, params = training_keys(run), params_of(run)
    lengths: Iterable[tuple[str, Any]] = (
        ("training.max_steps", setting(run, "training.max_steps") if "max_steps" in keys else None),
        ("training.epochs", setting(run, "training.epochs") if "epochs" in keys else None),
        ("model.params.n_estimators", params.get("n_estimators")),
        ("model.params.max_iter", params.get("max_iter")),
    )
    return advised(
        run, *({key: factor * value} for key, value in lengths if is_number(value) and value == int(value))
    )


def default_of(run: RunFiles, option: str) -> Any:
    """Return the default of an option of the model; None if it is not known."""
    framework, model = framework_of(run), str(setting(run, "model.type"))
    if framework is None or model not in framework.models:
        return None
    field = framework.models[model].model_fields.get(option)
    return None if field is None or field.is_required() else field.get_default(call_default_factory=True)


def training_default(name: str) -> Any:
    """Return the default of a key of `training`."""
    return TrainingConfig.model_fields[name].get_default(call_default_factory=True)


def is_number(value: Any) -> TypeGuard[int | float]:
    """Return whether a value of a config is a number."""
    return isinstance(value, int | float) and not isinstance(value, bool)
