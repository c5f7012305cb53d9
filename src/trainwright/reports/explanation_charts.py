"""Charts of an explanation as inline SVG, like those of `charts`: bars, swarms of points, dependence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from trainwright.numerals import number
from trainwright.reports.charts import axes, svg, text
from trainwright.reports.curves import Floats
from trainwright.reports.scales import Scale, fitted, spread

SHADES = 5  # of the points of a swarm, from low to high values of the column
WIDTH, ROW, FOOT = 440.0, 22.0, 36.0
_LETTER = 6.3  # pixels, of the page's small print
_LONGEST = 24  # letters of a name
# The kinds of outputs, each with a color and a shape of its own.
_MARKS = {
    "val": "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0Z",  # a disc
    "train": "M-3.5-3.5H3.5V3.5H-3.5Z",  # a square
    "other": "M0-5L5 0 0 5-5 0Z",  # a diamond
    "fourth": "M0-5L4.5 3.5H-4.5Z",  # a triangle
}
KINDS = tuple(_MARKS)


class Bar(NamedTuple):
    """A value with its name, and how far it varies to both sides."""

    name: str
    value: float
    error: float = 0.0


class Dots(NamedTuple):
    """The points of one row of a swarm, both (points,): values, and shades from 0 to 1 (NaN: none)."""

    name: str
    values: Floats
    shades: Floats
    correlation: float | None = None


class Curve(NamedTuple):
    """A mean with a band around it, all (grid,)."""

    mean: Floats
    low: Floats
    high: Floats


@dataclass(frozen=True)
class Dependence:
    """The dependence of outputs on a column: `grid` holds numbers, ascending, or the names of categories."""

    name: str
    grid: Sequence[float | str]
    category: bool
    curves: Sequence[Curve]
    outputs: Sequence[str]


class _Rows(NamedTuple):
    """The frame of a chart with a row for each name: the name, values along x, and a remark."""

    names: Sequence[str]
    axis: Scale
    remarks: Sequence[str]

    @property
    def bottom(self) -> float:
        """The y of the x axis."""
        return ROW * len(self.names) + 4

    def middle(self, row: int) -> float:
        """Return the y of the middle of a row."""
        return ROW * (row + 0.5) + 2

    def drawn(self, label: str) -> Iterator[str]:
        """Draw the frame; `label` is that of the x axis."""
        for value, written in self.axis.ticks(4):
            x = self.axis(value)
            yield f'<path class="grid" d="M{x:.1f} 2V{self.bottom:.1f}"/>'
            y = self.bottom + 15
            yield f'<text class="tick" x="{x:.1f}" y="{y:.1f}" text-anchor="middle">{written}</text>'
        if self.axis.low < 0 < self.axis.high:
            yield f'<path class="zero" d="M{self.axis(0):.1f} 2V{self.bottom:.1f}"/>'
        for row, (name, remark) in enumerate(zip(self.names, self.remarks, strict=True)):
            y = self.middle(row) + 4
            words = f"<title>{text(name)}</title>{text(_short(name))}"
            x = self.axis.first - 8
            yield f'<text class="name" x="{x:.1f}" y="{y:.1f}" text-anchor="end">{words}</text>'
            yield f'<text class="value" x="{WIDTH:g}" y="{y:.1f}" text-anchor="end">{text(remark)}</text>'
        x, y = (self.axis.first + self.axis.last) / 2, self.bottom + 31
        yield f'<text class="label" x="{x:.1f}" y="{y:.1f}" text-anchor="middle">{text(label)}</text>'

    def chart(self, kind: str, texts: tuple[str, str], label: str, parts: Sequence[str]) -> str:
        """Draw the frame with its content; `texts` are the chart's title and description."""
        return svg(kind, (WIDTH, self.bottom + FOOT), texts, [*self.drawn(label), *parts])


def _rows(names: Sequence[str], values: Floats, remarks: Sequence[str], *, zero: bool) -> _Rows:
    """Return the frame for finite values; with `zero`, 0 is always on the axis."""
    left = 12 + _LETTER * max((min(len(name), _LONGEST) for name in names), default=1)
    right = WIDTH - 14 - _LETTER * max((len(remark) for remark in remarks), default=1)
    axis = fitted(np.append(values, 0.0) if zero else values, left, right, pad=0.02)
    if zero:  # no margin on the side of zero, where all bars begin
        axis = Scale(
            min(0.0, float(values.min(initial=0.0))),
            max(0.0, float(values.max(initial=0.0))) or axis.high,
            left,
            right,
        )
    return _Rows(names, axis, remarks)


