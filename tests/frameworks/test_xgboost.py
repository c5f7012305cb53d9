"""The XGBoost framework: every option resumes bit-identically; wrong input is refused early."""

import json
import sys
import tempfile
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xgboost as xgb

import trainwright
from small_runs import SignalAt, assert_same
from trainwright.config import load
from trainwright.config.schema import RunConfig
from trainwright.datasets.base import Split
from trainwright.datasets.samples.arrays import Arrays
from trainwright.digest import digest, tensor_records
from trainwright.errors import ConfigError, InputError, ModelError, TrainingError
from trainwright.frameworks.base import LearnerInputs, Model, ModelInputs
from trainwright.frameworks.xgboost import XgboostFramework, library, matrices
from trainwright.frameworks.xgboost.learner import XgboostLearner
from trainwright.frameworks.xgboost.model import XgboostModel
from trainwright.order import SampleOrder
from trainwright.runs.catalog import Catalog
from trainwright.types import Array, Batch, DataInfo, Ids, features_spec

ROWS, VAL = 1_200, 300
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(ROWS + VAL, 8)).astype(np.float32)
X[:, 6], X[:, 7] = RANDOM.integers(0, 40, len(X)), RANDOM.integers(0, 3, len(X))
VALUES = (2 * X[:, 0] + X[:, 1] * X[:, 2] + 3 * np.isin(X[:, 6], (3, 7, 21)) + (X[:, 7] == 1)).astype(
    np.float32
)
X[RANDOM.random(X.shape) < 0.05] = np.nan
NAMES = ("a", "b", "c", "d", "e", "f", "many", "few")
CATEGORIES = (0, 0, 0, 0, 0, 0, 40, 3)
TARGETS: dict[str, Array] = {
    "binary": (VALUES > 0.5).astype(np.int64),
    "classes": np.digitize(VALUES, [-1, 1.5]).astype(np.int64),
    "values": VALUES,
    "shares": 1 / (1 + np.exp(-VALUES)),
    "counts": np.floor(np.exp(VALUES / 4)).astype(np.float32) + 1,
    "pairs": np.stack([VALUES, -(VALUES**2)], axis=1).astype(np.float32),
}
ROW_SAMPLING = {"subsample": 0.7}
SAMPLING = {**ROW_SAMPLING, "colsample_bytree": 0.8, "colsample_bylevel": 0.8, "colsample_bynode": 0.8}
DART = {"booster": "dart", "rate_drop": 0.2, "skip_drop": 0.2}


def info_of(target: str, categories: tuple[int, ...] = CATEGORIES) -> DataInfo:
    classes = {"binary": (0, 1), "classes": (0, 1, 2)}.get(target)
    outputs = len(classes) if classes else 2 if target == "pairs" else 1
    task = "classification" if classes else "regression"
    return DataInfo(task, features_spec((len(NAMES),)), outputs, classes, NAMES, categories=categories)  # type: ignore[arg-type]


def splits_of(target: str) -> dict[Any, Split]:
    y = TARGETS[target]
    return {
        "train": Arrays({"features": X[:ROWS], "target": y[:ROWS]}),
        "val": Arrays({"features": X[ROWS:], "target": y[ROWS:]}),
    }


def config_of(
    params: Mapping[str, Any], training: Mapping[str, Any] | None = None, model: str = "xgboost"
) -> RunConfig:
    whole = {"experiment": {"seed": 4}, "data": {"type": "iris"}, "model": {"type": model, "params": params}}
    return load({**whole, "training": {"device": "cpu", **(training or {})}}, adapters=Catalog()).config


def learner_of(target: str, params: Mapping[str, Any], *, threads: int = 2, **how: Any) -> XgboostLearner:
    """Return a learner on the data above; `how` may have info, splits, model, type and training."""
    config = config_of(params, how.get("training"), how.get("type", "xgboost"))
    info, splits = how.get("info") or info_of(target), how.get("splits") or splits_of(target)
    order = SampleOrder(ROWS, ROWS, config.experiment.seed)
    inputs = LearnerInputs(config, info, config.model.params, threads, splits, order, model=how.get("model"))
    return XgboostLearner(inputs)


def loaded(folder: Path, target: str, params: Mapping[str, Any], threads: int = 2) -> Model:
    config = config_of(params)
    inputs = ModelInputs(config, info_of(target), config.model.params, threads)
    return XgboostFramework.load(inputs, folder)


def steps(learner: XgboostLearner, start: int, stop: int, rate: float = 0.2) -> list[float]:
    """Make steps at a varying rate; return training loss, validation loss and output sum after each."""
    found = []
    for step in range(start, stop):
        found.append(learner.step(step, rate if step % 7 else rate / 2).loss)
        (part,) = learner.model().predict(learner._inputs.splits["val"])
        found += [part.loss, float(part.outputs.sum(dtype=np.float64))]
    return found


def weights(learner: XgboostLearner) -> str:
    return digest(tensor_records(learner.state()))


# -- resuming


