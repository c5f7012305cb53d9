"""Runs that end before their last step: by a limit, on request, by a verdict; and what follows."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import trainwright
from small_runs import SMALL, Crash, CrashAt, assert_same, journal_values
from trainwright.callbacks.base import Callback
from trainwright.cli.main import main
from trainwright.engine.outside import Outside
from trainwright.errors import InputError, TrainingError
from trainwright.records.run_dir import RunDir
from trainwright.runs.run import Run
from warm_commands import started

LIMIT = {"training.max_minutes": 1e-6, "training.max_steps": 5000}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return trainwright.train(SMALL, runs_dir=tmp_path_factory.mktemp("whole"))


def kinds(run: Run) -> list[str]:
    return [decision["kind"] for decision in run.decisions]


class StopAt(Callback):
    """Asks the run to stop in a step, as the thread that watches does."""

    def __init__(self, step: int, patch: pytest.MonkeyPatch) -> None:
        self._step, start = step, Outside.start

        def started(outside: Outside, *arguments: Any) -> None:
            self._outside, self._wake = outside, arguments[0]
            start(outside, *arguments)

        patch.setattr(Outside, "start", started)

    def on_log(self, step: int, metrics: Mapping[str, float]) -> None:
        if step == self._step - 1:
            self._outside.request = "stop"
            self._wake()


def stopped(runs: Path, monkeypatch: pytest.MonkeyPatch, *, at: int = 13) -> Run:
    with monkeypatch.context() as patch:
        run = trainwright.train(SMALL, runs_dir=runs, callbacks=[StopAt(at, patch)])
    assert (run.status, run.result["steps"]) == ("stopped", at)
    return run


def test_a_stopped_run_is_that_of_as_many_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a constant learning rate, a run that was planned to end there has the same bits and metrics."""
    run = stopped(tmp_path, monkeypatch)
    planned = trainwright.train(SMALL, {"training.max_steps": 13}, runs_dir=tmp_path)
    same = ("steps", "digest", "metrics", "best", "evaluated")
    assert {key: run.result[key] for key in same} == {key: planned.result[key] for key in same}
    assert journal_values(run) == journal_values(planned)
    assert run.result["metrics"]["test_accuracy"] > 0
    report = (run.path / "report.html").read_text()
    assert "step 13: stop" in report
    assert trainwright.load(run).predict is not None


def test_a_time_limit_stops_the_run_and_grants_as_much_again(tmp_path: Path) -> None:
    run = trainwright.train(SMALL, LIMIT, runs_dir=tmp_path)
    first = run.result["steps"]
    assert (run.status, kinds(run)) == ("stopped", ["time_limit"])
    assert 0 < first < 5000
    assert "test_accuracy" in run.metrics
    assert trainwright.reproduce(run).verdict == "identical"
    run = trainwright.resume(run)
    assert (run.status, kinds(run)) == ("stopped", ["time_limit", "resume", "time_limit"])
    assert first < run.result["steps"] < 5000
    assert run.result["attempts"] == 2
    assert trainwright.reproduce(run).verdict == "identical"


def test_a_run_that_ends_before_its_limit_is_completed(tmp_path: Path, whole: Run) -> None:
    run = trainwright.train(SMALL, {"training.max_minutes": 10.0}, runs_dir=tmp_path)
    assert_same(run, whole)
    assert run.decisions == []
    assert run.manifest["computation_hash"] == whole.manifest["computation_hash"], "it changes no bits"


def test_a_stopped_run_goes_on_and_does_not_stop_again_after_a_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: Run
) -> None:
    run = stopped(tmp_path, monkeypatch)
    with pytest.raises(Crash):
        trainwright.resume(run, callbacks=[CrashAt(15)])
    run = trainwright.resume(run)
    assert (run.status, run.digest, kinds(run)) == ("completed", whole.digest, ["stop", "resume"])
    assert trainwright.reproduce(run).verdict == "identical"


