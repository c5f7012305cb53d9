"""The verbs: train, resume, load, and what they are given."""

import importlib
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import xgboost
from safetensors.numpy import load_file, save_file
from torch import nn

import trainwright
from small_runs import SMALL, SignalAt, assert_same, checkpoints, crashed, preempted
from trainwright.errors import (
    ChangedInputsError,
    CheckpointError,
    ConfigError,
    InputError,
    ModelError,
    RunLockedError,
    RunNotFoundError,
)
from trainwright.records.listing import all_runs
from trainwright.records.run_dir import RunDir
from trainwright.runs.run import Run

WITHOUT_DATA = {key: value for key, value in SMALL.items() if key != "data"}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return trainwright.train(SMALL, runs_dir=tmp_path_factory.mktemp("whole"))


# -- train --resume


def test_resume_takes_the_newest_unfinished_run_of_the_same_computation(whole: Run, tmp_path: Path) -> None:
    older = preempted(tmp_path, at=6)
    newest = preempted(tmp_path, at=11)
    other = preempted(tmp_path, {"experiment.seed": 4}, at=12)
    elsewhere = preempted(tmp_path, {"experiment.name": "elsewhere"}, at=12)
    done = trainwright.train(SMALL, runs_dir=tmp_path)
    # Runs of one second are in no order: this one is made the newest of the two.
    first, second = sorted((older.path, newest.path))
    expected = second if first.name[:15] == second.name[:15] else newest.path

    resumed = trainwright.train(SMALL, {"logging.every_n_steps": 1}, runs_dir=tmp_path, resume=True)
    assert resumed.path == expected
    assert_same(resumed, whole)
    then = trainwright.train(SMALL, runs_dir=tmp_path, resume=True)
    assert {then.path, resumed.path} == {older.path, newest.path}
    fresh = trainwright.train(SMALL, runs_dir=tmp_path, resume=True)
    assert fresh.path not in {older.path, newest.path, other.path, elsewhere.path, done.path}
    assert [run.status for run in (other, elsewhere)] == ["preempted", "preempted"]


def test_resume_knows_a_run_by_its_computation_not_by_what_is_recorded(whole: Run, tmp_path: Path) -> None:
    cut = preempted(tmp_path)
    changes = {"logging.every_n_steps": 3, "checkpoint.every_n_steps": 9}
    assert trainwright.train(SMALL, changes, runs_dir=tmp_path, resume=True).path == cut.path
    for change in (
        {"training.learning_rate": 0.02},
        {"training.max_steps": 31},
        {"model.params.hidden": [15]},
    ):
        before = len(list(all_runs(tmp_path)))
        trainwright.train(SMALL, change, runs_dir=tmp_path, resume=True)
        assert len(list(all_runs(tmp_path))) == before + 1


