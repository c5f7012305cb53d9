"""The page of a model in use: its windows beside the training rows, from the document that `/drift` gives."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from trainwright.errors import InputError
from trainwright.numerals import number
from trainwright.reports.charts import Line, LineChart, line_chart, svg, text
from trainwright.reports.curves import single_points
from trainwright.reports.scales import fitted
from trainwright.reports.templates import script, style, template, write_page

Json = Mapping[str, Any]
_CHARTED = 12  # columns with a picture of their distributions
_CURVES = 4  # columns in the chart of scores
_CATEGORIES = 6
_LINES = (1, 2, 4, 5, 6, 8, 9)  # of the quantiles of a document: 1, 5, 25, 50, 75, 95, 99%
_WIDTH, _NAMES = 420.0, 118.0
_SHOWN = 18  # characters of a category
_TITLES = {"drift": "The rows have drifted", "no drift": "No drift", "too few rows": "Too few rows to judge"}


def write_drift(document: Json, path: Path) -> Path:
    """Write the page of a document (`/drift`, `drift --json`) to a file, and return its path.

    Raises:
        InputError: The document is not one of drift.
        OSError: The file cannot be written.
    """
    windows = document.get("windows", [document])
    try:
        if not windows:
            raise KeyError("windows")
        page = _rendered(windows)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise InputError(
            f"this is no document of drift ({type(error).__name__}: {error}); /drift of a service gives one, "
            "and so does `trainwright drift --json`"
        ) from error
    write_page(path, page)
    return path


def _rendered(windows: Sequence[Json]) -> str:
    last = windows[-1]
    columns = sorted(last["columns"], key=lambda one: (not one["decides"], -float(one["score"])))
    latency = last["window"]["latency"]
    return template("drift.html.j2").render(
        style=style(),
        script=script(),
        run=str(last["run"]),
        rows=f"{last['rows']:,}",
        window=_span(last["window"]),
        count=len(windows),
        alarms=sum(one["verdict"] == "drift" for one in windows),
        rate=f"{100 * last['alarm_rate']:.3g}%",
        training=f"{last['training_rows']:,}",
        held_out=f"{last['held_out']:,}" if last["held_out"] else "",
        verdict=str(last["verdict"]),
        title=_TITLES[last["verdict"]],
        lines=[str(line) for line in last["lines"]],
        notes=[str(note) for note in last["notes"]],
        latency=[(name, _seconds(value)) for name, value in latency.items() if value is not None],
        table=[_row(one) for one in columns],
        over_time=[Markup(chart) for chart in _over_time(windows, columns)],
        pictures=[
            (one["name"], one["line"], Markup(_picture(one)), one["drifted"]) for one in _charted(columns)
        ],
        made=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
    )  # fmt: skip


def _span(window: Json) -> str:
    if window["start"] is None:
        return ""
    start, end = (datetime.fromtimestamp(float(window[name]), UTC) for name in ("start", "end"))
    return f"{start:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M} UTC"


def _seconds(value: object) -> str:
    seconds = float(str(value))
    return f"{number(1000 * seconds)} ms" if seconds < 1 else f"{number(seconds)} s"


def _row(one: Json) -> dict[str, Any]:
    found = one["statistics"]
    shape, named = (found["chi2"], "chi²") if one["kind"] == "category" else (found["ks"], "KS")
    return {
        "name": str(one["name"]),
        "role": "" if one["role"] == "input" else str(one["role"]),
        "kind": str(one["kind"]),
        "drifted": bool(one["drifted"]),
        "score": number(float(one["score"]), zeros=False),
        "p": number(float(one["p"]), zeros=False),
        "shape": "" if shape is None else f"{number(float(shape))} {named}",
        "psi": number(float(found["psi"])),
        "js": number(float(found["js"])),
        "missing": f"{100 * float(found['missing'][1]):.2g}%",
    }  # fmt: skip


def _over_time(windows: Sequence[Json], columns: Sequence[Json]) -> Iterator[str]:
    """Yield charts over several windows: the scores of the columns that drift most, and the latency."""
    if len(windows) < 2:
        return
    x = np.arange(1, len(windows) + 1)
    scores = {
        one["name"]: np.array([_of(window, one["name"]) for window in windows])
        for one in columns
        if one["decides"]
    }
    most = sorted(scores, key=lambda name: -np.nanmax(np.append(scores[name], 0)))[:_CURVES]
    kinds = ("val", "train", "other", "fourth")
    lines = [
        Line(name, single_points(x, scores[name]), kind) for name, kind in zip(most, kinds, strict=False)
    ]
    lines.append(Line("threshold", single_points(x, np.ones(len(x))), "exact"))
    yield line_chart(
        LineChart("Score of columns, as a multiple of the threshold", lines, x_label="window", log=None)
    )
    known = {name: np.array([_latency(window, name) for window in windows]) for name in ("p50", "p99")}
    if np.isfinite(known["p50"]).any():
        curves = [
            Line(name, single_points(x, known[name] * 1000), kind)
            for name, kind in (("p50", "val"), ("p99", "train"))
        ]
        yield line_chart(LineChart("Latency in ms", curves, x_label="window", log=None))


def _of(window: Json, name: str) -> float:
    return next((float(one["score"]) for one in window["columns"] if one["name"] == name), math.nan)


def _latency(window: Json, name: str) -> float:
    value = window["window"]["latency"][name]
    return math.nan if value is None else float(value)


def _charted(columns: Sequence[Json]) -> Sequence[Json]:
    has = [one for one in columns if one["before"].get("quantiles") or one["before"].get("categories")]
    return [one for one in has if one["after"].get("quantiles") or one["after"].get("categories")][:_CHARTED]


def _picture(one: Json) -> str:
    if one["kind"] == "category":
        return _shares(one)
    return _boxes(one)


def _boxes(one: Json) -> str:
    """Draw the quantiles of both sides: whiskers from 1 to 99%, a box of the middle half, the median."""
    both = [np.array([float(value) for value in one[side]["quantiles"]]) for side in ("before", "after")]
    shown = np.concatenate([values[list(_LINES)] for values in both])
    positive = bool((shown > 0).all() and shown.max() / shown.min() > 50)
    axis = fitted(shown, _NAMES - 40, _WIDTH - 12, log=positive)
    parts = []
    for row, (values, kind) in enumerate(zip(both, ("other", "val"), strict=True)):
        y = 20.0 + 34 * row
        low, _, left, middle, right, _, high = (axis(float(value)) for value in values[list(_LINES)])
        name = ("training" if one["role"] != "output" else "held out", "window")[row]
        parts += [
            f'<text class="tick" x="0" y="{y + 4:.1f}">{name}</text>',
            f'<path class="whisker" d="M{low:.1f} {y:.1f}H{high:.1f}"/>',
            f'<rect class="mark {kind}" fill-opacity=".45" x="{left:.1f}" y="{y - 9:.1f}" '
            f'width="{max(1.0, right - left):.1f}" height="18"/>',
            f'<path class="whisker" stroke-width="2.5" d="M{middle:.1f} {y - 9:.1f}v18"/>',
        ]
    for value, label in axis.ticks(5 if one["kind"] != "time" else 3):
        if one["kind"] == "time":
            label = f"{datetime.fromtimestamp(value, UTC):%Y-%m-%d}"  # noqa: PLW2901
        parts.append(f'<path class="axis" d="M{axis(value):.1f} 74v4"/>')
        parts.append(f'<text class="tick" x="{axis(value):.1f}" y="91" text-anchor="middle">{label}</text>')
    parts.append(f'<path class="axis" d="M{axis.first:.1f} 74H{axis.last:.1f}"/>')
    return svg("boxes", (_WIDTH, 96), (str(one["name"]), str(one["line"])), parts)


def _shares(one: Json) -> str:
    """Draw the shares of categories on both sides, and those of unseen ones."""
    before, after = dict(one["before"]["categories"]), dict(one["after"]["categories"])
    after |= {name: share for name, share in one["after"].get("unseen", {}).items() if name not in before}
    names = sorted(after, key=lambda name: -max(before.get(name, 0), after[name]))[:_CATEGORIES]
    largest = max([*before.values(), *after.values(), 1e-9])
    reach, parts = _WIDTH - _NAMES - 60, list[str]()
    for row, name in enumerate(names):
        y = 12.0 + 32 * row
        short = name if len(name) <= _SHOWN else f"{name[: _SHOWN - 1]}…"
        parts.append(
            f'<text class="name" x="0" y="{y + 12:.1f}"><title>{text(name)}</title>{text(short)}</text>'
        )
        for i, (side, kind) in enumerate(((before, "other"), (after, "val"))):
            share = float(side.get(name, 0.0))
            width, top = max(0.5, reach * share / largest), y + 12 * i
            parts.append(
                f'<rect class="mark {kind}" x="{_NAMES:.1f}" y="{top:.1f}" width="{width:.1f}" height="10"/>'
                f'<text class="value" x="{_NAMES + width + 5:.1f}" y="{top + 9:.1f}">'
                f"{100 * share:.3g}%</text>"
            )
    height = 12 + 32 * len(names)
    return svg("shares", (_WIDTH, height), (str(one["name"]), str(one["line"])), parts)
