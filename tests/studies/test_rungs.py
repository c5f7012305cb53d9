"""Halving and Hyperband: rungs as in the paper, trials that go on from their checkpoints, bits of whole runs."""

import json
import math
import os
import re
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import optuna
import pytest

import trainwright
from small_runs import SMALL
from study_configs import TOY
from trainwright import plugins
from trainwright.errors import ConfigError
from trainwright.records.journal import each_loss, read
from trainwright.records.run_dir import RunDir
from trainwright.records.study import study_problems
from trainwright.records.trials import FILE, LoggedTrial, TrialLog, read_trials
from trainwright.storage.seals import problems
from trainwright.studies.tuning import optuna_storage
from trainwright.studies.tuning.pruning import Bracket, Slot, brackets_of, hyperband, schedule
from trainwright.studies.tuning.tuning_view import Tuning

# Rungs at 1, 3 and 9 epochs of 8 steps; brackets of 9, 5 and 3 trials.
RUNGS: dict[str, Any] = {
    **TOY,
    "training": {**TOY["training"], "epochs": 9},
    "tuning": {
        "metric": "val_loss",
        "trials": 13,
        "horizon": 3,
        "sampler": {"type": "tpe", "n_startup_trials": 4},
        "pruner": "hyperband",
        "space": {
            "training.learning_rate": {"low": 1e-3, "high": 1.0, "log": True},
            "model.params.noise": {"low": 0.0, "high": 0.5},
        },
    },
}
ONE_BRACKET = {"tuning.pruner": {"type": "halving"}, "tuning.trials": 4}
STEPS = {1: 8, 3: 24, 9: 72}  # of the rungs' resources


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Tuning:
    """A study that nothing interrupted."""
    return trainwright.tune(RUNGS, runs_dir=tmp_path_factory.mktemp("runs"))


# -- the arithmetic


@pytest.mark.parametrize("most", [9, 27, 30, 81, 100, 243])
@pytest.mark.parametrize("factor", [2, 3, 4])
def test_the_brackets_are_those_of_the_paper(most: int, factor: int) -> None:
    """Li et al. (2018), Algorithm 1, with R = `most`; the number of trials of a bracket is Optuna's, too."""
    top = math.floor(math.log(most, factor) + 1e-9)
    budget = (top + 1) * most
    brackets = hyperband(1, most, factor)
    assert len(brackets) == top + 1
    for s, bracket in zip(range(top, -1, -1), brackets, strict=True):
        n = math.ceil(budget / most * factor**s / (s + 1) - 1e-9)
        r = most * factor**-s
        assert list(bracket.sizes) == [math.floor(n * factor**-i + 1e-9) for i in range(s + 1)]
        assert list(bracket.resources) == [math.floor(r * factor**i + 1e-9) for i in range(s + 1)]
    theirs = optuna.pruners.HyperbandPruner(1, most, factor)
    optuna.create_study(pruner=theirs).ask().should_prune()
    if theirs._n_brackets == top + 1:  # where its logarithm is not a little too small
        assert [bracket.sizes[0] for bracket in brackets] == theirs._trial_allocation_budgets


def test_the_first_rung_is_not_below_the_least_resource() -> None:
    assert [one.resources for one in hyperband(10, 100, 3)] == [[11, 33, 100], [33, 100], [100]]
    assert hyperband(5, 9, 2) == [Bracket(0, [1], [9])]


def test_the_last_bracket_of_a_limit_has_what_is_left() -> None:
    cycle = hyperband(1, 9, 3)
    assert [bracket.sizes for bracket in cycle] == [[9, 3, 1], [5, 1], [3]]
    first, second = brackets_of(cycle, [11, 30], 3)
    assert [(one.first, one.sizes) for one in first] == [(0, [9, 3, 1]), (9, [2, 1])]
    assert [(one.first, one.sizes) for one in second] == [
        (11, [3]), (14, [9, 3, 1]), (23, [5, 1]), (28, [2])
    ]  # fmt: skip


