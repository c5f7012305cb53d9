"""Models of tables in ONNX: CatBoost's statistics of categories, and estimators that libraries get wrong."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pandas as pd
import pytest

import trainwright
from trainwright.errors import InputError
from trainwright.records.artifact import read_certificate

TARGETS = ("churn", "level", "price", "first", "second")


def rows(count: int, seed: int) -> pd.DataFrame:
    """Return rows of two categories of many values, one of few, two numbers, and targets of each kind."""
    draws = np.random.default_rng(seed)
    plan, shop, city = draws.integers(0, 4, count), draws.zipf(1.4, count) % 90, draws.zipf(1.3, count) % 70
    size, age = draws.normal(size=count).round(3), draws.integers(18, 80, count)
    score = (plan == 1) + 1.5 * (shop % 3 == 0) + (city % 5 == 1) + size * (age > 40)
    score = score + ((shop % 2) ^ (plan == 2)) + draws.normal(size=count) * 0.3
    frame = pd.DataFrame(
        {
            "plan": [f"p{one}" for one in plan],
            "shop": [f"shop é{one}" for one in shop],
            "city": [f"c{one}" for one in city],
            "size": size,
            "age": age.astype(float),
            "churn": np.where(score > 1.5, "yes", "no"),
            "level": [f"level {one}" for one in np.digitize(score, [1.0, 2.5])],
            "price": (100 + 10 * score).round(4),
            "first": (score > 1).astype(int),
            "second": (score > 2).astype(int),
        }
    )
    frame.loc[::11, "size"] = np.nan
    frame.loc[::13, "shop"] = None
    return frame


def others(count: int) -> pd.DataFrame:
    """Return rows in which categories are unseen or missing in all combinations."""
    frame = rows(count, seed=9)
    draws = np.random.default_rng(4)
    for name in ("plan", "shop", "city"):
        picked = draws.integers(0, 4, count)
        frame.loc[picked == 0, name] = None
        frame.loc[picked == 1, name] = "nobody has seen it"
    frame.loc[draws.integers(0, 4, count) == 0, "size"] = np.nan
    return frame


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tables")
    rows(700, seed=3).to_csv(folder / "rows.csv", index=False)
    others(300).to_csv(folder / "others.csv", index=False)
    return folder


@pytest.fixture(scope="module")
def exported(folder: Path) -> Callable[..., tuple[Any, Path]]:
    """Return a function that trains a model for a target, and exports it."""

    def train(model: Any, target: str | list[str], **overrides: Any) -> tuple[Any, Path]:
        own = [target] if isinstance(target, str) else target
        given = model if isinstance(model, dict) else {}
        data = {"type": "csv", "path": str(folder / "rows.csv"), "target": target}
        data["exclude"] = [name for name in TARGETS if name not in own]
        config: dict[str, Any] = {"data": data, "training": {"threads": 1, "max_steps": 25}}
        settings = [f"{key}={json.dumps(value)}" for key, value in overrides.items()]
        options: dict[str, Any] = {"runs_dir": folder / "runs", "quiet": True, "overrides": settings}
        if given:
            run = trainwright.train({**config, "model": given}, **options)
            path = trainwright.export(run, folder / f"{run.id}.onnx", "onnx")
        else:
            config["training"] = {"threads": 1}
            run = trainwright.train(config, model=model, **options)
            path = trainwright.export(run, folder / f"{run.id}.onnx", "onnx", model=model)
        return run, path

    return train


def outputs_of(path: Path, frame: pd.DataFrame) -> dict[str, np.ndarray]:
    """Return what a file of ONNX predicts for rows."""
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    feeds = {}
    for one in session.get_inputs():
        column = frame[one.name]
        text = one.type == "tensor(string)"
        values = column.where(column.notna(), "").to_numpy(object) if text else column.to_numpy(np.float64)
        feeds[one.name] = values[:, None]
    names = [one.name for one in session.get_outputs()]
    return dict(zip(names, session.run(None, feeds), strict=True))


EVERY = ["Borders", "Buckets", "Counter:Prior=1", "BinarizedTargetMeanValue"]


@pytest.mark.parametrize(
    ("target", "params"),
    [
        ("churn", {"depth": 4, "model_size_reg": 0}),
        ("level", {"depth": 7, "simple_ctr": EVERY, "combinations_ctr": EVERY, "max_ctr_complexity": 4}),
        ("price", {"depth": 6, "one_hot_max_size": 10, "max_ctr_complexity": 3, "nan_mode": "Max"}),
        ("churn", {"grow_policy": "Lossguide", "one_hot_max_size": 2}),
    ],
)
def test_statistics_of_categories(exported: Any, folder: Path, target: str, params: Any) -> None:
    """Of categories that are missing or unseen, alone and together, as CatBoost itself computes them."""
    model = {"type": "catboost", "params": params}
    run, path = exported(model, target, **{"data.encode": "category"})
    own = trainwright.predict(run, folder / "others.csv")
    found = outputs_of(path, others(300))
    if target == "price":
        np.testing.assert_allclose(found["prediction"][:, 0], own["prediction"], rtol=1e-12)
        return
    assert found["label"].tolist() == own["prediction"].tolist()
    columns = [name for name in own.columns if name.startswith("probability_")]
    np.testing.assert_allclose(found["probabilities"], own[columns], atol=1e-7)


def test_statistics_hash_combinations_with_numbers(exported: Any) -> None:
    """All kinds of parts are seen: categories, splits by numbers, and by one category."""
    from trainwright.exporters.onnx.of_catboost import _told
    from trainwright.inference.predictor import Predictor

    params = {"depth": 8, "simple_ctr": EVERY, "combinations_ctr": EVERY, "one_hot_max_size": 5}
    params |= {"max_ctr_complexity": 5, "model_size_reg": 0}
    settings = {"data.encode": "category", "training.max_steps": 80}
    run, _ = exported({"type": "catboost", "params": params}, "level", **settings)
    predictor: Predictor = trainwright.load(run)
    told = _told(predictor.trained_model, predictor.info)["features_info"]["ctrs"]
    kinds = {part["combination_element"] for one in told for part in one["elements"]}
    assert kinds == {"cat_feature_value", "float_feature", "cat_feature_exact_value"}


def test_statistics_of_several_labels_are_refused(exported: Any) -> None:
    with pytest.raises(InputError, match=r"of which CatBoost's JSON keeps one; train with data\.encode"):
        exported({"type": "catboost"}, ["first", "second"], **{"data.encode": "category"})


PLAIN = {"data.impute": "median", "data.encode": "onehot"}


def _estimators() -> Iterator[tuple[str, Any, Any]]:
    from sklearn.ensemble import AdaBoostClassifier, BaggingRegressor, GradientBoostingClassifier
    from sklearn.linear_model import RidgeClassifier, SGDClassifier
    from sklearn.neighbors import KNeighborsClassifier
    from sklearn.svm import SVC, SVR
    from sklearn.tree import DecisionTreeClassifier

    yield "bagging", BaggingRegressor(n_estimators=8, max_features=0.7, random_state=0), "price"
    yield "boosting", GradientBoostingClassifier(loss="exponential", n_estimators=8), "churn"
    yield "boosting of classes", GradientBoostingClassifier(n_estimators=8), "level"
    yield "votes", AdaBoostClassifier(DecisionTreeClassifier(max_depth=3), n_estimators=8), "level"
    yield "two votes", AdaBoostClassifier(n_estimators=8), "churn"
    yield "margins", SGDClassifier(random_state=0), "level"
    yield "one margin", SGDClassifier(random_state=0), "churn"
    yield "labels", RidgeClassifier(), ["first", "second"]
    yield "trees of labels", DecisionTreeClassifier(max_depth=4), ["first", "second"]
    yield "neighbors of labels", KNeighborsClassifier(1), ["first", "second"]
    yield "vectors", SVC(), "level"
    yield "two vectors", SVC(kernel="poly"), "churn"
    yield "vectors of values", SVR(kernel="sigmoid"), "price"


@pytest.mark.parametrize(("estimator", "target"), [pytest.param(*it[1:], id=it[0]) for it in _estimators()])
def test_estimators(exported: Any, folder: Path, estimator: Any, target: Any) -> None:
    if "neighbors" in type(estimator).__module__:  # equal distances have no order
        run, path = exported(
            estimator, target, **{**PLAIN, "data.exclude": [*TARGETS[:3], "plan", "shop", "city"]}
        )
    else:
        run, path = exported(estimator, target, **PLAIN)
    known = read_certificate(path)
    assert known.compared["equal_labels"] == (1 if target in ("churn", "level") else None)
    assert known.compared["rows"]["edge"] > 10
    own = trainwright.predict(run, folder / "others.csv", model=estimator)
    found = outputs_of(path, others(300))
    if "label" in found:
        assert found["label"].tolist() == own["prediction"].tolist()


def test_trees_with_vectors_in_their_leaves(exported: Any) -> None:
    model = {"type": "xgboost", "params": {"multi_strategy": "multi_output_tree", "max_depth": 4}}
    for target in ("level", ["first", "second"]):
        _, path = exported(model, target, **{"data.encode": "onehot"})
        assert read_certificate(path).compared["largest_difference"] < 1e-6


def test_what_onnxruntime_cannot_run_is_refused(exported: Any) -> None:
    from sklearn.gaussian_process import GaussianProcessClassifier

    with pytest.raises(InputError, match=r"cannot convert GaussianProcessClassifier: .*--format sklearn"):
        exported(GaussianProcessClassifier(), "churn", **PLAIN)
