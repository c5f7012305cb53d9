"""From raw columns to features."""

import datetime
import json
from typing import Any

import numpy as np
import pytest
from rows import config

from trainwright.datasets.tables.preparation import TabularPreparation, fit, from_json
from trainwright.datasets.tables.ranges import _KEPT, UnusualValues
from trainwright.datasets.tables.table import Table, as_table
from trainwright.datasets.tables.tabular import build
from trainwright.datasets.tables.target import Target
from trainwright.errors import DataError
from trainwright.types import FeatureForm


def fitted(rows: list[dict[str, Any]], **settings: Any) -> TabularPreparation:
    table = as_table(rows)
    return fit(table, list(table.columns), Target("y", "regression"), config(**settings))


def column(*values: Any) -> list[dict[str, Any]]:
    return [{"x": value} for value in values]


def test_numbers_are_standardized() -> None:
    features = fitted(column(1, 2, 3, 6)).features(column(3, 6))
    assert features.dtype == np.float32
    np.testing.assert_allclose(features[:, 0], [0, 3 / np.sqrt(3.5)], rtol=1e-6)


def test_or_left_alone() -> None:
    assert fitted(column(1, 2, 3), standardize=False).features(column(5)).tolist() == [[5]]


def test_a_constant_becomes_zero() -> None:
    assert fitted(column(0.1, 0.1, 0.1)).features(column(0.1, 1.1)).tolist() == [[0], [1]]


def test_the_sums_do_not_depend_on_the_processor() -> None:
    values = (np.arange(10_000) * 0.1).tolist()
    prepared = fitted(column(*values)).columns[0]
    total = 0.0
    for value in values:
        total += value
    rest = 0.0
    for value in values:
        rest += value - total / 10_000
    assert prepared.mean == total / 10_000 + rest / 10_000  # type: ignore[union-attr]


@pytest.mark.parametrize(("impute", "fill"), [("mean", 4.0), ("median", 2.0), ("most_frequent", 1.0)])
def test_numbers_are_filled(impute: str, fill: float) -> None:
    preparation = fitted(column(1.0, 1.0, 3.0, 11.0, None), impute=impute, standardize=False)
    assert preparation.features(column(None, 7)).tolist() == [[fill], [7]]


def test_categories() -> None:
    rows = column("b", "a", "b")
    assert fitted(rows).feature_names == ["x=a", "x=b"]
    assert fitted(rows).features(column("a", "b", "unseen")).tolist() == [[1, 0], [0, 1], [0, 0]]
    assert fitted(rows, encode="ordinal").features(column("a", "b", "unseen")).tolist() == [[0], [1], [-1]]
    assert fitted(rows, impute="mean").features(column(None)).tolist() == [[0, 1]]


def test_unseen_categories_are_counted_by_column() -> None:
    preparation = fitted([{"x": "a", "n": 1.0, "z": "p"}, {"x": "b", "n": 2.0, "z": "q"}], impute="mean")
    rows = [{"x": x, "n": 3.0, "z": "p"} for x in ("a", None, "c", "d", "c", "e", "f")]
    assert list(preparation.remarks(rows, []).values()) == [
        "column 'x': 5 rows have values that no training row has: 'c', 'd', 'e' and 1 more; taken as no "
        "category (all zeros)"
    ]
    assert preparation.remarks(rows[:2], []) == {}


@pytest.mark.parametrize(
    ("encode", "taken_as"),
    [
        ("ordinal", "-1"),
        ("category", "missing"),
        ("frequency", "categories without rows (frequency 0)"),
        ("target", "average categories (the mean target of all training rows)"),
    ],
)
def test_what_becomes_of_an_unseen_category_is_said(encode: str, taken_as: str) -> None:
    table = as_table([{"x": x, "y": 1.0} for x in "abc"])
    preparation = fit(table, ["x"], Target("y", "regression"), config(encode=encode))
    (line,) = preparation.remarks(column("a", "new"), []).values()
    assert line == f"column 'x': 1 row has a value that no training row has: 'new'; taken as {taken_as}"


@pytest.mark.parametrize(
    ("trained", "given", "says"),
    [
        (
            [1.0, 2.0],
            ["1", "2.5", None],
            "2 rows hold text where the training rows hold numbers; read as numbers",
        ),
        (["1", "2"], [1, 2.0, 1], "3 rows hold numbers where the training rows hold text; read as text"),
        (["True", "x"], [True], "1 row holds booleans where the training rows hold text; read as text"),
        ([datetime.date(2024, 1, 1)], ["2024-03-01"], None),  # as pandas reads a file
        ([1.0, 2.0], [True], None),
        (["1", "2"], [None, None], None),
        ([datetime.date(2024, 1, 1)], [None, float("nan")], None),
    ],
)
def test_types_that_changed_are_said(trained: list[Any], given: list[Any], says: str | None) -> None:
    preparation = fitted(column(*trained), impute="most_frequent")
    preparation.features(column(*given))
    assert preparation.remarks(column(*given), []) == (
        {} if says is None else {"type of x": f"column 'x': {says}"}
    )


