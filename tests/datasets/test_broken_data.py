"""Bad data: each file is refused, or warned of, with a message that leads to the mend."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rows import config, csv_text, load, people

from trainwright.datasets.csv import CsvDataset
from trainwright.errors import DataError

ROWS = people(100)
TEXT = csv_text(ROWS)


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def changed(row: int, **cells: Any) -> str:
    return csv_text([old | cells if i == row else old for i, old in enumerate(ROWS)])


def load_text(text: str | bytes, **settings: Any) -> Any:
    Path("a.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
    Path("empty").mkdir(exist_ok=True)
    return load(CsvDataset, config(**{"type": "csv", "path": "a.csv"} | settings))


BROKEN: dict[str, tuple[str | bytes, dict[str, Any], str]] = {
    "no target": (
        TEXT,
        {"target": "bougth"},
        r"data\.target: there is no column 'bougth'; did you mean 'bought'\?",
    ),
    "target in capitals": (TEXT, {"target": "Bought"}, "did you mean 'bought'"),
    "unknown feature": (
        TEXT,
        {"features": ["height", "kids"]},
        r"data\.features: there is no column 'kids'; there are: height, chil",
    ),
    "unknown exclude": (
        TEXT,
        {"exclude": ["citty"]},
        r"data\.exclude: there is no column 'citty'; did you mean 'city'\?",
    ),
    "unknown group": (TEXT, {"split": {"group": "town"}}, r"data\.split\.group: there is no column 'town'"),
    "unknown time": (TEXT, {"split": {"time": "day"}}, r"data\.split\.time: there is no column 'day'"),
    "no time": (
        TEXT,
        {"split": {"time": "city"}},
        r"'city' \(data\.split\.time\): 'Rome' is not a time, in rows 1, 2, 3",
    ),
    "target as feature": (TEXT, {"features": ["bought"]}, "data.features names the target 'bought'"),
    "nothing to learn from": (
        TEXT,
        {"exclude": ["height", "children", "city", "member"]},
        "no usable feature column",
    ),
    "empty file": ("", {}, "a.csv is empty"),
    "white space": ("\n\n", {}, "a.csv is empty"),
    "header alone": ("height,bought\n", {}, "there are columns, but no rows"),
    "empty split": (
        csv_text(ROWS[:4]),
        {},
        r"the val split would be empty: it gets 0\.1 of 4 rows; give more rows, a larger",
    ),
    "shares of one": (TEXT, {"split": {"val": 0.5, "test": 0.5}}, "leave nothing to train on"),
    "target missing": (
        changed(6, bought=None),
        {},
        r"target 'bought' has no value in row 7 \(line 8 of the file\)",
    ),
    "missing value": (
        changed(6, height=None),
        {},
        r"'height' has no value in row 7 \(line 8 of the file\)\n.*data\.impute: median",
    ),
    "missing category": (changed(6, city="NA"), {}, r"'city' has no value in row 7"),
    "infinite": (changed(6, height="-inf"), {}, r"'height' is infinite in row 7"),
    "too large": (
        changed(6, height=1e300),
        {"standardize": False},
        r"'height' is infinite, or too large for float32, in row 7",
    ),
    "text among numbers": (
        changed(6, height="tall"),
        {},
        r"'height' holds numbers, but 'tall' in row 7 .*data\.missing_values: {height: \[tall\]}",
    ),
    "cell too many": (
        TEXT + "1,2,Rome,True,yes,6\n",
        {},
        r"row 101 \(line 102 of the file\) has 6 cells, the header 5",
    ),
    "cell too few": (
        TEXT + "1,2,Rome,True\n",
        {},
        r"row 101 \(line 102 of the file\) has 4 cells, the header 5",
    ),
    "open quote": (TEXT + '1,2,"Rome,True,yes\n', {}, "row 101 opens a quote that is never closed"),
    "other delimiter": (
        csv_text(ROWS, ";"),
        {},
        r"only one column, 'height;children.*data\.params\.delimiter: \";\"",
    ),
    "damaged UTF-8": (
        changed(6, city="Zürich").encode() + "7,Gen\u00e8ve,x\n".encode()[:6] + b"\n",
        {},
        r"line \d+ is not utf-8.*data\.params\.encoding: latin-1",
    ),
    "Shift JIS": (changed(6, city="データ").encode("shift_jis"), {}, "line 8 is not utf-8"),
    "Excel": (b"PK\x03\x04....", {}, "a zip or Excel file"),
    "gzip": (b"\x1f\x8b....", {}, "is compressed with gzip, but cannot be unpacked"),
    "zero bytes": (b"a,b\n\x00\x00,1\n", {}, "holds zero bytes"),
    "text as values": (
        TEXT,
        {"task": "regression"},
        "the target 'bought' holds text, but the task is regression",
    ),
    "values as classes": (
        TEXT,
        {"target": "height", "task": "classification"},
        r"'height' is continuous \(\d+ different values such as",
    ),
    "one class": (csv_text([row | {"bought": "no"} for row in ROWS]), {}, r"has only one value \('no'\)"),
    "stratified values": (
        TEXT,
        {"target": "height", "split": {"stratify": True}},
        "data.split.stratify: the target holds values",
    ),
    "stratified groups": (
        TEXT,
        {"split": {"stratify": True, "group": "city"}},
        "stratify cannot be combined with group",
    ),
    "group and time": (
        TEXT,
        {"split": {"time": "height", "group": "city"}},
        "group and time cannot be combined",
    ),
    "column without values": (
        csv_text([row | {"height": None} for row in ROWS]),
        {"impute": "mean", "features": ["height", "city"]},
        "'height' has no value in any training",
    ),
    "too many categories": (
        csv_text([row | {"name": f"n{i}"} for i, row in enumerate(people(13_000))]),
        {"features": ["height", "name"], "encode": "onehot"},
        r"more than 10000 features, \d+ of them from 'name'",
    ),
    "no such file": (TEXT, {"path": "b.csv"}, r"b\.csv: there is no such file; .*did you mean 'a.csv'\?"),
    "no such folder": (
        TEXT,
        {"path": "nowhere/a.csv"},
        r"nowhere/a\.csv: there is no such file; there is no folder nowhere",
    ),
    "a folder without tables": (
        TEXT,
        {"path": "empty"},
        r"empty/? is a folder, and no file below it ends in \.csv or \.tsv",
    ),
    "no path": (TEXT, {"path": None}, r"give data\.path, or data\.train_path"),
    "two paths": (TEXT, {"train_path": "a.csv"}, "path is one file to split"),
    "the same file twice": (
        TEXT,
        {"path": None, "train_path": "a.csv", "test_path": "a.csv"},
        "all 100 test rows are also train rows",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_refused(name: str) -> None:
    text, settings, says = BROKEN[name]
    with pytest.raises(DataError) as caught:
        load_text(text, **settings)
    message = str(caught.value)
    assert re.search(says, message, re.DOTALL), message
    assert caught.value.exit_code == 2


def test_a_class_in_the_test_file_alone() -> None:
    Path("test.csv").write_text(changed(6, bought="perhaps"))
    with pytest.raises(
        DataError,
        match=r"test\.csv: the target 'bought' is 'perhaps' in row 7 .*a class without training rows; training knows no, yes",
    ):
        load_text(TEXT, path=None, train_path="a.csv", test_path="test.csv")


def test_a_class_that_is_new_in_time() -> None:
    rows = [row | {"day": i, "bought": "perhaps" if i > 95 else row["bought"]} for i, row in enumerate(ROWS)]
    with pytest.raises(
        DataError,
        match=r"class 'perhaps' of 'bought' has rows for validation or test only \(rows 97, 98, 99 and 1 more",
    ):
        load_text(csv_text(rows), split={"time": "day"})


def test_a_column_that_the_test_file_lacks() -> None:
    Path("test.csv").write_text(
        csv_text([{k: v for k, v in row.items() if k != "city"} for row in people(30, 1)])
    )
    with pytest.raises(DataError, match=r"test\.csv: there is no column 'city'"):
        load_text(TEXT, path=None, train_path="a.csv", test_path="test.csv")


def test_all_bad_columns_are_named_at_once() -> None:
    with pytest.raises(
        DataError, match=r"'height' has no value in row 7 .*\n  column 'city' has no value in row 7 "
    ):
        load_text(changed(6, height=None, city=None))


def warnings_of(rows: list[dict[str, Any]], **settings: Any) -> str:
    return "\n".join(load_text(csv_text(rows), **settings).warnings)


def test_sound_rows_give_no_warning() -> None:
    assert warnings_of(ROWS) == ""


ODD: dict[str, tuple[Any, str]] = {
    "constant": (lambda i, row: "x", r"'odd' holds one value in all training rows"),
    "row numbers": (
        lambda i, row: i + 1000,
        r"'odd' numbers the rows, and is excluded \(identifier\); .*data\.columns: {odd: number}",
    ),
    "identifiers": (lambda i, row: f"id-{i}", r"'odd' has a different text in most rows"),
    "the target renamed": (
        lambda i, row: "bought it" if row["bought"] == "yes" else "left",
        r"'odd' determines the target all by itself",
    ),
    "the target as a number": (
        lambda i, row: (row["bought"] == "yes") * 3 + i / 1000,
        r"'odd' determines the target all by itself",
    ),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_columns_are_warned_of(name: str) -> None:
    make, says = ODD[name]
    assert re.search(says, warnings_of([row | {"odd": make(i, row)} for i, row in enumerate(ROWS)]))


def test_a_column_that_tells_a_value() -> None:
    rows = [{"noise": i % 7, "cents": i * i * 100 + 3, "price": i * i} for i in range(100)]
    assert "'cents' determines the target" in warnings_of(rows, target="price", task="regression")


def test_a_column_that_tells_a_class_in_all_rows_or_in_the_first_ones() -> None:
    rare = [
        {"odd": 5.0 + i / 1e3, "noise": i % 7, "kind": "rare" if i >= 600 else "usual"} for i in range(640)
    ]
    assert "'odd' determines the target" in warnings_of(rare, target="kind", split={"val": 0, "test": 0})
    rare[-1]["odd"] = 5.3001
    assert warnings_of(rare, target="kind", split={"val": 0, "test": 0}) == ""


def test_the_same_rows_in_two_splits() -> None:
    assert "10 of 20 test rows are also train rows" in _with_repeats()


def _with_repeats() -> str:
    Path("test.csv").write_text(csv_text(ROWS[:10] + people(10, 5)))
    return "\n".join(
        load_text(TEXT, path=None, train_path="a.csv", test_path="test.csv", split={"val": 0.0}).warnings
    )


def test_a_class_of_one_row_trains() -> None:
    bundle = load_text(changed(6, bought="perhaps"))
    assert "only one row of class 'perhaps'" in bundle.warnings[0]
    assert 6 in bundle.rows["train"]


def test_an_ambiguous_target_is_said() -> None:
    rows = [row | {"bought": i % 15} for i, row in enumerate(ROWS)]
    assert "15 different integers, taken for classes; set data.task: regression" in warnings_of(rows)
    assert warnings_of(rows, task="regression") == ""
    assert np.allclose(
        load_text(csv_text(rows), task="regression").splits["train"].arrays["target"].max(), 14
    )


def test_a_folder_of_runs_is_not_offered_for_a_file() -> None:
    config = Path("runs/small/20260101-000000-aaaaaa/config.yaml")
    config.parent.mkdir(parents=True)
    config.write_text("data: {type: digits}\n")
    with pytest.raises(DataError, match=r"did you mean 'a\.csv'\?$"):
        load_text(TEXT, path="runa.csv")
