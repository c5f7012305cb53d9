"""`trainwright init`: drafts that train as they stand."""

import gzip
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest
from rows import csv_text, people

from trainwright import init
from trainwright.config import load as load_config
from trainwright.datasets.tables.draft import draft_config
from trainwright.errors import DataError
from trainwright.runs.catalog import Catalog
from trainwright.runs.wiring import load_data


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def drafted(text: str, target: str = "bought", name: str = "my data.csv") -> tuple[str, Any]:
    Path(name).write_text(text)
    draft = draft_config(Path(name), target).text("mlp")
    Path("config.yaml").write_text(draft)
    config = load_config(Path("config.yaml"), adapters=Catalog()).config
    return draft, (config, load_data(config))


def test_plain_rows() -> None:
    draft, (config, bundle) = drafted(csv_text(people()))
    assert "task: classification  # 2 classes: no (" in draft
    assert "; positive: yes (chosen by its name; to change it, set evaluation.positive)" in draft
    assert "numbers: height, children; categories: city; booleans: member" in draft
    assert config.model.type == "mlp"
    assert config.training.batch_size <= len(bundle.splits["train"])
    assert bundle.warnings == []


def test_an_untidy_file() -> None:
    rows = [
        {
            "": i,
            "customer id": f"c-{i}",
            "when": f"2024-01-{i % 28 + 1:02}",
            "x: y": "?" if i % 9 == 0 else i % 11,
            "const": 1,
        }
        | {"patient": i % 20}
        | row
        | {"city": None if i % 10 == 0 else row["city"]}
        for i, row in enumerate(people(200))
    ]
    draft, (config, bundle) = drafted(csv_text(rows, ";"))
    assert config.data.params["delimiter"] == ";"
    assert config.data.exclude == ["column 1", "customer id", "const"]
    assert "x: y 23" in draft  # missing values
    assert config.data.impute == "median"
    assert "`time: when`" in draft
    assert "`group: patient`" in draft
    assert "x: y" in bundle.info.feature_names


def test_compressed_files_and_large_values_are_written_as_people_write_them() -> None:
    rows = "\n".join(f"{i},{i * 17000.3 + 55140.9}" for i in range(60))
    Path("visits.csv.gz").write_bytes(gzip.compress(f"a,price\n{rows}".encode()))
    draft = draft_config(Path("visits.csv.gz"), "price").text("mlp")
    assert "experiment: {name: visits}" in draft
    assert "# values from 55,141 to 1,058,159" in draft


def test_values() -> None:
    draft, (_, bundle) = drafted(csv_text(people()), target="height")
    assert "task: regression  # values from" in draft
    assert bundle.info.task == "regression"


@pytest.mark.parametrize(
    ("rows_of", "task"),
    [
        ({0: 40, 1: 30, 2: 20, 3: 9, 4: 2}, "regression"),  # few have many: a count
        ({1: 3, 2: 30, 3: 40, 4: 20}, "regression"),
        (dict.fromkeys(range(14, 38, 2), 8), "regression"),  # 12 different with 8 rows each
        (dict.fromkeys(range(12), 12), "classification"),
        ({1: 30, 2: 20, 3: 9, 4: 8}, "classification"),
        ({1: 30, 2: 2, 3: 40, 4: 28}, "classification"),  # codes: a rare one in the middle
        ({0: 3, 1: 97}, "classification"),
        ({0: 4, 1: 4, 2: 4, 3: 4}, "classification"),
    ],
)
def test_counts_are_amounts_and_codes_are_classes(rows_of: dict[int, int], task: str) -> None:
    values = [value for value, count in rows_of.items() for _ in range(count)]
    rows = [{"x": i * 37 % 101, "bought": value} for i, value in enumerate(values)]
    draft, (config, _) = drafted(csv_text(rows))
    assert config.data.task == task
    assert ("taken for amounts" in draft) == (task == "regression")


