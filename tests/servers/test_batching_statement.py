"""What `/version` says of batches is true of the answers."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

import trainwright
from customers import config, write_customers
from trainwright.servers.service.app import make_app
from trainwright.servers.service.settings import Settings

pytestmark = [pytest.mark.timeout(200), pytest.mark.services]
TREES = ["lightgbm", "xgboost", "catboost"]
OTHERS = {
    "logistic": {"type": "logistic_regression", "framework": "sklearn"},
    "neighbors": {"type": "knn", "framework": "sklearn"},
    "forest": {"type": "random_forest", "params": {"n_estimators": 12}},
    "mlp": {"type": "mlp"},
    "keras": {"type": "mlp", "framework": "keras"},
}


def rows_of(count: int) -> list[dict[str, Any]]:
    draw = random.Random(11)
    return [
        {
            "age": draw.randint(18, 70),
            "income": round(draw.uniform(1e4, 9e4), 2),
            "city": draw.choice(("Bern", "Lima", "Oslo", None)),
            "joined": f"20{draw.randint(18, 25)}-03-04",
            "seats": draw.randint(1, 5),
        }
        for _ in range(count)
    ]


def stated_and_found(run: Any, rows: list[Any], key: str = "rows") -> tuple[str, float]:
    """The statement of a service, and the largest difference between batches of rows and the rows alone."""
    with TestClient(make_app(Settings(str(run.path), window_seconds=0))) as client:

        def probabilities(rows: list[Any]) -> np.ndarray[Any, Any]:
            answer = client.post("/predict", json={key: rows}).json()["predictions"]
            return np.array([[one[name] for name in one if name != "prediction"] for one in answer])

        while (stated := client.get("/version").json()["models"]["main"]["batching"]) == "being measured":
            pass
        alone = np.concatenate([probabilities([row]) for row in rows])
        found = 0.0
        for size in (2, 7, 64):
            parts = [probabilities(rows[start : start + size]) for start in range(0, 64, size)]
            found = max(found, float(np.abs(np.concatenate(parts) - alone).max()))
    return stated, found


@pytest.mark.parametrize("name", [*TREES, *OTHERS])
def test_a_statement_about_batches_is_true(name: str, tmp_path: Path) -> None:
    table = write_customers(tmp_path / "customers.csv")
    base = config(table, name)
    base["data"]["impute"] = "median"
    if name in OTHERS:
        base["model"] = OTHERS[name]
    if name in ("mlp", "keras"):
        base["training"]["epochs"] = 1
    run = trainwright.train(base, runs_dir=tmp_path / "runs", quiet=True)
    stated, found = stated_and_found(run, rows_of(64))
    if name in TREES:
        assert stated == "bitwise"
    check(stated, found)


def test_a_statement_about_a_convolution_is_true(tmp_path: Path) -> None:
    run = trainwright.train(
        {
            "experiment": "digits",
            "data": {"type": "digits"},
            "model": {"type": "cnn", "filters": [8], "hidden": [16]},
            "training": {"max_steps": 5, "threads": 1},
        },
        runs_dir=tmp_path / "runs",
        quiet=True,
    )
    shape = trainwright.load(run).info.inputs["features"].shape
    rows = np.random.default_rng(1).normal(size=(64, *shape)).tolist()
    check(*stated_and_found(run, rows, "inputs"))


def check(stated: str, found: float) -> None:
    """Compare a statement with what was found on other rows: rounding of the same kind, if it is not exact."""
    print(stated, found)
    if stated == "bitwise":
        assert found == 0.0
        return
    bound = re.fullmatch(r"(?:bitwise|differs up to (\S+)) on \d+ example rows", stated)
    assert bound, stated
    assert found <= max(8 * float(bound[1] or 0), float(np.finfo(np.float32).eps))
