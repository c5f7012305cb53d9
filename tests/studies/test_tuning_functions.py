"""Functions of Optuna's users, and the storage that Optuna reads."""

import math
import sqlite3
from pathlib import Path
from typing import Any

import optuna
import pytest

import trainwright
from trainwright.cli.studies import _ranked, _short
from trainwright.errors import ConfigError, InputError, TrainingError
from trainwright.records.study import StudyRecord
from trainwright.records.trials import Ending, LoggedTrial, TrialLog, read_trials
from trainwright.records.tuning_result import TuningResult
from trainwright.reports.studies import _tuned
from trainwright.samplers.base import Observation, Parameter, trial_seed
from trainwright.samplers.optuna import frozen
from trainwright.studies.study import Study
from trainwright.studies.tuning.optuna_storage import FILE, Projector
from trainwright.studies.tuning.tuning_view import rows

FEW = {"tuning.trials": 14, "tuning.sampler": {"type": "tpe", "n_startup_trials": 4}, "experiment.seed": 5}


def objective(trial: optuna.Trial) -> float:
    x = trial.suggest_float("x", -5.0, 5.0)
    kind = trial.suggest_categorical("kind", ["square", "other"])
    value = x**2
    if kind == "other":
        value += trial.suggest_int("more", 1, 4)
    for step in range(3):
        trial.report(value + 3 - step, step)
        if trial.should_prune():
            raise optuna.TrialPruned
    trial.set_user_attr("double", 2 * value)
    if trial.number == 3:
        raise RuntimeError("out of luck")
    return value


def test_each_trial_of_a_function_is_optunas(tmp_path: Path) -> None:
    """By hand: a fresh study in memory for each trial, with the trials before it and its own seed."""
    study = trainwright.tune(objective, FEW, runs_dir=tmp_path)
    done: list[optuna.trial.FrozenTrial] = []
    for number in range(14):
        sampler = optuna.samplers.TPESampler(
            n_startup_trials=4, constant_liar=True, seed=trial_seed(5, number)
        )
        own = optuna.create_study(sampler=sampler, pruner=optuna.pruners.NopPruner())
        own.add_trials(done)
        trial = own.ask()
        try:
            own.tell(trial, objective(trial))
        except RuntimeError:
            own.tell(trial, state=optuna.trial.TrialState.FAIL)
        done.append(own.trials[-1])
    logged = read_trials(study.path)
    assert [one.params for one in logged] == [one.params for one in done]
    assert [one.ending.value if one.ending else 0 for one in logged] == [one.value for one in done]
    assert logged[3].ending is not None
    assert logged[3].ending.error == "RuntimeError: out of luck"
    best = min((one for one in done if one.value is not None), key=lambda one: one.value)
    assert (study.best_params, study.best_value, study.best_run) == (best.params, best.value, None)
    assert study.best_config is None
    assert len(study.trials) == 14
    assert _ranked(study, rows(study.path))[0] == ["trial", "value", "status", "x", "kind", "more"]


