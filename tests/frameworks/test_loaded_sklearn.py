"""Models of scikit-learn that are loaded: used from many threads, in a process that stays as it was."""

import random
import warnings
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import numpy as np
import pytest
import threadpoolctl
from joblib import parallel_config
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.ensemble import BaggingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.multioutput import MultiOutputClassifier
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import KBinsDiscretizer, StandardScaler
from sklearn.svm import SVC
from sklearn.tree import DecisionTreeClassifier
from test_sklearn import (
    LABELS,
    OPTIONS,
    VALUES,
    config_of,
    learner_for,
    loaded,
    named,
    predicted,
    rows_for,
    saved,
    train,
)
from test_sklearn import X as ROWS

from trainwright.datasets.samples.arrays import Arrays
from trainwright.frameworks.base import Model
from trainwright.frameworks.sklearn import SklearnFramework
from trainwright.frameworks.sklearn.learner import SklearnLearner
from trainwright.frameworks.sklearn.mutable import MutableParts, changes_settings
from trainwright.frameworks.sklearn.process import SETTINGS_LOCK
from trainwright.frameworks.sklearn.storage import import_skops

THREADS, CALLS = 8, 10
CONFIG = config_of("sgd")
MULTILABEL = np.stack([LABELS == 0, VALUES > 0], axis=1).astype(np.float32)


class Drawing(ClassifierMixin, BaseEstimator):
    """Draws at each prediction from a generator that it keeps, and notes what it has predicted."""

    def fit(self, features: Any, targets: Any) -> "Drawing":
        self.classes_, self.n_features_in_ = np.unique(targets), features.shape[1]
        self.random_ = np.random.RandomState(5)
        self.calls_ = 0
        return self

    def predict_proba(self, features: Any) -> Any:
        self.calls_ += 1
        drawn = np.concatenate([self.random_.rand(1, len(self.classes_)) for _ in features])
        return drawn / drawn.sum(axis=1, keepdims=True)


def built_in(name: str) -> SklearnLearner:
    return named(name, threads=2)


def own(model: Any) -> SklearnLearner:
    return learner_for(CONFIG, model=model, threads=2)


def multilabel(name: str, params: Mapping[str, Any], threads: int) -> SklearnLearner:
    described = {"task": "multilabel", "outputs": 2, "classes": None}
    config = config_of({"type": name, "params": params})
    return learner_for(config, (ROWS, MULTILABEL), info=described, threads=threads)


MODELS = {
    "forest": lambda: built_in("random_forest"),
    "forest of labels": lambda: multilabel("random_forest", OPTIONS["random_forest"], threads=2),
    "histogram boosting": lambda: built_in("hist_gradient_boosting"),
    "boosting": lambda: built_in("gradient_boosting"),
    "bagging": lambda: built_in("bagging"),
    "perceptron": lambda: built_in("sklearn_mlp"),
    "neighbors": lambda: built_in("knn"),
    "pipeline": lambda: own(make_pipeline(StandardScaler(), SVC())),
    "pipeline with bins": lambda: own(make_pipeline(KBinsDiscretizer(5), LogisticRegression())),
    "forest inside": lambda: own(make_pipeline(StandardScaler(), RandomForestClassifier(9))),
    "neighbors inside": lambda: own(make_pipeline(StandardScaler(), KNeighborsClassifier())),
    "one of the user's": lambda: own(Drawing()),
    "the user's inside": lambda: own(make_pipeline(StandardScaler(), Drawing())),
}


def model_of(learner: SklearnLearner, folder: Path) -> Model:
    return loaded(learner, saved(train(learner), folder / "model", weights_only=True))


def in_threads(model: Model, split: Arrays) -> list[np.ndarray]:
    """The outputs of many calls from threads that begin at the same time."""
    barrier = Barrier(THREADS)

    def call(_: int) -> list[np.ndarray]:
        barrier.wait()
        return [predicted(model, split) for _ in range(CALLS)]

    with ThreadPoolExecutor(THREADS) as pool:
        return [outputs for thread in pool.map(call, range(THREADS)) for outputs in thread]


@pytest.mark.parametrize("kind", MODELS)
def test_many_threads_have_the_outputs_of_one(kind: str, tmp_path: Path) -> None:
    learner = MODELS[kind]()
    model = model_of(learner, tmp_path)
    split = Arrays({"features": np.repeat(ROWS, 7, axis=0), "target": np.repeat(LABELS, 7)})
    if kind == "forest of labels":
        split = Arrays({"features": ROWS, "target": MULTILABEL})
    alone = predicted(model, split)
    for outputs in in_threads(model, split):
        np.testing.assert_array_equal(outputs, alone)


@pytest.mark.parametrize("name", ["random_forest", "hist_gradient_boosting", "sklearn_mlp", "knn"])
def test_its_outputs_are_those_of_the_library_on_a_file_of_the_learners_estimator(
    name: str, tmp_path: Path
) -> None:
    learner = built_in(name)
    model = model_of(learner, tmp_path)
    file = tmp_path / "alone.skops"
    skops = import_skops()
    skops.dump(learner.model().native, file)
    alone = skops.load(file, trusted=skops.get_untrusted_types(file=file))
    expected = alone.predict_proba(rows_for(name, "classification")[0])
    split = Arrays({"features": rows_for(name, "classification")[0], "target": LABELS})
    np.testing.assert_array_equal(predicted(model, split), expected)
    assert model.native.get_params() == alone.get_params()


