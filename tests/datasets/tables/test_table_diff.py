"""The differences of two tables are those that pandas finds, row by row."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from trainwright.datasets.tables.diff import changed_cells as cells_module
from trainwright.datasets.tables.diff import side as side_module
from trainwright.datasets.tables.diff.canonical import Hashes, canonical
from trainwright.datasets.tables.diff.compare import table_diff
from trainwright.datasets.tables.diff.matching import Keyed, match, moved
from trainwright.datasets.tables.diff.result import TableDiff
from trainwright.datasets.tables.diff.side import Side
from trainwright.datasets.tables.frames import row_chunks
from trainwright.errors import InputError

Diff = Callable[..., TableDiff]


@pytest.fixture
def diff(tmp_path: Path) -> Diff:
    """Write two frames as files and compare these."""

    def made(one: Any, two: Any, ending: str = "csv", **how: Any) -> TableDiff:
        sides = []
        for name, rows in (("a", one), ("b", two)):
            path = tmp_path / f"{name}.{ending}"
            if isinstance(rows, str):
                path.write_text(rows, encoding="utf-8")
            elif ending == "csv":
                rows.to_csv(path, index=False)
            elif ending == "parquet":
                rows.to_parquet(path, index=False)
            elif ending == "xlsx":
                rows.to_excel(path, index=False)
            else:
                rows.to_json(path, orient="records", lines=True, date_format="iso")
            sides.append(side(path))
        return table_diff(*sides, **how)

    return made


def side(path: Path) -> Side:
    chunks: Any = row_chunks(path)
    if hasattr(chunks, "keep_nested"):
        chunks.keep_nested()
    return Side(str(path), chunks)


def customers(rows: int = 300, seed: int = 0) -> pd.DataFrame:
    draw = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "customer_id": draw.permutation(rows) + 1000,
            "age": draw.integers(18, 90, rows),
            "charge": np.round(draw.gamma(2, 30, rows), 2),
            "plan": draw.choice(["free", "basic", "pro"], rows),
            "signup": pd.Timestamp("2020-01-01") + pd.to_timedelta(draw.integers(0, 900, rows), unit="D"),
            "active": draw.random(rows) < 0.5,
            "visits": np.where(draw.random(rows) < 0.1, np.nan, draw.poisson(3, rows)),
        }
    )


def edited(frame: pd.DataFrame, seed: int) -> pd.DataFrame:
    """Change, remove, add and move rows at random."""
    draw = np.random.default_rng(seed)
    other = frame.copy()
    for row in draw.choice(len(other), 9, replace=False):
        other.loc[row, "charge"] += 0.5
    other.loc[draw.choice(len(other), 4, replace=False), "plan"] = "gold"
    other.loc[draw.choice(len(other), 3, replace=False), "visits"] = np.nan
    new = customers(5, seed + 100)
    new["customer_id"] += 100_000
    other = pd.concat([other.drop(index=draw.choice(len(other), 7, replace=False)), new], ignore_index=True)
    return other.iloc[draw.permutation(len(other))].reset_index(drop=True) if seed % 2 else other


@pytest.mark.parametrize("ending", ["csv", "parquet", "jsonl", "xlsx"])
@pytest.mark.parametrize("seed", [1, 2])
def test_rows_are_matched_by_key_as_pandas_merges_them(
    diff: Diff, monkeypatch: pytest.MonkeyPatch, ending: str, seed: int
) -> None:
    monkeypatch.setattr(side_module, "CHUNK", 64)
    monkeypatch.setattr(cells_module, "_BATCH", 5)
    one = customers()
    two = edited(one, seed)
    found = diff(one, two, ending, limit=1000)
    both = one.merge(two, on="customer_id", how="outer", indicator=True, suffixes=("", "_now"))
    kept = both[both["_merge"] == "both"]
    columns = [name for name in one if name != "customer_id"]
    differs = {
        name: (kept[name] != kept[f"{name}_now"]) & ~(kept[name].isna() & kept[f"{name}_now"].isna())
        for name in columns
    }
    assert found.rows.key == ("customer_id",)
    assert found.rows.key_found
    assert found.rows.removed == (both["_merge"] == "left_only").sum() == 7
    assert found.rows.added == (both["_merge"] == "right_only").sum() == 5
    assert found.changed == {name: mask.sum() for name, mask in differs.items() if mask.any()}
    assert found.rows.changed == pd.DataFrame(differs).any(axis=1).sum()
    at = {key: i + 1 for i, key in enumerate(two["customer_id"])}
    expected = {(key, name) for name in columns for key in kept["customer_id"][differs[name]]}
    assert {(one.key["customer_id"], one.column) for one in found.cells if one.key} == expected
    for cell in found.cells:
        assert cell.key is not None
        key = cell.key["customer_id"]
        row = both[both["customer_id"] == key].iloc[0]
        assert cell.after_row == at[key]
        assert one["customer_id"][cell.before_row - 1] == key
        for value, known in ((cell.before, row[cell.column]), (cell.after, row[f"{cell.column}_now"])):
            assert (value is None and pd.isna(known)) or value == known
    gone = set(both["customer_id"][both["_merge"] == "left_only"])
    assert {one.key["customer_id"] for one in found.rows.removed_rows if one.key} == gone
    assert (found.rows.moved > 0) is bool(seed % 2)


def test_rows_without_a_key_are_a_multiset(diff: Diff) -> None:
    draw = np.random.default_rng(3)
    one = pd.DataFrame({"x": draw.integers(0, 4, 200), "y": draw.choice(["a", "b"], 200)})
    two = one.sample(frac=1, random_state=1).iloc[:190]
    two = pd.concat([two, two.iloc[:20]], ignore_index=True)
    ours, theirs = (Counter(map(tuple, frame.to_numpy().tolist())) for frame in (one, two))
    found = diff(one, two)
    assert found.rows.key == ()
    assert found.rows.removed + found.rows.changed == (ours - theirs).total()
    assert found.rows.added + found.rows.changed == (theirs - ours).total()
    assert found.rows.moved > 0


def test_a_changed_row_without_a_key_is_found_at_its_place(diff: Diff) -> None:
    one = customers().drop(columns="customer_id")
    two = one.drop(index=[10, 11]).reset_index(drop=True)
    two.loc[100, "charge"] = -1.5
    found = diff(one, two)
    assert (found.rows.removed, found.rows.added, found.rows.changed, found.rows.moved) == (2, 0, 1, 0)
    assert [one.row for one in found.rows.removed_rows] == [11, 12]
    (cell,) = found.cells
    assert (cell.column, cell.before_row, cell.after_row, cell.after) == ("charge", 103, 101, -1.5)
    assert cell.before == one["charge"][102]
    assert list(found.sentences()) == ["1 row changed in column charge", "2 rows removed"]


def test_another_row_at_the_same_place_is_no_changed_one(diff: Diff) -> None:
    one = customers(50).drop(columns=["customer_id", "active", "plan"])
    two = one.copy()
    two.loc[7] = [99, -1.0, pd.Timestamp("2030-01-01"), 77.0]
    found = diff(one, two)
    assert (found.rows.removed, found.rows.added, found.rows.changed) == (1, 1, 0)
    assert [place.row for place in (*found.rows.removed_rows, *found.rows.added_rows)] == [8, 8]


def test_other_orders_are_told_apart_from_changes(diff: Diff) -> None:
    one = customers(100)
    order = [*range(1, 100), 0]
    found = diff(one, one.iloc[order])
    assert (found.rows.moved, found.rows.changed, found.rows.removed, found.rows.added) == (1, 0, 0, 0)
    assert not found.equal
    assert list(found.sentences()) == ["1 row moved: the order differs (key customer_id)"]
    columns = diff(one, one[[*one.columns[1:], "customer_id"]])
    assert columns.rows.equal
    assert columns.schema.reordered
    assert list(columns.sentences()) == ["the order of the columns differs"]


def test_repeated_keys_are_told_and_compared_by_content(diff: Diff) -> None:
    one = pd.DataFrame({"id": [1, 2, 2, 3, 4], "x": [10, 20, 21, 30, 40]})
    two = pd.DataFrame({"id": [1, 2, 2, 3, 4, 4], "x": [11, 21, 22, 30, 40, 40]})
    found = diff(one, two, key=["id"])
    assert found.rows.repeated_keys == (1, 2)
    assert found.changed == {"x": 1}  # of 1; the rows of 2 and 4 by content
    assert (found.rows.removed, found.rows.added) == (1, 2)
    assert [place.key for place in found.rows.removed_rows] == [{"id": 2}]
    assert [place.row for place in found.rows.added_rows] == [3, 5]
    unkeyed = diff(one, two)
    assert unkeyed.rows.key == ()  # none is chosen that repeats
    assert unkeyed.rows.passed_over == {"id": "3 rows have the value of an earlier one"}
    assert not diff(one[:2], two[:2]).rows.passed_over


def test_added_and_removed_rows_show_cells(diff: Diff) -> None:
    one = customers(30)
    found = diff(one, pd.concat([one[3:], customers(2, 9).assign(customer_id=["x1", "x2"])]))
    for places, rows in ((found.rows.removed_rows, one[:3]), (found.rows.added_rows, customers(2, 9))):
        for place, (_, row) in zip(places, rows.iterrows(), strict=True):
            assert list(place.cells) == [name for name in one if name != "customer_id"][:5]
            assert place.cells["charge"] == row["charge"]


@pytest.mark.parametrize("forms", [("csv", "csv"), ("csv", "parquet")])
def test_texts_of_numbers_and_times_shift_as_numbers_and_times(
    tmp_path: Path, forms: tuple[str, str]
) -> None:
    from scipy.stats import ks_2samp

    draw, sides, known = np.random.default_rng(5), [], []
    for month, form in enumerate(forms):
        numbers = np.round(draw.normal(1000 + 9 * month, 30, 400), 2)
        days = pd.Timestamp("2025-01-20") + pd.to_timedelta(draw.integers(0, 90 + 9 * month, 400), "D")
        known.append((numbers, days.to_numpy().astype(np.int64)))
        rows = pd.DataFrame({"umsatz": numbers, "tag": days, "plz": [f"{i:05d}" for i in range(400)]})
        if form == "csv":
            rows["umsatz"] = [f"{value:,.2f}".translate(str.maketrans(".,", ",.")) for value in numbers]
            rows.loc[7, "umsatz"] = "-"  # which means a missing value
            known[-1] = (np.delete(numbers, 7), known[-1][1])
            rows["tag"] = days.strftime("%d.%m.%Y")
            rows.to_csv(tmp_path / f"{month}.csv", sep=";", index=False)
        else:
            rows.to_parquet(tmp_path / f"{month}.parquet")
        sides.append(side(tmp_path / f"{month}.{form}"))
    shift = {one.column: one for one in table_diff(*sides).shift}
    assert shift["umsatz"].mean == pytest.approx([numbers.mean() for numbers, _ in known])
    assert shift["umsatz"].std == pytest.approx([numbers.std(ddof=1) for numbers, _ in known])
    for name, pair in zip(("umsatz", "tag"), zip(*known, strict=True), strict=True):
        assert shift[name].ks == pytest.approx(ks_2samp(*pair).statistic)
        assert not shift[name].new
    assert shift["plz"].ks is None


def test_rows_without_a_value_of_the_key_are_compared_by_content(diff: Diff) -> None:
    one = pd.DataFrame({"id": [1, None, 3, None], "x": [10, 20, 30, 40]})
    two = pd.DataFrame({"id": [1, None, 3], "x": [10, 20, 31]})
    found = diff(one, two, key=["id"])
    assert found.rows.keyless == (2, 1)
    assert (found.changed, found.rows.removed, found.rows.added) == ({"x": 1}, 1, 0)
    assert found.rows.removed_rows[0].key == {"id": None}
    two.loc[1, "x"] = 21
    alone = diff(one[:3], two, key=["id"])
    assert (alone.changed, alone.rows.removed, alone.rows.added) == ({"x": 1}, 1, 1)
    pairs = diff(one[:3].assign(day=1), two.assign(day=1), key=["day", "id"])
    assert (pairs.rows.keyless, pairs.changed, pairs.rows.added) == ((1, 1), {"x": 1}, 1)


def test_several_columns_can_be_the_key(diff: Diff) -> None:
    one = pd.DataFrame({"shop": ["a", "a", "b"], "day": [1, 2, 1], "sold": [5, 6, 7]})
    two = pd.DataFrame({"shop": ["b", "a", "a"], "day": [1, 1, 2], "sold": [7, 5, 9]})
    found = diff(one, two, key=["shop", "day"])
    assert found.changed == {"sold": 1}
    assert found.cells[0].key == {"shop": "a", "day": 2}
    assert (found.rows.moved, found.rows.removed) == (1, 0)


def test_an_unknown_key_is_refused(diff: Diff) -> None:
    with pytest.raises(InputError, match=r"no column 'custmer_id'; did you mean 'customer_id'"):
        diff(customers(5), customers(5), key=["custmer_id"])


def test_columns_are_added_removed_and_renamed(diff: Diff) -> None:
    one = customers()
    two = one.rename(columns={"charge": "amount"}).drop(columns="age").assign(score=range(len(one)))
    found = diff(one, two)
    assert found.schema.renamed == {"charge": "amount"}
    assert (found.schema.added, found.schema.removed) == (("score",), ("age",))
    two.loc[5, "amount"] += 1
    assert diff(one, two).schema.renamed == {}


@pytest.mark.parametrize(
    ("before", "after", "old", "new"),
    [
        ("id,x\n1,1\n2,2\n", "id,x\n1,1.0\n2,2.0\n", "integer", "float"),
        ("id,x\n1,1\n2,2\n3,5\n", "id,x\n1,1\n2,2.0\n3,five\n", "integer", "text"),
        ("id,x\n1,True\n2,False\n3,True\n", "id,x\n1,true\n2,False\n3,maybe\n", "boolean", "text"),
        ("id,x\n1,2024-01-05\n2,2024-01-06\n3,2024-01-07\n", "id,x\n1,2024-01-05\n2,2024-01-06\n3,soon\n",
         "time", "text"),
    ],
)  # fmt: skip
def test_values_are_equal_whatever_type_was_inferred(
    diff: Diff, before: str, after: str, old: str, new: str
) -> None:
    found = diff(before, after)
    (change,) = found.schema.types
    assert (change.column, change.before, change.after) == ("x", old, new)
    edits = before.count("\n") - 3  # the third row, where there is one
    assert found.changed == ({"x": 1} if edits else {})
    assert change.values_equal is (edits == 0)
    assert found.equal is (edits == 0)
    back = diff(after, before)
    assert back.changed == found.changed


def test_a_code_is_no_number(diff: Diff) -> None:
    found = diff("id,x\n1,1\n2,2\n", "id,x\n1,01\n2,2\n")
    assert found.changed == {"x": 1}


def test_a_missing_value_alone_changes_no_type(diff: Diff) -> None:
    found = diff("id,x\n1,1\n2,2\n", "id,x\n1,1\n2,\n")
    assert found.schema.types == ()
    assert found.cells[0].after is None


def test_types_of_parquet_files_are_theirs(diff: Diff, tmp_path: Path) -> None:
    one = pd.DataFrame({"id": [1, 2], "x": [1, 2], "city": pd.Categorical(["a", "b"])})
    found = diff(one, one.astype({"x": "float64", "city": "str"}), "parquet")
    assert [(change.column, change.before, change.after) for change in found.schema.types] == [
        ("x", "int64", "double")
    ]
    assert found.equal
    one.to_csv(tmp_path / "c.csv", index=False)
    assert table_diff(side(tmp_path / "a.parquet"), side(tmp_path / "c.csv")).equal


def test_whole_numbers_beyond_floats_differ(diff: Diff) -> None:
    big = 2**62 + 1
    found = diff(f"id,x\n{big},1\n{big + 1},2\n", f"id,x\n{big},1\n{big + 1},3\n")
    assert found.rows.key == ("id",)
    assert found.cells[0].key == {"id": big + 1}
    assert not diff(f"x\n{big}\n", f"x\n{big + 1}\n").equal
    assert not diff(f"x\n{big}\n", f"x\n{float(big)!r}\n").equal
    assert diff("x\n4611686018427387904\n", "x\n4611686018427387904.0\n").equal


def test_nanoseconds_count(diff: Diff) -> None:
    one = pd.DataFrame({"t": pd.to_datetime(["2024-01-01 00:00:00.000000001"])})
    assert not diff(one, one + pd.Timedelta(1, "ns"), "parquet").equal
    assert diff(one, one.copy(), "parquet").equal


def test_nested_cells_are_compared(diff: Diff) -> None:
    one = pd.DataFrame({"id": [1, 2], "tokens": [[1, 2], [3]], "at": [{"x": 1}, {"x": 2}]})
    two = pd.DataFrame({"id": [1, 2], "tokens": [[1, 2], [4]], "at": [{"x": 1}, {"x": 2}]})
    for ending in ("parquet", "jsonl"):
        found = diff(one, two, ending)
        assert found.changed == {"tokens": 1}
        assert found.cells[0].before == "[3]"


def test_a_folder_of_files_is_one_table(tmp_path: Path) -> None:
    one = customers()
    for name, parts in (("a", 3), ("b", 2)):
        (tmp_path / name).mkdir()
        for i, rows in enumerate(np.array_split(np.arange(len(one)), parts)):
            one.iloc[rows].to_csv(tmp_path / name / f"part-{i}.csv", index=False)
    assert table_diff(side(tmp_path / "a"), side(tmp_path / "b")).equal
    two = one.copy()
    two.loc[299, "plan"] = "gone"
    two.to_parquet(tmp_path / "c.parquet")
    found = table_diff(side(tmp_path / "a"), side(tmp_path / "c.parquet"))
    assert (found.changed, found.cells[0].after) == ({"plan": 1}, "gone")


@pytest.mark.parametrize(("before", "after", "counts"), [(0, 3, (0, 3)), (3, 0, (3, 0)), (0, 0, (0, 0))])
def test_tables_without_rows(diff: Diff, before: int, after: int, counts: tuple[int, int]) -> None:
    one = customers(3)
    found = diff(one[:before], one[:after], "parquet")
    assert (found.rows.removed, found.rows.added) == counts
    assert found.equal is (before == after)


def test_shifts_are_those_of_pandas_and_scipy(diff: Diff, monkeypatch: pytest.MonkeyPatch) -> None:
    from scipy.stats import ks_2samp

    monkeypatch.setattr(side_module, "CHUNK", 700)
    one, two = customers(3000, 1), customers(2500, 2)
    two["charge"] += 7
    two.loc[:50, "plan"] = "gold"
    two = two[two["plan"] != "pro"]
    shift = {one.column: one for one in diff(one, two, key=["customer_id"]).shift}
    for name in ("age", "charge", "active", "visits"):
        columns = (one[name], two[name])
        assert shift[name].missing == tuple(column.isna().mean() for column in columns)
        assert shift[name].mean == pytest.approx([column.astype(float).mean() for column in columns])
        assert shift[name].std == pytest.approx([column.astype(float).std() for column in columns])
        expected = ks_2samp(*(column.dropna().astype(float) for column in columns)).statistic
        assert shift[name].ks == pytest.approx(expected)
        assert not shift[name].sampled
    shares = (two["plan"].value_counts(normalize=True)).sub(
        one["plan"].value_counts(normalize=True), fill_value=0
    )
    largest = shift["plan"].largest
    assert largest is not None
    assert largest.category == shares.abs().idxmax()
    assert largest.after - largest.before == pytest.approx(shares[largest.category])
    assert (shift["plan"].new, shift["plan"].vanished) == (("gold",), ("pro",))


def test_long_columns_are_sampled(diff: Diff, monkeypatch: pytest.MonkeyPatch) -> None:
    from trainwright.datasets.tables.diff import shift as shift_module

    monkeypatch.setattr(shift_module, "_KEPT", 1000)
    monkeypatch.setattr(side_module, "CHUNK", 512)
    draw = np.random.default_rng(0)
    one = pd.DataFrame({"x": draw.normal(0, 1, 5000)})
    found = diff(one, one + 0.5, "parquet").shift[0]
    assert found.sampled
    assert found.ks == pytest.approx(0.197, abs=0.06)  # 2 * Phi(0.25) - 1
    assert found.mean == pytest.approx([one["x"].mean(), one["x"].mean() + 0.5])


def test_another_order_shifts_nothing(diff: Diff, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though sums in another order are rounded otherwise, and other rows are in the sample."""
    from trainwright.datasets.tables.diff import shift as shift_module

    monkeypatch.setattr(shift_module, "_KEPT", 100)
    one = customers(1000)
    two = one.sample(frac=1, random_state=2)
    two["age"] += 1
    shift = {one.column: one for one in diff(one, two).shift}
    for name in ("customer_id", "charge", "visits"):
        mean = shift[name].mean
        assert mean is not None
        assert mean[0] == mean[1]
        assert shift[name].ks == 0
    assert shift["age"].ks != 0
    assert shift["plan"].largest is None


