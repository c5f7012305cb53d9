"""Processes that share a trained model out predict what one process predicts that has it whole."""

from __future__ import annotations

import argparse
import inspect
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import trainwright
from trainwright.api.predicting import predict_chunks
from trainwright.errors import ConfigError, DataError, InputError, ModelError
from trainwright.frameworks.base import ModelInputs
from trainwright.frameworks.torch import divided_model
from trainwright.frameworks.torch.initial import materialise
from trainwright.frameworks.torch.model import require_room
from trainwright.records.run_dir import RunDir
from trainwright.runs.processes import calls
from trainwright.runs.run import Run
from trainwright.runs.weights import stored_model

GPT = {"type": "gpt", "params": {"hidden_size": 24, "num_layers": 2, "num_heads": 2, "dropout": 0.1}}
CONFIG: dict[str, Any] = {
    "experiment": {"name": "used", "seed": 5},
    "data": {"type": "text", "path": "text.txt", "length": 12},
    "model": GPT,
    "training": {"max_steps": 4, "batch_size": 16, "learning_rate": 0.003, "threads": 1},
    "evaluation": {"batch_size": 64},
}
LLAMA = {
    "type": "transformers:AutoModelForCausalLM",
    "config": {
        "model_type": "llama",
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    },
}


def mesh(**sizes: Any) -> dict[str, Any]:
    return {f"distributed.{name}": value for name, value in sizes.items()}


def trained(folder: Path, **more: Any) -> Run:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        (folder / "text.txt").write_text(inspect.getsource(argparse)[:8_000])
        virtual = {"virtual": {"data": 2, "tensor": 2, "pipeline": 2}}
        return trainwright.train(
            {**CONFIG, "distributed": virtual, **more}, runs_dir=folder / "runs", quiet=True
        )


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return trained(tmp_path_factory.mktemp("used"))


def predictions(run: Run, folder: Path, overrides: dict[str, Any]) -> bytes:
    output = folder / "predictions.csv"
    source = run.path.parents[2] / "text.txt"
    written = trainwright.predict_file(run, source, output, overrides=overrides)
    assert written.rows == len(output.read_text().splitlines()) - 1
    return output.read_bytes()


MESHES = {
    "fsdp": mesh(nproc=2, strategy="fsdp"),
    "tensor": mesh(nproc=2, tensor=2),
    "pipeline": mesh(nproc=2, pipeline=2),
}


@pytest.mark.services
@pytest.mark.parametrize("name", MESHES)
def test_predictions_are_those_of_one_process(name: str, run: Run, tmp_path: Path) -> None:
    assert predictions(run, tmp_path, MESHES[name]) == predictions(run, tmp_path, {})


@pytest.mark.services
@pytest.mark.parametrize("name", MESHES)
def test_generated_text_is_that_of_one_process(name: str, run: Run) -> None:
    texts = [trainwright.generate(run, "def ", 12, overrides=some) for some in ({}, MESHES[name])]
    assert texts[0] == texts[1] != ""


@pytest.mark.services
def test_metrics_and_frames_are_those_of_one_process(run: Run) -> None:
    assert trainwright.evaluate(run, overrides=MESHES["fsdp"]) == trainwright.evaluate(run)
    source = run.path.parents[2] / "text.txt"
    frames = [trainwright.predict(run, source, overrides=some) for some in ({}, MESHES["pipeline"])]
    assert frames[0].equals(frames[1])


@pytest.mark.services
def test_all_axes_together(run: Run, tmp_path: Path) -> None:
    """The virtual mesh allows 8 processes, though the config of the run has one, and no axes."""
    all_axes = mesh(nproc=8, strategy="fsdp", tensor=2, pipeline=2)
    assert predictions(run, tmp_path, all_axes) == predictions(run, tmp_path, {})