@pytest.mark.parametrize("horizon", [1, 2, 4, 7, 20])
def test_every_job_has_its_place_and_follows_what_it_is_decided_from(horizon: int) -> None:
    groups = brackets_of(hyperband(1, 27, 3), [60, 75], 3)
    slots = schedule(groups, horizon)
    brackets = [one for group in groups for one in group]
    at = {slot: number for number, slot in enumerate(slots) if slot is not None}
    wanted = {
        Slot(number, rung, rank)
        for number, bracket in enumerate(brackets)
        for rung, size in enumerate(bracket.sizes)
        for rank in range(size)
    }
    assert set(at) == wanted
    assert len(at) == sum(slot is not None for slot in slots)
    for slot, number in at.items():
        if slot.rung:
            size = brackets[slot.bracket].sizes[slot.rung - 1]
            before = [at[Slot(slot.bracket, slot.rung - 1, rank)] for rank in range(size)]
            assert number - horizon >= max(before)
    begun = [brackets[slot.bracket].first + slot.rank for slot in slots if slot and slot.rung == 0]
    assert begun == list(range(75)), "trials begin in the order of their numbers"
    for number, slot in enumerate(slots):
        if slot is None:  # no bracket can go on: its next rung waits for a result
            later = [one for one in slots[number:] if one is not None]
            is_first = later[0].bracket < len(groups[0])
            for bracket in {one.bracket for one in later if (one.bracket < len(groups[0])) == is_first}:
                rung = next(one.rung for one in later if one.bracket == bracket)
                assert rung > 0
                assert number - horizon < max(at[one] for one in at if one[:2] == (bracket, rung - 1))


# -- a study


def by_hand(study: Tuning, brackets: Sequence[Bracket]) -> dict[int, int]:
    """Return the step at which each trial has to end, by the curves that the runs journalled."""
    curves = {}
    for trial in read_trials(study.path):
        history = trainwright.get(study.path.parent / trial.run_id).history()
        curves[trial.number] = {row["step"]: row["val_loss"] for row in history if "val_loss" in row}
    ends = {}
    for first, sizes, resources in brackets:
        left = list(range(first, first + sizes[0]))
        for rung, resource in enumerate(resources):
            step = STEPS[resource]
            ends |= dict.fromkeys(left, step)
            score = {n: min(value for at, value in curves[n].items() if at <= step) for n in left}
            following = sizes[rung + 1] if rung + 1 < len(sizes) else 0
            left = sorted(left, key=lambda n: (score[n], n))[:following]
    return ends


def test_each_trial_ends_at_the_rung_where_it_is_not_among_the_best(study: Tuning) -> None:
    trials = read_trials(study.path)
    brackets = [Bracket(0, [9, 3, 1], [1, 3, 9]), Bracket(9, [4, 1], [3, 9])]
    ends = by_hand(study, brackets)
    assert {trial.number: trial.ending.curve[-1][0] for trial in trials if trial.ending} == ends
    for trial in trials:
        assert trial.ending is not None
        run = RunDir(study.path.parent / trial.run_id)
        assert trial.ending.status == run.status() == ("completed" if ends[trial.number] == 72 else "pruned")
    assert study.result["counts"] == {"completed": 2, "pruned": 11, "failed": 0}
    assert study.status == "completed"


def test_a_promoted_trial_has_the_bits_of_a_whole_run(tmp_path: Path) -> None:
    """With dropout, and a learning rate that depends on the length: the pauses do not show."""
    plain = {**SMALL, "checkpoint": {"metric": "val_accuracy", "every_n_minutes": None}}
    plain["training"] = {**SMALL["training"], "scheduler": {"type": "cosine", "warmup_steps": 5}}
    tuning = {
        "metric": "val_accuracy",
        "trials": 4,
        "sampler": "random",
        "pruner": {"type": "halving", "min_resource": 3},
        "space": {"training.learning_rate": {"low": 1e-3, "high": 0.1, "log": True}},
    }
    study = trainwright.tune({**plain, "tuning": tuning}, runs_dir=tmp_path)
    trials = read_trials(study.path)
    steps = sorted(one.ending.curve[-1][0] for one in trials if one.ending)
    assert steps == [7, 7, 7, 30], "rungs at 3, 10 and 30 steps; evaluations after each seventh"
    trial = next(one for one in trials if one.ending and one.ending.status == "completed")
    rungs = trainwright.get(study.path.parent / trial.run_id)
    assert [record.status for record in RunDir(rungs.path).attempts()] == ["paused", "paused", "completed"]
    whole = trainwright.train(plain, trial.params, runs_dir=tmp_path / "whole")
    assert rungs.digest == whole.digest
    on_val = {name: value for name, value in whole.metrics.items() if name.startswith("val_")}
    assert rungs.metrics == on_val
    losses = [list(each_loss(read(RunDir(run.path).journal))) for run in (rungs, whole)]
    assert losses[0] == losses[1]