def test_types_that_the_training_rows_had_too_are_not() -> None:
    rows = [{"price": f"${i % 9 + 1},000", "zip": i % 5, "y": float(i)} for i in range(60)]
    settings = config(target="y", columns={"zip": "category"})
    preparation = build({"train": as_table(rows)}, settings, FeatureForm()).preparation
    assert isinstance(preparation, TabularPreparation)
    again = from_json(json.loads(json.dumps(preparation.to_json())))
    assert again.remarks(rows[:3], ["y"]) == {}
    np.testing.assert_array_equal(again.features([{"price": 8000, "zip": "2"}]), again.features(rows[7:8]))
    assert again.remarks([{"price": 8000, "zip": "2"}], []) == {}
    assert list(again.remarks([{"price": "$7,000", "zip": True}], [])) == ["type of zip", "values of zip"]


def test_columns_without_use_are_said() -> None:
    rows = [{"x": 1.0, "y": 2, "note": "n", "id": 7}]
    assert list(fitted(column(1.0, 2.0)).remarks(rows, ["y"]).values()) == [
        "2 columns are not used by the model: 'note', 'id'"
    ]
    assert fitted(column(1.0, 2.0)).remarks(rows, ["y", "note", "id"]) == {}


def test_the_count_of_many_new_categories_is_kept_without_their_names() -> None:
    known = fitted([{"kind": "abc"[i % 3]} for i in range(30)])
    counts = UnusualValues({})
    for start in range(0, 3 * _KEPT, _KEPT):
        known.count_unusual([{"kind": f"new {start + i}"} for i in range(_KEPT)] + [{"kind": "more"}], counts)
    assert counts.to_json()["columns"]["kind"]["rows"] == counts.unseen == 3 * (_KEPT + 1)
    assert counts.to_json()["columns"]["kind"]["values"][:1] == ["new 0"]
    assert len(counts._categories["kind"]) <= _KEPT


def test_a_column_of_times_without_any_value_is_not_unusual() -> None:
    known = fitted([{"day": f"2024-01-{i + 1:02d}"} for i in range(20)], impute="median")
    counts = UnusualValues({"day": ["2024-01-01", "2024-01-20"]})
    known.count_unusual([{"day": None}], counts)
    assert (counts.rows, counts.outside) == (1, 0)


def test_missing_columns_are_named_at_once() -> None:
    rows = [dict.fromkeys(("height", "weight", "age", "size", "pulse"), 1.0)] * 2
    with pytest.raises(DataError, match="no column 'weight'; did you mean 'Weight'") as caught:
        fitted(rows).features([{"height": 1, "Weight": 2, "agee": 3, "size": 4, "pulse": 5}])
    assert "no column 'age'; did you mean 'agee'?" in str(caught.value)
    assert "accepts missing" not in str(caught.value)
    with pytest.raises(DataError, match=r"and 1 more$"):
        fitted(rows).features([{"pulse": 5}])
    with pytest.raises(DataError, match="accepts missing values: to use that, add it, and leave it empty"):
        fitted(rows, impute="median").features([dict.fromkeys(("height", "weight", "age", "size"), 1)])
    kept = fitted(rows, impute="keep").features([dict.fromkeys(rows[0])])
    assert np.isnan(kept).all()


def test_categories_given_as_numbers() -> None:
    rows = column("1", "2", "L")
    assert fitted(rows).features(column(1, 2.0)).tolist() == [[1, 0, 0], [0, 1, 0]]


def test_booleans() -> None:
    assert fitted(column(True, False)).features(column(True, False)).tolist() == [[1], [0]]
    assert fitted(column(True, True, False), impute="mean").features(column(None)).tolist() == [[1]]


def test_unfit_values_are_named_by_row_and_column() -> None:
    preparation = fitted(column(1.0, 2.0))
    with pytest.raises(DataError, match=r"column 'x' must hold numbers, but is 'two' in row 2"):
        preparation.features(column("1", "two"))
    with pytest.raises(
        DataError, match=r"column 'x' has no value in row 2; the model was trained without missing values"
    ):
        preparation.features(column(1, None))
    with pytest.raises(DataError, match=r"there is no column 'x'; there are: z"):
        preparation.features([{"z": 1}])
    with pytest.raises(DataError, match=r"'x' is infinite, or too large for float32, in row 1"):
        preparation.features(column(float("inf")))
    with pytest.raises(DataError, match=r"'x' holds dates, where the training rows hold numbers"):
        preparation.features(column(datetime.date(2024, 1, 1)))


