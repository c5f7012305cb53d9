"""Several processes on one study: who leads it, who does its trials, and what becomes of those of the dead."""

import json
import shutil
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import trainwright
from small_runs import Crash, CrashAt, every_save_on_disk
from study_configs import TOY
from trainwright.errors import InputError, RunLockedError
from trainwright.records.run_dir import RunDir
from trainwright.records.trials import TrialLog, read_trials
from trainwright.runs.objects import Objects
from trainwright.studies.study import Study
from trainwright.studies.tuning import joined_workers, tune
from trainwright.studies.tuning.joined_workers import WorkerFolder, leading
from trainwright.studies.tuning.stints import train
from trainwright.studies.tuning.tuning_view import Tuning
from trainwright.studies.tuning.workers import WorkerProcesses, answer_to

TUNED: dict[str, Any] = {
    **TOY,
    "training": {**TOY["training"], "epochs": 2},
    "tuning": {
        "metric": "val_accuracy",
        "trials": 5,
        "horizon": 3,
        "sampler": {"type": "tpe", "n_startup_trials": 2},
        "space": {
            "training.learning_rate": {"low": 1e-3, "high": 0.1, "log": True},
            "model.params.noise": [0.0, 0.1, 0.2],
        },
    },
}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Tuning:
    """A study of one process."""
    return trainwright.tune(TUNED, runs_dir=tmp_path_factory.mktemp("runs"))


class Killed(BaseException):
    """Ends the leader as a kill would."""


class Others:
    """Workers in this process: each acts where the leader waits, so that nothing depends on the clock."""

    def __init__(self, patch: pytest.MonkeyPatch, folder: Path) -> None:
        self._folder = folder
        self.acts: list[Callable[[], None]] = []
        self.done: list[int] = []
        monkeypatched: Any = partial(WorkerProcesses, 0)  # none of the leader's own
        patch.setattr(tune, "WorkerProcesses", lambda own, *rest: monkeypatched(*rest))
        patch.setattr(WorkerProcesses, "_answering", self._act)

    def join(self) -> WorkerFolder:
        (study,) = self._folder.glob("*/tune-*")
        return WorkerFolder(study)

    def work(self, worker: WorkerFolder) -> None:
        """Do the stint that a worker was given, if any, before each look of the leader from now on."""

        def act() -> None:
            if (stint := worker.next_stint()) is not None:
                self.done.append(stint.trial)
                worker.answer(answer_to(stint))

        self.acts.append(act)

    def _act(self) -> list[Any]:
        for act in list(self.acts):
            act()
        return []


@pytest.fixture
def others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Others:
    return Others(monkeypatch, tmp_path)


def test_workers_that_join_do_the_trials(alone: Tuning, others: Others, tmp_path: Path) -> None:
    """The second one leaves with its first stint undone."""

    def watch(trial: Any) -> None:
        if trial["trial"] == 0:
            leaver = others.join()
            others.work(others.join())
            others.acts.append(lambda: leave(leaver))

    def leave(worker: WorkerFolder) -> None:
        if worker.next_stint() is not None:
            worker.leave_stint()

    study = trainwright.tune(TUNED, runs_dir=tmp_path, watch=watch)
    assert study.digest == alone.digest
    assert sorted(others.done) == [1, 2, 3, 4]
    assert read_trials(study.path)[1].number == 1
    assert len(list((study.path / joined_workers.FOLDER).iterdir())) == 1, "of the worker that has not left"


def test_the_trial_of_a_dead_worker_goes_on_from_its_checkpoint(
    alone: Tuning, others: Others, tmp_path: Path
) -> None:
    def watch(trial: Any) -> None:
        if trial["trial"] == 0:
            victim = others.join()
            others.acts.append(lambda: die(victim))

    def die(worker: WorkerFolder) -> None:
        if (stint := worker.next_stint()) is None:
            return
        with every_save_on_disk(), pytest.raises(Crash):
            train(stint, lambda _: Objects(callbacks=[CrashAt(13)]))
        others.acts.clear()
        worker.leave(is_led=True)  # as the system gives its lock up
        others.work(others.join())

    study = trainwright.tune(TUNED, runs_dir=tmp_path, watch=watch)
    assert study.digest == alone.digest
    died = RunDir(study.path.parent / read_trials(study.path)[1].run_id)
    assert [attempt.status for attempt in died.attempts()][1:] == ["completed"]
    steps = [json.loads(line) for line in (died.journal / "0002.jsonl").read_text().splitlines()]
    assert min(line["step"] for line in steps if line["kind"] == "metrics") == 11, "it was killed after 10"


