"""Tuning studies: the same trials however many run at once and whatever is killed, each one a run like any other."""

import json
import math
import os
import re
import signal
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest

import trainwright
from small_runs import SMALL, Crash
from study_configs import TOY, full_disk
from trainwright import plugins
from trainwright.cli.main import main
from trainwright.cli.studies import study_summary
from trainwright.config.tuning import AshaPruner, MedianPruner, NoPruner, PatientPruner, PercentilePruner
from trainwright.errors import CheckpointError, TrainingError
from trainwright.records.run_dir import RunDir
from trainwright.records.trials import FILE, SEAL, Ending, LoggedTrial, TrialLog, read_trials
from trainwright.samplers.base import Observation
from trainwright.studies.tuning.pruning import pruning_rule
from trainwright.studies.tuning.results import digest_of
from trainwright.studies.tuning.search_space import read_space
from trainwright.studies.tuning.stints import Stint, train
from trainwright.studies.tuning.tuning_view import Tuning, rows
from trainwright.studies.tuning.workers import WorkerProcesses, answer_to
from trainwright.trackers.feed import Feeders
from trainwright.trackers.feed.state import State, state_file
from trainwright.trackers.feed.tail import pending

SPACE: dict[str, Any] = {
    "training.learning_rate": {"low": 1e-3, "high": 0.1, "log": True},
    "training.optimizer.type": ["adamw", "sgd"],
    "training.optimizer.momentum": {"low": 0.0, "high": 0.99, "when": {"training.optimizer.type": "sgd"}},
    "model.params.hidden": [[8], [16, 8]],
}
TUNED: dict[str, Any] = {
    **SMALL,
    "tuning": {
        "metric": "val_accuracy",
        "trials": 7,
        "horizon": 3,
        "sampler": {"type": "tpe", "n_startup_trials": 2},
        "pruner": {"type": "median", "n_startup_trials": 2},
        "space": SPACE,
    },
}


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Tuning:
    """A study that nothing interrupted."""
    return trainwright.tune(TUNED, runs_dir=tmp_path_factory.mktemp("runs"))


def trials_of(study: Tuning) -> list[LoggedTrial]:
    return read_trials(study.path)


def test_each_trial_is_what_the_sampler_proposes_for_what_it_may_know(study: Tuning) -> None:
    """By hand: the results of those three trials before it and earlier ones, the rest as running."""
    cls = plugins.adapter("sampler", "tpe")
    sampler = cls(cls.Params(n_startup_trials=2), read_space(SPACE), "max", TUNED["experiment"]["seed"])
    trials = trials_of(study)
    assert len(trials) == 7
    for trial in trials:
        known = [
            Observation(other.params, other.ending.status, other.ending.value, other.ending.curve)
            if other.ending is not None and other.number <= trial.number - 3
            else Observation(other.params, "running")
            for other in trials[: trial.number]
        ]
        assert sampler.propose(trial.number, known) == trial.params


def test_the_best_trial_has_a_page_and_another_gets_one_when_it_is_asked_for(study: Tuning) -> None:
    def linked() -> set[Path]:
        page = (study.path / "report.html").read_text(encoding="utf-8")
        return {(study.path / link).resolve() for link in re.findall(r'href="(\.\./[^"]+)"', page)}

    runs = study.path.parent
    other = next(trial.run_id for trial in trials_of(study) if trial.run_id != study.best_run.id)
    best = {(runs / study.best_run.id / "report.html").resolve()}
    assert (
        set(runs.resolve().glob("*/report.html")) - {study.path.resolve() / "report.html"} == best == linked()
    )
    made = trainwright.report(other, runs_dir=runs.parent)
    assert linked() == best | {Path(made).resolve()}


def test_each_trial_is_the_run_of_its_parameters(study: Tuning, tmp_path: Path) -> None:
    plain = {key: value for key, value in TUNED.items() if key != "tuning"}
    completed = [one for one in trials_of(study) if one.ending and one.ending.status == "completed"]
    assert len(completed) >= 3
    for trial in completed[:2]:
        run = trainwright.train(
            plain, {**trial.params, "checkpoint.metric": "val_accuracy"}, runs_dir=tmp_path
        )
        assert trial.ending is not None
        assert trial.ending.digest == run.digest
        values = {row["step"]: row["val_accuracy"] for row in run.history() if "val_accuracy" in row}
        assert trial.ending.value == max(values.values())
        assert trial.ending.step == min(step for step, value in values.items() if value == trial.ending.value)
        assert dict(trial.ending.curve) == values


