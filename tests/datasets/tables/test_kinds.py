"""What columns are: inferred from the training rows or declared, and applied to other rows."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rows import config, csv_text, load, people

import trainwright
from small_runs import SMALL
from trainwright.datasets.csv import CsvDataset
from trainwright.datasets.tables import tabular
from trainwright.datasets.tables.kinds import infer, judge
from trainwright.datasets.tables.preparation import from_json
from trainwright.datasets.tables.table import Table, as_table
from trainwright.datasets.tables.times import read_time, reading_of
from trainwright.datasets.tables.typed import ColumnKind, typed
from trainwright.datasets.tables.written import read_number, writing_of
from trainwright.errors import DataError
from trainwright.types import FeatureForm


def column(values: list[Any], **settings: Any) -> tuple[Any, list[Any], str]:
    """Return the kind of a column, its values as read, and the warnings."""
    table = as_table({"x": np.array(values, dtype=object)})
    inference = infer(table, ["x"], config(**settings))
    read = typed(table, inference.kinds).columns["x"]
    return inference.kinds["x"], read.tolist(), "\n".join(inference.warnings)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("$60,425", 60425),
        ("60.425 EUR", 60.425),
        ("12 %", 12),
        ("1 234.5", 1234.5),
        ("1\u00a0234\u00a0567", 1234567),
        ("1'234'567.8", 1234567.8),
        ("(12)", -12),
        ("($1,200.50)", -1200.5),
        ("-$5.20", -5.2),
        ("$-5.20", -5.2),
        ("1e3", 1000),
        ("+.5", 0.5),
        ("12,34,567", 1234567),
        ("US$ 3", 3),
        ("0.1", 0.1),
        ("", None),
        (".", None),
        ("12 kg", None),
        ("1,2", None),
        ("0,123", None),
        ("1,234 567", None),
        ("1.2.3", None),
        ("(12", None),
        ("--1", None),
    ],
)
def test_numbers_as_people_write_them(text: str, value: float | None) -> None:
    number = read_number(text)
    assert (number and number.value) == value


@pytest.mark.parametrize(
    ("texts", "decimal", "ambiguous"),
    [
        (["1.234,5", "12"], ",", None),
        (["0,5", "0,123"], ",", None),
        (["1,234", "5"], ".", "1,234"),
        (["1.234 EUR"], ".", "1.234 EUR"),
        (["1,234.5", "1,234"], ".", None),
        (["3", "4 %"], ".", None),
    ],
)
def test_all_cells_decide_on_the_decimal_mark(texts: list[str], decimal: str, ambiguous: str | None) -> None:
    assert writing_of(texts) == (decimal, ambiguous)


def test_a_column_of_amounts() -> None:
    kind, values, warnings = column(["1.234,50 €", "7 €", "n/a", "0,99 €", None])
    assert (kind.kind, kind.decimal, kind.reason) == ("number", ",", "numbers in text (€)")
    np.testing.assert_array_equal(values, [1234.5, 7, np.nan, 0.99, np.nan])
    assert "holds 'n/a' (1 rows), taken for missing values" in warnings


def test_amounts_in_two_currencies_are_no_numbers() -> None:
    assert column(["$5", "5 €", "$7", "6 €"])[0].kind == "category"


@pytest.mark.parametrize(
    ("texts", "numbers"),
    [
        (["120 m²", "85 m²", "1,240.5 m²"], [120, 85, 1240.5]),
        (["23.4 kmpl", "18 kmpl", "20"], [23.4, 18, 20]),
        (["12,5cm", "9,25cm"], [12.5, 9.25]),
        (["1 room", "3 rooms", " 2 rooms "], [1, 3, 2]),
        (["21 °C", "-4 °C"], [21, -4]),
    ],
)
def test_numbers_with_a_unit_are_read_where_that_is_declared(texts: list[str], numbers: list[float]) -> None:
    kind, _, warning = column(texts)
    assert kind.kind == "category"
    assert "numbers with a unit" in warning
    assert "data.columns: {x: number}" in warning
    kind, read, warning = column(texts, columns={"x": "number"})
    assert read == numbers
    assert not warning
    later = ColumnKind.from_json(json.loads(json.dumps(kind.to_json())))
    with pytest.raises(DataError, match="'80 miles' in row 1"):
        typed(as_table({"x": np.array(["80 miles"], dtype=object)}), {"x": later})


@pytest.mark.parametrize(
    "texts", [["1 km", "500 m"], ["5 Main St", "7 Elm Rd"], ["10:30 am", "9:15 am"], ["A4 x", "A5 x"]]
)
def test_other_texts_after_numbers_are_no_unit(texts: list[str]) -> None:
    kind, _, warning = column(texts)
    assert kind.kind != "number"
    assert "unit" not in warning


def test_codes_with_zeros_in_front_are_no_numbers() -> None:
    assert column(["01234", "98765", "01234"])[0].kind == "category"


def test_a_stray_text_is_refused_with_three_ways_out() -> None:
    with pytest.raises(
        DataError, match=r"'x' holds numbers, but 'tall' in row 3; .*missing_values: {x: \[tall\]}"
    ):
        column([*(str(i * i) for i in range(2)), "tall", *(str(i * i + 0.5) for i in range(30))])
    _, values, _ = column(["1", "2.5", "tall", *map(str, range(30))], missing_values={"x": ["tall"]})
    np.testing.assert_array_equal(values[:3], [1, 2.5, np.nan])


@pytest.mark.parametrize(
    ("values", "read"),
    [
        (["yes", "no", "Yes"], [True, False, True]),
        (["y", "n", "y"], [True, False, True]),
        (["T", "F", "T"], [True, False, True]),
        (["ja", "nein", "ja"], [True, False, True]),
        (["true", "false", None], [1.0, 0.0, None]),
    ],
)
def test_booleans(values: list[Any], read: list[Any]) -> None:
    kind, columns, _ = column(values)
    assert kind.kind == "boolean"
    assert [None if value != value else value for value in columns] == read


def test_zeros_and_ones_stay_numbers_unless_declared() -> None:
    assert column(["0", "1", "1", "0"])[0].kind == "number"
    kind, values, _ = column([0, 1, 1, 0], columns={"x": "boolean"})
    assert (kind.kind, values) == ("boolean", [False, True, True, False])


@pytest.mark.parametrize(
    ("text", "iso"),
    [
        ("2026-01-31", "2026-01-31"),
        ("2026-01-31T12:00:00+01:00", "2026-01-31T11:00"),
        ("2026-01-31 12:00:00.5Z", "2026-01-31T12:00:00.5"),
        ("31/01/2026", "2026-01-31"),
        ("1/31/26 5:30 pm", "2026-01-31T17:30"),
        ("12/31/2026 12:00 AM", "2026-12-31"),
        ("31.1.2026 23:59", "2026-01-31T23:59"),
        ("31 Jan 2026", "2026-01-31"),
        ("Mon, January 31st, 2026", "2026-01-31"),
        ("31-Jan-99", "1999-01-31"),
        ("2026/1/3", "2026-01-03"),
        ("03/04/2026", "2026-04-03"),
        ("30/02/2026", None),
        ("12:30", None),
        ("12 Foo 2026", None),
        ("2026-01-31 25:00", None),
    ],
)
def test_dates_as_people_write_them(text: str, iso: str | None) -> None:
    time = read_time(text)
    assert (time and np.datetime64(time)) == (iso and np.datetime64(iso))


def test_all_cells_decide_on_the_order_of_dates() -> None:
    assert reading_of(["03/04/2026", "13/04/2026"]) == ("day first", None, ())
    assert reading_of(["03/04/2026", "04/13/2026"]) == ("month first", None, ())
    kind, values, warnings = column(["03/04/2026", "05/06/2026", "unknown"])
    assert (kind.kind, values[0].month) == ("time", 3)
    assert "03/04/2026, which are read month first" in warnings
    assert 'data.columns: {x: {type: date, format: "%d/%m/%Y"}}' in warnings
    declared = {"x": {"type": "date", "format": "%d/%m/%Y"}}
    assert column(["03/04/2026", "05/06/2026"], columns=declared)[1][0].month == 4


def test_dates_in_two_orders_are_named() -> None:
    _, values, warnings = column(["13/04/2026", "14/04/2026", "04/15/2026"])
    assert [value.day for value in values] == [13, 14, 15]
    assert "in two orders: they are read day first, but 04/15/2026 cannot be" in warnings


def test_epochs_are_times_when_declared() -> None:
    seconds = [1.7e9, 1.7e9 + 1, None]
    assert column(seconds)[0].kind == "number"
    kind, values, _ = column(seconds, columns={"x": {"type": "time", "unit": "s"}})
    assert (kind.kind, values[0].year, values[2]) == ("time", 2023, None)
    with pytest.raises(DataError, match=r"give their unit: {x: {type: time, unit: s}}"):
        column(seconds, columns={"x": "date"})


def test_texts() -> None:
    draw = random.Random(0)
    words = ["red", "old", "house", "near", "a", "lake", "with", "trees"]
    notes = [" ".join(draw.choices(words, k=8)) for _ in range(200)]
    assert column(notes)[0].kind == "text"
    users = as_table({"x": np.array([f"user-{i}" for i in range(200)], dtype=object)})
    assert judge(users, ["x"], config()).kinds["x"].kind == "identifier"
    assert column([f"city {i % 40}" for i in range(200)])[0].kind == "category"
    assert column(notes, features=["x"])[0].kind == "text"
    assert column([f"user-{i}" for i in range(200)], features=["x"])[0].kind == "category"


def test_columns_that_teach_nothing() -> None:
    table = as_table(
        {
            "n": range(9),
            "id": [7, 3, 5, 9, 1, 8, 2, 6, 4],
            "one": [1] * 9,
            "none": [None] * 9,
            "x": [2, 1, 2] * 3,
        }
    )
    inference = infer(table, list(table.columns), config())
    assert {name: kind.kind for name, kind in inference.kinds.items()} == {
        "n": "identifier",
        "id": "identifier",
        "one": "constant",
        "none": "empty",
        "x": "number",
    }
    assert inference.summary() == "1 number"  # the others have warnings
    assert "data.columns: {one: number}" in "\n".join(inference.warnings)
    declared = config(columns={"n": "number", "x": "ignore"})
    kinds = infer(table, ["n", "x"], declared).kinds
    assert {name: kind.kind for name, kind in kinds.items()} == {"n": "number", "x": "ignored"}
    assert infer(table, ["n", "x"], declared).summary() == "1 number, excluded: x (ignored)"


def test_a_column_that_numbers_the_rows_is_used_where_there_is_no_other() -> None:
    assert column(list(range(9)))[0].kind == "number"


def test_a_table_without_anything_to_learn_from() -> None:
    rows = [{"id": f"id-{i}", "none": None, "y": i % 2} for i in range(100)]
    with pytest.raises(
        DataError, match=r"no usable feature column \(id: has a different text in most rows, none"
    ):
        tabular.build({"train": as_table(rows)}, config(target="y"), FeatureForm())


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ([*range(20, 60), -999, -999], r"holds -999 in 2 rows"),
        ([*range(20, 60), 9999, 9999], r"holds 9999 in 2 rows"),
        ([*range(20, 80), 99, 99], ""),
        ([*range(20, 60), -999], ""),
        ([f"2020-01-{day:02}" for day in range(1, 29)] + ["1900-01-01"] * 3, "holds 1900-01-01 in 3 rows"),
    ],
)
def test_values_that_stand_out_are_named(values: list[Any], says: str) -> None:
    random.Random(1).shuffle(values)
    warnings = column(values)[2]
    assert (says in warnings) if says else warnings == ""
    if says:
        cell = says.split()[1]
        assert f"data.missing_values: {{x: [{cell}]}}" in warnings
        typed_cell = int(cell) if cell.lstrip("-").isdigit() else cell
        _, read, again = column(values, missing_values={"x": [typed_cell]})
        assert (again, sum(value is None or value != value for value in read) > 1) == ("", True)


def test_other_rows_are_read_as_the_training_rows_were(tmp_path: Path) -> None:
    rows = [row | {"price": f"{i % 7},5 €", "zip": f"0{i % 3}"} for i, row in enumerate(people())]
    bundle = tabular.build({"train": as_table(rows)}, config(), FeatureForm())
    again = from_json(json.loads(json.dumps(bundle.preparation.to_json())))
    other = [rows[0] | {"price": "1.234 €", "zip": "02"}]
    column = again.feature_names.index("price")
    prices = [i % 7 + 0.5 for i in bundle.rows["train"]]
    expected = (1234 - np.mean(prices)) / np.std(prices)
    assert again.features(other)[0, column] == pytest.approx(expected)
    assert again.features(other)[0, again.feature_names.index("zip=02")] == 1
    with pytest.raises(DataError, match="'price' holds numbers, but 'cheap' in row 1"):
        again.features([rows[0] | {"price": "cheap"}])


def test_kinds_are_inferred_from_the_training_rows_alone() -> None:
    rows = people(200)
    train = as_table([row | {"note": "yes" if i % 2 else "no"} for i, row in enumerate(rows[:100])])
    val = as_table([row | {"note": "n"} for row in rows[100:]], "val")
    bundle = tabular.build({"train": train, "val": val}, config(), FeatureForm())
    assert bundle.preparation.kinds["note"].kind == "boolean"
    assert set(bundle.splits["val"].arrays["features"][:, -1]) == {0.0}


def test_declared_columns_must_exist() -> None:
    with pytest.raises(DataError, match=r"data\.columns: there is no column 'citty'; did you mean 'city'"):
        tabular.build({"train": as_table(people())}, config(columns={"citty": "category"}), FeatureForm())
    with pytest.raises(DataError, match=r"data\.missing_values: there is no column 'hight'"):
        tabular.build({"train": as_table(people())}, config(missing_values={"hight": [0]}), FeatureForm())


def test_a_file_and_a_frame_of_the_same_rows_train_the_same(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    rows = [
        row
        | {
            "zip": f"0{i % 3}",
            "price": f"${i % 9 + 1},{i % 1000:03}",
            "day": f"{i % 28 + 1}/12/2024",
            "answer": "yn"[i % 2],
        }
        for i, row in enumerate(people())
    ]
    (tmp_path / "a.csv").write_text(
        csv_text([{k: f'"{v}"' if k == "price" else v for k, v in row.items()} for row in rows])
    )
    one = load(CsvDataset, config(path=str(tmp_path / "a.csv"), split={"time": "day"}))
    other = tabular.build(
        {"train": as_table(pandas.DataFrame(rows))}, config(split={"time": "day"}), FeatureForm()
    )
    assert one.columns == other.columns
    for split in ("train", "val", "test"):
        assert one.splits[split].fingerprint() == other.splits[split].fingerprint()


def test_a_categorical_column_of_a_frame_holds_categories() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(people()).assign(code=lambda rows: pandas.Categorical(["10", "20", "30"] * 40))
    bundle = tabular.build({"train": as_table(frame)}, config(), FeatureForm())
    assert bundle.preparation.kinds["code"].kind == "category"


def test_rows_without_a_target_are_dropped_where_that_is_asked_for() -> None:
    rows = [row | {"bought": None if i % 10 == 3 else row["bought"]} for i, row in enumerate(people())]
    with pytest.raises(DataError, match=r"data\.missing_target: drop"):
        tabular.build({"train": as_table(rows)}, config(), FeatureForm())
    bundle = tabular.build({"train": as_table(rows)}, config(missing_target="drop"), FeatureForm())
    assert "12 of 120 rows have no target, and are dropped" in "\n".join(bundle.warnings)
    positions = np.concatenate(list(bundle.rows.values()))
    assert sorted(positions.tolist()) == [i for i in range(120) if i % 10 != 3]
    ids = bundle.rows["test"]
    features = bundle.preparation.features([rows[i] for i in ids])
    np.testing.assert_array_equal(features, bundle.splits["test"].arrays["features"])
    with pytest.raises(DataError, match="has no value in any row"):
        tabular.build(
            {"train": as_table([row | {"bought": None} for row in rows])},
            config(missing_target="drop"),
            FeatureForm(),
        )


def test_numbers_in_a_target_are_read() -> None:
    rows = [{"x": i % 7, "y": f"${i + 1},000"} for i in range(50)]
    bundle = tabular.build({"train": as_table(rows)}, config(target="y"), FeatureForm())
    assert bundle.info.task == "regression"
    np.testing.assert_array_equal(
        bundle.splits["train"].arrays["target"], [1000.0 * (i + 1) for i in bundle.rows["train"]]
    )


@pytest.mark.slow
def test_a_run_reads_columns_by_their_kind(tmp_path: Path) -> None:
    draw = random.Random(0)
    rows = [
        f"{i},{'yn'[i % 2]},${draw.randrange(5)},{draw.gauss(0, 1)},{draw.choice(['up', 'down'])}"
        for i in range(160)
    ]
    (tmp_path / "a.csv").write_text("\n".join(["number,answer,price,x,y", *rows]) + "\n")
    settings = {"data.type": "csv", "data.path": str(tmp_path / "a.csv"), "data.target": "y"}
    run = trainwright.train(SMALL, settings, runs_dir=tmp_path / "runs")
    assert set(trainwright.load(run).info.feature_names) == {"answer", "price", "x"}
    assert len(trainwright.predict(run, tmp_path / "a.csv")) == 160
    assert trainwright.reproduce(run).verdict == "identical"


def test_a_table_keeps_its_columns_where_nothing_is_to_be_read() -> None:
    numbers = np.arange(5.0) ** 2
    table = Table({"x": numbers})
    assert typed(table, infer(table, ["x"], config()).kinds).columns["x"] is numbers


def test_the_rows_of_a_split_are_copied_column_by_column() -> None:
    table = Table({"x": np.arange(5.0), "y": np.arange(5)})
    some = table.take(np.array([3, 1])).take(np.array([1]))
    assert (len(some), dict(some.columns)["x"].tolist(), some.where(np.array([True]))) == (1, [1.0], "row 2")


def test_free_text_that_differs_from_row_to_row_is_no_identifier() -> None:
    rows = [{"note": f"row {i} is a note of {i} words", "x": i % 7, "y": i % 2} for i in range(120)]
    bundle = tabular.build({"train": as_table(rows)}, config(target="y"), FeatureForm())
    assert bundle.columns == "1 text, 1 number"
    assert not any("identifier" in warning for warning in bundle.warnings)


def test_texts_that_come_back_in_many_rows_are_no_identifiers() -> None:
    titles = ["manager"] * 20 + [f"job {i}" for i in range(180)]
    table = Table({"title": np.array(titles, dtype=object), "row_id": np.array(titles, dtype=object)})
    kinds = infer(table, ["title", "row_id"], config()).kinds
    assert kinds["title"].kind == "category"
    assert kinds["row_id"].kind == "identifier"  # its name says so
    few = np.array(["manager"] * 3 + [f"job {i}" for i in range(197)], dtype=object)
    several = Table({"title": few, "x": np.arange(200) % 7})
    assert infer(several, ["title", "x"], config()).kinds["title"].kind == "identifier"


def test_every_word_for_missing_values_is_named() -> None:
    cells = ["?", "-", "n/a", "unknown"] * 2 + [str(i / 7) for i in range(100)]
    table = Table({"age": np.array(cells, dtype=object)}, "t.csv")
    (warning,) = infer(table, ["age"], config()).warnings
    assert all(repr(word) in warning for word in ("?", "-", "n/a", "unknown"))
