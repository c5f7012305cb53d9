"""What `last` means where a study has made the newest runs."""

from pathlib import Path

from trainwright.records.listing import find_run, newest_is_study
from trainwright.records.run_dir import RunDir
from trainwright.records.study import StudyRecord
from trainwright.records.trials import FILE


def _run(runs: Path, name: str) -> RunDir:
    (runs / "e" / name).mkdir(parents=True)
    (runs / "e" / name / "config.yaml").write_text("")
    return RunDir(runs / "e" / name)


def test_a_trial_that_was_killed_before_its_manifest_is_not_the_last_run(tmp_path: Path) -> None:
    mine = _run(tmp_path, "20260101-000000-00000000")
    assert not newest_is_study(tmp_path)
    stray = _run(tmp_path, "20260103-000000-00000000")
    assert find_run("last", tmp_path).id == stray.id
    study = tmp_path / "e" / "tune-20260102-000000-00000000"
    study.mkdir()
    StudyRecord(study_id=study.name, kind="tune", experiment="e", created=0.0).save(study / StudyRecord.FILE)
    (study / FILE).write_text(f'{{"trial": 0, "run_id": "{stray.id}"}}\n')
    assert find_run("last", tmp_path).id == mine.id
    assert newest_is_study(tmp_path)
    _run(tmp_path, "20260104-000000-00000000")
    assert not newest_is_study(tmp_path)