def test_quarters_and_months_are_dates() -> None:
    months = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
    rows = [
        {
            "quarter": f"{1981 + i % 20} Q{i % 4 + 1}",
            "month": f"{1950 + i // 12} {months[i % 12]}",
            "bought": i % 7 / 3,
        }
        for i in range(240)
    ]
    draft, (config, bundle) = drafted(csv_text(rows))
    assert "quarter: date  # such as 1981 Q1" in draft
    assert "time: month  # rows are in order of month" in draft  # and no identifier
    assert {"quarter.days", "quarter.month"} <= set(bundle.info.feature_names)
    assert config.data.columns["month"].type == "date"
    assert bundle.rows["test"].min() > bundle.rows["train"].max()


def test_numbers_with_a_unit_are_declared_as_numbers() -> None:
    rows = [{"area": f"{20 + i % 57} m²", "rent": f"{300 + 7 * (i % 57)} zlotys"} for i in range(200)]
    draft, (config, bundle) = drafted(csv_text(rows), "rent")
    assert "area: number  # such as 20 m²" in draft
    assert config.data.task == "regression"
    assert bundle.info.feature_names == ["area"]


def test_spellings_of_a_class_are_named() -> None:
    rows = [row | {"bought": ["Yes", "yes ", "perhaps"][i % 3]} for i, row in enumerate(people(60))]
    draft, _ = drafted(csv_text(rows))
    assert "column 'bought' holds categories that differ only in case or spaces" in draft


def test_columns_of_lists_are_left_out() -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    rows = [row | {"tags": ["a"], "site_id": {"x": 1}} for row in people(60)]
    parquet.write_table(pyarrow.Table.from_pylist(rows), "rows.parquet")
    draft = draft_config(Path("rows.parquet"), "bought")
    Path("config.yaml").write_text(draft.text("mlp"), encoding="utf-8")
    config = load_config(Path("config.yaml"), adapters=Catalog()).config
    assert config.data.exclude == ["tags", "site_id"]
    assert "tags" not in load_data(config).info.feature_names
    assert "left out: tags, site_id" in draft.summary()


def test_names_of_rows_are_left_out_though_they_repeat() -> None:
    rows = [{"rownames": i % 60 + 1, "x": i % 7, "bought": "yn"[i % 2]} for i in range(90)]
    _, (config, bundle) = drafted(csv_text(rows))
    assert config.data.exclude == ["rownames"]
    assert list(bundle.info.feature_names) == ["x"]
    _, (config, _) = drafted(
        csv_text([{"rownames": row["rownames"], "bought": row["bought"]} for row in rows])
    )
    assert config.data.exclude == []  # there is nothing else to learn from


