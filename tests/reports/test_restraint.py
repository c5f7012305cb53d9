"""What holds a model back: an option that the model has, by its kind."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from constructed import bundle, classes, run_of
from test_diagnosis import HEALTHY, ROWS, cut, drawn, found, probabilities

from written import write_record

MODELS: dict[str, tuple[str, dict[str, Any], str]] = {
    "a deep tree": ("decision_tree", {"max_depth": None}, "model.params.max_depth: 4"),
    "a shallow tree": ("decision_tree", {"max_depth": 3}, "model.params.max_depth: 2"),
    "a linear model": ("logistic_regression", {"C": 1.0}, "model.params.C: 0.1"),
    "a penalty": ("ridge", {"alpha": 1.0}, "model.params.alpha: 10"),
    "none": ("linear_regression", {"fit_intercept": True}, "model.type: ridge"),
    "neighbors": ("k_neighbors", {"n_neighbors": 5}, "model.params.n_neighbors: 15"),
    "a pipeline": ("mine:pipe", {"logisticregression__C": 1.0}, "model.params.logisticregression__C: 0.1"),
    "an unknown one": ("mine:pipe", {}, ""),
}
OTHERS = ("a pipeline", "an unknown one")  # whose framework no record tells


def _by_heart(folder: Path, curves: Any, model: dict[str, Any]) -> Path:
    """The run of a model that knows its training rows, and no others."""
    features, targets, _ = drawn()
    outputs = probabilities(np.random.default_rng(5).normal(size=len(targets)))
    outputs[: ROWS[0]] = np.eye(2)[targets[: ROWS[0]]]
    data = bundle(classes(2, 4), features, targets, ROWS)
    return run_of(folder, data, cut(outputs), curves, model=model)


@pytest.mark.parametrize("name", MODELS)
def test_each_model_gets_a_line_that_it_has(name: str, tmp_path: Path) -> None:
    model, params, line = MODELS[name]
    run = _by_heart(tmp_path, None, {"type": model, "params": params})
    if name in OTHERS:
        manifest = json.loads((run / "manifest.json").read_text())
        write_record(run / "manifest.json", {**manifest, "environment": {}})
    (finding,) = found(run)
    assert finding.mend.startswith(line)
    assert bool(finding.mend) == bool(line)


@pytest.mark.parametrize("model", [{"type": "mlp"}, {"type": "xgboost", "params": {"max_depth": 6}}])
def test_a_model_of_many_steps_is_not_held_back(model: dict[str, Any], tmp_path: Path) -> None:
    """The best one by the validation rows is kept already; the reader is told what may help instead."""
    (finding,) = found(_by_heart(tmp_path, HEALTHY, model))
    assert (finding.kind, finding.mend) == ("overfitting", "")
    assert finding.otherwise == "no setting is known to help here; more rows, or fewer columns, may"