def test_resume_names_what_the_run_does_not_take_up(
    whole: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cut = preempted(tmp_path)
    changes = {"checkpoint.keep_last": 5, "tracking": [{"type": "mlflow", "uri": "http://me:PASSWORD@host"}]}
    assert_same(trainwright.train(SMALL, changes, runs_dir=tmp_path, resume=True), whole)
    warned = [
        record.getMessage() for record in caplog.records if "keeps its own value" in record.getMessage()
    ]
    assert f"config: checkpoint.keep_last: 5 is not used: run {cut.id} keeps its own value 2" in warned
    assert any(line.startswith("config: tracking.0.type: mlflow is not used") for line in warned)
    assert "PASSWORD" not in caplog.text

    preempted(tmp_path)
    caplog.clear()
    trainwright.train(SMALL, runs_dir=tmp_path, resume=True)
    assert "keeps its own value" not in caplog.text


def test_one_process_where_several_were_enabled_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = {**WITHOUT_DATA, "distributed": {"enabled": True}}
    with pytest.raises(ConfigError, match="no data section"):
        trainwright.train(config, runs_dir=tmp_path)
    (record,) = [record for record in caplog.records if "distributed.enabled means" in record.message]
    assert record.levelname == "WARNING"


def test_a_training_key_without_effect_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = {"model": "random_forest", "training": {"batch_size": 8}}
    with pytest.raises(ConfigError, match="no data section"):
        trainwright.train(config, runs_dir=tmp_path)
    (record,) = [record for record in caplog.records if "training.batch_size has no effect" in record.message]
    assert record.levelname == "WARNING"


def test_a_file_that_writes_down_all_defaults_is_not_warned_of(tmp_path: Path) -> None:
    file = tmp_path / "best.yaml"
    file.write_text("model: random_forest\ndata: wine\ntraining: {compile: false, batch_size: 32}\n")
    assert len(trainwright.check(file).unused) == 2, "a user may expect that they have an effect"
    file.write_text(trainwright.check({"model": "random_forest", "data": "wine"}).dump())
    assert not trainwright.check(file).unused
    file.write_text(file.read_text().replace("batch_size: 32", "batch_size: 33"))
    (line,) = trainwright.check(file).unused
    assert "training.batch_size has no effect" in line


def test_resume_takes_up_a_run_that_died_before_its_manifest(whole: Run, tmp_path: Path) -> None:
    from trainwright.config import load
    from trainwright.runs.catalog import Catalog

    run = RunDir.create(tmp_path, "small", load(SMALL, adapters=Catalog()).dump())
    assert run.status() == "created"
    resumed = trainwright.train(SMALL, runs_dir=tmp_path, resume=True)
    assert resumed.path == run.path
    assert_same(resumed, whole)


def test_resume_is_not_stopped_by_a_damaged_neighbor(whole: Run, tmp_path: Path) -> None:
    """What a crash or a full disk left of another run is none of this run's business."""
    broken = tmp_path / "small" / "29990101-000000-aaaaaa"
    broken.mkdir(parents=True)
    (broken / "config.yaml").write_text("")
    torn = tmp_path / "small" / "29990101-000000-bbbbbb"
    (torn / "attempts").mkdir(parents=True)
    (torn / "config.yaml").write_text("model: {type: mlp}\n")
    (torn / "manifest.json").write_text('{"computation_ha')
    (torn / "attempts" / "0001.json").write_text('{"status')
    assert_same(trainwright.train(SMALL, runs_dir=tmp_path, resume=True), whole)


def test_a_run_that_is_under_way_is_not_taken_from_its_owner(tmp_path: Path) -> None:
    cut = preempted(tmp_path)
    owner = RunDir(cut.path)
    owner.acquire()
    try:
        with pytest.raises(RunLockedError, match=f"{cut.id} of this computation is running"):
            trainwright.train(SMALL, runs_dir=tmp_path, resume=True)
    finally:
        owner.release()
    assert cut.status == "preempted"


def test_a_run_is_found_from_any_directory(
    whole: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Relative paths in a config are relative to where the run was started, wherever it is resumed."""
    start, other = tmp_path / "start", tmp_path / "other"
    start.mkdir()
    other.mkdir()
    monkeypatch.chdir(start)
    table().to_csv("rows.csv", index=False)
    cut = preempted(Path("runs"), {"data": {"type": "csv", "path": "rows.csv", "target": "y"}})
    monkeypatch.chdir(other)
    resumed = trainwright.resume(cut.path)
    assert resumed.status == "completed"
    assert Path.cwd() == other
    assert str(start) not in sys.path


MODULE = """
import torch
class Net(torch.nn.Sequential):
    def __init__(self):
        super().__init__(torch.nn.Linear(4, 3))
"""


def test_code_is_not_imported_from_where_a_run_says_that_it_was_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But from the caller's own directory, even where "" stands in sys.path, as it does in notebooks."""
    start, other = tmp_path / "start", tmp_path / "other"
    start.mkdir()
    (start / "sub").mkdir()
    other.mkdir()
    (start / "planted_net.py").write_text(MODULE)
    (start / "rows.csv").write_text(pd.DataFrame(arrays()[0][0]).assign(y=arrays()[0][1]).to_csv(index=False))
    monkeypatch.chdir(start)
    config = {
        **SMALL,
        "data": {"type": "csv", "path": "rows.csv", "target": "y"},
        "model": {"type": "planted_net:Net"},
    }
    run = trainwright.train(config, {"training.max_steps": 2}, runs_dir=tmp_path / "runs")
    (other / "rows.csv").write_bytes((start / "rows.csv").read_bytes())
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    verbs: list[Callable[[], Any]] = [
        lambda: trainwright.load(run),
        lambda: trainwright.evaluate(run),
        lambda: trainwright.predict(run, other / "rows.csv"),
    ]

    monkeypatch.chdir(other)
    before = list(sys.path)
    for verb in verbs:
        sys.modules.pop("planted_net", None)
        importlib.invalidate_caches()
        with pytest.raises(InputError, match="there is no module 'planted_net'"):
            verb()
    assert sys.path == before
    (other / "planted_net.py").write_text(MODULE)
    (other / "rows.csv").unlink()  # the data are those where the run was started
    importlib.invalidate_caches()
    assert "test_loss" in trainwright.evaluate(run)
    assert sys.modules.pop("planted_net").__file__ == str(other / "planted_net.py")

    monkeypatch.chdir(start / "sub")  # the caller's own project
    assert "test_loss" in trainwright.evaluate(run)
    assert sys.modules.pop("planted_net").__file__ == str(start / "planted_net.py")
    monkeypatch.chdir(other)
    (other / "planted_net.py").unlink()
    with pytest.raises(InputError, match="there is no module 'planted_net'"):
        trainwright.reproduce(run)
    assert trainwright.reproduce(run, trust=True).verdict == "identical"
    assert sys.path == before
    sys.modules.pop("planted_net")


def test_errors_of_names(tmp_path: Path) -> None:
    with pytest.raises(RunNotFoundError, match="no run 'nothing'"):
        trainwright.resume("nothing", runs_dir=tmp_path)
    with pytest.raises(InputError, match="preempted; only a completed, stopped or pruned run can be"):
        trainwright.reproduce(preempted(tmp_path))
    with pytest.raises(ConfigError, match="no data section: train needs one"):
        trainwright.train(WITHOUT_DATA, runs_dir=tmp_path)


# -- initial weights


def test_init_from_a_run_begins_with_its_best_weights(whole: Run, tmp_path: Path) -> None:
    frozen = {"training.learning_rate": 1e-30, "training.max_steps": 1, "training.optimizer": {"type": "sgd"}}
    run = trainwright.train(SMALL, frozen | {"model.init_from": str(whole.path)}, runs_dir=tmp_path)
    assert run.digest == whole.result["best"]["digest"] == run.manifest["weights"]["initial"]


def test_init_from_last_is_the_run_before_and_stays_it(whole: Run, tmp_path: Path) -> None:
    before = trainwright.train(SMALL, {"experiment.seed": 8}, runs_dir=tmp_path)
    last = {"model.init_from": "last"}
    uninterrupted = trainwright.train(
        SMALL, {"model.init_from": str(before.path)}, runs_dir=tmp_path / "elsewhere"
    )
    cut = crashed(tmp_path, last)
    assert cut.manifest["weights"]["initial"] == before.result["best"]["digest"]
    trainwright.train(SMALL, {"experiment.seed": 9}, runs_dir=tmp_path)  # now this is the last one
    resumed = trainwright.resume(cut)
    assert_same(resumed, uninterrupted)


def test_init_from_a_safetensors_file(whole: Run, tmp_path: Path) -> None:
    weights = load_file(checkpoints(whole)[-1] / "weights.safetensors")
    save_file({name: array * 2 for name, array in weights.items()}, tmp_path / "mine.safetensors")
    overrides = {"model.init_from": str(tmp_path / "mine.safetensors")}
    run = trainwright.train(SMALL, overrides, runs_dir=tmp_path / "a")
    assert run.manifest["weights"]["initial"] != whole.manifest["weights"]["initial"]
    assert_same(trainwright.resume(crashed(tmp_path / "b", overrides)), run)

    cut = crashed(tmp_path / "c", overrides)
    save_file(weights, tmp_path / "mine.safetensors")
    with pytest.raises(ChangedInputsError, match="weights: initial was"):
        trainwright.resume(cut)


def test_init_from_an_index_of_exported_files(whole: Run, tmp_path: Path) -> None:
    folder = trainwright.export(whole, tmp_path / "model", "safetensors", max_shard_size=300)
    assert len(list(folder.glob("*.safetensors"))) > 2
    index = folder / "model.safetensors.index.json"
    overrides = {"model.init_from": str(index), "training.max_steps": 1}
    run = trainwright.train(SMALL, overrides, runs_dir=tmp_path / "runs")
    assert run.manifest["weights"]["initial"] == whole.result["best"]["digest"]
    next(folder.glob("*.safetensors")).unlink()
    with pytest.raises(InputError, match=r"model\.init_from: .* names model-.*, which is not there"):
        trainwright.train(SMALL, overrides, runs_dir=tmp_path / "runs")
    index.write_text("{}")
    with pytest.raises(InputError, match=r"model\.init_from: .* is no index of safetensors files"):
        trainwright.train(SMALL, overrides, runs_dir=tmp_path / "runs")


def test_an_export_of_weights_makes_no_model_and_is_compared_with_the_manifest(
    whole: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a model is made")

    monkeypatch.setattr("trainwright.inference.predictor.Predictor.__init__", refuse)
    path = trainwright.export(whole, tmp_path / "model.safetensors")
    best = whole.result["best"]["step"]
    stored = next((whole.path / "best").glob(f"*{best}*")) / "weights.safetensors"
    assert path.read_bytes() == stored.read_bytes()
    monkeypatch.setattr("trainwright.exporters.safetensors.weights_digest", lambda _: "0" * 64)
    with pytest.raises(CheckpointError, match="are not those that its manifest names"):
        trainwright.export(whole, tmp_path / "other.safetensors")
    assert not (tmp_path / "other.safetensors").exists()


def test_initial_weights_that_do_not_fit(whole: Run, tmp_path: Path) -> None:
    (tmp_path / "no.safetensors").write_bytes(b"this is no such file at all")
    wrong = [
        (
            str(whole.path),
            {"model.params.hidden": [9]},
            r"init_from: .*do not fit the model: .*size mismatch",
        ),
        ("nowhere.safetensors", {}, "model.init_from: nowhere.safetensors does not exist"),
        (str(tmp_path / "no.safetensors"), {}, "init_from: .*no.safetensors: this is not a safetensors file"),
        ("nosuchrun", {}, "no run 'nosuchrun'"),
        ("last", {}, "no run 'last'"),
    ]
    for source, overrides, message in wrong:
        with pytest.raises(InputError, match=f"(?s){message}"):
            trainwright.train(SMALL, overrides | {"model.init_from": source}, runs_dir=tmp_path / "runs")
        assert not list(all_runs(tmp_path / "runs"))


# -- objects


class Net(nn.Module):
    def __init__(self, seed: int = 0, dropout: float = 0.2) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.layers = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Dropout(dropout), nn.Linear(16, 3))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layers(features)
        return out


def arrays(seed: int = 0) -> tuple[tuple[np.ndarray, np.ndarray], ...]:
    draw = np.random.default_rng(seed)

    def split(rows: int) -> tuple[np.ndarray, np.ndarray]:
        features = draw.normal(size=(rows, 4)).astype(np.float32)
        return features, features[:, :3].argmax(axis=1)

    return split(120), split(24), split(24)


def test_objects_train_resume_and_reproduce(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    whole = trainwright.train(WITHOUT_DATA, runs_dir=tmp_path / "whole", model=Net(), data=arrays())
    assert "model and data given as objects: only their author can reproduce this run" in caplog.text
    assert whole.manifest["objects"] == ["model", "data"]
    assert "test_api" in " ".join(whole.manifest["code"]["modules"])
    assert whole.metrics["test_accuracy"] > 0.5

    cut = trainwright.train(
        WITHOUT_DATA, runs_dir=tmp_path / "cut", model=Net(), data=arrays(), callbacks=[SignalAt(13)]
    )
    for missing in ({}, {"model": Net()}, {"data": arrays()}):
        with pytest.raises(
            InputError, match=r"was trained with (data|model and data) objects passed from Python"
        ):
            trainwright.resume(cut, **missing)
    with pytest.raises(ChangedInputsError, match="data: train split, sha256"):
        trainwright.resume(cut, model=Net(), data=arrays(seed=1))
    with pytest.raises(ChangedInputsError, match="model: layers was"):
        trainwright.resume(cut, model=Net(dropout=0.3), data=arrays())
    assert_same(trainwright.resume(cut, model=Net(seed=1), data=arrays()), whole)

    with pytest.raises(InputError, match="with model and data objects passed from Python"):
        trainwright.reproduce(whole)
    assert trainwright.reproduce(whole, model=Net(), data=arrays()).verdict == "identical"
    assert trainwright.reproduce(whole, model=Net(seed=1), data=arrays()).verdict == "identical"
    different = trainwright.reproduce(whole, model=Net(dropout=0.3), data=arrays())
    assert (different.verdict, different.step, [found.input for found in different.inputs]) == (
        "different",
        1,
        ["model"],
    )

    predictor = trainwright.load(whole, model=Net())
    assert repr(predictor) == f"<Predictor of run {whole.id}: Net, classification>"
    features, targets = arrays()[2]
    predicted = predictor.predict(features)["prediction"].to_numpy()
    assert (predicted == targets).mean() == pytest.approx(whole.metrics["test_accuracy"])
    for verb in (trainwright.load, trainwright.evaluate):
        with pytest.raises(
            InputError,
            match=rf"passed from Python; pass (it|them) again: trainwright\.{verb.__name__}\('{whole.id}', model=.*command line cannot",
        ):
            verb(whole)


def test_a_class_in_place_of_the_model_is_refused(tmp_path: Path) -> None:
    run = trainwright.train(WITHOUT_DATA, runs_dir=tmp_path, model=Net(), data=arrays())
    with pytest.raises(InputError, match=r"model is the class Net; give an object of it$"):
        trainwright.load(run, model=Net)
    named = trainwright.train(SMALL, runs_dir=tmp_path)
    with pytest.raises(
        InputError, match="an object of it, or leave it out: the run's config names its class"
    ):
        trainwright.load(named, model=Net)


def test_runs_of_objects_are_evaluated_with_them(tmp_path: Path) -> None:
    run = trainwright.train(WITHOUT_DATA, runs_dir=tmp_path, model=Net(), data=arrays())
    for split in ("val", "test"):
        known = {name: value for name, value in run.metrics.items() if name.startswith(split)}
        assert trainwright.evaluate(run, split=split, model=Net(), data=arrays()) == pytest.approx(known)
    with pytest.raises(InputError, match="the data are not those that run"):
        trainwright.evaluate(run, model=Net(), data=arrays(seed=1))
    with pytest.raises(InputError, match="with model and data objects passed from Python"):
        trainwright.evaluate(run, model=Net())

    other = trainwright.train(SMALL, runs_dir=tmp_path, model=Net(seed=2))
    tested = {name: value for name, value in other.metrics.items() if name.startswith("test_")}
    assert trainwright.evaluate(other, model=Net()) == pytest.approx(tested)


def test_a_run_with_a_model_object_predicts_for_a_file(
    csv_run: tuple[Run, pd.DataFrame], tmp_path: Path
) -> None:
    class Two(Net):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(2, 2))

    frame = csv_run[1][["size", "weight", "y"]]
    frame.to_csv(tmp_path / "rows.csv", index=False)
    config = {**SMALL, "data": {"type": "csv", "path": str(tmp_path / "rows.csv"), "target": "y"}}
    run = trainwright.train(config, {"training.batch_size": 4}, runs_dir=tmp_path / "runs", model=Two())
    assert len(trainwright.predict(run, tmp_path / "rows.csv", model=Two())) == len(frame)
    assert "test_loss" in trainwright.evaluate(run, data=tmp_path / "rows.csv", model=Two())
    with pytest.raises(InputError, match="with a model object passed from Python; pass it again"):
        trainwright.predict(run, tmp_path / "rows.csv")


@pytest.mark.parametrize("name", ["Local", "Größe", "Überall", "my model"])
def test_a_model_object_of_any_class(tmp_path: Path, name: str) -> None:
    """In a notebook it is `__main__`'s, and made in a function it has no import path at all."""
    model = type(name, (Net,), {"__qualname__": f"make.<locals>.{name}", "__module__": "__main__"})()
    run = trainwright.train(SMALL, {"training.max_steps": 2}, runs_dir=tmp_path, model=model)
    assert run.manifest["computation"]["model.type"].startswith("__main__:")
    assert trainwright.reproduce(run, model=model.__class__()).verdict == "identical"


def test_a_model_object_alone_with_data_from_the_config(tmp_path: Path) -> None:
    run = trainwright.train(SMALL, runs_dir=tmp_path, model=Net())
    assert run.manifest["objects"] == ["model"]
    assert trainwright.reproduce(run, model=Net()).verdict == "identical"


def test_a_model_object_that_does_not_fit_or_is_none(tmp_path: Path) -> None:
    features = np.arange(480, dtype=np.float32).reshape(120, 4)
    with pytest.raises(ModelError, match=r"gives \(1, 3\), but the data has 2 classes"):
        trainwright.train(WITHOUT_DATA, runs_dir=tmp_path, model=Net(), data=(features, np.arange(120) % 2))
    with pytest.raises(InputError, match="belongs to no known framework"):
        trainwright.train(SMALL, runs_dir=tmp_path, model=object())
    with pytest.raises(InputError, match="Booster cannot be trained: pass an estimator of xgboost"):
        trainwright.train(WITHOUT_DATA, runs_dir=tmp_path, model=xgboost.Booster(), data=(features, features))
    assert not list(all_runs(tmp_path))


def test_the_users_arrays_are_left_as_they_were(tmp_path: Path) -> None:
    data, untouched = arrays(), arrays()
    trainwright.train(WITHOUT_DATA, runs_dir=tmp_path, data=data)
    for (features, targets), (x, y) in zip(data, untouched, strict=True):
        np.testing.assert_array_equal(features, x)
        np.testing.assert_array_equal(targets, y)


# -- prediction


def table(rows: int = 200) -> pd.DataFrame:
    draw = np.random.default_rng(5)
    color = draw.choice(["red", "green", "blue"], rows)
    size = draw.normal(10, 3, rows)
    label = np.where((color == "red") ^ (size > 10), "yes", "no")
    return pd.DataFrame({"color": color, "size": size, "weight": draw.normal(size=rows), "y": label})


@pytest.fixture(scope="module")
def csv_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, pd.DataFrame]:
    folder = tmp_path_factory.mktemp("csv")
    frame = table()
    train, val, test = frame[:140], frame[140:170], frame[170:]
    for name, part in (("train", train), ("val", val), ("test", test)):
        part.to_csv(folder / f"{name}.csv", index=False)
    data = {"type": "csv", "target": "y"} | {
        f"{name}_path": str(folder / f"{name}.csv") for name in ("train", "val", "test")
    }
    config = {**SMALL, "data": data}
    return trainwright.train(config, {"training.max_steps": 60}, runs_dir=folder / "runs"), test


def test_predictions_of_a_frame_are_what_was_tested(csv_run: tuple[Run, pd.DataFrame]) -> None:
    run, test = csv_run
    frame = trainwright.load(run).predict(test.drop(columns="y"))
    assert list(frame.columns) == ["prediction", "probability_no", "probability_yes"]
    assert list(frame.index) == list(test.index)
    assert (frame["prediction"] == test["y"]).mean() == pytest.approx(run.metrics["test_accuracy"])
    np.testing.assert_allclose(frame[["probability_no", "probability_yes"]].sum(axis=1), 1, atol=1e-6)
    chance = np.where(test["y"] == "yes", frame["probability_yes"], frame["probability_no"])
    assert -np.log(chance).mean() == pytest.approx(run.metrics["test_loss"], rel=1e-5)


def test_columns_may_come_in_any_order_with_others_among_them(csv_run: tuple[Run, pd.DataFrame]) -> None:
    run, test = csv_run
    plain = trainwright.load(run).predict(test)
    shuffled = trainwright.load(run).predict(test[["weight", "y", "color", "size"]].assign(more=1))
    pd.testing.assert_frame_equal(plain, shuffled)
    as_mappings = trainwright.load(run).predict(test.to_dict(orient="records"))
    np.testing.assert_array_equal(as_mappings["prediction"], plain["prediction"])


def test_predictions_from_a_file_and_their_evaluation(
    csv_run: tuple[Run, pd.DataFrame], tmp_path: Path
) -> None:
    run, test = csv_run
    test.to_csv(tmp_path / "rows.csv", index=False)
    frame = trainwright.predict(run, tmp_path / "rows.csv")
    np.testing.assert_array_equal(frame["prediction"], trainwright.load(run).predict(test)["prediction"])
    tested = {name: value for name, value in run.metrics.items() if name.startswith("test_")}
    assert trainwright.evaluate(run) == pytest.approx(tested)
    assert trainwright.evaluate(run, data=tmp_path / "rows.csv") == pytest.approx(tested)


def test_rows_that_cannot_be_used_are_named(csv_run: tuple[Run, pd.DataFrame]) -> None:
    run, test = csv_run
    predictor = trainwright.load(run)
    with pytest.raises(InputError, match="color"):
        predictor.predict(test.drop(columns="color"))
    with pytest.raises(InputError, match="weight"):
        predictor.predict(test.assign(weight="heavy"))
    assert len(predictor.predict(test[:0])) == 0


def test_unseen_categories_are_warned_of(
    csv_run: tuple[Run, pd.DataFrame], caplog: pytest.LogCaptureFixture
) -> None:
    run, test = csv_run
    predictor = trainwright.load(run)
    predictor.predict(test)
    assert "no training row" not in caplog.text
    changed = test.copy()
    changed.loc[changed.index[:1], "color"] = "new"
    for use in (predictor.predict, lambda rows: predictor.evaluate(rows=rows)):
        use(changed)
    line = (
        "column 'color': 1 row has a value that no training row has: 'new'; taken as no category (all zeros)"
    )
    assert caplog.messages == [line]
    trainwright.load(run).predict(changed.assign(note="x"))
    assert caplog.messages[1:] == [line, "1 column is not used by the model: 'note'"]


def test_a_run_without_weights_says_so(tmp_path: Path) -> None:
    from trainwright.config import load
    from trainwright.runs.catalog import Catalog

    run = RunDir.create(tmp_path, "small", load(SMALL, adapters=Catalog()).dump())
    with pytest.raises(
        InputError,
        match="no weights yet: it is created and has no checkpoint yet; resume it first",
    ):
        trainwright.load(run.path)


# -- a run, as one looks at it


def test_a_run_shows_what_it_is(whole: Run) -> None:
    assert whole.status == "completed"
    assert f"{whole.experiment}/{whole.id} completed" in repr(whole)
    assert whole.digest is not None
    assert whole.id in whole._repr_html_()
    history = pd.DataFrame(whole.history())
    assert list(history.step) == list(range(1, 31))
    assert history.train_loss.notna().all()
    assert set(history[history.val_loss.notna()].step) == {7, 14, 21, 28, 30}
    assert list(history[history.test_loss.notna()].step) == [30], "in the row of the last step"


def test_runs_are_listed_and_cleaned(whole: Run, tmp_path: Path) -> None:
    done, cut = trainwright.train(SMALL, runs_dir=tmp_path), preempted(tmp_path)
    failed = crashed(tmp_path)
    assert {run.id for run in trainwright.list_runs(tmp_path)} == {done.id, cut.id, failed.id}
    assert trainwright.list_runs(tmp_path, "other") == []
    assert trainwright.clean(tmp_path, dry_run=False) == [], "its checkpoints can be resumed from"
    assert [run.id for run in trainwright.clean(tmp_path, statuses=[failed.status])] == [failed.id]
    assert failed.path.exists(), "a dry run has deleted"
    shutil.rmtree(failed.path / "checkpoints")
    assert [run.id for run in trainwright.clean(tmp_path, dry_run=False)] == [failed.id]
    assert {run.id for run in trainwright.list_runs(tmp_path)} == {done.id, cut.id}


def created(runs: Path) -> RunDir:
    return RunDir.create(runs, "small", trainwright.check(SMALL).dump())


def test_clean_leaves_what_is_owned_taken_up_or_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    owned, taken, damaged, plain = (created(tmp_path) for _ in range(4))
    owned.acquire()
    damaged.write_json("attempts/0001.json", {})
    (damaged.path / "attempts" / "0001.json").write_text('{"stat')
    acquire = RunDir.acquire

    def taken_up_before(run: RunDir) -> None:
        if run.path == taken.path:
            run.write_json("attempts/0001.json", {"status": "crashed"})
        if run.path == owned.path:
            raise AssertionError("this one is running")
        acquire(run)

    monkeypatch.setattr(RunDir, "acquire", taken_up_before)
    cleaned = trainwright.clean(tmp_path, statuses=["created", "crashed"], dry_run=False)
    assert [run.path for run in cleaned] == [plain.path]
    assert f"run {damaged.id} is skipped" in caplog.text
    assert {run.path for run in all_runs(tmp_path)} == {owned.path, taken.path, damaged.path}
    owned.release()


def test_clean_loses_the_race_for_a_run_with_grace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = created(tmp_path)
    owner = RunDir(run.path)
    owner.acquire()
    monkeypatch.setattr(RunDir, "is_owned", lambda _: False)  # as it was when it was looked at
    assert trainwright.clean(tmp_path, statuses=["created"], dry_run=False) == []
    assert run.path.exists()
    owner.release()


def test_overrides_as_text_and_as_mapping_are_the_same(tmp_path: Path) -> None:
    first = trainwright.check(SMALL, ["training.max_steps=3", "model.params.hidden=[4, 5]"])
    second = trainwright.check(SMALL, {"training.max_steps": 3, "model.params.hidden": [4, 5]})
    assert first.computation_hash() == second.computation_hash()
    assert first.config.model.params["hidden"] == [4, 5]


def test_the_package_is_light() -> None:
    import subprocess

    code = "import sys, trainwright; trainwright.train; print(sorted({'torch', 'numpy', 'pandas', 'sklearn'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "torch" not in done.stdout
    assert "sklearn" not in done.stdout
    assert importlib.import_module("trainwright").__all__


def test_an_array_is_prepared_as_the_training_rows_were(tmp_path: Path) -> None:
    from sklearn.datasets import load_iris

    frame = load_iris(as_frame=True).data
    predictor = trainwright.load(trainwright.train(SMALL, runs_dir=tmp_path))
    assert predictor.predict(frame.to_numpy()).equals(predictor.predict(frame))
    with pytest.raises(InputError, match="in this order"):
        predictor.predict(frame.to_numpy()[:, :2])


def test_values_given_as_objects_are_learned_in_units_of_their_spread(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(300, 3)).astype(np.float32)
    y = (1e6 + 1e4 * x[:, 0]).astype(np.float32)
    run = trainwright.train(
        {"model": "mlp", "training": {"epochs": 30, "threads": 1}}, runs_dir=tmp_path, data=(x, y)
    )
    assert run.metrics["test_r2"] > 0.9


def test_an_optimizer_that_refuses_its_options_is_wrong_input(tmp_path: Path) -> None:
    config = {**SMALL, "training": {**SMALL["training"], "optimizer": {"type": "sgd", "nesterov": True}}}
    with pytest.raises(InputError, match=r"training.optimizer: sgd rejects its options .*Nesterov momentum"):
        trainwright.train(config, runs_dir=tmp_path)
    assert trainwright.list_runs(tmp_path) == []


def test_a_data_section_beside_objects_need_not_name_a_source(tmp_path: Path) -> None:
    frame = pd.DataFrame({"age": range(90), "code": [7, 8, 9] * 30, "ill": [0, 1] * 45})
    config = {**WITHOUT_DATA, "data": {"target": "ill", "exclude": ["code"], "split": {"test": 0.3}}}
    run = trainwright.train(config, runs_dir=tmp_path, data=frame)
    splits = {name: split["rows"] for name, split in run.manifest["data"]["splits"].items()}
    assert (run.manifest["data"]["target"], splits["test"]) == ("ill", pytest.approx(27, abs=2))
    assert trainwright.load(run).info.input_shape == (1,)
    by_key = trainwright.train(
        {**WITHOUT_DATA, "data": None}, ["data.target=ill"], runs_dir=tmp_path, data=frame
    )
    assert by_key.manifest["data"]["target"] == "ill"
    with pytest.raises(ConfigError, match="names no source"):
        trainwright.train(config, runs_dir=tmp_path)
    with pytest.raises(InputError, match=r"data\.targte: there is no such setting .* did you mean 'target'"):
        trainwright.train({**WITHOUT_DATA, "data": {"targte": "ill"}}, runs_dir=tmp_path, data=frame)


def test_an_export_is_refused_an_ending_of_no_format(whole: Run, tmp_path: Path) -> None:
    with pytest.raises(
        InputError,
        match=r"model\.pkl: opening a pickle executes the code in it.*\n  --format safetensors: ",
    ):
        trainwright.export(whole, tmp_path / "model.pkl")
    assert not list(tmp_path.iterdir())
    for name, form in (("model", None), ("model.safetensors", None), ("model.bin", "safetensors")):
        assert load_file(trainwright.export(whole, tmp_path / name, form))


@pytest.mark.parametrize("path", ["x" * 300, "/".join(["y" * 200] * 25)])
def test_a_path_that_is_too_long_is_wrong_input(path: str, tmp_path: Path) -> None:
    for use in (
        lambda: trainwright.create({"model": "mlp", "data": {"path": "x.csv", "target": "y"}}, runs_dir=path),
        lambda: trainwright.list_runs(runs_dir=path),
        lambda: trainwright.evaluate("last", runs_dir=path),
        lambda: trainwright.predict_file("last", "rows.csv", path),
        lambda: trainwright.export("last", path),
        lambda: trainwright.report("last", output=path),
        lambda: trainwright.init(path),
    ):
        with pytest.raises(InputError, match="is too long for the file system"):
            use()
