"""The fast features of clean rows: the bits of the slow ones, and none where there is something to say."""

import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rows import config, csv_text, people

import trainwright
from trainwright.datasets.tables.clean_rows import CleanRows
from trainwright.datasets.tables.preparation import TabularPreparation, fit
from trainwright.datasets.tables.table import as_table
from trainwright.datasets.tables.target import Target
from trainwright.datasets.tables.typed import ColumnKind
from trainwright.errors import DataError

KINDS = {
    "height": ColumnKind("number"),
    "children": ColumnKind("number"),
    "city": ColumnKind("category"),
    "member": ColumnKind("boolean"),
}
NAMES = [*KINDS]
UNUSED = ["bought", "id"]
CLEAN: dict[str, list[Any]] = {
    "height": [170.5, -0.0, 5e-324, 1e30, 3, -(2**60) - 1, 2**70, True],
    "children": [0, 1, 2.5, False],
    "city": ["Rome", "Paris", "Oslo", np.str_("Rome")],
    "member": [True, False],
}
ABSENT = [None, float("nan")]
ODD = [
    float("inf"), 1e300, 10**400, "Rome", "Bern", "1.5", "NA", "", "true", True, 0, 1.0, np.float32(0.1), np.int64(3),
    np.True_, Decimal("1.5"), [1, 2], {"a": 1}, b"Rome", np.array(3.5), 1j,
]  # fmt: skip
MISSING_KEY = object()


def prepared(impute: str | None, encode: str, dtype: str, *, typed: bool = True) -> TabularPreparation:
    table = as_table(people())
    settings = config(impute=impute, encode=encode)
    target = Target("bought", "classification", ["no", "yes"])
    return fit(table, NAMES, target, settings, KINDS if typed else None, dtype)


def preparations() -> list[TabularPreparation]:
    ways = [
        (impute, encode)
        for impute in (None, "median", "keep")
        for encode in ("onehot", "ordinal", "category")
    ]
    ways += [("keep", "frequency"), (None, "target"), ("median", "target")]
    made = [prepared(impute, encode, dtype) for impute, encode in ways for dtype in ("float32", "float64")]
    return [*made, prepared("mean", "auto", "float32", typed=False)]


ALL = preparations()


@st.composite
def batches(draw: st.DrawFn) -> list[dict[Any, Any]]:
    """One to four rows; most of them clean."""
    rows = []
    for _ in range(draw(st.integers(1, 4))):
        row: dict[Any, Any] = {}
        for name in draw(st.permutations(NAMES)):
            cells = CLEAN[name] * 6 + ABSENT * 2 + ODD + [MISSING_KEY]
            if name in ("height", "children") and draw(st.booleans()):
                row[name] = draw(st.floats(width=64))
            elif (cell := draw(st.sampled_from(cells))) is not MISSING_KEY:
                row[name] = cell
        for extra in draw(st.lists(st.sampled_from(["bought", "id", "color", 5]), max_size=1)):
            row[extra] = "x"
        rows.append(row)
    return rows


def slow(preparation: TabularPreparation, rows: Any) -> tuple[Any, dict[str, str]]:
    """What rows become column by column, and what is remarked on them."""
    table = as_table(rows, only=set(preparation.column_names))
    return preparation.features(table), preparation.remarks(table, UNUSED)


@settings(max_examples=400)
@given(batches(), st.integers(0, len(ALL) - 1), st.booleans())
def test_fast_features_are_the_slow_ones(rows: list[dict[Any, Any]], number: int, knows_all: bool) -> None:
    preparation = ALL[number]
    fast = CleanRows.of(preparation, None if knows_all else UNUSED)
    assert fast is not None
    found = fast.features(rows)
    if found is None:
        return
    expected, remarks = slow(preparation, rows)
    assert {key for key in remarks if not (knows_all and key.startswith("columns "))} == set()
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    assert found.flags.c_contiguous
    assert found.tobytes() == expected.tobytes()


