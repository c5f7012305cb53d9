"""Runs that began under an older version of a part finish under it: here `f1`, once a macro average."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import f1_score

import trainwright
from small_runs import SMALL, assert_same, crashed, whole_and_resumed
from trainwright.runs.prediction.predictor import Predictor
from trainwright.runs.run import Run
from trainwright.semantics import PARTS, computing_by

NEWEST = PARTS["metrics"].version
OVERRIDES: dict[str, Any] = {
    "data.type": "breast_cancer",
    "evaluation.metrics": ["f1", "f1_macro"],
    "checkpoint.metric": "val_f1",
}


def began_under_1(runs: Path, *, at: int = 13) -> Run:
    """A run that an older version began, and that died."""
    with computing_by({"metrics": 1}):
        return crashed(runs, OVERRIDES, at=at)


def by_sklearn(run: Run, average: str) -> float:
    """The F1 of the run's model on its test rows."""
    predictor = Predictor(run._dir, pinned=True)
    parts = list(predictor.model.predict(predictor.load_data().splits["test"]))
    guess = np.concatenate([part.outputs for part in parts]).argmax(axis=1)
    return float(f1_score(np.concatenate([part.targets for part in parts]), guess, average=average))


def test_a_new_run_has_the_f1_of_the_positive_class(tmp_path: Path) -> None:
    run = trainwright.train(SMALL, OVERRIDES, runs_dir=tmp_path)
    assert run.manifest["semantics"]["metrics"] == NEWEST
    assert run.metrics["test_f1"] == pytest.approx(by_sklearn(run, "binary"))
    assert run.metrics["test_f1_macro"] == pytest.approx(by_sklearn(run, "macro"))
    assert run.metrics["test_f1"] != run.metrics["test_f1_macro"]
    assert (run.path / "evaluation" / "test.json").read_text().count('"positive": 1,') == 1
    assert "of class 1<" in trainwright.report(run).read_text(encoding="utf-8")


def test_a_resumed_run_its_evaluation_and_its_repetition_keep_the_older_meaning(tmp_path: Path) -> None:
    run = trainwright.resume(began_under_1(tmp_path))
    assert run.manifest["semantics"]["metrics"] == 1
    assert run.manifest["changes"] == []
    assert run.metrics["test_f1"] == run.metrics["test_f1_macro"] == pytest.approx(by_sklearn(run, "macro"))
    assert trainwright.evaluate(run)["test_f1"] == run.metrics["test_f1"]
    assert trainwright.reproduce(run).verdict == "identical"
    assert "of class 1<" not in trainwright.report(run).read_text(encoding="utf-8")


def test_a_run_that_goes_on_and_a_fork_keep_the_older_meaning(tmp_path: Path) -> None:
    run = trainwright.resume(began_under_1(tmp_path))
    for child in (
        trainwright.resume(run, {"training.max_steps": 34}),
        trainwright.fork(run, {"training.learning_rate": 0.02}, step=12),
    ):
        assert child.manifest["semantics"]["metrics"] == 1
        assert child.metrics["test_f1"] == child.metrics["test_f1_macro"]


def test_a_run_without_a_record_of_the_part_had_version_1(tmp_path: Path) -> None:
    run = began_under_1(tmp_path)
    manifest = run._dir.require_manifest()
    others = {name: number for name, number in manifest.versions.items() if name != "metrics"}
    run._dir.write(manifest.FILE, manifest.model_copy(update={"semantics": others}))
    resumed = trainwright.resume(run)
    assert resumed.metrics["test_f1"] == resumed.metrics["test_f1_macro"]


def test_resumed_bits_under_the_older_meaning(tmp_path: Path) -> None:
    with computing_by({"metrics": 1}):
        whole, resumed = whole_and_resumed(tmp_path, OVERRIDES)
    assert_same(resumed, whole)


def test_data_given_as_objects_are_no_exception(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(160, 4)).astype(np.float32), rng.integers(0, 2, 160)
    overrides = {**OVERRIDES, "data.type": None}
    with computing_by({"metrics": 1}):
        run = crashed(tmp_path, overrides, data=(X, y))
    resumed = trainwright.train(SMALL, overrides, runs_dir=tmp_path, data=(X, y), resume=True)
    assert resumed.id == run.id
    assert resumed.metrics["test_f1"] == resumed.metrics["test_f1_macro"]
    assert trainwright.evaluate(resumed, data=(X, y)) == pytest.approx(
        {name: value for name, value in resumed.metrics.items() if name.startswith("test_")}
    )


def test_a_study_goes_on_as_it_began(tmp_path: Path) -> None:
    with computing_by({"metrics": 1}):
        begun = trainwright.cross_validate(SMALL, OVERRIDES, folds=2, runs_dir=tmp_path)
    (begun.path / "result.json").unlink()
    record = begun._study.record
    assert record.semantics["metrics"] == 1
    begun._study.update(status="failed", runs=record.runs[:1])
    study = trainwright.cross_validate(SMALL, OVERRIDES, folds=2, runs_dir=tmp_path, resume=True, reuse=False)
    assert study.id == begun.id
    assert study.mean == pytest.approx(begun.mean)
    assert {run.manifest["semantics"]["metrics"] for run in study.runs} == {1}
