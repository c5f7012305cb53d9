"""Tables in compressed files, folders, patterns, JSON Lines and Excel: read as one CSV file is."""

import bz2
import gzip
import json
import lzma
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from trainwright.config import load
from trainwright.config.file_types import ending_of, file_type
from trainwright.config.schema import DataConfig
from trainwright.datasets.base import PLAIN
from trainwright.datasets.csv import CsvDataset, CsvParams
from trainwright.datasets.tables import chunks as chunks_module
from trainwright.datasets.tables.frames import read_table, row_chunks
from trainwright.datasets.tables.table import Table
from trainwright.errors import DataError
from trainwright.plugins import dataset_of

openpyxl = pytest.importorskip("openpyxl")
ROWS = 40
FRAME = pd.DataFrame(
    {
        "size": [i * 37 % 61 / 4 for i in range(ROWS)],
        "rooms": [i % 7 for i in range(ROWS)],
        "city": [["Rome", "Oslo, N", "Bonn"][i % 3] for i in range(ROWS)],
        "sold": [["yes", "no"][i % 4 // 2] for i in range(ROWS)],
    }
)
TEXT = FRAME.to_csv(index=False)


def packed(text: bytes, ending: str) -> bytes:
    match ending:
        case ".gz":
            return gzip.compress(text)
        case ".bz2":
            return bz2.compress(text)
        case ".xz":
            return lzma.compress(text)
    stream = pa.BufferOutputStream()
    with pa.CompressedOutputStream(stream, "zstd") as out:
        out.write(text)
    return bytes(stream.getvalue())


def same(table: Table, frame: pd.DataFrame = FRAME) -> None:
    assert list(table.columns) == list(frame.columns)
    for name, values in table.columns.items():
        assert values.tolist() == frame[name].tolist(), name


def in_chunks(path: Path | str, rows: int = 7) -> Table:
    """All rows of a file, read chunk by chunk."""
    read = row_chunks(path)
    tables = list(read.tables(read.names, rows))
    assert [len(one) for one in tables[:-1]] == [rows] * (len(tables) - 1)
    return Table({name: np.concatenate([one.columns[name] for one in tables]) for name in read.names})


@pytest.mark.parametrize("ending", [".gz", ".bz2", ".xz", ".zst"])
def test_compressed_files(tmp_path: Path, ending: str, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / f"rows.csv{ending}"
    file.write_bytes(packed(TEXT.encode(), ending))
    assert file_type(str(file)) == "csv"
    same(read_table(file))
    same(in_chunks(file))
    monkeypatch.setattr(chunks_module, "WHOLE_BYTES", 0)  # read block by block
    same(in_chunks(file))
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(DataError, match="cannot be unpacked"):
        read_table(file)


def test_a_compressed_file_is_known_by_its_first_bytes(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_bytes(packed(TEXT.encode(), ".gz"))
    same(read_table(tmp_path / "rows.csv"))


def test_types_of_files() -> None:
    assert [ending_of(name) for name in ("a.CSV.GZ", "a.tar.gz", "a.jsonl.zst", "x.parquet")] == [
        ".csv",
        ".gz",
        ".jsonl",
        ".parquet",
    ]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The rows in three files, of which one has the columns in another order, and other files beside them."""
    parts = tmp_path / "parts"
    (parts / "_temporary").mkdir(parents=True)
    FRAME[:10].to_csv(parts / "0.csv", index=False)
    FRAME[10:25][["city", "sold", "rooms", "size"]].to_csv(parts / "1.csv", index=False)
    FRAME[25:].to_csv(parts / "2.csv", index=False, lineterminator="\r\n")
    (parts / "3.csv").write_bytes(b"")
    FRAME.to_csv(parts / "_temporary" / "0.csv", index=False)
    (parts / "_SUCCESS").touch()
    return parts


def test_a_folder_of_csv_files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert file_type(str(folder)) == "csv"
    same(read_table(folder))
    same(read_table(str(folder / "[0-2].csv")))
    monkeypatch.setattr(chunks_module, "WHOLE_BYTES", 0)
    same(in_chunks(folder))
    (folder / "1.csv").write_text("size,rooms,city\n1,2,Rome\n", encoding="utf-8")
    for read in (read_table, row_chunks):
        with pytest.raises(DataError, match=r"1\.csv: there is no column 'sold', which .*0\.csv has"):
            read(folder)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_partitions(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for year, part in ((2023, FRAME[:15]), (2024, FRAME[15:])):
        for region in ("a b", "c"):
            place = tmp_path / f"year={year}" / f"region={region.replace(' ', '%20')}"
            place.mkdir(parents=True)
            rows = part[::2] if region == "c" else part[1::2]
            write = rows.to_csv if kind == "csv" else rows.to_parquet
            write(place / f"part.{kind}", index=False)
    expected = pd.concat(
        [
            part[start::2].assign(year=year, region=region)
            for year, part in ((2023, FRAME[:15]), (2024, FRAME[15:]))
            for region, start in (("a b", 1), ("c", 0))
        ]
    )
    same(read_table(tmp_path), expected)
    monkeypatch.setattr(chunks_module, "WHOLE_BYTES", 0)
    same(in_chunks(tmp_path), expected)


def test_parquet_files_of_other_types_and_order(tmp_path: Path) -> None:
    FRAME[:10].to_parquet(tmp_path / "0.parquet", index=False)
    other = FRAME[10:][["city", "sold", "rooms", "size"]].astype({"rooms": float})
    other.to_parquet(tmp_path / "1.parquet", index=False)
    same(read_table(tmp_path))
    same(in_chunks(tmp_path))
    same(read_table(str(tmp_path / "*.parquet")))
    pq.write_table(
        pa.table({"size": [1.0], "rooms": ["three"], "city": ["x"], "sold": ["no"]}), tmp_path / "2.parquet"
    )
    with pytest.raises(DataError, match="rooms"):
        read_table(tmp_path)
    pq.write_table(pa.table({"size": [1.0]}), tmp_path / "2.parquet")
    with pytest.raises(DataError, match=r"2\.parquet lacks the column 'city'"):
        row_chunks(tmp_path)


def test_json_lines(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    lines = [json.dumps(row) for row in FRAME.to_dict("records")]
    file.write_text("\n".join(lines) + "\n\n", encoding="utf-8")
    same(read_table(file))
    same(in_chunks(file))
    (tmp_path / "rows.jsonl.gz").write_bytes(packed("\n".join(lines).encode(), ".gz"))
    same(in_chunks(tmp_path / "rows.jsonl.gz"))
    for text, says in (
        ('{"a": 1}\n{"a": \n', r"line 2 is not JSON"),
        ("[1, 2]\n", r"line 1 is no object"),
        ("\n", "is empty"),
        ('{"a": {"b": 1}}\n', "column 'a' holds"),
    ):
        file.write_text(text, encoding="utf-8")
        for read in (read_table, in_chunks):
            with pytest.raises(DataError, match=says):
                read(file)


def test_json_lines_with_gaps_have_the_types_of_the_whole_file(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"a": 1, "b": "x"},
        {"a": 2},
        {"b": "y"},
        {"a": None, "b": None},
        {"a": 3, "b": 4},
    ]
    file = tmp_path / "rows.ndjson"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    for table in (read_table(file), in_chunks(file, 2), in_chunks(file, 1)):
        np.testing.assert_array_equal(table.columns["a"], [1, 2, np.nan, np.nan, 3])
        assert table.columns["b"].tolist() == ["x", None, "y", None, "4"]


def excel(path: Path, sheets: dict[str, list[list[Any]]]) -> Path:
    book = openpyxl.Workbook()
    book.remove(book.active)
    for name, rows in sheets.items():
        sheet = book.create_sheet(name)
        for row in rows:
            sheet.append(row)
    book.save(path)
    return path


TABLE = [list(FRAME.columns), *FRAME.to_numpy(dtype=object).tolist()]


def test_excel(tmp_path: Path) -> None:
    same(read_table(excel(tmp_path / "a.xlsx", {"Empty": [], "Data": TABLE})))
    same(in_chunks(tmp_path / "a.xlsx"))


def test_excel_with_a_title_and_several_sheets(tmp_path: Path) -> None:
    titled = [["Sales of 2024"], [], *TABLE, [], []]
    file = excel(tmp_path / "a.xlsx", {"Sales": titled, "Notes": [["by", "Ada"]]})
    table = read_table(file)
    same(table)
    assert "the sheet 'Sales' is read, and not 'Notes'" in " ".join(table.remarks)
    assert "line 3 is taken for the names of the columns" in " ".join(table.remarks)
    assert list(read_table(file, {"sheet": "Notes"}).columns) == ["by", "Ada"]
    with pytest.raises(DataError, match="there is no sheet 'Note'; did you mean 'Notes'"):
        read_table(file, {"sheet": "Note"})
    (tmp_path / "b.xlsx").write_bytes(b"PK\x03\x04 no workbook")
    with pytest.raises(DataError, match="cannot be read as an Excel workbook"):
        read_table(tmp_path / "b.xlsx")


def test_mixed_cells_are_texts(tmp_path: Path) -> None:
    rows = [["a", "b", "c"], [1, True, "x"], ["n/a?", 2, None], [2.5, None, "#N/A"]]
    table = read_table(excel(tmp_path / "a.xlsx", {"Data": rows}))
    assert table.columns["a"].tolist() == ["1", "n/a?", "2.5"]
    assert table.columns["c"].tolist() == ["x", None, None]


@pytest.mark.parametrize("name", ["rows.tsv", "rows.jsonl", "rows.xlsx", "rows.csv.gz", "parts"])
def test_all_of_them_are_trained_on_alike(tmp_path: Path, name: str, folder: Path) -> None:
    def prints(path: Path) -> list[str]:
        kind = file_type(str(path)) or ""
        cls = dataset_of(kind)
        config = DataConfig.model_validate({"type": kind, "path": str(path), "target": "sold"})
        return [split.fingerprint() for split in cls(config, cls.Params()).load(PLAIN).splits.values()]

    file = tmp_path / name
    match name:
        case "rows.tsv":
            FRAME.to_csv(file, index=False, sep="\t")
        case "rows.jsonl":
            FRAME.to_json(file, orient="records", lines=True)
        case "rows.xlsx":
            excel(file, {"Data": TABLE})
        case "rows.csv.gz":
            file.write_bytes(packed(TEXT.encode(), ".gz"))
    (tmp_path / "rows.csv").write_text(TEXT, encoding="utf-8")
    assert prints(file) == prints(tmp_path / "rows.csv")


def test_the_delimiter_is_found_where_it_may_be(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    FRAME.to_csv(file, index=False, sep=";")
    same(read_table(file))
    with pytest.raises(DataError, match="only one column"):
        read_table(file, finds=())
    with pytest.raises(DataError, match="only one column"):
        CsvDataset(DataConfig(type="csv", path=str(file)), CsvParams()).read(str(file))


@pytest.mark.parametrize("delimiter", [";", "\t", "|"])
def test_the_delimiter_that_an_error_proposes_can_be_given(tmp_path: Path, delimiter: str) -> None:
    file = tmp_path / "rows.csv"
    FRAME.to_csv(file, index=False, sep=delimiter)
    with pytest.raises(DataError) as error:
        read_table(file, finds=())
    (word,) = shlex.split(str(error.value).partition("command line ")[2].rstrip(")"))
    config = load({"data": {"path": str(file), "target": "sold"}, "model": "random_forest"}, [word]).config
    assert config.data is not None
    assert config.data.params == {"delimiter": delimiter}


@pytest.mark.parametrize("block", [False, True])
def test_a_file_in_utf_8_is_read_so_after_training_on_another_encoding(
    tmp_path: Path, block: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if block:
        monkeypatch.setattr(chunks_module, "WHOLE_BYTES", 0)
    file = tmp_path / "rows.csv"
    for encoding in ("utf-8", "cp1252"):
        file.write_text("a,b\n1,Köln\n2,Bonn\n", encoding=encoding)
        for table in (
            read_table(file, {"encoding": "cp1252"}),
            *row_chunks(file, {"encoding": "cp1252"}).tables("ab", 9),
        ):
            assert table.columns["b"].tolist() == ["Köln", "Bonn"]
    file.write_text("a,b\n1,Köln\n", encoding="utf-8")
    assert read_table(file, {"encoding": "cp1252"}, finds=()).columns["b"].tolist() == ["KÃ¶ln"]