def test_a_pruned_trial_is_repeated_without_its_pauses(study: Tuning) -> None:
    trial = next(one for one in read_trials(study.path) if one.ending and len(one.stints) == 2)
    assert trial.ending is not None
    again = trainwright.reproduce(study.path.parent / trial.run_id)
    assert again.verdict == "identical"
    assert again.steps == (24, 24)
    assert again.digests[1] == trial.ending.digest


def test_a_pruned_trial_can_go_on(study: Tuning, tmp_path: Path) -> None:
    trial = next(one for one in read_trials(study.path) if one.ending and one.ending.status == "pruned")
    shutil.copytree(study.path.parent / trial.run_id, tmp_path / "small" / trial.run_id)
    run = trainwright.resume(trial.run_id, runs_dir=tmp_path)
    plain = {key: value for key, value in RUNGS.items() if key != "tuning"}
    whole = trainwright.train(plain, trial.params, runs_dir=tmp_path / "whole")
    assert (run.status, run.digest) == ("completed", whole.digest)


class Killed(BaseException):
    """Ends the study as a kill would: nothing that catches errors catches it."""


@pytest.fixture(scope="module")
def bracket(tmp_path_factory: pytest.TempPathFactory) -> Tuning:
    """A study of one bracket that nothing interrupted: 4 trials, of which one goes on, twice."""
    return trainwright.tune(RUNGS, ONE_BRACKET, runs_dir=tmp_path_factory.mktemp("runs"))