def _short(name: str, longest: int = _LONGEST) -> str:
    return name if len(name) <= longest else f"{name[: longest - 1]}…"


def bars(entries: Sequence[Bar], title: str, label: str) -> str:
    """Draw a bar for each value that is finite, with a whisker for its error."""
    rows = [bar for bar in entries if np.isfinite([bar.value, bar.error]).all()]
    ends = np.array([[bar.value - bar.error, bar.value + bar.error] for bar in rows]).reshape(-1)
    are_counts = all(bar.value >= 0 and float(bar.value).is_integer() for bar in rows)
    remarks = [number(int(bar.value) if are_counts else bar.value) for bar in rows]
    frame = _rows([bar.name for bar in rows], ends, remarks, zero=True)
    parts = [part for row, bar in enumerate(rows) for part in _bar(bar, frame, row)]
    desc = "; ".join(f"{bar.name} {number(bar.value)}" for bar in rows[:10])
    return frame.chart("bars", (title, f"{label}: {desc or 'no values'}."), label, parts)


def _bar(bar: Bar, frame: _Rows, row: int) -> Iterator[str]:
    y, (start, end) = frame.middle(row), sorted((frame.axis(0.0), frame.axis(bar.value)))
    error = f" ± {number(bar.error)}" if bar.error else ""
    yield f"<g><title>{text(bar.name)}: {number(bar.value)}{error}</title>"
    width = max(0.5, end - start)
    yield f'<rect class="weight" x="{start:.1f}" y="{y - 6:.1f}" width="{width:.1f}" height="12"/>'
    if bar.error:
        low, high = frame.axis(bar.value - bar.error), frame.axis(bar.value + bar.error)
        ends = f"M{low:.1f} {y - 3:.1f}v6M{high:.1f} {y - 3:.1f}v6"
        yield f'<path class="whisker" d="M{low:.1f} {y:.1f}H{high:.1f}{ends}"/>'
    yield "</g>"


def swarm(rows: Sequence[Dots], title: str, label: str) -> str:
    """Draw points in a row for each name, moved apart where they are dense."""
    values = np.concatenate([row.values for row in rows] or [np.empty(0)])
    remarks = ["" if row.correlation is None else f"{row.correlation:+.2f}".replace("-", "−") for row in rows]
    frame = _rows([row.name for row in rows], values[np.isfinite(values)], remarks, zero=False)
    parts = [part for index, row in enumerate(rows) for part in _dots(row, frame, index)]
    desc = "; ".join(f"{row.name}: {_direction(row.correlation)}" for row in rows[:10])
    return frame.chart("swarm", (title, f"{label}. {desc}."), label, parts)


def _direction(correlation: float | None) -> str:
    if correlation is None or abs(correlation) < 0.3:
        return "no one direction"
    return f"high values {'raise' if correlation > 0 else 'lower'} it (rank correlation {correlation:.2f})"


def _dots(row: Dots, frame: _Rows, index: int) -> Iterator[str]:
    real = np.isfinite(row.values)
    x = np.array([frame.axis(value) for value in row.values[real]])
    y = frame.middle(index) + _apart(x)
    shade = np.nan_to_num(np.minimum(row.shades[real] * SHADES, SHADES - 1), nan=-1).astype(np.int64)
    yield f"<g><title>{text(row.name)}: {_direction(row.correlation)}</title>"
    for value in range(-1, SHADES):
        if (chosen := shade == value).any():
            dots = "".join(f"M{a:.1f} {b:.1f}h0" for a, b in zip(x[chosen], y[chosen], strict=True))
            yield f'<path class="dot{"" if value < 0 else f" s{value}"}" d="{dots}"/>'
    yield "</g>"


