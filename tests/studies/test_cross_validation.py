"""Cross-validation: folds are ordinary runs, and a study survives what a run survives."""

import logging
import math
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import trainwright
from small_runs import Crash, CrashAt
from study_configs import TOY, SignalInRun, full_disk, signal_after
from trainwright.errors import (
    ChangedInputsError,
    ConfigError,
    DataError,
    InputError,
    RunLockedError,
    TrainingError,
)
from trainwright.evaluation.metrics import bounds_of
from trainwright.plugins import task_for
from trainwright.records.listing import all_runs
from trainwright.records.run_dir import RunDir
from trainwright.studies.cross_validation import CrossValidation, spread
from trainwright.types import DataInfo, features_spec


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> CrossValidation:
    return trainwright.cross_validate(TOY, folds=3, runs_dir=tmp_path_factory.mktemp("whole"))


def digests(study: CrossValidation) -> list[Any]:
    return [fold["digest"] for fold in study.result["folds"]]


def assert_same(study: CrossValidation, whole: CrossValidation) -> None:
    """That a study came to the bits of the uninterrupted one."""
    assert study.status == "completed"
    assert digests(study) == digests(whole)
    assert (study.mean, study.std, study.interval) == (whole.mean, whole.std, whole.interval)
    assert (study.path / "out_of_fold.csv").read_bytes() == (whole.path / "out_of_fold.csv").read_bytes()


def test_folds_are_ordinary_runs(whole: CrossValidation) -> None:
    assert [run.status for run in whole.runs] == ["completed"] * 3
    for fold, run in enumerate(whole.runs):
        assert run.manifest["parent"] == {
            "run_id": whole.id,
            "relation": "cv",
            "decisions": [],
            "untested": False,
            "fold": fold,
        }
        assert run.path.parent == whole.path.parent
        splits = run.manifest["data"]["splits"]
        assert {name: split["rows"] for name, split in splits.items()} == {"train": 90, "val": 10, "test": 50}
        assert whole.folds[fold] == {
            name: value for name, value in run.metrics.items() if name.startswith("test_")
        }
    listed = trainwright.list_runs(whole.path.parent.parent)
    assert {run.id for run in listed} == {run.id for run in whole.runs}  # the study itself is no run
    again = trainwright.reproduce(whole.runs[1], runs_dir=whole.path.parent.parent)
    assert again.verdict == "identical"


def test_folds_that_the_time_limit_stops_count(tmp_path: Path) -> None:
    endless = {"training.epochs": 1_000_000, "training.max_minutes": 1e-6}
    study = trainwright.cross_validate(TOY, endless, folds=3, runs_dir=tmp_path)
    assert [run.status for run in study.runs] == ["stopped"] * 3
    assert study.status == "completed"
    assert len(study.folds) == 3


def test_mean_and_interval_are_those_of_the_folds(whole: CrossValidation) -> None:
    values = [fold["test_accuracy"] for fold in whole.folds]
    assert whole.mean["test_accuracy"] == pytest.approx(np.mean(values))
    assert whole.std["test_accuracy"] == pytest.approx(np.std(values, ddof=1))
    low, high = whole.interval["test_accuracy"]
    error = np.sqrt((1 / 3 + 50 / 90) * np.var(values, ddof=1))
    assert (high - low) / 2 == pytest.approx(
        4.302652729749464 * error
    )  # the 97.5% quantile of t with 2 degrees
    assert set(whole.mean) == {"test_loss", "test_accuracy", "test_f1"}


def test_intervals_end_at_the_bounds_of_the_metric() -> None:
    classes = task_for(DataInfo("classification", features_spec((1,)), 2))
    values = task_for(DataInfo("regression", features_spec((1,)), 2, target_names=("price", "area")))
    bounds = {
        name: bounds_of(name, classes) for name in ("test_accuracy", "test_mcc", "test_loss", "test_own")
    }
    assert bounds == {
        "test_accuracy": (0, 1),
        "test_mcc": (-1, 1),
        "test_loss": (-math.inf, math.inf),  # of a framework, or a user's own
        "test_own": (-math.inf, math.inf),
    }
    assert bounds_of("test_rmse_price", values) == bounds_of("rmse", values) == (0, math.inf)
    few = spread([0.9, 1.0, 1.0], 0.5, bounds["test_accuracy"])
    assert few.high == 1.0
    assert few.low == spread([0.9, 1.0, 1.0], 0.5).low < spread([0.9, 1.0, 1.0], 0.5).high - 0.2
    assert spread([0.9, 1.0, 1.0], 0.5).high > 1


