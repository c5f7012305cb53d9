"""Runs of which this version of Trainwright computes a part otherwise: each command refuses them in one line."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import trainwright
from small_runs import SMALL, crashed
from trainwright.errors import ChangedInputsError
from trainwright.runs.run import Run
from trainwright.runs.semantics import PARTS

ROWS = [{"sepal length (cm)": 5.0}]


def with_another(run: Run, part: str) -> Run:
    """Make a run that a version made in which a part computed otherwise."""
    manifest = run._dir.require_manifest()
    parts = manifest.semantics | {part: PARTS[part].version + 1}
    code = manifest.code.model_copy(update={"trainwright": "7.8"})
    run._dir.write(manifest.FILE, manifest.model_copy(update={"semantics": parts, "code": code}))
    return run


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return with_another(trainwright.train(SMALL, runs_dir=tmp_path_factory.mktemp("runs")), "metrics")


COMMANDS: dict[str, Callable[[Run], Any]] = {
    "load": trainwright.load,
    "predict": lambda run: trainwright.predict(run, ROWS),
    "evaluate": trainwright.evaluate,
    "explain": trainwright.explain,
    "reproduce": trainwright.reproduce,
    "fork": lambda run: trainwright.fork(run, {"training.learning_rate": 0.02}, step=12),
    "continue": lambda run: trainwright.resume(run, {"training.max_steps": 60}),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_run_of_which_a_part_changed_is_refused_in_one_line(command: str, whole: Run) -> None:
    known = {run.id for run in trainwright.list_runs(whole.path.parent.parent)}
    with pytest.raises(ChangedInputsError) as refused:
        COMMANDS[command](whole)
    assert str(refused.value) == (
        f"this version of Trainwright computes parts of run {whole.id} differently: "
        f"{PARTS['metrics'].decides} (metrics); use version 7.8"
    )
    assert {run.id for run in trainwright.list_runs(whole.path.parent.parent)} == known


def test_a_resume_is_refused_unless_changes_are_allowed(tmp_path: Path) -> None:
    run = with_another(crashed(tmp_path, {}, at=13), "rules")
    with pytest.raises(ChangedInputsError, match=r"differently: .* \(rules\); use version 7\.8$"):
        trainwright.resume(run)
    with pytest.raises(ChangedInputsError, match=re.escape("semantics of rules was 2, is 1")):
        trainwright.train(SMALL, runs_dir=tmp_path, resume=True)
    resumed = trainwright.resume(run, allow_change=True)
    assert [one["what"] for change in resumed.manifest["changes"] for one in change["differences"]] == [
        "semantics of rules"
    ]
    assert resumed.result["determinism"]["tier"] == "statistical"
    assert resumed.manifest["semantics"]["rules"] == PARTS["rules"].version
    assert trainwright.evaluate(resumed)
