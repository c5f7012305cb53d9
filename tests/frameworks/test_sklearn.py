"""The scikit-learn framework.

Every short name fits, is stored and continues exactly; what cannot work is said at once.
"""

import copy
import json
import logging
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from operator import itemgetter
from pathlib import Path
from typing import Any, ClassVar

import joblib
import numpy as np
import pytest
import sklearn
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.ensemble import (
    BaggingClassifier,
    BaggingRegressor,
    ExtraTreesClassifier,
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
    RandomForestRegressor,
    StackingClassifier,
    VotingClassifier,
)
from sklearn.feature_selection import SelectKBest, f_classif
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import LogisticRegression, SGDClassifier
from sklearn.model_selection import GridSearchCV, KFold, RepeatedKFold
from sklearn.multioutput import MultiOutputRegressor
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer, PolynomialFeatures, StandardScaler
from sklearn.svm import SVC, LinearSVC

import trainwright
from small_runs import journal_values
from trainwright.config import load
from trainwright.config.schema import RunConfig
from trainwright.datasets.base import Split
from trainwright.datasets.samples.arrays import Arrays
from trainwright.digest import tensor_records
from trainwright.errors import ConfigError, ModelError, TrainingError
from trainwright.frameworks.base import WEIGHTS_FILE, LearnerInputs, Model, ModelInputs
from trainwright.frameworks.sklearn import SklearnFramework, storage
from trainwright.frameworks.sklearn.binning import BinCache
from trainwright.frameworks.sklearn.generate import text
from trainwright.frameworks.sklearn.learner import SklearnLearner
from trainwright.frameworks.sklearn.params import TABLE, table
from trainwright.frameworks.sklearn.steps import step_kind
from trainwright.order import SampleOrder
from trainwright.runs.catalog import Catalog
from trainwright.types import DataInfo, features_spec

