import json
import shutil
import sys
import time
from pathlib import Path

import pytest
from commandline import Command, write_run

import trainwright
from trainwright.cli.cleaning import _Age
from trainwright.engine.journal import Journal
from trainwright.errors import InputError
from trainwright.records.run_dir import RunDir
from trainwright.records.study import StudyRecord, StudyRun
from trainwright.records.trials import LoggedStint, LoggedTrial, TrialLog
from trainwright.runs import deletion
from trainwright.storage import deletion as folders
from written import write_record

A, B, FAILED = "20260101-000000-aaaaaa", "20260102-000000-bbbbbb", "20260103-000000-cccccc"
FOLDS = ("20260104-000000-ddddd1", "20260104-000000-ddddd2")
STUDY = "cv-20260104-000000-eeeeee"


@pytest.fixture
def study(runs_dir: Path) -> Path:
    """A cross-validation of two folds that has ended."""
    folder = runs_dir / "digits" / STUDY
    folder.mkdir(parents=True)
    runs = [StudyRun(label={"fold": number}, run_id=run_id) for number, run_id in enumerate(FOLDS, 1)]
    record = StudyRecord(
        study_id=STUDY, kind="cv", experiment="digits", created=1.0, status="completed", runs=runs
    )
    record.save(folder / StudyRecord.FILE)
    metrics = {"test_accuracy": {"mean": 0.9, "std": 0.01, "low": 0.88, "high": 0.92}}
    RunDir(folder).write_json("result.json", {"status": "completed", "metrics": metrics})
    for run_id in FOLDS:
        write_run(runs_dir, run_id)
    return folder


def test_list_has_one_line_for_a_study(command: Command, runs_dir: Path, study: Path) -> None:
    words = ("runs", "list", "--runs-dir", runs_dir)
    rows = command(*words).out.splitlines()[1:]
    assert [row.split()[0] for row in rows] == [STUDY, FAILED, B, A]
    assert rows[0].split()[1:3] == ["digits", "completed"]
    assert rows[0].endswith("2 folds, test_accuracy 0.9 ± 0.01")
    rows = command(*words, "--all").out.splitlines()[1:]
    assert [row.partition("  digits")[0].rstrip() for row in rows[:4]] == [
        STUDY,
        f"  {FOLDS[1]}",
        f"  {FOLDS[0]}",
        FAILED,
    ]
    flat = command(*words, "--filter", f"study = {STUDY}", "--columns", "run,study").out.splitlines()[1:]
    assert [row.split() for row in flat] == [[FOLDS[1], STUDY], [FOLDS[0], STUDY]]
    documents = command(*words, "--json").json
    assert [(one["run_id"], one["study"], one["label"]) for one in documents[:3]] == [
        (FOLDS[1], STUDY, {"fold": 2}),
        (FOLDS[0], STUDY, {"fold": 1}),
        (FAILED, None, None),
    ]


def test_clean_deletes_nothing_until_it_is_told_to(command: Command, runs_dir: Path) -> None:
    done = command("runs", "clean", "--runs-dir", runs_dir)
    assert FAILED in done.out
    assert A not in done.out
    assert "would delete 1 run, " in done.out
    assert (done.code, "add --yes" in done.err) == (2, True)
    dry = command("runs", "clean", "--runs-dir", runs_dir, "--dry-run")
    assert (dry.code, "would delete 1 run, " in dry.out) == (0, True)
    assert (runs_dir / "digits" / FAILED).exists()


def test_clean(command: Command, runs_dir: Path) -> None:
    size = sum(path.stat().st_size for path in (runs_dir / "digits" / FAILED).rglob("*") if path.is_file())
    found = command("runs", "clean", "--runs-dir", runs_dir, "--yes", "--json").json
    assert (found["deleted"], found["bytes"], [run["run_id"] for run in found["runs"]]) == (
        True,
        size,
        [FAILED],
    )
    assert sorted(path.name for path in (runs_dir / "digits").iterdir()) == [A, B]