def test_each_row_has_one_prediction_out_of_its_fold(whole: CrossValidation) -> None:
    frame = whole.out_of_fold
    assert frame.columns.tolist() == [
        "row",
        "fold",
        "target",
        "prediction",
        "probability_0",
        "probability_1",
        "probability_2",
    ]
    assert frame["row"].tolist() == list(range(150))
    right = frame["prediction"] == frame["target"]
    assert right.groupby(frame["fold"]).mean().tolist() == pytest.approx(
        [fold["test_accuracy"] for fold in whole.folds]
    )
    assert frame.filter(like="probability").sum(axis=1).to_numpy() == pytest.approx(np.ones(150), abs=1e-5)
    from sklearn.datasets import load_iris

    assert frame["target"].tolist() == load_iris().target.tolist()


def test_what_is_left_to_read(whole: CrossValidation) -> None:
    page = (whole.path / "report.html").read_text(encoding="utf-8")
    assert all(f"../{run.id}/report.html" in page for run in whole.runs)
    assert page.count("<svg") == 2
    assert "test_accuracy" in whole._repr_html_()
    assert repr(whole).startswith(f"<CrossValidation small/{whole.id} completed: ")
    assert not (whole.path / "config.yaml").exists()


# -- stopped and resumed


def test_a_signal_within_a_fold(whole: CrossValidation, tmp_path: Path) -> None:
    cut = trainwright.cross_validate(TOY, folds=3, runs_dir=tmp_path, callbacks=[SignalInRun(1, 7)])
    assert (cut.status, cut.folds, cut.mean) == ("preempted", [], {})
    first, second = cut.runs
    assert (first.status, second.status, second.result["steps"]) == ("completed", "preempted", 7)
    with pytest.raises(InputError, match="has predictions only once it is completed"):
        _ = cut.out_of_fold
    assert second.id in (cut.path / "report.html").read_text(encoding="utf-8")
    resumed = trainwright.cross_validate(TOY, folds=3, runs_dir=tmp_path, resume=True)
    assert (resumed.path, [run.id for run in resumed.runs[:2]]) == (cut.path, [first.id, second.id])
    assert resumed.runs[1].result["attempts"] == 2
    assert_same(resumed, whole)
    assert (
        trainwright.cross_validate(TOY, folds=3, runs_dir=tmp_path, resume=True).path != cut.path
    )  # there is none to resume


@pytest.mark.parametrize(
    ("signum", "status"), [(signal.SIGTERM, "preempted"), (signal.SIGINT, "interrupted")]
)
def test_a_signal_between_folds_is_resumed_to_the_same_result(
    whole: CrossValidation, tmp_path: Path, signum: signal.Signals, status: str
) -> None:
    try:
        cut = trainwright.cross_validate(TOY, folds=3, runs_dir=tmp_path, watch=signal_after(0, signum))
    except trainwright.Interrupted as interrupted:
        cut = interrupted.run
    assert (cut.status, len(cut.runs)) == (status, 1)
    assert_same(trainwright.cross_validate(TOY, folds=3, runs_dir=tmp_path, resume=True), whole)


def test_a_signal_before_the_conclusion(whole: CrossValidation, tmp_path: Path) -> None:
    cut = trainwright.cross_validate(TOY, folds=3, runs_dir=tmp_path, watch=signal_after(2))
    assert (cut.status, len(cut.runs), cut.result) == ("preempted", 3, {})
    resumed = trainwright.cross_validate(TOY, folds=3, runs_dir=tmp_path, resume=True)
    assert_same(resumed, whole)
    assert [run.result["attempts"] for run in resumed.runs] == [1, 1, 1]


def test_a_crash_is_resumed_to_the_same_result(whole: CrossValidation, tmp_path: Path) -> None:
    with pytest.raises(Crash):
        trainwright.cross_validate(TOY, folds=3, runs_dir=tmp_path, callbacks=[CrashAt(9)])
    (cut,) = [CrossValidation(path) for path in (tmp_path / "small").glob("cv-*")]
    assert cut.status == "crashed"
    assert_same(trainwright.cross_validate(TOY, folds=3, runs_dir=tmp_path, resume=True), whole)


