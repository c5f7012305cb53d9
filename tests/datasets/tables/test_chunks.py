"""Files of rows, read chunk by chunk."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from messy_tables import TABLES
from trainwright.datasets.tables import chunks
from trainwright.datasets.tables.frames import read_table, row_chunks
from trainwright.datasets.tables.table import Table
from trainwright.errors import DataError
from trainwright.types import Array

COLUMNS: dict[str, list[str]] = {  # of 40 cells each; a cell late in the column decides what it holds
    "whole": [str(i) for i in range(40)],
    "gap": [str(i) if i != 33 else "" for i in range(40)],
    "float late": [str(i) if i != 39 else "1.5" for i in range(40)],
    "too great late": [str(i) if i != 35 else str(10**20) for i in range(40)],
    "code": [f"0{i}" if i == 3 else str(i) for i in range(40)],
    "code and float": ["007" if i == 2 else "1.5" for i in range(40)],
    "word late": ["x" if i == 38 else f"{i}.5" for i in range(40)],
    "boolean": ["True" if i % 2 else "false" for i in range(40)],
    "boolean, gap": ["NA" if i == 20 else "true" for i in range(40)],
    "numbers, then booleans": ["1.5" if i < 20 else "true" for i in range(40)],
    "date": [f"2020-01-{1 + i % 28:02}" for i in range(40)],
    "date, word late": ["2020-01-01" if i < 38 else "soon" for i in range(40)],
    "numbers, then dates": ["2020" if i < 20 else "2020-01-02" for i in range(40)],
    "signed": [" +5" if i == 30 else str(i) for i in range(40)],
    "hexadecimal": ["0x1F" if i == 1 else str(i) for i in range(40)],
    "hexadecimal, signed": ["0x1F" if i == 1 else " +5" for i in range(40)],
    "text": [f'"a,{i % 3}\nb ""c"""' for i in range(40)],
    "empty": [""] * 40,
}


def write(path: Path, columns: dict[str, list[str]]) -> Path:
    lines = [",".join(f'"{name}"' for name in columns)]
    lines += [",".join(cells) for cells in zip(*columns.values(), strict=True)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def read(path: Path, names: Sequence[str], rows: int, text: Sequence[str] = ()) -> list[Table]:
    return list(row_chunks(path, text=text).tables(names, rows))


def assert_same(parts: Sequence[Array], whole: Array) -> None:
    assert {part.dtype for part in parts} == {whole.dtype}
    np.testing.assert_array_equal(np.concatenate(parts), whole)


@pytest.fixture(params=["at once", "in blocks"])
def blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "in blocks":
        monkeypatch.setattr(chunks, "WHOLE_BYTES", 0)
        monkeypatch.setattr(chunks, "_BLOCK_BYTES", 2000)


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("rows", [1, 7, 40, 100])
def test_a_column_is_what_all_its_cells_can_be_read_as(tmp_path: Path, rows: int) -> None:
    path = write(tmp_path / "rows.csv", COLUMNS)
    whole = read_table(path, text=["whole"])
    tables = read(path, [*COLUMNS], rows, text=["whole"])
    assert [len(table) for table in tables] == [rows] * (40 // rows) + ([40 % rows] if 40 % rows else [])
    for name, values in whole.columns.items():
        assert_same([table.columns[name] for table in tables], values)


@pytest.mark.parametrize("name", [name for name in TABLES if name not in ("one_hot", "many_categories")])
def test_messy_tables_are_read_as_at_once(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "WHOLE_BYTES", 0)
    monkeypatch.setattr(chunks, "_BLOCK_BYTES", 4000)
    path = tmp_path / "rows.csv"
    TABLES[name]().frame.to_csv(path, index=False)
    whole = read_table(path)
    tables = read(path, [*whole.columns], 64)
    for column, values in whole.columns.items():
        assert_same([table.columns[column] for table in tables], values)


@pytest.mark.usefixtures("blocks")
def test_chunks_know_their_rows_and_the_columns_that_were_not_read(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.csv", COLUMNS)
    *_, last = read(path, ["date", "gap"], 16)
    assert list(last.columns) == ["gap", "date"]
    assert "whole" in last.unread
    assert last.where(np.array([True] + [False] * 7)) == "row 33"


@pytest.mark.usefixtures("blocks")
def test_cells_are_carried_over_as_they_are_written(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.csv", COLUMNS)
    cells = row_chunks(path).cells(["gap", "code", "boolean, gap"], 30)
    assert cells is not None
    first, second = cells
    assert first["code"][3] == "03"
    assert [first["boolean, gap"][20], second["gap"][3]] == ["NA", ""]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "latin-1", "utf-16"])
def test_encodings(encoding: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "WHOLE_BYTES", 0)
    path = tmp_path / "rows.csv"
    path.write_bytes("città;n\r\nRöme;1\r\nUlm;2\r\n".encode(encoding))
    options: dict[str, Any] = {"delimiter": ";", "encoding": encoding}
    (table,) = row_chunks(path, options).tables(["città", "n"], 10)
    assert [table.columns["città"].tolist(), table.columns["n"].tolist()] == [["Röme", "Ulm"], [1, 2]]


def test_a_row_with_too_many_cells_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "WHOLE_BYTES", 0)
    path = tmp_path / "rows.csv"
    path.write_text("a,b\n1,2\n1,2,3\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"rows\.csv cannot be read as CSV: .*Expected 2 columns, got 3"):
        read(path, ["a"], 10)


@pytest.mark.parametrize("rows", [3, 7, 100])
def test_parquet_is_read_as_at_once(rows: int, tmp_path: Path) -> None:
    frame = pd.DataFrame(
        {
            "whole": range(20),
            "gap": pd.array([None if i == 17 else i for i in range(20)], dtype="Int64"),
            "boolean": [i % 2 == 0 for i in range(20)],
            "boolean, gap": pd.array([None if i == 3 else True for i in range(20)], dtype="boolean"),
            "text": [None if i < 10 else f"t{i % 3}" for i in range(20)],
            "category": pd.Categorical([f"c{i % 4}" for i in range(20)]),
            "time": pd.date_range("2020-01-01", periods=20, freq="h"),
            "date": [pd.Timestamp("2020-01-01").date()] * 20,
        }
    )
    path = tmp_path / "rows.parquet"
    frame.to_parquet(path, row_group_size=6)
    whole = read_table(path)
    tables = read(path, [*whole.columns], rows)
    assert sum(map(len, tables)) == 20
    for column, values in whole.columns.items():
        assert_same([table.columns[column] for table in tables], values)
