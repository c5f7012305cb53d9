"""Charts of a search, as inline SVG: parallel coordinates, a contour, a timeline, curves, a Pareto front."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from trainwright.reports.charts import axes, svg, text
from trainwright.reports.curves import Floats
from trainwright.reports.scales import LOG_FROM, Scale, duration, fitted

_WIDTH = 720.0
_COLUMNS, _ROWS = 30, 20  # cells of a contour
_REACH = 0.12  # of a trial in a contour: a share of each axis
_LANE = 22.0  # height of a worker in the timeline
_CRISP = 'shape-rendering="crispEdges"'  # no seams between cells
_LETTERS = 18  # of a name on an axis


class Axis(NamedTuple):
    """An axis: for each trial the share of its length (NaN: none), and its ticks as (share, text)."""

    name: str
    shares: Floats
    ticks: Sequence[tuple[float, str]]


class Span(NamedTuple):
    """A piece of a worker's work: seconds since the epoch, a CSS class, and words."""

    begin: float
    end: float
    kind: str
    words: str


def axis(name: str, values: Sequence[Any]) -> Axis:
    """Return the axis of a parameter: numbers on a scale, anything else evenly spaced, in order."""
    real = [value for value in values if value is not None]
    if real and all(isinstance(value, int | float) and not isinstance(value, bool) for value in real):
        numbers = np.array([math.nan if value is None else float(value) for value in values])
        finite = numbers[np.isfinite(numbers)]
        if len(finite):
            log = finite.min() > 0 and finite.max() / finite.min() > LOG_FROM
            scale = fitted(finite, 0.0, 1.0, log=bool(log))
            shares = [scale(value) if math.isfinite(value) else math.nan for value in numbers]
            return Axis(name, np.array(shares), [(scale(at), label) for at, label in scale.ticks(4)])
    names = sorted({str(value) for value in real}, key=natural)
    at = {label: (index + 0.5) / len(names) for index, label in enumerate(names)}
    shares = [math.nan if value is None else at[str(value)] for value in values]
    return Axis(name, np.array(shares), [(share, _short(label)) for label, share in at.items()])


def natural(label: str) -> list[tuple[float, str]]:
    """Return a key that sorts texts as people do: by the numbers in them, `[8]` before `[64, 32]`."""
    pieces = re.split(r"(\d+(?:\.\d+)?)", label)
    return [(float(piece), "") if i % 2 else (-1.0, piece) for i, piece in enumerate(pieces)]


def _short(label: str) -> str:
    return label if len(label) <= _LETTERS else f"{label[: _LETTERS - 1]}…"


def parallel(columns: Sequence[Axis], ranks: Floats, labels: Sequence[str], title: str) -> str:
    """Draw a line for each trial over upright axes, the better ones stronger and on top.

    Args:
        columns: The axes, from left to right.
        ranks: (trials,) From 0, the best, to 1.
        labels: What each line says.
        title: The title.
    """
    top, bottom, left, right = 30.0, 270.0, 48.0, _WIDTH - 60
    xs = np.linspace(left, right, len(columns))
    parts = []
    for trial in np.argsort(-ranks, kind="stable"):
        heights = [bottom - (bottom - top) * column.shares[trial] for column in columns]
        path = _broken(xs, heights)
        if path:
            kind = "val" if ranks[trial] <= 0.1 else "other"
            faint = 1.0 if kind == "val" else 0.5 - 0.38 * float(ranks[trial])
            words = f"<title>{text(labels[trial])}</title>"
            parts.append(f'<path class="line {kind}" opacity="{faint:.2f}" d="{path}">{words}</path>')
    for x, column in zip(xs, columns, strict=True):
        parts.append(f'<path class="axis" d="M{x:.1f} {top:.1f}V{bottom:.1f}"/>')
        parts.append(_words(_short(column.name), x, top - 12, "middle", "end"))
        for share, label in column.ticks:
            parts.append(_words(label, x + 5, bottom - (bottom - top) * share + 4, "start", "tick"))
    desc = (
        f"{len(ranks)} trials over {', '.join(column.name for column in columns)}; the best tenth is strong."
    )
    return svg("parallel", (_WIDTH, bottom + 14), (title, desc), parts)


def _broken(xs: Floats, heights: Sequence[float]) -> str:
    """Return the path of a line with gaps where a trial has no value."""
    path, pen = "", False
    for x, y in zip(xs, heights, strict=True):
        if math.isfinite(y):
            path += f"{'L' if pen else 'M'}{x:.1f} {y:.1f}"
        pen = math.isfinite(y)
    return path


def _words(words: str, x: float, y: float, anchor: str, kind: str) -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{text(words)}</text>'