BINARY: dict[str, dict[str, Any]] = {
    "plain": {},
    "rows": ROW_SAMPLING,
    "all": SAMPLING,
    "gradient_based": {**SAMPLING, "sampling_method": "gradient_based"},
    "forests": {**SAMPLING, "num_parallel_tree": 3},
    "lossguide": {**SAMPLING, "grow_policy": "lossguide", "max_leaves": 9, "max_depth": 0},
    "approx": {**SAMPLING, "tree_method": "approx"},
    "onehot": {**SAMPLING, "max_cat_to_onehot": 50, "max_bin": 32},
    "weighed": {**SAMPLING, "scale_pos_weight": 3.0, "base_score": 0.3},
    "dart": DART,
    "dart all": {**SAMPLING, **DART, "sample_type": "weighted", "normalize_type": "forest", "one_drop": True},
    "external": {**SAMPLING, "external_memory": True},
}
REGRESSION: dict[str, dict[str, Any]] = {
    "plain": {},
    "all": SAMPLING,
    "monotone": {**SAMPLING, "monotone_constraints": {"b": 1, "a": -1}},
    "interaction": {**SAMPLING, "interaction_constraints": [["a", "b"], [2, "d", "many"]]},
    "absolute": {**SAMPLING, "objective": "reg:absoluteerror"},
    "quantile": {**SAMPLING, "objective": "reg:quantileerror", "quantile_alpha": 0.3},
    "approx": {**SAMPLING, "tree_method": "approx"},
    "approx dart": {**SAMPLING, **DART, "tree_method": "approx"},
}
RESUMED = [
    *(("binary", params) for params in BINARY.values()),
    *(("values", params) for params in REGRESSION.values()),
    ("classes", SAMPLING),
    ("classes", {**SAMPLING, **DART}),
    ("classes", {**SAMPLING, "num_parallel_tree": 2}),
    ("pairs", SAMPLING),
    # The library stores it once for some objectives and for each output for others.
    *((target, {"base_score": 0.3}) for target in ("binary", "classes", "values", "pairs")),
    ("binary", {"base_score": 1 / 3, "objective": "multi:softprob"}),
    ("counts", {"base_score": 1.7, "objective": "count:poisson"}),
    ("classes", {**SAMPLING, **DART, "base_score": 0.3}),
]
LIMITED = [
    ("values", {**ROW_SAMPLING, "colsample_bylevel": 0.8, "tree_method": "exact"}),
    ("pairs", {**SAMPLING, "multi_strategy": "multi_output_tree"}),
    ("classes", {**SAMPLING, "multi_strategy": "multi_output_tree"}),
    *(
        (target, {"base_score": 0.3, "multi_strategy": "multi_output_tree"})
        for target in ("classes", "pairs")
    ),
]
_NAMES = {id(params): name for table in (BINARY, REGRESSION) for name, params in table.items()}


def name_of(value: Any) -> str:
    return (
        value
        if isinstance(value, str)
        else _NAMES.get(id(value), "-".join(sorted(set(value) - set(SAMPLING))) or "all")
    )


def assert_goes_on_exactly(target: str, params: Mapping[str, Any], tmp_path: Path, **how: Any) -> None:
    """Resume at a boundary, after other work in the process, and reach the uninterrupted run's bits."""
    boundary = XgboostFramework.plan(config_of(params), ROWS, how.get("model")).boundary
    at, end = (boundary, boundary + 7) if boundary > 1 else (5, 12)
    whole = learner_of(target, params, **how)
    steps(whole, 0, at)
    whole.snapshot().write(tmp_path)
    expected = steps(whole, at, end)
    # All boosters share the library's random generator
    xgb.train({**SAMPLING, "seed": 9}, xgb.DMatrix(X, VALUES), 2)

    resumed = learner_of(target, params, **how)
    resumed.restore(tmp_path)
    assert steps(resumed, at, end) == expected
    assert weights(resumed) == weights(whole)


@pytest.mark.parametrize(("target", "params"), RESUMED, ids=name_of)
def test_every_kind_goes_on_to_the_same_bits(target: str, params: dict[str, Any], tmp_path: Path) -> None:
    assert_goes_on_exactly(target, params, tmp_path)


@pytest.mark.parametrize(("target", "params"), LIMITED, ids=name_of)
def test_kinds_that_take_numbers_only_go_on_to_the_same_bits(
    target: str, params: dict[str, Any], tmp_path: Path
) -> None:
    assert_goes_on_exactly(target, params, tmp_path, info=info_of(target, ()))


def test_at_other_rounds_than_boundaries_it_would_not(tmp_path: Path) -> None:
    whole = learner_of("binary", SAMPLING)
    steps(whole, 0, 5)
    whole.snapshot().write(tmp_path)
    steps(whole, 5, 8)
    resumed = learner_of("binary", SAMPLING)
    resumed.restore(tmp_path)
    steps(resumed, 5, 8)
    assert weights(resumed) != weights(whole), "the boundary is not needed any more"


def test_plans() -> None:
    def plan(params: Mapping[str, Any], training: Mapping[str, Any] | None = None) -> tuple[Any, ...]:
        return XgboostFramework.plan(config_of(params, training), ROWS)[:5]

    assert plan({}) == (ROWS, 100, 0.3, 1, True)
    assert plan({"learning_rate": 0.1}, {"max_steps": 7}) == (ROWS, 7, 0.1, 1, True)
    assert plan({"n_estimators": 9}, {"epochs": 7}) == (ROWS, 9, 0.3, 1, True)
    assert plan(DART, {"epochs": 7}) == (ROWS, 7, 0.3, 1, False)
    for name in SAMPLING:
        assert plan({name: 0.5}) == (ROWS, 100, 0.3, 50, True)
    assert XgboostFramework.plan(config_of(SAMPLING), 1_000_000).boundary == 10