def test_values_of_credentials_are_hidden(diff: Diff) -> None:
    one = pd.DataFrame(
        {"id": [1, 2], "api_key": ["abcdefgh1", "abcdefgh2"], "url": ["s3://u:secretpw@h", "x"]}
    )
    two = pd.DataFrame(
        {"id": [1, 2], "api_key": ["abcdefgh1", "ijklmnop3"], "url": ["s3://u:otherpwd@h", "x"]}
    )
    found = diff(one.assign(password=[1234567, 2]), two.assign(password=[7654321, 2]))
    assert found.changed == {"api_key": 1, "url": 1, "password": 1}
    text = json.dumps([vars(cell) for cell in found.cells]) + str(found.shift)
    assert "abcdefgh2" not in text
    assert "ijklmnop3" not in text
    assert "secretpw" not in str(found.cells)
    assert "1234567" not in text


def test_hashes_that_share_a_half_are_told_apart() -> None:
    """Two rows whose first 64 bits are equal, and others are not, are two rows."""
    first = np.array([[5, 5, 9], [1, 2, 3]], dtype=np.uint64)
    second = np.array([[9, 5, 5], [3, 2, 7]], dtype=np.uint64)
    found = match(Keyed(first), Keyed(second))
    assert {*zip(found.first.tolist(), found.second.tolist(), strict=True)} == {(1, 1), (2, 0)}
    assert (found.removed.tolist(), found.added.tolist()) == ([0], [2])
    keyed = match(*(Keyed(one, one, np.zeros(3, dtype=bool)) for one in (first, second)))
    assert {*zip(keyed.first.tolist(), keyed.second.tolist(), strict=True)} == {(1, 1), (2, 0)}


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (np.array([2**62 + 1]), np.array([2**62 + 1]).view(np.float64)),
        (np.array([1001], "datetime64[ns]"), np.array([1001], "datetime64[us]")),
        (np.array([0.0]), np.array([np.nan])),
        (np.array([0]), np.array([0], "datetime64[us]")),
        (np.array(["NaT"], "datetime64[ns]"), np.array([0], "datetime64[ns]")),
    ],
)
def test_values_with_the_same_bits_are_told_apart(one: Any, two: Any) -> None:
    """But for a hash, whose key is random, a cell and another one that has its bits would be the same."""
    hashes = Hashes(1)
    assert not canonical(one).equal(canonical(two)).any()
    assert (hashes.cells(canonical(one)) != hashes.cells(canonical(two))).all()


