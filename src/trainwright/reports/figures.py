"""Draw what tasks and the profile of the data describe: lines, errors, and distributions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup

from trainwright.numerals import number
from trainwright.reports import charts
from trainwright.reports.charts import axes, svg, text
from trainwright.reports.explanation_charts import KINDS, block, stroke
from trainwright.reports.rundir import Json
from trainwright.reports.scales import Scale, fitted

Section = dict[str, Any]

MAX_FIGURES = 8
_SIZE = (420.0, 250.0)
_LONGEST = 22  # letters of a category
_SERIES = {"train": "other", "val": "val", "test": "train"}  # the colors of the splits
_NAMES = {"train": "training", "val": "validation", "test": "test"}


def drawn(figure: Json) -> Section:
    """Return a figure of a task for the template: title, chart, caption, legend."""
    title, labels = str(figure["title"]), (str(figure["x"]), str(figure.get("y", "")))
    legend: list[tuple[Markup, str]] = []
    match figure["kind"]:
        case "lines":
            chart = lines(figure, title, labels)
            names = [str(line["name"]) for line in figure["lines"]]
            legend = [(Markup(stroke(kind)), name) for kind, name in zip(KINDS, names, strict=False)]
        case "scatter":
            chart = charts.errors(figure["xs"], figure["ys"], title, labels)
        case _:
            series = {str(one["name"]): one["counts"] for one in figure["series"]}
            chart = histogram(figure["edges"], series, title, labels[0])
    return {"title": title, "chart": Markup(chart), "caption": figure.get("caption", ""), "legend": legend}


def lines(figure: Json, title: str, labels: tuple[str, str]) -> str:
    """Draw lines over a common x axis, with the diagonal where the figure asks for it."""
    rows = [
        (str(line["name"]), np.array(line["x"], np.float64), np.array(line["y"], np.float64))
        for line in figure["lines"]
    ]
    width, height = _SIZE
    xs, ys = (np.concatenate([row[i] for row in rows] or [np.empty(0)]) for i in (1, 2))
    x_axis = fitted(np.append(xs, [0.0, 1.0]), 46.0, width - 12, pad=0.0)
    low, high = min(0.0, float(ys.min(initial=0.0))), max(1.0, float(ys.max(initial=0.0)))
    y_axis = Scale(low, high, height - 36, 8.0)
    parts = [*axes(x_axis, y_axis, *labels)]
    if figure.get("exact"):
        parts.append(
            f'<path class="exact" d="M{x_axis(0):.1f} {y_axis(0):.1f}L{x_axis(1):.1f} {y_axis(1):.1f}"/>'
        )
    for kind, (name, x, y) in zip(KINDS, rows, strict=False):
        parts += _line(kind, name, [(x_axis(a), y_axis(b), a, b) for a, b in zip(x, y, strict=True)])
        if figure.get("points"):
            points = "".join(f"M{x_axis(a):.1f} {y_axis(b):.1f}h0" for a, b in zip(x, y, strict=True))
            parts.append(f'<path class="dots {kind}" d="{points}"/>')
    plot = f' data-plot="46 {width - 12:g} 8 {height - 36:g}" data-x="{text(labels[0])}"'
    desc = f"{labels[1]} over {labels[0]}: {', '.join(name for name, _, _ in rows)}."
    return svg("lines told", _SIZE, (title, desc), parts, plot)


def _line(kind: str, name: str, points: Sequence[tuple[float, float, float, float]]) -> Iterator[str]:
    path = "L".join(f"{x:.1f} {y:.1f}" for x, y, _, _ in points)
    shown = ";".join(f"{x:.1f}|{a:.3g}|{number(float(b))}" for x, _, a, b in points)
    data = f'data-name="{text(name)}" data-points="{shown}"'
    yield f'<path class="line {kind}" d="M{path}" {data}/>'


def histogram(edges: Sequence[float], series: Mapping[str, Sequence[float]], title: str, label: str) -> str:
    """Draw counts as shares: the first series as bars, the others as outlines."""
    shares = {name: np.array(counts, np.float64) / max(1.0, sum(counts)) for name, counts in series.items()}
    width, height = _SIZE[0], 190.0
    x_axis = Scale(float(edges[0]), float(edges[-1]), 46.0, width - 12)
    most = max((float(share.max(initial=0.0)) for share in shares.values()), default=0.0)
    y_axis = Scale(0.0, most * 1.05 or 1.0, height - 36, 8.0)
    parts = [*axes(x_axis, y_axis, label, "share of rows")]
    for i, (name, share) in enumerate(shares.items()):
        draw = _bars if i == 0 else _outline
        parts.append(draw(_SERIES.get(name, "val"), edges, share, x_axis, y_axis))
    desc = "; ".join(f"{_NAMES.get(name, name)}: {number(int(sum(series[name])))}" for name in series)
    return svg("bars told", (width, height), (title, f"Shares of the rows. {desc}."), parts)


def _bars(kind: str, edges: Sequence[float], share: Any, x_axis: Scale, y_axis: Scale) -> str:
    path = "".join(
        f"M{x_axis(low) + 0.5:.1f} {y_axis.first:.1f}V{y_axis(value):.1f}H{x_axis(high) - 0.5:.1f}"
        f"V{y_axis.first:.1f}Z"
        for low, high, value in zip(edges[:-1], edges[1:], share, strict=True)
        if value
    )
    return f'<path class="bars {kind}" d="{path}"/>'


def _outline(kind: str, edges: Sequence[float], share: Any, x_axis: Scale, y_axis: Scale) -> str:
    steps = "".join(
        f"V{y_axis(value):.1f}H{x_axis(high):.1f}" for high, value in zip(edges[1:], share, strict=True)
    )
    return f'<path class="line {kind}" d="M{x_axis(edges[0]):.1f} {y_axis.first:.1f}{steps}"/>'


def distribution(described: Json) -> str:
    """Draw the distribution of a column in each split."""
    name, counts = str(described["name"]), described["counts"]
    title = f"Distribution of {name}"
    if "edges" in described:
        return histogram(described["edges"], counts, title, name)
    return _categories([str(one) for one in described["labels"]], counts, title)


def _categories(labels: Sequence[str], counts: Mapping[str, Sequence[float]], title: str) -> str:
    """Draw a row for each category, with the share of its rows in each split: a bar, and marks."""
    shares = {name: np.array(rows, np.float64) / max(1.0, sum(rows)) for name, rows in counts.items()}
    short = [label if len(label) <= _LONGEST else f"{label[: _LONGEST - 1]}…" for label in labels]
    left = 14 + 6.3 * max(map(len, short), default=1)
    width, bottom = _SIZE[0], 20.0 * len(labels) + 4
    most = max((float(share.max(initial=0.0)) for share in shares.values()), default=0.0)
    axis = Scale(0.0, most * 1.05 or 1.0, left, width - 12)
    parts = [
        f'<path class="grid" d="M{axis(value):.1f} 2V{bottom:.1f}"/>'
        f'<text class="tick" x="{axis(value):.1f}" y="{bottom + 15:.1f}" text-anchor="middle">{tick}</text>'
        for value, tick in axis.ticks(4)
    ]
    for row, label in enumerate(labels):
        y = 20.0 * row + 12
        parts.append(
            f'<text class="name" x="{left - 8:.1f}" y="{y + 4:.1f}" text-anchor="end">'
            f"<title>{text(label)}</title>{text(short[row])}</text>"
        )
        parts += [
            _share(i, _SERIES.get(name, "val"), y, axis, float(share[row]))
            for i, (name, share) in enumerate(shares.items())
        ]
    return svg("bars", (width, bottom + 22), (title, "Shares of the rows of each split."), parts)


def _share(position: int, kind: str, y: float, axis: Scale, value: float) -> str:
    x = axis(value)
    if position == 0:
        size = f'x="{axis.first:.1f}" y="{y - 6:.1f}" width="{x - axis.first:.1f}" height="12"'
        return f'<rect class="bars {kind}" {size}/>'
    return f'<path class="tick-mark {kind}" d="M{x:.1f} {y - 8:.1f}v16"/>'


def split_legend(splits: Sequence[str]) -> list[tuple[Markup, str]]:
    """Return how the splits are drawn, and their names: the first as bars, the others as lines."""
    return [
        (Markup((block if i == 0 else stroke)(_SERIES.get(name, "val"))), _NAMES.get(name, name))
        for i, name in enumerate(splits)
    ]