@pytest.mark.services
def test_a_model_of_transformers(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    llama = trained(tmp_path, model=LLAMA)
    texts = [trainwright.generate(llama, "def ", 8, overrides=some) for some in ({}, MESHES["fsdp"])]
    assert texts[0] == texts[1] != ""
    assert predictions(llama, tmp_path, MESHES["tensor"]) == predictions(llama, tmp_path, {})


@pytest.mark.parametrize(
    "use",
    [
        trainwright.predict,
        lambda run, data, **how: trainwright.predict_file(run, data, data.with_suffix(".csv"), **how),
        lambda run, data, **how: list(predict_chunks(run, data, **how)),
        lambda run, data, **how: trainwright.evaluate(run, data=data, **how),
    ],
    ids=["predict", "predict_file", "predict_chunks", "evaluate"],
)
def test_a_file_that_is_not_there_starts_no_process(
    use: Any, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "start", lambda *_: pytest.fail("processes were started"))
    with pytest.raises(DataError, match=r"missing\.txt: there is no such file"):
        use(run, tmp_path / "missing.txt", overrides=MESHES["fsdp"])


@pytest.mark.services
def test_errors_of_the_processes_are_those_of_one(run: Run, tmp_path: Path) -> None:
    """Also where only the main process fails, as it alone writes."""
    (tmp_path / "none").mkdir()
    with pytest.raises(DataError, match=r"no file matches .*none"):
        trainwright.predict(run, tmp_path / "none" / "*.txt", overrides=MESHES["fsdp"])
    source = run.path.parents[2] / "text.txt"
    with pytest.raises(InputError, match="there is no folder"):
        trainwright.predict_file(run, source, tmp_path / "no" / "folder.csv", overrides=MESHES["fsdp"])


ASKING = """
import numpy as np
import torch
from torch import nn


class Asking(nn.Module):
    # Its forward pass asks for a value, so it cannot be called on the device meta.
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(16, 16), nn.Linear(16, 16)])
        self.last = nn.Linear(16, 3)

    def draw_parameters(self, module, name):
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()

    def forward(self, x):
        x = x / (1 + x[0, 0].item() ** 2)
        for block in self.blocks:
            x = torch.relu(block(x))
        return self.last(x)


def rows():
    x = np.random.default_rng(0).normal(size=(90, 16)).astype("f4")
    return x, np.argmax(x[:, :3], 1)
"""


@pytest.mark.services
def test_code_of_the_user_that_asks_for_values(tmp_path: Path) -> None:
    (tmp_path / "asking.py").write_text(ASKING)
    config = {
        "model": "asking:Asking",
        "data": "asking:rows",
        "training": {"max_steps": 2, "batch_size": 8, "threads": 1},
        "distributed": {"virtual": {"data": 2, "pipeline": 2}},
    }
    (tmp_path / "config.yaml").write_text(json.dumps(config))
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def called(*words: str) -> str:
        command = [sys.executable, "-P", "-m", "trainwright", *words]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, check=False, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    called("train", "config.yaml")
    alone, *others = (
        called("evaluate", "last", *(f"{key}={value}" for key, value in some.items()))
        for some in ({}, MESHES["pipeline"], MESHES["fsdp"])
    )
    assert others == [alone] * 2


def test_the_model_is_made_without_memory(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else each process would have all of it for a while."""
    seen: list[bool] = []

    def noting(module: torch.nn.Module, device: torch.device) -> None:
        seen.extend(one.is_meta for one in module.parameters())
        materialise(module, device)

    monkeypatch.setattr(divided_model, "materialise", noting)
    folder = RunDir(run.path)
    loaded = trainwright.load(run)
    inputs = ModelInputs(loaded.config, loaded.info, loaded.config.model.params, 1)
    model = divided_model.DividedModel(inputs, stored_model(folder).folder)
    assert seen
    assert all(seen)
    state, whole = model.native.state_dict(), loaded.native.state_dict()
    assert state.keys() == whole.keys()
    assert all(torch.equal(state[name], whole[name]) for name in whole)
    tokens = np.arange(7, dtype=np.int64)
    assert np.array_equal(model.next_token(tokens), loaded.model.next_token(tokens))


def test_one_process_may_be_asked_for(run: Run) -> None:
    assert trainwright.evaluate(run, overrides=mesh(nproc=1)) == trainwright.evaluate(run)


@pytest.mark.parametrize(
    ("overrides", "error", "words"),
    [
        ({"training.threads": 2}, InputError, "training.threads: evaluate keeps the run's config, but for"),
        (mesh(**{"virtual.data": 4}), InputError, "virtual.data: the bits depend on it, so evaluate keeps"),
        (mesh(nproc=4), ConfigError, "4 does not divide the 2 virtual ranks of the batch; allowed: 1, 2"),
        (mesh(nproc=4, tensor=4), ConfigError, "4 does not divide virtual.tensor, which is 2; allowed: 1, 2"),
        (mesh(nproc=2, shards=2), ConfigError, "shards"),
        (mesh(nproc=1, nnodes=2, rdzv_endpoint="a:1"), InputError, "its own processes, on one machine"),
    ],
)
def test_what_is_no_mesh_of_the_run_is_refused(
    overrides: dict[str, Any], error: type[InputError], words: str, run: Run
) -> None:
    with pytest.raises(error, match=words):
        trainwright.evaluate(run, overrides=overrides)


def test_another_framework_has_no_mesh(tmp_path: Path) -> None:
    config = {"data": "iris", "model": "decision_tree", "experiment": {"name": "tree"}}
    tree = trainwright.train(config, runs_dir=tmp_path, quiet=True)
    for verb in (trainwright.evaluate, trainwright.reproduce):
        with pytest.raises(InputError, match=r"distributed\.nproc: decision_tree is trained in one process"):
            verb(tree, overrides=mesh(nproc=2))


def test_weights_that_do_not_fit_are_refused_before_they_are_read() -> None:
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    with pytest.raises(ModelError, match=r"70\.0 GB.*20\.0 GB.*nproc=4 distributed\.strategy=fsdp"):
        require_room(70 * 10**9, 20 * 10**9, gpu)
    with pytest.raises(ModelError, match="use a machine with more"):
        require_room(70 * 10**9, 20 * 10**9, cpu)
    require_room(20 * 10**9, 20 * 10**9, gpu)
    require_room(20 * 10**9, None, cpu)