def test_what_it_does_to_the_config() -> None:
    loaded = load({"data": {"type": "iris"}, "model": {"type": "xgboost"}}, adapters=Catalog()).config
    assert loaded.data is not None
    assert (loaded.data.standardize, loaded.data.encode, loaded.data.impute) == (False, "category", "keep")
    assert XgboostFramework.training_keys("xgboost", {"n_estimators": 5}) == {"device", "scheduler"}
    assert XgboostFramework.training_keys("xgboost", {"n_estimators": None}) == {
        "device",
        "scheduler",
        "epochs",
        "max_steps",
    }


@pytest.mark.parametrize("params", [SAMPLING, {**ROW_SAMPLING, "num_parallel_tree": 2}], ids=name_of)
def test_the_model_of_an_earlier_step_is_cut_out_to_the_bit(params: dict[str, Any], tmp_path: Path) -> None:
    learner = learner_of("classes", params)
    then = {}
    for step in range(52):
        learner.step(step, 0.1)
        then[step + 1] = weights_only(learner)
    for step, expected in then.items():
        (file,) = learner.snapshot(weights_only=True, step=step).write(tmp_path)
        assert digest(file.state()) == expected


def weights_only(learner: XgboostLearner) -> str:
    return digest(tensor_records(learner.state(weights_only=True)))


def test_predictions_leave_no_trace() -> None:
    one, other = learner_of("binary", SAMPLING), learner_of("binary", SAMPLING)
    list(other.model().predict(other._inputs.splits["val"]))
    list(other.model().predict(other._inputs.splits["train"]))
    for step in range(3):
        one.step(step, 0.3)
        other.step(step, 0.3)
        list(other.model().predict(other._inputs.splits["train"]))
    assert weights(one) == weights(other)


# -- what is learned


@pytest.mark.parametrize("target", TARGETS)
def test_outputs_and_losses_are_those_of_all_frameworks(target: str) -> None:
    learner = learner_of(target, {})
    first = steps(learner, 0, 1)[1]
    last = steps(learner, 1, 20)[-2]
    (found,) = learner.model().predict(learner._inputs.splits["val"])
    y = TARGETS[target][ROWS:]
    np.testing.assert_array_equal(found.targets, y)
    assert (found.outputs.dtype, found.targets.dtype) == (np.float32, y.dtype)
    if target in ("binary", "classes"):
        np.testing.assert_allclose(found.outputs.sum(axis=1), 1, rtol=1e-6)
        expected = -np.log(found.outputs[np.arange(VAL), y]).sum(dtype=np.float64)
    else:
        expected = np.square(found.outputs - y, dtype=np.float64).mean(axis=tuple(range(1, y.ndim))).sum()
    assert found.loss == pytest.approx(expected, rel=1e-4)
    assert last < 0.9 * first, "it does not learn"


LOSSES = {
    "reg:squaredlogerror": lambda p, y: np.square(np.log1p(p) - np.log1p(y)) ** 0.5,
    "reg:pseudohubererror": lambda p, y: np.sqrt(1 + (p - y) ** 2) - 1,
    "reg:absoluteerror": lambda p, y: np.abs(p - y),
    "reg:quantileerror": lambda p, y: np.where(p > y, p - y, y - p) / 2,
    "count:poisson": lambda p, y: p - y * np.log(p),
}


@pytest.mark.parametrize("objective", [*LOSSES, "reg:gamma", "reg:tweedie", "reg:logistic"])
def test_every_objective_learns_and_reports_its_own_loss(objective: str) -> None:
    target = "shares" if objective == "reg:logistic" else "counts"
    learner = learner_of(target, {"objective": objective})
    losses = steps(learner, 0, 15)[0::3]
    assert losses[-1] < losses[0]
    (found,) = learner.model().predict(learner._inputs.splits["val"])
    if objective in LOSSES and objective != "reg:squaredlogerror":
        each = LOSSES[objective](found.outputs.astype(np.float64), TARGETS[target][ROWS:])
        if objective != "count:poisson":  # its likelihood has an additional term of the targets only
            assert found.loss == pytest.approx(each.sum(), rel=1e-4)


def test_a_metric_stands_for_the_loss() -> None:
    learner = learner_of("binary", {"metric": "error"})
    learner.step(0, 0.3)
    (found,) = learner.model().predict(learner._inputs.splits["val"])
    assert found.loss == pytest.approx((found.outputs.argmax(axis=1) != found.targets).sum())


