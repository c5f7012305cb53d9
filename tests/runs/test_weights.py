"""Weights of samples and of classes, compared with the libraries called by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression, SGDClassifier
from sklearn.utils.class_weight import compute_class_weight

import trainwright
from late import keras_in_one_thread
from trainwright.config import load
from trainwright.datasets.samples.objects import from_objects
from trainwright.errors import InputError
from trainwright.frameworks.sklearn.steps import sklearn_seed
from trainwright.order import STEP
from trainwright.runs.catalog import Catalog
from trainwright.runs.objects import Objects
from trainwright.runs.wiring import Components, build, evaluate_split
from trainwright.types import WEIGHT

ROWS = 240
NAMES = ["a", "b", "c"]


def rows(seed: int = 0, count: int = ROWS) -> pd.DataFrame:
    """Rows of two unequal classes, of a value, and of weights, some of which are 0."""
    draw = np.random.default_rng(seed)
    frame = pd.DataFrame(draw.normal(size=(count, 3)).astype(np.float32), columns=NAMES)
    score = frame["a"] + 0.5 * frame["b"] ** 2 + draw.normal(0, 0.5, count)
    weights = np.round(draw.gamma(1.0, 2.0, count), 3)
    weights[::7] = 0
    return frame.assign(value=score.astype(np.float32), kind=np.where(score > 1.5, "yes", "no"), w=weights)


def built(model: dict[str, Any] | str, target: str = "kind", data: Any = None, **sections: Any) -> Components:
    """Build a run on rows that are split by hand."""
    own = {
        "standardize": False,
        "features": NAMES,
        "target": target,
        "weight": "w",
        **sections.pop("data_", {}),
    }
    config = {"data": own, "model": model, "experiment": {"seed": 1}, **sections}
    resolved = load(config, adapters=Catalog(), objects=True).config
    tables = {"train": rows(), "val": rows(1, 80)} if data is None else data
    return build(resolved, 1, Objects(data=from_objects(tables, resolved.data)))


def trained(components: Components, steps: int | None = None) -> Any:
    """Run the steps of a run, and return the library's own model."""
    rate = components.plan.learning_rate or 1.0
    for step in range(components.plan.total_steps if steps is None else steps):
        components.learner.step(step, rate)
    return components.learner.model().native


def val_outputs(components: Components) -> np.ndarray:
    split = components.bundle.splits["val"]
    return np.concatenate([part.outputs for part in components.learner.model().predict(split)])


X, Y = rows()[NAMES].to_numpy("float32"), (rows()["kind"] == "yes").to_numpy("int64")
VALUES, W = rows()["value"].to_numpy("float32"), rows()["w"].to_numpy()
VAL = rows(1, 80)
XV, YV, WV = VAL[NAMES].to_numpy("float32"), (VAL["kind"] == "yes").to_numpy("int64"), VAL["w"].to_numpy()
BALANCED = dict(zip((0, 1), compute_class_weight("balanced", classes=np.array([0, 1]), y=Y), strict=True))
CLASS_WEIGHTS = np.array([BALANCED[0], BALANCED[1]])[Y]


# -- scikit-learn


def test_scikit_learn_fits_with_the_weights() -> None:
    components = built({"type": "logistic_regression", "C": 0.3})
    mine = trained(components)
    reference = LogisticRegression(C=0.3, max_iter=mine.max_iter, tol=mine.tol).fit(X, Y, sample_weight=W)
    assert mine.coef_ == pytest.approx(reference.coef_, abs=1e-6)
    assert not np.allclose(mine.coef_, LogisticRegression(C=0.3).fit(X, Y).coef_, atol=1e-3)


@pytest.mark.parametrize("model", ["random_forest", "hist_gradient_boosting"])
def test_ensembles_of_scikit_learn_grow_with_the_weights(model: str) -> None:
    size = {"n_estimators": 12} if model == "random_forest" else {"max_iter": 12}
    mine = built({"type": model, **size, "max_depth": 4})
    native = trained(mine)
    kind = RandomForestClassifier if model == "random_forest" else HistGradientBoostingClassifier
    options = {key: value for key, value in native.get_params().items() if key != "n_jobs"}
    reference = kind(**options).fit(X, Y, sample_weight=W)
    assert val_outputs(mine) == pytest.approx(reference.predict_proba(XV), abs=1e-6)