def test_mixed_values_are_named() -> None:
    with pytest.raises(
        DataError, match=r"column 'x' holds a number \(1 in row 1\) and text \('a' in row 3\)"
    ):
        fitted(column(1, None, "a"))
    with pytest.raises(DataError, match=r"column 'x' holds list"):
        fitted(column([1], [2, 3]))


def test_extra_columns_may_hold_anything() -> None:
    assert fitted(column(1, 2)).features([{"x": 1.5, "z": [1]}, {"x": 1.5, "z": {}}]).tolist() == [[0], [0]]


def test_json_round_trip_is_exact() -> None:
    rows = [{"a": i / 7, "b": "uvw"[i % 3], "c": i % 2 == 0} for i in range(20)]
    preparation = fitted(rows, impute="median")
    again = from_json(json.loads(json.dumps(preparation.to_json())))
    assert again.to_json() == preparation.to_json()
    np.testing.assert_array_equal(again.features(rows), preparation.features(rows))


def test_another_version_is_refused() -> None:
    with pytest.raises(DataError, match="version 3"):
        from_json({"version": 3})


def test_targets() -> None:
    preparation = TabularPreparation([], Target("y", "classification", ["no", "yes"]))
    found = preparation.targets([{"y": "yes"}, {"y": "no"}])
    assert found is not None
    assert found.tolist() == [1, 0]
    assert preparation.targets([{"x": 1}]) is None
    with pytest.raises(
        DataError,
        match=r"the target 'y' is 'maybe' in row 2, a class without training rows; training knows no, yes",
    ):
        preparation.targets([{"y": "yes"}, {"y": "maybe"}])


@pytest.mark.parametrize(
    ("values", "classes", "codes"),
    [
        (np.array([3.0, 1.0]), [1, 3], [1, 0]),
        (np.array([True, False]), [False, True], [1, 0]),
        (np.array(["b", "a"], dtype=object), ["a", "b"], [1, 0]),
        (np.array([2, 1]), ["1", "2"], [1, 0]),
    ],
)
def test_labels_of_each_kind(values: Any, classes: list[Any], codes: list[int]) -> None:
    assert Target("y", "classification", classes).encode(Table({"y": values})).tolist() == codes


def test_data_frames() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(
        {
            "number": pandas.array([1, None, 3], dtype="Int64"),
            "category": pandas.Categorical(["a", None, "b"]),
            "flag": pandas.array([True, None, False], dtype="boolean"),
            "when": pandas.to_datetime(["2024-01-01", None, "2024-01-03"]).tz_localize("Europe/Rome"),
            5: [1, 2, 3],
        },
        index=[7, 8, 9],
    )
    kinds = {name: values.dtype.kind for name, values in as_table(frame).columns.items()}
    assert kinds == {"number": "f", "category": "O", "flag": "f", "when": "M", "5": "i"}
    assert str(as_table(frame).columns["when"][0]).startswith("2023-12-31T23:00")


def test_a_newer_kind_of_column_is_refused() -> None:
    columns = [{"kind": "hologram", "name": "x"}]
    with pytest.raises(
        DataError, match="columns of kind hologram; this version of Trainwright reads number, "
    ):
        from_json({"version": 2, "columns": columns, "target": Target("y", "regression").to_json()})


@pytest.mark.parametrize("frames", [False, True])
def test_targets_to_evaluate_may_be_what_the_framework_holds(frames: bool) -> None:
    """A model of float64 is trained on targets beyond float32, so it is evaluated on them, too."""
    rows = Table({"x": np.arange(40) * 1.5 % 7, "y": np.arange(40) * 1e39 % 7e39})
    bundle = build({"train": rows}, config(target="y"), FeatureForm("float64", frames, "float64"))
    assert bundle.preparation is not None
    targets = bundle.preparation.targets({"y": [3e39, 2.0**53]})
    assert targets is not None
    assert targets.tolist() == [3e39, 2.0**53]


def test_targets_that_a_framework_of_float32_cannot_hold_are_refused() -> None:
    preparation = fitted(column(1, 2, 3))
    with pytest.raises(DataError, match="too large for float32"):
        preparation.targets({"y": [3e39]})
    assert preparation.targets({"y": [2**24 + 1]}).tolist() == [2**24 + 1]  # type: ignore[union-attr]
