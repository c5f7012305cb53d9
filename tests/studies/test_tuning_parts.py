"""Trials of several runs (folds, seeds), the last training of the best one, and studies that are made again."""

import json
import logging
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import trainwright
from study_configs import TOY
from trainwright.cli.main import main
from trainwright.errors import CheckpointError, ConfigError, InputError
from trainwright.records.run_dir import RunDir
from trainwright.records.study import study_problems
from trainwright.records.trials import (
    FILE,
    LENGTH,
    SEAL,
    Ending,
    LoggedTrial,
    TrialLog,
    damage,
    read_log,
    read_trials,
)
from trainwright.reports.studies import write_report
from trainwright.runs.run import Run
from trainwright.studies.tuning.reproduce import compare_studies, first_difference
from trainwright.studies.tuning.tuning_view import CONFIG, Tuning

TUNED: dict[str, Any] = {
    **TOY,
    "tuning": {
        "metric": "val_loss",
        "trials": 2,
        "sampler": "random",
        "space": {"training.learning_rate": {"low": 0.01, "high": 1.0, "log": True}},
    },
}


def runs_of(study: Tuning, trial: LoggedTrial) -> list[Run]:
    return [trainwright.get(study.path.parent / one) for one in (trial.run_id, *trial.others)]


def setting(run: Run, key: str) -> Any:
    return RunDir(run.path).require_manifest().computation[key]


def best_of(run: Run) -> float:
    return min(row["val_loss"] for row in run.history() if "val_loss" in row)


# -- folds and seeds


@pytest.fixture(scope="module")
def folded(tmp_path_factory: pytest.TempPathFactory) -> Tuning:
    return trainwright.tune(TUNED, {"tuning.folds": 3}, runs_dir=tmp_path_factory.mktemp("runs"))


def test_the_value_of_a_trial_is_the_mean_over_its_folds(folded: Tuning) -> None:
    for trial in read_trials(folded.path):
        runs = runs_of(folded, trial)
        assert [setting(run, "data.split.val_fold") for run in runs] == [0, 1, 2]
        assert trial.ending is not None
        assert trial.ending.value == pytest.approx(sum(map(best_of, runs)) / 3, rel=1e-12)
        assert len(trial.ending.curve) == 3
        rows = [RunDir(run.path).require_manifest().data.splits for run in runs]
        assert [sorted(splits) for splits in rows] == [["train", "val"]] * 3
        assert sum(splits["val"].rows for splits in rows) == 135, "the rows that do not test"


def test_the_test_split_is_scored_once_by_the_best_configuration(folded: Tuning) -> None:
    scored = [
        run for run in trainwright.list_runs(runs_dir=folded.path.parent.parent) if "test_loss" in run.metrics
    ]
    assert [run.id for run in scored] == [folded.best_run.id]  # type: ignore[union-attr]
    assert folded.result["best"]["digest"] == scored[0].digest
    assert setting(scored[0], "training.learning_rate") == folded.best_params["training.learning_rate"]
    splits = RunDir(scored[0].path).require_manifest().data.splits
    assert {name: split.rows for name, split in splits.items()} == {"train": 120, "val": 15, "test": 15}


def test_repeats_are_the_same_trial_with_other_seeds(tmp_path: Path) -> None:
    study = trainwright.tune(TUNED, {"tuning.repeats": 2}, runs_dir=tmp_path)
    for trial in read_trials(study.path):
        runs = runs_of(study, trial)
        assert [setting(run, "experiment.seed") for run in runs] == [3, 4]
        assert runs[0].digest != runs[1].digest
        assert trial.ending is not None
        assert trial.ending.value == pytest.approx(sum(map(best_of, runs)) / 2, rel=1e-12)
    assert study.best_run is not None
    assert setting(study.best_run, "experiment.seed") == 3


def test_folds_go_from_rung_to_rung_together(tmp_path: Path) -> None:
    more = {"tuning.folds": 2, "tuning.trials": 3, "tuning.pruner": "halving"}
    study = trainwright.tune(TUNED, more, runs_dir=tmp_path)
    ended = [[RunDir(run.path).status() for run in runs_of(study, one)] for one in read_trials(study.path)]
    assert sorted(ended) == [["completed"] * 2, ["pruned"] * 2, ["pruned"] * 2]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tuning.folds": 3, "tuning.pruner": "median"}, "allowed: none, halving, hyperband"),
        ({"tuning.repeats": 3, "tuning.pruner": "median"}, "allowed: none, halving, hyperband"),
        ({"tuning.refit": True, "training.scheduler": "plateau"}, "needs; keep one"),
        ({"tuning.folds": 1}, "tuning.folds"),
    ],
)
def test_what_does_not_go_together_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        trainwright.tune(TUNED, changes, runs_dir=tmp_path)
    with pytest.raises(ConfigError, match=message):
        trainwright.check(TUNED, changes)


