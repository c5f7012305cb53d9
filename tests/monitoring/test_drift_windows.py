"""Windows of served rows against the training rows: the false-alarm rate, and what is found and named."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from trainwright.errors import CheckpointError, DataError, InputError
from trainwright.monitoring.drift import Drift, DriftReport, compare
from trainwright.monitoring.reference import Reference
from trainwright.monitoring.sketches import Window

Columns = dict[str, np.ndarray]
Change = Callable[[Columns], Mapping[str, Any]]


def rows(count: int, draw: np.random.Generator) -> Columns:
    """Rows of ten columns of all kinds, of which some go together."""
    common = draw.normal(size=count)
    made = {f"n{i}": common / 2 + draw.normal(size=count) for i in range(4)}
    made["charge"] = draw.gamma(4, 17, count)
    made["visits"] = draw.poisson(2, count)
    made["flag"] = draw.random(count) < 0.1
    made["age"] = np.where(draw.random(count) < 0.02, np.nan, draw.normal(40, 12, count))
    made["plan"] = draw.choice(np.array(["basic", "plus", "pro"], object), count, p=[0.5, 0.3, 0.2])
    many = np.minimum(draw.zipf(1.6, count), 3000)
    made["city"] = np.array([f"c{value}" for value in many], object)
    return made


def predictions(made: Columns) -> dict[str, Any]:
    """The columns of predictions as `Predictor.table` gives them."""
    positive = 1 / (1 + np.exp(-made["n0"]))
    labels = np.where(positive > 0.5, "yes", "no").astype(object)
    return {"prediction": labels, "probability_no": 1 - positive, "probability_yes": positive}


@pytest.fixture(scope="module")
def reference() -> Reference:
    draw = np.random.default_rng(0)
    held_out = predictions(rows(800, draw))
    return Reference.of("run", rows(2000, draw), held_out, ["flag"], replicates=600)


def window(reference: Reference, made: Columns, outputs: Mapping[str, Any] | None = None) -> Window:
    counted = Window(reference)
    counted.add(made, predictions(made) if outputs is None else outputs, 0.01)
    return counted


def of(report: Drift, name: str) -> Any:
    return next(column for column in report.columns if column.name == name)


def test_the_false_alarm_rate_holds(reference: Reference) -> None:
    draw = np.random.default_rng(7)
    for size in (200, 2000):
        alarms = [compare(window(reference, rows(size, draw)), 0.05).verdict == "drift" for _ in range(60)]
        assert sum(alarms) <= 9  # 3 are expected; more than 9 have a probability of 0.1 %


def test_the_thresholds_are_those_of_the_seed() -> None:
    draw = np.random.default_rng(3)
    made = rows(300, draw)
    first, again = (Reference.of("r", made, {}, seed=5, replicates=100).to_json() for _ in range(2))
    assert first == again
    assert Reference.of("r", made, {}, seed=6, replicates=100).to_json() != first


def test_a_smaller_rate_has_higher_thresholds(reference: Reference) -> None:
    threshold = reference.thresholds.for_rows(700)
    scores = [threshold.score_at(rate) for rate in (0.5, 0.2, 0.05, 0.03, 0.01, 0.001)]
    assert scores == sorted(scores)
    for rate, score in zip(
        (0.2, 0.05, 0.01, 0.001), (scores[1], scores[2], scores[4], scores[5]), strict=True
    ):
        assert threshold.rate_at(score) == pytest.approx(rate)


@pytest.mark.parametrize("size", [200, 500])
def test_a_shift_of_one_standard_deviation_is_found(size: int, reference: Reference) -> None:
    draw = np.random.default_rng(11)
    for _ in range(10):
        made = rows(size, draw)
        made["n2"] = made["n2"] + np.sqrt(1.25)
        found = compare(window(reference, made))
        assert "n2" in [column.name for column in found.drifted]


def changed(name: str, values: Callable[[np.ndarray, np.random.Generator], Any]) -> Change:
    def change(made: Columns) -> Columns:
        return {**made, name: np.asarray(values(made[name], np.random.default_rng(5)))}

    return change


SOME = 0.12
CHANGES: dict[str, tuple[Change, str, str]] = {
    "unit": (
        changed("charge", lambda values, _: values * 100),
        "charge",
        "charge: 100 times larger: median 6,2",
    ),
    "smaller unit": (
        changed("charge", lambda values, _: values / 1000),
        "charge",
        "charge: 1,000 times smaller: median 0.06",
    ),
    "unseen": (
        changed("plan", lambda values, draw: np.where(draw.random(len(values)) < SOME, "platinum", values)),
        "plan",
        "% of rows hold 'platinum', which no training row has",
    ),
    "missing": (
        changed("age", lambda values, draw: np.where(draw.random(len(values)) < SOME, np.nan, values)),
        "age",
        "14% of rows have no value, against 2.1% in training",
    ),
    "share": (
        changed("plan", lambda values, draw: np.where(draw.random(len(values)) < 0.3, "pro", values)),
        "plan",
        "% of rows hold 'pro', against 2",
    ),
    "label": (changed("flag", lambda values, _: values[::-1] | (np.arange(len(values)) % 4 == 0)), "flag", "flag: "),
    "outside": (
        changed("charge", lambda values, _: np.where(np.arange(len(values)) < 30, 9999.0, values)),
        "charge",
        "are outside of",
    ),
    "infinite": (
        changed("charge", lambda values, _: np.where(np.arange(len(values)) < 30, np.inf, values)),
        "charge",
        "are outside of",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_named_by_its_column(name: str, reference: Reference) -> None:
    change, column, said = CHANGES[name]
    made = rows(1000, np.random.default_rng(21))
    found = compare(window(reference, dict(change(made)), predictions(made)))
    assert [one.name for one in found.drifted] == [column]
    (line,) = found.lines
    assert said in line, line


def test_a_shift_of_predictions_is_named(reference: Reference) -> None:
    made = rows(1000, np.random.default_rng(22))
    outputs = {**predictions(made), "prediction": np.full(1000, "yes", object)}
    found = compare(window(reference, made, outputs))
    assert [one.name for one in found.drifted] == ["prediction"]
    assert found.lines[0].startswith("prediction: 100% of rows hold 'yes', against ")
    assert of(found, "confidence").role == "output"


@pytest.mark.parametrize("dtype", [np.float64, np.int64])
def test_booleans_may_be_sent_as_numbers(reference: Reference, dtype: type) -> None:
    made = rows(500, np.random.default_rng(3))
    drifts = [
        compare(window(reference, {**made, "flag": made["flag"].astype(kind)})) for kind in (bool, dtype)
    ]
    assert drifts[0].to_json() == drifts[1].to_json() | {
        name: drifts[0].to_json()[name] for name in ("window",) if name in drifts[0].to_json()
    }
    assert of(drifts[1], "flag").score < 1


def test_times_make_no_verdict() -> None:
    start = np.datetime64("2024-01-01", "us")
    draw = np.random.default_rng(1)
    made = {"at": start + draw.integers(0, 10**12, 500), "x": draw.normal(size=500)}
    reference = Reference.of("r", made, {}, replicates=100)
    later = {"at": made["at"] + np.timedelta64(900, "D"), "x": made["x"]}
    found = compare(window(reference, later, {}))
    assert found.verdict == "no drift"
    assert of(found, "at").score > 1
    assert "at" in found.notes[1]


def test_windows_of_replicas_add_up(reference: Reference) -> None:
    draw = np.random.default_rng(31)
    parts = [rows(count, draw) for count in (64, 1500, 1, 400)]
    whole, merged = Window(reference), Window(reference)
    for part in parts:
        whole.add(part, predictions(part), 0.5, at=100.0)
        merged.merge(Window.from_json(json.loads(json.dumps(_one(reference, part).to_json())), reference))
    first, second = compare(whole).to_json(), compare(merged).to_json()
    assert first["rows"] == 1965
    for one, other in zip(first["columns"], second["columns"], strict=True):
        assert one["name"] == other["name"]
        assert one["score"] == pytest.approx(other["score"])
        assert one["statistics"] == other["statistics"]


def _one(reference: Reference, part: Columns) -> Window:
    counted = Window(reference)
    counted.add(part, predictions(part), 0.5, at=100.0)
    return counted


def test_the_reference_survives_json(reference: Reference) -> None:
    plain = json.loads(json.dumps(reference.to_json()))
    again = Reference.from_json(plain)
    made = rows(900, np.random.default_rng(41))
    first, second = (compare(window(one, made)) for one in (reference, again))
    assert again.id == reference.id
    assert [column.name for column in first.columns] == [column.name for column in second.columns]
    assert second.columns[0].score == pytest.approx(first.columns[0].score, rel=1e-3)
    with pytest.raises(CheckpointError, match="format"):
        Reference.from_json({**plain, "format": 99})
    with pytest.raises(CheckpointError, match="damaged"):
        Reference.from_json({**plain, "columns": [{}]})


HOSTILE: dict[str, Columns] = {
    "all missing": {"x": np.full(300, np.nan), "c": np.full(300, None, object)},
    "constant": {"x": np.full(300, 5.0), "c": np.full(300, "a", object)},
    "infinite": {"x": np.full(300, np.inf), "c": np.full(300, "a" * 10_000, object)},
    "huge": {"x": np.full(300, -1.7e308), "c": np.array([f"{i}" for i in range(300)], object)},
    "lone surrogates": {"x": np.zeros(300), "c": np.full(300, "\ud800", object)},
}


@pytest.mark.parametrize("trained", HOSTILE)
@pytest.mark.parametrize("served", HOSTILE)
def test_odd_columns_are_compared(trained: str, served: str) -> None:
    reference = Reference.of("r", HOSTILE[trained], {}, replicates=40)
    found = compare(window(reference, HOSTILE[served], {}))
    json.dumps(DriftReport("r", [found]).to_json(), allow_nan=False)
    if trained == served:
        assert found.verdict == "no drift"
    elif trained == "constant":
        assert found.verdict == "drift"


def test_an_empty_window_is_not_judged(reference: Reference) -> None:
    assert compare(Window(reference)).verdict == "too few rows"
    nothing = rows(0, np.random.default_rng(0))
    assert compare(window(reference, nothing, {})).verdict == "too few rows"
    few = rows(49, np.random.default_rng(0))
    few["charge"] = few["charge"] * 1000
    found = compare(window(reference, few))
    assert found.verdict == "too few rows"
    assert not found.drifted


def test_columns_of_other_rows_are_ignored(reference: Reference) -> None:
    made = rows(300, np.random.default_rng(2))
    del made["plan"]
    found = compare(window(reference, {**made, "other": np.arange(300)}, {}))
    names = {column.name for column in found.columns}
    assert not names & {"plan", "other", "prediction"}


def test_windows_of_other_runs_do_not_add_up(reference: Reference) -> None:
    other = Reference.of("r", {"x": np.arange(100.0)}, {}, replicates=20)
    with pytest.raises(DataError, match="other training rows"):
        Window(reference).merge(Window(other))
    with pytest.raises(DataError, match="other training rows"):
        Window.from_json(Window(other).to_json(), reference)


@pytest.mark.parametrize("rate", [0, -1, 0.9, float("nan")])
def test_a_rate_that_cannot_be_kept_is_refused(rate: float, reference: Reference) -> None:
    with pytest.raises(InputError, match="alarm rate"):
        compare(Window(reference), rate)


def test_a_window_is_bounded(reference: Reference) -> None:
    counted, draw = Window(reference), np.random.default_rng(3)
    for i in range(60):
        made = rows(500, draw)
        made["city"] = np.array([f"new{i}-{j}" for j in range(500)], object)
        made["n0"] = draw.normal(size=500) * 10.0 ** draw.integers(-200, 200, 500)
        counted.add(made, predictions(made), 0.01)
    assert len(json.dumps(counted.to_json())) < 300_000
    assert of(compare(counted), "city").statistics["unseen"][1] == 1