def test_a_full_disk_is_no_result_of_a_fold(whole: CrossValidation, tmp_path: Path) -> None:
    with (
        full_disk(after=4),
        pytest.raises(TrainingError, match=r"fold . cannot be trained now: .*No space.*--resume"),
    ):
        trainwright.cross_validate(TOY, folds=3, runs_dir=tmp_path)
    assert_same(trainwright.cross_validate(TOY, folds=3, runs_dir=tmp_path, resume=True), whole)


def test_a_run_that_is_gone_is_trained_again(whole: CrossValidation, tmp_path: Path) -> None:
    cut = trainwright.cross_validate(TOY, folds=3, runs_dir=tmp_path, callbacks=[SignalInRun(1, 7)])
    (gone,) = [run for run in all_runs(tmp_path) if run.status() == "preempted"]
    shutil.rmtree(gone.path)
    resumed = trainwright.cross_validate(TOY, folds=3, runs_dir=tmp_path, resume=True)
    assert resumed.path == cut.path
    assert_same(resumed, whole)


def test_only_the_same_is_resumed(tmp_path: Path) -> None:
    cut = trainwright.cross_validate(TOY, folds=3, callbacks=[SignalInRun(0, 3)], runs_dir=tmp_path)
    for change, folds in (({"training.learning_rate": 0.2}, 2), ({"data.split.seed": 1}, 3), ({}, 2)):
        stop = [SignalInRun(0, 1)]
        other = trainwright.cross_validate(
            TOY, change, folds=folds, resume=True, runs_dir=tmp_path, callbacks=stop
        )
        assert other.path != cut.path
    assert (
        trainwright.cross_validate(
            TOY, {"logging.every_n_steps": 3}, folds=3, resume=True, runs_dir=tmp_path
        ).path
        == cut.path
    )


def test_two_processes_do_not_work_on_one_study(tmp_path: Path) -> None:
    cut = trainwright.cross_validate(TOY, folds=3, runs_dir=tmp_path, callbacks=[SignalInRun(0, 3)])
    owner = RunDir(cut.path)
    owner.acquire()
    try:
        assert cut.status == "running"
        from trainwright.studies.driver import drive
        from trainwright.studies.study import Study, StudyRequest
        from trainwright.studies.trial_runs import TrialRuns

        with pytest.raises(RunLockedError, match=f"study {cut.id} is owned by another process"):
            drive(TrialRuns(Study(cut.path), [], StudyRequest(tmp_path), lambda _: {}))
    finally:
        owner.release()


def test_a_fold_that_fails_fails_the_study(tmp_path: Path) -> None:
    """A learning rate at which the loss is not finite."""
    with pytest.raises(TrainingError, match="is not finite"):
        trainwright.cross_validate(TOY, {"training.learning_rate": 1e308}, folds=3, runs_dir=tmp_path)
    (study,) = [CrossValidation(path) for path in (tmp_path / "small").glob("cv-*")]
    assert (study.status, study.runs[0].status) == ("failed", "failed")
    page = (study.path / "report.html").read_text(encoding="utf-8")
    assert "loss" in page
    assert study.runs[0].id in page


# -- what it is given


def test_wrong_input_leaves_nothing_behind(tmp_path: Path) -> None:
    for error, config, folds in (
        (ConfigError, {**TOY, "model": {"type": "toi"}}, 3),
        (ConfigError, {key: value for key, value in TOY.items() if key != "data"}, 3),
        (InputError, TOY, 1),
        (DataError, TOY, 200),
        (DataError, {**TOY, "data": {"type": "iris", "split": {"group": "nothing"}}}, 3),
    ):
        with pytest.raises(error):
            trainwright.cross_validate(config, folds=folds, runs_dir=tmp_path / "runs")
    assert not list(tmp_path.glob("runs/*"))


