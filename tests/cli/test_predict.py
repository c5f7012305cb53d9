"""`predict`: its options, and files that are read in chunks. Commands and Python give the same."""

import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
from commandline import Command

import trainwright
from trainwright.datasets.tables import chunks
from trainwright.errors import DataError, InputError
from trainwright.inference import predictor as models
from trainwright.inference.written_tables import write_predictions
from trainwright.runs.predictor import open_predictor
from trainwright.runs.run import Run

MODELS: dict[str, dict[str, Any]] = {
    "mlp": {"model": {"type": "mlp", "hidden": [8]}, "training": {"max_steps": 20, "threads": 1}},
    "sklearn": {"model": {"type": "random_forest", "framework": "sklearn", "params": {"n_estimators": 5}}},
    "lightgbm": {"model": {"type": "lightgbm", "params": {"num_leaves": 4}}, "training": {"max_steps": 5}},
}


class Trained(NamedTuple):
    """A run, its folder, and the file of the rows to predict."""

    run: Run
    folder: Path
    rows: Path


def table(rows: int = 150) -> pd.DataFrame:
    draw = np.random.default_rng(5)
    color, size = draw.choice(["red", "green", "blue"], rows), draw.normal(10, 3, rows).round(2)
    label = np.where((color == "red") ^ (size > 10), "yes", "no")
    return pd.DataFrame({"id": [f"{i:04}" for i in range(rows)], "color": color, "size": size, "y": label})


def train(folder: Path, settings: dict[str, Any], frame: pd.DataFrame, **data: Any) -> Trained:
    frame.to_csv(folder / "rows.csv", index=False)
    section = {"type": "csv", "path": str(folder / "rows.csv"), "target": "y", "exclude": ["id"], **data}
    config = {"experiment": {"name": "predict"}, "data": section, "tracking": [], **settings}
    return Trained(trainwright.train(config, runs_dir=folder / "runs"), folder, folder / "rows.csv")


@pytest.fixture(scope="module", params=MODELS)
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return train(tmp_path_factory.mktemp(request.param), MODELS[request.param], table())