def test_minibatches_of_scikit_learn_get_their_weights() -> None:
    mine = built({"type": "sgd", "loss": "log_loss"}, training={"epochs": 2, "batch_size": 50})
    native = trained(mine)
    options = native.get_params()
    reference, order = SGDClassifier(**options), mine.order
    for step in range(mine.plan.total_steps):
        ids = order.batch(step)
        reference.set_params(random_state=sklearn_seed(1, STEP, step), eta0=mine.plan.learning_rate)
        reference.partial_fit(X[ids], Y[ids], classes=[0, 1], sample_weight=W[ids])
    assert native.coef_ == pytest.approx(reference.coef_, rel=1e-6)


def test_an_estimator_without_weights_is_refused() -> None:
    with pytest.raises(InputError, match=r"KNeighborsClassifier.fit has no sample_weight.*data.weight"):
        built("k_neighbors")


# -- boosters


def test_xgboost_gets_the_weights() -> None:
    import xgboost as xgb

    mine = built({"type": "xgboost", "n_estimators": 10, "max_depth": 3})
    native = trained(mine)
    options = {"objective": "binary:logistic", "max_depth": 3, "learning_rate": mine.plan.learning_rate}
    reference = xgb.train(options, xgb.QuantileDMatrix(X, Y, weight=W), 10)
    assert val_outputs(mine)[:, 1] == pytest.approx(reference.predict(xgb.DMatrix(XV)), abs=1e-6)
    weighted = xgb.DMatrix(XV, YV, weight=WV)
    line = reference.eval_set([(weighted, "val")])
    assert evaluated(mine)["val_loss"] == pytest.approx(float(line.rpartition(":")[2]), abs=1e-5)
    assert native.num_boosted_rounds() == 10


def test_lightgbm_gets_the_weights() -> None:
    import lightgbm as lgb

    mine = built({"type": "lightgbm", "n_estimators": 10, "num_leaves": 7}, target="value")
    trained(mine)
    options = {"objective": "regression", "num_leaves": 7, "learning_rate": mine.plan.learning_rate}
    reference = lgb.train(options | {"verbose": -1, "num_threads": 1}, lgb.Dataset(X, VALUES, weight=W), 10)
    assert val_outputs(mine) == pytest.approx(reference.predict(XV), abs=1e-6)


def test_catboost_gets_the_weights() -> None:
    import catboost

    mine = built({"type": "catboost", "n_estimators": 10, "max_depth": 3}, target="value")
    native = trained(mine)
    options = native.get_all_params()
    reference = catboost.CatBoostRegressor(
        iterations=10, depth=3, learning_rate=mine.plan.learning_rate, thread_count=1,
        random_seed=options["random_seed"], verbose=False, allow_writing_files=False,
    )  # fmt: skip
    reference.fit(catboost.Pool(X, VALUES, weight=W))
    assert val_outputs(mine) == pytest.approx(reference.predict(XV), abs=1e-6)


# -- gradients


def hand_made(weights: np.ndarray, order: Any, steps: int) -> np.ndarray:
    """Return a linear model of the value, trained by gradient descent on the weighted mean: float64."""
    theta = np.zeros(4)
    inputs = np.column_stack([X, np.ones(ROWS)]).astype(np.float64)
    for step in range(steps):
        ids = order.batch(step)
        errors = inputs[ids] @ theta - VALUES[ids]
        theta -= 0.1 * 2 * (weights[ids] * errors) @ inputs[ids] / weights[ids].sum()
    return theta


