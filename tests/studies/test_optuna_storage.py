"""Optuna's storage on a PostgreSQL server, which may go away and come back while the study goes on."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import optuna
import pytest

import trainwright
from postgres_server import PostgresServer
from study_configs import TOY
from trainwright.config.tuning import SQLITE
from trainwright.errors import ConfigError
from trainwright.records.trials import read_trials
from trainwright.studies.tuning import optuna_storage
from trainwright.studies.tuning.optuna_storage import FILE
from trainwright.studies.tuning.tuning_view import Tuning

TUNED: dict[str, Any] = {
    **TOY,
    "evaluation": {"every_n_steps": 4},
    "tuning": {
        "metric": "val_accuracy",
        "trials": 5,
        "sampler": {"type": "random"},
        "pruner": {"type": "median", "n_startup_trials": 1},
        "space": {
            "training.learning_rate": {"low": 1e-3, "high": 0.1, "log": True},
            "model.params.noise": [0.0, 0.1, 0.2],
        },
    },
}


def seen(study: Tuning, url: str) -> list[Any]:
    """The trials as Optuna reads them."""
    theirs = optuna.load_study(study_name=study.id, storage=url)
    assert theirs.direction == optuna.study.StudyDirection.MAXIMIZE
    assert theirs.metric_names == ["val_accuracy"]
    return [
        (t.number, t.state, t.params, t.value, t.intermediate_values, t.user_attrs, t.datetime_start)
        for t in theirs.trials
    ]


@pytest.mark.slow
def test_a_server_that_is_killed_and_comes_back_has_all_trials(
    postgres: PostgresServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is there for the first trial, away for the next three, and has at the end what the file would have."""
    monkeypatch.setattr(optuna_storage, "_SECONDS", 0.0)  # it is written to after each trial
    monkeypatch.setenv("DATABASE_PASSWORD", "open%20sesame")

    def watch(trial: Mapping[str, Any]) -> None:
        if trial["trial"] == 1:
            postgres.kill()
        if trial["trial"] == 4:
            postgres.start()

    server = {"tuning.storage": postgres.url("${env:DATABASE_PASSWORD}")}
    study = trainwright.tune(TUNED, server, runs_dir=tmp_path, watch=watch)
    assert study.status == "completed"
    shown = f"postgresql://trainwright:${{env:DATABASE_PASSWORD}}@127.0.0.1:{postgres.port}/postgres"
    assert f"{shown} cannot be written: OperationalError" in caplog.text
    assert not (study.path / FILE).exists()
    on_server = seen(study, postgres.url())
    assert [number for number, *_ in on_server] == [0, 1, 2, 3, 4]

    optuna_storage.Projector(study.path, {"val_accuracy": "max"}).write(*_frozen(study))
    assert on_server == seen(study, f"sqlite:///{study.path}/{FILE}")


def _frozen(study: Tuning) -> tuple[list[Any], list[Any]]:
    from trainwright.samplers.optuna import frozen
    from trainwright.studies.tuning.sampling import observation
    from trainwright.studies.tuning.search_space import read_space

    trials = read_trials(study.path)
    space = read_space(TUNED["tuning"]["space"])
    return frozen(space, [observation(trial, trial.ending) for trial in trials], "max"), trials


@pytest.mark.slow
def test_a_password_in_clear_text_reaches_no_file(
    postgres: PostgresServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for password in ("open%20sesame", "wrong-secret"):
        study = trainwright.tune(
            TUNED,
            {"tuning.storage": postgres.url(password), "tuning.trials": 1},
            runs_dir=tmp_path / password[:5],
        )
        written = [path for path in study.path.parent.rglob("*") if path.is_file()]
        assert not [
            path for path in written if b"sesame" in path.read_bytes() or b"wrong-" in path.read_bytes()
        ]
        assert "sesame" not in caplog.text
        assert "wrong-secret" not in caplog.text
    assert "password authentication failed" in caplog.text
    assert study.status == "completed"

    caplog.clear()
    more = trainwright.resume_study(study.id, {"tuning.trials": 2}, runs_dir=tmp_path / "wrong")
    assert "the password of tuning.storage was not kept, so Optuna's storage is sqlite now" in caplog.text
    assert (more.path / FILE).exists()
    given = {"tuning.storage": postgres.url()}
    again = trainwright.resume_study(study.id, given, runs_dir=tmp_path / "wrong")
    assert len(seen(again, postgres.url())) == 2


@pytest.mark.parametrize("storage", ["postgres", "mysql://user@host/base", "postgresql://user@host"])
def test_other_storages_are_refused(storage: str) -> None:
    with pytest.raises(ConfigError, match=r"tuning.storage: expected sqlite (.*), or postgresql://USER:"):
        trainwright.check({**TUNED, "tuning": {**TUNED["tuning"], "storage": storage}})


def test_the_storage_is_no_part_of_the_question(tmp_path: Path) -> None:
    from trainwright.studies.study import StudyRequest
    from trainwright.studies.tuning.plan import read_search

    questions = [
        json.dumps(read_search(TUNED, {"tuning.storage": one}, StudyRequest(tmp_path)).question)
        for one in (SQLITE, "postgresql://user@host/base")
    ]
    assert questions[0] == questions[1]
    assert "storage" not in questions[0]