def test_an_id_that_repeats_is_hinted_at() -> None:
    rows = [{"id": i // 3, "x": i % 7, "bought": "yn"[i % 2]} for i in range(90)]
    draft, (config, _) = drafted(csv_text(rows))
    assert "30 different id, each with several rows: to split by it, set `group: id` under split" in draft
    assert config.data.split.group is None


def test_very_few_rows() -> None:
    _, (config, bundle) = drafted(csv_text(people(9)))
    assert config.training.batch_size <= len(bundle.splits["train"])


def test_a_column_that_counts_up_is_used_where_it_is_all_there_is() -> None:
    _, (config, bundle) = drafted("x,y\n" + "".join(f"{i},{3 * i + i % 5}\n" for i in range(100)), target="y")
    assert config.data.exclude == []
    assert list(bundle.info.feature_names) == ["x"]


def test_parquet() -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.Table.from_pylist(people()), "a.parquet")
    assert "type: parquet" in draft_config("a.parquet", "bought").text()


def test_a_target_that_is_not_there() -> None:
    with pytest.raises(DataError, match=r"--target: there is no column 'boght'; did you mean 'bought'\?"):
        drafted(csv_text(people()), target="boght")


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(DataError, match="there is no such file"):
        draft_config(Path("b.csv"), "y")


def test_nothing_to_learn_from() -> None:
    with pytest.raises(DataError, match="no usable feature column"):
        drafted("a,y\n" + "".join(f",{i % 2}\n" for i in range(20)), target="y")


def test_categories_that_the_training_rows_take_for_identifiers_are_declared() -> None:
    # 100 cities in 200 rows are categories. Some 90 of them in the 140 rows that train would be left out.
    rows = [{"city": f"c{i % 100:03}", "x": i % 7, "bought": "yn"[i % 2]} for i in range(200)]
    Path("many.csv").write_text(csv_text(rows))
    Path("config.yaml").write_text(init("many.csv", "bought", model="mlp"))
    config = load_config(Path("config.yaml"), adapters=Catalog()).config
    bundle = load_data(config)
    assert list(config.data.columns) == ["city"]
    assert bundle.columns == "1 category, 1 number"
    assert not any("identifier" in warning for warning in bundle.warnings)


def test_trees_get_many_categories_by_their_targets() -> None:
    rows = [{"city": f"c{i % 600:03}", "x": i % 7, "bought": "yn"[i % 2]} for i in range(1800)]
    Path("many.csv").write_text(csv_text(rows))
    draft = draft_config(Path("many.csv"), "bought")
    assert "city: {type: category, encode: target}  # 600 different" in draft.text("lightgbm")
    assert "columns:" not in draft.text("catboost")  # encodes them by the target itself
    assert "columns:" not in draft.text("mlp")  # data.encode: auto does so


def test_a_table_of_one_column() -> None:
    Path("one.csv").write_text("y\n1\n2\n3\n")
    with pytest.raises(DataError, match="no usable feature column: 'y' is the only one"):
        draft_config(Path("one.csv"), "y")


def test_the_summary_counts_in_words() -> None:
    Path("one.csv").write_text("a,b,y\n" + "\n".join(f"{i % 7},{i % 3 == 0},{i % 5}" for i in range(60)))
    assert "to learn from: 1 number, 1 boolean" in draft_config(Path("one.csv"), "y").summary()


def test_lines_that_end_as_on_old_macs() -> None:
    text = csv_text(people()).replace("\r\n", "\n").replace("\n", "\r")
    assert "numbers: height" in drafted(text)[0]


def test_control_characters_of_the_data_reach_no_comment_and_no_terminal() -> None:
    text = "\x1b[31mred\x1b[0m,b,y\n" + "\n".join(
        f"{i % 7},\x1b]0;x\x07{i % 3},\x1b[2J{i % 2}" for i in range(60)
    )
    Path("esc.csv").write_text(text)
    draft = draft_config(Path("esc.csv"), "y")
    assert "\x1b" not in draft.text("ridge") + draft.summary()
    Path("config.yaml").write_text(draft.text("mlp"))
    assert load_data(load_config(Path("config.yaml"), adapters=Catalog()).config).info.classes == [
        "\x1b[2J0",
        "\x1b[2J1",
    ]


def test_values_too_large_for_float32_are_left_out() -> None:
    rows = [row | {"big": (i * 37 % 11) * 1e200} for i, row in enumerate(people())]
    draft, (config, _) = drafted(csv_text(rows))
    assert config.data.exclude == ["big"]
    assert "big  # has values too large for float32" in draft


@pytest.mark.filterwarnings("error")
def test_a_target_beyond_whole_numbers_of_64_bits() -> None:
    Path("big.csv").write_text("x,y\n" + "\n".join(f"{i},{10**25 * (i % 2 + 1)}" for i in range(60)))
    assert "task: classification" in draft_config(Path("big.csv"), "y").text("ridge")
    Path("big.csv").write_text("x,y\n" + "\n".join(f"{i},{10**25}" for i in range(60)))
    with pytest.raises(DataError, match=r"only one value \(1e\+25\)"):
        draft_config(Path("big.csv"), "y")


def test_dates_that_do_not_exist_are_missing_values() -> None:
    rows = [row | {"when": f"{i % 28 + 1:02}/02/2024"} for i, row in enumerate(people(100))]
    for i in (3, 50, 80):
        rows[i]["when"] = "31/02/2024"
    rows[7]["when"] = "n.d."
    draft, (config, bundle) = drafted(csv_text(rows))
    assert config.data.missing_values == {"when": ["31/02/2024", "n.d."]}
    assert "# no times, in 4 rows" in draft
    assert any(name.startswith("when.") for name in bundle.info.feature_names)


def test_several_targets() -> None:
    text = csv_text([row | {"rent": 2.0 * i} for i, row in enumerate(people())])
    draft, (config, bundle) = drafted(text, "height,rent")
    assert config.data.target == ["height", "rent"]
    assert (bundle.info.task, bundle.info.outputs) == ("regression", 2)
    assert "2 columns" in draft
    assert (
        draft_config("my data.csv", ["height", "rent"]).text()
        == draft_config("my data.csv", "height,rent").text()
    )
    assert "type: lightgbm" not in draft_config("my data.csv", "height,rent").text()


def dated(rows: int = 300) -> list[dict[str, Any]]:
    """Return rows of several a day, whose amount follows the day of the week."""
    return [
        {
            "day": f"{date(2024, 1, 1) + timedelta(days=i // 3)}",
            "shop": i % 3,
            "sold": 10 * (i // 3 % 7) + i % 3,
        }
        for i in range(rows)
    ]


@pytest.mark.parametrize("newest_first", [False, True])
def test_rows_in_order_of_time_are_split_by_it_and_learn_from_its_parts(newest_first: bool) -> None:
    rows = dated()[::-1] if newest_first else dated()
    draft, (config, bundle) = drafted(csv_text(rows), "sold")
    order = "rows are in order of day, the newest first" if newest_first else "rows are in order of day"
    assert f"time: day  # {order}\n" in draft
    assert config.data.split.time == "day"
    assert {"day.days", "day.weekday", "shop"} <= set(bundle.info.feature_names)
    of = {name: [rows[i]["day"] for i in ids] for name, ids in bundle.rows.items()}
    assert max(of["train"]) < min(of["val"])
    assert max(of["val"]) < min(of["test"])


def test_a_time_alone_splits_the_rows_and_is_learned_from() -> None:
    draft, (config, bundle) = drafted(
        csv_text([{"day": row["day"], "sold": row["sold"]} for row in dated()]), "sold"
    )
    assert config.data.split.time == "day"
    assert "features:" not in draft
    assert {"day.days", "day.weekday"} <= set(bundle.info.feature_names)


def test_dates_in_no_order_are_a_remark() -> None:
    rows = dated()
    draft, (config, _) = drafted(csv_text([*rows[7:], *rows[:7]]), "sold")
    assert "# rows are dated by day: to split by it, set `time: day` under split" in draft
    assert config.data.split.time is None


@pytest.mark.parametrize(
    ("name", "proposed"),
    [("customer_id", True), ("customerid", True), ("ClientId", True), ("order_id", False), ("paid", False)],
)
@pytest.mark.parametrize("groups", [60, 260])
def test_identifiers_that_come_back_are_proposed_as_groups(name: str, proposed: bool, groups: int) -> None:
    rows = [{name: f"c-{i * 7 % groups:04}", "x": i % 11, "y": "yn"[i % 3 == 0]} for i in range(400)]
    draft, (config, bundle) = drafted(csv_text(rows), "y")
    assert config.data.split.group == (name if proposed else None)
    assert (f"set `group: {name}`" in draft) == (name == "order_id")
    if proposed:
        held = {split: {rows[i][name] for i in ids} for split, ids in bundle.rows.items()}
        assert not held["train"] & (held["val"] | held["test"])


def test_identifiers_of_single_rows_are_no_groups() -> None:
    rows = [{"customer_id": f"c-{max(i, 8):04}", "x": i % 11, "y": "yn"[i % 3 == 0]} for i in range(400)]
    draft, (config, _) = drafted(csv_text(rows), "y")
    assert config.data.exclude == ["customer_id"]
    assert "group" not in draft
