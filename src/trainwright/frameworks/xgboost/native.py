"""Checks of a model against the data, and options in XGBoost's own format."""

from __future__ import annotations

import difflib
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from trainwright.errors import ModelError
from trainwright.frameworks.base import ModelInputs
from trainwright.frameworks.xgboost.matrices import feature_names
from trainwright.frameworks.xgboost.params import XgboostParams
from trainwright.frameworks.xgboost.targets import targets_of
from trainwright.types import DataInfo


def check_categories(params: XgboostParams, info: DataInfo) -> None:
    """Refuse categorical columns where the trees cannot split by a set of categories.

    Raises:
        ModelError: The data has categorical columns, and such a tree method is set.
    """
    for name, value in (("tree_method", "exact"), ("multi_strategy", "multi_output_tree")):
        if any(info.categories) and getattr(params, name) == value:
            raise ModelError(f"{name}: {value} does not support categorical columns; set data.encode: onehot")


def constraints(params: XgboostParams, info: DataInfo) -> dict[str, str]:
    """Return the constraints of the params in XGBoost's format, with features as column numbers.

    Raises:
        ModelError: A feature does not exist, or the number of signs differs from that of the features.
    """
    options, size = {}, int(np.prod(info.input_shape))
    signs = params.monotone_constraints
    if isinstance(signs, dict):
        by_number = {_column_number(name, info): sign for name, sign in signs.items()}
        signs = [by_number.get(i, 0) for i in range(size)]
    if signs is not None:
        if len(signs) != size:
            raise ModelError(
                f"monotone_constraints has {len(signs)} entries for {size} features; give them by name"
            )
        options["monotone_constraints"] = f"({','.join(map(str, signs))})"
    if params.interaction_constraints is not None:
        groups = [[_column_number(name, info) for name in group] for group in params.interaction_constraints]
        options["interaction_constraints"] = json.dumps(groups)
    return options


def _column_number(name: str | int, info: DataInfo) -> int:
    names: Sequence[str] = [str(known) for known in info.feature_names]
    if isinstance(name, int) and 0 <= name < int(np.prod(info.input_shape)):
        return name
    if name in names:
        return names.index(str(name))
    near = difflib.get_close_matches(str(name), names, n=1)
    hint = (
        f"did you mean {near[0]!r}?"
        if near
        else f"allowed: {', '.join(names[:12])}{' ...' if len(names) > 12 else ''}"
    )
    raise ModelError(f"constraints: there is no feature {name!r}; {hint}")


def check_initial_model(raw: bytearray, inputs: ModelInputs, params: XgboostParams, objective: str) -> None:
    """Check that training can continue from the serialized model `raw`.

    Raises:
        ModelError: The model was trained on other features or outputs, or with another booster or
            objective.
    """
    import xgboost

    booster = xgboost.Booster(model_file=raw)
    learner: dict[str, Any] = json.loads(booster.save_config())["learner"]
    sizes = learner["learner_model_param"]
    actual = {
        "booster": learner["gradient_booster"]["name"],
        "objective": learner["objective"]["name"],
        "number of features": int(sizes["num_feature"]),
        "outputs": max(1, int(sizes["num_class"]), int(sizes["num_target"])),
        "feature names": booster.feature_names,
    }
    info = inputs.info
    expected = {
        "booster": params.booster,
        "objective": objective,
        "number of features": int(np.prod(info.input_shape)),
        "outputs": targets_of(info).width(objective),
        "feature names": feature_names(info),
    }
    if params.base_score is not None:  # training continues from the model's own
        actual["base_score"] = ", ".join(
            dict.fromkeys(str(np.float32(score)) for score in json.loads(sizes["base_score"]))
        )
        expected["base_score"] = str(np.float32(params.base_score))
    for what, value in expected.items():
        if actual[what] != value:
            raise ModelError(f"the initial model has {what} {actual[what]}, the run {value}; make them agree")