def test_a_new_leader_lets_a_worker_end_the_trial_that_it_does(
    alone: Tuning, others: Others, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Any] = []
    worker: list[WorkerFolder] = []

    def watch(trial: Any) -> None:
        if trial["trial"] == 0:
            worker.append(others.join())
            others.acts.append(die)

    def die() -> None:
        if (stint := worker[0].next_stint()) is not None:
            given.append(stint)
            raise Killed  # the leader, while the worker trains

    with pytest.raises(Killed):
        trainwright.tune(TUNED, runs_dir=tmp_path, watch=watch)
    (study,) = tmp_path.glob("*/tune-*")
    order = (next((study / joined_workers.FOLDER).iterdir()) / "job.json").read_text()
    others.acts[:] = [lambda: end(worker[0])]

    def end(folder: WorkerFolder) -> None:
        assert folder.next_stint() is None, "it is not asked again"
        assert (next((study / joined_workers.FOLDER).iterdir()) / "job.json").read_text() == order
        folder.answer(answer_to(given[0]))
        others.acts.clear()
        others.work(folder)

    again = trainwright.resume_study(study.name, runs_dir=tmp_path)
    assert again.digest == alone.digest
    assert sorted(others.done) == [2, 3, 4], "1 was trained once"


def test_who_finds_no_leader_leads(alone: Tuning, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, written = TrialLog._write, [0]

    def dying(log: TrialLog, line: dict[str, Any]) -> None:
        written[0] += 1
        if written[0] == 6:
            raise Killed
        write(log, line)

    with monkeypatch.context() as patch:
        patch.setattr(TrialLog, "_write", dying)
        with pytest.raises(Killed):
            trainwright.tune(TUNED, runs_dir=tmp_path)
    (path,) = tmp_path.glob("*/tune-*")
    assert trainwright.work_study(path.name, runs_dir=tmp_path).digest == alone.digest
    assert trainwright.work_study(path.name, runs_dir=tmp_path).status == "completed", "left as it is"


def test_a_second_leader_is_told_how_to_join(tmp_path: Path) -> None:
    study = trainwright.tune(TUNED | {"tuning": TUNED["tuning"] | {"trials": 1}}, runs_dir=tmp_path)
    owner = RunDir(study.path)
    owner.acquire()
    try:
        with pytest.raises(
            RunLockedError, match=rf"owned by .*; `trainwright work {study.id}` trains trials of it"
        ):
            trainwright.resume_study(study.id, {"tuning.trials": 2}, runs_dir=tmp_path)
    finally:
        owner.release()


def test_a_leader_elsewhere_whose_lock_is_not_seen_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joined_workers, "_BEAT", 0.01)
    monkeypatch.setattr(joined_workers, "_SILENCE", 0.2)
    with leading(tmp_path):
        monkeypatch.setattr(joined_workers, "is_of_this_machine", lambda writer: False)
        with pytest.raises(InputError, match="whose lock does not reach this machine"), leading(tmp_path):
            pass
    assert not [one for one in threading.enumerate() if one.name == "trainwright-leader"]
    (tmp_path / "leader.json").write_text(json.dumps({"writer": "process 1 on elsewhere, 0", "beat": 7}))
    with leading(tmp_path):
        pass
    assert not (tmp_path / "leader.json").exists()


def test_a_study_that_repeats_another_is_not_worked_on(alone: Tuning, tmp_path: Path) -> None:
    study = Study(alone.path)
    again = Study.create(tmp_path, "small", "tune", study.record.question)
    shutil.copy(alone.path / "search.yaml", again.path)
    again.write("settings.json", study.settings("settings.json") | {"repeats": study.id})
    with pytest.raises(InputError, match=f"repeats {study.id}: trainwright reproduce"):
        trainwright.work_study(again.id, runs_dir=tmp_path)
