"""State of the user's own scikit-learn estimators: what a checkpoint holds, and what it cannot hold."""

import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import trainwright
from small_runs import SMALL, assert_same, crashed
from trainwright.runs.run import Run

ESTIMATORS = """
import random

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin


class Means(ClassifierMixin, BaseEstimator):
    "Moves a mean per class towards the rows of each minibatch; has state of one more kind."

    calls = 0

    def __init__(self, kind="none"):
        self.kind = kind

    def partial_fit(self, features, targets, classes=None):
        if not hasattr(self, "means_"):
            self.classes_, self.n_features_in_ = classes, features.shape[1]
            self.means_ = np.zeros((len(classes), features.shape[1]))
            if self.kind == "memory":
                self.first_ = self.means_[:1]
            if self.kind == "same array":
                self.first_ = self.means_
            if self.kind == "generator":
                self.random_ = random.Random(3)
        if self.kind == "class":
            Means.calls += 1
            self.means_ += 0.01 * Means.calls
        if self.kind == "generator":
            self.means_ += 0.01 * self.random_.random()
        if self.kind in ("memory", "same array"):
            self.first_ += 0.01
        for label in np.unique(targets):
            self.means_[label] += 0.1 * (features[targets == label].mean(0) - self.means_[label])
        return self

    def predict_proba(self, features):
        scores = np.exp(np.clip(features @ self.means_.T, -20, 20))
        return scores / scores.sum(1, keepdims=True)

    def predict(self, features):
        return self.classes_[self.predict_proba(features).argmax(1)]
"""


@pytest.fixture(scope="module", autouse=True)
def own_estimators(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A working directory with the module `own_means`."""
    folder = tmp_path_factory.mktemp("cwd")
    (folder / "own_means.py").write_text(textwrap.dedent(ESTIMATORS))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.syspath_prepend(folder)
        yield
    sys.modules.pop("own_means", None)


def own(kind: str) -> dict[str, Any]:
    return {"model": {"type": "own_means:Means", "params": {"kind": kind}}}


def trained(runs: Path, kind: str) -> Run:
    return trainwright.train(SMALL, own(kind), runs_dir=runs)


@pytest.mark.parametrize("kind", ["none", "same array", "generator"])
def test_state_that_a_checkpoint_holds_resumes_exactly(kind: str, tmp_path: Path) -> None:
    whole = trained(tmp_path / "whole", kind)
    assert_same(trainwright.resume(crashed(tmp_path / "cut", own(kind))), whole)
    assert whole.result["determinism"]["tier"] == "bitwise"


@pytest.mark.parametrize(
    ("kind", "name"), [("memory", "means_ (which shares memory with first_)"), ("class", "Means.calls")]
)
def test_state_that_no_checkpoint_holds_lowers_the_tier_and_is_named(
    kind: str, name: str, tmp_path: Path
) -> None:
    determinism = trained(tmp_path, kind).result["determinism"]
    assert determinism["tier"] == "statistical"
    assert determinism["reason"] == f"training changes {name} of the model, which no checkpoint holds"
