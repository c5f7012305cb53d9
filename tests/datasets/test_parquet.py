"""Parquet files."""

import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from rows import config, load, people

from trainwright.datasets.base import Dataset
from trainwright.datasets.parquet import ParquetDataset
from trainwright.errors import DataError
from trainwright.testing.dataset_suite import DatasetSuite

pyarrow: Any = pytest.importorskip("pyarrow")
parquet: Any = pytest.importorskip("pyarrow.parquet")


class TestParquet(DatasetSuite):
    def make(self, folder: Path) -> Dataset:
        path = folder / "people.parquet"
        parquet.write_table(pyarrow.Table.from_pylist(people()), path)
        return ParquetDataset(config(type="parquet", path=str(path)), ParquetDataset.Params())

    def raw_rows(self, folder: Path) -> Any:
        import pandas as pd

        return pd.DataFrame(people())


def written(folder: Path, **columns: Any) -> str:
    path = folder / "a.parquet"
    parquet.write_table(pyarrow.table(columns), path)
    return str(path)


def test_column_types(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        number=pyarrow.array([1, None, 3]),
        category=pyarrow.array(["a", None, "b"]).dictionary_encode(),
        price=pyarrow.array([Decimal("1.50"), Decimal("2.25"), None]),
        day=pyarrow.array([datetime.date(2024, 1, 1), None, datetime.date(2024, 1, 3)]),
        flag=pyarrow.array([True, None, False]),
        whole=pyarrow.array([True, False, True]),
    )
    table = ParquetDataset(config(), ParquetDataset.Params()).read(path)
    kinds = {name: values.dtype.kind for name, values in table.columns.items()}
    assert kinds == {"number": "f", "category": "O", "price": "f", "day": "M", "flag": "f", "whole": "b"}
    assert table.columns["category"].tolist() == ["a", None, "b"]
    assert table.columns["price"].tolist()[:2] == [1.5, 2.25]


def test_lists_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path, x=[[1, 2], [3]], bought=["a", "b"])
    with pytest.raises(DataError, match=r"column 'x' holds list<.*give each of its values a column"):
        load(ParquetDataset, config(path=path))


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    path = Path(written(tmp_path, x=list(range(1000)), bought=["a", "b"] * 500))
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataError, match=r"a\.parquet cannot be read as Parquet"):
        load(ParquetDataset, config(path=str(path)))
