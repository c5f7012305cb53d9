"""Compressed runs are runs: they predict, are evaluated, listed and repeated, and come whole or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import trainwright
from trainwright.cli.main import main
from trainwright.compression import measures
from trainwright.errors import CheckpointError, GateError, InputError
from trainwright.records.listing import all_runs
from trainwright.runs.run import Run
from trainwright.runs.session import Session

MLP = {"model": {"type": "mlp", "params": {"hidden": [64, 32]}}, "training": {"epochs": 12, "batch_size": 32}}


@pytest.fixture(autouse=True)
def _without_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the processes that measure memory, and most repetitions; `test_memory` has them."""
    monkeypatch.setattr(measures, "peak_memory", lambda *_, **__: None)
    monkeypatch.setattr(measures, "_REPEATS", 3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("compressed")
    random = np.random.default_rng(0)
    frame = pd.DataFrame(random.normal(size=(600, 5)), columns=list("abcde"))
    frame["city"] = random.choice(["x", "y"], 600)
    frame["label"] = np.where(frame.a + frame.b * frame.c + (frame.city == "x") > 0.5, "yes", "no")
    frame.to_csv(folder / "rows.csv", index=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield folder


def trained(folder: Path, config: dict[str, Any]) -> Run:
    data = {"type": "csv", "path": "rows.csv", "target": "label"}
    return trainwright.train({"data": data, **config}, runs_dir=folder / "runs", quiet=True)


@pytest.fixture(scope="module")
def parent(folder: Path) -> Run:
    return trained(folder, MLP)


@pytest.fixture(scope="module")
def child(parent: Run) -> Run:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measures, "peak_memory", lambda *_, **__: None)
        return trainwright.compress(parent, quantize="int8-dynamic", gate="val_f1 >= parent - 0.05")


def test_a_child_is_a_run(parent: Run, child: Run, folder: Path) -> None:
    assert (child.status, child.experiment) == ("completed", parent.experiment)
    assert child.parent == {"run_id": parent.id, "relation": "compress", "step": None}
    assert child.digest != parent.digest
    record = child.manifest["compression"]
    assert record["parent_digest"] == parent.result["best"]["digest"]
    assert [layer["scheme"] for layer in record["layers"]] == ["int8-dynamic"] * 3
    assert child.manifest["data"] == parent.manifest["data"]
    for split in ("val", "test"):
        measured = trainwright.evaluate(child, split=split)
        assert measured == {name: child.metrics[name] for name in measured}
    listed = {run.id for run in trainwright.list_runs(runs_dir=folder / "runs")}
    assert {parent.id, child.id} <= listed
    assert trainwright.load("last", runs_dir=folder / "runs").run.id == child.id


def test_it_predicts_by_the_stored_integers(parent: Run, child: Run, folder: Path) -> None:
    """The same features through the stored weights, in float64."""
    rows = pd.read_csv(folder / "rows.csv").head(50)
    one, other = trainwright.load(child), trainwright.load(parent)
    assert {type(layer).__name__ for layer in one.native.modules()} >= {"Int8Dynamic"}
    values = torch.from_numpy(np.asarray(other.preparation.features(rows), np.float32))
    for layer in one.native.layers:
        if hasattr(layer, "scale"):
            weight = layer.weight.double() * layer.scale.double()[:, None]
            values = values.double() @ weight.T + layer.bias.double()
        elif not isinstance(layer, nn.Flatten):
            values = layer(values)
    expected = values.softmax(dim=1).detach().numpy()
    np.testing.assert_allclose(one.predict_proba(rows), expected, atol=0.02)
    np.testing.assert_allclose(one.predict_proba(rows), other.predict_proba(rows), atol=0.05)


def test_it_shows_both_side_by_side(parent: Run, child: Run) -> None:
    compared = child.compression
    assert compared["parent"]["run_id"] == parent.id
    assert compared["parent"]["val_f1"] == parent.metrics["val_f1"]
    assert compared["child"]["val_f1"] == child.metrics["val_f1"]
    (weights,) = child.path.glob("checkpoints/*/weights.safetensors")
    assert compared["child"]["bytes"] == weights.stat().st_size < 0.6 * compared["parent"]["bytes"]
    assert compared["child"]["latency_1"] > 0
    page = (child.path / "report.html").read_text()
    assert "Compressed <span" in page
    assert f"is compressed from {parent.id}" in page
    assert "val_f1 &gt;= parent - 0.05: passed" in page


def test_it_is_repeated_to_the_bit(child: Run) -> None:
    again = trainwright.reproduce(child)
    assert again.verdict == "identical", again


def test_a_gate_that_is_not_passed_keeps_nothing(
    parent: Run, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = len(list(all_runs(folder / "runs")))
    words = ["compress", parent.id, "--runs-dir", str(folder / "runs"), "--prune", "0.95"]
    assert main([*words, "--gate", "val_loss <= parent + 0.001 and val_accuracy >= 0"]) == 3
    said = capsys.readouterr()
    assert "val_loss <= parent + 0.001: not passed" in said.err
    assert "child/parent" in said.out
    assert len(list(all_runs(folder / "runs"))) == before
    with pytest.raises(GateError) as caught:
        trainwright.compress(parent, prune=0.95, gate="val_loss <= parent + 0.001")
    assert caught.value.found["gate"]["passed"] is False


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--prune", "1.5"], "prune: 1.5 given; a share from 0 to below 1"),
        (["--structured"], "structured says how to prune"),
        ([], "nothing to do: give quantize"),
        (["--prune", "0.5", "--search"], "give --gate"),
        (["--prune", "0.5", "--gate", "val_f2 > 1"], "there is no metric val_f2"),
        (["--prune", "0.5", "--gate", "val_f1 > champion"], "it can refer to parent"),
        (["--prune", "0.5", "--gate", "val_f1 is high"], "cannot be read at"),
        (["--prune", "0.5", "--gate", "test_f1 > 0", "--search"], "the test split must not choose"),
        (["--quantize", "int4-weight-only"], "no multiples of 32 and 16"),
        (["--quantize", "int3"], "'int3' given; there are"),
    ],
)
def test_bad_input(
    parent: Run, folder: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = ["--runs-dir", str(folder / "runs")]
    if "int4-weight-only" in words:
        parent = trained(folder, {**MLP, "model": {"type": "mlp", "params": {"hidden": [10]}}})
    assert main(["compress", parent.id, *runs, *words]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert len(said.strip().splitlines()) <= 4


def test_a_child_has_no_training(child: Run, folder: Path) -> None:
    with pytest.raises(InputError, match=r"compressed from .* has no training to fork"):
        trainwright.fork(child, {"training.learning_rate": 0.1})
    with pytest.raises(InputError, match="has no training to resume"):
        trainwright.resume(child, {"training.epochs": 20})
    with pytest.raises(InputError, match="compressed already: compress its parent"):
        trainwright.compress(child, prune=0.5)
    assert trainwright.resume(child).id == child.id  # it is completed


def test_a_kill_leaves_nothing_that_looks_complete(
    parent: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def die(*_: Any, **__: Any) -> None:
        raise Killed

    monkeypatch.setattr(Session, "publish", die)
    monkeypatch.setattr(Session, "close", lambda *_: None)  # which a kill does not run
    with pytest.raises(Killed):
        trainwright.compress(parent, quantize="fp16")
    monkeypatch.undo()
    left = trainwright.get("last", runs_dir=folder / "runs")
    assert left.status == "crashed"
    with pytest.raises(InputError, match="has no training to resume"):
        trainwright.resume(left)
    trainwright.delete(left)


@pytest.mark.parametrize(
    ("how", "kinds"),
    [
        ({"quantize": "int8-static"}, {"int8-static"}),
        ({"quantize": "int8-weight-only"}, {"int8-weight-only"}),
        ({"quantize": "int4-weight-only"}, {None, "int4-weight-only"}),
        ({"quantize": "fp16"}, {"fp16"}),
        ({"quantize": "bf16"}, {"bf16"}),
        ({"quantize": "fp8"}, {"fp8"}),
        ({"prune": 0.5}, {"pruned"}),
        ({"prune": 0.5, "structured": True}, {"narrowed"}),
        ({"prune": 0.3, "quantize": "int8-dynamic"}, {"int8-dynamic"}),
    ],
)
def test_each_way(parent: Run, how: dict[str, Any], kinds: set[str | None]) -> None:
    made = trainwright.compress(parent, **how)
    assert {layer["scheme"] for layer in made.compression["layers"]} == kinds
    measured = trainwright.evaluate(made)
    assert measured == {name: made.metrics[name] for name in measured}
    assert made.compression["child"]["bytes"] < made.compression["parent"]["bytes"]
    if how == {"prune": 0.5}:
        weights = [one for one in trainwright.load(made).native.parameters() if one.dim() > 1]
        zeros = [float((one == 0).double().mean()) for one in weights]
        assert zeros == pytest.approx([0.5] * 3, abs=0.02)


def test_a_search_finds_the_largest_that_passes(parent: Run) -> None:
    """The same as trying every share of the grid: the metric need not be monotonous, so ends are checked."""
    gate = "val_loss <= parent + 0.01"
    made = trainwright.compress(parent, prune=0.96, gate=gate, search=True)
    share = made.manifest["compression"]["recipe"]["prune"]
    assert 0 < share < 0.96
    larger = share + 0.96 / 32
    with pytest.raises(GateError):
        trainwright.compress(parent, prune=larger, gate=gate)
    trials = made.compression["search"]
    again = trainwright.compress(parent, prune=0.96, gate=gate, search=True)
    assert again.compression["search"] == trials
    assert again.digest == made.digest


def test_a_search_over_layers_leaves_out_the_sensitive_one(
    parent: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One layer is made to suffer most: its first output is lost."""
    from trainwright.frameworks.torch.compression import layers

    encode = layers.BFloat._encode

    def spoiled(layer: Any, source: Any) -> None:
        encode(layer, source)
        if layer.shape == (32, 64):
            layer.weight.zero_()

    monkeypatch.setattr(layers.BFloat, "_encode", spoiled)
    made = trainwright.compress(parent, quantize="bf16", gate="val_loss <= parent + 0.005", search=True)
    assert [layer["scheme"] for layer in made.compression["layers"]] == ["bf16", None, "bf16"]


def test_fewer_rounds_are_those_of_the_library(folder: Path) -> None:
    parent = trained(folder, {"model": "lightgbm", "training": {"epochs": 12}})
    made = trainwright.compress(parent, prune=0.25)
    booster: lightgbm.Booster = trainwright.load(parent).native
    rows = pd.read_csv(folder / "rows.csv").head(40)
    features = trainwright.load(parent).preparation.features(rows)
    expected = booster.predict(
        features, num_iteration=booster.num_trees() - round(0.25 * booster.num_trees())
    )
    np.testing.assert_allclose(trainwright.load(made).predict_proba(rows)[:, 1], expected, rtol=1e-6)
    with pytest.raises(InputError, match="thresholds of trees decide exactly"):
        trainwright.compress(parent, quantize="int8-dynamic")


@pytest.mark.parametrize("model", ["xgboost", "catboost", "random_forest", "hist_gradient_boosting"])
def test_other_sums_of_trees(folder: Path, model: str) -> None:
    params = {"n_estimators": 10} if model == "random_forest" else {}
    training = {} if model in ("random_forest", "hist_gradient_boosting") else {"training": {"epochs": 10}}
    parent = trained(folder, {"model": {"type": model, "params": params}, **training})
    made = trainwright.compress(parent, prune=0.5)
    (trees,) = made.compression["layers"]
    assert trees["after"] < trees["before"]
    assert trainwright.evaluate(made) == {
        name: value for name, value in made.metrics.items() if name.startswith("test_")
    }


def test_a_model_without_layers_is_refused(folder: Path) -> None:
    parent = trained(folder, {"model": "logistic_regression"})
    with pytest.raises(InputError, match="a LogisticRegression cannot be compressed"):
        trainwright.compress(parent, prune=0.5)


def test_a_damaged_structure_is_named(child: Run) -> None:
    """The tensor of the structure is covered by the checkpoint's hashes."""
    (module,) = child.path.glob("checkpoints/*/module.safetensors")
    data = module.read_bytes()
    module.write_bytes(data.replace(b"int8-dynamic", b"int8-dynamik", 1))
    try:
        with pytest.raises((CheckpointError, InputError), match="damaged"):
            trainwright.load(child)
    finally:
        module.write_bytes(data)