def contour(first: Axis, second: Axis, goodness: Floats, labels: Sequence[str], title: str) -> str:
    """Draw how good trials are over two parameters: a smooth field of shades, and a dot for each trial.

    Args:
        first: The horizontal axis.
        second: The upright one.
        goodness: (trials,) From 0, the worst, to 1.
        labels: What each dot says.
        title: The title.
    """
    width = 480.0
    left, right, top, bottom = 96.0, width - 12, 10.0, 300.0
    known = np.isfinite(first.shares) & np.isfinite(second.shares) & np.isfinite(goodness)
    x, y, good = first.shares[known], second.shares[known], goodness[known]
    field = _field(x, y, good)
    wide, high = (right - left) / _COLUMNS, (bottom - top) / _ROWS
    parts = [
        f'<rect class="hit" fill-opacity="{0.04 + 0.7 * shade:.2f}" x="{left + i * wide:.1f}" '
        f'y="{bottom - (j + 1) * high:.1f}" width="{wide:.1f}" height="{high:.1f}" {_CRISP}/>'
        for (j, i), shade in np.ndenumerate(field)
    ]
    named = [label for label, is_known in zip(labels, known, strict=True) if is_known]
    parts += [
        f'<circle class="spot" cx="{left + (right - left) * a:.1f}" cy="{bottom - (bottom - top) * b:.1f}" '
        f'r="3"><title>{text(words)}</title></circle>'
        for a, b, words in zip(x, y, named, strict=True)
    ]
    for share, label in first.ticks:
        parts.append(_words(label, left + (right - left) * share, bottom + 17, "middle", "tick"))
    for share, label in second.ticks:
        parts.append(_words(label, left - 7, bottom - (bottom - top) * share + 4, "end", "tick"))
    parts.append(_words(first.name, (left + right) / 2, bottom + 34, "middle", "label"))
    middle = (top + bottom) / 2
    parts.append(
        f'<text class="label" x="11" y="{middle:.1f}" text-anchor="middle" '
        f'transform="rotate(-90 11 {middle:.1f})">{text(second.name)}</text>'
    )
    desc = f"{len(x)} trials over {first.name} and {second.name}; dark is good."
    return svg("contour", (width, bottom + 42), (title, desc), parts)


def _field(x: Floats, y: Floats, good: Floats) -> Floats:
    """Return the mean goodness around each cell (rows, columns), near trials weighing more."""
    column, row = (np.arange(_COLUMNS) + 0.5) / _COLUMNS, (np.arange(_ROWS) + 0.5) / _ROWS
    across = (column[None, :, None] - x) ** 2 + (row[:, None, None] - y) ** 2  # (rows, columns, trials)
    nearest = across.min(axis=2, keepdims=True) if len(x) else across
    weight = np.exp(-(across - nearest) / (2 * _REACH**2))
    return np.asarray((weight * good).sum(axis=2) / np.maximum(weight.sum(axis=2), 1e-12))


def lanes(spans: Sequence[Span]) -> list[list[Span]]:
    """Put spans into as few lanes as they need, so that those of a lane do not overlap."""
    rows: list[list[Span]] = []
    for span in sorted(spans):
        row = next((row for row in rows if row[-1].end <= span.begin), None)
        if row is None:
            rows.append([span])
        else:
            row.append(span)
    return rows


def idle_share(spans: Sequence[Span]) -> float:
    """Return the share of the workers' time in which they trained nothing; pauses of the study left out.

    A pause is a time in which nothing was trained that is longer than the longest span.
    """
    if not spans:
        return 0.0
    longest = max(span.end - span.begin for span in spans)
    total, reached = 0.0, -math.inf
    for span in sorted(spans):
        gap = span.begin - reached
        if 0 < gap <= longest:
            total += gap
        total += max(0.0, span.end - max(span.begin, reached))
        reached = max(reached, span.end)
    busy = sum(span.end - span.begin for span in spans)
    return max(0.0, 1 - busy / (total * len(lanes(spans)))) if total > 0 else 0.0


def timeline(spans: Sequence[Span], title: str) -> str:
    """Draw when each worker trained which trial."""
    rows = lanes(spans)
    left, right, top = 66.0, _WIDTH - 14, 8.0
    bottom = top + _LANE * len(rows)
    begin, end = min(span.begin for span in spans), max(span.end for span in spans)
    scale = Scale(0.0, max(end - begin, 1e-9), left, right)
    parts = []
    for index, row in enumerate(rows):
        y = top + _LANE * index
        parts.append(_words(f"worker {index + 1}", left - 8, y + 15, "end", "tick"))
        parts += [
            f'<rect class="bar-{span.kind}" x="{scale(span.begin - begin):.1f}" y="{y + 3:.1f}" '
            f'width="{max(1.0, scale(span.end - begin) - scale(span.begin - begin) - 0.6):.1f}" '
            f'height="{_LANE - 6:.1f}"><title>{text(span.words)}</title></rect>'
            for span in row
        ]
    parts += _time_axis(scale, bottom)
    desc = f"{len(spans)} trials by {len(rows)} workers in {duration(end - begin)}."
    return svg("timeline", (_WIDTH, bottom + 26), (title, desc), parts)