def test_the_number_of_folds_is_given_or_that_of_the_config() -> None:
    from trainwright.studies.configs import StudyConfig

    plain = StudyConfig.read(TOY, (), Path("runs"), objects=False)
    chosen = StudyConfig.read(TOY, {"data.split.folds": 4, "data.split.fold": 0}, Path("runs"), objects=False)
    assert [plain.folds(None), plain.folds(3), chosen.folds(None), chosen.folds(3)] == [5, 3, 4, 3]


def rows(count: int = 60, seed: int = 0) -> pd.DataFrame:
    draw = np.random.default_rng(seed)
    frame = pd.DataFrame(draw.normal(size=(count, 3)), columns=list("abc"))
    return frame.assign(y=np.where(frame["a"] + frame["b"] > 0, "yes", "no"), day=np.arange(count) // 2)


def test_rows_for_validation_and_test_of_their_own_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PLACE", "rows")
    for name, seed in (("train", 1), ("val", 2), ("test", 3)):
        rows(seed=seed).to_csv(f"rows-{name}.csv", index=False)
    data: dict[str, Any] = {f"{name}_path": f"${{env:PLACE}}-{name}.csv" for name in ("train", "val", "test")}
    study = trainwright.cross_validate(
        {**TOY, "data": {**data, "target": "y", "exclude": ["day"]}}, folds=3, runs_dir="runs"
    )
    assert study.out_of_fold["row"].tolist() == list(range(60))
    warned = " ".join(record.getMessage() for record in caplog.records if record.levelno == logging.WARNING)
    assert "data.val_path is not used" in warned
    assert "data.test_path is not used" in warned
    kept = (study.runs[0].path / "config.yaml").read_text(encoding="utf-8")
    assert '"${env:PLACE}-train.csv"' in kept
    assert study.runs[0].metrics == trainwright.get(study.runs[0]).metrics
    assert (
        trainwright.evaluate(study.runs[0], split="test")["test_accuracy"] == study.folds[0]["test_accuracy"]
    )


def test_time_series_are_tested_on_what_comes_later(tmp_path: Path) -> None:
    config = {**TOY, "data": {"type": "iris", "target": "y", "split": {"time": "day", "val": 0.2}}}
    study = trainwright.cross_validate(
        config, {"training.batch_size": 8}, folds=3, runs_dir=tmp_path, data=rows()
    )
    assert study.out_of_fold["row"].tolist() == list(
        range(16, 60)
    )  # blocks of 15 rows, but two rows of a day stay together
    assert study.out_of_fold["fold"].is_monotonic_increasing
    counts = [fold["rows"] for fold in study.result["folds"]]
    assert [sum(one.values()) for one in counts] == [30, 46, 60]


def test_a_study_of_data_objects_is_resumed_with_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    without = {key: value for key, value in TOY.items() if key != "data"}
    pair = (rows()[["a", "b", "c"]].to_numpy(np.float32), (rows()["y"] == "yes").to_numpy(np.int64))
    cut = trainwright.cross_validate(
        without, folds=3, runs_dir=tmp_path, data=pair, callbacks=[SignalInRun(1, 3)]
    )
    resumed = trainwright.cross_validate(without, folds=3, runs_dir=tmp_path, data=pair, resume=True)
    assert (resumed.path, resumed.status) == (cut.path, "completed")
    assert resumed.out_of_fold["target"].tolist() == pair[1].tolist()
    assert resumed.runs[0].manifest["objects"] == ["data"]


def test_changed_data_are_noticed(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    rows().to_csv(path, index=False)
    config = {**TOY, "data": {"path": str(path), "target": "y", "exclude": ["day"]}}
    cut = trainwright.cross_validate(config, folds=3, runs_dir=tmp_path, watch=signal_after(1))
    rows().assign(c=rows()["c"].abs()).to_csv(path, index=False)
    with pytest.raises(
        ChangedInputsError,
        match=rf"(?s)run {cut.runs[0].id}: data: train split, sha256 was .*start a new one",
    ):
        trainwright.cross_validate(config, folds=3, runs_dir=tmp_path, resume=True)
    assert (cut.status, len(cut.runs)) == ("preempted", 2)  # nothing more was trained
    rows().to_csv(path, index=False)
    assert trainwright.cross_validate(config, folds=3, runs_dir=tmp_path, resume=True).status == "completed"


def test_rows_that_no_fold_tests_are_compared_too(tmp_path: Path) -> None:
    """The oldest block of a time series, changed while the last fold is trained."""
    path = tmp_path / "rows.csv"
    rows().to_csv(path, index=False)

    def change(_: Any) -> None:
        rows().assign(c=np.where(rows()["day"] < 4, 0.0, rows()["c"])).to_csv(path, index=False)

    data = {"path": str(path), "target": "y", "standardize": False, "split": {"time": "day", "val": 0.2}}
    with pytest.raises(ChangedInputsError, match="data: train split, sha256 was") as caught:
        trainwright.cross_validate({**TOY, "data": data}, folds=2, runs_dir=tmp_path, watch=change)
    assert "test split" not in str(caught.value)


def test_a_changed_environment_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    trainwright.cross_validate(TOY, folds=2, runs_dir=tmp_path, watch=signal_after(0))
    monkeypatch.setenv("OMP_STUDY", "1")
    assert trainwright.cross_validate(TOY, folds=2, runs_dir=tmp_path, resume=True).status == "completed"
    assert "environment: flags OMP_STUDY was absent, is 1" in caplog.text
    assert "the runs of this study differ in their environment" in caplog.text


def test_changed_initial_weights_are_noticed(tmp_path: Path) -> None:
    first = trainwright.train(TOY, {"experiment.seed": 9}, runs_dir=tmp_path)
    (weights,) = first.path.glob("best/*/weights.safetensors")
    initial = tmp_path / "initial.safetensors"
    initial.write_bytes(weights.read_bytes())
    asked: dict[str, Any] = {"folds": 2, "runs_dir": tmp_path}
    change = {"model.init_from": str(initial)}
    trainwright.cross_validate(TOY, change, **asked, watch=signal_after(0))
    assert (
        trainwright.cross_validate(TOY, change, **asked, resume=True, watch=signal_after(1)).status
        == "preempted"
    )
    other = trainwright.train(TOY, {"experiment.seed": 8}, runs_dir=tmp_path)
    initial.write_bytes(next(other.path.glob("best/*/weights.safetensors")).read_bytes())
    with pytest.raises(ChangedInputsError, match="weights: initial was"):
        trainwright.cross_validate(TOY, change, **asked, resume=True)


def test_init_from_last_is_not_the_fold_before(tmp_path: Path) -> None:
    first = trainwright.train(TOY, {"experiment.seed": 9}, runs_dir=tmp_path)
    study = trainwright.cross_validate(TOY, {"model.init_from": "last"}, folds=3, runs_dir=tmp_path)
    assert {run.manifest["init_from"] for run in study.runs} == {str(first.path)}


@pytest.mark.slow
def test_values_are_predicted_out_of_fold(tmp_path: Path) -> None:
    """Regression, with one and with several outputs."""
    config = {**TOY, "model": {"type": "mlp", "hidden": [4]}, "data": {"type": "diabetes"}}
    study = trainwright.cross_validate(config, folds=3, runs_dir=tmp_path)
    frame = study.out_of_fold
    assert frame.columns.tolist() == ["row", "fold", "target", "prediction"]
    rmse = [np.sqrt(np.mean((part["target"] - part["prediction"]) ** 2)) for _, part in frame.groupby("fold")]
    assert rmse == pytest.approx([fold["test_rmse"] for fold in study.folds], rel=1e-5)
    pair = (rows()[["a", "b"]].to_numpy(np.float32), rows()[["b", "c"]].to_numpy(np.float32))
    study = trainwright.cross_validate(
        {**config, "data": {"type": "iris"}}, folds=2, runs_dir=tmp_path, data=pair
    )
    assert study.out_of_fold.columns.tolist() == [
        "row",
        "fold",
        "target_0",
        "target_1",
        "prediction_0",
        "prediction_1",
    ]
    assert study.out_of_fold["target_1"].to_numpy() == pytest.approx(rows()["c"].to_numpy(), rel=1e-6)


def test_warnings_are_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    frame = rows().assign(constant=1.0)
    config = {**TOY, "data": {"type": "iris", "target": "y"}}
    trainwright.cross_validate(config, {"training.epochs": 1}, folds=3, runs_dir=tmp_path, data=frame)
    warned = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warned) == len(set(warned))
    assert sum("holds one value" in line for line in warned) == 1