def _apart(x: Floats) -> Floats:
    """Return how far to move points up or down in turn, so that points with the same x form a column."""
    moved = np.zeros(len(x))
    for cell in np.unique(cells := np.round(x / 3)):
        inside = np.flatnonzero(cells == cell)
        order = np.arange(len(inside))
        step = min(3.0, (ROW - 6) / max(1, len(inside)))
        moved[inside] = np.where(order % 2, 1, -1) * ((order + 1) // 2) * step
    return moved


def dependence(shown: Dependence, span: tuple[float, float], label: str) -> str:
    """Draw curves over a number, or points for categories.

    The axis of the outputs, which `label` names, shows at least `span`.
    """
    ranges = [
        f"{name}: from {number(float(curve.mean.min()))} to {number(float(curve.mean.max()))}"
        for name, curve in zip(shown.outputs, shown.curves, strict=True)
    ]
    words = (f"Partial dependence on {shown.name}", f"{'; '.join(ranges)}.")
    return (_categories if shown.category else _numbers)(shown, span, words, label)


def _numbers(shown: Dependence, span: tuple[float, float], texts: tuple[str, str], label: str) -> str:
    several = len(shown.curves) > 1
    grid = np.array(shown.grid, np.float64)
    left, right, top, bottom = 58.0, WIDTH - (90 if several else 12), 6.0, 184.0
    x_axis, y_axis = fitted(grid, left, right, pad=0.0), fitted(np.array(span), bottom, top)
    rug = "".join(f"M{x_axis(x):.1f} {bottom:.1f}v-6" for x in grid)
    parts = [*axes(x_axis, y_axis, shown.name, label), f'<path class="rug" d="{rug}"/>']
    for kind, name, curve in zip(KINDS, shown.outputs, shown.curves, strict=False):
        if not several:
            parts.append(f'<path class="band {kind}" d="M{_points(grid, curve.high, x_axis, y_axis)}')
            parts[-1] += f'L{_points(grid[::-1], curve.low[::-1], x_axis, y_axis)}Z"/>'
        data = ";".join(
            f"{x_axis(x):.1f}|{x:.6g}|{number(float(y))}" for x, y in zip(grid, curve.mean, strict=True)
        )
        path = _points(grid, curve.mean, x_axis, y_axis)
        parts.append(f'<path class="line {kind}" d="M{path}" data-name="{text(name)}" data-points="{data}"/>')
    if several:
        heights = spread([y_axis(float(curve.mean[-1])) for curve in shown.curves], 15, top + 4, bottom - 4)
        for kind, name, y in zip(KINDS, shown.outputs, heights, strict=False):
            end, x = text(_short(name, 13)), right + 7
            parts.append(f'<text class="end {kind}" x="{x:.1f}" y="{y + 4:.1f}">{end}</text>')
    extra = f' data-plot="{left:g} {right:g} {top:g} {bottom:g}" data-x="{text(shown.name)}"'
    return svg("lines", (WIDTH, bottom + FOOT), texts, parts, extra)


def _points(x: Floats, y: Floats, x_axis: Scale, y_axis: Scale) -> str:
    return "L".join(f"{x_axis(a):.1f} {y_axis(b):.1f}" for a, b in zip(x, y, strict=True))


def _categories(shown: Dependence, span: tuple[float, float], texts: tuple[str, str], label: str) -> str:
    single = len(shown.curves) == 1
    remarks = [number(float(value)) if single else "" for value in shown.curves[0].mean]
    frame = _rows([str(name) for name in shown.grid], np.array(span), remarks, zero=False)
    parts = []
    for kind, name, curve in zip(KINDS, shown.outputs, shown.curves, strict=False):
        for row, value in enumerate(curve.mean):
            x, y = frame.axis(float(value)), frame.middle(row)
            if single:
                low, high = frame.axis(float(curve.low[row])), frame.axis(float(curve.high[row]))
                parts.append(f'<path class="reach {kind}" d="M{low:.1f} {y:.1f}H{high:.1f}"/>')
            words = f"<title>{text(name)} {number(float(value))}</title>"
            moved = f'transform="translate({x:.1f} {y:.1f})"'
            parts.append(f'<path class="mark {kind}" d="{_MARKS[kind]}" {moved}>{words}</path>')
    return frame.chart("categories", texts, label, parts)


def mark(kind: str) -> str:
    """Return the shape of a kind of output by itself, for a legend."""
    return _alone("symbol", f'<path class="mark {kind}" d="{_MARKS[kind]}"/>')


def stroke(kind: str) -> str:
    """Return a piece of the line of a kind of output by itself, for a legend."""
    return _alone("symbol told", f'<path class="line {kind}" d="M-11 0H11"/>', width=22)


def block(kind: str) -> str:
    """Return a piece of a bar by itself, for a legend."""
    return _alone("symbol", f'<path class="bars {kind}" d="M-6-5H6V5H-6Z"/>')


def shade(level: int) -> str:
    """Return a point of a swarm by itself, for a legend."""
    return _alone("symbol", f'<path class="dot s{level}" d="M0 0h0"/>')


def _alone(kind: str, shape: str, width: int = 14) -> str:
    box = f'viewBox="{-width / 2:g} -7 {width} 14" width="{width}" height="14"'
    return f'<svg class="{kind}" {box} aria-hidden="true">{shape}</svg>'