LINEAR = """
import torch
from torch import nn


class Linear(nn.Module):
    def __init__(self, in_features, out_features):
        super().__init__()
        self.last = nn.Linear(in_features, out_features)
        nn.init.zeros_(self.last.weight)
        nn.init.zeros_(self.last.bias)

    def forward(self, features):
        return self.last(features)


def by_sample(outputs, batch):
    return (outputs[:, 0] - batch["target"]) ** 2


def of_all(outputs, batch):
    return by_sample(outputs, batch).mean()
"""


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "weighted_models.py").write_text(LINEAR, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    return "weighted_models"


@pytest.mark.parametrize(
    "sections",
    [
        {},
        {"training": {"microbatch_size": 7}},
        {"distributed": {"virtual": {"data": 4}}},
        {"distributed": {"virtual": {"data": 2}}, "training": {"microbatch_size": 5}},
        {"training": {"loss": "weighted_models:by_sample"}},
    ],
)
def test_torch_takes_the_weighted_mean_over_the_whole_batch(sections: Any, own_module: str) -> None:
    training = {"max_steps": 12, "batch_size": 30, "optimizer": "sgd", "learning_rate": 0.1}
    sections = {**sections, "training": {**training, **sections.get("training", {})}}
    mine = built({"type": f"{own_module}:Linear"}, target="value", **sections)
    native = trained(mine)
    expected = hand_made(W, mine.order, 12)
    assert native.last.weight.detach().numpy()[0] == pytest.approx(expected[:3], abs=1e-5)
    errors = np.column_stack([XV, np.ones(80)]) @ expected - VAL["value"].to_numpy()
    metrics = evaluated(mine)
    assert metrics["val_loss"] == pytest.approx(np.average(errors**2, weights=WV), rel=1e-4)
    assert metrics["val_mae"] == pytest.approx(np.average(abs(errors), weights=WV), rel=1e-4)


def test_a_loss_of_the_users_must_tell_samples_apart(own_module: str) -> None:
    training = {"max_steps": 2, "loss": f"{own_module}:of_all"}
    with pytest.raises(
        InputError, match=r"returned a tensor of shape \(\).*it must return the loss of each sample"
    ):
        built({"type": f"{own_module}:Linear"}, target="value", training=training)


KERAS = """
import keras


def plain(in_features, out_features):
    layers = [keras.Input((in_features,)), keras.layers.Dense(out_features, kernel_initializer="zeros")]
    return keras.Sequential(layers)


def compiled(in_features, out_features):
    model = plain(in_features, out_features)
    model.compile(loss=keras.losses.MeanSquaredError())
    return model
"""


@pytest.mark.parametrize(("micro", "make"), [(30, "plain"), (7, "plain"), (7, "compiled")])
def test_keras_takes_the_weighted_mean_over_the_whole_batch(
    micro: int, make: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keras_in_one_thread()
    (tmp_path / "weighted_keras.py").write_text(KERAS, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    training = {"max_steps": 12, "batch_size": 30, "microbatch_size": micro, "optimizer": "sgd"}
    mine = built(
        {"type": f"weighted_keras:{make}", "framework": "keras"},
        target="value",
        training={**training, "learning_rate": 0.1},
        data_={"standardize": False},
    )
    native = trained(mine)
    expected = hand_made(W, mine.order, 12)
    assert np.asarray(native.weights[0])[:, 0] == pytest.approx(expected[:3], abs=1e-5)
    errors = np.column_stack([XV, np.ones(80)]) @ expected - VAL["value"].to_numpy()
    assert evaluated(mine)["val_loss"] == pytest.approx(np.average(errors**2, weights=WV), rel=1e-4)


def evaluated(components: Components) -> dict[str, float]:
    return dict(evaluate_split(components, "val", lambda: None).metrics)


# -- class weights


@pytest.mark.parametrize("weight", [None, "w"])
def test_balanced_classes_are_those_of_scikit_learn(weight: str | None) -> None:
    mine = built("logistic_regression", data_={"weight": weight}, training={"class_weights": "balanced"})
    train = mine.inputs.splits["train"].arrays
    assert train[WEIGHT] == pytest.approx(CLASS_WEIGHTS * (W if weight else 1), rel=1e-15)
    native = trained(mine)
    reference = LogisticRegression(class_weight="balanced", max_iter=native.max_iter, tol=native.tol)
    reference.fit(X, Y, sample_weight=W if weight else None)
    if weight is None:  # with both, scikit-learn counts classes by weights, too
        assert native.coef_ == pytest.approx(reference.coef_, abs=1e-6)


def test_lightgbm_balances_like_its_own_option() -> None:
    own = built({"type": "lightgbm", "n_estimators": 10, "class_weight": "balanced"}, data_={"weight": None})
    mine = built(
        {"type": "lightgbm", "n_estimators": 10},
        data_={"weight": None},
        training={"class_weights": "balanced"},
    )
    trained(own), trained(mine)
    assert val_outputs(mine) == pytest.approx(val_outputs(own), abs=1e-6)


def test_catboost_weighs_a_class_like_its_own_option() -> None:
    model = {"type": "catboost", "n_estimators": 10}
    own = built({**model, "scale_pos_weight": 3.0}, data_={"weight": None})
    mine = built(model, data_={"weight": None}, training={"class_weights": {"yes": 3}})
    trained(own), trained(mine)
    assert val_outputs(mine) == pytest.approx(val_outputs(own), abs=1e-6)


def test_catboost_takes_a_mapping_of_labels() -> None:
    model = {"type": "catboost", "n_estimators": 10}
    by_order = built({**model, "class_weights": [0.5, 3.0]}, data_={"weight": None})
    by_label = built({**model, "class_weights": {"yes": 3, "no": 0.5}}, data_={"weight": None})
    trained(by_order), trained(by_label)
    assert np.array_equal(val_outputs(by_label), val_outputs(by_order))
    with pytest.raises(
        InputError, match=r"model\.class_weights: there is no class 'maybe'; the classes are no, yes"
    ):
        built({**model, "class_weights": {"maybe": 2.0}}, data_={"weight": None})


def test_lightgbm_takes_a_mapping_of_labels() -> None:
    from lightgbm import LGBMClassifier

    model = {"type": "lightgbm", "n_estimators": 10, "learning_rate": 0.1, "class_weight": {"yes": 3}}
    mine = built(model, data_={"weight": None})
    trained(mine)
    reference = LGBMClassifier(n_estimators=10, n_jobs=1, verbose=-1, class_weight={0: 1, 1: 3})
    reference.fit(X, Y)
    assert val_outputs(mine) == pytest.approx(reference.predict_proba(XV), abs=1e-6)


def test_xgboost_gets_class_weights_as_sample_weights() -> None:
    """Not as `scale_pos_weight`, which leaves the bins and the intercept as they are without weights."""
    import xgboost as xgb

    mine = built(
        {"type": "xgboost", "n_estimators": 10, "max_depth": 3},
        data_={"weight": None},
        training={"class_weights": "balanced"},
    )
    trained(mine)
    reference = xgb.XGBClassifier(
        n_estimators=10, max_depth=3, learning_rate=mine.plan.learning_rate, n_jobs=1
    )
    reference.fit(X, Y, sample_weight=CLASS_WEIGHTS)
    assert val_outputs(mine) == pytest.approx(reference.predict_proba(XV), abs=1e-6)


def test_evaluations_do_not_use_class_weights() -> None:
    plain = built("logistic_regression", data_={"weight": None}, training={"class_weights": {"yes": 9}})
    trained(plain)
    outputs = val_outputs(plain)
    expected = -np.log(outputs[np.arange(80), YV]).mean()
    assert evaluated(plain)["val_loss"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("model", "target", "weights", "message"),
    [
        ("logistic_regression", "kind", {"maybe": 2}, "there is no class 'maybe'; the classes are no, yes"),
        ("logistic_regression", "kind", {"yes": 0, "no": 0}, "all training rows are 0"),
        ("logistic_regression", "kind", {"yes": -1}, "the weight of 'yes' is -1; give numbers of at least 0"),
        ("xgboost", "value", "balanced", "the task is regression, which has no classes"),
        ({"type": "lightgbm", "class_weight": "balanced"}, "kind", "balanced", "by class_weight: 'balanced'"),
        ({"type": "logistic_regression", "class_weight": "balanced"}, "kind", {"yes": 2}, "by class_weight"),
        ({"type": "xgboost", "scale_pos_weight": 2.0}, "kind", {"yes": 2}, "by scale_pos_weight: 2.0"),
    ],
)  # fmt: skip
def test_class_weights_that_do_not_fit(model: Any, target: str, weights: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        built(model, target, data_={"weight": None}, training={"class_weights": weights})


@pytest.mark.parametrize(("label", "key"), [(1, "1"), (True, "true"), (1.0, "1")])
def test_labels_of_numbers_and_booleans_are_found(label: Any, key: str) -> None:
    tables = {"train": rows(), "val": VAL}
    data = {
        name: frame.assign(kind=np.where(frame["kind"] == "yes", label, type(label)(0)))
        for name, frame in tables.items()
    }
    config = {"data_": {"weight": None, "task": "classification"}, "training": {"class_weights": {key: 4}}}
    mine = built("logistic_regression", data=data, **config)
    assert mine.inputs.splits["train"].arrays[WEIGHT] == pytest.approx(np.where(Y == 1, 4, 1))


# -- the column of weights


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (lambda w: w.where(w.index != 5, -1.0), r"the weight 'w' is negative in row 6; give finite numbers"),
        (lambda w: w.where(w.index != 5, np.nan), r"the weight 'w' has no value in row 6; give 0 for rows"),
        (lambda w: w.where(w.index != 5, np.inf), r"NaN or infinite in row 6"),
        (lambda w: w * 0, r"the weight 'w' is 0 in all 240 train rows"),
        (lambda w: w * 0 + 1e308, r"the weights 'w' of the train rows add up to infinity"),
        (lambda w: w.astype(str) + "kg", r"the weight 'w' holds text values"),
    ],
)
def test_weights_that_cannot_be_are_refused(values: Any, message: str) -> None:
    frame = rows()
    with pytest.raises(InputError, match=message):
        built("logistic_regression", data={"train": frame.assign(w=values(frame["w"])), "val": VAL})


def test_the_weight_is_no_feature() -> None:
    mine = built("logistic_regression", data_={"features": None, "exclude": ["value"]})
    assert list(mine.bundle.info.feature_names) == NAMES
    with pytest.raises(InputError, match=r"data.weight: 'a' is named by data.features"):
        built("logistic_regression", data_={"weight": "a"})
    with pytest.raises(InputError, match=r"data.weight: there is no column 'ww'; did you mean 'w'"):
        built("logistic_regression", data_={"weight": "ww"})


def test_a_named_array_holds_weights() -> None:
    arrays = {"numbers": X, "importance": W, "target": VALUES}
    data = {"train": arrays, "val": {"numbers": XV, "importance": WV, "target": VAL["value"].to_numpy()}}
    config = {"data": {"weight": "importance"}, "model": "mlp", "training": {"max_steps": 2}}
    resolved = load(config, adapters=Catalog(), objects=True).config
    bundle = from_objects(data, resolved.data)
    assert list(bundle.info.inputs) == ["numbers"]
    assert bundle.splits["val"].arrays[WEIGHT] == pytest.approx(WV)
    with pytest.raises(InputError, match=r"has no array 'importanc' \(data.weight\); did you mean"):
        from_objects(data, resolved.data.model_copy(update={"weight": "importanc"}))
    with pytest.raises(InputError, match="has 240 rows, but 3 weights"):
        from_objects({**data, "train": arrays | {"importance": W[:3]}}, resolved.data)


def test_arrays_without_names_have_no_weights() -> None:
    with pytest.raises(InputError, match=r"data.weight: there is no column 'w'"):
        built("logistic_regression", data={"train": (X, Y), "val": (XV, YV)}, data_={"features": None})


def test_other_rows_are_evaluated_by_their_weights(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = {
        "data": {"standardize": False, "features": NAMES, "target": "kind", "weight": "w"},
        "model": "logistic_regression",
    }
    tables = {"train": rows(), "val": VAL, "test": VAL}
    run = trainwright.train(config, runs_dir=tmp_path, data=tables)
    loaded = trainwright.load(run.path)
    hits = loaded.predict(VAL)["prediction"].to_numpy() == VAL["kind"].to_numpy()
    expected = np.average(hits, weights=WV)
    assert run.result["metrics"]["test_accuracy"] == pytest.approx(expected)
    assert loaded.evaluate(rows=VAL).metrics["test_accuracy"] == pytest.approx(expected)
    assert not caplog.text.count("(data.weight)")
    plain = loaded.evaluate(rows=VAL.drop(columns="w")).metrics["test_accuracy"]
    assert plain == pytest.approx(hits.mean())
    assert "the rows have no column 'w' (data.weight): they all count the same" in caplog.text
    with pytest.raises(InputError, match="is 0 in all 80 given rows"):
        loaded.evaluate(rows=VAL.assign(w=0))


def test_a_plugin_that_takes_no_weights_is_refused() -> None:
    with pytest.raises(InputError, match=r"data.weight: toy takes no weights of samples; leave it out"):
        built({"type": "toy"})


def test_a_fold_counts_its_own_classes() -> None:
    """Balanced weights are those of the training rows of the fold."""
    split = {"folds": 3, "fold": 1}
    training = {"class_weights": "balanced"}
    mine = built(
        "logistic_regression",
        data={"train": rows()},
        data_={"weight": None, "split": split},
        training=training,
    )
    train = mine.inputs.splits["train"].arrays
    expected = compute_class_weight("balanced", classes=np.array([0, 1]), y=train["target"])
    assert train[WEIGHT] == pytest.approx(expected[train["target"]])
