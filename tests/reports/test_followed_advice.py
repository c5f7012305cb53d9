"""Constructed runs follow their own advice, and get better in what it names."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest

import trainwright
from trainwright.errors import TrainingError
from trainwright.reports.diagnosis import Finding, diagnose
from trainwright.reports.diagnosis.measures import measured
from trainwright.reports.rundir import RunFiles, read_run

Config = dict[str, Any]


def classes(rows: int = 600, rare: float = 0.5, noise: float = 1.0, columns: int = 6) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    features = rng.normal(size=(rows, columns))
    margin = 2 * features[:, 0] + 1.5 * features[:, 1] ** 2 + noise * rng.logistic(size=rows)
    positive = margin > np.quantile(margin, 1 - rare)
    frame = pd.DataFrame(features, columns=[f"x{i}" for i in range(columns)])
    return frame.assign(y=np.where(positive, "yes", "no"))


def values(rows: int = 400, noise: float = 0.5, columns: int = 6) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    features = rng.normal(size=(rows, columns))
    target = 3 * features[:, 0] + np.sin(3 * features[:, 1]) + noise * rng.normal(size=rows)
    return pd.DataFrame(features, columns=[f"x{i}" for i in range(columns)]).assign(y=target)


def leaking() -> pd.DataFrame:
    frame = classes(700)
    noise = np.random.default_rng(3).normal(size=len(frame))
    return frame.assign(paid=(frame.y == "yes") + 0.05 * noise)


def drifting() -> pd.DataFrame:
    frame, rows = classes(1500), np.arange(1500)
    noise = np.random.default_rng(3).normal(size=len(rows))
    return frame.assign(day=rows, firmware=rows / 300 + noise)


class Faulty(NamedTuple):
    """A run with a fault, and what its diagnosis finds and proposes."""

    data: pd.DataFrame
    model: Config
    kind: str
    changes: Config
    config: Config = {}  # noqa: RUF012 - of a NamedTuple


def mlp(**params: Any) -> Config:
    return {"type": "mlp", "hidden": [16], **params}


def training(**settings: Any) -> Config:
    return {"training": settings}


FAULTY = {
    "boosted trees that diverge": lambda: Faulty(
        values(),
        {"type": "lightgbm", "learning_rate": 3.0, "n_estimators": 30},
        "diverged",
        {"model.params.learning_rate": 0.1},
    ),
    "trees that end at infinity": lambda: Faulty(
        values(),
        {"type": "xgboost", "learning_rate": 3.0, "n_estimators": 80},
        "diverged",
        {"model.params.learning_rate": 0.3},
    ),
    "a network that diverges": lambda: Faulty(
        values(),
        mlp(),
        "diverged",
        {"training.learning_rate": 0.01},
        training(optimizer="sgd", learning_rate=50.0, epochs=8),
    ),
    "a network that does not settle": lambda: Faulty(
        values(),
        mlp(),
        "learning rate",
        {"training.learning_rate": 0.001},
        training(learning_rate=3.0, epochs=8),
    ),
    "a network that stands still": lambda: Faulty(
        classes(),
        mlp(),
        "flat loss",
        {"training.learning_rate": 0.001},
        training(learning_rate=1e-6, epochs=8),
    ),
    "trees that learn slowly": lambda: Faulty(
        classes(),
        {"type": "catboost", "learning_rate": 1e-4, "n_estimators": 30},
        "learning rate",
        {"model.params.learning_rate": 0.1},
    ),
    "a rare class, of a network": lambda: Faulty(
        classes(1000, rare=0.15, noise=2.0),
        mlp(),
        "one class",
        {"training.class_weights": "balanced"},
        training(epochs=10, learning_rate=1e-3),
    ),
    "a rare class, of boosted trees": lambda: Faulty(
        classes(1200, rare=0.1, noise=2.0),
        {"type": "xgboost", "n_estimators": 20},
        "missed class",
        {"training.class_weights": "balanced"},
    ),
    "a rare class, of a forest": lambda: Faulty(
        classes(1500, rare=0.1, noise=2.0),
        {"type": "random_forest", "n_estimators": 30},
        "missed class",
        {"training.class_weights": "balanced", "model.params.min_samples_leaf": 10},
    ),
    "an average that lags": lambda: Faulty(
        classes(),
        mlp(),
        "lagging average",
        {"training.ema.warmup": True},
        training(epochs=10, ema=0.9999),
    ),
    "too few rounds": lambda: Faulty(
        values(), {"type": "lightgbm", "n_estimators": 3}, "unfinished", {"model.params.n_estimators": 9}
    ),
    "a penalty that leaves nothing": lambda: Faulty(
        values(), {"type": "ridge", "alpha": 1e6}, "underfitting", {"model.params.alpha": 1.0}
    ),
    "a network that decays": lambda: Faulty(
        values(),
        mlp(),
        "underfitting",
        {"training.weight_decay": 0.0},
        training(epochs=10, weight_decay=100.0),
    ),
    "a network that overfits": lambda: Faulty(
        classes(300, noise=4.0, columns=20),
        mlp(hidden=[256, 256]),
        "overfitting",
        {"training.early_stopping": {"metric": "val_loss", "patience": 3}},
        training(epochs=40),
    ),
    "a tree that knows its rows by heart": lambda: Faulty(
        classes(500, noise=4.0, columns=20),
        {"type": "decision_tree"},
        "overfitting",
        {"model.params.max_depth": 4},
        {"data": {"split": {"test": 0.25, "val": 0.25}}},
    ),
    "a column that gives the target away": lambda: Faulty(
        leaking(), {"type": "decision_tree"}, "leakage", {"data.exclude": ["paid"]}
    ),
    "newer rows that differ": lambda: Faulty(
        drifting(),
        {"type": "logistic_regression"},
        "shift",
        {"data.exclude": ["firmware"]},
        {"data": {"split": {"time": "day"}}},
    ),
    "too few rows that judge": lambda: Faulty(
        classes(150), {"type": "logistic_regression"}, "too few rows", {"data.split.test": 0.3}
    ),
}
SLOW = {
    "a network of Keras that diverges": lambda: Faulty(
        values(),
        mlp(framework="keras"),
        "diverged",
        {"training.learning_rate": 0.01},
        training(optimizer="sgd", learning_rate=50.0, epochs=5),
    ),
    "a network of Keras that decays": lambda: Faulty(
        values(600),
        mlp(framework="keras"),
        "underfitting",
        {"training.weight_decay": 0.0},
        training(epochs=10, weight_decay=100.0),
    ),
}


def trained(faulty: Faulty, folder: Path, **changes: Any) -> RunFiles:
    """The records of a run, also of one that failed."""
    config = {
        "experiment": {"name": "faulty", "seed": 1},
        "model": faulty.model,
        "data": {"target": "y", **faulty.config.get("data", {})},
        "training": {"threads": 1, **faulty.config.get("training", {})},
    }
    try:
        trainwright.train(config, changes, data=faulty.data, runs_dir=folder)
    except TrainingError:
        assert not changes
    (path,) = folder.glob("faulty/*")
    return read_run(path)


def followed(faulty: Faulty, folder: Path) -> tuple[Finding, float]:
    """What is found, and what its measure is in a run that follows the advice."""
    finding = next(one for one in diagnose(trained(faulty, folder / "before")) if one.kind == faulty.kind)
    assert finding.changes == faulty.changes
    assert finding.expected is not None
    after = measured(trained(faulty, folder / "after", **finding.changes), finding.expected.measure)
    assert after is not None
    return finding, after


@pytest.mark.parametrize("name", FAULTY)
def test_a_run_that_follows_its_advice_gets_better(name: str, tmp_path: Path) -> None:
    finding, after = followed(FAULTY[name](), tmp_path)
    assert finding.expected is not None
    before = finding.expected.value
    assert after > before if finding.expected.better == "higher" else after < before


@pytest.mark.services
@pytest.mark.parametrize("name", SLOW)
def test_a_slow_run_that_follows_its_advice_gets_better(name: str, tmp_path: Path) -> None:
    finding, after = followed(SLOW[name](), tmp_path)
    assert finding.expected is not None
    assert after < finding.expected.value


def test_an_early_stop_leaves_the_same_best_model(tmp_path: Path) -> None:
    faulty = FAULTY["a network that overfits"]()
    before = trained(faulty, tmp_path / "before")
    after = trained(faulty, tmp_path / "after", **faulty.changes)
    assert before.best is not None
    assert after.best is not None
    assert before.best.digest == after.best.digest
    assert before.metrics == after.metrics