@pytest.fixture(scope="module")
def booster(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return train(tmp_path_factory.mktemp("one"), MODELS["lightgbm"], table())


@pytest.fixture(scope="module")
def amounts(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    draw = np.random.default_rng(1)
    size = draw.uniform(1, 3, 400)
    y = np.exp(size + 0.2 * draw.standard_normal(400))
    frame = pd.DataFrame({"id": range(400), "size": size, "y": y})
    settings = {"model": {"type": "linear", "framework": "sklearn"}}
    folder = tmp_path_factory.mktemp("amounts")
    return train(folder, settings, frame, target_transform="log1p", split={"val": 0.4, "test": 0.4})


@pytest.fixture
def in_chunks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Read files in blocks of few rows, and predict as few together as the model allows."""
    monkeypatch.setattr(chunks, "WHOLE_BYTES", 0)
    monkeypatch.setattr(chunks, "_BLOCK_BYTES", 1000)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(models, "_CHUNK_ROWS", 16)
        yield


@pytest.mark.slow
def test_the_command_and_python_agree(command: Command, trained: Trained, tmp_path: Path) -> None:
    runs = ("--runs-dir", trained.folder / "runs")
    done = command("predict", "last", trained.rows, "-o", tmp_path / "o.csv", "--keep", "id,color", *runs)
    assert done.out == f"150 predictions: {tmp_path / 'o.csv'}\n"
    written = pd.read_csv(tmp_path / "o.csv", dtype={"id": str})
    frame = table()
    assert list(written) == ["id", "color", "prediction", "probability_no", "probability_yes"]
    assert written[["id", "color"]].equals(frame[["id", "color"]])
    in_python = trainwright.predict(trained.run, trained.rows, keep=["id", "color"])
    pd.testing.assert_frame_equal(in_python, written, check_dtype=False, rtol=0, atol=1e-7)
    predictor = trainwright.load(trained.run)
    probabilities = predictor.predict_proba(frame)
    np.testing.assert_allclose(probabilities, in_python.iloc[:, 3:], atol=1e-5)
    assert (predictor.predict(frame)["prediction"] == written["prediction"]).all()


@pytest.mark.slow
@pytest.mark.usefixtures("in_chunks")
def test_chunks_of_a_file_have_the_bits_of_the_rows_in_memory(trained: Trained) -> None:
    in_chunks = trainwright.predict(trained.run, trained.rows)
    predictor = open_predictor(trained.run._dir, pinned=True)
    assert predictor.chunk_rows % predictor.model.rows_together == 0
    pd.testing.assert_frame_equal(in_chunks, predictor.predict(pd.read_csv(trained.rows)), check_exact=True)
    models._CHUNK_ROWS = 1 << 16  # undone by the fixture
    pd.testing.assert_frame_equal(in_chunks, predictor.predict(pd.read_csv(trained.rows)), check_exact=True)


@pytest.mark.usefixtures("in_chunks")
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_files_are_written_in_chunks(suffix: str, command: Command, booster: Trained, tmp_path: Path) -> None:
    whole = trainwright.predict(booster.run, booster.rows, keep=["size"])
    path = tmp_path / f"o.{suffix}"
    runs = ("--runs-dir", booster.folder / "runs")
    command("predict", "last", booster.rows, "-o", path, "--keep", "size", *runs)
    written = (
        pd.read_csv(path, dtype={"probability_no": "f4", "probability_yes": "f4"})
        if suffix == "csv"
        else pd.read_parquet(path)
    )
    pd.testing.assert_frame_equal(written, whole, check_exact=True)
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    lines = command("predict", "last", booster.rows, "--keep", "size", *runs).out
    assert lines == whole.to_csv(index=False)


@pytest.mark.usefixtures("in_chunks")
def test_what_fails_on_the_way_leaves_no_file(command: Command, booster: Trained, tmp_path: Path) -> None:
    rows = table()
    rows["size"] = rows["size"].astype(str)
    rows.loc[120, "size"] = "huge"
    rows.to_csv(tmp_path / "rows.csv", index=False)
    done = command(
        "predict",
        "last",
        tmp_path / "rows.csv",
        "-o",
        tmp_path / "o.csv",
        "--on-error",
        "stop",
        "--runs-dir",
        booster.folder / "runs",
    )
    assert done.code == 2
    assert "row 121" in done.err
    assert [file.name for file in tmp_path.iterdir()] == ["rows.csv"]


def test_a_threshold(command: Command, booster: Trained) -> None:
    runs = ("--runs-dir", booster.folder / "runs")
    documents = command("predict", "last", booster.rows, "--threshold", "0.2", "--json", *runs).json
    for document in documents:
        assert document["prediction"] == ("yes" if document["probability_yes"] >= 0.2 else "no")
    bare = command(
        "predict", "last", booster.rows, "--threshold", "0.2", "--no-proba", *runs
    ).out.splitlines()
    assert bare == ["prediction", *(document["prediction"] for document in documents)]
    frame = trainwright.load(booster.run).predict(table(), threshold=0.2)
    assert frame["prediction"].tolist() == bare[1:]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--keep", "colour"], "no column 'colour' to keep; did you mean 'color'?"),
        (["--interval", "0.9"], "intervals are for amounts, but the task is classification"),
    ],
)
def test_options_that_do_not_fit_a_classification(
    options: list[str], message: str, command: Command, booster: Trained
) -> None:
    done = command("predict", "last", booster.rows, *options, "--runs-dir", booster.folder / "runs")
    assert (done.code, done.out) == (2, "")
    assert message in done.err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--proba"], "gives no probabilities: its task is regression"),
        (["--threshold", "0.3"], "the task is regression: leave it out"),
        (
            ["--interval", "0.999"],
            "need at least 999 validation rows to be calibrated on, and the run has 160",
        ),
        (["--interval", "90"], "give a share between 0 and 1"),
    ],
)
def test_options_that_do_not_fit_a_regression(
    options: list[str], message: str, command: Command, amounts: Trained
) -> None:
    done = command("predict", "last", amounts.rows, *options, "--runs-dir", amounts.folder / "runs")
    assert (done.code, done.out) == (2, "")
    assert message in done.err


def test_intervals(command: Command, amounts: Trained, tmp_path: Path) -> None:
    runs = ("--runs-dir", amounts.folder / "runs")
    command("predict", "last", amounts.rows, "-o", tmp_path / "o.csv", "--interval", "0.8", *runs)
    written = pd.read_csv(tmp_path / "o.csv")
    frame = pd.read_csv(amounts.rows)
    predictor = trainwright.load(amounts.run)
    pd.testing.assert_frame_equal(predictor.predict_interval(frame, 0.8), written, check_dtype=False)
    in_python = trainwright.predict(amounts.run, amounts.rows, interval=0.8)
    pd.testing.assert_frame_equal(in_python, written, check_dtype=False)
    # By hand: the residuals on the scale that the model is trained on, of the validation rows.
    val = predictor.load_data().rows["val"]
    errors = np.abs(np.log1p(frame["y"]) - np.log1p(written["prediction"]))[val].to_numpy()
    radius = np.quantile(errors, np.ceil(161 * 0.8) / 160, method="inverted_cdf")
    np.testing.assert_allclose(
        np.log1p(written["upper"]), np.log1p(written["prediction"]) + radius, rtol=1e-5
    )
    np.testing.assert_allclose(
        np.log1p(written["lower"]), np.log1p(written["prediction"]) - radius, rtol=1e-5
    )


def test_a_column_that_would_be_there_twice(amounts: Trained, tmp_path: Path) -> None:
    frame = pd.read_csv(amounts.rows).assign(prediction=1)
    frame.to_csv(tmp_path / "rows.csv", index=False)
    with pytest.raises(InputError, match="'prediction' cannot be kept"):
        trainwright.predict(amounts.run, tmp_path / "rows.csv", keep=["prediction"])


def test_rows_that_cannot_be_read_are_not_called_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    def frames() -> Iterator[Any]:
        yield pd.DataFrame({"prediction": [1]})
        raise OSError(errno.EIO, "Input/output error")

    for name in ("out.csv", "out.parquet"):
        with pytest.raises(DataError, match=r"^the rows cannot be read: Input/output error$"):
            write_predictions(frames(), tmp_path / name)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_run_that_cannot_be_written_is_explained(
    command: Command, booster: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_only(*_: Any, **__: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    kept = trainwright.explain(booster.run)
    monkeypatch.setattr("trainwright.records.run_dir.write_together", read_only)
    explanation = trainwright.explain(booster.run)
    reason = f"{booster.run.path} cannot be written (Read-only file system)"
    assert explanation == {**kept, "not_kept": reason}
    done = command("explain", "last", "--runs-dir", booster.folder / "runs")
    assert done.out.splitlines()[-1] == f"not in the report: {reason}"
