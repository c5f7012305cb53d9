"""Charts of studies as inline SVG, like those of `charts`: values with their spread, and their cost."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from trainwright.numerals import number
from trainwright.reports.charts import text
from trainwright.reports.scales import Scale, fitted, spread

_ROW = 34.0
_CHARACTER = 7.2  # width of a letter


@dataclass(frozen=True)
class Spread:
    """A row of a dot plot: single values, their mean, and the ends of a whisker (NaN: none)."""

    label: str
    values: Sequence[float]
    mean: float
    low: float = math.nan
    high: float = math.nan
    kind: str = "val"


@dataclass(frozen=True)
class Point:
    """A named point; `kind` is its CSS class."""

    label: str
    x: float
    y: float
    kind: str = "val"


def dot_plot(rows: Sequence[Spread], title: str, x_label: str, width: float = 440) -> str:
    """Draw rows of small dots for the values, a large dot for the mean, and a whisker around it."""
    left = 16 + _CHARACTER * max((len(row.label) for row in rows), default=1)
    right, bottom = width - 76, 10 + _ROW * len(rows)
    shown = [value for row in rows for value in (*row.values, row.mean, row.low, row.high)]
    axis = fitted(np.asarray(shown, np.float64), left, right)
    parts = list(_x_axis(axis, 6.0, bottom, x_label))
    for index, row in enumerate(rows):
        parts += _dots(row, axis, 10 + _ROW * (index + 0.5), (left, right))
    desc = "; ".join(f"{row.label}: {number(row.mean)}{_whisker_words(row)}" for row in rows)
    return _svg("spread", (width, bottom + 40), title, desc, parts)


def _whisker_words(row: Spread) -> str:
    return f" ({number(row.low)} to {number(row.high)})" if math.isfinite(row.low + row.high) else ""


def _dots(row: Spread, axis: Scale, y: float, ends: tuple[float, float]) -> Iterator[str]:
    left, right = ends
    yield _label(row.label, left - 10, y + 4, "end")
    if math.isfinite(row.low + row.high):
        low, high = axis(row.low), axis(row.high)
        ends_of = f"M{low:.1f} {y - 5:.1f}v10M{high:.1f} {y - 5:.1f}v10"
        yield f'<path class="line {row.kind}" d="M{low:.1f} {y:.1f}H{high:.1f}{ends_of}"/>'
    dots = "".join(f"M{axis(value):.1f} {y:.1f}h0" for value in row.values if math.isfinite(value))
    yield f'<path class="points" d="{dots}"/>'
    if math.isfinite(row.mean):
        yield f'<circle class="mean {row.kind}" cx="{axis(row.mean):.1f}" cy="{y:.1f}" r="6"/>'
    yield f'<text class="value" x="{right + 8:.1f}" y="{y + 4:.1f}">{number(row.mean)}</text>'


def trade_off(points: Sequence[Point], title: str, labels: tuple[str, str]) -> str:
    """Draw named points on a logarithmic horizontal axis; `labels` are those of the axes (x, y)."""
    width = 440.0
    left, right, top, bottom = 62.0, width - 105, 12.0, 260.0
    real = [point for point in points if point.x > 0 and math.isfinite(point.x) and math.isfinite(point.y)]
    x_axis = fitted(np.array([point.x for point in real], np.float64), left, right, log=bool(real), pad=0.08)
    y_axis = fitted(np.array([point.y for point in real], np.float64), bottom, top, pad=0.1)
    parts = [*_x_axis(x_axis, top, bottom, labels[0]), *_y_axis(y_axis, left, right, labels[1])]
    heights = spread([y_axis(point.y) for point in real], 14, top + 4, bottom - 4)
    for point, height in zip(real, heights, strict=True):
        x, y = x_axis(point.x), y_axis(point.y)
        parts.append(f'<circle class="mean {point.kind}" cx="{x:.1f}" cy="{y:.1f}" r="6"/>')
        is_left = x + 11 + _CHARACTER * len(point.label) > width  # it would not end within the chart
        place = f'x="{x - 11:.1f}" text-anchor="end"' if is_left else f'x="{x + 11:.1f}"'
        parts.append(f'<text class="end" {place} y="{height + 4:.1f}">{text(point.label)}</text>')
    desc = "; ".join(
        f"{point.label}: {labels[0]} {number(point.x)}, {labels[1]} {number(point.y)}" for point in real
    )
    return _svg("trade", (width, bottom + 40), title, desc, parts)


def point_plot(
    points: Sequence[Point],
    title: str,
    labels: tuple[str, str],
    *,
    log: bool = False,
    best: Sequence[float] = (),
    width: float = 420,
) -> str:
    """Draw small points without names; `best`, if given, is the best value up to each of them, as a line."""
    left, right, top, bottom = 62.0, width - 10, 8.0, 190.0 if width < 500 else 260.0
    real = [point for point in points if math.isfinite(point.x) and math.isfinite(point.y)]
    x_axis = fitted(np.array([point.x for point in real], np.float64), left, right, log=log and bool(real))
    if not log and all(point.x.is_integer() for point in real):
        x_axis = replace(x_axis, whole=True)
    y_axis = fitted(np.array([point.y for point in real], np.float64), bottom, top, pad=0.1)
    parts = [*_x_axis(x_axis, top, bottom, labels[0]), *_y_axis(y_axis, left, right, labels[1])]
    shown = [(point.x, y) for point, y in zip(points, best, strict=False) if math.isfinite(y)]
    if shown:
        steps = "".join(f"H{x_axis(x):.1f}V{y_axis(y):.1f}" for x, y in shown)
        start = f"M{x_axis(shown[0][0]):.1f} {y_axis(shown[0][1]):.1f}"
        parts.append(f'<path class="line val" d="{start}{steps}"/>')
    parts += [
        f'<circle class="mean {point.kind}" cx="{x_axis(point.x):.1f}" cy="{y_axis(point.y):.1f}" r="3.5">'
        f"<title>{text(point.label)}</title></circle>"
        for point in real
    ]
    ends = [min(real, key=lambda point: point.y), max(real, key=lambda point: point.y)] if real else []
    desc = f"{len(real)} points" + "".join(
        f"; {labels[1]} {number(end.y)} at {number(end.x)}" for end in ends
    )
    return _svg("trade", (width, bottom + 40), title, desc, parts)


def _x_axis(axis: Scale, top: float, bottom: float, label: str) -> Iterator[str]:
    for value, tick in axis.ticks(6):
        x = axis(value)
        yield f'<path class="grid" d="M{x:.1f} {top:.1f}V{bottom:.1f}"/>'
        yield f'<text class="tick" x="{x:.1f}" y="{bottom + 17:.1f}" text-anchor="middle">{tick}</text>'
    yield f'<path class="axis" d="M{axis.first:.1f} {bottom:.1f}H{axis.last:.1f}"/>'
    middle = (axis.first + axis.last) / 2
    yield _label(label, middle, bottom + 33, "middle")


def _y_axis(axis: Scale, left: float, right: float, label: str) -> Iterator[str]:
    for value, tick in axis.ticks(5):
        y = axis(value)
        yield f'<path class="grid" d="M{left:.1f} {y:.1f}H{right:.1f}"/>'
        yield f'<text class="tick" x="{left - 8:.1f}" y="{y + 4:.1f}" text-anchor="end">{tick}</text>'
    y = (axis.first + axis.last) / 2
    turned = f'text-anchor="middle" transform="rotate(-90 11 {y:.1f})"'
    yield f'<text class="label" x="11" y="{y:.1f}" {turned}>{text(label)}</text>'


def _label(label: str, x: float, y: float, anchor: str) -> str:
    return f'<text class="label" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{text(label)}</text>'


def _svg(kind: str, size: tuple[float, float], title: str, desc: str, parts: Sequence[str]) -> str:
    return (
        f'<svg class="chart {kind}" viewBox="0 0 {size[0]:g} {size[1]:g}" role="img">'
        f"<title>{text(title)}</title><desc>{text(desc or 'no values')}.</desc>{''.join(parts)}</svg>"
    )