def test_clean_says_how_many_runs(command: Command, runs_dir: Path) -> None:
    both = command("runs", "clean", "--runs-dir", runs_dir, "--status", "completed", "--yes").out
    assert "deleted 2 runs, " in both


def test_clean_by_status(command: Command, runs_dir: Path) -> None:
    command("runs", "clean", "--runs-dir", runs_dir, "--status", "completed", "--yes")
    assert [path.name for path in (runs_dir / "digits").iterdir()] == [FAILED]


def test_clean_keeps_what_can_be_resumed(command: Command, runs_dir: Path) -> None:
    commit = runs_dir / "digits" / FAILED / "checkpoints" / "step-000005"
    commit.mkdir(parents=True)
    (commit / "manifest.json").write_text("{}", encoding="utf-8")
    assert command("runs", "clean", "--runs-dir", runs_dir, "--yes", "--json").json["runs"] == []
    named = command("runs", "clean", "--runs-dir", runs_dir, "--status", "failed", "--yes", "--json").json
    assert [run["run_id"] for run in named["runs"]] == [FAILED]


def test_clean_passes_a_damaged_run_over(command: Command, runs_dir: Path) -> None:
    (runs_dir / "digits" / A / "attempts" / "0001.json").write_text("{", encoding="utf-8")
    done = command("runs", "clean", "--runs-dir", runs_dir, "--yes")
    assert done.code == 0
    assert f"run {A} is skipped" in done.err
    assert sorted(path.name for path in (runs_dir / "digits").iterdir()) == [A, B]