def test_zeros_are_equal(diff: Diff) -> None:
    one = pd.DataFrame({"x": [0.0, 1.5]})
    assert diff(one, pd.DataFrame({"x": [-0.0, 1.5]}), "parquet").equal
    assert diff(one, pd.DataFrame({"x": [np.nan, 1.5]}), "parquet").rows.removed == 1


def test_rows_whose_cells_changed_places_have_other_hashes() -> None:
    hashes = Hashes(2)
    columns = [hashes.cells(canonical(np.array(values))) for values in ([1, 2], [2, 1])]
    rows = hashes.in_column(columns[0], 0) + hashes.in_column(columns[1], 1)
    assert rows[0, 0] != rows[0, 1]
    assert rows[1, 0] != rows[1, 1]


def test_texts_and_missing_values_have_other_hashes() -> None:
    hashes = Hashes(1)
    texts = np.array(["None", None, "nan", "", "0", "\ud800"], dtype=object)
    assert len({*hashes.cells(canonical(texts))[0].tolist()}) == len(texts)


@pytest.mark.parametrize("seed", range(8))
def test_as_few_rows_as_possible_are_moved(seed: int) -> None:
    order = np.random.default_rng(seed).permutation(30)
    lengths: list[int] = []
    for i, value in enumerate(order):
        lengths.append(1 + max((lengths[j] for j in range(i) if order[j] < value), default=0))
    assert moved(order) == len(order) - max(lengths)
    assert moved(np.concatenate([np.arange(5), order + 5, [40, 41]])) == moved(order)
