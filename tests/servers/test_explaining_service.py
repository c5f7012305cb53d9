"""A service explains its predictions by the columns of the rows."""

from __future__ import annotations

import csv
import itertools
import json
import math
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from starlette.testclient import TestClient

import trainwright
from customers import NEW, config, write_customers
from trainwright.monitoring.background import FILE, ROWS
from trainwright.runs.run import Run
from trainwright.runs.watching import background_of
from trainwright.servers.service.app import make_app
from trainwright.servers.service.references import make_references
from trainwright.servers.service.settings import Settings

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("explained")


def trained(folder: Path, model: str, **more: Any) -> Run:
    table = write_customers(folder / "customers.csv")
    run = trainwright.train(config(table, model, **more), runs_dir=folder / "runs", quiet=True)
    make_references(Settings(str(run.path), window_seconds=0))
    return run


@pytest.fixture(scope="module")
def run(folder: Path) -> Run:
    return trained(folder, "lightgbm")


@pytest.fixture(scope="module")
def client(run: Run) -> Iterator[TestClient]:
    with TestClient(make_app(Settings(str(run.path)))) as client:
        yield client


def explanations(client: TestClient, rows: Any = NEW, query: str = "") -> list[dict[str, Any]]:
    response = client.post(f"/explain{query}", json=rows)
    assert response.status_code == 200, response.text
    found: list[dict[str, Any]] = response.json()["explanations"]
    return found


def background(run: Run) -> pd.DataFrame:
    """The kept training rows, as pandas has them."""
    kept = json.loads((run.path / FILE).read_bytes())
    return pd.DataFrame({one["name"]: one["cells"] for one in kept["columns"]})


def by_definition(run: Run, row: dict[str, Any], output: str) -> dict[str, float]:
    """The Shapley values of the run's own predictor, set by set."""
    predictor, rows = trainwright.load(run), background(run)
    names, means = list(rows), {}
    for size in range(len(names) + 1):
        for chosen in itertools.combinations(names, size):
            mixed = rows.assign(**{name: [row[name]] * len(rows) for name in chosen})
            means[frozenset(chosen)] = float(predictor.predict(mixed)[output].astype(np.float64).mean())
    found = {}
    for name in names:
        others = [one for one in means if name not in one]
        found[name] = sum(
            (means[one | {name}] - means[one]) / (len(names) * math.comb(len(names) - 1, len(one)))
            for one in others
        )
    return found


def test_contributions_are_the_shapley_values_of_the_raw_columns(client: TestClient, run: Run) -> None:
    predicted = client.post("/predict", json=NEW).json()["predictions"]
    for row, one, prediction in zip(NEW, explanations(client), predicted, strict=True):
        assert one["prediction"] == prediction["prediction"]
        assert one["explained"] == f"probability_{prediction['prediction']}"
        assert one[one["explained"]] == prediction[one["explained"]]
        assert one["base"] + sum(one["contributions"].values()) == pytest.approx(
            prediction[one["explained"]], abs=1e-14
        )
        expected = by_definition(run, row, one["explained"])
        assert list(one["contributions"]) == list(row)
        assert one["contributions"] == pytest.approx(expected, abs=1e-12)
        assert all(0 <= error < 0.1 for error in one["standard_error"].values())


def test_a_class_can_be_named_and_the_classes_mirror_each_other(client: TestClient) -> None:
    gold, basic = (explanations(client, NEW[:1], f"?output=probability_{name}") for name in ("gold", "basic"))
    for name, value in gold[0]["contributions"].items():
        assert value == pytest.approx(-basic[0]["contributions"][name], abs=1e-7)
    response = client.post("/explain?output=probability_silver", json=NEW)
    assert response.status_code == 422
    assert "probability_basic, probability_gold" in response.json()["error"]["message"]
    assert client.post("/explain?threshold=0.5", json=NEW).status_code == 422


def test_the_same_rows_get_the_same_bits_in_every_form(client: TestClient) -> None:
    first = explanations(client)
    assert explanations(client) == first
    assert [explanations(client, [row])[0] for row in NEW] == first
    assert explanations(client, {"columns": {name: [row[name] for row in NEW] for name in NEW[0]}}) == first
    response = client.post(
        "/explain", content=pd.DataFrame(NEW).to_csv(index=False), headers={"content-type": "text/csv"}
    )
    assert response.json()["explanations"] == first


def test_wrong_and_too_many_rows_are_refused(client: TestClient) -> None:
    wrong = client.post("/explain", json=[NEW[0], {**NEW[1], "age": "young"}])
    assert wrong.status_code == 422
    place = wrong.json()["error"]["rows"][0]
    assert (place["row"], place["column"]) == (2, "age")
    many = client.post("/explain", json=NEW * 100)
    assert many.status_code == 422
    assert "300 rows given; this model explains 100 in a request" in many.json()["error"]["message"]


def test_the_interface_describes_it(client: TestClient) -> None:
    found = client.get("/openapi.json").json()
    body = found["paths"]["/explain"]["post"]["requestBody"]
    assert body == found["paths"]["/predict"]["post"]["requestBody"]
    answer = client.post("/explain", json=NEW).json()
    assert {*answer} == {*found["components"]["schemas"]["Explanations"]["properties"]}
    assert answer["background"] == {"rows": ROWS, "of": "training rows"}
    assert answer["predicted_rows"] == 3 * ROWS * (2**5 - 2)


