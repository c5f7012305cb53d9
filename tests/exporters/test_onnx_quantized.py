"""Quantized ONNX predicts within the user's tolerance, and only the network's weights are rounded."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import trainwright
from trainwright import api
from trainwright.cli.main import main
from trainwright.errors import DifferentArtifactError, InputError
from trainwright.records.artifact import read_certificate
from trainwright.runs.run import Run

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("torch")
WAYS = ["int8-dynamic", "int8-static", "int8-weight-only"]
NETWORK = "/tw/model/"
MLP = {"type": "mlp", "params": {"hidden": [64, 32]}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return a folder with rows, which is the working directory; numbers are larger in the test split."""
    folder = tmp_path_factory.mktemp("quantized")
    draws = np.random.default_rng(0)
    for name, count, size in (("train", 400, 1.0), ("val", 60, 1.5), ("test", 60, 1.5)):
        frame = pd.DataFrame(size * draws.normal(size=(count, 4)), columns=list("abcd"))
        frame["city"] = draws.choice(["Bern", "Oslo"], count)
        frame["label"] = np.where(frame.a + frame.b * frame.c + (frame.city == "Bern") > 0.5, "yes", "no")
        frame.to_csv(folder / f"{name}.csv", index=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield folder


def trained(folder: Path, model: Any, **data: Any) -> Run:
    paths = {f"{name}_path": f"{name}.csv" for name in ("train", "val", "test")}
    config = {
        "data": {"type": "csv", **paths, "target": "label", **data},
        "model": model,
        "training": {"epochs": 12, "batch_size": 32, "threads": 1},
    }
    return trainwright.train(config, runs_dir=folder / "runs", quiet=True)


@pytest.fixture(scope="module")
def mlp(folder: Path) -> Run:
    return trained(folder, MLP)


def exported(run: Run, path: Path, how: str, tolerance: float = 0.3) -> Path:
    return api.export(run, path, "onnx", options={"quantize": how}, tolerance=tolerance)


@pytest.fixture(scope="module")
def made(mlp: Run, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function to the artifact of a way, which is exported once."""
    folder = tmp_path_factory.mktemp("made")

    def path(how: str) -> Path:
        found = folder / f"{how}.onnx"
        if not found.exists():
            exported(mlp, found, how, 1e-5 if how == "none" else 0.3)
        return found

    return path


def feeds_of(file: str) -> dict[str, Any]:
    rows = pd.read_csv(file)
    numbers = {name: rows[name].to_numpy()[:, None] for name in "abcd"}
    return {**numbers, "city": rows.city.to_numpy().astype(object)[:, None]}


def constants_of(model: Any) -> dict[str, Any]:
    return {one.name: onnx.numpy_helper.to_array(one) for one in model.graph.initializer}


@pytest.mark.parametrize("how", WAYS)
def test_it_predicts_within_the_tolerance(mlp: Run, made: Callable[[str], Path], how: str) -> None:
    path = made(how)
    session = onnxruntime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])
    label, probabilities = session.run(["label", "probabilities"], feeds_of("test.csv"))
    own = api.predict(mlp, "test.csv")
    wanted = own[["probability_no", "probability_yes"]].to_numpy()
    apart = np.abs(probabilities - wanted).max()
    assert 1e-5 < apart <= 0.3
    known = read_certificate(path)
    assert (known.tolerance, known.options) == (0.3, {"quantize": how})
    assert apart / 2 < known.compared["largest_difference"] <= 0.3  # in other batches, and of edge rows
    share = float((label == own["prediction"].to_numpy()).mean())
    assert known.compared["equal_labels"] == pytest.approx(share, abs=0.05)
    assert share > 0.9
    assert "60 rows of test.csv" in api.verify_certificate(path, "test.csv")


@pytest.mark.parametrize("how", WAYS)
def test_only_the_network_is_rounded(made: Callable[[str], Path], how: str) -> None:
    plain, rounded = onnx.load(made("none")), onnx.load(made(how))
    outside = [one for one in plain.graph.node if not one.name.startswith(NETWORK)]
    assert len(outside) > 15
    kept = {one.name: one for one in rounded.graph.node}
    assert [kept[one.name] for one in outside] == outside
    before, after = constants_of(plain), constants_of(rounded)
    for name, values in before.items():
        if not name.startswith(NETWORK):
            np.testing.assert_array_equal(after[name], values)
    stored = [one for one in after.values() if one.dtype == np.int8 and one.ndim == 2]
    assert sorted(one.size for one in stored) == [2 * 32, 6 * 64, 64 * 32]
    assert not [name for name, one in after.items() if one.dtype == np.float32 and one.size > 64]
    if how == "int8-weight-only":
        weight = before[f"{NETWORK}module.layers.3.weight"]
        integers, scale = (
            after[f"{NETWORK}module.layers.3.weight_{part}"] for part in ("quantized", "scale")
        )
        np.testing.assert_allclose(scale, np.abs(weight).max(axis=1) / 127, rtol=1e-6)
        assert np.abs(integers * scale[:, None] - weight).max() <= scale.max() / 2 + 1e-7


@pytest.mark.parametrize("how", WAYS)
def test_without_a_tolerance_it_says_what_to_give(
    mlp: Run, tmp_path: Path, how: str, capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    words = ["export", mlp.id, str(tmp_path / "model.onnx"), "--option", f"quantize={how}"]
    words += ["--runs-dir", str(folder / "runs")]
    assert main(words) == 3
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 4
    assert f"with quantize={how} outputs differ from those of run {mlp.id} by up to 0." in lines[0]
    assert re.search(r"test rows: .*mean 0\.\d+, \d+\.\d\d% of labels equal", lines[2])
    assert [*tmp_path.iterdir()] == []
    advice = re.search(r"give --tolerance (\S+)$", lines[3])
    assert advice is not None
    assert main([*words, "--tolerance", advice[1]]) == 0
    assert "of labels equal" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("how", "tolerance"), [("int8-dynamic", 0.05), ("int8-static", 0.2), ("int8-weight-only", 0.02)]
)
def test_a_wrong_scale_is_found(
    mlp: Run,
    tmp_path: Path,
    made: Callable[[str], Path],
    how: str,
    tolerance: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from trainwright.exporters.onnx import quantize

    assert read_certificate(made(how)).compared["largest_difference"] < tolerance
    put_back = quantize._with

    def wrong(model: Any, network: Any) -> Any:
        scale = next(
            one
            for one in network.graph.initializer
            if re.search(r"layers\.3\.weight(_Transposed)?_scale$", one.name)
        )
        scale.CopyFrom(onnx.numpy_helper.from_array(4 * onnx.numpy_helper.to_array(scale), scale.name))
        return put_back(model, network)

    monkeypatch.setattr(quantize, "_with", wrong)
    with pytest.raises(DifferentArtifactError, match="first step that differs: the model") as caught:
        exported(mlp, tmp_path / "model.onnx", how, tolerance)
    assert caught.value.exit_code == 3
    assert re.search(rf"the largest difference is 0\.\d+, and the tolerance {tolerance}$", str(caught.value))
    assert [*tmp_path.iterdir()] == []


def test_ranges_are_those_of_the_training_split(mlp: Run, made: Callable[[str], Path]) -> None:
    constants = constants_of(onnx.load(made("int8-static")))
    bundle = api.load(mlp).load_data()
    widths = {}
    for name, split in bundle.splits.items():
        features = split.take(np.arange(len(split)))["features"]
        widths[name] = float(features.max() - features.min())
    assert widths["train"] < min(widths["val"], widths["test"])
    assert constants["/tw/features_scale"] == pytest.approx(widths["train"] / 255, rel=1e-5)


def test_edge_rows_are_within_the_training_rows(made: Callable[[str], Path]) -> None:
    """Rounded ranges do not hold beyond them."""
    counts = {how: len(read_certificate(made(how)).edge_rows["rows"]) for how in ("none", "int8-static")}
    assert counts["none"] - counts["int8-static"] == 8  # two of each of four numbers


def test_a_convolution_network(tmp_path: Path, folder: Path) -> None:
    config = {
        "data": {"type": "digits"},
        "model": {"type": "cnn", "params": {"filters": [16], "hidden": []}},
        "training": {"epochs": 2, "threads": 1},
    }
    run = trainwright.train(config, runs_dir=folder / "runs", quiet=True)
    path = exported(run, tmp_path / "model.onnx", "int8-static", 0.2)
    nodes = {node.output[0]: node for node in onnx.load(path).graph.node}
    convolution = next(node for node in nodes.values() if node.op_type == "Conv")
    assert {nodes[name].op_type for name in convolution.input[:2]} == {"DequantizeLinear"}
    assert read_certificate(path).compared["mean_difference"] < 0.01


def test_keras(tmp_path: Path, folder: Path) -> None:
    pytest.importorskip("tf2onnx")
    run = trained(folder, {"type": "mlp", "framework": "keras", "params": {"hidden": [16]}})
    for how in WAYS:
        path = exported(run, tmp_path / f"{how}.onnx", how)
        assert any(one.dtype == np.int8 for one in constants_of(onnx.load(path)).values())


@pytest.mark.parametrize("model", ["lightgbm", "logistic_regression"])
def test_what_decides_exactly_is_refused(tmp_path: Path, folder: Path, model: str) -> None:
    run = trained(folder, model, impute="median")
    with pytest.raises(InputError, match="is for networks of PyTorch and Keras; the thresholds and coeff"):
        exported(run, tmp_path / "model.onnx", "int8-dynamic")
    assert [*tmp_path.iterdir()] == []


def test_data_that_are_not_there(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draws = np.random.default_rng(1)
    features = draws.normal(size=(80, 3)).astype(np.float32)
    data = {"features": features, "target": (features[:, 0] > 0).astype(np.int64)}
    config = {"model": MLP, "training": {"max_steps": 3}}
    run = trainwright.train(config, data=data, runs_dir=folder / "runs", quiet=True)
    with pytest.raises(InputError, match=r"int8-static measures ranges on the training rows: .*objects"):
        exported(run, tmp_path / "model.onnx", "int8-static")
    exported(run, tmp_path / "model.onnx", "int8-weight-only")


@pytest.mark.parametrize(
    ("scheme", "nearest"), [("int8-static", "int8-static"), ("bf16", "int8-weight-only")]
)
def test_compressed_runs_name_what_to_export(mlp: Run, tmp_path: Path, scheme: Any, nearest: str) -> None:
    pytest.importorskip("torchao")
    from trainwright.compression import measures

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measures, "peak_memory", lambda *_, **__: None)
        patch.setattr(measures, "_REPEATS", 1)
        child = trainwright.compress(mlp, quantize=scheme)
    with pytest.raises(InputError) as caught:
        api.export(child, tmp_path / "model.onnx")
    advice = f"trainwright export {mlp.id} model.onnx --option quantize={nearest}"
    assert f"is quantized ({scheme}) for PyTorch's own kernels" in str(caught.value)
    assert advice in str(caught.value)
    exported(mlp, tmp_path / "model.onnx", nearest)


def test_a_gate_decides(mlp: Run, tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["export", mlp.id, str(tmp_path / "model.onnx"), "--option", "quantize=int8-static"]
    words += ["--runs-dir", str(folder / "runs"), "--tolerance", "0.3", "--gate"]
    assert main([*words, "val_f1 >= parent + 0.2"]) == 3
    error = capsys.readouterr().err
    assert "the gate is not passed, so nothing was written: val_f1 >= parent + 0.2: not passed (" in error
    assert [*tmp_path.iterdir()] == []
    assert main([*words, "val_loss <= parent"]) == 2
    assert "there is no metric val_loss; there are val_accuracy" in capsys.readouterr().err
    assert main([*words, "val_f1 >= parent - 0.1 and val_accuracy >= 0.7"]) == 0
    said = capsys.readouterr().out
    own = api.evaluate(tmp_path / "model.onnx", data="val.csv")["test_f1"]
    parent = mlp.metrics["val_f1"]
    found = re.search(r"gate: val_f1 >= parent - 0.1: passed \((\S+) against (\S+)\); val_accuracy", said)
    assert found is not None
    assert [float(one) for one in found.groups()] == pytest.approx([own, parent - 0.1], abs=1e-4)