@pytest.mark.parametrize("sampler", ["tpe", "cmaes", "random"])
@pytest.mark.parametrize("at", [0, 15, 16])
def test_a_study_of_a_function_that_dies_goes_on_with_the_same_trials(
    at: int, sampler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {
        "tuning.trials": 11,
        "tuning.sampler": {"type": sampler, **({"popsize": 4} if sampler == "cmaes" else {})},
    }
    settings["tuning.pruner"] = {"type": "median", "n_startup_trials": 2}

    class Killed(BaseException):
        pass

    write, written = TrialLog._write, [0]

    def dying(log: TrialLog, line: dict[str, Any]) -> None:
        if written[0] == at:
            raise Killed
        written[0] += 1
        write(log, line)

    whole = trainwright.tune(objective, settings, runs_dir=tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.setattr(TrialLog, "_write", dying)
        with pytest.raises(Killed):
            trainwright.tune(objective, settings, runs_dir=tmp_path / "cut")
    resumed = trainwright.tune(objective, settings, runs_dir=tmp_path / "cut", resume=True)
    assert resumed.digest == whole.digest
    assert len(list((tmp_path / "cut").rglob("tune-*"))) == 1


def test_a_function_of_two_values_has_a_front(tmp_path: Path) -> None:
    def both(trial: optuna.Trial) -> tuple[float, float]:
        x = trial.suggest_float("x", 0.0, 1.0)
        return x, x**2

    settings = ["tuning.mode=[min, max]", "tuning.trials=6", "tuning.sampler=nsga2"]
    study = trainwright.tune(both, settings, runs_dir=tmp_path)
    assert study.result["metrics"] == {"value_0": "min", "value_1": "max"}
    assert len(study.result["front"]) == 6, "each is better in one"
    theirs = optuna.load_study(study_name=study.id, storage=f"sqlite:///{study.path}/optuna.db")
    assert len(theirs.best_trials) == 6


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"training.epochs": 3}, "keys of tuning and experiment alone"),
        ({"tuning.sampler": "grid"}, "a space that is known before"),
        ({"tuning.parallel": 2}, "one after the other"),
        ({"tuning.mode": ["min", "max"], "tuning.sampler": "cmaes"}, "nsga2 and tpe"),
        ({"tuning.mode": ["min", "max"], "tuning.metric": ["a", "b", "c"]}, "2 modes for 3 metrics"),
        ({"tuning.constraints": {"a": "<= 1"}}, "return a worse value"),
        (
            {"tuning.space": {"x": [1, 2]}},
            "tuning.space: is of a config; a function defines its space itself",
        ),
        ({"tuning.folds": 3}, "tuning.folds: is of a config"),
        ({"tuning.repeats": 3}, "tuning.repeats: is of a config"),
        ({"tuning.refit": True}, "tuning.refit: is of a config"),
        ({"tuning.resources.cpu": 2}, "tuning.resources: is of a config"),
        ({"tuning.tuner": "ray"}, "tuning.tuner: is of a config"),
        ({"tuning.pruner": "hyperband"}, "hyperband pauses runs"),
        ({"tuning.mode": ["min", "max"], "tuning.pruner": "median"}, "a pruner judges by one metric"),
        ({"tuning.trails": 3}, "did you mean 'trials'"),
    ],
)
def test_what_a_function_cannot_have_is_refused(settings: dict[str, Any], named: str, tmp_path: Path) -> None:
    with pytest.raises((ConfigError, InputError), match=named):
        trainwright.tune(objective, settings, runs_dir=tmp_path)
    assert not list(tmp_path.rglob("*.json"))


def test_words_that_users_of_optuna_know(tmp_path: Path) -> None:
    """The study has what Optuna's own study has, of the same seed and horizon."""
    study = trainwright.tune(objective, ["experiment.seed=3"], n_trials=8, runs_dir=tmp_path)
    theirs = optuna.load_study(study_name=study.id, storage=f"sqlite:///{study.path}/optuna.db")
    best = study.best_trial
    assert best is not None
    assert len(study.trials_dataframe()) == len(theirs.trials) == 8
    assert (best.number, best.value, best.params) == (
        theirs.best_trial.number,
        theirs.best_value,
        theirs.best_params,
    )
    assert study.best_trials == [best]


def test_a_file_that_is_gone_is_no_result_of_a_trial(tmp_path: Path) -> None:
    """A training within the function lacks its data: the study ends, and goes on with the same trials."""
    path, few = tmp_path / "rows.csv", {**FEW, "tuning.trials": 4}
    config = {"data": {"path": str(path), "target": "y"}, "model": "ridge"}
    path.write_text("x,y\n" + "".join(f"{i},{2 * i}.5\n" for i in range(40)))

    def trains(trial: optuna.Trial) -> float:
        x = trial.suggest_float("x", -5.0, 5.0)
        if path.exists() and trial.number == 2 and not (tmp_path / "seen").exists():
            path.rename(tmp_path / "seen")
        if trial.number == 2:
            trainwright.train(config, runs_dir=tmp_path / "inner")
        return x

    with pytest.raises(InputError, match="there is no such file"):
        trainwright.tune(trains, few, runs_dir=tmp_path)
    (study,) = (tmp_path / "trains").glob("tune-*")
    assert [one.number for one in read_trials(study)] == [0, 1]
    path.write_bytes((tmp_path / "seen").read_bytes())
    again = trainwright.tune(trains, few, runs_dir=tmp_path, resume=True)
    assert [one.ending.status for one in read_trials(again.path) if one.ending] == ["completed"] * 4
    assert again.path == study


