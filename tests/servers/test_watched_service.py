"""What a service has answered: windows of drift, and a log."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from starlette.testclient import TestClient

import trainwright
from customers import NEW, config, write_customers
from trainwright.monitoring.drift import compare
from trainwright.monitoring.logs import windows_of_log
from trainwright.monitoring.reference import FILE, Reference
from trainwright.runs.run import Run
from trainwright.servers.service.app import make_app
from trainwright.servers.service.references import make_references
from trainwright.servers.service.settings import Settings

pytestmark = pytest.mark.timeout(90)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("watched")
    table = write_customers(folder / "customers.csv", 600)
    run = trainwright.train(config(table, "lightgbm"), runs_dir=folder / "runs", quiet=True)
    make_references(Settings(str(run.path)))
    assert (run.path / FILE).is_file()
    return run


def rows_of(run: Run, count: int, **changes: Any) -> list[dict[str, Any]]:
    """Rows like those of the training."""
    frame = pd.read_csv(run.path.parent.parent.parent / "customers.csv").drop(columns=["plan", "spent"])
    rows = frame.sample(count, replace=True, random_state=3).to_dict("records")
    return [
        {**{name: None if cell != cell else cell for name, cell in row.items()}, **changes} for row in rows
    ]


def windows(client: TestClient, rows: int) -> list[dict[str, Any]]:
    """The windows, once they have so many rows."""
    while True:
        answer = client.get("/drift")
        if answer.status_code == 200:
            found: list[dict[str, Any]] = answer.json()["windows"]
            if sum(one["rows"] for one in found) >= rows:
                return found


def test_rows_like_those_of_the_training_have_not_drifted(run: Run, tmp_path: Path) -> None:
    with TestClient(make_app(Settings(str(run.path), state=tmp_path))) as client:
        for start in range(0, 300, 50):
            client.post("/predict", json=rows_of(run, 300)[start : start + 50])
        found = windows(client, 300)
        assert [one["verdict"] for one in found] == ["no drift"] * len(found)
        assert sum(one["window"]["requests"] for one in found) == 6


def test_a_unit_error_is_named_and_raises_the_alarm(run: Run, tmp_path: Path) -> None:
    settings = Settings(str(run.path), state=tmp_path, window_seconds=0.5)
    with TestClient(make_app(settings)) as client:
        rows = [{**row, "age": row["age"] * 100} for row in rows_of(run, 200)]
        while "trainwright_drift_alarm 1.0" not in client.get("/metrics").text:
            client.post("/predict", json=rows)
        assert any(line.startswith("age: ") for one in windows(client, 200) for line in one["lines"]), (
            "the column is named"
        )
        assert 'trainwright_drift_score{column="age"}' in client.get("/metrics").text
        assert client.get("/drift").json()["drifted"]


def test_windows_of_replicas_add_up(run: Run, tmp_path: Path) -> None:
    settings = Settings(str(run.path), state=tmp_path, window_seconds=1e9)
    with TestClient(make_app(settings)) as client:
        client.post("/predict", json=rows_of(run, 100))
        windows(client, 100)
    (file,) = tmp_path.glob("*/*.json")
    kept = json.loads(file.read_text())
    assert kept["rows"] == 100
    file.rename(file.with_name("1.json"))  # that of another replica
    (file.parent / "2.json").write_text("{")  # and a damaged one
    with TestClient(make_app(settings)) as client:
        client.post("/predict", json=rows_of(run, 50))
        (found,) = windows(client, 150)
        assert found["rows"] == 150


@pytest.fixture(scope="module")
def other(run: Run) -> Run:
    table = run.path.parent.parent.parent / "customers.csv"
    params = {"n_estimators": 3, "max_depth": 2}
    own = {**config(table, "lightgbm"), "model": {"type": "lightgbm", "params": params}}
    other = trainwright.train(own, runs_dir=run.path.parent.parent, quiet=True)
    make_references(Settings(str(other.path)))
    return other


def rows_in(state: Path, run: Run) -> int:
    """The rows in the windows of a run that replicas have saved."""
    reference = Reference.from_json(json.loads((run.path / FILE).read_bytes()))
    found = state.glob(f"{reference.id[:16]}-*/*.json")
    return sum(int(json.loads(file.read_bytes())["rows"]) for file in found)


def test_each_model_that_answers_is_watched(run: Run, other: Run, tmp_path: Path) -> None:
    settings = Settings(
        str(run.path), state=tmp_path, window_seconds=1e9, shares=[(str(other.path), 0.5)], reload_seconds=0
    )
    with TestClient(make_app(settings)) as client:
        runs = [client.post("/predict", json=row).json()["run"] for row in rows_of(run, 60)]
    assert rows_in(tmp_path, run) == runs.count(run.id) > 0
    assert rows_in(tmp_path, other) == runs.count(other.id) > 0


def test_windows_go_on_when_models_come_and_go(run: Run, other: Run, tmp_path: Path) -> None:
    link, state = tmp_path / "current", tmp_path / "state"
    link.symlink_to(run.path)
    settings = Settings(str(link), state=state, window_seconds=1e9, reload_seconds=0)
    with TestClient(make_app(settings)) as client:
        models = client.app.state.service.models  # type: ignore[attr-defined]
        for target, rows in ((run, 20), (other, 10), (run, 5)):
            link.unlink()
            link.symlink_to(target.path)
            models._look("main")
            assert client.post("/predict", json=rows_of(run, rows)).json()["run"] == target.id
        assert windows(client, 25)[-1]["rows"] == 25
    with TestClient(make_app(settings)) as client:  # as in a container, where each has the same number
        client.post("/predict", json=rows_of(run, 7))
        assert windows(client, 32)[-1]["rows"] == 32
    assert rows_in(state, other) == 10


def test_the_log_of_the_service_names_columns_alone(
    run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = Settings(str(run.path), state=tmp_path, window_seconds=0.5)
    with TestClient(make_app(settings)) as client:
        while "drift in" not in caplog.text:
            client.post("/predict", json=rows_of(run, 50, city="SSN 123-45\nfake line"))
    assert "'city'" in caplog.text
    assert "SSN" not in caplog.text


def test_rows_that_cannot_be_written_wait(run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "log"
    with TestClient(make_app(Settings(str(run.path), log=folder, window_seconds=0))) as client:
        recorder = client.app.state.service._recorder  # type: ignore[attr-defined]
        (sink,) = recorder._sinks
        folder.rename(tmp_path / "gone")
        client.post("/predict", json=rows_of(run, 20))
        while not sink._rows:
            pass
        recorder._guard(sink, sink._write)
        assert "the log of requests cannot be kept" in caplog.text
        assert "trainwright_unrecorded_rows_total 0.0" in client.get("/metrics").text
        (tmp_path / "gone").rename(folder)
    assert len(pd.read_parquet(folder)) == 20


def test_the_log_holds_rows_and_predictions(run: Run, tmp_path: Path) -> None:
    settings = Settings(str(run.path), log=tmp_path / "log", log_without=["city"], window_seconds=0)
    rows = rows_of(run, 20)
    with TestClient(make_app(settings)) as client:
        assert client.get("/drift").status_code == 404
        answers = [
            client.post("/predict", json=rows[i : i + 5], headers={"x-request-id": f"r{i}"}).json()
            for i in range(0, 20, 5)
        ]
        bad = {**NEW[0], "age": "x"}
        assert client.post("/predict?on_error=null", json=[bad]).status_code == 200
    log = pd.read_parquet(tmp_path / "log").sort_values(["_request_id", "_row"], key=lambda c: c)
    assert len(log) == 20
    assert [*log.columns][:5] == ["age", "income", "joined", "seats", "_time"]
    first = log[log["_request_id"] == "r0"]
    assert first["age"].tolist() == [row["age"] for row in rows[:5]]
    assert first["_row"].tolist() == [1, 2, 3, 4, 5]
    assert first["_prediction"].tolist() == [one["prediction"] for one in answers[0]["predictions"]]
    assert set(log["_run"]) == {run.id}
    assert (pd.Timestamp.now("UTC").tz_localize(None) - log["_time"]).abs().max() < pd.Timedelta("1h")
    assert not list((tmp_path / "log").glob(".*"))
    reference = Reference.from_json(json.loads((run.path / FILE).read_bytes()))
    (window,) = windows_of_log(tmp_path / "log", reference)  # as `monitor` reads it, labels or not
    assert window.rows == 20
    columns = {column.name: column for column in compare(window).columns}
    assert [columns[name].statistics["missing"][1] for name in ("age", "prediction", "confidence")] == [
        np.mean([row["age"] is None for row in rows]),
        0,
        0,
    ]


@pytest.mark.parametrize("form", ["rows", "columns", "csv"])
def test_of_a_request_with_errors_the_predicted_rows_are_recorded(
    run: Run, tmp_path: Path, form: str
) -> None:
    rows = rows_of(run, 7)
    rows[2]["age"] = rows[5]["age"] = "x"
    frame, headers = pd.DataFrame(rows), {"x-request-id": "a"}
    content = {
        "rows": json.dumps(rows),
        "columns": json.dumps({"columns": {name: [row[name] for row in rows] for name in rows[0]}}),
        "csv": frame.to_csv(index=False),
    }[form]
    headers["content-type"] = "text/csv" if form == "csv" else "application/json"
    with TestClient(make_app(Settings(str(run.path), state=tmp_path / "s", log=tmp_path / "log"))) as client:
        answer = client.post("/predict?on_error=null", content=content, headers=headers)
        client.post("/predict", json=rows_of(run, 7)[:1], headers={"x-request-id": "b"})
        assert "trainwright_failed_rows_total 2.0" in client.get("/metrics").text
        assert windows(client, 6)[-1]["rows"] == 6
        wrong = client.post("/feedback", json={"id": "a", "labels": ["basic"] * 7})
        assert wrong.status_code == 422
        assert "7 labels given; the request has 5 rows with predictions" in wrong.text
    found = pd.read_parquet(tmp_path / "log", filters=[("_request_id", "==", "a")])
    predictions = answer.json()["predictions"]
    kept = (
        predictions["prediction"]
        if isinstance(predictions, dict)
        else [one["prediction"] for one in predictions]
    )
    assert found["_prediction"].tolist() == [one for one in kept if one is not None]
    assert found["_row"].tolist() == [1, 2, 3, 4, 5]
    assert found["seats"].tolist() == frame["seats"][[0, 1, 3, 4, 6]].tolist()
    assert found["age"].astype(float).tolist() == pytest.approx(
        frame["age"][[0, 1, 3, 4, 6]].astype(float).tolist(), nan_ok=True
    )


def test_requests_of_two_forms_are_logged_together(run: Run, tmp_path: Path) -> None:
    """Their columns are read as other types, and each change of type must not make a file."""
    rows = rows_of(run, 20)
    with TestClient(make_app(Settings(str(run.path), log=tmp_path, window_seconds=0))) as client:
        for i in range(20):
            if i % 2:
                content = pd.DataFrame(rows[i : i + 1]).assign(password="x").to_csv(index=False)
                answer = client.post("/predict", content=content, headers={"content-type": "text/csv"})
            else:
                answer = client.post("/predict", json={"columns": {k: [v] for k, v in rows[i].items()}})
            assert answer.status_code == 200, answer.text
    files = list(tmp_path.glob("*.parquet"))
    assert len(files) <= 3
    logs = [pd.read_parquet(file) for file in files]
    assert sum(map(len, logs)) == 20
    assert not any("password" in log for log in logs)  # the model does not take it


def test_a_sample_of_the_requests_is_logged(run: Run, tmp_path: Path) -> None:
    names = [f"r{random.Random(i).random()}" for i in range(200)]
    for folder in ("a", "b"):
        settings = Settings(str(run.path), log=tmp_path / folder, log_sample=0.3, window_seconds=0)
        with TestClient(make_app(settings)) as client:
            for name in names:
                client.post("/predict", json=NEW, headers={"x-request-id": name})
    first, second = (sorted({*pd.read_parquet(tmp_path / folder)["_request_id"]}) for folder in ("a", "b"))
    assert first == second  # it depends on the names alone
    assert 0.15 < len(first) / 200 < 0.45
    assert np.mean([name in first for name in names]) == len(first) / 200
