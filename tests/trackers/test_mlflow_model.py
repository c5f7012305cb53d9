"""The model that MLflow loads and serves: it answers raw rows with our own predictions."""

import contextlib
import filecmp
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import trainwright
from customers import NEW, config, write_customers
from late import Late
from trainwright.trackers.mlflow import ENVIRONMENT
from trainwright.trackers.support.mlflow_model import write_wheel

pytestmark = pytest.mark.skipif(find_spec("mlflow") is None, reason="MLflow is not installed")
mlflow: Any = Late(lambda: import_module("mlflow"))
pandas: Any = Late(lambda: import_module("pandas"))


class Logged(NamedTuple):
    """A run that was tracked by MLflow, and where its model is there."""

    run: Any
    client: Any
    mlflow_run: Any
    model: Path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, empty_mlflow_store: Path) -> Iterator[Path]:
    """The working directory of a user, with a store."""
    folder = tmp_path_factory.mktemp("served")
    (folder / "mlflow.db").write_bytes(empty_mlflow_store.read_bytes())
    write_customers(folder / "customers.csv")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        yield folder


@pytest.fixture(scope="module")
def logged(folder: Path) -> Logged:
    """One run, fed to MLflow by a real feeder process."""
    tracking = [{"type": "mlflow", "registered_model_name": "customers"}]
    settings = config(folder / "customers.csv", "lightgbm", tracking=tracking)
    # The first evaluation is the `best`, so that the model is not that of the last step.
    settings["checkpoint"] = {"metric": "val_loss", "mode": "max"}
    run = trainwright.train(settings, runs_dir=folder / "runs")
    (report,) = trainwright.sync(run)  # nothing is left, unless the machine was slow
    assert (report.pending, report.error) == (0, "")
    client = mlflow.MlflowClient(f"sqlite:///{folder}/mlflow.db")
    experiment = client.get_experiment_by_name("customers")
    (found,) = client.search_runs([experiment.experiment_id])
    (model,) = client.search_logged_models([experiment.experiment_id])
    return Logged(run, client, found, Path(model.artifact_location))


def expected(logged: Logged) -> Any:
    return trainwright.load(logged.run).predict(pandas.DataFrame(NEW))


@pytest.mark.slow
def test_the_run_has_its_model_once_and_a_version_is_registered(logged: Logged) -> None:
    run, client = logged.mlflow_run, logged.client
    assert run.info.status == "FINISHED"
    (output,) = run.outputs.model_outputs
    assert output.model_id == run.data.tags["trainwright.model_id"]
    assert str(client.get_logged_model(output.model_id).status) == "READY"
    trainwright.sync(logged.run)
    (version,) = client.search_model_versions("name = 'customers'")
    assert (version.run_id, version.tags["trainwright.model_id"]) == (run.info.run_id, output.model_id)
    loaded = mlflow.MlflowClient(logged.client.tracking_uri).get_model_version("customers", "1")
    assert loaded.source == f"models:/{output.model_id}"


@pytest.mark.slow
def test_the_model_has_the_metrics_of_its_own_step(logged: Logged) -> None:
    """The best model's, where training went on after it; the run's points are as they were."""
    best, metrics = logged.run.result["best"], logged.run.metrics
    assert best["step"] < logged.run.result["steps"], "else this shows nothing"
    (output,) = logged.mlflow_run.outputs.model_outputs
    assert output.step == best["step"]
    model = logged.client.get_logged_model(output.model_id)
    held = {one.key: (one.value, one.step) for one in model.metrics}
    assert held["val_loss"] == (pytest.approx(metrics["val_loss"]), best["step"])
    assert held["test_loss"][0] == pytest.approx(metrics["test_loss"])
    assert {one for one in held if one.startswith("val_")} == {
        one for one in metrics if one.startswith("val_")
    }
    (version,) = logged.client.search_model_versions("name = 'customers'")
    assert version.model_id in (None, output.model_id)
    history = logged.client.get_metric_history(logged.mlflow_run.info.run_id, "val_loss")
    assert len({one.step for one in history}) == len(history)
    assert logged.mlflow_run.data.metrics["val_loss"] == history[-1].value


@pytest.mark.slow
def test_only_the_parameters_that_were_set_are_sent(logged: Logged) -> None:
    params = logged.mlflow_run.data.params
    assert params["model.params.max_depth"] == "3"
    assert params["data.split.test"] == "0.2"
    assert "model.params.reg_lambda" not in params
    assert len(params) < 15


@pytest.mark.slow
def test_the_splits_are_dataset_inputs(logged: Logged) -> None:
    inputs = logged.mlflow_run.inputs.dataset_inputs
    rows = {each.tags[0].value: json.loads(each.dataset.profile)["num_rows"] for each in inputs}
    assert rows.keys() == {"training", "validation", "test"}
    assert sum(rows.values()) == 160
    assert {each.dataset.name for each in inputs} == {"customers.csv"}