@pytest.mark.parametrize(
    "at",
    [7, *(pytest.param(at, marks=pytest.mark.soak) for at in (0, 1, 3, 8, 9, 10, 11, 12, 13, 14, 15))],
)
def test_a_study_that_dies_at_a_line_of_its_log_goes_on_with_the_same_jobs(
    at: int, bracket: Tuning, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = (bracket.path / FILE).read_text().splitlines()
    assert sum('"pruned":true' in line for line in lines) == 3
    assert len(lines) == 16
    write, written = TrialLog._write, [0]

    def dying(log: TrialLog, line: dict[str, Any]) -> None:
        if written[0] == at:
            raise Killed
        written[0] += 1
        write(log, line)

    with monkeypatch.context() as patch:
        patch.setattr(TrialLog, "_write", dying)
        with pytest.raises(Killed):
            trainwright.tune(RUNGS, ONE_BRACKET, runs_dir=tmp_path)
    resumed = trainwright.tune(RUNGS, ONE_BRACKET, runs_dir=tmp_path, resume=True)
    assert resumed.digest == bracket.digest
    assert [one.stints for one in unlike(resumed)] == [one.stints for one in unlike(bracket)]


def unlike(study: Tuning) -> list[LoggedTrial]:
    """Return the trials without what each study has of its own."""
    trials = read_trials(study.path)
    return [
        one._replace(
            stints=tuple(
                stint._replace(ending=stint.ending and stint.ending._replace(seconds=0.0))
                for stint in one.stints
            )
        )
        for one in trials
    ]


def test_more_trials_make_new_brackets(bracket: Tuning, tmp_path: Path) -> None:
    shutil.copytree(bracket.path.parent, tmp_path / "small")
    more = trainwright.resume_study(bracket.id, {"tuning.trials": 7}, runs_dir=tmp_path)
    ends = by_hand(more, [Bracket(0, [4, 1, 1], [1, 3, 9]), Bracket(4, [3, 1, 1], [1, 3, 9])])
    assert {one.number: one.ending.curve[-1][0] for one in read_trials(more.path) if one.ending} == ends
    notes = [json.loads(line) for line in (more.path / FILE).read_text().splitlines() if '"note"' in line]
    assert [one["note"]["trials"] for one in notes] == [4, 7]


def test_failed_and_equal_trials_do_not_go_on(tmp_path: Path) -> None:
    tuning = {
        "metric": "val_accuracy",
        "sampler": "random",
        "trials": 9,
        "pruner": {"type": "halving", "min_resource": 3},
        "space": {"training.learning_rate": [0.01, 0.02, 1e30]},
    }
    config = {**SMALL, "experiment": {"name": "small", "seed": 8}, "tuning": tuning}
    study = trainwright.tune(config, runs_dir=tmp_path)
    trials = read_trials(study.path)
    own = {one.number: one.ending.status for one in trials if one.same_as is None and one.ending}
    assert sorted(own.values()) == ["completed", "failed", "pruned"]
    assert len(trainwright.list_runs(runs_dir=tmp_path)) == 3
    for one in trials:
        assert one.ending is not None
        assert one.same_as is None or one.ending.status == own[one.same_as]


def test_a_target_ends_the_study_and_leaves_trials_paused(study: Tuning, tmp_path: Path) -> None:
    ended = trainwright.tune(RUNGS, {"tuning.target": 1e9}, runs_dir=tmp_path)
    trials = read_trials(ended.path)
    assert len(trials) == 3, "the first one is known to the fourth"
    assert ended.result["counts"] == {"completed": 0, "pruned": 0, "failed": 0, "paused": 3}
    assert [one.params for one in trials] == [one.params for one in read_trials(study.path)[:3]]


# -- wrong options


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"tuning.pruner": {"type": "halving", "min_resource": 4}},
            "the second at 12, but training.epochs is 9",
        ),
        ({"tuning.pruner": {"type": "hyperband", "min_resource": 0}}, "min_resource"),
        ({"tuning.pruner": {"type": "hyperband", "reduction_factor": 1}}, "reduction_factor"),
        ({"tuning.space": {"training.epochs": [10, 20]}}, "decides how long a trial trains"),
    ],
)
def test_what_makes_no_rungs_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        trainwright.tune(RUNGS, changes, runs_dir=tmp_path)
    assert not list(tmp_path.rglob("tune-*"))
    with pytest.raises(ConfigError, match=message):
        trainwright.check(RUNGS, changes)


def test_a_model_of_one_step_has_no_rungs(tmp_path: Path) -> None:
    config = {**RUNGS, "model": "ridge", "training": {}, "evaluation": {}}
    config["tuning"] = {**RUNGS["tuning"], "space": {"model.params.alpha": [1.0, 2.0]}}
    with pytest.raises(ConfigError, match="trained in one step"):
        trainwright.tune(config, runs_dir=tmp_path)
    with pytest.raises(ConfigError, match="trained in one step"):
        trainwright.check(config)


def test_the_pruner_may_say_how_long_a_trial_is(tmp_path: Path) -> None:
    pruner = {"type": "halving", "min_resource": 2, "max_resource": 6}
    study = trainwright.tune(RUNGS, {"tuning.pruner": pruner, "tuning.trials": 3}, runs_dir=tmp_path)
    assert study.best_run is not None
    steps = sorted(one.ending.curve[-1][0] for one in read_trials(study.path) if one.ending)
    assert steps == [16, 16, 48]


def test_optuna_sees_in_the_end_how_a_paused_trial_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(optuna_storage, "_SECONDS", 0.0)  # it is written after each stint
    study = trainwright.tune(RUNGS, ONE_BRACKET, runs_dir=tmp_path)
    theirs = optuna.load_study(study_name=study.id, storage=f"sqlite:///{study.path}/{optuna_storage.FILE}")
    seen = [(one.number, one.state.name, one.intermediate_values) for one in theirs.trials]
    names = {"completed": "COMPLETE", "pruned": "PRUNED"}
    endings = [(one.number, one.ending) for one in read_trials(study.path) if one.ending]
    assert seen == [(number, names[end.status], dict(end.curve)) for number, end in endings]
    assert {state for _, state, _ in seen} == {*names.values()}
    assert theirs.best_value == study.best_value