def test_every_option_changes_the_model() -> None:
    changes: list[tuple[str, dict[str, Any]]] = [
        ("values", {"max_depth": 3}),
        ("values", {"max_leaves": 4, "grow_policy": "lossguide"}),
        ("values", {"max_leaves": 4}),
        ("values", {"min_child_weight": 30.0}),
        ("values", {"gamma": 5.0}),
        ("values", {"reg_alpha": 3.0}),
        ("values", {"reg_lambda": 3.0}),
        ("values", {"max_delta_step": 0.1}),
        ("values", {"max_bin": 16}),
        ("values", {"max_cat_to_onehot": 100}),
        ("values", {"max_cat_threshold": 1}),
        ("binary", {"tree_method": "approx"}),
        ("values", {"num_parallel_tree": 2}),
        ("values", {"base_score": 0.1}),
        ("values", {"monotone_constraints": [-1, 0, 0, 0, 0, 0, 0, 0]}),
        ("values", {"interaction_constraints": [["a"]]}),
        ("values", {"objective": "reg:pseudohubererror"}),
        ("values", {"objective": "reg:pseudohubererror", "huber_slope": 0.2}),
        ("values", {"objective": "reg:quantileerror"}),
        ("values", {"objective": "reg:quantileerror", "quantile_alpha": 0.1}),
        ("counts", {"objective": "reg:tweedie"}),
        ("counts", {"objective": "reg:tweedie", "tweedie_variance_power": 1.9}),
        ("binary", {"scale_pos_weight": 9.0}),
        *(("values", {name: 0.5}) for name in SAMPLING),
        ("values", {"subsample": 0.5, "sampling_method": "gradient_based"}),
        ("values", DART),
        *(
            ("values", {**DART, **more})
            for more in ({"sample_type": "weighted"}, {"normalize_type": "forest"}, {"one_drop": True})
        ),
    ]
    made: dict[str, Any] = {}
    for target, params in [*((target, {}) for target in TARGETS), *changes]:
        same = made.setdefault(weights_only(trained(target, params)), (target, params))
        assert same == (target, params), "an option is ignored"


def trained(target: str, params: Mapping[str, Any], rounds: int = 8) -> XgboostLearner:
    learner = learner_of(target, params)
    for step in range(rounds):
        learner.step(step, 0.3)
    return learner


def test_the_seed_is_that_of_the_run() -> None:
    settings = json.loads(learner_of("binary", {})._booster.save_config())
    assert int(settings["learner"]["generic_param"]["seed"]) == 4


def test_a_quantile_is_loaded(tmp_path: Path) -> None:
    params = {"objective": "reg:quantileerror", "quantile_alpha": 0.8, "one_drop": 0}
    learner = trained("values", params, 3)
    learner.snapshot(weights_only=True).write(tmp_path)
    parts = [
        next(iter(model.predict(splits_of("values")["val"])))
        for model in (learner.model(), loaded(tmp_path, "values", params))
    ]
    np.testing.assert_array_equal(parts[0].outputs, parts[1].outputs)
    assert parts[0].loss == pytest.approx(parts[1].loss)


def test_categories_are_taken_as_such() -> None:
    as_categories = trained("values", {})
    assert '"c"' in as_categories.model().native.save_raw("json").decode()
    as_numbers = learner_of("values", {}, info=info_of("values", ()))
    losses = [
        [learner.step(step, 0.3).loss for step in range(8, 20)][-1] for learner in (as_categories, as_numbers)
    ]
    assert losses[0] < losses[1]


def test_constraints_hold() -> None:
    learner = trained("values", {"monotone_constraints": {"a": -1}})
    rows = np.repeat(X[:1], 50, axis=0)
    rows[:, 0] = np.linspace(-3, 3, 50)
    (found,) = learner.model().predict(Arrays({"features": rows, "target": np.zeros(50, np.float32)}))
    assert (np.diff(found.outputs) <= 0).all()


def test_importance_finds_the_features_that_matter() -> None:
    found = trained("values", {}).model().importance()
    assert set(found) == {"gain", "weight", "cover"}
    assert all(values.shape == (len(NAMES),) and values.dtype == np.float64 for values in found.values())
    assert found["gain"].argmax() == 0


@pytest.mark.parametrize("form", ["ubj", "json"])
def test_a_serialized_model_is_the_librarys_own(form: str) -> None:
    learner = trained("binary", {})
    model = learner.model()
    assert isinstance(model, XgboostModel)
    booster = xgb.Booster(model_file=model.serialized(form))
    types = ["c" if count else "float" for count in CATEGORIES]
    matrix = xgb.DMatrix(X[ROWS:], feature_names=NAMES, feature_types=types, enable_categorical=True)
    (found,) = learner.model().predict(learner._inputs.splits["val"])
    np.testing.assert_array_equal(booster.predict(matrix), found.outputs[:, 1])


def test_a_loaded_model_needs_no_more_than_the_weights(tmp_path: Path) -> None:
    learner = trained("classes", {**DART, **SAMPLING})
    learner.snapshot(weights_only=True).write(tmp_path)
    val = learner._inputs.splits["val"]
    (expected,), (found,) = (
        model.predict(val) for model in (learner.model(), loaded(tmp_path, "classes", {}))
    )
    np.testing.assert_array_equal(found.outputs, expected.outputs)
    assert found.loss == expected.loss


# -- functions and estimators of the user's