@pytest.mark.slow
def test_the_model_says_what_it_takes_and_what_it_needs(logged: Logged) -> None:
    model = mlflow.models.Model.load(str(logged.model))
    assert model.signature.inputs.input_names() == ["age", "income", "city", "joined", "seats"]
    outputs = {column.name: column.type.name for column in model.signature.outputs}
    assert outputs == {"prediction": "string", "probability_basic": "double", "probability_gold": "double"}
    assert "city: category (of 3), may be missing" in model.metadata["columns"]
    comment, *requirements = (logged.model / "requirements.txt").read_text().splitlines()
    assert comment == "# run in this folder: pip install -r requirements.txt"
    assert {line.partition("==")[0] for line in requirements if "==" in line} == {
        "mlflow",
        "lightgbm",
        "numpy",
        "pandas",
        "safetensors",
    }
    assert [line for line in requirements if "==" not in line] == [
        f"wheels/trainwright-{trainwright.__version__}-py3-none-any.whl"
    ]
    example = json.loads((logged.model / "serving_input_example.json").read_text())["dataframe_split"]
    row = pandas.DataFrame(**example)
    assert trainwright.load(logged.run).predict(row)["prediction"][0] in ("basic", "gold")


def test_the_part_that_predictions_need_answers_alone(tmp_path: Path) -> None:
    from trainwright.records.run_dir import RunDir
    from trainwright.storage.portable import stored_weights, write_portable

    table, rows = write_customers(tmp_path / "customers.csv"), pandas.DataFrame(NEW)
    run = trainwright.train(config(table, "lightgbm"), runs_dir=tmp_path / "runs")
    made = write_portable(RunDir(run.path), stored_weights(RunDir(run.path)), tmp_path / "portable")
    expected = trainwright.load(run).predict(rows)
    shutil.rmtree(run.path)
    table.unlink()
    assert trainwright.load(made).predict(rows).equals(expected)


@pytest.mark.slow
def test_pip_installs_the_wheel_beside_the_model(tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path / "wheels")
    assert wheel is not None
    (tmp_path / "requirements.txt").write_text(f"wheels/{wheel.name}\n")
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--no-deps",
        "--no-index",
        "--no-compile",
        "--no-warn-conflicts",
    ]
    subprocess.run([*pip, "--target", "made", "-r", "requirements.txt"], cwd=tmp_path, check=True)
    sources = Path(trainwright.__file__).parent
    assert not filecmp.dircmp(sources, tmp_path / "made" / "trainwright", ignore=["__pycache__"]).diff_files
    names = {path.relative_to(sources) for path in sources.rglob("*") if "__pycache__" not in path.parts}
    made = tmp_path / "made" / "trainwright"
    assert {path.relative_to(made) for path in made.rglob("*")} == names
    script = "import trainwright.cli.main, importlib.metadata as m; print(m.version('trainwright'), trainwright.__file__)"
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "made")}
    done = subprocess.run(
        [sys.executable, "-c", script], env=env, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [trainwright.__version__, str(made / "__init__.py")]


def test_what_the_folder_does_not_hold_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = write_customers(tmp_path / "customers.csv")
    run = trainwright.train(config(table, "lightgbm"), runs_dir=tmp_path / "runs")

    known = metadata.distribution

    def absent(name: str) -> Any:
        if name == "trainwright":
            raise metadata.PackageNotFoundError(name)
        return known(name)

    monkeypatch.setattr(metadata, "distribution", absent)
    made = trainwright.export(run, tmp_path / "model", "mlflow")
    requirements = (made / "requirements.txt").read_text()
    assert not (made / "wheels").exists()
    assert f"# not installed by this file, but needed: Trainwright {trainwright.__version__}" in requirements


# What training needs and predictions do not; another module of the same library would be blocked, too.
EXTRAS = ("torch", "sklearn", "pyarrow", "optuna", "shap", "xgboost", "catboost", "tensorflow", "keras")
LOAD = f"""
import importlib.abc, json, sys

class Blocked(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {EXTRAS}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Blocked())
import mlflow.pyfunc, pandas
model = mlflow.pyfunc.load_model(sys.argv[1])
rows = pandas.DataFrame(json.loads(sys.argv[2])).astype({{"age": float, "seats": float}})
print(model.predict(rows).to_json(orient="records", double_precision=15))
"""


@pytest.mark.slow
def test_it_loads_without_the_extras_for_training(logged: Logged, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", LOAD, str(logged.model), json.dumps(NEW)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout.splitlines()[-1])
    assert_equal(answers, expected(logged))


def assert_equal(answers: list[dict[str, Any]], frame: Any) -> None:
    rows = frame.to_dict(orient="records")
    assert [answer["prediction"] for answer in answers] == [row["prediction"] for row in rows]
    for answer, row in zip(answers, rows, strict=True):
        np.testing.assert_allclose(answer["probability_gold"], row["probability_gold"], rtol=1e-6)


@pytest.fixture(scope="module")
def server(logged: Logged, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`mlflow models serve` on a port of this machine."""
    folder = tmp_path_factory.mktemp("server")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "models", "serve", "-m", str(logged.model)]
    command += ["--env-manager", "local", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    # MLflow starts uvicorn by its name.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(
            command,
            cwd=folder,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env={**os.environ, "PATH": path},
        )
    try:
        while process.poll() is None:
            with socket.socket() as probe:
                probe.settimeout(1)
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        else:
            pytest.fail((folder / "log").read_text())
        yield f"http://127.0.0.1:{port}"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)


@pytest.mark.slow
def test_the_server_answers_raw_rows_as_we_do(logged: Logged, server: str) -> None:
    names = list(NEW[0])
    split = {"columns": names, "data": [[row[name] for name in names] for row in NEW]}
    for body in ({"dataframe_records": NEW}, {"dataframe_split": split}):
        request = urllib.request.Request(
            f"{server}/invocations", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert_equal(json.load(answer)["predictions"], expected(logged))
