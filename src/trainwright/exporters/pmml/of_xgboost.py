"""Boosters of XGBoost in PMML."""

from __future__ import annotations

from trainwright.exporters.pmml.preparation import Features
from trainwright.exporters.pmml.trees import summed_trees
from trainwright.exporters.pmml.xml import Element
from trainwright.exporters.trees import xgboost
from trainwright.frameworks.base import Model
from trainwright.types import DataInfo


def model_of(model: Model, info: DataInfo, features: Features, target: str) -> tuple[Element, Features]:
    """Return a booster without its schema, and the features that it takes.

    Raises:
        InputError: It is linear, or PMML has no model for its objective.
    """
    single = features.as_float()  # as XGBoost compares
    return summed_trees(xgboost.ensemble_of(model), single, info, target), single