def test_the_best_trial_is_told_and_its_config_trains(study: Tuning, tmp_path: Path) -> None:
    table = study.trials
    best = table.loc[table.value.idxmax()]
    assert (study.status, study.best_run.id) == ("completed", best.run_id)  # type: ignore[union-attr]
    assert study.best_params["training.learning_rate"] == best["training.learning_rate"]
    assert study.result["best"]["trial"] == best.trial
    again = trainwright.train(study.best_config, runs_dir=tmp_path)  # type: ignore[arg-type]
    assert again.digest == study.best_run.digest  # type: ignore[union-attr]
    assert again.manifest["parent"] is None
    assert study.best_run.manifest["parent"]["relation"] == "tune"  # type: ignore[union-attr]


def test_pruned_trials_ended_where_the_median_says(study: Tuning) -> None:
    """By hand: the best value so far against the median of the completed trials that it may know."""
    trials = trials_of(study)
    pruned = 0
    for trial in trials:
        known = [
            dict(other.ending.curve)
            for other in trials[: max(0, trial.number - 2)]
            if other.ending is not None and other.ending.status == "completed"
        ]
        assert trial.ending is not None
        best = -math.inf
        for step, value in trial.ending.curve:
            best = max(best, value)
            others = [curve[step] for curve in known if step in curve]
            is_bad = len(known) >= 2 and bool(others) and best < float(np.median(others))
            is_last = step == trial.ending.curve[-1][0]
            assert is_bad == (is_last and trial.ending.status == "pruned") or step >= 28
        pruned += trial.ending.status == "pruned"
    assert pruned, "the study shows nothing otherwise"


@pytest.mark.slow
def test_two_workers_make_the_same_trials(study: Tuning, tmp_path: Path) -> None:
    both = trainwright.tune(TUNED, {"tuning.parallel": 2}, runs_dir=tmp_path)
    assert both.digest == study.digest
    assert both.result["counts"] == study.result["counts"]


class Killed(BaseException):
    """Ends the study as a kill would: nothing that catches errors catches it."""


