"""Logs of requests with the labels that came later."""

import json
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from rows import config, load, people

from trainwright.config.file_types import folder_type
from trainwright.datasets.base import Dataset
from trainwright.datasets.requests import RequestsDataset
from trainwright.errors import DataError
from trainwright.testing.dataset_suite import DatasetSuite

pyarrow: Any = pytest.importorskip("pyarrow")
parquet: Any = pytest.importorskip("pyarrow.parquet")

START = datetime(2026, 11, 1)


def write_rows(folder: Path, name: str, rows: list[tuple[int, str, int, dict[str, Any]]]) -> None:
    """Write a part of a log: minute, request, row (from 1), and the cells of each row."""
    folder.mkdir(exist_ok=True)
    lines = [
        {**cells, "_time": START + timedelta(minutes=minute), "_request_id": one, "_row": row, "_prediction": "no"}
        for minute, one, row, cells in rows
    ]  # fmt: skip
    parquet.write_table(pyarrow.Table.from_pylist(lines), folder / f"requests-{name}.parquet")


def write_labels(folder: Path, name: str, labels: dict[str, list[Any]], minute: int = 0) -> None:
    at = (START - datetime(1970, 1, 1)).total_seconds() + 60 * minute
    lines = [json.dumps({"id": one, "at": at, "labels": {"bought": cells}}) for one, cells in labels.items()]
    with (folder / f"feedback-{name}.jsonl").open("a") as file:
        file.write("".join(f"{line}\n" for line in lines))


def read(folder: Path, **params: Any) -> Any:
    made = RequestsDataset(config(type="requests", path=str(folder)), RequestsDataset.Params(**params))
    return made.read(str(folder))


class TestRequests(DatasetSuite):
    def make(self, folder: Path) -> Dataset:
        log, rows = folder / "log", people()
        cells = [{name: cell for name, cell in row.items() if name != "bought"} for row in rows]
        pairs = [(i, f"r{i // 2}", 1 + i % 2, one) for i, one in enumerate(cells)]
        pairs = [(minute - minute % 2, *rest) for minute, *rest in pairs]  # type: ignore[misc]
        write_rows(log, "20261101T1-b", pairs[:60])
        write_rows(log, "20261101T0-a", pairs[:59:-1])
        for i in range(0, len(rows), 2):
            write_labels(log, "20261101T0", {f"r{i // 2}": [one["bought"] for one in rows[i : i + 2]]})
        return RequestsDataset(config(type="requests", path=str(log)), RequestsDataset.Params())

    def raw_rows(self, folder: Path) -> Any:
        import pandas as pd

        return pd.DataFrame(people())


def test_rows_with_labels_in_the_order_of_time(tmp_path: Path) -> None:
    write_rows(tmp_path, "1", [(5, "b", 2, {"x": 3}), (5, "b", 1, {"x": 2}), (9, "none", 1, {"x": 9})])
    write_rows(tmp_path, "2", [(5, "a", 1, {"x": 1}), (1, "c", 1, {"x": 0})])
    write_labels(tmp_path, "1", {"a": ["A"], "b": ["B1", "B2"], "c": ["C"], "lost": ["?"]})
    table = read(tmp_path)
    assert {name: values.tolist() for name, values in table.columns.items()} == {
        "x": [0, 1, 2, 3],
        "bought": ["C", "A", "B1", "B2"],
    }
    assert len(table.remarks) == 1
    assert "1 labels are of requests that are not in this log" in table.remarks[0]


def test_a_repeated_request_counts_once(tmp_path: Path) -> None:
    write_rows(tmp_path, "1", [(1, "a", 1, {"x": 1}), (3, "a", 1, {"x": 3}), (2, "a", 1, {"x": 2})])
    write_rows(tmp_path, "2", [(3, "a", 1, {"x": 3})])
    write_labels(tmp_path, "1", {"a": ["first"]}, 5)
    write_labels(tmp_path, "0", {"a": ["then"]}, 6)
    table = read(tmp_path)
    assert (table.columns["x"].tolist(), table.columns["bought"].tolist()) == ([3], ["then"])
    assert "1 requests got other labels later" in table.remarks[0]
    assert "3 requests have the id of a later one" in table.remarks[1]


def test_labels_that_do_not_fit_are_left_out(tmp_path: Path) -> None:
    write_rows(tmp_path, "1", [(1, "a", 1, {"x": 1}), (1, "a", 2, {"x": 2}), (2, "b", 1, {"x": 3})])
    write_labels(tmp_path, "1", {"a": ["A"], "b": ["B"]})
    table = read(tmp_path)
    assert table.columns["x"].tolist() == [3]
    assert "1 requests have another number of labels than rows" in table.remarks[0]


