"""Folders for MLflow predict what their runs predict, with typed signatures that MLflow enforces."""

from __future__ import annotations

import json
import shutil
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import trainwright
from customers import NEW, config, write_customers
from late import Late
from trainwright.cli.main import main
from trainwright.errors import InputError, TrainwrightError
from trainwright.exporters.mlflow import MlflowExporter
from trainwright.records.run_dir import RunDir
from trainwright.storage.portable import stored_weights, write_portable
from trainwright.testing.exporter_suite import ExporterSuite

pytestmark = [
    pytest.mark.services,
    pytest.mark.skipif(find_spec("mlflow") is None, reason="MLflow is not installed"),
]
mlflow: Any = Late(lambda: import_module("mlflow"))
pandas: Any = Late(lambda: import_module("pandas"))


class TestMlflow(ExporterSuite):
    exporter = MlflowExporter
    form = "mlflow"
    needs_trainwright = True
    models: ClassVar[dict[str, dict[str, Any]]] = {
        "lightgbm": {},
        "cost": {"model": "xgboost", "data.target": "income", "data.target_transform": "log1p"},
    }

    def damage(self, path: Path) -> None:
        """Put another run into the folder: what is in it has hashes of its own."""
        other = trainwright.train(
            {"data": {"type": "csv", "path": "rows.csv", "target": "churn"}, "model": "lightgbm"},
            ["training.max_steps=2", "training.threads=1"],
            runs_dir="others",
            quiet=True,
        )
        shutil.rmtree(path / "run")
        run = RunDir(other.path)
        write_portable(run, stored_weights(run), path / "run")


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """A run of customers, and its folder for MLflow."""
    folder = tmp_path_factory.mktemp("customers")
    settings = config(write_customers(folder / "customers.csv"), "lightgbm")
    run = trainwright.train(settings, runs_dir=folder / "runs", quiet=True)
    return run, trainwright.export(run, folder / "served", "mlflow")


def test_the_signature_has_types_that_mlflow_enforces(exported: tuple[Any, Path]) -> None:
    run, path = exported
    model = mlflow.pyfunc.load_model(str(path))
    types = {one.name: (one.type.name, one.required) for one in model.metadata.signature.inputs}
    assert {name: kind for name, (kind, _) in types.items()} == {
        "age": "double",
        "income": "double",
        "city": "string",
        "joined": "datetime",
        "seats": "double",
    }
    assert {one.name: one.type.name for one in model.metadata.signature.outputs} == {
        "prediction": "string",
        "probability_basic": "double",
        "probability_gold": "double",
    }
    rows = pandas.DataFrame(NEW).astype({"age": float, "seats": float})
    rows["joined"] = pandas.to_datetime(rows["joined"])
    expected = trainwright.load(run).predict(pandas.DataFrame(NEW))
    np.testing.assert_allclose(
        model.predict(rows)["probability_gold"], expected["probability_gold"], rtol=1e-6
    )
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"age": ["old", "young", "x"]}, "column age"),
        ({"city": [1.5, 2.5, 3.5]}, "column city"),
        ({"joined": [1.0, 2.0, 3.0]}, "column joined"),
    ]
    for change, said in wrong:
        with pytest.raises(mlflow.exceptions.MlflowException, match=said):
            model.predict(rows.assign(**change))


def test_a_column_that_may_be_missing_may_be_left_out(exported: tuple[Any, Path]) -> None:
    run, path = exported
    model = mlflow.pyfunc.load_model(str(path))
    optional = [one.name for one in model.metadata.signature.inputs if not one.required]
    assert "city" in optional
    rows = pandas.DataFrame(NEW).astype({"age": float, "seats": float})
    without = model.predict(rows.drop(columns="city"))
    expected = trainwright.load(run).predict(pandas.DataFrame(NEW).assign(city=None))
    assert without["prediction"].tolist() == expected["prediction"].tolist()


def test_the_example_is_a_row_that_the_model_takes(exported: tuple[Any, Path]) -> None:
    _, path = exported
    model = mlflow.pyfunc.load_model(str(path))
    example = json.loads((path / "input_example.json").read_text())
    rows = pandas.DataFrame(example["data"], columns=example["columns"])
    assert len(model.predict(rows.astype({"age": float, "seats": float}))) == 1


