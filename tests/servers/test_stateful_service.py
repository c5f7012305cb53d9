"""Modules with state, draws and locks behind a service: one thread calls them, whoever asks."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

import trainwright
from customers import NEW, config, write_customers
from trainwright.errors import ModelError
from trainwright.runs.run import Run
from trainwright.servers.service.app import make_app
from trainwright.servers.service.settings import Settings

pytestmark = pytest.mark.timeout(200)
MODULES = """
import threading

import torch
from torch import nn
from torch.nn import functional


class Net(nn.Module):
    def __init__(self, in_features, out_features):
        super().__init__()
        self.first = nn.Linear(in_features, 8)
        self.last = nn.Linear(8, out_features)

    def between(self, x):
        return x

    def forward(self, x):
        return self.last(self.between(torch.relu(self.first(x))))


class Dropout(Net):
    "Monte Carlo dropout."

    def between(self, x):
        return functional.dropout(x, 0.5, training=True)


class Counting(Net):
    "Each call changes a buffer that the next one reads."

    def __init__(self, in_features, out_features):
        super().__init__(in_features, out_features)
        self.register_buffer("calls", torch.zeros(()))

    def between(self, x):
        self.calls += 1
        return x * self.calls


class Locked(Net):
    "Lets one thread in, and keeps what it computed for a moment."

    def __init__(self, in_features, out_features):
        super().__init__(in_features, out_features)
        self.lock = threading.Lock()

    def between(self, x):
        with self.lock:
            return x * 2


class OwnGenerator(Net):
    "Has a generator that goes on from call to call."

    def __init__(self, in_features, out_features):
        super().__init__(in_features, out_features)
        self.generator = torch.Generator().manual_seed(1)

    def between(self, x):
        return x + torch.randn(x.shape, generator=self.generator)


class Plain(Net):
    "Counts its calls in an attribute."

    calls = 0

    def between(self, x):
        self.calls += 1
        return x * self.calls
"""


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A working directory with the module `served_nets`, and the table."""
    folder = tmp_path_factory.mktemp("stateful")
    (folder / "served_nets.py").write_text(MODULES)
    write_customers(folder / "customers.csv")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.syspath_prepend(folder)
        yield folder
    sys.modules.pop("served_nets", None)


def trained(folder: Path, name: str) -> Run:
    own = {"model": {"type": f"served_nets:{name}"}, "training": {"threads": 1, "epochs": 1}}
    base = config(folder / "customers.csv", "mlp")
    base["data"]["impute"] = "median"
    return trainwright.train({**base, **own}, runs_dir=folder / "runs", quiet=True)


def answers(client: TestClient, requests: int = 40) -> list[Any]:
    """The answers to one row, from eight threads."""

    def ask(_: int) -> Any:
        response = client.post("/predict", json=NEW[:1])
        assert response.status_code == 200, response.text
        return response.json()["predictions"][0]

    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(ask, range(requests)))


@pytest.mark.parametrize("name", ["Net", "Dropout", "Counting", "Locked"])
def test_eight_clients_get_the_bits_of_one(folder: Path, name: str) -> None:
    """With --max-batch 1, where draws and counts cannot depend on who else asks."""
    run = trained(folder, name)
    expected = trainwright.load(run, trust=True).predict(NEW[:1]).iloc[0].to_dict()
    settings = Settings(str(run.path), trust=True, window_seconds=0, max_batch=1)
    with TestClient(make_app(settings)) as client:
        assert answers(client) == [expected] * 40


def test_draws_in_batches_are_said(folder: Path) -> None:
    run = trained(folder, "Dropout")
    with TestClient(make_app(Settings(str(run.path), trust=True, window_seconds=0))) as client:
        while (said := client.get("/version").json()["models"]["main"]["batching"]) == "being measured":
            pass
        assert said.startswith("differs up to ")
        assert float(said.split()[3]) > 1e-3
        assert len(answers(client)) == 40


@pytest.mark.parametrize("name", ["OwnGenerator", "Plain"])
def test_a_module_for_one_thread_is_served_by_one(folder: Path, name: str) -> None:
    """Two threads of a program may not call it; the clients of a service all reach the thread of its model."""
    run = trained(folder, name)
    predictor = trainwright.load(run, trust=True)
    predictor.predict(NEW)
    with ThreadPoolExecutor(1) as pool, pytest.raises(ModelError, match="stateful between predictions"):
        pool.submit(predictor.predict, NEW).result()
    with TestClient(make_app(Settings(str(run.path), trust=True, window_seconds=0))) as client:
        assert len({one["probability_gold"] for one in answers(client)}) > 1