# -- the last training


def test_refit_trains_the_best_configuration_on_all_rows_for_its_best_epoch(tmp_path: Path) -> None:
    stopping = {"metric": "val_loss", "patience": 1}
    config = {**TUNED, "training": {**TUNED["training"], "early_stopping": stopping}}
    study = trainwright.tune(config, {"tuning.refit": True}, runs_dir=tmp_path)
    best = read_trials(study.path)[study.result["best"]["trial"]]
    assert study.best_run is not None
    assert best.ending is not None
    assert best.ending.step is not None
    plain = {key: value for key, value in TUNED.items() if key != "tuning"}
    whole = {**best.params, "data.split.val": 0, "training.epochs": best.ending.step // 8}
    alone = trainwright.train(plain, whole, runs_dir=tmp_path / "alone")
    assert study.best_run.digest == alone.digest
    assert study.best_run.metrics == alone.metrics
    assert RunDir(study.best_run.path).require_manifest().data.splits["train"].rows == 135
    again = trainwright.train(study.best_config, runs_dir=tmp_path / "again")  # type: ignore[arg-type]
    assert again.digest == alone.digest


class Killed(BaseException):
    """Ends the study as a kill would: nothing that catches errors catches it."""


def test_a_study_that_dies_in_its_last_training_goes_on_with_it(
    folded: Tuning, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    note: Callable[..., None] = TrialLog.note

    def dying(log: TrialLog, **detail: Any) -> None:
        note(log, **detail)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(TrialLog, "note", dying)
        with pytest.raises(Killed):
            trainwright.tune(TUNED, {"tuning.folds": 3}, runs_dir=tmp_path)
    resumed = trainwright.tune(TUNED, {"tuning.folds": 3}, runs_dir=tmp_path, resume=True)
    assert resumed.digest == folded.digest
    assert resumed.result["best"]["digest"] == folded.result["best"]["digest"]
    assert len(trainwright.list_runs(runs_dir=tmp_path)) == 7


# -- by name


@pytest.fixture
def copied(folded: Tuning, tmp_path: Path) -> Tuning:
    shutil.copytree(folded.path.parent, tmp_path / folded.path.parent.name)
    return Tuning(tmp_path / folded.path.parent.name / folded.id)


def test_a_study_is_repeated_trial_by_trial(copied: Tuning) -> None:
    result = trainwright.reproduce_study(copied.id, runs_dir=copied.path.parent.parent)
    assert (result.verdict, result.trials, result.trial) == ("identical", (2, 2), None)
    again = Tuning(copied.path.parent / result.repetition)
    assert result.digests == (copied.digest, again.digest) == (copied.digest,) * 2
    with pytest.raises(InputError, match="begins again"):
        trainwright.resume_study(again.id, runs_dir=again.path.parent.parent)
    lines = [json.loads(line) for line in (again.path / FILE).read_text().splitlines()]
    lines[1]["end"]["curve"][1][1] = 9.0
    for name in (FILE, SEAL):
        (again.path / name).unlink()
    log = TrialLog(again.path)
    for line in lines:
        del line["crc"]
        log._write(line)
    log.close()
    different = compare_studies(copied, again)
    assert (different.verdict, different.trial) == ("different", 0)
    assert str(different.what).startswith("the metric at step")
    assert different.run is not None
    assert different.run.verdict == "identical", "it is the log that was changed"


def test_what_a_repetition_cannot_compare_is_named(copied: Tuning) -> None:
    """The best configuration, trained once more, counts with all that its run holds."""
    assert copied.best_run is not None
    trial = RunDir(copied.path.parent / read_trials(copied.path)[0].run_id)
    result = trainwright.reproduce_study(copied.id, runs_dir=copied.path.parent.parent)
    again = Tuning(copied.path.parent / result.repetition)
    (copied.best_run.path / "evaluation" / "test.json").unlink()
    max(trial.path.glob("log/*")).unlink()  # nothing says that it has ended
    found = compare_studies(copied, again)
    assert (found.verdict, len(found.uncompared)) == ("incomplete", 2)
    assert found.uncompared[0].startswith(f"trial 0 not compared: run {trial.id} is crashed")
    assert found.uncompared[1].startswith("the best configuration: evaluation/test.json not compared")


def test_a_seal_may_be_older_than_the_log(copied: Tuning) -> None:
    """It is not fsynced: a power cut may leave that of some lines before."""
    seals, log = list[bytes](), TrialLog(copied.path)
    for _ in range(3):
        log.note(kind=LENGTH, trials=2)
        seals.append((copied.path / SEAL).read_bytes())
    log.close()
    (copied.path / SEAL).write_bytes(seals[0])
    assert damage(copied.path) is None
    assert len(read_trials(copied.path)) == 2
    with open(copied.path / FILE, "r+b") as file:  # a digit of the last line, behind the seal
        file.seek(-20, os.SEEK_END)
        file.write(b"9")
    with pytest.raises(CheckpointError, match="is damaged"):
        read_trials(copied.path)


def test_a_study_goes_on_by_its_name(copied: Tuning, tmp_path: Path) -> None:
    more = trainwright.resume_study(copied.id, ["tuning.trials=3"], runs_dir=tmp_path)
    assert more.path == copied.path
    whole = trainwright.tune(TUNED, {"tuning.folds": 3, "tuning.trials": 3}, runs_dir=tmp_path / "whole")
    assert more.digest == whole.digest


def test_a_study_has_as_many_trials_as_were_asked_for_last(copied: Tuning, tmp_path: Path) -> None:
    """Also after a kill, where nothing says it again."""

    def stop(_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trainwright.resume_study(copied.id, ["tuning.trials=4"], runs_dir=tmp_path, watch=stop)
    assert len(read_trials(copied.path)) == 3
    more = trainwright.resume_study(copied.id, runs_dir=tmp_path)
    assert (more.status, more.result["trials"]) == ("completed", 4)
    assert trainwright.reproduce_study(copied.id, runs_dir=tmp_path).verdict == "identical"


LINES: dict[str, Callable[[list[bytes]], list[bytes]]] = {
    "deleted": lambda lines: [lines[0], *lines[2:]],
    "doubled": lambda lines: [*lines, lines[-1]],
    "swapped": lambda lines: [lines[0], lines[2], lines[1], *lines[3:]],
    "truncated": lambda lines: lines[:2],
    "flipped": lambda lines: [lines[0], lines[1].replace(b"0.", b"1.", 1), *lines[2:]],
    "emptied": lambda _: [],
}


@pytest.mark.parametrize("how", LINES)
def test_a_changed_log_of_a_study_is_named(
    how: str, copied: Tuning, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert study_problems(copied.path) == []
    path = copied.path / FILE
    path.write_bytes(b"".join(LINES[how](path.read_bytes().splitlines(keepends=True))))
    if how == "emptied":  # both files are gone, but the record of the study remembers
        for name in (FILE, SEAL):
            (copied.path / name).unlink()
    (problem,) = study_problems(copied.path)
    assert problem.startswith(str(path))
    assert main(["studies", "list", "--runs-dir", str(tmp_path), "--json"]) == 0
    (listed,) = json.loads(capsys.readouterr().out)
    assert (listed["status"], listed["summary"]) == ("damaged", problem)
    assert FILE in write_report(copied.path).read_text()
    for refused in (trainwright.resume_study, trainwright.reproduce_study):
        with pytest.raises(CheckpointError, match=r"trials\.jsonl"):
            refused(copied.id, runs_dir=tmp_path)


@pytest.mark.parametrize("is_gone", [True, False])
def test_a_changed_result_of_a_study_is_named(is_gone: bool, copied: Tuning, tmp_path: Path) -> None:
    path = copied.path / "result.json"
    text = path.read_text()
    path.unlink() if is_gone else path.write_text(text.replace('"trials": 2', '"trials": 3'))
    assert is_gone or path.read_text() != text
    problem = "missing, though it was written" if is_gone else "its content is not what was written"
    assert study_problems(copied.path) == [f"{path}: {problem}"]
    with pytest.raises(CheckpointError, match=problem):
        copied.typed_result  # noqa: B018 - it is read
    with pytest.raises(CheckpointError, match=problem):
        trainwright.reproduce_study(copied.id, runs_dir=tmp_path)


@pytest.mark.parametrize("name", ["search.yaml", "settings.json", "best.yaml"])
def test_a_changed_record_of_a_study_is_named(name: str, copied: Tuning, tmp_path: Path) -> None:
    with open(copied.path / name, "a", encoding="utf-8") as file:
        file.write(" ")
    (problem,) = study_problems(copied.path)
    assert problem == f"{copied.path / name}: 1 bytes follow that the run did not write"
    with pytest.raises(CheckpointError, match=name):
        trainwright.reproduce_study(copied.id, runs_dir=tmp_path)


def test_a_study_cannot_have_fewer_trials_than_it_has(
    copied: Tuning, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = (copied.path / "study.json").read_bytes()
    message = f"study {copied.id} has 2 trials, and cannot have 1: give 2 or more"
    with pytest.raises(InputError, match=message):
        trainwright.resume_study(copied.id, ["tuning.n_trials=1"], runs_dir=tmp_path)
    shorter = {**TUNED, "tuning": {**TUNED["tuning"], "trials": 1}}
    with pytest.raises(InputError, match=message):
        trainwright.tune(shorter, {"tuning.folds": 3}, runs_dir=tmp_path, resume=True)
    assert (copied.path / "study.json").read_bytes() == before
    caplog.set_level(logging.INFO, "trainwright")
    same = trainwright.resume_study(copied.id, ["tuning.trials=2"], runs_dir=tmp_path)
    assert same.digest == copied.digest
    assert (
        f"study {copied.id} is completed: there is nothing left to do; for more trials: trainwright"
        in caplog.text
    )
    caplog.clear()
    longer = trainwright.resume_study(copied.id, ["tuning.n_trials=3"], runs_dir=tmp_path)
    assert len(longer.trials) == 3
    assert "nothing left" not in caplog.text


def test_a_grid_that_is_done_has_no_other_points(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    space = {"training.learning_rate": [0.1, 0.2]}
    grid = {**TOY, "tuning": {"metric": "val_loss", "sampler": "grid", "space": space}}
    study = trainwright.tune(grid, runs_dir=tmp_path)
    caplog.set_level(logging.INFO, "trainwright")
    trainwright.resume_study(study.id, ["tuning.trials=9"], runs_dir=tmp_path)
    assert "there is nothing left to do; its grid has no other points" in caplog.text


def test_a_time_limit_is_granted_again(tmp_path: Path) -> None:
    short = trainwright.tune(TUNED, {"tuning.max_minutes": 1e-9}, runs_dir=tmp_path)
    assert trainwright.tune(TUNED, {}, runs_dir=tmp_path, resume=True).result["trials"] == 0
    more = trainwright.resume_study(str(short.path), ["tuning.max_minutes=null"])
    assert more.result["trials"] == 2
    assert [note["kind"] for note in read_log(more.path).notes] == ["time_limit", "go_on"]


def test_a_study_keeps_its_config(copied: Tuning, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"training.epochs: a study that goes on keeps its config"):
        trainwright.resume_study(copied.id, ["training.epochs=9"], runs_dir=tmp_path)
    config = (copied.path / CONFIG).read_text()
    (copied.path / CONFIG).write_text(config.replace("batch_size: 16", "batch_size: 15"))
    with pytest.raises(InputError, match="has changed since study"):
        trainwright.resume_study(copied.id, runs_dir=tmp_path)
    (copied.path / CONFIG).write_text(config.replace("type: toy", "type: toy_package:Toy"))
    with pytest.raises(InputError, match=r"names code|has changed since study"):
        trainwright.resume_study(copied.id, runs_dir=tmp_path)
    (copied.path / CONFIG).unlink()
    with pytest.raises(InputError, match="trainwright tune CONFIG --resume"):
        trainwright.reproduce_study(copied.id, runs_dir=tmp_path)


def test_the_first_difference_is_named() -> None:
    end = Ending("completed", 0.5, 2, ((1, 0.7), (2, 0.5)), "abc", 1.0)
    trial = LoggedTrial(0, {"a": 1}, "run-0", ending=end)
    assert first_difference([trial], [trial._replace(run_id="other", ending=end._replace(seconds=9))]) is None
    for other, what in (
        (trial._replace(params={"a": 2}), "a: 1, then 2"),
        (trial._replace(params={"a": 1, "b": 0}), "b: none, then 0"),
        (trial._replace(ending=None), "one of the two has not ended"),
        (
            trial._replace(ending=end._replace(curve=((1, 0.7), (2, 0.6)))),
            "the metric at step 2: 0.5, then 0.6",
        ),
        (trial._replace(ending=end._replace(status="pruned")), "status: 'completed', then 'pruned'"),
        (trial._replace(ending=end._replace(digest="abd")), "digest: 'abc', then 'abd'"),
    ):
        assert first_difference([trial], [other]) == (0, what)
    assert first_difference([trial], []) == (0, "1 trials, then 0")


@pytest.mark.slow
def test_the_commands_take_a_study(copied: Tuning, tmp_path: Path) -> None:
    from warm_commands import command

    again = command("reproduce", copied.id, "--runs-dir", ".", "--quiet", folder=tmp_path)
    assert again.returncode == 0, again.stderr
    assert "identical: tune-" in again.stdout
    assert f"repeats {copied.id}: 2 trials, digest {copied.digest}" in again.stdout
    shown = command("studies", "show", copied.id, "--runs-dir", ".", folder=tmp_path)
    assert str(copied.digest) in shown.stdout


def test_trackers_get_what_they_lack_of_the_last_training_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []

    def tell(study: Any, resolved: Any, runs: Sequence[RunDir] = ()) -> None:
        told.extend(run.id for run in runs)

    monkeypatch.setattr("trainwright.studies.driver.tell_trackers", tell)
    tuning = {"trials": 2, "refit": True, "space": {"training.learning_rate": [0.05, 0.1]}}
    study = trainwright.tune({**TOY, "tuning": tuning}, runs_dir=tmp_path)
    assert study.best_run is not None
    assert told == [*study.trials["run_id"], study.best_run.id]
