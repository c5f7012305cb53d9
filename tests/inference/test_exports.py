"""Models exported with the preparation of their rows: they answer raw rows as `trainwright predict` does."""

import errno
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trainwright
from customers import NEW, config, write_customers
from late import Late
from trainwright.datasets.tables.typed import ColumnKind
from trainwright.errors import InputError, TrainingError
from trainwright.inference.exports import lacks
from trainwright.inference.whole_files import write_whole
from trainwright.runs.semantics import PARTS

EXAMPLE = Path(__file__).parents[2] / "examples" / "predict_native.py"
pandas: Any = Late(lambda: __import__("pandas"))
Trained = Callable[..., trainwright.Run]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("customers")


@pytest.fixture(scope="module")
def trained(folder: Path) -> Trained:
    """Trains a small model once."""
    runs: dict[str, trainwright.Run] = {}
    table = write_customers(folder / "customers.csv")

    def train(model: str, **settings: Any) -> trainwright.Run:
        key = json.dumps([model, settings])
        if key not in runs:
            runs[key] = trainwright.train(config(table, model), settings, runs_dir=folder / "runs")
        return runs[key]

    return train


NUMBERS = {"data.target": "spent", "data.exclude": ["plan"]}


@pytest.mark.parametrize(
    ("model", "settings"),
    [("random_forest", {}), ("random_forest", NUMBERS | {"data.target_transform": "log1p"})],
)
def test_a_pipeline_takes_raw_rows_and_answers_as_the_run(
    trained: Trained, folder: Path, model: str, settings: dict[str, Any]
) -> None:
    import skops.io

    run = trained(model, **settings)
    path = trainwright.export(run, folder / "model.skops", "sklearn")
    types = skops.io.get_untrusted_types(file=path)
    ours = [name for name in types if name.startswith("trainwright.")]
    assert len(ours) == 2
    pipeline = skops.io.load(path, trusted=types)
    rows = pandas.DataFrame(NEW)
    expected = trainwright.load(run).predict(rows)
    assert pipeline.predict(rows).tolist() == expected["prediction"].tolist()
    if not settings:
        assert pipeline.classes_.tolist() == ["basic", "gold"]
        np.testing.assert_array_equal(
            pipeline.predict_proba(rows), expected[["probability_basic", "probability_gold"]].to_numpy()
        )


def test_a_pipeline_whose_rows_would_be_prepared_otherwise_is_refused(
    trained: Trained, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import skops.io

    path = trainwright.export(trained("random_forest"), folder / "another.skops", "sklearn")
    pipeline = skops.io.load(path, trusted=skops.io.get_untrusted_types(file=path))
    monkeypatch.setitem(PARTS, "preparation", PARTS["preparation"]._replace(version=99))
    with pytest.raises(InputError, match=r"made this pipeline, and computes otherwise: .* \(preparation\);"):
        pipeline.predict(pandas.DataFrame(NEW))


def test_what_is_no_estimator_is_refused_with_another_format(trained: Trained, folder: Path) -> None:
    with pytest.raises(InputError, match="one of lightgbm: use --format mlflow, or native for a booster"):
        trainwright.export(trained("lightgbm"), folder / "x.skops", "sklearn")
    with pytest.raises(
        InputError, match="native is for models of CatBoost, LightGBM and XGBoost; export one of sklearn"
    ):
        trainwright.export(trained("random_forest"), folder / "x", "native")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "suffix", "settings"),
    [
        ("xgboost", "ubj", {"data.encode": "category"}),
        ("lightgbm", "txt", {"data.encode": "target"}),
        ("catboost", "cbm", {"data.encode": "category"}),
        ("lightgbm", "txt", NUMBERS | {"data.target_transform": "log1p", "data.encode": "onehot"}),
    ],
)
def test_a_booster_predicts_on_raw_rows_without_trainwright(
    trained: Trained, folder: Path, model: str, suffix: str, settings: dict[str, Any]
) -> None:
    run = trained(model, **settings)
    path = trainwright.export(run, folder / f"model.{suffix}", "native")
    rows = folder / "new.csv"
    pandas.DataFrame(NEW).to_csv(rows, index=False)
    # -I: neither PYTHONPATH nor the working directory is searched; -c would find an installed trainwright.
    code = (
        "import sys, runpy; sys.modules['trainwright'] = None; sys.argv = sys.argv[1:];"
        "runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", code, str(EXAMPLE), str(path), str(rows)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (folder / "out.csv").write_text(done.stdout)
    answers = pandas.read_csv(folder / "out.csv")
    expected = trainwright.predict(run, rows)
    assert list(answers.columns) == list(expected.columns)
    for name in expected.columns:
        if expected[name].dtype == object:
            assert answers[name].tolist() == expected[name].tolist()
        else:
            np.testing.assert_allclose(answers[name], expected[name], rtol=1e-5)


def test_cells_that_only_trainwright_reads_are_named(trained: Trained, folder: Path) -> None:
    path = trainwright.export(trained("lightgbm"), folder / "plain.txt", "native")
    assert json.loads(Path(f"{path}.columns.json").read_text())["lacks"] == []
    kinds = {
        "price": ColumnKind("number", decimal=",", given="text"),
        "seen": ColumnKind("time", unit="s", given="number"),
        "age": ColumnKind("number"),
    }
    assert lacks(kinds) == [
        "price: numbers in text, with the decimal mark ',': give numbers",
        "seen: numbers, read as times in s: give dates",
    ]


def test_a_full_disk_is_reported_with_the_file_and_leaves_nothing(tmp_path: Path) -> None:
    def refuse(made: Path) -> None:
        made.write_text("half")
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(InputError, match=r"model\.txt cannot be written: No space left on device"):
        write_whole(tmp_path / "model.txt", refuse)
    assert not list(tmp_path.iterdir())


def test_a_library_that_cannot_write_its_model_ends_with_a_message(trained: Trained, folder: Path) -> None:
    """LightGBM reports a full disk by an error of its own."""
    loaded = trainwright.load(trained("lightgbm"))
    with pytest.raises(TrainingError, match="the export failed: "):
        loaded.model.export(folder / "nosuch" / "model.txt", "txt")