def test_predictions_do_not_wait_for_explanations(run: Run) -> None:
    """Between two pieces of an explanation there is room for a prediction."""
    app = make_app(Settings(str(run.path)))
    with TestClient(app) as client:
        service, done = app.state.service, []
        answer = service.batcher._answer

        def counted(jobs: Any) -> Any:
            done.extend("piece" if callable(one.work) else "predict" for one in jobs)
            return answer(jobs)

        service.batcher._answer = counted
        explaining = threading.Thread(target=lambda: explanations(client, NEW * 10))
        explaining.start()
        while done.count("piece") < 5:
            pass
        assert client.post("/predict", json=NEW).status_code == 200
        explaining.join()
    last = len(done) - 1 - done[::-1].index("predict")
    assert "piece" in done[:last]
    assert "piece" in done[last:]


@pytest.mark.parametrize("framework", ["torch", "sklearn"])
def test_values_of_networks_and_of_many_columns_are_sampled(folder: Path, framework: str) -> None:
    draw, path = random.Random(3), folder / f"wide_{framework}.csv"
    with open(path, "w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        names = [f"x{i}" for i in range(12)]
        table.writerow([*names, "y"])
        for _ in range(200):
            cells = [draw.gauss(0, 1) for _ in names]
            table.writerow([*cells, 3 * cells[0] - cells[1] * cells[2]])
    model = {"type": "mlp"} if framework == "torch" else {"type": "linear", "framework": "sklearn"}
    run = trainwright.train(
        {
            "experiment": {"name": "wide"},
            "data": {"path": str(path), "target": "y"},
            "model": model,
            "training": {"epochs": 1} if framework == "torch" else {},
        },
        runs_dir=folder / "runs",
        quiet=True,
    )
    make_references(Settings(str(run.path), window_seconds=0))
    row = dict.fromkeys(names, 1.0)
    with TestClient(make_app(Settings(str(run.path), window_seconds=0))) as client:
        answer = client.post("/explain", json=[row]).json()
        value = client.post("/predict", json=[row]).json()["predictions"][0]["prediction"]
    assert (answer["method"], answer["predicted_rows"]) == ("permutations", ROWS * 2 * 11)
    one = answer["explanations"][0]
    assert one["explained"] == "prediction"
    assert one["base"] + sum(one["contributions"].values()) == pytest.approx(value, abs=1e-12)
    if framework == "sklearn":  # of a linear model it is coefficient * (cell - mean cell of the background)
        rows, predictor = background(run), trainwright.load(run)
        for name in names:
            slope = float(np.diff(predictor.outputs(pd.DataFrame([{**row, name: 0.0}, row])))[0])
            assert one["contributions"][name] == pytest.approx(slope * (1 - rows[name].mean()), abs=1e-5)


def test_an_exported_model_is_explained_beside_synthetic_rows(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    trainwright.export(run, path)
    with TestClient(make_app(Settings(str(path)))) as client:
        answer = client.post("/explain", json=NEW).json()
        assert answer["background"]["of"] == "synthetic rows"
        predicted = client.post("/predict", json=NEW).json()["predictions"]
    for one, prediction in zip(answer["explanations"], predicted, strict=True):
        assert one["base"] + sum(one["contributions"].values()) == pytest.approx(
            prediction[one["explained"]], abs=1e-14
        )


def test_an_exported_model_with_its_reference_is_explained_beside_its_distributions(
    run: Run, tmp_path: Path
) -> None:
    trainwright.reference(run)
    path = trainwright.export(run, tmp_path / "model.onnx")
    with TestClient(make_app(Settings(str(path)))) as client:
        answer = client.post("/explain", json=NEW).json()
    assert answer["background"] == {
        "rows": ROWS,
        "of": "the distribution of each column of the training rows",
    }
    predictor = trainwright.load(path)
    drawn = background_of(predictor.run, predictor)
    assert drawn is not None
    training = pd.read_csv(run.path.parent.parent.parent / "customers.csv")
    assert {*drawn.columns["city"].tolist()} == {"Bern", "Lima", "Oslo", None}
    for name in ("age", "seats", "income"):
        found = drawn.columns[name]
        assert np.nanmean(found) == pytest.approx(training[name].mean(), abs=0.2 * training[name].std())
        assert np.nanstd(found) == pytest.approx(training[name].std(), rel=0.2)
    assert np.isnan(drawn.columns["income"]).mean() == pytest.approx(
        training["income"].isna().mean(), abs=0.05
    )
    joined = drawn.columns["joined"]
    assert str(joined.min())[:10] >= training["joined"].min()
    assert str(joined.max())[:10] <= training["joined"].max()
    assert abs(np.corrcoef(drawn.columns["age"], drawn.columns["seats"])[0, 1]) < 0.4  # not in one order
    mean = float(
        predictor.predict(pd.DataFrame(dict(drawn.columns)))[answer["explanations"][0]["explained"]].mean()
    )
    assert answer["explanations"][0]["base"] == pytest.approx(mean, abs=1e-6)


def test_a_run_without_its_training_rows_says_so(run: Run) -> None:
    (run.path / FILE).rename(run.path / "away.json")
    try:
        with TestClient(make_app(Settings(str(run.path)))) as client:
            response = client.post("/explain", json=NEW)
    finally:
        (run.path / "away.json").rename(run.path / FILE)
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "no_background"
