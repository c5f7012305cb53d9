"""Labels that come after the predictions: the quality of a service by them, and wrong ones."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn import metrics
from starlette.testclient import TestClient

import trainwright
from customers import config, write_customers
from trainwright.errors import InputError
from trainwright.evaluation.intervals import wilson
from trainwright.runs.run import Run
from trainwright.servers.service.app import make_app
from trainwright.servers.service.feedback_store import FILE, Predicted, Store
from trainwright.servers.service.settings import Settings

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("feedback")


@pytest.fixture(scope="module")
def run(folder: Path) -> Run:
    table = write_customers(folder / "customers.csv", 400)
    wanted = {"metrics": ["accuracy", "roc_auc", "f1"]}
    return trainwright.train(
        config(table, "lightgbm", evaluation=wanted), runs_dir=folder / "runs", quiet=True
    )


@pytest.fixture(scope="module")
def amounts(folder: Path, run: Run) -> Run:
    table = folder / "customers.csv"
    return trainwright.train(config(table, "lightgbm", target="spent"), runs_dir=folder / "runs", quiet=True)


@pytest.fixture(scope="module")
def frame(folder: Path) -> pd.DataFrame:
    return pd.read_csv(write_customers(folder / "new.csv", 500))


@pytest.fixture
def client(run: Run, tmp_path: Path) -> Iterator[TestClient]:
    with TestClient(make_app(Settings(str(run.path), state=tmp_path / "state", window_seconds=0))) as client:
        yield client


def requests_of(frame: pd.DataFrame) -> dict[str, list[dict[str, Any]]]:
    """Rows of requests of 1 to 7 rows, by id."""
    rows = json.loads(frame.drop(columns=["plan", "spent"]).to_json(orient="records"))
    found: dict[str, list[dict[str, Any]]] = {}
    start = 0
    while start < len(rows):
        count = 1 + len(found) % 7
        found[f"r{start}"] = rows[start : start + count]
        start += count
    return found


def predict(client: TestClient, requests: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """The answers by id."""
    found = {}
    for name, rows in requests.items():
        response = client.post("/predict", json=rows, headers={"x-request-id": name})
        assert response.status_code == 200, response.text
        found[name] = response.json()
    return found


def feed(client: TestClient, items: Any) -> tuple[int, dict[str, Any]]:
    response = client.post("/feedback", json=items)
    return response.status_code, response.json()


def quality(client: TestClient, labels: int, query: str = "") -> list[dict[str, Any]]:
    """The quality of the models, once so many labels are known."""
    while True:
        found: list[dict[str, Any]] = client.get(f"/quality{query}").json()["models"]
        if sum(one["labels"] for one in found) >= labels:
            return found


def labels_of(frame: pd.DataFrame, requests: dict[str, Any], target: str) -> list[dict[str, Any]]:
    starts = {name: int(name[1:]) for name in requests}
    return [
        {"id": name, "labels": frame[target].iloc[start : start + len(requests[name])].tolist()}
        for name, start in starts.items()
    ]


def test_a_body_without_items_is_told_what_they_hold(client: TestClient) -> None:
    for body in ({"request_id": "a", "label": "basic"}, {"label": "basic"}, 5, [{"id": 5}]):
        status, answer = feed(client, body)
        assert status == 422
        assert answer["error"]["code"] == "invalid_feedback"
        assert "an item is an object with `id`" in answer["error"]["message"]


@pytest.mark.parametrize("name", ["model.onnx", "model"])
def test_an_exported_model_knows_the_metrics_of_its_run(
    run: Run, frame: pd.DataFrame, tmp_path: Path, name: str
) -> None:
    path = trainwright.export(run, tmp_path / name, "onnx" if "." in name else "native")
    requests = dict([*requests_of(frame).items()][:20])
    with TestClient(make_app(Settings(str(path), state=tmp_path / "state", window_seconds=0))) as client:
        predict(client, requests)
        feed(client, labels_of(frame, requests, "plan"))
        (found,) = quality(client, sum(map(len, requests.values())))
    for metric in ("accuracy", "roc_auc", "f1"):
        assert found["metrics"][metric]["expected"] == run.metrics[f"test_{metric}"]


def test_quality_is_that_of_all_labelled_rows(client: TestClient, run: Run, frame: pd.DataFrame) -> None:
    requests = requests_of(frame)
    answers = predict(client, requests)
    items = labels_of(frame, requests, "plan")
    known = items[: len(items) // 2]
    rows = sum(len(one["labels"]) for one in known)
    status, _ = feed(client, known[0])  # one alone, and a list
    assert status in (200, 202)
    status, said = feed(client, known[1:])
    assert status in (200, 202)
    assert said["labels"]["taken"] + said["labels"]["waiting"] == rows - 1
    (found,) = quality(client, rows)
    predicted = [one for item in known for one in answers[item["id"]]["predictions"]]
    truth = [label for item in known for label in item["labels"]]
    accuracy = metrics.accuracy_score(truth, [one["prediction"] for one in predicted])
    area = metrics.roc_auc_score(
        [label == "gold" for label in truth], [one["probability_gold"] for one in predicted]
    )
    assert (found["role"], found["run"], found["labels"], found["used"]) == ("main", run.id, rows, rows)
    one = found["metrics"]["accuracy"]
    assert one["value"] == pytest.approx(accuracy)
    assert (one["low"], one["high"]) == pytest.approx(wilson(accuracy, rows))
    assert one["expected"] == run.metrics["test_accuracy"]
    assert found["metrics"]["roc_auc"]["value"] == pytest.approx(area)
    assert area < 1  # a number that could be wrong

    last = [one for item in known[-5:] for one in answers[item["id"]]["predictions"]]
    count = len(last)
    (part,) = quality(client, rows, f"?rows={count}")
    assert part["used"] == count
    expected = metrics.accuracy_score(truth[-count:], [one["prediction"] for one in last])
    assert part["metrics"]["accuracy"]["value"] == pytest.approx(expected)


def test_quality_of_amounts(amounts: Run, frame: pd.DataFrame, tmp_path: Path) -> None:
    settings = Settings(str(amounts.path), state=tmp_path, window_seconds=0)
    with TestClient(make_app(settings)) as client:
        requests = requests_of(frame.head(60))
        answers = predict(client, requests)
        items = labels_of(frame.head(60), requests, "spent")
        feed(client, items)
        (found,) = quality(client, 60)
        predicted = [one["prediction"] for item in items for one in answers[item["id"]]["predictions"]]
        truth = [label for item in items for label in item["labels"]]
        assert found["metrics"]["mae"]["value"] == pytest.approx(
            metrics.mean_absolute_error(truth, predicted)
        )
        status, said = feed(client, [{"id": "new", "label": "much"}, {"id": "more", "labels": [1.5]}])
        assert status == 422
        assert "'much' in row 1" in said["items"][0]["message"]
        assert said["labels"] == {"taken": 0, "waiting": 1, "repeated": 0, "refused": 1}


HUGE = 10**6
WRONG: dict[str, tuple[Any, int, str]] = {
    "no json": (b"labels", 400, "malformed"),
    "nothing": (b"[]", 422, "no labels"),
    "nan": (b'{"id": "known", "labels": [NaN]}', 400, "write null"),
    "no id": (b'{"label": "gold"}', 422, "id"),
    "a number for an id": (b'{"id": 7, "label": "gold"}', 422, "id"),
    "another key": (b'{"id": "known", "lable": "gold"}', 422, "lable"),
    "no labels": (b'{"id": "known"}', 422, "give labels"),
    "both": (b'{"id": "known", "label": "gold", "labels": ["gold"]}', 422, "give labels"),
    "an empty list": (b'{"id": "known", "labels": []}', 422, "empty"),
    "a missing label": (b'{"id": "known", "labels": ["gold", null, "gold"]}', 422, "null"),
    "too few": (b'{"id": "known", "labels": ["gold"]}', 422, "1 labels given; the request has 3 rows"),
    "a million labels": (
        json.dumps({"id": "known", "labels": ["a"] * HUGE}).encode(),
        422,
        "1,000,000 labels given; the request has 3 rows",
    ),
    "an unknown class": (b'{"id": "known", "labels": ["gold", "lead", "gold"]}', 422, "'lead' in row 2"),
    "a number for a text": (b'{"id": "known", "labels": [1, 2, 3]}', 422, "training knows basic, gold"),
    "a list for a text": (b'{"id": "known", "labels": [["gold"], [], []]}', 422, ""),
    "a mapping": (b'{"id": "known", "labels": [{"plan": "gold"}, {}, {}]}', 422, ""),
    "a huge integer": (b'{"id": "known", "labels": [1%s, 1, 1]}' % (b"0" * 400), 422, ""),
    "a huge label": (json.dumps({"id": "x", "label": "a" * HUGE}).encode(), 422, "training knows basic"),
    "depth": (b'{"id": "x", "label": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", 400, "nested too deeply"),
    "some depth": (b'{"id": "x", "label": ' + b"[" * 500 + b"]" * 500 + b"}", 422, ""),
    "a surrogate": (b'{"id": "\\ud800", "label": "gold"}', 400, ""),
    "a million items": (b"[" + b",".join([b'{"id":"","label":0}'] * (HUGE // 2)) + b"]", 413, "500,000"),
    "other form": (b"id,label\nknown,gold\n", 415, "text/csv"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_labels_are_said(shared: TestClient, name: str) -> None:
    body, status, words = WRONG[name]
    headers = {"content-type": "text/csv" if status == 415 else "application/json"}
    response = shared.post("/feedback", content=body, headers=headers)
    assert response.status_code == status, response.text[:300]
    assert words in response.json()["error"]["message"]
    assert len(response.content) < 2000
    assert quality(shared, 0)[0]["labels"] == 0


@pytest.fixture(scope="module")
def shared(run: Run, frame: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """A service that has answered the request `known` of three rows."""
    settings = Settings(str(run.path), state=tmp_path_factory.mktemp("state"), window_seconds=0)
    with TestClient(make_app(settings)) as client:
        predict(client, {"known": requests_of(frame)["r3"]})
        while not quality(client, 0)[0]["rows"]:
            pass
        yield client


def test_labels_come_once(client: TestClient, frame: pd.DataFrame) -> None:
    predict(client, {"a": requests_of(frame)["r1"]})
    while not quality(client, 0)[0]["rows"]:
        pass
    assert feed(client, {"id": "a", "labels": ["gold", "basic"]})[1]["labels"]["taken"] == 2
    status, said = feed(client, {"id": "a", "labels": ["gold", "basic"]})
    assert (status, said["labels"]["repeated"]) == (200, 2)  # a client that tried again
    status, said = feed(client, [{"id": "a", "labels": ["gold", "gold"]}, {"id": "b", "label": "gold"}])
    assert status == 422
    assert said["error"]["message"].startswith("item 1: other labels came for this request before")
    assert said["labels"] == {"taken": 0, "waiting": 1, "repeated": 0, "refused": 2}
    status, said = feed(client, [{"id": "c", "label": "gold"}, {"id": "c", "label": "basic"}])
    assert said["labels"] == {"taken": 0, "waiting": 1, "repeated": 0, "refused": 1}
    assert quality(client, 2)[0]["labels"] == 2


def test_labels_may_come_before_the_prediction_is_written(client: TestClient, frame: pd.DataFrame) -> None:
    names = ["early", "../../etc/passwd", "x" * 128, "'; DROP TABLE requests; --"]
    for name in names:
        status, said = feed(client, {"id": name + "x" * 1000 * (len(name) == 128), "label": "gold"})
        assert (status, said["labels"]["waiting"]) == (202, 1)
        assert "no prediction of this id is kept" in said["items"][0]["message"]
        predict(client, {name: requests_of(frame)["r0"]})
    assert quality(client, len(names))[0]["used"] == len(names)


def test_each_model_has_its_own_quality(run: Run, folder: Path, frame: pd.DataFrame, tmp_path: Path) -> None:
    other = trainwright.train(
        {**config(folder / "customers.csv", "lightgbm"), "model": {"type": "lightgbm", "params": {"max_depth": 1}}},
        runs_dir=folder / "runs",
        quiet=True,
    )  # fmt: skip
    settings = Settings(str(run.path), state=tmp_path, window_seconds=0, shares=[(str(other.path), 0.5)])
    with TestClient(make_app(settings)) as client:
        requests = requests_of(frame)
        answers = predict(client, requests)
        items = labels_of(frame, requests, "plan")
        feed(client, items)
        found = {one["run"]: one for one in quality(client, len(frame))}
        assert found.keys() == {run.id, other.id}
        for one in (run, other):
            truth, predicted = [], []
            for item in items:
                if answers[item["id"]]["run"] == one.id:
                    truth += item["labels"]
                    predicted += [row["prediction"] for row in answers[item["id"]]["predictions"]]
            accuracy = metrics.accuracy_score(truth, predicted)
            assert found[one.id]["used"] == len(truth) > 100
            assert found[one.id]["metrics"]["accuracy"]["value"] == pytest.approx(accuracy)
        wanted = f'trainwright_quality{{metric="accuracy",model="{run.path}"}}'
        while wanted not in (shown := client.get("/metrics").text):
            pass
        line = next(line for line in shown.splitlines() if line.startswith(wanted))
        value = found[run.id]["metrics"]["accuracy"]["value"]
        assert float(line.rpartition(" ")[2]) in (pytest.approx(value), pytest.approx(value, abs=0.2))
        assert "trainwright_quality_lower{" in shown
        assert 'trainwright_feedback_labels_total{outcome="taken"}' in shown


def test_labels_outlive_the_service_and_reach_other_replicas(
    run: Run, frame: pd.DataFrame, tmp_path: Path
) -> None:
    settings = Settings(str(run.path), state=tmp_path, window_seconds=0)
    requests = requests_of(frame.head(30))
    items = labels_of(frame.head(30), requests, "plan")
    with TestClient(make_app(settings)) as one, TestClient(make_app(settings)) as other:
        predict(one, requests)
        feed(other, items)
        assert quality(other, 30) == quality(one, 30)
    with TestClient(make_app(settings)) as again:
        assert quality(again, 30)[0]["used"] == 30


def test_the_store_is_bounded(tmp_path: Path) -> None:
    store = Store(tmp_path, 100)
    for i in range(100):
        outputs = np.full((5, 2), i, np.float32)
        store.add([Predicted(f"r{i}", "run", outputs)])
        if i % 2:
            store.label([(f"r{i}", "[]", np.full(5, i).tobytes())])
    rows, labeled, _ = store.counts()["run"]
    assert 95 <= labeled <= 110
    assert 95 <= rows - labeled <= 110
    outputs, targets = store.labeled("run", 12)
    assert (
        outputs[:, 0].tolist() == np.frombuffer(targets, np.int64).tolist() == [95] * 5 + [97] * 5 + [99] * 5
    )
    assert store.add_early([("a", "[]", 60), ("b", "[]", 60)], 100) == 1
    assert (store.expired(60), store.expired(-1)) == (0, 60)
    store.close()


def test_many_replicas_open_and_write_at_once(tmp_path: Path) -> None:
    def write(replica: int) -> None:
        store = Store(tmp_path / "state", 10_000)
        for i in range(20):
            store.add([Predicted(f"{replica}-{i}", "run", np.zeros((3, 2), np.float32))])
            store.label([(f"{replica}-{i}", "[]", b"")])
        store.close()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(8)))
    assert Store(tmp_path / "state", 10_000).counts()["run"][:2] == (480, 480)


def test_a_damaged_file_is_named(run: Run, tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"no database, but long enough to be one" * 100)
    with pytest.raises(InputError, match=r"feedback\.sqlite cannot be used .* delete it"):
        make_app(Settings(str(run.path), state=tmp_path))


def test_without_state_there_is_no_feedback(run: Run, tmp_path: Path) -> None:
    for settings in (Settings(str(run.path)), Settings(str(run.path), state=tmp_path, feedback_rows=0)):
        with TestClient(make_app(settings)) as client:
            assert client.get("/quality").status_code == 404


def test_a_log_with_labels_becomes_the_next_training_table(
    run: Run, folder: Path, frame: pd.DataFrame, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    settings = Settings(str(run.path), state=tmp_path / "state", window_seconds=0, log=log)
    requests = requests_of(frame)
    items = labels_of(frame, requests, "plan")
    with TestClient(make_app(settings)) as client:
        predict(client, requests)
        feed(client, items[:20])
        feed(client, items[:20])  # a client that tries again
        feed(client, items[20:-5])
        feed(client, {"id": items[-1]["id"], "labels": ["lead"] * len(items[-1]["labels"])})
    count = sum(len(one["labels"]) for one in items[:-5])
    known = sorted(int(one["id"][1:]) for one in items[:-5])
    data = {"type": "requests", "path": str(log), "target": "plan", "split": {"test": 0.2}}
    made = trainwright.train(
        {**config(log, "lightgbm"), "data": data}, runs_dir=tmp_path / "runs", quiet=True
    )
    bundle = trainwright.load(made).load_data()
    assert sum(len(split) for split in bundle.splits.values()) == count
    assert list(bundle.preparation.column_names) == ["age", "income", "city", "joined", "seats"]
    # The predictions are those of a run of the same rows in a file, bit for bit.
    rows = [row for start in known for row in range(start, start + len(requests[f"r{start}"]))]
    frame.iloc[rows].drop(columns="spent").to_csv(tmp_path / "same.csv", index=False)
    same = trainwright.train(
        {**config(log, "lightgbm"), "data": {**data, "type": "csv", "path": str(tmp_path / "same.csv")}},
        runs_dir=tmp_path / "runs",
        quiet=True,
    )
    assert made.digest == same.digest
    assert trainwright.reproduce(made, runs_dir=tmp_path / "runs", quiet=True).verdict == "identical"

    child = trainwright.retrain(run, data=log, runs_dir=folder / "runs", quiet=True)
    assert child.retraining["rows"]["test"] > 0
    assert trainwright.evaluate(run, data=log, runs_dir=folder / "runs")


def test_a_prediction_with_labels_is_not_replaced(tmp_path: Path) -> None:
    """A client that repeats an id must not take the labels away that have come."""
    store = Store(tmp_path, 100)
    store.add([Predicted("a", "first", np.zeros(1, np.float32))])
    store.add([Predicted("a", "second", np.zeros(1, np.float32))])
    assert store.known(["a"])["a"].run == "second"
    store.label([("a", "[1]", b"x")])
    store.add([Predicted("a", "third", np.ones(1, np.float32))])
    assert store.known(["a"])["a"] == ("second", 1, "[1]")
    store.close()


def test_one_replica_judges_at_a_time(tmp_path: Path) -> None:
    first, second = Store(tmp_path, 100), Store(tmp_path, 100)
    assert [first.takes_turn(1000.0), second.takes_turn(1000.0), first.takes_turn(1000.0)] == [
        True,
        False,
        False,
    ]
    assert second.takes_turn(0.0)
    first.close()
    second.close()