@pytest.mark.parametrize("preparation", ALL)
def test_clean_rows_take_the_fast_way(preparation: TabularPreparation) -> None:
    fast = CleanRows.of(preparation, UNUSED)
    assert fast is not None
    draw = random.Random(0)
    may_miss = preparation.columns[0].accepts_missing
    for count in (1, 3, 64):
        rows = [
            {name: draw.choice(cells + ([None] if may_miss else [])) for name, cells in CLEAN.items()}
            | {"id": 7}
            for _ in range(count)
        ]
        found = fast.features(rows)
        assert found is not None
        expected, remarks = slow(preparation, rows)
        assert (found.tobytes(), remarks) == (expected.tobytes(), {})


@pytest.mark.parametrize(
    "cells",
    [
        {"height": "170"},
        {"height": np.float64(170)},
        {"height": float("inf")},
        {"height": 1e300},
        {"height": 10**400},
        {"height": None},
        {"city": "Bern"},
        {"city": 3},
        {"city": None},
        {"member": 1},
        {"member": "true"},
        {"color": "red"},
    ],
)
def test_any_oddity_takes_the_slow_way(cells: dict[str, Any]) -> None:
    preparation = prepared(None, "onehot", "float32")
    fast = CleanRows.of(preparation, UNUSED)
    assert fast is not None
    row = people(1)[0]
    assert fast.features([row]) is not None
    assert fast.features([row, row | cells]) is None
    if "height" in cells and not isinstance(cells["height"], str | np.float64 | type(None)):
        with pytest.raises((DataError, OverflowError)):
            preparation.features([row, row | cells])


def test_rows_in_another_form_and_columns_of_other_kinds_have_no_fast_way() -> None:
    preparation = prepared("median", "onehot", "float32")
    fast = CleanRows.of(preparation, UNUSED)
    assert fast is not None
    rows = people(3)
    assert fast.features(as_table(rows)) is None
    assert fast.features(tuple(rows)) is None
    assert fast.features([]) is None
    assert fast.features([{name: value for name, value in rows[0].items() if name != "city"}]) is None
    kinds = KINDS | {"children": ColumnKind("number", missing=(-1,))}
    table, target = as_table(rows), Target("bought", "classification", ["no", "yes"])
    assert CleanRows.of(fit(table, NAMES, target, config(), kinds), UNUSED) is None
    texts = KINDS | {"city": ColumnKind("text")}
    assert CleanRows.of(fit(table, ["city"], target, config(), texts), UNUSED) is None


def test_a_model_gives_requests_the_bits_and_warnings_of_a_frame(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_config = {
        "experiment": {"name": "requests"},
        "data": {"type": "csv", "path": str(tmp_path / "rows.csv"), "target": "bought"},
        "model": {"type": "lightgbm", "params": {"num_leaves": 4}},
        "training": {"max_steps": 5, "threads": 1},
        "tracking": [],
    }
    (tmp_path / "rows.csv").write_text(csv_text(people()), encoding="utf-8")
    run = trainwright.train(run_config, runs_dir=tmp_path / "runs", quiet=True)
    model, rows = trainwright.load(run), people(20, seed=1)
    expected = model.outputs(pd.DataFrame(rows))
    with monkeypatch.context() as patch:
        patch.setattr(TabularPreparation, "features", None)  # the slow way
        assert model.outputs(rows).tobytes() == expected.tobytes()
        assert model.outputs(rows[:1]).tobytes() == expected[:1].tobytes()
    odd = [rows[0] | {"city": "Bern", "color": "red"}]
    assert model.outputs(odd).tobytes() == model.outputs(pd.DataFrame(odd)).tobytes()
    said = [record.message for record in caplog.records if record.name == "trainwright"]
    assert sum("'Bern'" in line for line in said) == sum("'color'" in line for line in said) == 1
    with pytest.raises(DataError, match="holds numbers, but 'tall' in row 1"):
        model.outputs([rows[0] | {"height": "tall"}])