ROWS, FEATURES, CLASSES = 90, 5, 3
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(ROWS, FEATURES)).astype(np.float32)
LABELS = np.tile(np.arange(CLASSES), ROWS // CLASSES)
X[:, 0] += LABELS
VALUES = (2 * X[:, 0] + X[:, 1] * X[:, 2] + RANDOM.normal(scale=0.1, size=ROWS)).astype(np.float32)

# What the small runs below need to be runs at all; all else is as the short name has it.
OPTIONS: Mapping[str, dict[str, Any]] = {
    "pls_canonical": {"n_components": 1},
    "cca": {"n_components": 1},
    "radius_neighbors": {"radius": 50.0},
    "gradient_boosting": {"n_estimators": 7, "iterations_per_step": 3, "subsample": 0.5, "max_features": 2},
    "random_forest": {"n_estimators": 7, "iterations_per_step": 3, "max_features": 2, "max_samples": 0.7},
    "extra_trees": {"n_estimators": 7, "iterations_per_step": 3, "bootstrap": True, "max_features": 2},
    "bagging": {"n_estimators": 7, "iterations_per_step": 3, "max_features": 0.6, "max_samples": 0.6},
    "hist_gradient_boosting": {
        "max_iter": 7,
        "iterations_per_step": 3,
        "max_features": 0.5,
        "min_samples_leaf": 5,
    },
}
GROWING = [name for name, entry in table()["models"].items() if entry["steps"] == "growth"]
LEARNING = [name for name, entry in table()["models"].items() if entry["steps"] == "batches"]
TASKS = ("classification", "regression")
EVERY = [
    *((name, task) for name, entry in table()["models"].items() for task in TASKS if task in entry),
    *(
        pytest.param(alias, task, marks=pytest.mark.soak)  # the same estimator by another name
        for alias, of in table()["aliases"].items()
        for task in TASKS
        if task in table()["models"][of]
    ),
]


def config_of(model: str | Mapping[str, Any], **sections: Any) -> RunConfig:
    given = {"type": model} if isinstance(model, str) else dict(model)
    wanted = {"model": given, "data": {"type": "iris"}, "experiment": {"seed": 3}, **sections}
    return load(wanted, adapters=Catalog()).config


def rows_for(name: str, task: str) -> tuple[np.ndarray, np.ndarray]:
    """Rows that such a model takes."""
    features: np.ndarray = X
    targets: np.ndarray = LABELS if task == "classification" else VALUES
    if not table()["models"].get(name, {"data": {}})["data"].get("standardize", True):
        features = np.abs(X * 2).round().clip(0, 3)
    if name in {"gamma_regressor", "poisson_regressor"}:
        targets = np.abs(VALUES) + 0.1
    if name.startswith("multi_task") or name in {"cca", "pls_canonical"}:
        targets = np.stack([VALUES, X[:, 1]], axis=1)
    return features[:, :1] if name == "isotonic_regression" else features, targets


def learner_for(
    config: RunConfig,
    rows: tuple[np.ndarray, np.ndarray] = (X, LABELS),
    *,
    model: Any = None,
    threads: int = 1,
    info: Mapping[str, Any] | None = None,
) -> SklearnLearner:
    """The learner on a few rows, of which the last 30 are for validation."""
    features, targets = rows
    classes = targets.dtype.kind == "i"
    described: dict[str, Any] = {
        "task": "classification" if classes else "regression",
        "inputs": features_spec(features.shape[1:], str(features.dtype)),
        "outputs": CLASSES if classes else targets.reshape(len(targets), -1).shape[1],
        "classes": ["a", "b", "c"] if classes else None,
        **(info or {}),
    }
    splits = {
        "train": Arrays({"features": features[:60], "target": targets[:60]}),
        "val": Arrays({"features": features[60:], "target": targets[60:]}),
    }
    plan = SklearnFramework.plan(config, 60, model)
    order = SampleOrder(60, plan.batch_size, config.experiment.seed)
    inputs = LearnerInputs(
        config, DataInfo(**described), config.model.params, threads, splits, order, model=model
    )  # type: ignore[arg-type]
    learner = SklearnFramework.learner(inputs)
    assert isinstance(learner, SklearnLearner)
    return learner


def named(name: str, task: str = "classification", **more: Any) -> SklearnLearner:
    config = config_of(
        {"type": name, "params": OPTIONS.get(name, {})}, training={"batch_size": 16, "max_steps": 6}
    )
    return learner_for(config, rows_for(name, task), **more)


def steps_of(learner: SklearnLearner, config: RunConfig | None = None) -> int:
    inputs = learner._inputs
    return SklearnFramework.plan(config or inputs.config, 60, inputs.model).total_steps


def train(learner: SklearnLearner, first: int = 0, last: int | None = None) -> SklearnLearner:
    rate = SklearnFramework.plan(learner._inputs.config, 60, learner._inputs.model).learning_rate or 1.0
    for step in range(first, steps_of(learner) if last is None else last):
        learner.step(step, rate / (1 + step))
    return learner


def outputs(learner: SklearnLearner, split: str = "val") -> np.ndarray:
    return predicted(learner.model(), learner._inputs.splits[split])  # type: ignore[index]


def predicted(model: Model, split: Split) -> np.ndarray:
    return np.concatenate([part.outputs for part in model.predict(split)])


def loaded(learner: SklearnLearner, folder: Path) -> Model:
    """The model of a snapshot, from what a command knows."""
    known = learner._inputs
    inputs = ModelInputs(known.config, known.info, known.model_params, known.threads, model=known.model)
    return SklearnFramework.load(inputs, folder)


def saved(learner: SklearnLearner, folder: Path, **how: Any) -> Path:
    folder.mkdir()
    learner.snapshot(**how).write(folder)
    return folder


# -- every short name


def test_the_table_is_that_of_the_installed_version() -> None:
    if table()["scikit-learn"] != sklearn.__version__:
        pytest.skip(f"it was made with scikit-learn {table()['scikit-learn']}")
    assert TABLE.read_text(encoding="utf-8") == text(), (
        "run python -m trainwright.frameworks.sklearn.generate"
    )


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(("name", "task"), EVERY, ids=lambda value: value)
def test_every_name_goes_on_exactly_from_what_was_stored(name: str, task: str, tmp_path: Path) -> None:
    whole, cut = train(named(name, task)), named(name, task)
    middle = steps_of(cut) // 2
    folder = saved(train(cut, last=middle or None), tmp_path / "middle")
    resumed = named(name, task)
    resumed.restore(folder)
    assert tensor_records(resumed.state()) == tensor_records(cut.state()), (
        "what was restored is not what was stored"
    )
    if middle:
        train(resumed, first=middle)
    assert tensor_records(resumed.state()) == tensor_records(whole.state())

    model = loaded(whole, saved(whole, tmp_path / "end", weights_only=True))
    found = predicted(model, whole._inputs.splits["val"])
    np.testing.assert_array_equal(found, outputs(whole))
    assert found.dtype == np.float64
    assert found.shape == (
        (30, CLASSES) if task == "classification" else whole._inputs.splits["val"].arrays["target"].shape
    )  # type: ignore[attr-defined]
    if task == "classification":
        np.testing.assert_allclose(found.sum(axis=1), 1, rtol=1e-5)


def test_every_name_has_options_with_a_meaning_and_defaults_that_they_allow() -> None:
    assert {"random_forest", "logistic_regression", "hist_gradient_boosting", "svm"} <= set(
        SklearnFramework.models
    )
    for name, options in SklearnFramework.models.items():
        fields = options.model_fields
        assert all(field.description for field in fields.values()), name
        written = options().model_dump_json()
        assert options.model_validate_json(written, strict=True) == options(), name
        assert not {"random_state", "n_jobs", "warm_start", "verbose"} & set(fields), name


# -- growing ensembles


@pytest.mark.parametrize("task", ["classification", "regression"])
@pytest.mark.parametrize("name", GROWING)
def test_the_steps_make_the_model_that_one_fit_makes(name: str, task: str) -> None:
    learner = train(named(name, task), last=3)
    features, targets = rows_for(name, task)
    fitted = sklearn.base.clone(learner.model().native)
    if name == "hist_gradient_boosting":
        learner = named(name, task)
        for step in range(3):
            learner.step(step, fitted.learning_rate)  # `train` varies it
    fitted.fit(features[:60], targets[:60])
    found = fitted.predict_proba(features) if task == "classification" else fitted.predict(features)
    ours = (
        learner.model().native.predict_proba(features)
        if task == "classification"
        else learner.model().native.predict(features)
    )
    np.testing.assert_array_equal(ours, found)
    np.testing.assert_array_equal(outputs(learner), found[60:])


@pytest.mark.parametrize("name", GROWING)
def test_an_earlier_model_cut_from_a_later_one_has_the_same_bytes(name: str, tmp_path: Path) -> None:
    then, later = train(named(name), last=1), train(named(name))
    assert SklearnFramework.plan(later._inputs.config, 60).cumulative
    first = saved(then, tmp_path / "then", weights_only=True) / WEIGHTS_FILE
    cut = saved(later, tmp_path / "later", weights_only=True, step=1) / WEIGHTS_FILE
    assert first.read_bytes() == cut.read_bytes()


@pytest.mark.parametrize("name", GROWING)
def test_threads_and_the_size_of_a_step_change_no_bit(name: str) -> None:
    one = train(named(name))
    config = config_of({"type": name, "params": {**OPTIONS[name], "iterations_per_step": 7}})
    many = learner_for(config, rows_for(name, "classification"), threads=3)
    rate = SklearnFramework.plan(config, 60).learning_rate or 1.0
    if name == "hist_gradient_boosting":  # whose rate `train` varies
        one = named(name)
        for step in range(3):
            one.step(step, rate)
    many.step(0, rate)
    assert tensor_records(one.state(weights_only=True)) == tensor_records(many.state(weights_only=True))
    np.testing.assert_allclose(outputs(one), outputs(many), rtol=1e-6)


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_keeping_the_bins_changes_no_bit(task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = train(named("hist_gradient_boosting", task))
    monkeypatch.setattr(BinCache, "reused", lambda self, estimator: nullcontext())
    anew = train(named("hist_gradient_boosting", task))
    assert tensor_records(kept.state()) == tensor_records(anew.state())
    assert not {"_bin_data", "_raw_predict"} & set(vars(kept.model().native)), (
        "what stood in for methods is left behind"
    )


def test_a_schedule_varies_the_rate_of_each_tree_of_histogram_boosting_only() -> None:
    slow, fast = named("hist_gradient_boosting"), named("hist_gradient_boosting")
    slow.step(0, 0.01)
    fast.step(0, 0.5)
    assert not np.array_equal(outputs(slow), outputs(fast))
    assert slow.model().native.learning_rate == fast.model().native.learning_rate == 0.1
    for name in ("gradient_boosting", "random_forest", "logistic_regression"):
        assert "scheduler" not in SklearnFramework.training_keys(name, {}), (
            "the log names it as without effect"
        )
    config = config_of("sklearn.svm:SVC", training={"scheduler": "cosine"})
    with pytest.raises(ModelError, match=r"training\.scheduler.*no learning rate"):
        SklearnFramework.plan(config, 60)


def test_predictions_of_a_forest_are_those_of_scikit_learn_whatever_was_asked_before() -> None:
    learner = named("random_forest", "regression")
    for step in range(3):
        learner.step(step, 1.0)
        for split in ("val", "train", "val"):
            features = learner._inputs.splits[split].arrays["features"]  # type: ignore[attr-defined]
            np.testing.assert_array_equal(outputs(learner, split), learner.model().native.predict(features))


def test_weights_of_another_run_are_trees_that_more_are_added_to(tmp_path: Path) -> None:
    for name in GROWING:
        folder = saved(train(named(name)), tmp_path / name, weights_only=True)
        further = named(name)
        further.restore(folder, weights_only=True)
        further.step(0, 0.1)
        middle = saved(further, tmp_path / f"{name}-middle")
        train(further, first=1)
        assert outputs(further).shape == (30, CLASSES)
        assert (
            getattr(further.model().native, "max_iter" if name.startswith("hist") else "n_estimators") == 14
        )
        resumed = named(name)
        resumed.restore(middle)
        assert tensor_records(train(resumed, first=1).state()) == tensor_records(further.state())


@pytest.mark.parametrize(
    "model",
    [
        RandomForestRegressor(12, monotonic_cst=[1, 0, 0, 0, -1]),
        RandomForestRegressor(12, monotonic_cst=np.array([1, 0, 0, 0, -1])),
        BaggingRegressor(GradientBoostingRegressor(n_estimators=2), n_estimators=12),
        BaggingRegressor(KernelRidge(), n_estimators=12),
    ],
    ids=["list", "array", "constants", "rows"],
)
def test_what_parts_share_with_their_ensemble_or_class_does_not_change_a_resume(
    model: Any, tmp_path: Path
) -> None:
    def make() -> SklearnLearner:
        return learner_for(config_of("sgd"), (X, VALUES), model=model)

    resumed = make()
    resumed.restore(saved(train(make(), last=1), tmp_path / "cut"))
    assert tensor_records(train(resumed, first=1).state()) == tensor_records(train(make()).state())


# -- minibatches


@pytest.mark.parametrize(
    "options", [{"solver": "sgd"}, {"solver": "sgd", "learning_rate": "invscaling"}, {"solver": "adam"}]
)
def test_a_perceptron_with_layers_takes_the_rate_of_each_step(options: dict[str, Any]) -> None:
    config = config_of(
        {"type": "sklearn_mlp", "params": options}, training={"batch_size": 16, "max_steps": 4}
    )
    still, moving = learner_for(config), learner_for(config)
    for step in range(4):
        still.step(step, 1e-12)
        moving.step(step, 0.05)
    start = learner_for(config)
    start.step(0, 1e-12)
    np.testing.assert_allclose(outputs(still), outputs(start), atol=1e-6)
    assert np.abs(outputs(moving) - outputs(start)).max() > 0.01
    assert len(moving.model().native.loss_curve_) == 1


def test_stochastic_gradient_descent_takes_the_rate_where_its_rule_uses_one() -> None:
    assert (
        SklearnFramework.plan(
            config_of({"type": "sgd", "params": {"learning_rate": "constant", "eta0": 0.5}}), 150
        ).learning_rate
        == 0.5
    )
    optimal = config_of({"type": "sgd", "params": {"learning_rate": "optimal"}})
    assert SklearnFramework.plan(optimal, 150).learning_rate is None


def test_stochastic_gradient_descent_has_the_rate_of_the_task(tmp_path: Path) -> None:
    config = {"model": "sgd", "data": {"type": "diabetes"}, "training": {"max_steps": 60}}
    assert trainwright.train(config, runs_dir=tmp_path).metrics["test_r2"] > 0.3


def test_a_minibatch_model_plans_by_training_and_knows_all_classes_from_the_first_step() -> None:
    config = config_of("sgd", training={"batch_size": 16, "epochs": 3})
    assert SklearnFramework.plan(config, 60)[:2] == (16, 12)
    learner = learner_for(config, (X, np.where(np.arange(ROWS) < 60, LABELS % 2, LABELS)))
    train(learner)
    assert outputs(learner).shape == (30, CLASSES)


def test_what_needs_all_rows_at_once_fits_in_one_step() -> None:
    assert [
        step_kind(one) for one in (SGDClassifier(early_stopping=True), SGDClassifier(class_weight="balanced"))
    ] == ["once"] * 2
    assert step_kind(RandomForestClassifier(oob_score=True)) == "once"
    assert step_kind(GradientBoostingClassifier(n_iter_no_change=3)) == "once"
    assert step_kind(HistGradientBoostingClassifier(early_stopping=True)) == "once"
    assert step_kind(HistGradientBoostingClassifier()) == "growth"


# -- what is told of the outputs


@pytest.mark.parametrize("classes", [2, 3])
def test_decision_values_become_probabilities_that_keep_their_order(classes: int) -> None:
    labels = LABELS % classes
    learner = train(
        learner_for(
            config_of("linear_svm"), (X, labels), info={"outputs": classes, "classes": list("abc")[:classes]}
        )
    )
    found = outputs(learner)
    np.testing.assert_array_equal(found.argmax(axis=1), learner.model().native.predict(X[60:]))
    values = learner.model().native.decision_function(X[60:])
    expected = (
        1 / (1 + np.exp(-values))
        if classes == 2
        else (np.exp(values) / np.exp(values).sum(axis=1, keepdims=True))[:, 1]
    )
    np.testing.assert_allclose(found[:, 1], expected, rtol=1e-5)


class Guess(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Knows the first class that it saw."""

    def fit(self, features: Any, targets: Any) -> "Guess":
        self.classes_ = np.unique(targets)
        self.first_ = targets[0]
        return self

    def predict(self, features: Any) -> Any:
        return np.full(len(features), self.first_)


def test_votes_and_classes_without_rows() -> None:
    learner = train(learner_for(config_of("sgd"), (X, LABELS % 2), model=Guess()))
    assert outputs(learner).tolist() == [[1, 0, 0]] * 30
    (part,) = learner.model().predict(learner._inputs.splits["val"])
    assert part.loss == pytest.approx(10 * -np.log(np.finfo(np.float32).eps))


def test_the_loss_is_the_usual_one() -> None:
    learner = train(named("random_forest"))
    (part,) = learner.model().predict(learner._inputs.splits["val"])
    chosen = learner.model().native.predict_proba(rows_for("random_forest", "classification")[0][60:])[
        np.arange(30), LABELS[60:]
    ]
    assert part.loss == pytest.approx(-np.log(np.maximum(chosen, np.finfo(np.float32).eps)).sum())
    several = train(learner_for(config_of("ridge"), (X, np.stack([VALUES, X[:, 1]], axis=1))))
    (part,) = several.model().predict(several._inputs.splits["val"])
    assert part.loss == pytest.approx(((part.outputs - part.targets) ** 2).mean(axis=1).sum(), rel=1e-5)


# -- objects and import paths


def logarithm(values: Any) -> Any:
    """A function of the user's own."""
    return np.log1p(np.abs(values))


OBJECTS: list[Any] = [
    make_pipeline(StandardScaler(copy=False), SVC()),
    Pipeline(
        [
            ("scale", StandardScaler()),
            ("choose", SelectKBest(f_classif, k=3)),
            ("forest", RandomForestClassifier(5)),
        ]
    ),
    make_pipeline(
        FunctionTransformer(np.log1p, validate=False),
        FunctionTransformer(logarithm),
        PolynomialFeatures(),
        LogisticRegression(),
    ),
    VotingClassifier(
        [("forest", RandomForestClassifier(5, n_jobs=-1)), ("logistic", LogisticRegression())], voting="soft"
    ),
    BaggingClassifier(KNeighborsClassifier(), n_estimators=12, random_state=np.random.RandomState(7)),
    RandomForestClassifier(12, random_state=5),
    HistGradientBoostingClassifier(max_iter=12),
]


@pytest.mark.parametrize("model", OBJECTS, ids=lambda model: type(model).__name__)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_an_object_is_cloned_seeded_and_goes_on_exactly(model: Any, tmp_path: Path) -> None:
    rows, before = (np.abs(X), LABELS), joblib.hash(model)
    config = config_of("sgd")

    def learner() -> SklearnLearner:
        return learner_for(config, rows, model=model, threads=2)

    whole, cut = train(learner()), train(learner(), last=1)
    resumed = learner()
    resumed.restore(saved(cut, tmp_path / "cut"))
    assert tensor_records(train(resumed, first=1).state()) == tensor_records(whole.state())
    assert joblib.hash(model) == before, "the user's object was fitted, changed or drawn from"
    np.testing.assert_array_equal(rows[0], np.abs(X))
    params = whole.model().native.get_params()
    seeds = {name: value for name, value in params.items() if name.rpartition("__")[2] == "random_state"}
    assert {name: type(value) for name, value in seeds.items()} == dict.fromkeys(seeds, int)
    # A seed of the user's own is kept; of a generator, the first number that it would give is the seed.
    own = model.get_params().get("random_state")
    if isinstance(own, np.random.RandomState):
        own = copy.deepcopy(own).randint(2**31 - 1)
    assert own is None or seeds["random_state"] == own


@pytest.mark.parametrize(
    "model",
    [
        GridSearchCV(RandomForestClassifier(3), {"max_depth": [1, 2]}, cv=KFold(3, shuffle=True)),
        GridSearchCV(
            VotingClassifier([("one", SVC())]),
            {"one": [RandomForestClassifier(2), ExtraTreesClassifier(2)]},
            cv=RepeatedKFold(n_splits=2, n_repeats=2, random_state=np.random.RandomState(1)),
        ),
        StackingClassifier([("logistic", LogisticRegression())], cv=KFold(3, shuffle=True)),
        make_pipeline(StandardScaler(), GridSearchCV(SVC(), {"C": [1, 10]}, cv=KFold(3))),
    ],
    ids=["search", "estimators", "stacking", "in a pipeline"],
)
def test_splitters_and_estimators_to_choose_from_have_seeds_and_times_are_left_out(
    model: Any, tmp_path: Path
) -> None:
    before = repr(model)
    runs = []
    for seed in (1, 2):
        np.random.seed(seed)  # what has no seed would draw from it
        runs.append(train(learner_for(config_of("sgd"), model=model)))
    first, second = (tensor_records(run.state()) for run in runs)
    assert first == second
    assert repr(model) == before
    native = loaded(runs[0], saved(runs[0], tmp_path / "end")).native
    np.testing.assert_array_equal(native.predict(X), runs[0].model().native.predict(X))
    seeds = [value for name, value in native.get_params().items() if name.endswith("random_state")]
    assert None not in seeds


def test_a_pipeline_runs_from_start_to_prediction(tmp_path: Path) -> None:
    model = make_pipeline(StandardScaler(), SVC())
    run = trainwright.train(
        {"data": {"type": "iris"}, "training": {"threads": 1}}, model=model, runs_dir=tmp_path
    )
    assert (run.result["steps"], run.result["status"]) == (1, "completed")
    assert run.metrics["test_accuracy"] > 0.8
    assert len(trainwright.load(run, model=model).outputs(np.zeros((3, 4)))) == 3


def test_an_estimator_of_the_users_own_is_found_by_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "our_estimators.py").write_text(
        textwrap.dedent("""
        import numpy as np
        from sklearn.base import BaseEstimator, ClassifierMixin

        class Prior:
            def __init__(self, shares):
                self.shares = shares

        class Shares(ClassifierMixin, BaseEstimator):
            def __init__(self, smoothing=0.0):
                self.smoothing = smoothing

            def partial_fit(self, features, targets, classes=None):
                if classes is not None:
                    self.classes_ = classes
                counts = np.bincount(targets, minlength=len(self.classes_))
                self.counts_ = getattr(self, "counts_", self.smoothing) + counts
                self.prior_ = Prior(self.counts_ / self.counts_.sum())
                return self

            def predict_proba(self, features):
                return np.tile(self.prior_.shares, (len(features), 1))

        class Lambda(Shares):
            def partial_fit(self, features, targets, classes=None):
                self.hidden_ = lambda: None
                return super().partial_fit(features, targets, classes)
        """),
        encoding="utf-8",
    )
    monkeypatch.syspath_prepend(tmp_path)
    config = {"type": "our_estimators:Shares", "params": {"smoothing": 1.0}}
    run = trainwright.train(
        {"model": config, "data": {"type": "iris"}, "training": {"batch_size": 50}},
        runs_dir=tmp_path / "runs",
    )
    assert run.result["steps"] == 30
    np.testing.assert_allclose(trainwright.load(run).outputs(np.zeros((2, 4))), 1 / 3, atol=0.02)
    with pytest.raises(ModelError, match=r"Shares does not accept these options.*; allowed: smoothing"):
        learner_for(config_of({**config, "params": {"smooth": 1}}))
    with pytest.raises(ModelError, match=r"not trusted.*lambda"):
        learner_for(config_of("our_estimators:Lambda")).step(0, 1.0)
    with pytest.raises(ModelError, match=r"it returned a Prior; expected a scikit-learn estimator"):
        learner_for(
            config_of({"type": "our_estimators:Prior", "framework": "sklearn", "params": {"shares": 1}})
        )
    del sys.modules["our_estimators"]


@pytest.mark.parametrize(
    "model",
    [
        {"type": "our_pipelines:pipeline", "params": {"svc__C": 0.5}},
        {"type": "our_pipelines:scaled", "params": {"c": 0.5}, "framework": "sklearn"},
    ],
    ids=["object", "function"],
)
def test_a_pipeline_in_a_module_is_found_by_its_path(
    model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "our_pipelines.py").write_text(
        textwrap.dedent("""
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler
        from sklearn.svm import SVC

        def scaled(c=1.0):
            return make_pipeline(StandardScaler(), SVC(C=c))

        pipeline = scaled()
        """),
        encoding="utf-8",
    )
    monkeypatch.syspath_prepend(tmp_path)
    run = trainwright.train({"model": model, "data": {"type": "iris"}}, runs_dir=tmp_path / "runs")
    fitted = trainwright.load(run).native
    assert fitted[-1].C == 0.5
    assert list(run.manifest["code"]["modules"]) == ["our_pipelines"]
    wrong = {**model, "params": {"gamma": 1}}
    with pytest.raises(ModelError, match=r"our_pipelines.*gamma"):
        trainwright.train({"model": wrong, "data": {"type": "iris"}}, runs_dir=tmp_path / "runs")
    del sys.modules["our_pipelines"]


# -- what is wrong is said at once


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (
            {"type": "random_forest", "params": {"n_estimators": 0}},
            "expected a whole number of at least 1, got 0",
        ),
        ({"type": "random_forest", "params": {"max_features": "root"}}, "log2, sqrt"),
        ({"type": "random_forest", "params": {"randomness": 1}}, "unknown key"),
        ({"type": "svm", "params": {"kernel": "rbg"}}, "rbf"),
        ({"type": "hist_gradient_boosting", "params": {"early_stopping": True}}, "training.early_stopping"),
    ],
)
def test_options_are_checked_without_scikit_learn(model: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        config_of(model)


def test_options_that_only_scikit_learn_understands_are_checked_before_the_first_step() -> None:
    with pytest.raises(
        ModelError, match=r"sklearn.ensemble:RandomForestClassifier: The 'max_depth' parameter"
    ):
        learner_for(
            config_of({"type": "sklearn.ensemble:RandomForestClassifier", "params": {"max_depth": -5}})
        )
    with pytest.raises(ModelError, match=r"AdaBoostClassifier does not accept these options.*loss"):
        named_with("ada_boost", {"loss": "square"})
    named_with("ada_boost", {"loss": "square"}, "regression")
    with pytest.raises(ModelError, match=r"step 1 failed: ValueError.*newton-cg"):
        named_with("logistic_regression", {"solver": "newton-cg", "dual": True}).step(0, 1.0)


def named_with(name: str, params: dict[str, Any], task: str = "classification") -> SklearnLearner:
    return learner_for(config_of({"type": name, "params": params}), rows_for(name, task))


def test_a_model_of_another_task_says_what_to_use_instead() -> None:
    with pytest.raises(
        ModelError,
        match=r"logistic_regression does classification.*regression; use linear_regression or ridge",
    ):
        learner_for(config_of("logistic_regression"), (X, VALUES))
    with pytest.raises(ModelError, match=r"lars does regression.*use random_forest"):
        learner_for(config_of("lars"))
    with pytest.raises(ModelError, match=r"StandardScaler does not do classification"):
        learner_for(config_of("sgd"), model=StandardScaler())
    with pytest.raises(ModelError, match="SVR predicts one value, but the data have 2"):
        learner_for(config_of("svm"), (X, np.stack([VALUES, VALUES], axis=1)))
    with pytest.raises(ModelError, match="MultiTaskLasso needs several target values"):
        learner_for(config_of("multi_task_lasso"), (X, VALUES))
    train(
        learner_for(
            config_of("sgd"),
            (X, np.stack([VALUES, VALUES], axis=1)),
            model=MultiOutputRegressor(RandomForestRegressor(3)),
        )
    )


def test_data_that_a_model_does_not_take_are_refused() -> None:
    with pytest.raises(ModelError, match="accepts no negative values"):
        learner_for(config_of("multinomial_nb"))
    with pytest.raises(ModelError, match=r"data\.impute: keep"):
        learner_for(config_of("svm", data={"type": "iris", "impute": "keep"}))
    gaps = np.where(X > 1.5, np.nan, X).astype(np.float32)
    train(learner_for(config_of("random_forest"), (gaps, LABELS)))
    with pytest.raises(ModelError, match=r"(?s)step 1 failed.*set data\.impute"):
        learner_for(config_of("svm"), (gaps, LABELS)).step(0, 1.0)
    with pytest.raises(ModelError, match=r"model\.init_from: svm fits in one step"):
        learner_for(config_of({"type": "svm", "init_from": "last"}))


def test_categories_are_told_to_histogram_boosting_and_refused_elsewhere(
    caplog: pytest.LogCaptureFixture,
) -> None:
    codes = X.copy()
    codes[:, 1], codes[:, 2] = np.arange(ROWS) % 4, np.arange(ROWS)
    info = {"categories": (0, 4, 300, 0, 0)}
    learner = learner_for(config_of("hist_gradient_boosting"), (codes, LABELS), info=info)
    learner.step(0, 0.1)
    assert learner.model().native.is_categorical_.tolist() == [False, True, False, False, False]
    assert "more than 255 categories" in caplog.text
    for name in ("random_forest", "ridge"):
        with pytest.raises(ModelError, match=r"data\.encode: category"):
            learner_for(config_of(name), (codes, LABELS), info=info)


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_a_model_with_categories_goes_on_exactly_and_is_read(task: str, tmp_path: Path) -> None:
    features, targets = rows_for("hist_gradient_boosting", task)
    codes = np.column_stack([features[:, :1], np.arange(ROWS) % 4, features[:, 2:]]).astype(np.float32)
    config = config_of({"type": "hist_gradient_boosting", "params": OPTIONS["hist_gradient_boosting"]})

    def make() -> SklearnLearner:
        return learner_for(config, (codes, targets), info={"categories": (0, 4, 0, 0, 0)})

    whole, resumed = train(make()), make()
    resumed.restore(saved(train(make(), last=1), tmp_path / "cut"))
    assert tensor_records(train(resumed, first=1).state()) == tensor_records(whole.state())
    native = loaded(whole, saved(whole, tmp_path / "end", weights_only=True)).native
    np.testing.assert_array_equal(native.predict(codes), whole.model().native.predict(codes))


def test_every_model_that_takes_categories_is_tried_with_some() -> None:
    taking = [name for name, entry in table()["models"].items() if "categorical_features" in entry["params"]]
    assert set(taking) == {"hist_gradient_boosting"}


def test_what_a_model_of_ours_makes_of_itself_must_be_fit_to_be_stored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(storage, "TRUSTED_NAMES", ())
    monkeypatch.setattr(storage, "TRUSTED_MODULES", ())
    with pytest.raises(ModelError, match=r"not trusted.*sklearn\.tree\._tree\.Tree"):
        named("random_forest").step(0, 1.0)


def test_weights_of_classes_go_by_label() -> None:
    heavy = train(named_with("logistic_regression", {"class_weight": {"a": 1e6}}))
    assert heavy.model().native.class_weight == {0: 1e6}
    assert (outputs(heavy).argmax(axis=1) == 0).all()
    with pytest.raises(ModelError, match="no class d; the classes are a, b, c"):
        named_with("random_forest", {"class_weight": {"d": 2.0}})


def test_warnings_of_scikit_learn_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    learner = named_with("logistic_regression", {"max_iter": 1})
    learner.step(0, 1.0)
    learner.step(0, 1.0)
    assert [record.levelno for record in caplog.records if "ConvergenceWarning" in record.message] == [
        logging.WARNING
    ]


def test_the_threads_that_a_model_takes_no_more_are_no_matter_for_the_user(
    caplog: pytest.LogCaptureFixture,
) -> None:
    train(named("logistic_regression"))
    assert "n_jobs" not in caplog.text


def test_what_is_done_in_one_step_is_said(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    named("svm")
    named("random_forest")
    assert [record.message for record in caplog.records] == [
        "svm fits in a single step: it cannot be resumed midway, stopped early or pruned"
    ]


def test_a_failing_step_is_translated(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = named("random_forest")
    learner.step(0, 1.0)

    def fail(*args: Any) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(RandomForestClassifier, "fit", fail)
    with pytest.raises(TrainingError, match="step 2 failed: MemoryError: no room"):
        learner.step(1, 1.0)


def test_keys_of_training_without_effect_are_told_by_the_kind_of_steps() -> None:
    assert not SklearnFramework.training_keys("random_forest", {})
    assert SklearnFramework.training_keys("hist_gradient_boosting", {}) == ("scheduler",)
    assert set(SklearnFramework.training_keys("sgd", {})) == {
        "epochs",
        "max_steps",
        "batch_size",
        "scheduler",
    }
    assert set(SklearnFramework.training_keys("our.module:Model", {})) == {
        "epochs",
        "max_steps",
        "batch_size",
        "scheduler",
    }
    assert SklearnFramework.defaults("random_forest") == {"data.standardize": False, "data.impute": "keep"}
    assert SklearnFramework.defaults("naive_bayes") == {"training.epochs": 1}
    assert SklearnFramework.defaults("our.module:Model") == {}


# -- storage


def test_equal_objects_are_packed_to_equal_bytes_and_shared_arrays_stay_shared() -> None:
    array = np.arange(3.0)
    shared, apart = {"a": array, "b": array}, {"a": array, "b": array.copy()}
    packed = storage.pack(shared)
    again = storage.unpack(packed, storage.Trust())
    assert again["a"] is again["b"]
    assert {name: data.tobytes() for name, data in storage.pack(again).items()} == {
        n: d.tobytes() for n, d in packed.items()
    }
    other = storage.unpack(storage.pack(apart), storage.Trust())
    assert other["a"] is not other["b"]
    one, two = ({"x": {"b", "a", "c"}}, {"x": {"c", "b", "a"}})
    assert {n: d.tobytes() for n, d in storage.pack(one).items()} == {
        n: d.tobytes() for n, d in storage.pack(two).items()
    }


@pytest.mark.soak
def test_skops_trusts_what_it_always_does_and_is_imported_without_torch() -> None:
    code = """
        import sys
        from trainwright.frameworks.sklearn import storage
        storage.import_skops()
        assert "torch" not in sys.modules, "torch"
        from skops.io._trusted_types import SKLEARN_ESTIMATOR_TYPE_NAMES as trusted
        from sklearn.utils import all_estimators
        assert sorted(trusted) == sorted(f"{cls.__module__}.{name}" for name, cls in all_estimators())
    """
    if table()["scikit-learn"] != sklearn.__version__:
        pytest.skip(f"the table of models was made with scikit-learn {table()['scikit-learn']}")
    subprocess.run([sys.executable, "-W", "ignore", "-c", textwrap.dedent(code)], check=True)


def crafted(change: Callable[[dict[str, Any]], None]) -> dict[str, np.ndarray]:
    """A packed estimator whose structure someone has changed."""
    packed = storage.pack(LinearSVC().fit(X, LABELS))
    structure = json.loads(packed[storage.STRUCTURE].tobytes())
    change(structure["content"]["content"])
    return {**packed, storage.STRUCTURE: np.frombuffer(json.dumps(structure).encode(), dtype=np.uint8)}


@pytest.mark.parametrize(
    ("loader", "module", "name"),
    [
        ("FunctionNode", "posix", "system"),
        ("TypeNode", "subprocess", "Popen"),
        ("ObjectNode", "test_sklearn", "Guess"),
        ("ObjectNode", "sklearn.tree._tree", "nothing"),
        ("FunctionNode", "sklearn.utils", "shuffle"),
        ("FunctionNode", "sklearn.calibration", "clone"),
    ],
)
def test_nothing_is_made_that_is_not_trusted(loader: str, module: str, name: str) -> None:
    def change(attributes: dict[str, Any]) -> None:
        attributes["coef_"] = {"__loader__": loader, "__module__": module, "__class__": name, "content": None}

    with pytest.raises(ModelError, match=rf"not trusted.*{module}.{name}"):
        storage.unpack(crafted(change), storage.Trust())


class Trap:
    """A class of the user's package that no file may call."""

    called: ClassVar[list[Any]] = []

    def __init__(self, *args: Any, **options: Any) -> None:
        self.called.append((args, options))


def node(loader: str, thing: str, content: Any = None, **more: Any) -> dict[str, Any]:
    module, _, name = thing.rpartition(".")
    return {"__loader__": loader, "__module__": module, "__class__": name, "content": content, **more}


def text_of(value: Any) -> dict[str, Any]:
    return node("JsonNode", "builtins.str", json.dumps(value), is_json=True)


def list_of(*nodes: Any, **more: Any) -> dict[str, Any]:
    return node("ListNode", "builtins.list", list(nodes), **more)


TRAP = f"{__name__}.Trap"
ARGS = node("TupleNode", "builtins.tuple", [text_of("x")])
SCORER, PROCESS = "sklearn.metrics._scorer", "sklearn.gaussian_process._gpc"
GOOD_KEYS = list_of(node("TypeNode", "builtins.str"))
BAD_KEYS = list_of(node("TypeNode", TRAP))


def partial_of(func: Any) -> dict[str, Any]:
    empty = node("DictNode", "builtins.dict", {}, key_types=list_of())
    return node(
        "PartialNode", "functools.partial", {"func": func, "args": ARGS, "kwds": empty, "namespace": empty}
    )


@pytest.mark.parametrize(
    "evil",
    [
        node("ConstructorFromReduceNode", TRAP, ARGS),
        node("ConstructorFromReduceNode", f"{__name__}.Path", ARGS),  # which this module has only imported
        node("ConstructorFromReduceNode", f"{SCORER}.partial", ARGS),
        node("ConstructorFromReduceNode", f"{PROCESS}.itemgetter", ARGS),
        node("ConstructorFromReduceNode", "sklearn.svm._classes.SVC", ARGS),
        node("ObjectNode", f"{__name__}.Path"),
        node("ObjectNode", f"{__name__}.Trap.called"),
        node("ListNode", TRAP, [text_of("x")]),
        node("SetNode", TRAP, [text_of("x")]),
        node("TupleNode", TRAP, [text_of("x")]),
        node("DictNode", TRAP, {}, key_types=list_of()),
        node("DictNode", "builtins.dict", {"x": text_of(1)}, key_types=BAD_KEYS),
        node("DictNode", "builtins.dict", {"x": text_of(1)}, key_types=list_of(node("FunctionNode", TRAP))),
        node("NdArrayNode", TRAP, [], type="json", shape=ARGS),
        node("RandomStateNode", TRAP, ARGS),
        node("RandomGeneratorNode", TRAP, {}),
        node(
            "LossNode",
            TRAP,
            node("DictNode", "builtins.dict", {}, key_types=list_of()),
            __reduce__={"args": ARGS},
        ),
        node("MethodNode", TRAP, {"func": "__init__", "obj": node("ObjectNode", TRAP)}),
        node("OperatorFuncNode", "operator.methodcaller", attrs=ARGS),
        node("OperatorFuncNode", "operator.call", attrs=ARGS),
        node("TypeNode", TRAP),
        node("FunctionNode", TRAP),
        partial_of(node("TypeNode", TRAP)),
        partial_of(node("FunctionNode", "sklearn.utils.validation.check_array", __id__=7)),
        list_of(
            {**BAD_KEYS, "__id__": 7},
            node("DictNode", "builtins.dict", {"x": ARGS}, key_types={**GOOD_KEYS, "__id__": 7}),
        ),
        node("CachedNode", TRAP),
        node("SomeNode", TRAP),
    ],
    ids=lambda one: f"{one['__loader__']}-{one['__module__'].split('.')[-1]}.{one['__class__']}",
)
def test_no_file_calls_what_it_names(evil: dict[str, Any]) -> None:
    harmless = node("ObjectNode", TRAP)  # with which its name is one of those that skops is told to trust
    trust = storage.trust_for(Guess())
    assert isinstance(
        storage.unpack(crafted(lambda attributes: attributes.update(coef_=harmless)), trust).coef_, Trap
    )
    with pytest.raises(ModelError, match="not trusted"):
        storage.unpack(crafted(lambda attributes: attributes.update(coef_=list_of(harmless, evil))), trust)
    assert not Trap.called


def test_older_loaders_which_name_what_they_make_elsewhere_are_not_used() -> None:
    packed = storage.pack(LinearSVC().fit(X, LABELS))
    structure = {**json.loads(packed[storage.STRUCTURE].tobytes()), "protocol": 0}
    old = {**packed, storage.STRUCTURE: np.frombuffer(json.dumps(structure).encode(), dtype=np.uint8)}
    with pytest.raises(ModelError, match="protocol 0"):
        storage.unpack(old, storage.Trust())


def test_what_the_users_model_calls_is_called_with_its_own_arguments() -> None:
    trust = storage.trust_for(FunctionTransformer(itemgetter(0)))
    assert storage.unpack(storage.pack(itemgetter(0)), trust)("ab") == "a"
    with pytest.raises(ModelError, match="not trusted"):
        storage.unpack(storage.pack(itemgetter(1)), trust)


def test_what_the_users_own_model_is_made_of_is_trusted() -> None:
    trust = storage.trust_for(make_pipeline(FunctionTransformer(logarithm), Guess()))
    own = Guess().__class__.__module__
    assert trust.covers(own, "logarithm")
    assert trust.covers(own, "Guess")
    assert not trust.covers(own, "crafted"), "a function that the model does not hold"
    assert not trust.covers("posix", "system")
    with pytest.raises(ModelError, match="cannot be stored"):
        storage.trust_for(FunctionTransformer(lambda values: values))


def test_weights_that_are_none_or_another_models_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="this file holds no estimator weights"):
        storage.unpack({"w": np.zeros(3)}, storage.Trust())
    folder = saved(train(named("random_forest")), tmp_path / "forest")
    with pytest.raises(
        ModelError, match="weights of RandomForestClassifier, but model extra_trees is ExtraTreesClassifier"
    ):
        named("extra_trees").restore(folder)
    narrow = learner_for(config_of("random_forest"), (X[:, :3], LABELS))
    with pytest.raises(ModelError, match="for 5 features, but the data have 3"):
        narrow.restore(folder)
    for learner, said in ((named("extra_trees"), "but model extra_trees"), (narrow, "for 5 features")):
        with pytest.raises(ModelError, match=said):
            loaded(learner, folder)


# -- the rest of the contract


def test_importance_is_of_impurity_or_of_coefficients() -> None:
    forest, linear, neighbors = (
        train(named(name)) for name in ("random_forest", "logistic_regression", "knn")
    )
    assert {name: values.shape for name, values in forest.model().importance().items()} == {
        "impurity": (FEATURES,)
    }
    np.testing.assert_allclose(
        linear.model().importance()["coefficient"], np.abs(linear.model().native.coef_).mean(axis=0)
    )
    assert neighbors.model().importance() == {}


def test_a_forest_is_stopped_early_and_its_best_model_is_cut_out(tmp_path: Path) -> None:
    config = {
        "data": {"type": "diabetes"},
        "model": {
            "type": "gradient_boosting",
            "params": {"n_estimators": 400, "learning_rate": 0.5, "iterations_per_step": 5},
        },
        "training": {"early_stopping": {"metric": "val_loss", "patience": 3}, "threads": 1},
    }
    run = trainwright.train(config, runs_dir=tmp_path)
    assert run.result["best"]["step"] < run.result["steps"] < 80
    assert trainwright.load(run).outputs(np.zeros((1, 10), dtype=np.float32)).shape == (1,)
    assert list(journal_values(run)[0]) == list(range(1, run.result["steps"] + 1))


@pytest.fixture(autouse=True)
def _forget_no_log_level() -> Iterator[None]:
    """Levels that a test sets on our logger do not outlive it."""
    level = logging.getLogger("trainwright").level
    yield
    logging.getLogger("trainwright").setLevel(level)