def test_text_that_only_the_preparation_reads_stays_text(tmp_path: Path) -> None:
    """MLflow would take 03/04/2026 for the fourth of March."""
    lines = [f"{i % 28 + 1:02d}/03/2026;{i % 23},5;{'ja' if i % 2 else 'nein'};{i % 3}" for i in range(90)]
    (tmp_path / "rows.csv").write_text("when;price;open;y\n" + "\n".join(lines) + "\n")
    data = {"path": str(tmp_path / "rows.csv"), "target": "y", "params": {"delimiter": ";"}}
    settings = {"data": data, "model": "lightgbm"}
    overrides = ["training.max_steps=3", "training.threads=1"]
    run = trainwright.train(settings, overrides, runs_dir=tmp_path, quiet=True)
    model = mlflow.pyfunc.load_model(str(trainwright.export(run, tmp_path / "m", "mlflow")))
    types = {one.name: one.type.name for one in model.metadata.signature.inputs}
    assert types == {"when": "string", "price": "string", "open": "string"}
    text = pandas.DataFrame({"when": ["03/04/2026"], "price": ["7,5"], "open": ["ja"]})
    assert len(model.predict(text)) == 1


def test_the_onnx_flavor_takes_raw_columns(exported: tuple[Any, Path], tmp_path: Path) -> None:
    """Both flavors give the run's predictions; that of ONNX by ONNX Runtime alone."""
    onnxruntime = pytest.importorskip("onnxruntime")
    run, without = exported
    path = trainwright.export(run, tmp_path / "served", "mlflow", options={"flavor": "onnx"})
    expected = trainwright.load(run).predict(pandas.DataFrame(NEW))

    model = mlflow.onnx.load_model(str(path))
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    rows = pandas.DataFrame(NEW)
    feeds = {name: rows[name].to_numpy(float)[:, None] for name in ("age", "income", "seats")}
    feeds["city"] = rows[["city"]].fillna("").to_numpy(object)
    feeds["joined"] = pandas.to_datetime(rows["joined"]).to_numpy("datetime64[us]").astype(np.int64)[:, None]
    label, chances = session.run(["label", "probabilities"], feeds)
    assert label.ravel().tolist() == expected["prediction"].tolist()
    np.testing.assert_allclose(chances[:, 1], expected["probability_gold"], atol=1e-6)

    served, before = (mlflow.pyfunc.load_model(str(one)) for one in (path, without))
    assert served.metadata.signature.to_dict() == before.metadata.signature.to_dict()
    typed = rows.astype({"age": float, "seats": float}).assign(joined=pandas.to_datetime(rows["joined"]))
    pandas.testing.assert_frame_equal(served.predict(typed), before.predict(typed))
    assert "onnxruntime==" in (path / "requirements.txt").read_text()

    assert main(["certificate", "verify", str(path / "model.onnx")]) == 0
    assert main(["certificate", "verify", str(path), "--trust"]) == 0
    content = bytearray((path / "model.onnx").read_bytes())
    content[-20] ^= 1
    (path / "model.onnx").write_bytes(content)
    assert main(["certificate", "verify", str(path), "--trust"]) == 3


def test_a_model_that_onnx_cannot_hold_gets_no_such_flavor(tmp_path: Path) -> None:
    settings = config(write_customers(tmp_path / "customers.csv"), "kernel_ridge", target="spent")
    settings["model"]["params"], settings["data"]["impute"] = {}, "median"
    run = trainwright.train(settings, runs_dir=tmp_path / "runs", quiet=True)
    with pytest.raises(TrainwrightError, match=r"(?s)flavor=onnx: .*leave the option out"):
        trainwright.export(run, tmp_path / "served", "mlflow", options={"flavor": "onnx"})
    assert not (tmp_path / "served").exists()


def test_masks_and_language_models_are_refused(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("a line of text\n" * 200)
    text = {"type": "text", "path": str(tmp_path / "text.txt"), "length": 16, "tokenizer": "bytes"}
    gpt = {"type": "gpt", "params": {"hidden_size": 8, "num_layers": 1, "num_heads": 1}}
    settings = {"data": text, "model": gpt, "training": {"max_steps": 1, "batch_size": 4}}
    run = trainwright.train(settings, runs_dir=tmp_path / "runs", quiet=True)
    with pytest.raises(InputError, match="predictions of language_modeling need targets"):
        trainwright.export(run, tmp_path / "model", "mlflow")
    assert not (tmp_path / "model").exists()
