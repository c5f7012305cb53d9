"""What is odd about rows as they were written is said once, with the way to mend it."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from trainwright.config.schema import DataConfig
from trainwright.datasets.base import DataBundle
from trainwright.datasets.samples.objects import from_objects
from trainwright.datasets.tables.draft import draft_config

ROWS = 60


def frame(**columns: Any) -> pd.DataFrame:
    draw = np.random.default_rng(0)
    made = {"x": draw.normal(size=ROWS), "y": draw.normal(size=ROWS)}
    return pd.DataFrame({**made, **columns})


def warnings(data: Any, target: str = "y", **config: Any) -> str:
    bundle: DataBundle = from_objects(data, DataConfig(target=target, **config))
    return "\n".join(bundle.warnings)


def repeated(*texts: str) -> list[str]:
    return [texts[i % len(texts)] for i in range(ROWS)]


def test_categories_in_several_spellings_are_named_with_the_way_to_mend_it() -> None:
    said = warnings(frame(answer=repeated("ja", "Ja", "JA ", "nein", "vielleicht")))
    assert said.count("column 'answer' holds categories that differ only in case or spaces") == 1
    assert "'ja', 'Ja', 'JA '" in said
    mended = "rows['answer'].str.strip().str.lower()"
    assert mended in said
    rows = frame(answer=repeated("ja", "Ja", "JA ", "nein", "vielleicht"))
    rows["answer"] = eval(mended)
    assert "case or spaces" not in warnings(rows)


def test_classes_in_several_spellings_are_named() -> None:
    assert "column 'y' holds categories" in warnings(frame(y=repeated("yes", "Yes", "perhaps", "no")))


@pytest.mark.parametrize("texts", [("ja", "Ja", "nein"), ("a", "b", "c"), ("1", "2", "3 ")])
def test_other_columns_are_not(texts: tuple[str, ...]) -> None:
    """Of yes and no in any spelling, and of numbers in text, a column of booleans or numbers is made."""
    assert "case or spaces" not in warnings(frame(answer=repeated(*texts)))


def with_sums(word: str = "Total", **last: Any) -> pd.DataFrame:
    rows = frame(region=repeated("north", "south", "west"), sales=np.arange(ROWS) % 7 + 1.5)
    rows.loc[ROWS] = {"x": 0.3, "y": 0.1, "region": word, "sales": rows["sales"].sum(), **last}
    return rows


@pytest.mark.parametrize("word", ["Total", "TOTAL:", "Summe", "Grand total "])
def test_a_row_of_sums_at_the_end_is_named(word: str, tmp_path: Path) -> None:
    with_sums(word).to_csv(tmp_path / "rows.csv", index=False)
    said = warnings(with_sums(word))
    assert (
        f"the last row is called {word!r} (column 'region') and holds the sum of the rows above ('sales')"
        in said
    )
    assert any("is called" in line for line in draft_config(tmp_path / "rows.csv", "y").remarks)


@pytest.mark.parametrize(
    "rows",
    [
        with_sums(sales=3.0),  # no sum
        with_sums("north"),  # a category like others
        with_sums("Total").iloc[::-1],
        pd.concat([with_sums(), with_sums().tail(1)]),  # a category `Total` that other rows have
        frame(region=repeated("Total", "north"), sales=np.zeros(ROWS)),
    ],
)
def test_other_last_rows_are_not(rows: pd.DataFrame) -> None:
    assert "the last row" not in warnings(rows)


def test_an_index_in_two_orders_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    rows = frame()
    x, y = rows[["x"]], rows["y"]
    for features in (x, x.astype(float).assign(more=1.5)):
        said = warnings((features, y.iloc[::-1]))
        assert said.count("X and y have the same index in two orders") == 1
        assert "y.loc[X.index]" in said
    several = pd.DataFrame({"a": y, "b": y}).iloc[::-1]
    assert "the train rows: X and y have the same index in two orders" in warnings((x, several), "target")
    with caplog.at_level(logging.WARNING):
        for other in (
            y,
            y.to_numpy()[::-1],
            y.iloc[::-1].reset_index(drop=True),
            y.set_axis(range(5, ROWS + 5)),
        ):
            assert "two orders" not in warnings((x, other))