def test_where_the_first_calls_all_fail_the_study_ends(tmp_path: Path) -> None:
    def broken(trial: optuna.Trial) -> float:
        return math.nan

    with pytest.raises(TrainingError, match="the first 3 trials have all failed: ValueError: the function"):
        trainwright.tune(broken, runs_dir=tmp_path)


def test_the_records_of_a_function_that_fails_hold_no_secrets(tmp_path: Path) -> None:
    def broken(trial: optuna.Trial) -> float:
        raise OSError("no connection to postgresql://me:hunter22@db/rows")

    with pytest.raises(TrainingError, match="no connection"):
        trainwright.tune(broken, runs_dir=tmp_path)
    records = [path.read_text(encoding="utf-8") for path in tmp_path.rglob("*.json*")]
    assert any("no connection" in one for one in records)
    assert not any("hunter22" in one for one in records)


# -- the storage

SPACE = [
    Parameter("rate", 1e-4, 1.0, log=True),
    Parameter("layers", 1, 9, step=2, integer=True),
    Parameter("kind", choices=["a", None, [64, 32]]),
]


def test_optunas_storage_holds_the_trials(tmp_path: Path) -> None:
    """Compared with what Optuna itself stores of the same trials."""
    trials, observations = [], []
    for number, status in enumerate(("completed", "pruned", "failed", "completed")):
        params = {"rate": 0.1**number, "layers": 1 + 2 * number, "kind": [64, 32] if number else None}
        curve = ((1, math.nan), (2, math.inf), (3, 0.5))
        ending = Ending(status, 0.25 * number, 3, curve, error="why" if status == "failed" else None)  # type: ignore[arg-type]
        trials.append(LoggedTrial(number, params, f"run-{number}", ending=ending))
        observations.append(Observation(params, status, 0.25 * number, curve))  # type: ignore[arg-type]
    folder = tmp_path / "tune-1"
    folder.mkdir()
    made = frozen(SPACE, observations, "max")
    Projector(folder, {"val_f1": "max"}).write(made[:2], trials[:2])
    Projector(folder, {"val_f1": "max"}).write(made, trials)
    theirs = optuna.create_study(storage=f"sqlite:///{tmp_path}/theirs.db", direction="maximize")
    theirs.add_trials(made)
    ours = optuna.load_study(study_name="tune-1", storage=f"sqlite:///{folder}/{FILE}")
    assert ours.direction == theirs.direction
    assert ours.metric_names == ["val_f1"]
    assert ours.best_trial.number == 3
    for one, other in zip(ours.trials, theirs.trials, strict=True):
        assert (one.number, one.state, one.params) == (other.number, other.state, other.params)
        assert one.values == other.values
        assert one.distributions == other.distributions
        assert repr(one.intermediate_values) == repr(other.intermediate_values)
        assert one.user_attrs["run_id"] == f"run-{one.number}"
        assert one.datetime_complete is not None
    assert ours.trials[2].user_attrs["error"] == "why"


def test_a_damaged_storage_is_written_again(tmp_path: Path) -> None:
    made = frozen(SPACE[:1], [Observation({"rate": 0.5}, "completed", 1.0)], "min")
    trials = [LoggedTrial(0, {"rate": 0.5}, "", ending=Ending("completed", 1.0))]
    (tmp_path / FILE).write_bytes(b"not a database, and longer than a header of one" * 40)
    Projector(tmp_path, {"val_loss": "min"}).write(made, trials)
    with sqlite3.connect(tmp_path / FILE) as connection:
        assert connection.execute("SELECT COUNT(*) FROM trials").fetchone() == (1,)


