"""`runs compare` with a significance test on the same test rows."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import trainwright
from study_configs import TOY
from trainwright.errors import CheckpointError
from trainwright.evaluation.significance import same_rows
from trainwright.runs.catalog import Catalog
from trainwright.runs.run import Run
from trainwright.tasks.base import Scores
from trainwright.tasks.classification import ClassificationTask


@pytest.fixture(scope="module")
def runs_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def first(runs_dir: Path) -> Run:
    return trainwright.train(TOY, {"data.split.test": 0.4}, runs_dir=runs_dir)


def other(runs_dir: Path, **changes: Any) -> Run:
    return trainwright.train(TOY, {"data.split.test": 0.4, **changes}, runs_dir=runs_dir)


def test_models_on_the_same_rows_are_tested(first: Run, runs_dir: Path) -> None:
    """Though one of them sees the features in another form."""
    second = other(runs_dir, **{"data.standardize": False, "training.learning_rate": 0.01})
    assert (
        first.manifest["data"]["splits"]["test"]["sha256"]
        != second.manifest["data"]["splits"]["test"]["sha256"]
    )
    found = trainwright.compare(first, second)
    assert found.untested is None
    accuracy, f1 = found.tests
    assert (accuracy.metric, accuracy.test, accuracy.pairs) == ("accuracy", "exact McNemar", 60)
    assert accuracy.effect == pytest.approx(second.metrics["test_accuracy"] - first.metrics["test_accuracy"])
    assert (f1.metric, f1.test) == ("f1", "paired bootstrap")
    assert accuracy == same_rows("accuracy", scores(first), scores(second))
    assert found.to_json()["tests"][0]["p_value"] == accuracy.p_value


def scores(run: Run) -> Scores:
    """By way of what is public: the features of the test rows, from the fitted preparation."""
    from sklearn.datasets import load_iris

    data = load_iris(as_frame=True)
    from trainwright.runs.wiring import load_data

    rows = load_data(trainwright.check(run.path / "config.yaml").config).rows["test"]
    outputs = trainwright.load(run).outputs(data.data.iloc[rows])
    return Scores(ClassificationTask, outputs, data.target.to_numpy()[rows])


def test_a_comparison_without_a_test_says_why(first: Run, runs_dir: Path) -> None:
    def untested(**changes: Any) -> str | None:
        return trainwright.compare(first, other(runs_dir, **changes)).untested

    assert trainwright.compare(first, first).untested == "the models are the same"
    why = untested(**{"data.split.seed": 1})
    assert why is not None
    assert why.startswith(
        "their test rows are not the same (60 and 60); `runs compare --data FILE` tests both"
    )
    assert untested(**{"data.type": "breast_cancer"}) == "their classes differ"


def test_runs_without_a_test_split_are_not_tested(first: Run, runs_dir: Path) -> None:
    none = other(runs_dir, **{"data.split.test": 0.0})
    assert trainwright.compare(first, none).untested == "one of them has no test split"


def test_missing_weights_or_a_missing_framework_are_named(
    first: Run, runs_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = other(runs_dir, **{"training.learning_rate": 0.01})
    folder = tmp_path / second.id
    shutil.copytree(second.path, folder)
    with monkeypatch.context() as patch:
        patch.setattr(Catalog, "framework_of", lambda *_: None)
        found = trainwright.compare(first, folder)
    assert not found.tests
    assert "model toy: no installed framework has it" in str(found.untested)
    file = folder / "config.yaml"
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace("type: toy", "type: gone"), encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"config\.yaml is damaged"):
        trainwright.compare(first, folder)
    file.write_text(text, encoding="utf-8")
    for name in ("best", "checkpoints"):
        shutil.rmtree(folder / name)
    found = trainwright.compare(first, folder)
    assert not found.tests
    assert str(found.untested).startswith(("InputError: ", "CheckpointError: "))
    assert {number.name for number in found.numbers} >= {"test_accuracy"}  # the rest is told all the same


def test_data_that_were_given_as_objects_are_not_compared(first: Run, runs_dir: Path) -> None:
    pair = (np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32), np.arange(60) % 3)
    objects = trainwright.train(TOY, runs_dir=runs_dir, data=pair)
    again = trainwright.train(TOY, {"experiment.seed": 4}, runs_dir=runs_dir, data=pair)
    assert "was trained with data objects passed from Python" in str(
        trainwright.compare(objects, again).untested
    )


def test_runs_are_compared_from_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Relative paths in the configs are relative to where the runs were started."""
    start = tmp_path / "start"
    start.mkdir()
    monkeypatch.chdir(start)
    draw = np.random.default_rng(0)
    frame = pd.DataFrame(draw.normal(size=(80, 2)), columns=["a", "b"])
    frame.assign(y=(frame["a"] > 0).map({True: "yes", False: "no"})).to_csv("rows.csv", index=False)
    config = {**TOY, "data": {"path": "rows.csv", "target": "y"}}
    runs = [trainwright.train(config, {"experiment.seed": seed}, runs_dir="runs") for seed in (1, 2)]
    monkeypatch.chdir(tmp_path)
    assert [test.metric for test in trainwright.compare(*runs).tests] == ["accuracy", "f1"]