MODULE = """
import numpy as np


def logistic(margins, matrix):
    p = 1 / (1 + np.exp(-margins))
    return p - matrix.get_label(), p * (1 - p)


def wrong(predictions, matrix):
    return "wrong", float(np.mean((predictions > 0.5) != matrix.get_label()))


def broken(margins, matrix):
    raise KeyError("nothing there")


number = 3
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Provide the user's module `my_boosting`."""
    (tmp_path / "my_boosting.py").write_text(textwrap.dedent(MODULE), encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_boosting", raising=False)


@pytest.mark.usefixtures("mine")
@pytest.mark.parametrize("more", [{}, ROW_SAMPLING, DART, {**SAMPLING, **DART}], ids=name_of)
def test_an_objective_of_ones_own_goes_on_to_the_same_bits(more: dict[str, Any], tmp_path: Path) -> None:
    params = {"objective": "my_boosting:logistic", "metric": "my_boosting:wrong", **more}
    assert_goes_on_exactly(
        "binary", params, tmp_path / "state" if (tmp_path / "state").mkdir() is None else tmp_path
    )


@pytest.mark.usefixtures("mine")
def test_an_objective_and_a_metric_of_ones_own_are_followed() -> None:
    built_in, own = (
        trained("binary", {"base_score": 0.5}),
        trained("binary", {"objective": "my_boosting:logistic", "base_score": 0.5}),
    )
    found = [
        next(iter(learner.model().predict(learner._inputs.splits["val"]))) for learner in (built_in, own)
    ]
    np.testing.assert_allclose(found[1].outputs, found[0].outputs, atol=1e-3)
    learner = trained("binary", {"metric": "my_boosting:wrong"})
    (part,) = learner.model().predict(learner._inputs.splits["val"])
    assert part.loss == pytest.approx((part.outputs.argmax(axis=1) != part.targets).sum())


@pytest.mark.usefixtures("mine")
def test_functions_that_do_not_work_are_named() -> None:
    with pytest.raises(ModelError, match=r"step 1 failed: KeyError: 'nothing there'"):
        learner_of("binary", {"objective": "my_boosting:broken"}).step(0, 0.3)
    with pytest.raises(
        ModelError, match="'my_boosting:number' is not a function but of type int; give a function"
    ):
        learner_of("binary", {"metric": "my_boosting:number"})
    with pytest.raises(InputError, match="my_boosting has no 'none'"):
        learner_of("binary", {"objective": "my_boosting:none"})


def test_an_estimator_is_trained_as_the_config_would_be() -> None:
    by_config = trained("binary", {"max_depth": 3, "subsample": 0.7, "objective": "binary:logistic"})
    model = xgb.XGBClassifier(max_depth=np.int64(3), subsample=0.7, n_estimators=7)
    by_object = learner_of("binary", {}, model=model)
    by_path = learner_of("binary", {"max_depth": 3, "subsample": 0.7}, type="xgboost:XGBClassifier")
    for learner in (by_object, by_path):
        for step in range(8):
            learner.step(step, 0.3)
        assert weights(learner) == weights(by_config)
    assert XgboostFramework.plan(config_of({}), ROWS, model).total_steps == 7
    assert XgboostFramework.plan(config_of({}), ROWS, xgb.XGBClassifier()).total_steps == 100


def test_an_estimator_of_two_classes_takes_more_of_them() -> None:
    """Its objective, that of two classes by default, follows the data."""
    learner = learner_of("classes", {}, model=xgb.XGBClassifier())
    learner.step(0, 0.3)
    (part,) = learner.model().predict(learner._inputs.splits["val"])
    assert part.outputs.shape[1] == 3
    np.testing.assert_allclose(part.outputs.sum(axis=1), 1, rtol=1e-6)


def test_a_random_forest_is_one_round_of_many_trees() -> None:
    model = xgb.XGBRFRegressor(n_estimators=5)
    plan = XgboostFramework.plan(config_of({}), ROWS, model)
    assert (plan.total_steps, plan.learning_rate) == (1, 1.0)
    learner = learner_of("values", {}, model=model)
    learner.step(0, 1.0)
    assert len(learner.model().native.get_dump()) == 5


def test_functions_of_an_estimator_are_followed() -> None:
    def squared(targets: Array, margins: Array) -> tuple[Array, Array]:
        return margins - targets, np.ones_like(targets)

    def worst(targets: Array, predictions: Array) -> float:
        return float(np.abs(targets - predictions).max())

    learner = learner_of(
        "values", {}, model=xgb.XGBRegressor(objective=squared, eval_metric=worst, base_score=0.0)
    )
    expected = learner_of("values", {"base_score": 0.0})
    for step in range(5):
        learner.step(step, 0.3)
        expected.step(step, 0.3)
    (found,), (other,) = (f.model().predict(f._inputs.splits["val"]) for f in (learner, expected))
    np.testing.assert_allclose(found.outputs, other.outputs, atol=1e-4)
    assert found.loss / VAL == pytest.approx(np.abs(found.outputs - found.targets).max())


REFUSED_ESTIMATORS: list[tuple[Any, str]] = [
    (xgb.XGBRanker(), "XGBRanker is not supported"),
    (xgb.XGBClassifier(missing=0.0), "missing values are NaN in all frameworks"),
    (xgb.XGBClassifier(feature_types=["q"] * 6), "cannot be used in a run: columns are chosen"),
    (xgb.XGBClassifier(booster="gblinear"), "booster: Input should be 'gbtree' or 'dart'"),
    (xgb.XGBClassifier(shape=3), "shape: Extra inputs are not permitted"),
    (xgb.XGBClassifier(eta=0.1, learning_rate=0.2), "learning_rate and eta are the same option; keep one"),
    (xgb.XGBClassifier(eval_metric=["auc", "mphe"]), "list the others in evaluation.metrics"),
    (
        xgb.XGBClassifier(objective="reg:tweedie"),
        "objective reg:tweedie does not fit targets of 2 classes: .* set binary",
    ),
    (xgb.XGBRegressor(), "model xgboost is for regression, but the data are for classification"),
    (xgb.XGBRFRegressor(), "is for regression, but the data are for classification"),
    (xgb.XGBModel(), "XGBModel is not supported"),
]


@pytest.mark.parametrize(
    ("model", "message"), REFUSED_ESTIMATORS, ids=lambda value: value if isinstance(value, str) else ""
)
def test_what_an_estimator_cannot_say_is_refused(model: Any, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        learner_of("binary", {}, model=model)


def test_a_classifier_does_not_become_a_regressor() -> None:
    message = "model xgboost:XGBClassifier is for classification, but the data are for regression"
    with pytest.raises(ModelError, match=message):
        learner_of("values", {}, type="xgboost:XGBClassifier")


# -- data


class OnDisk:
    """A split that is not an array; `most` is the largest number of rows taken at once."""

    def __init__(self, features: Array, targets: Array) -> None:
        self._data = Arrays({"features": features, "target": targets})
        self.most = 0

    def __len__(self) -> int:
        return len(self._data)

    def take(self, ids: Ids) -> Batch:
        self.most = max(self.most, len(ids))
        return self._data.take(ids)

    def fingerprint(self) -> str:
        return self._data.fingerprint()


@pytest.mark.parametrize("external", [False, True])
def test_rows_that_are_not_in_memory_are_read_in_parts(
    external: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matrices, "_PART_VALUES", 100 * len(NAMES))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    rows, y = np.tile(X, (4, 1)), np.tile(TARGETS["binary"], 4)
    splits = {"train": OnDisk(rows, y), "val": OnDisk(X[ROWS:], y[ROWS : ROWS + VAL])}
    params = {**SAMPLING, "external_memory": external}
    learner = learner_of("binary", params, splits=splits)
    whole = steps(learner, 0, 4)
    assert splits["train"].most == 1_000, "what the sample of the loss takes"
    assert splits["val"].most == (100 if external else VAL)
    pages = list(tmp_path.glob("trainwright-xgboost-*/*.page"))
    assert len(pages) == (2 if external else 0)

    in_memory = learner_of(
        "binary",
        SAMPLING,
        splits={
            "train": Arrays({"features": rows, "target": y}),
            "val": Arrays({"features": X[ROWS:], "target": y[ROWS : ROWS + VAL]}),
        },
    )
    np.testing.assert_allclose(steps(in_memory, 0, 4), whole, rtol=0.05)  # the bins are computed differently
    del learner
    assert not list(tmp_path.glob("trainwright-xgboost-*")), "the files are left behind"


def test_files_of_killed_processes_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for name, owner in {"dead": "1", "beginning": "", "foreign": None}.items():
        (tmp_path / f"trainwright-xgboost-{name}").mkdir()
        if owner is not None:
            (tmp_path / f"trainwright-xgboost-{name}" / "owner").write_text(owner)
    living = learner_of("binary", {"external_memory": True})
    learner_of("binary", {"external_memory": True})
    left = {path.name.removeprefix("trainwright-xgboost-") for path in tmp_path.iterdir()}
    assert {"beginning", "foreign"} < left
    assert "dead" not in left
    steps(living, 0, 2)


def test_names_that_the_library_would_not_take_are_left_out() -> None:
    info = DataInfo("classification", features_spec((8,)), 2, (0, 1), [f"x[{i}]" for i in range(8)])
    learner = learner_of("binary", {}, info=info)
    learner.step(0, 0.3)
    assert learner.model().native.feature_names is None
    assert learner.model().importance()["weight"].sum() > 0


def test_images_are_rows_of_pixels() -> None:
    images = RANDOM.normal(size=(200, 4, 4, 1)).astype(np.float32)
    y = (images[:, 0, 0, 0] > 0).astype(np.int64)
    info = DataInfo("classification", features_spec((4, 4, 1)), 2, (0, 1))
    learner = learner_of(
        "binary",
        {},
        info=info,
        splits={
            "train": Arrays({"features": images, "target": y}),
            "val": Arrays({"features": images, "target": y}),
        },
    )
    losses = steps(learner, 0, 5)[0::3]
    assert losses[-1] < losses[0]
    assert learner.model().importance()["gain"].argmax() == 0


def test_the_loss_of_a_step_is_that_of_some_training_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = learner_of("values", {})
    assert learner._matrices.sample().num_row() == 1_000
    loss = learner.step(0, 0.3).loss
    (part,) = learner.model().predict(learner._inputs.splits["train"])
    assert loss == pytest.approx(part.loss / ROWS, rel=0.05)


# -- initial weights


def test_training_goes_on_from_the_weights_of_another_run(tmp_path: Path) -> None:
    first = trained("binary", SAMPLING, rounds=6)
    first.snapshot(weights_only=True).write(tmp_path)
    then = learner_of("binary", SAMPLING)
    then.restore(tmp_path, weights_only=True)
    assert weights_only(then) == weights_only(first)
    losses = [then.step(step, 0.3).loss for step in range(3)]
    assert losses[-1] < first.step(6, 0.3).loss
    assert then.model().native.num_boosted_rounds() == 9
    folder = tmp_path / "later"
    folder.mkdir()
    then.snapshot().write(folder)
    (cut,) = then.snapshot(weights_only=True, step=2).write(tmp_path)
    resumed = learner_of("binary", SAMPLING)
    resumed.restore(folder)
    (again,) = resumed.snapshot(weights_only=True, step=2).write(tmp_path)
    assert again == cut


@pytest.mark.parametrize(
    ("target", "params", "message"),
    [
        ("binary", DART, "has booster gbtree, the run dart"),
        ("values", {}, "has objective binary:logistic, the run reg:squarederror"),
        ("classes", {}, "has objective binary:logistic, the run multi:softprob"),
    ],
)
def test_weights_of_another_kind_are_refused(
    target: str, params: dict[str, Any], message: str, tmp_path: Path
) -> None:
    trained("binary", {}, rounds=1).snapshot(weights_only=True).write(tmp_path)
    with pytest.raises(ModelError, match=message):
        learner_of(target, params).restore(tmp_path, weights_only=True)


@pytest.mark.parametrize("target", ["binary", "classes", "pairs"])
def test_weights_bring_their_base_score(target: str, tmp_path: Path) -> None:
    first = trained(target, {"base_score": 0.3}, rounds=2)
    first.snapshot(weights_only=True).write(tmp_path)
    for same in ({}, {"base_score": 0.3}):
        then = learner_of(target, same)
        then.restore(tmp_path, weights_only=True)
        assert weights_only(then) == weights_only(first)
        then.step(0, 0.3)
    with pytest.raises(ModelError, match=r"has base_score 0\.3, the run 0\.4"):
        learner_of(target, {"base_score": 0.4}).restore(tmp_path, weights_only=True)


def test_weights_of_other_data_are_refused(tmp_path: Path) -> None:
    trained("binary", {}, rounds=1).snapshot(weights_only=True).write(tmp_path)
    info = DataInfo("classification", features_spec((8,)), 2, (0, 1), list("abcdefgh"))
    with pytest.raises(ModelError, match=r"has feature names \['a', .*'few'\], the run \['a', .*'h'\]"):
        learner_of("binary", {}, info=info).restore(tmp_path, weights_only=True)


# -- devices and errors


def test_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xgb, "build_info", lambda: {"USE_CUDA": False})
    assert (library.chosen_device("cpu"), library.chosen_device("auto")) == ("cpu", "cpu")
    with pytest.raises(
        ModelError, match=r"training.device: cuda is not available: this xgboost was built without CUDA"
    ):
        library.chosen_device("cuda")
    monkeypatch.setattr(xgb, "build_info", lambda: {"USE_CUDA": True})
    monkeypatch.setattr(library, "_cuda_devices", lambda: 0)
    assert library.chosen_device("auto") == "cpu"
    with pytest.raises(ModelError, match="there is no CUDA device"):
        library.chosen_device("cuda:0")
    monkeypatch.setattr(library, "_cuda_devices", lambda: 1)
    assert library.chosen_device("auto", "exact") == "cpu"
    with pytest.raises(ModelError, match="tree_method: exact grows trees on the CPU alone"):
        library.chosen_device("cuda", "exact")
    assert (library.chosen_device("auto"), library.chosen_device("cuda:0")) == ("cuda", "cuda:0")
    assert XgboostFramework.determinism(config_of({}, {"device": "auto"})).tier == "order"
    assert XgboostFramework.determinism(config_of({})).tier == "bitwise"


@pytest.mark.gpu
@pytest.mark.skipif(bool(library._cuda_unavailable()), reason="needs CUDA")
@pytest.mark.parametrize("target", ["binary", "classes", "values"])
@pytest.mark.parametrize("params", [SAMPLING, DART], ids=name_of)
def test_cuda_learns_and_goes_on(target: str, params: dict[str, Any], tmp_path: Path) -> None:
    learner = learner_of(target, params, training={"device": "cuda"})
    losses = steps(learner, 0, 5)[0::3]
    assert losses[-1] < losses[0]
    assert learner.describe()["device"] == "cuda"
    learner.snapshot().write(tmp_path)
    resumed = learner_of(target, params, training={"device": "cuda"})
    resumed.restore(tmp_path)
    assert resumed.step(5, 0.2).loss < losses[0]


REFUSED_CONFIGS: list[tuple[dict[str, Any], str]] = [
    ({"etta": 0.1}, "etta"),
    ({"booster": "gblinear"}, "gbtree"),
    ({"rate_drop": 0.1}, "rate_drop has an effect only with booster: dart; leave it out"),
    ({"quantile_alpha": 0.1}, "quantile_alpha has an effect only with objective: reg:quantileerror"),
    ({"objective": "rank:ndcg"}, "'rank:ndcg': allowed are binary:logistic"),
    ({"metric": "ndcg"}, "list others, such as auc, in evaluation.metrics"),
    (
        {"tree_method": "exact", "colsample_bynode": 0.5},
        "tree_method: exact cannot be combined with colsample_bynode",
    ),
    ({"tree_method": "exact", "max_leaves": 9}, "tree_method: exact cannot be combined with max_leaves"),
    (
        {"tree_method": "exact", "max_depth": 0},
        "tree_method: exact cannot be combined with max_depth: 0; set a depth",
    ),
    ({"metric": "rmse@2"}, "'rmse@2': only error@THRESHOLD"),
    ({"metric": "tweedie-nloglik@2"}, "and tweedie-nloglik@POWER .1 to 2. take a number"),
    (
        {"tree_method": "approx", "external_memory": True},
        "tree_method: approx cannot be combined with external_memory",
    ),
    (
        {"tree_method": "exact", "multi_strategy": "multi_output_tree"},
        "multi_output_tree cannot be combined with tree_method",
    ),
    ({"multi_strategy": "multi_output_tree", **DART}, "multi_output_tree cannot be combined with booster"),
    ({"subsample": 0}, "subsample"),
]


@pytest.mark.parametrize(
    ("params", "message"),
    REFUSED_CONFIGS,
    ids=lambda value: json.dumps(value) if isinstance(value, dict) else "",
)
def test_options_that_cannot_be_followed_are_errors_of_the_config(
    params: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        config_of(params)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"monotone_constraints": {"mony": 1}}, r"there is no feature 'mony'; did you mean 'many'\?"),
        ({"monotone_constraints": [1, 0]}, "has 2 entries for 8 features"),
        ({"interaction_constraints": [[9]]}, "there is no feature 9; allowed: a, b, c"),
        (
            {"objective": "binary:logistic"},
            "objective binary:logistic does not fit targets of 3 classes: .* set multi:softprob",
        ),
        (
            {"tree_method": "exact"},
            "tree_method: exact does not support categorical columns; set data.encode: onehot",
        ),
        ({"multi_strategy": "multi_output_tree"}, "multi_output_tree does not support categorical columns"),
    ],
)
def test_options_that_do_not_fit_the_data_are_refused(params: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        learner_of("classes", params)


@pytest.mark.parametrize(
    ("target", "params", "message"),
    [
        (
            "binary",
            {"metric": "mlogloss"},
            "metric mlogloss does not fit objective binary:logistic; allowed: logloss, error, rmse",
        ),
        (
            "classes",
            {"metric": "logloss"},
            "metric logloss does not fit objective multi:softprob; allowed: mlogloss, merror$",
        ),
        ("values", {"metric": "quantile"}, "metric quantile does not fit objective reg:squarederror"),
        ("values", {"metric": "mlogloss"}, "metric mlogloss does not fit objective reg:squarederror"),
        ("values", {"metric": "error@0.3"}, "metric error@0.3 does not fit objective reg:squarederror"),
        (
            "pairs",
            {"objective": "reg:quantileerror"},
            "objective reg:quantileerror takes one target, the data has 2",
        ),
        ("binary", {"base_score": 5.0}, r"this model cannot be built: .*base_score must be in \(0,1\)"),
        (
            "counts",
            {"objective": "reg:gamma", "base_score": -1.0},
            "cannot be built: .*base_score` must be greater than 0",
        ),
    ],
)
def test_what_does_not_go_together_is_refused_before_the_first_round(
    target: str, params: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelError, match=message) as raised:
        learner_of(target, params)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("target", "params"),
    [
        ("binary", {"metric": "error@0.3"}),
        ("counts", {"metric": "tweedie-nloglik"}),
        ("counts", {"metric": "tweedie-nloglik@1.2"}),
        ("values", {"objective": "reg:quantileerror", "metric": "quantile"}),
        ("shares", {"objective": "reg:logistic", "metric": "logloss"}),
    ],
)
def test_metrics_with_a_number_or_an_objective_of_their_own(target: str, params: dict[str, Any]) -> None:
    assert np.isfinite(learner_of(target, params).step(0, 0.3).loss)


