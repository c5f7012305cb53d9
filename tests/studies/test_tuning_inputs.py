"""Inputs that change or vanish while a study is interrupted: nothing is mixed, and no trial pays for it."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import trainwright
from trainwright.errors import ChangedInputsError, InputError
from trainwright.records.run_dir import RunDir
from trainwright.records.trials import read_log, read_trials
from trainwright.studies.tuning.stints import Stint
from trainwright.studies.tuning.workers import answer_to

MODEL = """
from sklearn.linear_model import Ridge
class Net(Ridge):
    pass
"""


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return a search over a table and a model of the user's own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    rows = [f"{i % 7},{i % 5},{(i % 7) * 2 - i % 5 + i % 3}" for i in range(60)]
    Path("d.csv").write_text("\n".join(["a,b,y", *rows, ""]))
    Path("trials_net.py").write_text(MODEL)
    _forget()
    return {
        "experiment": {"name": "s"},
        "data": {"path": "d.csv", "target": "y", "task": "regression"},
        "model": {"type": "trials_net:Net"},
        "tuning": {
            "metric": "val_rmse",
            "sampler": "random",
            "space": {"model.params.alpha": {"low": 0.01, "high": 10.0, "log": True}},
        },
    }


def _forget() -> None:
    """Let the module be imported again, as by another process."""
    sys.modules.pop("trials_net", None)


def _rename(path: Path) -> None:
    path.rename(path.with_suffix(".away"))


def _break(path: Path) -> None:
    path.write_text("def (")


def _append(path: Path) -> None:
    path.write_text(path.read_text().rstrip("\n") + ("\n3,3,9\n" if path.suffix == ".csv" else "\nX = 1\n"))


@pytest.mark.parametrize(
    ("file", "change", "said"),
    [
        ("d.csv", _rename, "there is no such file"),
        ("d.csv", _append, "inputs of its runs have changed"),
        ("trials_net.py", _break, "cannot be imported"),
        ("trials_net.py", _append, "module trials_net was"),
    ],
)
def test_a_study_waits_until_its_inputs_are_what_they_were(
    file: str, change: Callable[[Path], None], said: str, config: dict[str, Any]
) -> None:
    """It then has the trials of a study that nothing interrupted."""
    whole = trainwright.tune(config, runs_dir="whole", trials=4)
    study = trainwright.tune(config, runs_dir="runs", trials=2)
    before, content = read_trials(study.path), Path(file).read_bytes()
    change(Path(file))
    _forget()
    with pytest.raises(InputError, match=said) as refused:
        trainwright.tune(config, runs_dir="runs", trials=4, resume=True)
    assert refused.value.exit_code == 2
    assert read_trials(study.path) == before
    assert (study.status, read_log(study.path).lengths()) == ("completed", [])
    Path(file).write_bytes(content)
    _forget()
    resumed = trainwright.tune(config, runs_dir="runs", trials=4, resume=True)
    assert resumed.path == study.path
    assert resumed.digest == whole.digest


@pytest.mark.slow
def test_worker_processes_import_what_lies_beside_the_config(config: dict[str, Any]) -> None:
    Path("s.json").write_text(json.dumps(config))
    words = ["tune", "s.json", "tuning.parallel=2", "tuning.trials=2", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "trainwright", *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["counts"]["completed"] == 2


def test_code_is_imported_for_the_user_s_own_studies_alone(config: dict[str, Any]) -> None:
    study = trainwright.tune(config, runs_dir="runs", trials=1)
    assert trainwright.resume_study(study.id, ["tuning.trials=2"], runs_dir="runs").result["trials"] == 2
    Path("runs").rename("sent")
    with pytest.raises(InputError, match=r"names code \(trials_net:Net\).*--trust"):
        trainwright.resume_study(study.id, ["tuning.trials=3"], runs_dir="sent")


def test_changed_inputs_can_be_accepted_which_the_log_records(config: dict[str, Any]) -> None:
    study = trainwright.tune(config, runs_dir="runs", trials=1)
    _append(Path("d.csv"))
    with pytest.raises(ChangedInputsError, match=f"resume {study.id} --allow-change"):
        trainwright.tune(config, runs_dir="runs", trials=2, resume=True)
    options: dict[str, Any] = {"runs_dir": "runs", "allow_change": True}
    changed = trainwright.resume_study(study.id, {"tuning.trials": 2}, **options)
    assert [trial.ending and trial.ending.status for trial in read_trials(changed.path)] == ["completed"] * 2
    (note,) = [note for note in read_log(study.path).notes if note["kind"] == "change"]
    assert any("train split" in one for one in note["differences"])
    trainwright.tune(config, runs_dir="runs", trials=3, resume=True)  # the newest are the study's inputs now


@pytest.mark.parametrize("change", [_rename, _append])
def test_a_worker_tells_what_is_not_the_fault_of_a_trial(
    change: Callable[[Path], None], config: dict[str, Any]
) -> None:
    """Also where the inputs change while the study runs, and on another machine than the leader's."""
    study = trainwright.tune(config, runs_dir="runs", trials=1)
    (first,) = read_trials(study.path)
    path = study.path.parent / first.run_id
    new = RunDir.create(Path("runs"), "s", RunDir(path).config_file.read_text())
    stint = Stint(1, [new.path], study.id, "val_rmse", "min", alike=[path.name])
    change(Path("d.csv"))
    answer = answer_to(Stint.from_json(stint.to_json()))
    assert (answer["status"], answer["is_from_outside"], answer["is_input"]) == ("failed", True, True)


def test_what_a_model_refuses_is_a_failure_of_its_trial(config: dict[str, Any]) -> None:
    values = {"tuning.space": {"model.params.alpha": [-1.0, 1.0]}, "tuning.sampler": "grid"}
    study = trainwright.tune(config, values, runs_dir="runs")
    assert sorted(trial.ending.status for trial in read_trials(study.path) if trial.ending) == [
        "completed",
        "failed",
    ]
