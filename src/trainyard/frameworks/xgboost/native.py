"""What the library is told of a model, and says of one, in its own words."""

from __future__ import annotations

import difflib
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from trainyard.errors import ModelError
from trainyard.frameworks.base import FrameworkInputs
from trainyard.frameworks.xgboost.matrices import feature_names
from trainyard.frameworks.xgboost.params import XgboostParams
from trainyard.types import DataInfo


def refuse_categories(params: XgboostParams, info: DataInfo) -> None:
    """For the ways to grow trees that cannot split by a set of categories.

    Raises:
        ModelError: the data has columns of categories.
    """
    for name, value in (("tree_method", "exact"), ("multi_strategy", "multi_output_tree")):
        if any(info.categories) and getattr(params, name) == value:
            raise ModelError(f"{name}: {value} takes no categories as such; set data.encode: onehot")


def constraints(params: XgboostParams, info: DataInfo) -> dict[str, str]:
    """The options that speak of features, by the features' numbers.

    Raises:
        ModelError: there is no such feature.
    """
    found, size = {}, int(np.prod(info.input_shape))
    signs = params.monotone_constraints
    if isinstance(signs, dict):
        by_number = {_number(name, info): sign for name, sign in signs.items()}
        signs = [by_number.get(i, 0) for i in range(size)]
    if signs is not None:
        if len(signs) != size:
            raise ModelError(
                f"monotone_constraints has {len(signs)} entries for {size} features; name the features instead"
            )
        found["monotone_constraints"] = f"({','.join(map(str, signs))})"
    if params.interaction_constraints is not None:
        groups = [[_number(name, info) for name in group] for group in params.interaction_constraints]
        found["interaction_constraints"] = json.dumps(groups)
    return found


def _number(name: str | int, info: DataInfo) -> int:
    names: Sequence[str] = [str(known) for known in info.feature_names]
    if isinstance(name, int) and 0 <= name < int(np.prod(info.input_shape)):
        return name
    if name in names:
        return names.index(str(name))
    near = difflib.get_close_matches(str(name), names, n=1)
    hint = (
        f"did you mean {near[0]!r}?"
        if near
        else f"there are {', '.join(names[:12])}{' ...' if len(names) > 12 else ''}"
    )
    raise ModelError(f"constraints: no feature is called {name!r}; {hint}")


def refuse_misfit(raw: bytearray, inputs: FrameworkInputs, params: XgboostParams, objective: str) -> None:
    """For a model that is to be trained on.

    Raises:
        ModelError: it was made for other data, or in another way than the config says.
    """
    import xgboost

    booster = xgboost.Booster(model_file=raw)
    learner: dict[str, Any] = json.loads(booster.save_config())["learner"]
    sizes = learner["learner_model_param"]
    found = {
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
        "outputs": 1 if objective == "binary:logistic" else info.outputs,
        "feature names": feature_names(info),
    }
    if params.base_score is not None:  # it goes on from that of the model
        found["base_score"] = ", ".join(
            dict.fromkeys(str(np.float32(score)) for score in json.loads(sizes["base_score"]))
        )
        expected["base_score"] = str(np.float32(params.base_score))
    for what, value in expected.items():
        if found[what] != value:
            raise ModelError(f"the model to go on from has {what} {found[what]}, the run {value}")
