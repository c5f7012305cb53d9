"""Tables of Polars and Arrow: trained on and predicted for like data frames of pandas."""

from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import trainwright
from trainwright.datasets.samples.objects import from_objects
from trainwright.datasets.tables.arrow import as_pandas
from trainwright.datasets.tables.table import as_table

pl = pytest.importorskip("polars")
ROWS = 60
CITIES = [["Rome", "Oslo", "Bonn"][i % 3] for i in range(ROWS)]
COLUMNS: dict[str, Any] = {
    "size": [float(i * 37 % 61) for i in range(ROWS)],
    "rooms": [None if i % 9 == 4 else i % 7 for i in range(ROWS)],
    "city": CITIES,
    "built": [date(1990 + i % 30, 1 + i % 12, 1) for i in range(ROWS)],
    "price": [100.0 + i * 37 % 61 + 3 * (i % 3) for i in range(ROWS)],
}
PANDAS = as_pandas(pa.table(COLUMNS))
CONFIG: dict[str, Any] = {
    "experiment": {"seed": 1},
    "data": {"target": "price", "impute": "median"},
    "model": {"type": "mlp", "params": {"hidden": [4]}},
    "training": {"max_steps": 20, "batch_size": 16, "threads": 1},
}


def forms() -> dict[str, Any]:
    """The same rows in other tables."""
    frame, table = pl.DataFrame(COLUMNS), pa.table(COLUMNS)
    return {
        "polars": frame,
        "lazy": frame.lazy(),
        "categorical": frame.with_columns(pl.col("city").cast(pl.Categorical)),
        "enum": frame.with_columns(pl.col("city").cast(pl.Enum(["Rome", "Oslo", "Bonn"]))),
        "decimal": frame.with_columns(pl.col("size").cast(pl.Decimal(10, 2))),
        "small": frame.with_columns(pl.col("rooms").cast(pl.Int8), pl.col("built").cast(pl.Datetime("us"))),
        "arrow": table,
        "batch": table.combine_chunks().to_batches()[0],
        "reader": table.to_reader(),
        "dictionary": table.set_column(2, "city", table["city"].dictionary_encode()),
        "string view": table.set_column(2, "city", table["city"].cast(pa.string_view())),
        "large": table.set_column(2, "city", table["city"].cast(pa.large_string())),
        "decimals": table.set_column(0, "size", table["size"].cast(pa.decimal128(10, 2))),
        "zone": table.set_column(
            3, "built", table["built"].cast(pa.timestamp("s")).cast(pa.timestamp("ns", "UTC"))
        ),
    }


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> trainwright.Run:
    return trainwright.train(CONFIG, data=PANDAS, runs_dir=tmp_path_factory.mktemp("runs"))


@pytest.mark.parametrize("form", list(forms()))
def test_each_table_gives_the_predictions_of_pandas(run: trainwright.Run, form: str) -> None:
    model = trainwright.load(run)
    expected, rows = model.predict(PANDAS), forms()[form]
    pd.testing.assert_frame_equal(model.predict(rows), expected)


@pytest.mark.parametrize("form", ["polars", "lazy", "arrow", "categorical", "decimals"])
def test_each_table_is_trained_on_alike(form: str) -> None:
    def prints(data: Any) -> list[str]:
        from trainwright.config.schema import DataConfig

        bundle = from_objects(data, DataConfig.model_validate(CONFIG["data"]))
        return [split.fingerprint() for split in bundle.splits.values()]

    assert prints(forms()[form]) == prints(PANDAS)


def test_a_pair_of_polars_and_splits_of_it() -> None:
    from trainwright.config.schema import DataConfig

    frame, config = pl.DataFrame(COLUMNS), DataConfig.model_validate(CONFIG["data"])
    whole = from_objects((frame.drop("price"), frame["price"]), config)
    assert whole.info.task == "regression"
    parts = from_objects({"train": frame[:40], "val": frame[40:].lazy()}, config)
    assert [len(split) for split in parts.splits.values()] == [40, 20]


def test_intervals_for_every_table_after_the_file_is_gone(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    PANDAS.to_csv(file, index=False)
    config = {**CONFIG, "data": {**CONFIG["data"], "path": str(file), "split": {"val": 0.5, "test": 0}}}
    run = trainwright.train(config, runs_dir=tmp_path / "runs")
    new = tmp_path / "new.csv"
    file.rename(new)
    model = trainwright.load(run)
    expected = model.predict_interval(PANDAS, 0.8)
    for rows in (pl.DataFrame(COLUMNS), pl.DataFrame(COLUMNS).lazy(), pa.table(COLUMNS), new, str(new)):
        pd.testing.assert_frame_equal(model.predict_interval(rows, 0.8), expected)


def test_intervals_after_training_on_a_frame(run: trainwright.Run) -> None:
    frame = trainwright.load(run).predict_interval(pl.DataFrame(COLUMNS), 0.5)
    assert (frame["lower"] <= frame["upper"]).all()


def test_metrics_of_a_polars_frame(run: trainwright.Run) -> None:
    model = trainwright.load(run)
    assert model.evaluate(rows=pl.DataFrame(COLUMNS)).metrics == model.evaluate(rows=PANDAS).metrics


def test_values_of_each_type_are_kept() -> None:
    table = pa.table(
        {
            "flag": pa.array([True, None, False]),
            "amount": pa.array([Decimal("1.50"), None, Decimal("2.25")]),
            "when": pa.array([datetime(2024, 1, 1), None, datetime(2024, 1, 2)]),
            "day": pa.array([date(2024, 1, 1), None, date(2024, 1, 2)]),
            "word": pa.array(["a", None, "b"]).dictionary_encode(),
            "same": pa.array([1, 2, 3]),
        }
    )
    columns = as_table(as_pandas(table.append_column("same", pa.array([4, 5, 6])))).columns
    assert list(columns) == ["flag", "amount", "when", "day", "word", "same", "same.1"]
    np.testing.assert_array_equal(columns["flag"], [1, np.nan, 0])
    np.testing.assert_array_equal(columns["amount"], [1.5, np.nan, 2.25])
    assert [columns[name].dtype.kind for name in ("when", "day")] == ["M", "M"]
    assert list(columns["word"]) == ["a", None, "b"]
