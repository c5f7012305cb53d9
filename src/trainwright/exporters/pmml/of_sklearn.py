"""Estimators of scikit-learn in PMML: linear ones, trees, forests, gradient boosting and networks."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.ensemble import GradientBoostingClassifier, GradientBoostingRegressor
from sklearn.ensemble._hist_gradient_boosting.gradient_boosting import BaseHistGradientBoosting
from sklearn.linear_model import GammaRegressor, LogisticRegression, PoissonRegressor, SGDClassifier
from sklearn.linear_model._base import LinearModel
from sklearn.linear_model._stochastic_gradient import BaseSGDRegressor
from sklearn.neural_network import MLPClassifier, MLPRegressor

from trainwright.errors import InputError
from trainwright.exporters.base import names_classes
from trainwright.exporters.pmml.models import linear
from trainwright.exporters.pmml.networks import Layer, network
from trainwright.exporters.pmml.preparation import Features
from trainwright.exporters.pmml.trees import averaged_trees, summed_trees
from trainwright.exporters.pmml.xml import NEAREST, Element
from trainwright.exporters.trees.sklearn import averaged, boosted, gradient_boosted
from trainwright.frameworks.base import Model
from trainwright.types import DataInfo

_ACTIVATIONS = {"logistic": "logistic", "tanh": "tanh", "relu": "rectifier", "identity": "identity"}


def model_of(model: Model, info: DataInfo, features: Features, target: str) -> tuple[Element, Features]:
    """Return an estimator without its schema, and the features that it takes.

    Raises:
        InputError: PMML has no model for it, or the training rows lack a class.
    """
    estimator = model.native
    if names_classes(info) and list(getattr(estimator, "classes_", [])) != list(range(info.outputs)):
        raise InputError(
            "the training rows lack a class, so that others would take its place in PMML; export with "
            "--format sklearn"
        )
    if isinstance(estimator, BaseHistGradientBoosting):
        return summed_trees(boosted(estimator, info), features, info, target), features
    if isinstance(estimator, GradientBoostingClassifier | GradientBoostingRegressor):
        if (ensemble := gradient_boosted(estimator, info)) is None:
            raise InputError(f"gradient boosting that begins with an estimator cannot be PMML; {NEAREST}")
        single = features.as_float()  # as scikit-learn compares
        return summed_trees(ensemble, single, info, target), single
    if (trees := averaged(estimator)) is not None:
        return averaged_trees(trees, features, info), features.as_float()
    if isinstance(estimator, MLPClassifier | MLPRegressor):
        return network(_layers(estimator), features, info, target), features
    return _linear(estimator, info, features), features


def _layers(estimator: Any) -> list[Layer]:
    """Return the layers of a network; its last one is linear."""
    activations = [_ACTIVATIONS[estimator.activation]] * (len(estimator.coefs_) - 1) + ["identity"]
    return [
        Layer(weights.T, start, activation)
        for weights, start, activation in zip(
            estimator.coefs_, estimator.intercepts_, activations, strict=True
        )
    ]


def _linear(estimator: Any, info: DataInfo, features: Features) -> Element:
    rows = np.atleast_2d(getattr(estimator, "coef_", np.zeros((0, 0)))).astype(np.float64)
    if names_classes(info):
        is_known = isinstance(estimator, LogisticRegression)
        is_known |= isinstance(estimator, SGDClassifier) and estimator.loss == "log_loss" and len(rows) == 1
        link = "softmax"
    else:
        is_exp = isinstance(estimator, PoissonRegressor | GammaRegressor)
        is_known = is_exp or isinstance(estimator, LinearModel | BaseSGDRegressor)
        link = "exp" if is_exp else "identity"
    if not is_known or rows.shape[1] != len(features.names):
        raise InputError(f"there is no model of PMML for {type(estimator).__name__} here; {NEAREST}")
    starts = np.broadcast_to(np.ravel(estimator.intercept_), len(rows)).astype(np.float64)
    return linear(features.names, rows.tolist(), starts.tolist(), link, info)
