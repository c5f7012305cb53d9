"""What `data.expect` demands of rows: each condition compared with pandas, or counted by hand."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import trainwright
from trainwright.datasets.base import Outcome
from trainwright.errors import ConfigError, DataError, ExpectationError

ROWS = pd.DataFrame(
    {
        "age": [20, 30, -4, 50, 130, 60, 70, 80],
        "plan": ["basic", "pro", "gold", None, "pro", "pro", "basic", "pro"],
        "email": ["a@x", "b@x", "a@x", "c", None, "d@x", "e@x", "f@x"],
        "signup": ["2019-12-31", "2020-01-01", "2020-01-02", "2021-05-05", None] + ["2022-01-01"] * 3,
        "price": ["1,5", "2,5", "3,5", "4,5", "5,5", "6,5", "7,5", "1.000,5"],
        "rows": range(8),
        "api_key": [f"sk-{i}" for i in range(8)],
        "churn": ["yes", "no"] * 4,
    }
)


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    ROWS.to_csv("t.csv", index=False)
    return tmp_path


def config(expect: Any, **data: Any) -> dict[str, Any]:
    return {"data": {"path": "t.csv", "target": "churn", "expect": expect, **data}, "model": "random_forest"}


def found(expect: Any, given: Any = None, **data: Any) -> dict[str, Outcome]:
    settings = config(expect, **data)
    if given is not None:
        del settings["data"]["path"]
    document = trainwright.check_data(settings, data=given)
    return {one["key"]: Outcome(**one) for one in document["expectations"]}


def save_to_disk(folder: Path) -> None:
    """Write the rows as Hugging Face's library does."""
    folder.mkdir()
    table = pa.Table.from_pandas(ROWS)
    with pa.OSFile(str(folder / "data.arrow"), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data.arrow"}]}))


def only(expect: Any, **data: Any) -> Outcome:
    (one,) = found(expect, **data).values()
    return one


@pytest.mark.parametrize(
    ("expect", "met", "number"),
    [
        ({"rows": ">= 8"}, True, 8),
        ({"rows": "> 8"}, False, 8),
        ({"rows": 8}, True, 8),
        ({"rows": [None, 7]}, False, 8),
        ({"age": {"mean": [54, 55]}}, True, ROWS.age.mean()),
        ({"age": {"std": "<= 10"}}, False, ROWS.age.std(ddof=0)),
        ({"email": {"missing": "<= 0.1"}}, False, 1 / 8),
        ({"email": {"missing": "<= 0.125"}}, True, 1 / 8),
        ({"plan": {"share": {"pro": ">= 0.6"}}}, False, 4 / 7),
        ({"price": {"mean": "< 200"}}, True, np.mean([1.5, 2.5, 3.5, 4.5, 5.5, 6.5, 7.5, 1000.5])),
    ],
)
def test_numbers(expect: Any, met: bool, number: float) -> None:
    one = only(expect)
    assert one.met == met
    assert one.found == pytest.approx(number)


@pytest.mark.parametrize(
    ("expect", "rows"),
    [
        ({"age": {"between": [0, 120]}}, [2, 4]),
        ({"age": {"between": [None, 60]}}, [4, 6, 7]),
        ({"plan": {"in": ["basic", "pro"]}}, [2]),
        ({"age": {"one_of": ["20", 30, 50, 60]}}, [2, 4, 6, 7]),
        ({"plan": {"not_in": ["gold", "silver"]}}, [2]),
        ({"email": {"matches": "^.+@.+$"}}, [3]),
        ({"email": {"unique": True}}, [2]),
        ({"signup": {"after": "2020-01-01"}}, [0, 1]),
        ({"signup": {"before": "2022-01-01"}}, [5, 6, 7]),
        ({"signup": {"between": ["2020-01-01", None]}}, [0]),
        ({"price": {"between": [2, 100]}}, [0, 7]),
        ({"price": {"type": "integer"}}, range(8)),
        ({"plan": {"type": "number"}}, [0, 1, 2, 4, 5, 6, 7]),
        ({"signup": {"type": "date"}}, []),
        ({"age": {"type": "time"}}, range(8)),
    ],
)
def test_cells(expect: Any, rows: list[int]) -> None:
    one = only(expect)
    assert one.rows == len(rows)
    assert one.met == (not rows)
    assert [(each["row"], each["line"]) for each in one.examples] == [(i + 1, i + 2) for i in rows][:3]


def test_some_cells_may_be_wrong() -> None:
    assert only({"age": {"between": [0, 120], "mostly": 0.75}}).met
    assert not only({"age": {"between": [0, 120], "mostly": 0.76}}).met


def test_all_failures_are_told_at_once_and_secrets_are_not() -> None:
    expect = {"rows": "> 9", "age": {"ge": 0}, "api_key": {"matches": "^pk"}, "colour": {}, "plan": {}}
    with pytest.raises(ExpectationError) as error:
        trainwright.train(config(expect))
    lines = str(error.value).splitlines()
    assert lines[0] == "data.expect: 4 of 5 expectations are not met"
    assert (
        lines[2] == "  age.between: 1 of 8 cells are not at least 0 (-4): row 3 (line 4 of the file) of t.csv"
    )
    assert "api_key.matches: 8 of 8" in lines[3]
    assert "sk-" not in str(error.value)
    assert lines[4].startswith("  colour: t.csv has no such column; there are: age")
    assert not list(Path("runs").rglob("manifest.json"))


def test_values_that_mean_missing_ones_count_as_such() -> None:
    marks = {"missing_values": {"age": [-4, 130], "plan": ["gold"]}}
    outcomes = found({"age": {"between": [0, 120], "missing": "== 0.25"}, "plan": {"missing": 0}}, **marks)
    assert [one.met for one in outcomes.values()] == [True, True, False]
    assert outcomes["plan.missing"].found == 2 / 8


def test_names_of_columns() -> None:
    names = list(ROWS)
    assert only({"columns": {"required": ["age", "plan"]}}).met
    assert only({"columns": {"exact": names[::-1]}}).met
    one = only({"columns": {"exact": [*names[1:], "more"]}})
    assert one.found == {"lacks": ["more"], "also has": ["age"]}


def test_a_column_that_is_called_like_a_key() -> None:
    outcomes = found({"rows": ">= 8", "column": {"rows": {"between": [1, 7]}}})
    assert [(one.key, one.met) for one in outcomes.values()] == [("rows", True), ("rows.between", False)]


def test_the_rows_of_all_files_count_together() -> None:
    ROWS[:2].to_csv("more.csv", index=False)
    outcomes = found(
        {"rows": 10, "age": {"unique": True}}, path=None, train_path="t.csv", val_path="more.csv"
    )
    assert outcomes["rows"].met
    assert outcomes["age.unique"].said.endswith("rows 1, 2 (lines 2, 3 of the file) of more.csv")


@pytest.mark.parametrize("kind", ["parquet", "jsonl", "xlsx", "streamed", "huggingface", "frame", "function"])
def test_every_kind_of_table(place: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expect = {"rows": 8, "plan": {"in": ["basic", "pro"], "missing": 0}, "age": {"between": [0, 120]}}
    given, data = None, {"path": f"t.{kind}"}
    if kind == "xlsx":
        ROWS.to_excel("t.xlsx", index=False)
    elif kind == "jsonl":
        ROWS.to_json("t.jsonl", orient="records", lines=True)
    elif kind == "huggingface":
        save_to_disk(place / "hf")
        data = {"type": "huggingface", "path": "hf"}
    elif kind == "frame":
        given, data = ROWS, {}
    elif kind == "function":
        (place / "own_table.py").write_text(
            "import pandas\ndef rows():\n    return pandas.read_csv('t.csv')\n"
        )
        monkeypatch.syspath_prepend(str(place))
        data = {"type": "own_table:rows", "path": None}
    else:
        ROWS.to_parquet("t.parquet")
        data = {"path": "t.parquet", "streaming": kind == "streamed"}
    outcomes = found(expect, given, **data)
    assert {key: (one.met, one.rows) for key, one in outcomes.items()} == {
        "rows": (True, 0),
        "plan.in": (False, 1),
        "plan.missing": (False, 1),
        "age.between": (False, 2),
    }


def test_arrays() -> None:
    x = np.zeros((5, 3, 2))  # two-dimensional ones have columns, x0 ...
    x[1, 2, 0], x[4, 0, 1] = 9, np.nan
    y = np.array([0, 1, 2, 0, 1])
    expect = {"rows": 5, "features": {"between": [0, 1], "missing": 0}, "churn": {"in": [0, 1]}}
    outcomes = found(expect, (x, y))
    assert [(one.met, one.rows) for one in outcomes.values()] == [
        (True, 0),
        (False, 1),
        (False, 1),
        (False, 1),
    ]
    with pytest.raises(DataError, match=r"features\.unique: its rows hold several values"):
        found({"features": {"unique": True}}, (x, np.arange(5)))


def test_texts_and_images_have_columns(place: Path) -> None:
    outcomes = found({"rows": ">= 9", "age": {"missing": 0}}, type="text_table", text="email")
    assert [one.met for one in outcomes.values()] == [False, True]
    ROWS.assign(image=[f"{i}.png" for i in range(8)]).to_parquet("t.parquet")
    expect = {"rows": 8, "columns": {"required": ["image"]}, "plan": {"missing": 0}}
    outcomes = found(expect, type="image_table", image="image", path="t.parquet")
    assert [one.met for one in outcomes.values()] == [True, True, False]


def test_what_has_no_rows_in_memory_is_refused(place: Path) -> None:
    (place / "words.txt").write_text("some words in a line\n" * 400)
    data = {"type": "text", "path": "words.txt", "length": 16, "expect": {"rows": 3}}
    with pytest.raises(DataError, match=r"data\.expect is for tables and named arrays, but text"):
        trainwright.check_data({"data": data, "model": "gpt"})


def test_expectations_change_no_bits() -> None:
    with_them = trainwright.check(config({"rows": 8}))
    assert with_them.computation_hash() == trainwright.check(config(None)).computation_hash()
    assert "data.expect.rows" in with_them.flat()


@pytest.mark.parametrize(
    ("expect", "text"),
    [
        ({}, "nothing is expected"),
        ({"row": ">= 3"}, "data.expect.row: unknown key; did you mean 'rows'?"),
        ({"rows": "many"}, "expected a comparison such as '>= 0.5'"),
        ({"age": {"betwen": [0, 1]}}, "did you mean 'between'?"),
        ({"age": {"between": [None, None]}}, "one of the ends must be given"),
        ({"age": {"matches": "("}}, "is no regular expression"),
        ({"age": {"expect_column_values_to_not_be_null": {}}}, "write missing: 0"),
        ({"plan": {"share": {"pro": 0.5}}}, 'one number means exactly that one; write ">= 0.5"'),
        ({"plan": {"not_inn": [1]}}, "unknown key; did you mean 'not_in'?"),
        ({"plan": {"in": []}}, "data.expect.column.plan.in: expected a list of at least 1"),
        ({"age": {"in": [1], "one_of": [2]}}, "is another spelling of one_of"),
    ],
)
def test_wrong_expectations(expect: Any, text: str) -> None:
    with pytest.raises(ConfigError) as error:
        trainwright.check(config(expect))
    assert text in str(error.value)


@pytest.mark.parametrize(
    ("expect", "said"),
    [
        (
            {"plan": {"in": ["pro", " pro "]}},
            "3 of 7 cells are not in ['pro', ' pro '] ('basic', 'gold'): rows 1, 3, 7 (lines 2, 4, 8 of ",
        ),
        ({"plan": {"not_in": ["pro", 1]}}, "4 of 7 cells are in ['pro', 1] ('pro'): rows 2, 5, 6 and 1 more"),
        ({"age": {"in": list(range(50, 80))}}, "56, 57 and 22 more] (20, 30, -4, ...): rows 1, 2, 3 and 2 "),
        ({"signup": {"after": "2020-01-01"}}, "come after 2020-01-01 (2019-12-31, 2020-01-01): rows 1, 2 "),
    ],
)
def test_values_are_shown_once_and_quoted(expect: Any, said: str) -> None:
    assert said in only(expect).said


def test_the_share_of_true_counts_ones() -> None:
    ROWS.assign(ok=[0, 1, 1, 1] * 2).to_csv("t.csv", index=False)
    assert only({"ok": {"share": {"true": "== 0.75"}}}).met
    assert only({"ok": {"share": {"false": "== 0.25"}}}).met


def test_a_config_of_a_run_says_what_its_messages_say() -> None:
    text = trainwright.check(config({"plan": {"one_of": ["pro"], "not_in": ["gold"]}})).dump()
    assert "in: [pro]" in text
    assert "not_in: [gold]" in text
    Path("again.yaml").write_text(text)
    assert trainwright.check("again.yaml").dump() == text


def test_an_end_that_is_no_time() -> None:
    with pytest.raises(DataError, match=r"signup\.after: 'soon' is no time; write it as 2026-01-31"):
        found({"signup": {"after": "soon"}})
