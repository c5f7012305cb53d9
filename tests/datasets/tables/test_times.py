"""From dates and times to features."""

import datetime
import json
from typing import Any

import numpy as np
import pandas as pd
import pytest
from rows import config

from trainwright.datasets.tables.preparation import TabularPreparation, fit, from_json
from trainwright.datasets.tables.table import as_table, iso_times
from trainwright.datasets.tables.target import Target
from trainwright.datasets.tables.times import read_format, read_period
from trainwright.errors import DataError


def fitted(rows: Any, **settings: Any) -> TabularPreparation:
    table = as_table(rows)
    return fit(table, list(table.columns), Target("y", "regression"), config(**settings))


def column(*values: Any) -> list[dict[str, Any]]:
    return [{"x": value} for value in values]


@pytest.fixture(scope="module")
def times() -> pd.Series:
    """Times before and after 1970, leap days and ends of years among them."""
    seconds = np.random.default_rng(0).integers(-(10**9), 2 * 10**9, 300)
    ends = pd.to_datetime(["1969-12-31T23:59", "2024-02-29T00:00", "2023-12-31T12:30", "2000-01-01T00:00"])
    return pd.Series([*ends, *pd.to_datetime(seconds, unit="s")]).astype("datetime64[ns]")


def test_the_parts_are_those_of_pandas(times: pd.Series) -> None:
    preparation = fitted(pd.DataFrame({"x": times}), standardize=False)
    features = dict(
        zip(preparation.feature_names, preparation.features(pd.DataFrame({"x": times})).T, strict=True)
    )
    expected = {
        "x.days": (times - pd.Timestamp(0)) / pd.Timedelta(days=1),
        **{f"x.{part}": getattr(times.dt, part) for part in ("year", "month", "day", "weekday", "hour")},
        "x.minute": times.dt.minute,
    }
    assert list(features) == list(expected)
    for name, values in expected.items():
        np.testing.assert_array_equal(features[name], values.to_numpy(dtype=np.float32), err_msg=name)


def test_standardized_parts_have_cycles(times: pd.Series) -> None:
    frame = pd.DataFrame({"x": times})
    preparation = fitted(frame)
    features = dict(zip(preparation.feature_names, preparation.features(frame).T, strict=True))
    assert list(features)[7:9] == ["x.month_sin", "x.month_cos"]
    assert len(features) == 7 + 2 * 5
    for part in ("days", "year", "weekday"):
        values = features[f"x.{part}"].astype(np.float64)
        assert abs(values.mean()) < 1e-4
        assert abs(values.std() - 1) < 1e-4
    angle = 2 * np.pi * times.dt.hour.to_numpy() / 24
    np.testing.assert_allclose(features["x.hour_sin"], np.sin(angle), atol=1e-6)
    np.testing.assert_allclose(features["x.hour_cos"], np.cos(angle), atol=1e-6)
    december = 2 * np.pi * (times.dt.month.to_numpy() - 1) / 12
    np.testing.assert_allclose(features["x.month_sin"], np.sin(december), atol=1e-6)


def test_parts_that_never_vary_are_left_out() -> None:
    days = column(datetime.date(2024, 1, 1), datetime.date(2024, 1, 9))
    preparation = fitted(days, standardize=False)
    assert preparation.feature_names == ["x.days", "x.day", "x.weekday"]
    assert fitted(days[:1]).feature_names == ["x.days"]
    assert fitted(days[:1]).features(days).tolist() == [[0], [8]]


@pytest.mark.parametrize(
    ("impute", "fill"),
    [("mean", "2024-01-05"), ("median", "2024-01-02"), ("most_frequent", "2024-01-02")],
)
def test_missing_times_are_filled(impute: str, fill: str) -> None:
    present = [datetime.datetime(2024, 1, day) for day in (2, 2, 11)]
    preparation = fitted(column(*present, None), impute=impute)
    again = from_json(json.loads(json.dumps(preparation.to_json())))
    filled = preparation.features(column(datetime.datetime.fromisoformat(fill)))
    np.testing.assert_array_equal(again.features(column(None, present[0]))[:1], filled)


def test_or_stay_missing() -> None:
    day = datetime.date(2024, 1, 1)
    preparation = fitted(column(day, datetime.date(2024, 3, 2), None), impute="keep")
    features = preparation.features(column(None, day))
    assert np.isnan(features[0]).all()
    assert np.isfinite(features[1]).all()
    with pytest.raises(DataError, match="column 'x' has no value in row 1"):
        fitted(column(day)).features(column(None, day))


def test_text_that_holds_times_is_read() -> None:
    preparation = fitted(column(datetime.datetime(2024, 1, 1), datetime.datetime(2024, 3, 2, 12)))
    texts = column("2024-01-01", "2024-03-02T13:00+01:00")
    expected = preparation.features(column(datetime.date(2024, 1, 1), datetime.datetime(2024, 3, 2, 12)))
    np.testing.assert_array_equal(preparation.features(texts), expected)
    with pytest.raises(
        DataError, match=r"'x' must hold dates, but is '1/2/24' in row 2; write them like 2026"
    ):
        preparation.features(column("2024-01-01", "1/2/24"))
    with pytest.raises(DataError, match=r"'x' holds numbers, where the training rows hold dates"):
        preparation.features(column(3))


def test_json_round_trip_is_exact(times: pd.Series) -> None:
    frame = pd.DataFrame({"x": times})
    for settings in ({}, {"impute": "keep", "standardize": False}):
        preparation = fitted(frame, **settings)
        again = from_json(json.loads(json.dumps(preparation.to_json())))
        assert again.to_json() == preparation.to_json()
        np.testing.assert_array_equal(again.features(frame), preparation.features(frame))


def test_zones_at_the_edges_of_the_calendar() -> None:
    texts = ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-12:00"]
    expected = ["0001-01-01T00:00:00", "9999-12-31T23:59:59"]
    assert iso_times(np.array(texts, dtype=object)).astype("datetime64[s]").astype(str).tolist() == expected
    assert [str(read_format(text, "%Y-%m-%dT%H:%M:%S%z")) for text in texts] == [
        text.replace("T", " ") for text in expected
    ]
    zone = datetime.timezone(datetime.timedelta(hours=14))
    table = as_table([{"t": datetime.datetime(1, 1, 1, tzinfo=zone)}])
    assert str(table.columns["t"][0]).startswith("0001-01-01")


@pytest.mark.parametrize(
    ("freq", "forms"),
    [("Q", ("{y} Q{q}", "{y}Q{q}", "Q{q} {y}", "{y}-q{q}")), ("M", ("%Y %b", "%B-%Y", "%Y-%m"))],
)
def test_periods_begin_as_those_of_pandas(freq: str, forms: tuple[str, ...]) -> None:
    for period in pd.period_range("1969-01-01", "2031-12-31", freq=freq):
        for form in forms:
            text = period.strftime(form).format(y=period.year, q=period.quarter)
            assert read_period(text) == period.start_time.to_pydatetime(), text


def test_weeks_begin_as_in_the_calendar_of_iso_8601() -> None:
    assert read_period("2020 W53") == datetime.datetime(2020, 12, 28)
    assert read_period("2021-W1") == datetime.datetime(2021, 1, 4)


@pytest.mark.parametrize("text", ["2020 Q5", "2020-13", "2020 Mark", "2021 W53", "May", "2020", "1234-56"])
def test_what_is_no_period(text: str) -> None:
    assert read_period(text) is None