@pytest.mark.parametrize("at", range(0, 14, 3))
def test_a_study_that_dies_at_any_line_of_its_log_goes_on_with_the_same_trials(
    at: int, study: Tuning, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, written = TrialLog._write, [0]

    def dying(log: TrialLog, line: dict[str, Any]) -> None:
        if written[0] == at:
            raise Killed
        written[0] += 1
        write(log, line)

    with monkeypatch.context() as patch:
        patch.setattr(TrialLog, "_write", dying)
        with pytest.raises(Killed):
            trainwright.tune(TUNED, runs_dir=tmp_path)
    resumed = trainwright.tune(TUNED, runs_dir=tmp_path, resume=True)
    assert resumed.digest == study.digest
    assert len(list(resumed.path.parent.glob("tune-*"))) == 1


def test_more_trials_go_on_where_the_study_ended(tmp_path: Path, study: Tuning) -> None:
    few = {"tuning.trials": 4}
    first = trainwright.tune(TUNED, few, runs_dir=tmp_path)
    more = trainwright.tune(TUNED, runs_dir=tmp_path, resume=True)
    assert more.path == first.path
    assert more.digest == study.digest
    assert first.result["trials"] == 7


# -- the ends of a study


def test_equal_parameters_are_trained_once(tmp_path: Path) -> None:
    config = {
        **TUNED,
        "tuning": {"sampler": "random", "trials": 5, "space": {"training.learning_rate": [0.01]}},
    }
    same = trainwright.tune(config, runs_dir=tmp_path)
    trials = trials_of(same)
    assert [trial.same_as for trial in trials] == [None, 0, 0, 0, 0]
    assert len({trial.run_id for trial in trials}) == 1
    assert len(trainwright.list_runs(runs_dir=tmp_path)) == 1


def test_a_grid_ends_with_its_last_combination(tmp_path: Path) -> None:
    config = {
        **TUNED,
        "tuning": {
            "sampler": "grid",
            "space": {"training.learning_rate": [0.01, 0.02], "experiment.seed": [1, 2]},
        },
    }
    assert [trial.params for trial in trials_of(trainwright.tune(config, runs_dir=tmp_path))] == [
        {"training.learning_rate": rate, "experiment.seed": seed} for rate in (0.01, 0.02) for seed in (1, 2)
    ]


def test_a_target_ends_the_study_by_what_a_trial_may_know(study: Tuning, tmp_path: Path) -> None:
    """The trial that reached it is known three trials later."""
    values = [trial.ending.value for trial in trials_of(study) if trial.ending]
    target = values[1]
    ended = trainwright.tune(TUNED, {"tuning.target": target}, runs_dir=tmp_path)
    first = next(i for i, value in enumerate(values) if value is not None and target and value >= target)
    assert len(trials_of(ended)) == min(7, first + 3)


def test_the_time_limit_is_a_decision_of_the_log(tmp_path: Path) -> None:
    short = trainwright.tune(TUNED, {"tuning.max_minutes": 1e-9}, runs_dir=tmp_path)
    assert trials_of(short) == []
    assert short.result["best"] is None
    assert json.loads((short.path / FILE).read_text())["note"] == {"kind": "time_limit", "before": 0}


def test_a_trial_that_fails_is_a_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = {
        **TUNED,
        "tuning": {"sampler": "grid", "space": {"training.learning_rate": [0.01, 1e30, 0.02]}},
    }
    told: list[Any] = []
    study = trainwright.tune(config, runs_dir=tmp_path, watch=told.append)
    statuses = [trial.ending.status for trial in trials_of(study) if trial.ending]
    assert statuses == ["completed", "failed", "completed"]
    assert "not finite" in told[1]["error"]
    assert study.status == "completed"
    assert f"failed: 1: {told[1]['error']}" in list(study_summary(study))
    capsys.readouterr()
    assert main(["studies", "show", study.id, "--runs-dir", str(tmp_path)]) == 0
    assert f"failed: 1: {told[1]['error']}" in capsys.readouterr().out.splitlines()
    assert main(["studies", "show", study.id, "--runs-dir", str(tmp_path), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)["trials"]
    logged = trials_of(study)
    assert [(one["number"], one["params"], one["run_id"]) for one in shown] == [
        (trial.number, trial.params, trial.run_id) for trial in logged
    ]
    assert [one["status"] for one in shown] == statuses
    assert [one["value"] for one in shown] == [trial.ending and trial.ending.value for trial in logged]
    assert [one.get("error") for one in shown] == [None, told[1]["error"], None]


def test_a_full_disk_is_no_result_of_a_trial(
    study: Tuning, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The study ends, and goes on with the same trials once there is room."""
    with full_disk(after=4):
        with pytest.raises(
            TrainingError, match=r"trial . cannot be trained now: .*No space left.* resume tune-"
        ):
            trainwright.tune(TUNED, runs_dir=tmp_path)
        (path,) = tmp_path.rglob("tune-*")
        (begun,) = [trial for trial in read_trials(path) if trial.ending is None]
        assert rows(path)[begun.number]["status"] == "failed", "it does not run any more"
        stint = Stint(begun.number, [path.parent / begun.run_id], path.name, "val_accuracy", "max")
        answer = answer_to(stint)  # of a worker process
        assert answer["is_from_outside"]
        with pytest.raises(TrainingError, match=f"trial {begun.number} cannot be trained now"):
            WorkerProcesses(1, lambda: None, 0)._outcome(Idle(stint), answer)
    resumed = trainwright.tune(TUNED, runs_dir=tmp_path, resume=True)
    assert resumed.path == path
    assert resumed.digest == study.digest


class Idle:
    """A worker that has done a stint."""

    def __init__(self, stint: Stint) -> None:
        self.stint: Stint | None = stint


def test_where_the_first_trials_all_fail_the_study_ends(tmp_path: Path) -> None:
    config = {
        **TUNED,
        "tuning": {"sampler": "grid", "space": {"training.learning_rate": [1e30, 2e30, 3e30, 0.01]}},
    }
    with pytest.raises(TrainingError, match="the first 3 trials have all failed: the loss of step"):
        trainwright.tune(config, runs_dir=tmp_path)
    (path,) = tmp_path.rglob("tune-*")
    assert Tuning(path).status == "failed"
    resumed = trainwright.tune(config, runs_dir=tmp_path, resume=True)  # it goes on with the fourth trial
    assert (resumed.path, resumed.status) == (path, "completed")
    assert [one.ending.status for one in trials_of(resumed) if one.ending] == [*["failed"] * 3, "completed"]


@pytest.mark.parametrize(("rates", "said"), [([1e30], "the only trial has"), ([1e30, 2e30], "the first 2")])
def test_a_study_of_few_trials_fails_where_all_do(rates: list[float], said: str, tmp_path: Path) -> None:
    space = {"training.learning_rate": rates}
    with pytest.raises(TrainingError, match=f"{said}.* failed: the loss of step"):
        trainwright.tune({**TUNED, "tuning": {"sampler": "grid", "space": space}}, runs_dir=tmp_path)


# -- the log


def test_a_torn_line_is_cut_off(tmp_path: Path) -> None:
    log = TrialLog(tmp_path)
    log.begin(LoggedTrial(0, {"a": 1}, "run-0"))
    before = (tmp_path / SEAL).read_bytes()
    log.end(0, Ending("completed", 0.5, 7, ((7, 0.5), (14, math.nan)), "abc", 1.5))
    log.close()
    whole, after = (tmp_path / FILE).read_bytes(), (tmp_path / SEAL).read_bytes()
    for cut in range(1, 20):
        (tmp_path / FILE).write_bytes(whole[:-cut])
        (tmp_path / SEAL).write_bytes(before)
        log = TrialLog(tmp_path)
        assert [trial.ending for trial in log.trials] == [None]
        log.end(0, Ending("failed", error="again"))
        log.close()
        assert read_trials(tmp_path)[0].ending == Ending("failed", error="again")
    (tmp_path / FILE).write_bytes(whole)
    (tmp_path / SEAL).write_bytes(after)
    (trial,) = read_trials(tmp_path)
    assert trial.ending is not None
    assert trial.ending.curve[0] == (7, 0.5)
    assert math.isnan(trial.ending.curve[1][1])


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b'{"trial":0,"para\n{"trial":1}\n')
    with pytest.raises(CheckpointError, match="line 1 is damaged"):
        read_trials(tmp_path)


def test_the_digest_covers_what_a_trial_is(study: Tuning) -> None:
    trials = trials_of(study)
    assert digest_of(trials) == study.digest
    assert trials[0].ending is not None
    for other in (
        trials[0]._replace(params={}),
        trials[0]._replace(ending=trials[0].ending._replace(status="pruned")),
        trials[0]._replace(ending=trials[0].ending._replace(curve=())),
        trials[0]._replace(ending=trials[0].ending._replace(digest="0")),
    ):
        assert digest_of([other, *trials[1:]]) != study.digest
    same = trials[0]._replace(run_id="another", ending=trials[0].ending._replace(seconds=9.0))
    assert digest_of([same, *trials[1:]]) == study.digest


# -- pruners


def curves(count: int, steps: int, seed: int) -> Iterator[list[tuple[int, float]]]:
    random = np.random.default_rng(seed)
    for _ in range(count):
        yield [(step, float(value)) for step, value in enumerate(np.cumsum(random.normal(size=steps)), 1)]


@pytest.mark.parametrize("mode", ["min", "max"])
@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (
            MedianPruner(n_startup_trials=3, n_warmup_steps=2),
            optuna.pruners.MedianPruner(n_startup_trials=3, n_warmup_steps=2),
        ),
        (
            PercentilePruner(percentile=30, n_startup_trials=1),
            optuna.pruners.PercentilePruner(30, n_startup_trials=1),
        ),
    ],
)
def test_percentiles_judge_as_optunas(ours: Any, theirs: Any, seed: int, mode: Any) -> None:
    *known, own = curves(7, 6, seed)
    study = optuna.create_study(direction={"min": "minimize", "max": "maximize"}[mode], pruner=theirs)
    for curve in known:
        study.add_trial(optuna.trial.create_trial(value=curve[-1][1], intermediate_values=dict(curve)))
    trial, should_prune = study.ask(), pruning_rule(ours, {"completed": known}, mode)
    for step, value in own:
        trial.report(value, step)
        expected = trial.should_prune()
        assert should_prune(step, value) == expected
        if expected:
            break


def test_asha_keeps_the_best_third_of_those_that_reached_a_rung() -> None:
    known = [[(2, float(i)), (6, float(i))] for i in range(1, 9)]
    pruner = AshaPruner(min_steps=2, reduction_factor=3)
    for value, is_pruned in ((2.5, False), (3.5, True), (0.5, False), (math.nan, True)):
        should_prune = pruning_rule(pruner, {"completed": known[:4], "pruned": known[4:]}, "min")
        assert should_prune(1, 99.0) is False, "before the first rung"
        assert should_prune(2, value) is is_pruned
    should_prune = pruning_rule(pruner, {"completed": known}, "min")
    assert should_prune(2, 0.5) is False
    assert should_prune(4, 99.0) is False, "between two rungs"
    assert should_prune(7, 3.5) is True
    assert pruning_rule(pruner, {}, "max")(2, 1.0) is False, "the first one"
    highest = pruning_rule(pruner, {"completed": known}, "max")
    assert highest(2, 7.5) is False
    assert highest(6, 1.5) is True


def test_patience_counts_evaluations_without_improvement() -> None:
    should_prune = pruning_rule(PatientPruner(patience=2, min_delta=0.1), {}, "max")
    values = [0.5, 0.7, 0.75, 0.7, 0.79]
    assert [should_prune(step, value) for step, value in enumerate(values)] == [
        False,
        False,
        False,
        False,
        True,
    ]


# -- processes


def tuned(folder: Path, *words: str) -> tuple[str, ...]:
    (folder / "config.yaml").write_text(json.dumps(TUNED))
    return ("tune", "config.yaml", "--runs-dir", "runs", *words)


@pytest.mark.soak
@pytest.mark.skipif(find_spec("tensorboard") is None, reason="TensorBoard is not installed")
def test_the_tracker_of_a_trial_gets_what_it_lacked_when_all_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trial has ended, and was waiting for its feeder."""

    def killed(feeders: Feeders, timeout: float = 10.0) -> list[str]:
        for one in feeders._feeders:
            assert one._process is not None
            one._process.kill()
            one._process.wait()
        raise Crash

    tracked = {**TOY, "tracking": ["tensorboard"]}
    run = RunDir(trainwright.create(tracked, runs_dir=tmp_path).path)
    stint = Stint(0, [run.path], "tune-1", "val_loss", "min")
    with monkeypatch.context() as patch:
        patch.setattr(Feeders, "finish", killed)
        with pytest.raises(Crash):
            train(stint)
    assert run.status() == "completed"
    file = state_file(run.path, 0, "tensorboard")
    assert State.load(file).closed == ""
    assert train(stint) == "completed"
    assert len(run.attempts()) == 1
    state = State.load(file)
    assert (state.closed, pending(run.journal, state)) == ("completed", 0)


def test_a_job_is_written_as_its_worker_reads_it() -> None:
    plain = {
        **{"number": 3, "study_id": "tune-1", "metric": "val_loss", "mode": "min", "curves": {}},
        **{"until": None, "runs": ["/runs/1"], "pruner": {"type": "none"}},
        **{"alike": ["2"], "searches_data": True, "allow_change": True, "trusted": True},
        "tested": False,
    }
    stint = Stint.from_json(plain)
    assert (stint.trial, stint.runs, stint.pruner) == (3, [Path("/runs/1")], NoPruner())
    assert stint.to_json() == plain


@pytest.mark.slow
def test_sigterm_is_a_pause(study: Tuning, tmp_path: Path) -> None:
    from warm_commands import command, started

    words = tuned(tmp_path)
    with started(*words, folder=tmp_path) as process:
        process.until_printed("trial=1")
        process.send_signal(signal.SIGTERM)
        ended = process.end()
    assert ended.returncode == 75, ended.stderr
    assert "continue with: trainwright" in ended.stdout
    assert "--resume" in ended.stdout
    again = command(*words, "--resume", folder=tmp_path)
    assert again.returncode == 0, again.stderr
    assert str(study.digest) in again.stdout


@pytest.mark.slow
@pytest.mark.parametrize("whom", ["a worker", "the study"])
def test_kill_9_of_one_process(whom: str, study: Tuning, tmp_path: Path) -> None:
    from warm_commands import command, started

    words = tuned(tmp_path, "tuning.parallel=2")
    with started(*words, folder=tmp_path) as process:
        process.until_printed("trial=1")
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        if whom == "a worker":
            os.kill(int(children[0]), signal.SIGKILL)
            ended = process.end()
            assert ended.returncode == 0, ended.stderr
        else:
            process.kill()
            ended = command(*words, "--resume", folder=tmp_path)
            assert ended.returncode == 0, ended.stderr
    assert str(study.digest) in ended.stdout
