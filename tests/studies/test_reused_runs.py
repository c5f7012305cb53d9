"""Studies take the completed runs that are there, and say which."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import trainwright
from small_runs import flip
from study_configs import TOY, SignalInRun
from trainwright.callbacks.base import Callback, RunView
from trainwright.records.study import StudyRecord
from trainwright.studies.cross_validation import CrossValidation


class Trained(Callback):
    """Counts the runs that are trained."""

    def __init__(self) -> None:
        self.ids: list[str] = []

    def on_start(self, run: RunView) -> None:
        self.ids.append(run.run_id)


def validate(runs_dir: Path, overrides: Any = (), **how: Any) -> tuple[CrossValidation, list[str]]:
    """Return a cross-validation, and the runs that were trained for it."""
    trained = Trained()
    callbacks = [trained, *how.pop("callbacks", [])]
    study = trainwright.cross_validate(TOY, overrides, folds=3, runs_dir=runs_dir, callbacks=callbacks, **how)
    return study, trained.ids


def reused(path: Path) -> list[bool]:
    record = StudyRecord.load(path / StudyRecord.FILE)
    assert record is not None
    return [run.reused for run in record.runs]


def test_a_cross_validation_that_is_repeated_trains_nothing(tmp_path: Path) -> None:
    first, trained = validate(tmp_path)
    assert (len(trained), reused(first.path)) == (3, [False] * 3)
    lines: list[Mapping[str, Any]] = []
    second, trained = validate(tmp_path, watch=lines.append)
    assert (trained, reused(second.path)) == ([], [True] * 3)
    assert [line["reused"] for line in lines] == [True] * 3
    assert second.path != first.path
    assert [run.id for run in second.runs] == [run.id for run in first.runs]
    same = ("status", "metrics", "rows", "folds")
    assert {key: second.result[key] for key in same} == {key: first.result[key] for key in same}
    assert (second.path / "out_of_fold.csv").read_bytes() == (first.path / "out_of_fold.csv").read_bytes()


def test_a_study_is_silent_on_runs_that_it_does_not_find(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", "trainwright"):
        validate(tmp_path)
        assert "to reuse" not in caplog.text
        trainwright.train(TOY, runs_dir=tmp_path, reuse=True)
    assert "no completed run of this config to reuse in" in caplog.text


def test_unless_it_is_told_to(tmp_path: Path) -> None:
    validate(tmp_path)
    study, trained = validate(tmp_path, reuse=False)
    assert (len(trained), reused(study.path)) == (3, [False] * 3)


def test_what_is_damaged_is_trained_again(tmp_path: Path) -> None:
    first, _ = validate(tmp_path)
    flip(next((first.runs[1].path / "best").glob("*/weights.safetensors")))
    study, trained = validate(tmp_path)
    assert len(trained) == 1
    assert sorted(reused(study.path)) == [False, True, True]
    assert study.mean == first.mean


def test_a_study_that_was_stopped_goes_on_with_reused_runs(tmp_path: Path) -> None:
    whole, _ = validate(tmp_path / "whole")
    trainwright.cross_validate(TOY, folds=3, runs_dir=tmp_path, callbacks=[SignalInRun(2, 4)])
    cut, trained = validate(tmp_path, callbacks=[SignalInRun(0, 4)])
    assert (cut.status, len(trained)) == ("preempted", 1), "two folds are completed"
    resumed, _ = validate(tmp_path, resume=True)
    assert resumed.path == cut.path
    assert reused(resumed.path) == [True, True, False]
    assert resumed.mean == whole.mean


def test_a_benchmark_with_one_model_more_trains_that_model_only(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    trained = Trained()
    config = {**TOY, "training": {"threads": 1}}
    trainwright.benchmark(config, models=["decision_tree"], runs_dir=tmp_path, callbacks=[trained])
    both = trainwright.benchmark(
        config, models=["decision_tree", "gaussian_nb"], runs_dir=tmp_path, callbacks=[trained]
    )
    assert len(trained.ids) == 2
    assert reused(both.path) == [True, False]
    again = trainwright.benchmark(
        config, models=["gaussian_nb", "decision_tree"], runs_dir=tmp_path, callbacks=[trained], reuse=False
    )
    assert len(trained.ids) == 4
    assert {row["model"]: row["mean"] for row in again.rows} == {
        row["model"]: row["mean"] for row in both.rows
    }
