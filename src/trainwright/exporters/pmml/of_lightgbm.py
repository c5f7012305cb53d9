"""Boosters of LightGBM in PMML."""

from __future__ import annotations

from trainwright.exporters.pmml.preparation import Features
from trainwright.exporters.pmml.trees import summed_trees
from trainwright.exporters.pmml.xml import Element
from trainwright.exporters.trees import lightgbm
from trainwright.frameworks.base import Model
from trainwright.types import DataInfo


def model_of(model: Model, info: DataInfo, features: Features, target: str) -> tuple[Element, Features]:
    """Return a booster without its schema, and the features that it takes.

    Raises:
        InputError: It takes zeros for missing values, or PMML has no model for its objective.
    """
    return summed_trees(lightgbm.ensemble_of(model), features, info, target), features