def test_a_storage_that_cannot_be_written_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = frozen(SPACE[:1], [Observation({"rate": 0.5}, "completed", 1.0)], "min")
    trials = [LoggedTrial(0, {"rate": 0.5}, "", ending=Ending("completed", 1.0))]
    Projector(tmp_path / "nowhere", {"val_loss": "min"}).write(made, trials)
    assert "optuna.db cannot be written" in caplog.text


def test_what_users_of_optuna_write_beside_the_function(tmp_path: Path) -> None:
    """The name of a study and its direction are read; a database of its own is refused before any trial."""
    given = {"study_name": "mine", "direction": "maximize", "pruner": "MedianPruner", "n_trials": 2}
    study = trainwright.tune(lambda trial: trial.suggest_float("x", 0, 1), runs_dir=tmp_path, **given)
    assert study.path.parent.name == "mine"
    assert study.best_value == max(study.trials["value"])
    with pytest.raises(ConfigError, match=r"sqlite \(optuna.db in the study's folder\), or postgresql"):
        trainwright.tune(_never, storage="sqlite:///my.db", runs_dir=tmp_path)
    with pytest.raises(ConfigError, match=r"tuning.space.lr: a config cannot hold a value of type object"):
        trainwright.tune({"model": "mlp"}, space={"lr": object()}, runs_dir=tmp_path)
    with pytest.raises(InputError, match=r"trainwright\.tune\(.*, trials=\.\.\., resume=True\)"):
        trainwright.resume_study(str(study.path), {"tuning.trials": 3})


def _never(trial: Any) -> float:
    raise AssertionError("no trial is made")


def test_a_study_that_has_not_ended_is_ranked_by_its_metric(tmp_path: Path) -> None:
    """Its mode is known from its start on: neither the table nor the page take the lowest for the best."""
    values = iter([0.25, 0.75, 0.5])
    study = trainwright.tune(
        lambda _: next(values), n_trials=3, mode="max", metric="val_rmsle", runs_dir=tmp_path
    )
    Study(study.path).update(files={})
    (study.path / "result.json").unlink()
    assert (study.typed_result.metric, study.typed_result.mode) == ("val_rmsle", "max")
    head, *rows_below = _ranked(study, rows(study.path))
    assert head[1] == "val_rmsle"
    assert [row[1] for row in rows_below] == ["0.75", "0.5", "0.25"]
    record = StudyRecord.load(study.path / StudyRecord.FILE)
    assert record is not None
    assert _tuned(study.path, record, TuningResult()) == ("val_rmsle", "max")


def test_null_is_a_value_and_what_a_trial_lacks_is_none(tmp_path: Path) -> None:
    """A cell of the table says which of the two it is."""

    def depth(trial: optuna.Trial) -> float:
        depth = trial.suggest_categorical("depth", [None, 3])
        return 1.0 if depth is None else trial.suggest_float("share", 1, 2)

    study = trainwright.tune(depth, n_trials=12, runs_dir=tmp_path)
    head, *trials = _ranked(study, rows(study.path), most=12)
    cells = {tuple(row[head.index(name)] != "" for name in ("depth", "share")) for row in trials}
    assert cells == {(True, False), (True, True)}
    assert {row[head.index("depth")] for row in trials} == {"null", "3"}


@pytest.mark.parametrize(
    ("keys", "shown"),
    [
        (["training.lr", "model.type"], ["lr", "model.type"]),
        (["training.optimizer.type", "model.type", "x"], ["optimizer.type", "model.type", "x"]),
        (["model.dropout", "encoder.dropout"], ["model.dropout", "encoder.dropout"]),
    ],
)
def test_the_names_above_the_table_tell_parameters_apart(keys: list[str], shown: list[str]) -> None:
    assert [_short(key, keys) for key in keys] == shown