def _time_axis(scale: Scale, bottom: float) -> Iterator[str]:
    unit, name = next(
        (u, n) for u, n in ((3600, "h"), (60, "min"), (1, "s")) if scale.high >= 2 * u or u == 1
    )
    own = Scale(0.0, scale.high / unit, scale.first, scale.last)
    yield f'<path class="axis" d="M{scale.first:.1f} {bottom:.1f}H{scale.last:.1f}"/>'
    for value, label in own.ticks(8):
        yield f'<path class="axis" d="M{own(value):.1f} {bottom:.1f}v4"/>'
        yield _words(f"{label} {name}", own(value), bottom + 18, "middle", "tick")


class Curve(NamedTuple):
    """A learning curve, and whether its trial was pruned, is the best one, or neither (`other`)."""

    points: Sequence[tuple[int, float]]
    kind: str
    words: str


def learning_curves(curves: Sequence[Curve], title: str, name: str) -> str:
    """Draw the metric of trials over the steps: the best one strong, a cross where one was pruned."""
    left, right, top, bottom = 62.0, _WIDTH - 14, 10.0, 290.0
    steps = np.array([step for curve in curves for step, _ in curve.points], np.float64)
    values = np.array([value for curve in curves for _, value in curve.points], np.float64)
    real = values[np.isfinite(values)]
    low, high = np.quantile(real, [0.0, 0.97]) if len(real) else (0.0, 1.0)
    if len(real) and np.median(real) > (real.min() + real.max()) / 2:  # higher is usual: the rare is below
        low, high = np.quantile(real, [0.03, 1.0])
    log = len(real) > 0 and low > 0 and high / low > LOG_FROM
    y_axis = fitted(np.array([low, high]), bottom, top, log=bool(log))
    x_axis = fitted(steps, left, right, pad=0.02)
    parts = [*axes(x_axis, y_axis, "step", name)]
    for curve in sorted(curves, key=lambda one: one.kind == "best"):
        heights = [y_axis(value) if math.isfinite(value) else math.nan for _, value in curve.points]
        xs = np.array([x_axis(step) for step, _ in curve.points])
        kind, words = "val" if curve.kind == "best" else "other", f"<title>{text(curve.words)}</title>"
        faint = "1" if curve.kind == "best" else ".45"
        parts.append(f'<path class="line {kind}" opacity="{faint}" d="{_broken(xs, heights)}">{words}</path>')
        if curve.kind == "pruned" and math.isfinite(heights[-1]):
            x, y = xs[-1], heights[-1]
            cross = f"M{x - 3:.1f} {y - 3:.1f}l6 6m0-6l-6 6"
            parts.append(f'<path class="line train" d="{cross}">{words}</path>')
    pruned = sum(curve.kind == "pruned" for curve in curves)
    desc = f"{len(curves)} trials, {pruned} of them pruned."
    return svg("lines", (_WIDTH, bottom + 38), (title, desc), parts)


class Candidate(NamedTuple):
    """A trial by two metrics; `kind` is `front`, `other`, or `broken` for one that breaks a constraint."""

    x: float
    y: float
    kind: str
    words: str


def front_plot(points: Sequence[Candidate], labels: tuple[str, str], title: str) -> str:
    """Draw trials by two metrics, with a line along the Pareto front."""
    left, right, top, bottom = 70.0, _WIDTH - 90, 10.0, 330.0
    x_axis = _log_or_not([point.x for point in points], left, right)
    y_axis = _log_or_not([point.y for point in points], bottom, top)
    parts = [*axes(x_axis, y_axis, labels[0], labels[1])]
    front = sorted((point for point in points if point.kind == "front"), key=lambda point: point.x)
    path = "L".join(f"{x_axis(point.x):.1f} {y_axis(point.y):.1f}" for point in front)
    if len(front) > 1:
        parts.append(f'<path class="line val" d="M{path}"/>')
    for point in sorted(points, key=lambda one: one.kind == "front"):
        x, y, size = x_axis(point.x), y_axis(point.y), 5 if point.kind == "front" else 3.5
        kind = {"front": "val", "broken": "broken"}.get(point.kind, "other")
        words = f"<title>{text(point.words)}</title>"
        parts.append(f'<circle class="mean {kind}" cx="{x:.1f}" cy="{y:.1f}" r="{size}">{words}</circle>')
    ends = "; ".join(point.words for point in front[:20])
    return svg("front", (_WIDTH, bottom + 38), (title, f"The front: {ends or 'no trial'}."), parts)


def _log_or_not(values: Sequence[float], first: float, last: float) -> Scale:
    real = np.array([value for value in values if math.isfinite(value)])
    log = len(real) > 0 and real.min() > 0 and real.max() / real.min() > LOG_FROM
    return fitted(real, first, last, log=bool(log), pad=0.08)


def shade_of(values: Floats, mode: str) -> tuple[Floats, Floats]:
    """Return ranks (0: the best, 1: the worst) and goodness (1: the best) of values, both (trials,)."""
    signed = values if mode == "min" else -values
    order = np.argsort(np.argsort(signed, kind="stable"), kind="stable")
    ranks = order / max(1, len(values) - 1)
    return ranks, 1 - ranks