@pytest.mark.parametrize(
    ("objective", "message"),
    [
        ("count:poisson", "label must be non-negative"),
        ("reg:gamma", "label must be pos"),
        ("reg:logistic", "label must be in"),
    ],
)
def test_targets_that_the_library_refuses_are_wrong_input_said_without_its_stack(
    objective: str, message: str
) -> None:
    with pytest.raises(ModelError, match=f"step 1 failed: {message}") as raised:
        learner_of("values", {"objective": objective}).step(0, 0.3)
    assert "\n" not in str(raised.value)
    assert "/src/" not in str(raised.value)


def test_errors_of_the_library_are_translated_wherever_it_is_called(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise xgb.core.XGBoostError("[12:00:00] /workspace/src/x.cc:1: it broke\nStack trace:\n  [bt] (0)")

    learner = trained("values", {}, rounds=1)
    for name in ("save_raw", "predict", "get_score", "update"):
        monkeypatch.setattr(xgb.Booster, name, broken)
    calls = (
        lambda: list(learner.state()),
        learner.snapshot,
        lambda: list(learner.model().predict(learner._inputs.splits["val"])),
        learner.model().importance,
        lambda: learner.step(1, 0.3),
    )
    for call in calls:
        with pytest.raises(TrainingError, match=r"^[^\n]*: it broke; see where with --debug$"):
            call()


def test_a_run_of_an_object_is_resumed_and_reproduced(tmp_path: Path) -> None:
    model = xgb.XGBClassifier(n_estimators=70, subsample=0.8, colsample_bytree=0.7, max_depth=3)
    config = {
        "data": {"type": "breast_cancer"},
        "training": {"threads": 1},
        "evaluation": {"every_n_steps": 10},
        "logging": {"every_n_steps": 1},
    }
    whole = trainwright.train(config, runs_dir=tmp_path / "whole", model=model)
    assert whole.metrics["test_accuracy"] > 0.9
    cut = trainwright.train(config, runs_dir=tmp_path / "cut", model=model, callbacks=[SignalAt(57)])
    assert (cut.status, cut.result["steps"]) == ("preempted", 57)
    resumed = trainwright.resume(cut, model=model)
    assert_same(resumed, whole)
    assert trainwright.reproduce(resumed.path, model=model).verdict == "identical"


def test_other_options_of_an_object_are_a_change() -> None:
    kinds = [
        learner_of("binary", {}, model=xgb.XGBClassifier(max_depth=depth)).definition() for depth in (3, 4)
    ]
    assert [kind["max_depth"] for kind in kinds] == ["3", "4"]
    assert not learner_of("binary", {}).definition(), "the config says it all"
