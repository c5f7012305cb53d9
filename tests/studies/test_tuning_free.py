"""Free order: a trial is decided from what has ended by then; the log keeps that, and a repetition goes by it."""

from pathlib import Path
from typing import Any

import pytest

import trainwright
from small_runs import SMALL
from trainwright import plugins
from trainwright.errors import ConfigError
from trainwright.records.trials import LoggedTrial, TrialLog, read_trials
from trainwright.studies.driver import InProcess
from trainwright.studies.tuning import tune
from trainwright.studies.tuning.sampling import observation
from trainwright.studies.tuning.search_space import read_space
from trainwright.studies.tuning.stints import Stint, StintOutcome

SPACE: dict[str, Any] = {"training.learning_rate": {"low": 1e-3, "high": 0.1, "log": True}}
TUNED: dict[str, Any] = {
    **SMALL,
    "training": {**SMALL["training"], "max_steps": 16},
    "tuning": {
        "metric": "val_accuracy",
        "trials": 6,
        "order": "free",
        "sampler": {"type": "tpe", "n_startup_trials": 2},
        "pruner": {"type": "median", "n_startup_trials": 1},
        "space": SPACE,
    },
}


class Several(InProcess[Stint, StintOutcome]):
    """Two workers, of which the one that began last ends first, but for every third end: no order of numbers."""

    slots = 2

    def __init__(self, *words: Any) -> None:
        super().__init__(*words)
        self._stints: list[Stint] = []
        self._ends = 0

    def submit(self, stint: Stint) -> None:
        self._stints.append(stint)

    def wait(self) -> StintOutcome:
        self._ends += 1
        super().submit(self._stints.pop(0 if self._ends % 3 == 0 else -1))
        return super().wait()


class Killed(BaseException):
    """Ends the study as a kill would."""


@pytest.fixture
def two_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    executors: list[Several] = []

    def several(search: Any) -> Several:
        if not executors or not executors[0]._stints:
            executors[:] = [Several(search.run)]
        return executors[0]

    monkeypatch.setattr(tune._TuningPlan, "_new_executor", several)


def test_each_trial_is_proposed_from_what_had_ended(two_workers: None, tmp_path: Path) -> None:
    study = trainwright.tune(TUNED, runs_dir=tmp_path)
    trials = read_trials(study.path)
    assert [trial.running for trial in trials] == [(), (0,), (0,), (0,), (3,), (3,)]
    assert proposals(trials) == [trial.params for trial in trials]
    assert study.result["order"] == "free"
    assert study.result["horizon"] is None

    again = trainwright.reproduce_study(study.id, runs_dir=tmp_path)
    assert again.verdict == "identical"
    repeated = next(path for path in study.path.parent.glob("tune-*") if path != study.path)
    assert [trial.running for trial in read_trials(repeated)] == [trial.running for trial in trials]


def proposals(trials: list[LoggedTrial]) -> list[dict[str, Any]]:
    """What the sampler proposes, by hand."""
    cls = plugins.adapter("sampler", "tpe")
    sampler = cls(cls.Params(n_startup_trials=2), read_space(SPACE), "max", TUNED["experiment"]["seed"])
    return [
        sampler.propose(
            trial.number,
            [
                observation(other, None if other.number in (trial.running or ()) else other.ending)
                for other in trials[: trial.number]
            ],
        )
        for trial in trials
    ]


def test_a_study_that_dies_keeps_what_was_decided(
    two_workers: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, written = TrialLog._write, [0]

    def dying(log: TrialLog, line: dict[str, Any]) -> None:
        written[0] += 1
        if written[0] == 8:
            raise Killed
        write(log, line)

    with monkeypatch.context() as patch:
        patch.setattr(TrialLog, "_write", dying)
        with pytest.raises(Killed):
            trainwright.tune(TUNED, runs_dir=tmp_path)
    (path,) = tmp_path.glob("*/tune-*")
    before = read_trials(path)
    study = trainwright.resume_study(path.name, runs_dir=tmp_path)
    trials = read_trials(study.path)
    assert [trial.params for trial in trials][: len(before)] == [trial.params for trial in before]
    assert proposals(trials) == [trial.params for trial in trials]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"horizon": 2}, "tuning.horizon: is of order: horizon"),
        ({"pruner": {"type": "hyperband"}}, "tuning.order: is free, but hyperband decides rung by rung"),
    ],
)
def test_what_free_order_does_not_go_with(change: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        trainwright.check({**TUNED, "tuning": {**TUNED["tuning"], **change}})