# -- processes


def test_the_page_shows_the_brackets(study: Tuning) -> None:
    page = (study.path / "report.html").read_text(encoding="utf-8")
    rows = re.findall(r'<tr><th scope="row">(\d+)</th><td>([^<]*)</td><td class="n">[^<]*</td>', page)
    assert rows == [("1", "9 to 1 → 3 to 3 → 1 to 9"), ("2", "4 to 3 → 1 to 9")]
    assert "to how many epochs" in page
    assert [one["first"] for one in study.result["brackets"]] == [0, 9]


@pytest.mark.slow
@pytest.mark.parametrize("workers", [2, pytest.param(3, marks=pytest.mark.soak)])
def test_more_workers_make_the_same_trials(workers: int, study: Tuning, tmp_path: Path) -> None:
    more = trainwright.tune(RUNGS, {"tuning.parallel": workers}, runs_dir=tmp_path)
    assert more.digest == study.digest
    assert [one.stints for one in unlike(more)] == [one.stints for one in unlike(study)]


@pytest.mark.slow
def test_kill_9_between_rungs(bracket: Tuning, tmp_path: Path) -> None:
    from warm_commands import command, started

    (tmp_path / "config.yaml").write_text(json.dumps(RUNGS))
    words = ("tune", "config.yaml", "--runs-dir", "runs", "tuning.pruner=halving", "tuning.trials=4")
    with started(*words, folder=tmp_path) as process:
        process.until_printed("trial=3")
        os.kill(process.pid, signal.SIGKILL)
    (path,) = (tmp_path / "runs" / "small").glob("tune-*")
    assert study_problems(path) == [], "a kill is no damage"
    assert [problems(RunDir(run.path)) for run in trainwright.list_runs(tmp_path / "runs")] == [[]] * 4
    ended = command("resume", path.name, "--runs-dir", "runs", folder=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert str(bracket.digest) in ended.stdout
    assert study_problems(path) == []
    assert [problems(RunDir(run.path)) for run in trainwright.list_runs(tmp_path / "runs")] == [[]] * 4


@pytest.mark.parametrize("sampler", ["cmaes", pytest.param("nsga2", marks=pytest.mark.soak)])
def test_a_sampler_that_keeps_a_state_goes_on_with_the_same_trials(
    sampler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proposal knew a trial at an early rung; when the study is resumed, the trial has gone on."""
    options = {"population_size": 2} if sampler == "nsga2" else {"popsize": 4}
    cls = plugins.adapter("sampler", sampler)
    propose, asked = cls._propose, dict[int, Any]()

    def noted(self: Any, number: int, known: Any) -> Any:
        proposed = propose(self, number, known)
        asked.setdefault(number, []).append((list(known), proposed, dict(self._states[number])))
        return proposed

    monkeypatch.setattr(cls, "_propose", noted)
    tuning = {**RUNGS["tuning"], "sampler": {"type": sampler, **options}, "horizon": 1}
    first = trainwright.tune({**RUNGS, "tuning": tuning}, {"tuning.trials": 10}, runs_dir=tmp_path)
    trainwright.tune({**RUNGS, "tuning": tuning}, {"tuning.trials": 11}, runs_dir=tmp_path, resume=True)
    now = {trial.number: trial.ending for trial in read_trials(first.path)}
    assert all(len(asked[number]) == 2 and asked[number][0] == asked[number][1] for number in range(10))
    assert any(
        one.status == "pruned" and ended is not None and len(ended.curve) > len(one.curve)
        for known, *_ in (asked[number][0] for number in range(10))
        for one, ended in zip(known, now.values(), strict=False)
    ), "no proposal knew an early rung: the study shows nothing"