def test_a_run_without_its_newest_checkpoints_replays_the_stop_that_it_has_passed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: Run
) -> None:
    run = stopped(tmp_path, monkeypatch)
    (newest,) = (run.path / "checkpoints").glob("step-000000013-*")
    (newest / "weights.safetensors").unlink()
    run = trainwright.resume(run)
    assert (run.status, run.digest) == ("completed", whole.digest)
    assert 13 in [row["step"] for row in run.history() if "val_loss" in row]


def test_a_crash_while_a_stopped_run_starts_again_does_not_stop_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trainwright.runs import startup

    run = stopped(tmp_path, monkeypatch)
    with monkeypatch.context() as patch:
        patch.setattr(startup, "build", lambda *_: (_ for _ in ()).throw(Crash()))
        with pytest.raises(Crash):
            trainwright.resume(run)
    assert trainwright.resume(run).status == "completed"


def test_a_repetition_asks_nobody_even_if_it_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own config has the limit, which would stop it at once."""
    run = trainwright.train(SMALL, LIMIT, runs_dir=tmp_path)
    with pytest.raises(Crash):
        trainwright.reproduce(run, callbacks=[CrashAt(1)])
    again = trainwright.resume("last", runs_dir=tmp_path)
    assert again.id != run.id
    assert (again.status, again.digest, again.decisions) == ("stopped", run.digest, run.decisions)


def test_a_repetition_that_is_stopped_itself_proves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: Run
) -> None:
    with monkeypatch.context() as patch, pytest.raises(TrainingError, match="stopped at step 9"):
        trainwright.reproduce(whole, callbacks=[StopAt(9, patch)])


def test_train_resume_continues_a_stopped_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = stopped(tmp_path, monkeypatch)
    again = trainwright.train(SMALL, runs_dir=tmp_path, resume=True)
    assert (again.id, again.status) == (run.id, "completed")


# -- verdicts


class Judge:
    """Prunes at a step; notes at which steps it was asked."""

    def __init__(self, prune_at: int) -> None:
        self._prune_at = prune_at
        self.asked: list[int] = []

    def __call__(self, step: int, metrics: Mapping[str, float]) -> Any:
        self.asked.append(step)
        assert "val_loss" in metrics
        return "prune" if step == self._prune_at else "keep"


def test_a_pruned_run_ends_without_a_test_and_goes_on_on_request(tmp_path: Path, whole: Run) -> None:
    judge = Judge(14)
    run = trainwright.train(SMALL, runs_dir=tmp_path, verdict=judge)
    assert (run.status, run.result["steps"], run.metrics) == ("pruned", 14, {})
    assert (judge.asked, kinds(run)) == ([7, 14], ["keep", "prune"])
    assert trainwright.reproduce(run).verdict == "identical"
    judge = Judge(0)
    run = trainwright.resume(run, verdict=judge)
    assert judge.asked == [21, 28]
    assert_same(run, whole)


def test_a_paused_run_goes_on_as_if_it_had_not_paused(tmp_path: Path, whole: Run) -> None:
    run = trainwright.train(
        SMALL, runs_dir=tmp_path, verdict=lambda step, _: "pause" if step == 14 else "keep"
    )
    assert (run.status, run.result["steps"], run.metrics) == ("paused", 14, {})
    run = trainwright.resume(run)
    assert kinds(run) == ["keep"], "of step 7; a pause is no decision"
    assert_same(run, whole)


def test_a_verdict_is_not_asked_for_again_after_a_crash(tmp_path: Path) -> None:
    judge = Judge(0)
    with pytest.raises(Crash):  # after the verdict on step 14, and before a checkpoint of it
        trainwright.train(SMALL, runs_dir=tmp_path, verdict=judge, callbacks=[CrashAt(14)])
    run = trainwright.resume("last", runs_dir=tmp_path, verdict=judge)
    assert judge.asked == [7, 14, 21, 28]
    assert run.status == "completed"


@pytest.mark.parametrize("verdict", ["prune", lambda step: "keep", lambda step, metrics, more: "keep"])
def test_a_verdict_that_cannot_be_asked_is_refused_before_anything_is_made(
    verdict: Any, tmp_path: Path, whole: Run
) -> None:
    message = "verdict: .* give a function that takes the step and the metrics, and returns 'keep', 'prune' or 'pause'"
    calls = (
        lambda: trainwright.train(SMALL, runs_dir=tmp_path, verdict=verdict),
        lambda: trainwright.resume(whole, verdict=verdict),
        lambda: trainwright.fork(whole, {"training.max_steps": 40}, verdict=verdict),
    )
    runs = len(trainwright.list_runs(whole.path.parent.parent))
    for call in calls:
        with pytest.raises(InputError, match=message):
            call()
    assert trainwright.list_runs(tmp_path) == []
    assert len(trainwright.list_runs(whole.path.parent.parent)) == runs


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        ({"data.split.val": 0, "evaluation.every_n_steps": None}, "no validation split; set data.split.val"),
        (
            {"evaluation.every_n_steps": 30},
            "evaluated at the end only; see evaluation.every_n_steps",
        ),
        ({"evaluation.every_n_steps": 29}, ""),
    ],
)
def test_a_verdict_that_nobody_asks_for_is_said(
    overrides: dict[str, Any], reason: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    judge = Judge(0)
    trainwright.train(SMALL, overrides, runs_dir=tmp_path, verdict=judge)
    assert judge.asked == ([] if reason else [29])
    said = [record.message for record in caplog.records if "the verdict will not be asked" in record.message]
    assert len(said) == bool(reason)
    assert reason in "".join(said)


# -- requests


@pytest.mark.parametrize("status", ["created", "completed", "stopped"])
def test_only_a_running_run_can_be_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: str
) -> None:
    if status == "created":
        run = Run(RunDir.create(tmp_path, "small", "model: mlp\n"))
    elif status == "completed":
        run = trainwright.train(SMALL, {"training.max_steps": 1}, runs_dir=tmp_path)
    else:
        run = stopped(tmp_path, monkeypatch)
    with pytest.raises(InputError, match=f"run {run.id} is {status}, not running: there is nothing to stop"):
        trainwright.stop(run)
    assert not list(run.path.glob("attempts/*.stop"))


@pytest.mark.slow
def test_a_run_in_another_process_is_stopped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the command line: both processes end with 0, and the run has its test metrics."""
    words = ["data=iris", "model=mlp", "training.max_steps=100000000", "training.threads=1"]
    (tmp_path / "long.yaml").write_text("evaluation: {every_n_steps: 1000000}\n")
    monkeypatch.setenv("TRAINWRIGHT_RUNS", str(tmp_path / "runs"))
    command = ["train", "long.yaml", *words, "logging.every_n_steps=1000"]
    with started(*command, folder=tmp_path) as process:
        process.until_printed("train_loss")
        assert main(["stop", "last", "--runs-dir", str(tmp_path / "runs")]) == 0
        ended = process.end()
        assert ended.returncode == 0
    run = trainwright.get("last", runs_dir=tmp_path / "runs")
    assert capsys.readouterr().out == f"run {run.id} is stopped, at step {run.result['steps']}\n"
    assert "event=stop " in ended.stdout
    assert "test_accuracy" in run.metrics
    assert kinds(run) == ["stop"]
    assert main(["runs", "show", "last", "--runs-dir", str(tmp_path / "runs")]) == 0
    assert f"step {run.result['steps']}: stop" in capsys.readouterr().out


def test_a_callback_stops_its_own_run(tmp_path: Path) -> None:
    class Stops(Callback):
        def on_log(self, step: int, metrics: Mapping[str, float]) -> None:
            if step == 1:
                trainwright.stop("last", runs_dir=tmp_path, wait=False)

    endless = {"training.max_steps": 10**8, "evaluation.every_n_steps": 10**8, "logging.every_n_steps": 1000}
    run = trainwright.train(
        SMALL, {**endless, "logging.every_n_steps": 1}, runs_dir=tmp_path, callbacks=[Stops()]
    )
    assert (run.status, kinds(run)) == ("stopped", ["stop"])
    assert run.result["metrics"]["test_accuracy"] > 0