def test_clean_counts_only_what_it_deleted(
    command: Command, runs_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run may be taken up between the look and the deletion."""
    monkeypatch.setattr(deletion, "delete", lambda _: False)
    found = command("runs", "clean", "--runs-dir", runs_dir, "--yes", "--json").json
    assert (found["bytes"], found["runs"]) == (0, [])


def ids(runs_dir: Path) -> list[str]:
    return sorted(path.name for path in (runs_dir / "digits").iterdir())


def test_clean_asks(command: Command, runs_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", type("Terminal", (), {"isatty": lambda _: True})())
    asked: list[str] = []
    monkeypatch.setattr("click.confirm", asked.append)
    done = command("runs", "clean", "--runs-dir", runs_dir)
    assert (done.code, asked, ids(runs_dir)) == (0, ["Go on?"], [A, B, FAILED])
    monkeypatch.setattr("click.confirm", lambda _: True)
    assert command("runs", "clean", "--runs-dir", runs_dir).out.splitlines()[-1].startswith("deleted 1 run, ")
    assert ids(runs_dir) == [A, B]


def test_clean_of_what_is_old(command: Command, runs_dir: Path, study: Path) -> None:
    """A study goes with its folds; one whose newest fold is young stays."""
    words = ("runs", "clean", "--older-than", "30d", "--runs-dir", runs_dir, "--dry-run", "--json")
    now = time.time()
    for run_id, age in ((A, 31), (B, 29), (FAILED, 40), (FOLDS[0], 50), (FOLDS[1], 1)):
        write_record(
            runs_dir / "digits" / run_id / "attempts" / "0001.json",
            {"status": "completed", "started": 1.0, "ended": now - age * 86400},
        )
    assert [one["run_id"] for one in command(*words).json["runs"]] == [FAILED, A]
    write_record(
        runs_dir / "digits" / FOLDS[1] / "attempts" / "0001.json",
        {"status": "completed", "started": 1.0, "ended": now - 45 * 86400},
    )
    assert [one["run_id"] for one in command(*words).json["runs"]] == [STUDY, FAILED, A]
    assert command(*words, "--experiment", "other").json["runs"] == []
    done = command("runs", "clean", "--older-than", "30d", "--runs-dir", runs_dir, "--yes")
    assert done.out.splitlines()[-1].startswith("deleted 4 runs and 1 study, ")
    assert ids(runs_dir) == [B]
    assert "30d" in command("runs", "clean", "--older-than", "month", "--runs-dir", runs_dir).err


@pytest.mark.parametrize(("metric", "kept"), [("val_loss", [A, B]), ("val_accuracy", [B, STUDY, *FOLDS])])
def test_clean_keeps_the_best(
    metric: str, kept: list[str], command: Command, runs_dir: Path, study: Path
) -> None:
    for run_id, value in ((A, 0.1), (B, 0.2), (FAILED, None), (FOLDS[0], 0.05), (FOLDS[1], 0.4)):
        path = runs_dir / "digits" / run_id / "result.json"
        best = {"step": 1, "metric": metric, "value": value}
        write_record(path, json.loads(path.read_text()) | {"metrics": {}, "best": best if value else None})
    words = ("runs", "clean", "--keep-best", "2", "--runs-dir", runs_dir)
    if metric == "val_loss":  # the study has the best one, so that it and A are kept
        kept = [A, STUDY, *FOLDS]
    assert command(*words, "--yes").code == 0
    assert ids(runs_dir) == sorted([*kept, FAILED])


def test_delete(command: Command, runs_dir: Path, study: Path) -> None:
    words = ("runs", "delete", "--runs-dir", runs_dir)
    assert command(*words, A).code == 2
    done = command(*words, A, STUDY[:8], "--dry-run")
    assert done.out.splitlines()[-1].startswith("would delete 3 runs and 1 study, ")
    refused = command(*words, FOLDS[0], "--yes")
    assert (refused.code, f"belongs to study {STUDY}" in refused.err) == (2, True)
    found = command(*words, A, STUDY, "--yes", "--json").json
    assert [one["run_id"] for one in found["runs"]] == [A, STUDY]
    assert ids(runs_dir) == [B, FAILED]


def test_delete_refuses_what_is_running(command: Command, runs_dir: Path, study: Path) -> None:
    words = ("runs", "delete", "--runs-dir", runs_dir, "--yes")
    owner = RunDir(runs_dir / "digits" / FOLDS[0])
    owner.acquire()
    try:
        for name in (FOLDS[0], STUDY):
            refused = command(*words, name, A)
            assert "is running" in refused.err
            assert refused.code != 0
    finally:
        owner.release()
    assert ids(runs_dir) == sorted([A, B, FAILED, STUDY, *FOLDS])


def test_delete_says_which_runs_began_with_it(command: Command, runs_dir: Path) -> None:
    write_record(runs_dir / "digits" / B / "parent.json", {"run_id": A, "relation": "fork", "step": 3})
    done = command("runs", "delete", A, "--dry-run", "--runs-dir", runs_dir)
    assert f"{A} is the parent of {B}, which keeps its own copy" in done.out


def test_delete_keeps_what_a_tracker_lacks(command: Command, runs_dir: Path) -> None:
    path = runs_dir / "digits" / A
    config = path / "config.yaml"
    config.write_text(config.read_text() + "tracking: [{type: mlflow}]\n")
    journal = Journal(path / "journal", 1, 0)
    journal.values("metrics", 3, {"val_loss": 0.5})
    journal.close()
    refused = command("runs", "delete", A, "--yes", "--runs-dir", runs_dir)
    assert (refused.code, f"runs sync {A}" in refused.err) == (2, True), refused.err
    skipped = command("runs", "clean", "--status", "completed", "--yes", "--runs-dir", runs_dir)
    assert f"{A} is skipped: mlflow has not received 1 of the values" in skipped.err
    assert ids(runs_dir) == [A, FAILED]
    assert command("runs", "delete", A, "--yes", "--force", "--runs-dir", runs_dir).code == 0


@pytest.mark.parametrize(
    ("age", "seconds"), [("10min", 600), ("2 hours", 7200), ("1 Day", 86400), ("3weeks", 3 * 7 * 86400)]
)
def test_ages_in_words(age: str, seconds: float) -> None:
    assert _Age().convert(age, None, None) == seconds


def test_nothing_outside_of_the_folder_is_deleted(command: Command, runs_dir: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.move(runs_dir / "digits", other / "digits")
    runs_dir.mkdir(exist_ok=True)
    (runs_dir / "digits").symlink_to(other / "digits")
    for name in (other / "digits" / A, A):
        assert command("runs", "delete", name, "--yes", "--runs-dir", runs_dir).code == 2
    command("runs", "clean", "--status", "completed", "--yes", "--runs-dir", runs_dir)
    assert sorted(path.name for path in (other / "digits").iterdir()) == [A, B, FAILED]
    (runs_dir / "digits").unlink()
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").touch()
    write_run(runs_dir, A)
    (runs_dir / "digits" / A / "checkpoints").symlink_to(kept)
    assert command("runs", "delete", A, "--yes", "--runs-dir", runs_dir).code == 0
    assert ids(runs_dir) == []
    assert (kept / "file").exists()


@pytest.mark.parametrize("after", range(8))
def test_a_deletion_that_is_killed_leaves_nothing_that_looks_whole(
    after: int, command: Command, runs_dir: Path, study: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At any of its steps; `clean` goes on with it."""
    left = [after]

    def killed(call):  # type: ignore[no-untyped-def]
        def step(*words, **more):  # type: ignore[no-untyped-def]
            if not left[0]:
                raise KeyboardInterrupt
            left[0] -= 1
            return call(*words, **more)

        return step

    with monkeypatch.context() as patch:
        patch.setattr(folders.shutil, "rmtree", killed(shutil.rmtree))
        patch.setattr(folders, "fsync_folder", killed(folders.fsync_folder))
        command("runs", "delete", STUDY, "--yes", "--runs-dir", runs_dir)
    assert trainwright.list_runs(runs_dir) is not None
    for path in (runs_dir / "digits").iterdir():
        if path.name in FOLDS and (path / "config.yaml").exists():
            assert RunDir(path).status() == "completed"
            assert (path / "attempts").exists()
    listed = {run["run_id"]: run for run in command("runs", "list", "--json", "--runs-dir", runs_dir).json}
    whole = [run_id for run_id in FOLDS if run_id in listed]
    if whole:
        rows = command("runs", "list", "--runs-dir", runs_dir).out.splitlines()
        assert rows[1].split()[0] == STUDY
        assert rows[1].split()[2] == "deleted"
    assert command("runs", "clean", "--yes", "--runs-dir", runs_dir).code == 0
    assert ids(runs_dir) == [A, B]


def test_a_run_that_is_damaged_or_of_another_version_can_be_deleted(command: Command, runs_dir: Path) -> None:
    path = runs_dir / "digits" / A / "result.json"
    write_record(path, json.loads(path.read_text(encoding="utf-8")) | {"format": 1})
    (runs_dir / "digits" / B / "attempts" / "0001.json").write_text("{", encoding="utf-8")
    (runs_dir / "digits" / B / "result.json").write_text("{", encoding="utf-8")
    assert command("runs", "delete", A, B, "--yes", "--runs-dir", runs_dir).code == 0
    assert ids(runs_dir) == [FAILED]


def test_a_study_leads_to_no_run_outside_of_its_experiment(
    command: Command, runs_dir: Path, study: Path, tmp_path: Path
) -> None:
    """Whatever its log names, and whatever links there are."""
    other = write_run(tmp_path / "other", "20260105-000000-ffffff")
    record = StudyRecord.load(study / StudyRecord.FILE)
    assert record is not None
    linked = "20260105-000000-ffffff"
    (runs_dir / "digits" / linked).symlink_to(other)
    runs = [*record.runs, StudyRun(label={"fold": 3}, run_id=linked)]
    record.model_copy(update={"runs": runs}).save(study / StudyRecord.FILE)
    command("runs", "delete", STUDY, "--yes", "--runs-dir", runs_dir)
    assert (other / "config.yaml").exists()
    assert (other / "attempts" / "0001.json").exists()
    tune = runs_dir / "digits" / "tune-20260106-000000-aaaaaa"
    tune.mkdir()
    fields = {"study_id": tune.name, "kind": "tune", "experiment": "digits", "created": 1.0}
    StudyRecord(**fields, status="completed").save(tune / StudyRecord.FILE)
    (tune / "trials.jsonl").touch()
    log = TrialLog(tune)
    log.begin(LoggedTrial(0, {}, f"../../other/digits/{linked}", stints=(LoggedStint(0),)))
    log.close()
    command("runs", "delete", tune.name, "--yes", "--runs-dir", runs_dir)
    assert not tune.exists()
    assert (other / "config.yaml").exists()


def test_runs_of_studies_in_a_relative_folder(
    command: Command, runs_dir: Path, study: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(runs_dir.parent)
    assert command("runs", "delete", FOLDS[0], "--yes").code == 2
    found = command("runs", "clean", "--older-than", "0s", "--dry-run", "--json").json["runs"]
    assert [one["run_id"] for one in found] == [STUDY, FAILED, B, A]
    assert command("runs", "delete", STUDY, A, "--yes").code == 0
    assert ids(runs_dir) == [B, FAILED]


def test_clean_as_a_function(runs_dir: Path) -> None:
    assert [run.id for run in trainwright.clean(runs_dir, older_than=0, keep_best=3)] == []
    with pytest.raises(InputError, match="keep_best is -1: give 1 or more"):
        trainwright.clean(runs_dir, keep_best=-1)
    assert [path.name for path in trainwright.delete(B, runs_dir=runs_dir)] == [B]
    assert ids(runs_dir) == [A, FAILED]


def test_delete_says_which_runs_need_its_weights(command: Command, runs_dir: Path) -> None:
    path = runs_dir / "digits" / B / "manifest.json"
    manifest = json.loads(path.read_text()) | {"init_from": str(runs_dir / "digits" / A)}
    write_record(path, manifest)
    done = command("runs", "delete", A, "--dry-run", "--runs-dir", runs_dir)
    assert f"{B} began with the weights of {A}" in done.out


def test_clean_by_status_takes_studies_as_a_whole(command: Command, runs_dir: Path, study: Path) -> None:
    record = StudyRecord.load(study / StudyRecord.FILE)
    assert record is not None
    words = ("runs", "clean", "--status", "completed", "--runs-dir", runs_dir, "--yes")
    record.model_copy(update={"status": "interrupted"}).save(study / StudyRecord.FILE)
    assert command(*words, "--dry-run", "--json").json["bytes"] > 0
    assert command(*words).code == 0
    assert ids(runs_dir) == sorted([FAILED, STUDY, *FOLDS])
    record.save(study / StudyRecord.FILE)
    assert command(*words).code == 0
    assert ids(runs_dir) == [FAILED]


def test_a_run_object_is_deleted_in_its_own_folder(
    runs_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = trainwright.get(A, runs_dir=runs_dir)
    assert trainwright.delete(run) == [run.path]
    assert ids(runs_dir) == [B, FAILED]


def test_clean_returns_a_study_without_runs(runs_dir: Path, study: Path) -> None:
    for run_id in FOLDS:
        shutil.rmtree(runs_dir / "digits" / run_id)
    gone = trainwright.clean(runs_dir, older_than=1.0, experiment="digits", dry_run=False)
    assert study in [one.path for one in gone]
    assert not study.exists()


def test_a_lock_that_is_a_link_is_deleted_and_not_followed(
    command: Command, runs_dir: Path, tmp_path: Path
) -> None:
    (tmp_path / "kept").write_text("kept")
    lock = runs_dir / "digits" / A / "lock"
    lock.unlink(missing_ok=True)
    lock.symlink_to(tmp_path / "kept")
    done = command("runs", "delete", A, "--yes", "--runs-dir", runs_dir)
    assert (done.code, ids(runs_dir)) == (0, [B, FAILED]), done.err
    assert (tmp_path / "kept").read_text() == "kept"


def test_a_run_that_goes_on_after_it_was_chosen_is_not_deleted(runs_dir: Path) -> None:
    chosen = deletion.of_run(RunDir(runs_dir / "digits" / A))
    first = runs_dir / "digits" / A / "attempts" / "0001.json"
    shutil.copy(first, first.with_name("0002.json"))
    assert not deletion.delete(chosen)
    assert ids(runs_dir) == [A, B, FAILED]
