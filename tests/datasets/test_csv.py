"""CSV files."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from rows import config, csv_text, load, people

from trainwright.datasets.base import Dataset
from trainwright.datasets.csv import CsvDataset
from trainwright.datasets.tables.table import as_table, kind_of
from trainwright.testing.dataset_suite import DatasetSuite


class TestCsv(DatasetSuite):
    def make(self, folder: Path) -> Dataset:
        path = folder / "people.csv"
        path.write_text(csv_text(people()))
        return CsvDataset(config(type="csv", path=str(path)), CsvDataset.Params())

    def raw_rows(self, folder: Path) -> Any:
        return people()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(place: Path, text: str, name: str = "a.csv") -> str:
    (place / name).write_bytes(text.encode("utf-8"))
    return name


def test_reads_what_was_written(place: Path) -> None:
    rows = people()
    table = CsvDataset(config(), CsvDataset.Params()).read(write(place, csv_text(rows)))
    assert table.columns["height"].tolist() == [row["height"] for row in rows]
    assert table.columns["city"].tolist() == [row["city"] for row in rows]
    assert table.columns["member"].tolist() == [row["member"] for row in rows]


def test_numbers_are_read_to_the_nearest_float64(place: Path) -> None:
    texts = ["0.1", "2.675", "1.7976931348623157e308", "0.3000000000000000166", "123456789.123456789"]
    table = CsvDataset(config(), CsvDataset.Params()).read(write(place, "x\n" + "\n".join(texts) + "\n"))
    assert table.columns["x"].tolist() == [float(text) for text in texts]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "latin-1"])
def test_encodings(place: Path, encoding: str) -> None:
    rows = [row | {"città": row["city"].replace("o", "ö")} for row in people()]
    (place / "a.csv").write_bytes(csv_text(rows, ";").encode(encoding))
    given = {} if encoding.startswith("utf-8") else {"encoding": encoding}
    bundle = load(CsvDataset, config(path="a.csv"), delimiter=";", **given)
    assert "città=Röme" in bundle.info.feature_names


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\r"])
def test_line_endings(place: Path, ending: str) -> None:
    (place / "a.csv").write_bytes(csv_text(people()).replace("\n", ending).encode())
    (place / "b.csv").write_bytes(csv_text(people()).encode())
    one, other = (load(CsvDataset, config(path=name)) for name in ("a.csv", "b.csv"))
    assert one.splits["train"].fingerprint() == other.splits["train"].fingerprint()


def test_quotes_may_hold_delimiters_and_lines(place: Path) -> None:
    table = CsvDataset(config(), CsvDataset.Params()).read(
        write(place, 'a,b\n"x, y",1\n"two\nlines",2\n\nz,\n')
    )
    assert table.columns["a"].tolist() == ["x, y", "two\nlines", "z"]
    assert table.where(np.array([False, False, True])) == "row 3"  # its line is not known, so none is named


def test_options_say_what_is_missing_and_what_is_text(place: Path) -> None:
    rows = [
        row | {"zip": f"0{i % 3}", "height": "?" if i == 5 else row["height"]}
        for i, row in enumerate(people())
    ]
    path = write(place, csv_text(rows))
    bundle = load(CsvDataset, config(path=path, impute="mean"), missing=["?"], text=["zip"])
    assert [name for name in bundle.info.feature_names if name.startswith("zip")] == [
        "zip=00",
        "zip=01",
        "zip=02",
    ]


def test_files_of_their_own_for_each_split(place: Path) -> None:
    for name, seed in (("train", 1), ("val", 2), ("test", 3)):
        write(place, csv_text(people(60, seed)), f"{name}.csv")
    paths = {f"{name}_path": f"{name}.csv" for name in ("train", "val", "test")}
    assert {name: len(split) for name, split in load(CsvDataset, config(**paths)).splits.items()} == {
        "train": 60,
        "val": 60,
        "test": 60,
    }


def test_what_is_missing_for_validation_is_cut_off_the_training_rows(place: Path) -> None:
    write(place, csv_text(people(60, 1)), "train.csv")
    write(place, csv_text(people(30, 2)), "test.csv")
    alone = load(CsvDataset, config(train_path="train.csv"))
    assert {name: len(split) for name, split in alone.splits.items()} == {"train": 54, "val": 6}
    cut = load(CsvDataset, config(train_path="train.csv", split={"test": 0.2}))
    assert {name: len(split) for name, split in cut.splits.items()} == {"train": 42, "val": 6, "test": 12}
    tested = load(CsvDataset, config(train_path="train.csv", test_path="test.csv"))
    assert {name: len(split) for name, split in tested.splits.items()} == {"train": 54, "val": 6, "test": 30}


def test_a_share_without_effect_is_said(place: Path) -> None:
    for name, seed in (("train", 1), ("val", 2)):
        write(place, csv_text(people(60, seed)), f"{name}.csv")
    bundle = load(CsvDataset, config(train_path="train.csv", val_path="val.csv", split={"val": 0.3}))
    assert "data.split.val is not used: the val rows are given" in bundle.warnings


def test_categories_of_the_training_file_stay_text_in_the_others(place: Path) -> None:
    rows = [row | {"size": ["01", "02", "L"][i % 3]} for i, row in enumerate(people())]
    numeric = [row | {"size": ["01", "02"][i % 2]} for i, row in enumerate(people(40, 2))]
    write(place, csv_text(rows), "train.csv")
    write(place, csv_text(numeric), "val.csv")
    bundle = load(CsvDataset, config(train_path="train.csv", val_path="val.csv"))
    column = bundle.info.feature_names.index("size=02")
    assert bundle.splits["val"].arrays["features"][:, column].tolist() == [0.0, 1.0] * 20


def test_dates_are_recognized_and_split_by(place: Path) -> None:
    rows = [row | {"day": f"2024-{1 + i // 28:02}-{1 + i % 28:02}"} for i, row in enumerate(people(100))]
    bundle = load(CsvDataset, config(path=write(place, csv_text(rows[::-1])), split={"time": "day"}))
    assert "day" not in bundle.info.feature_names
    assert sorted(bundle.rows["test"].tolist()) == list(range(10))
    assert sorted(bundle.rows["val"].tolist()) == list(range(10, 20))


def test_a_parquet_of_the_same_rows_trains_the_same(place: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    from trainwright.datasets.parquet import ParquetDataset

    parquet.write_table(pyarrow.Table.from_pylist(people()), "a.parquet")
    one = load(CsvDataset, config(path=write(place, csv_text(people()))))
    other = load(ParquetDataset, config(path="a.parquet"))
    assert one.splits["train"].fingerprint() == other.splits["train"].fingerprint()
    np.testing.assert_array_equal(
        one.splits["test"].arrays["features"], other.splits["test"].arrays["features"]
    )


MESSY = {
    "floats": [
        "0.1",
        "1e-320",
        "2.2250738585072011e-308",
        "9007199254740993",
        "123456789012345678901",
        "-inf",
    ],
    "large": ["9007199254740993", "9223372036854775807", "0", "-1", "5", "7"],
    "gaps": ["1", "", "NA", "4", "5", "6"],
    "signs": ["+5", "-.5", "1.", "1E5", "nan", "3"],
    "spaces": [" 1", "2", "3", "4", "5", "6"],
    "empty": ["", "", "", "", "", ""],
    "answers": ["True", "FALSE", "true", "false", "TRUE", "False"],
    "some": ["True", "False", "", "True", "False", "True"],
    "words": ["True", "no", "1", "", "x", "y"],
    "clock": ["12:30", "13:00", "1:15", "12:30", "12:30", "00:00"],
    "zeros": ["01", "02", "10", "03", "1", "2"],
}


def messy(place: Path) -> str:
    lines = [",".join(MESSY), *(",".join(cells) for cells in zip(*MESSY.values(), strict=True))]
    return write(place, "\n".join(lines) + "\n")


def test_columns_are_those_that_pandas_reads(place: Path) -> None:
    pandas = pytest.importorskip("pandas")
    missing = ("", "NA", "nan")
    frame = pandas.read_csv(
        messy(place), float_precision="round_trip", keep_default_na=False, na_values=missing, low_memory=False
    )
    table = CsvDataset(config(), CsvDataset.Params()).read("a.csv")
    expected = as_table(frame)
    for name in MESSY.keys() - {"zeros"}:
        one, other = table.columns[name], expected.columns[name]
        assert one.dtype == other.dtype, name
        np.testing.assert_array_equal(one, other, name)
    assert table.columns["zeros"].tolist() == MESSY["zeros"], "codes are text"


def test_any_float64_is_read_to_its_bits(place: Path) -> None:
    pandas = pytest.importorskip("pandas")
    bits = np.random.default_rng(0).integers(0, 2**64, 20_000, dtype=np.uint64)
    floats = bits.view(np.float64)
    text = "\n".join(f"{value:.{3 + i % 17}e}" for i, value in enumerate(floats[np.isfinite(floats)]))
    table = CsvDataset(config(), CsvDataset.Params()).read(write(place, f"x\n{text}\n"))
    frame = pandas.read_csv("a.csv", float_precision="round_trip")
    np.testing.assert_array_equal(table.columns["x"].view(np.uint64), frame["x"].to_numpy().view(np.uint64))


def test_codes_keep_the_zeros_in_front(place: Path) -> None:
    table = CsvDataset(config(), CsvDataset.Params()).read(messy(place))
    assert table.columns["zeros"].tolist() == MESSY["zeros"]
    assert table.columns["clock"].tolist() == MESSY["clock"]
    assert table.columns["large"].dtype == np.int64


def test_a_header_may_have_several_lines(place: Path) -> None:
    table = CsvDataset(config(), CsvDataset.Params()).read(write(place, '\n"a\nb",c\n1,2\n'))
    assert {name: values.tolist() for name, values in table.columns.items()} == {"a\nb": [1], "c": [2]}


def test_a_file_without_rows_holds_no_dates(place: Path) -> None:
    table = CsvDataset(config(), CsvDataset.Params()).read(write(place, "a,b\n"))
    assert [kind_of(values) for values in table.columns.values()] == ["number", "number"]


@pytest.mark.parametrize("encoding", ["cp1252", "utf-16"])
def test_what_is_not_utf8_is_read_as_its_bytes_tell(place: Path, encoding: str) -> None:
    text = "city,x\nRome,1\nZürich,2\nGenève,3\n"
    (place / "a.csv").write_bytes(text.encode(encoding))
    reader = CsvDataset(config(path="a.csv"), CsvDataset.Params())
    table = reader.read("a.csv")
    assert table.columns["city"].tolist() == ["Rome", "Zürich", "Genève"]
    assert f"read as {encoding}" in table.remarks[0]
    assert ("line 3 is not UTF-8" in table.remarks[0]) == (encoding == "cp1252")
    (chunk,) = reader.chunks("a.csv").tables(["city"], 10)
    assert chunk.columns["city"].tolist() == table.columns["city"].tolist()
    assert reader.sample().columns["city"].tolist() == table.columns["city"].tolist()


def test_columns_of_one_name_are_numbered_as_in_pandas(place: Path) -> None:
    text = "x,y,x,x,x.1\n1,2,3,4,5\n6,7,8,9,10\n"
    table = CsvDataset(config(), CsvDataset.Params()).read(write(place, text))
    assert list(table.columns) == ["x", "y", "x.2", "x.3", "x.1"]
    assert table.columns["x.2"].tolist() == [3, 8]
    assert "'x' is called 'x.2'" in table.remarks[0]
    frame = pd.DataFrame([[1, 2], [3, 4]], columns=["a", "a"])
    given = as_table(frame)
    assert {name: values.tolist() for name, values in given.columns.items()} == {"a": [1, 3], "a.1": [2, 4]}
    assert list(given.frame.columns) == ["a", "a.1"]


def test_words_that_are_read_as_missing_in_a_column_of_text_are_named(tmp_path: Path) -> None:
    countries = ["NA", "DE", "FR", "", "null", "DE"] * 20
    lines = [f"{country},{'NA' if i % 7 == 0 else i % 5},{i % 3}" for i, country in enumerate(countries)]
    (tmp_path / "a.csv").write_text("\n".join(["country,x,y", *lines]) + "\n")
    path, columns = str(tmp_path / "a.csv"), {"target": "y", "impute": "most_frequent"}
    (line,) = (
        one for one in load(CsvDataset, config(path=path, **columns)).warnings if "read as missing" in one
    )
    assert "column 'country' holds 'NA' (20 rows), 'null' (20 rows), read as missing" in line
    assert line.endswith("if a category is meant, set data.params.keep_default_na: false")
    kept = load(
        CsvDataset, config(path=path, exclude=["x"], **columns), keep_default_na=False, missing=["null"]
    )
    assert {"country=NA", "country=DE"} <= set(kept.info.feature_names)
    assert "country=null" not in kept.info.feature_names
    asked = load(CsvDataset, config(path=path, **columns), missing=["NA", "null"])
    assert not any("read as missing" in one for one in [*kept.warnings, *asked.warnings])
