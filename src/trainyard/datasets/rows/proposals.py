"""Propose the sections `model` and `training` for a table: options by the number of rows, early stopping."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Literal

import numpy as np

_SEVERAL = ("xgboost", "catboost", "random_forest")  # which learn several targets together
BOOSTERS = ("lightgbm", "xgboost", "catboost", "hist_gradient_boosting")  # the first that is installed
_LIBRARIES = {"hist_gradient_boosting": "sklearn", "random_forest": "sklearn", "mlp": "torch"}
_LIBRARIES |= {"logistic_regression": "sklearn", "ridge": "sklearn"}
_RARE = 0.1  # accuracy says little where a class has a smaller share of the rows
_MANY_ROWS = 100_000  # from here on, rounds are evaluated less often, and the learning rate is higher
_PATIENCE = 5  # rounds without improvement, times the learning rate: small steps improve little

REASONS: Mapping[str, str] = {  # of what is proposed, by its key, for comments in the config
    "min_child_samples": "fewer where there are few rows",
    "subsample": "a share of the rows for each tree: trees differ, and their sum varies less",
    "subsample_freq": "drawn anew in each round",
    "patience": "evaluations without improvement",
}

Sections = dict[str, Any]


@dataclass(frozen=True)
class Shape:
    """What a proposal depends on.

    `rows` are those to train on. `classes` is the number of classes, 0 for values, and `rarest` the share of
    the rarest class. `several` is what several targets hold, None for one target.
    """

    rows: int
    features: int
    classes: int = 0
    rarest: float = 1.0
    several: Literal["values", "labels"] | None = None

    @property
    def is_imbalanced(self) -> bool:
        """Whether one of two classes is rare."""
        return self.classes == 2 and self.rarest < _RARE


def is_installed(model: str) -> bool:
    """Return whether the library of a model that is proposed is installed."""
    return find_spec(_LIBRARIES.get(model, model)) is not None


def default_model(shape: Shape) -> str:
    """Return the model to propose: boosted trees of the first library that is installed, else `mlp`."""
    models = _SEVERAL if shape.several else BOOSTERS
    return next((model for model in models if is_installed(model)), "mlp")


def candidates(shape: Shape) -> list[str]:
    """Return the installed models to compare: the default one, then others, the most different ones first."""
    linear = "logistic_regression" if shape.classes else "ridge"
    models = [default_model(shape), linear, "random_forest", "catboost", "mlp", "xgboost"]
    if shape.several == "labels":
        models.remove(linear)
    return [model for model in dict.fromkeys(models) if is_installed(model)]


def sections(model: str, shape: Shape) -> Sections:
    """Return the sections `model`, `training` and `evaluation` of a config.

    Args:
        model: A name for `model.type`; one that has no proposal gets the defaults of its framework.
        shape: The table.
    """
    propose = _PROPOSALS.get(model)
    proposed = propose(shape) if propose else {}
    metrics = _metrics(shape)
    evaluation = {**({"metrics": metrics} if metrics else {}), **proposed.get("evaluation", {})}
    return {
        "model": {"type": model, **proposed.get("model", {})},
        **({"training": proposed["training"]} if "training" in proposed else {}),
        **({"evaluation": evaluation} if evaluation else {}),
    }


def metric_of(shape: Shape) -> str:
    """Return the metric to compare models by."""
    if shape.several == "labels":
        return "log_loss"
    if not shape.classes:
        return "r2"
    if shape.is_imbalanced:
        return "average_precision"
    return "roc_auc" if shape.classes == 2 else "log_loss"


def _metrics(shape: Shape) -> list[str]:
    """Return the metrics that say most about a model; none where the defaults do."""
    if shape.is_imbalanced:
        return ["average_precision", "roc_auc", "f1"]
    return ["accuracy", "roc_auc", "f1"] if shape.classes == 2 else []


def _boosting(options: Mapping[str, Any], shape: Shape) -> Sections:
    """Return the sections of boosted trees: as many rounds as improve the validation loss."""
    many = shape.rows >= _MANY_ROWS
    rounds = 500 if shape.classes > 20 else 2000  # a round has a tree for each of several classes
    every = 10 if many else 1
    patience = int(_PATIENCE / _rate(shape)) // every
    return {
        "model": {"n_estimators": rounds, "learning_rate": _rate(shape), **options},
        "training": {"early_stopping": {"metric": "val_loss", "patience": patience}},
        **({"evaluation": {"every_n_steps": every}} if many else {}),
    }


def _rate(shape: Shape) -> float:
    """Return the learning rate: lower where rounds cost little."""
    return 0.05 if shape.rows * max(1, shape.classes) < _MANY_ROWS else 0.1


def _least(shape: Shape) -> int:
    """Return the minimum number of rows in a leaf: with few rows, 20 of them leave few splits.

    Where there are more features than rows, most are of one category each, which few rows have.
    """
    return 3 if shape.features > shape.rows else int(np.clip(shape.rows // 10, 3, 20))


def _lightgbm(shape: Shape) -> Sections:
    options = {"num_leaves": 31, "min_child_samples": _least(shape), "subsample": 0.8, "subsample_freq": 1}
    return _boosting(options, shape)


def _xgboost(shape: Shape) -> Sections:
    return _boosting({"max_depth": 6, "subsample": 0.8}, shape)


def _catboost(shape: Shape) -> Sections:
    return _boosting({"max_depth": 6}, shape)


def _hist_gradient_boosting(shape: Shape) -> Sections:
    return {
        "model": {"max_iter": 1000, "learning_rate": _rate(shape), "min_samples_leaf": _least(shape)},
        "training": {"early_stopping": {"metric": "val_loss", "patience": 5}},  # of 10 iterations each
    }


def _random_forest(shape: Shape) -> Sections:
    return {"model": {"n_estimators": 300, "min_samples_leaf": 1 if shape.classes else 2}}


def _mlp(shape: Shape) -> Sections:
    rows = shape.rows
    # A power of two from 8 to 256, for about 20 steps per epoch; at most a third of the rows.
    batch = int(max(1, min(2 ** int(np.clip(np.log2(max(rows / 20, 1)), 3, 8)), rows // 3)))
    training = {"epochs": 50, "batch_size": batch, "learning_rate": 1e-3}
    stop = {"early_stopping": {"metric": "val_loss", "patience": 10}}
    return {"model": {"hidden": [128, 64], "dropout": 0.1}, "training": training | stop}


_PROPOSALS: Mapping[str, Callable[[Shape], Sections]] = {
    "lightgbm": _lightgbm,
    "xgboost": _xgboost,
    "catboost": _catboost,
    "hist_gradient_boosting": _hist_gradient_boosting,
    "random_forest": _random_forest,
    "logistic_regression": lambda _: {"model": {"C": 1.0, "max_iter": 1000}},
    "ridge": lambda _: {"model": {"alpha": 1.0}},
    "mlp": _mlp,
}