def state_of_the_process() -> dict[str, Any]:
    return {
        "threads": [(pool["filepath"], pool["num_threads"]) for pool in threadpoolctl.threadpool_info()],
        "filters": list(warnings.filters),
        "random": random.getstate(),
        "numpy": repr(np.random.get_state()),
    }


@pytest.mark.parametrize("kind", MODELS)
def test_a_process_with_many_threads_is_left_as_it_was(kind: str, tmp_path: Path) -> None:
    learner = MODELS[kind]()
    folder = saved(train(learner), tmp_path / "model", weights_only=True)
    targets = MULTILABEL if "labels" in kind else LABELS
    with threadpoolctl.threadpool_limits(3):
        before = state_of_the_process()
        model = loaded(learner, folder)
        assert state_of_the_process() == before
        in_threads(model, Arrays({"features": ROWS, "target": targets}))
        assert state_of_the_process() == before


def test_predictions_that_change_settings_wait_for_steps_and_others_do_not(tmp_path: Path) -> None:
    """scikit-learn sets threads for neighbors: a step beside it would compute with others than its own."""
    split = Arrays({"features": ROWS, "target": LABELS})
    waiting, free = (
        model_of(built_in(name), tmp_path / name)
        for name in ("knn", "random_forest")
        if not (tmp_path / name).mkdir()
    )
    with ThreadPoolExecutor(2) as pool:
        with SETTINGS_LOCK:
            pool.submit(predicted, free, split).result(timeout=60)
            late = pool.submit(predicted, waiting, split)
            assert not late.done()
        late.result(timeout=60)


def test_only_what_may_change_is_copied() -> None:
    fitted = make_pipeline(StandardScaler(), LogisticRegression()).fit(ROWS, LABELS)
    assert MutableParts(fitted).copied(fitted) is fitted
    mixed = make_pipeline(StandardScaler(), Drawing()).fit(ROWS, LABELS)
    copied = MutableParts(mixed).copied(mixed)
    assert copied[0] is mixed[0]
    assert copied[1] is not mixed[1]
    assert copied[1].random_ is not mixed[1].random_
    bins = make_pipeline(KBinsDiscretizer(3), SVC()).fit(ROWS, LABELS)
    copied = MutableParts(bins).copied(bins)
    assert copied[0] is not bins[0]
    assert copied[1] is bins[1]


def test_estimators_that_change_settings_are_found_inside_others() -> None:
    neighbors = KNeighborsClassifier()
    for estimator in (
        neighbors,
        make_pipeline(StandardScaler(), neighbors),
        MultiOutputClassifier(neighbors),
    ):
        assert changes_settings(estimator.fit(ROWS, MULTILABEL))
    assert not changes_settings(make_pipeline(StandardScaler(), SVC()).fit(ROWS, LABELS))


def wide() -> tuple[np.ndarray, np.ndarray]:
    """Rows so wide that the last bits of a perceptron's sums depend on the number of threads of BLAS."""
    features = np.random.default_rng(1).normal(size=(1000, 90)).astype(np.float32).T.copy()
    return features, features[:, 0].copy()


def test_pinned_like_the_training_it_has_the_bits_of_the_learner(tmp_path: Path) -> None:
    rows = wide()
    split = Arrays({"features": np.tile(rows[0], (9, 1)), "target": np.tile(rows[1], 9)})
    config = config_of(
        {"type": "sklearn_mlp", "params": {"hidden_layer_sizes": [16]}}, training={"max_steps": 2}
    )
    of_learner, pinned, free = [], [], []
    with threadpoolctl.threadpool_limits(None):  # which sets the numbers again at its end
        folder = saved(train(learner_for(config, rows)), tmp_path / "model")
        for threads in (1, 2):
            learner = learner_for(config, rows, threads=threads)
            learner.restore(folder)
            of_learner.append(predicted(learner.model(), split))
            free.append(predicted(loaded(learner, folder), split))
            SklearnFramework.pin(config, threads)
            pinned.append(predicted(loaded(learner, folder), split))
    assert not np.array_equal(*of_learner), "the number of threads makes no difference here"
    np.testing.assert_array_equal(pinned, of_learner)
    np.testing.assert_allclose(free, of_learner, rtol=1e-5, atol=1e-5)


def losses(model: Model, split: Arrays) -> list[float]:
    """The losses, which show differences in float64 that outputs in float32 hide."""
    return [part.loss for part in model.predict(split)]


def test_the_threads_of_the_callers_joblib_are_not_used(tmp_path: Path) -> None:
    """With several, `BaggingClassifier` adds the outputs of its estimators in another order."""
    votes = make_pipeline(StandardScaler(), BaggingClassifier(DecisionTreeClassifier(max_depth=2), 40))
    model = model_of(own(votes), tmp_path)
    split = Arrays({"features": ROWS, "target": LABELS})
    alone = losses(model, split)
    with parallel_config(backend="threading", n_jobs=7):
        assert losses(model, split) == alone


def test_the_trees_of_a_forest_of_labels_are_added_in_their_order(tmp_path: Path) -> None:
    """With several jobs, scikit-learn adds them in the order in which its threads finish."""
    learner = multilabel("random_forest", {"n_estimators": 60, "max_depth": 2}, threads=8)
    model, split = model_of(learner, tmp_path), Arrays({"features": ROWS, "target": MULTILABEL})
    expected = losses(learner.model(), split)
    assert all(losses(model, split) == losses(learner.model(), split) == expected for _ in range(10))