def test_a_span_of_time_stays_as_it_is_while_the_log_grows(tmp_path: Path) -> None:
    write_rows(tmp_path, "1", [(i, f"r{i}", 1, {"x": i}) for i in range(10)])
    write_labels(tmp_path, "1", {f"r{i}": ["A"] for i in range(10)}, 20)
    span = {"since": "2026-11-01T00:02", "until": "2026-11-01T01:30+01:00"}
    before = read(tmp_path, **span).columns
    assert before["x"].tolist() == [*range(2, 10)]
    write_rows(tmp_path, "2", [(30, "new", 1, {"x": 30})])
    write_labels(tmp_path, "2", {"new": ["B"], "r5": ["B"]}, 40)
    after = read(tmp_path, **span).columns
    assert {name: values.tolist() for name, values in after.items()} == {
        name: values.tolist() for name, values in before.items()
    }
    assert read(tmp_path).columns["bought"].tolist().count("B") == 2
    with pytest.raises(ValueError, match="'soon' is no time"):
        RequestsDataset.Params(since="soon")


def test_columns_of_several_models_and_clients(tmp_path: Path) -> None:
    write_rows(tmp_path, "1", [(1, "a", 1, {"x": 1, "city": None, "code": 7})])
    write_rows(tmp_path, "2", [(2, "b", 1, {"x": 2.5, "city": "Oslo", "code": "8a", "more": True})])
    write_labels(tmp_path, "1", {"a": ["A"], "b": ["B"]})
    columns = read(tmp_path).columns
    assert columns["x"].tolist() == [1, 2.5]
    assert columns["city"].tolist() == [None, "Oslo"]
    assert columns["code"].tolist() == ["7", "8a"]
    assert columns["more"].tolist()[1] == 1


def test_a_line_that_is_being_written_is_left_out(tmp_path: Path) -> None:
    write_rows(tmp_path, "1", [(1, "a", 1, {"x": 1})])
    write_labels(tmp_path, "1", {"a": ["A"]})
    with (tmp_path / "feedback-1.jsonl").open("a") as file:
        file.write('{"id": "b", "lab')
    assert read(tmp_path).columns["bought"].tolist() == ["A"]


@pytest.mark.parametrize(
    "line",
    ["{}", "[1]", "x", '{"id": "a", "at": 1, "labels": {"y": 1}}', '{"id": "a", "at": 1, "labels": []}'],
)
def test_other_lines_are_refused(tmp_path: Path, line: str) -> None:
    write_rows(tmp_path, "1", [(1, "a", 1, {"x": 1})])
    (tmp_path / "feedback-1.jsonl").write_text(f"{line}\n")
    with pytest.raises(DataError, match=r"feedback-1\.jsonl: line 1 holds no labels"):
        read(tmp_path)


def test_other_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is no folder"):
        load(RequestsDataset, config(type="requests", path=str(tmp_path / "none")))
    with pytest.raises(DataError, match="holds no log of requests"):
        read(tmp_path)
    parquet.write_table(pyarrow.table({"x": [1]}), tmp_path / "requests-1.parquet")
    with pytest.raises(DataError, match="has no column '_request_id'"):
        read(tmp_path)
    write_rows(tmp_path, "1", [(1, "a", 1, {"x": 1})])
    with pytest.raises(DataError, match="no request has its labels; a service takes them at POST /feedback"):
        read(tmp_path)


def test_the_folder_of_a_service_is_recognised(tmp_path: Path) -> None:
    write_rows(tmp_path, "20261101T120000-7-1", [(1, "a", 1, {"x": 1})])
    assert folder_type(str(tmp_path)) == "requests"
    (tmp_path / "feedback-20261101T120000-7.jsonl").touch()
    assert folder_type(str(tmp_path)) == "requests"
    (tmp_path / "other.csv").touch()
    assert folder_type(str(tmp_path)) is None


@pytest.mark.parametrize(
    ("key", "own"),
    [
        ("split.key", {"split": {"by": "hash", "key": ["customer"]}}),
        ("split.group", {"split": {"group": "customer"}}),
        ("split.time", {"split": {"time": "customer"}}),
        ("weight", {"weight": "customer"}),
    ],
)
def test_a_column_that_no_model_takes_is_named_with_what_to_do(
    tmp_path: Path, key: str, own: dict[str, Any]
) -> None:
    write_rows(tmp_path, "a", [(0, "r0", 1, {"age": 1.0})])
    write_labels(tmp_path, "a", {"r0": ["yes"]})
    made = RequestsDataset(config(type="requests", path=str(tmp_path), **own), RequestsDataset.Params())
    with pytest.raises(DataError) as caught:
        made.read(str(tmp_path))
    said = str(caught.value)
    assert f"no column 'customer' (data.{key})" in said
    assert f"Add data.{key}=null to the command" in said
    assert len(said.splitlines()) <= 4
