"""Charts as inline SVG: lines, a heat map, a scatter plot.

Each is one well-formed `<svg>` with a `<title>` and a `<desc>`. Colors come from the page's style sheet, by
class, so that dark mode and print need no second picture. Color never carries meaning alone: lines have
their name at their end, markers have shapes, cells have numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from xml.sax.saxutils import escape

import numpy as np

from trainwright.numerals import number
from trainwright.reports.curves import Envelope, Floats, thinned
from trainwright.reports.scales import Scale, fitted, fitted_to, spread, tick_label
from trainwright.types import Array

_NOT_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
_CELLS = ((4, 48.0), (16, 34.0), (30, 24.0))  # the largest number of classes, and the side of a cell for it
_SHAPES = {
    "best": "M0-5.5L1.6-1.8 5.5-1.6 2.5.9 3.5 4.7 0 2.6-3.5 4.7-2.5.9-5.5-1.6-1.6-1.8Z",  # a star
    "resume": "M-3.5-4.5L4.5 0-3.5 4.5Z",  # a triangle that points on
    "drop": "M-4.5-3.5L4.5-3.5 0 4.5Z",  # a triangle that points down
    "stop": "M-4-4H4V4H-4Z",  # a square
    "event": "M0-5L5 0 0 5-5 0Z",  # a diamond
}


@dataclass(frozen=True)
class Line:
    """One curve, its x ascending; values that are not finite leave a gap. `kind` is its CSS class."""

    name: str
    data: Envelope
    kind: str = "val"


@dataclass(frozen=True)
class Marker:
    """An event at `x`; `kind` is `best`, `resume`, `drop`, `stop` or `event`."""

    x: float
    kind: str
    text: str


@dataclass(frozen=True)
class LineChart:
    """The lines of a chart, each with at most `points` points.

    `log=None` chooses a logarithmic axis if the range needs one. The x axis shows at least `span`, so that
    charts next to each other agree.
    """

    title: str
    lines: Sequence[Line]
    markers: Sequence[Marker] = field(default=())
    x_label: str = "step"
    log: bool | None = False
    points: int = 220
    span: tuple[float, float] | tuple[()] = ()


def text(value: object) -> str:
    """Return any value as text that XML can hold."""
    return escape(_NOT_XML.sub("\ufffd", str(value)), {'"': "&quot;"})


def symbol(kind: str) -> str:
    """Return a marker's shape by itself, for a legend."""
    shape = _SHAPES.get(kind, _SHAPES["event"])
    return (
        f'<svg class="symbol {kind}" viewBox="-7 -7 14 14" width="14" height="14" aria-hidden="true">'
        f'<path d="{shape}"/></svg>'
    )


def svg(
    kind: str, size: tuple[float, float], texts: tuple[str, str], parts: Sequence[str], extra: str = ""
) -> str:
    """Put the parts into a frame of `size` (width, height); `texts` are its title and description."""
    title, desc = texts
    return (
        f'<svg class="chart {kind}" viewBox="0 0 {size[0]:g} {size[1]:g}" role="img"{extra}>'
        f"<title>{text(title)}</title><desc>{text(desc)}</desc>{''.join(parts)}</svg>"
    )


def line_chart(chart: LineChart, width: float = 420, height: float = 230) -> str:
    """Draw curves over the steps; of too many points, their mean and a band from lowest to highest."""
    cut = [thinned(line.data, chart.points) for line in chart.lines]
    strip = 20 if chart.markers else 6
    left, right, top, bottom = 46.0, width - 82, float(strip), height - 34
    y_axis = fitted_to(cut, bottom, top, chart.log)
    ends = [line.data.x[[0, -1]] for line in chart.lines if len(line.data.x)]
    shown = np.concatenate([chart.span, *ends, [marker.x for marker in chart.markers]])
    x_axis = fitted(shown.astype(np.float64), left, right, pad=0.0)
    parts = [*axes(x_axis, y_axis, chart.x_label)]
    parts += [
        piece for marker in _apart(chart.markers, x_axis) for piece in _marker(marker, x_axis, top, bottom)
    ]
    parts += [
        piece
        for line, points in zip(chart.lines, cut, strict=True)
        for piece in _curve(line, points, x_axis, y_axis)
    ]
    parts += _ends(chart.lines, cut, x_axis, y_axis)
    plot = f' data-plot="{left:g} {right:g} {top:g} {bottom:g}"'
    return svg("lines", (width, height), (chart.title, _described(chart, y_axis)), parts, plot)


def _described(chart: LineChart, y_axis: Scale) -> str:
    facts = []
    for line in chart.lines:
        means = line.data.mean[np.isfinite(line.data.mean)]
        if len(means):
            low, high = np.nanmin(line.data.low), np.nanmax(line.data.high)
            facts.append(
                f"{line.name}: from {number(float(means[0]))} to {number(float(means[-1]))}, "
                f"lowest {number(float(low))}, highest {number(float(high))}"
            )
    facts += [marker.text for marker in chart.markers[:20]]
    return f"{'Logarithmic axis. ' if y_axis.log else ''}{'; '.join(facts) or 'no values'}."


def axes(x_axis: Scale, y_axis: Scale, x_label: str, y_label: str = "") -> Iterator[str]:
    """Draw two axes with ticks, labels and a grid."""
    left, right, top, bottom = x_axis.first, x_axis.last, y_axis.last, y_axis.first
    for value, label in y_axis.ticks(4 if bottom - top < 200 else 5):
        y = y_axis(value)
        yield f'<path class="grid" d="M{left:.1f} {y:.1f}H{right:.1f}"/>'
        yield f'<text class="tick" x="{left - 7:.1f}" y="{y + 4:.1f}" text-anchor="end">{label}</text>'
    for value, label in x_axis.ticks(max(4, int((right - left) / 75))):
        if label.count(".") and x_label == "step":
            continue  # there is no half step
        x = x_axis(value)
        yield f'<path class="axis" d="M{x:.1f} {bottom:.1f}v4"/>'
        yield f'<text class="tick" x="{x:.1f}" y="{bottom + 17:.1f}" text-anchor="middle">{label}</text>'
    yield f'<path class="axis" d="M{left:.1f} {bottom:.1f}H{right:.1f}"/>'
    yield _label(text(x_label), (left + right) / 2, bottom + 31, "middle")
    if y_axis.log:
        yield _label("log", left - 7, bottom + 31, "end")
    if y_label:
        yield _upright(y_label, (top + bottom) / 2)


def _label(label: str, x: float, y: float, anchor: str) -> str:
    return f'<text class="label" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{label}</text>'


def _upright(label: str, y: float) -> str:
    """Return the label of a vertical axis."""
    turned = f'text-anchor="middle" transform="rotate(-90 11 {y:.1f})"'
    return f'<text class="label" x="11" y="{y:.1f}" {turned}>{text(label)}</text>'


def _runs(values: Floats) -> Iterator[slice]:
    """Yield the stretches without a NaN."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], np.isfinite(values).astype(np.int8), [0]])))
    return (slice(int(start), int(stop)) for start, stop in edges.reshape(-1, 2))


def _curve(line: Line, cut: Envelope, x_axis: Scale, y_axis: Scale) -> Iterator[str]:
    pixels = [x_axis(x) for x in cut.x]
    banded = bool((cut.points > 1).any())
    strokes, bands = [], []
    for run in _runs(cut.mean):
        upper = [f"{x:.1f} {y_axis(y):.1f}" for x, y in zip(pixels[run], cut.high[run], strict=True)]
        lower = [f"{x:.1f} {y_axis(y):.1f}" for x, y in zip(pixels[run], cut.low[run], strict=True)]
        middle = [f"{x:.1f} {y_axis(y):.1f}" for x, y in zip(pixels[run], cut.mean[run], strict=True)]
        bands.append(f"M{'L'.join(upper + lower[::-1])}Z")
        strokes.append(f"M{'L'.join(middle)}" if len(middle) > 1 else f"M{middle[0]}h.1")
    if banded:
        yield f'<path class="band {line.kind}" d="{"".join(bands)}"/>'
    points = ";".join(
        f"{x:.1f},{step:.10g},{number(float(y))}" for x, step, y in zip(pixels, cut.x, cut.mean, strict=True)
    )
    data = f'data-name="{text(line.name)}" data-points="{points}"'
    yield f'<path class="line {line.kind}" d="{"".join(strokes)}" {data}/>'
    if len(cut.x) <= 40 and line.kind == "val":  # few values: show each
        dots = "".join(
            f"M{x:.1f} {y_axis(y):.1f}h0" for x, y in zip(pixels, cut.mean, strict=True) if np.isfinite(y)
        )
        yield f'<path class="dots {line.kind}" d="{dots}"/>'


def _ends(lines: Sequence[Line], cut: Sequence[Envelope], x_axis: Scale, y_axis: Scale) -> Iterator[str]:
    """Draw the name and last value of each line beside its end."""
    last = [(line, points.mean[np.isfinite(points.mean)]) for line, points in zip(lines, cut, strict=True)]
    shown = [(line, float(values[-1])) for line, values in last if len(values)]
    several = len(lines) > 1
    heights = spread(
        [y_axis(value) for _, value in shown],
        27 if several else 14,
        y_axis.last + 4,
        y_axis.first - 18 * several,
    )
    for (line, value), y in zip(shown, heights, strict=True):
        x = x_axis.last + 7
        if several:
            yield f'<text class="end {line.kind}" x="{x:.1f}" y="{y + 4:.1f}">{text(line.name)}</text>'
        yield f'<text class="value" x="{x:.1f}" y="{y + (17 if several else 4):.1f}">{number(value)}</text>'


def _apart(markers: Sequence[Marker], x_axis: Scale) -> list[Marker]:
    """Leave out markers that would cover another of their kind."""
    kept: dict[tuple[str, int], Marker] = {}
    for marker in markers:
        kept.setdefault((marker.kind, round(x_axis(marker.x) / 6)), marker)
    return list(kept.values())


def _marker(marker: Marker, x_axis: Scale, top: float, bottom: float) -> Iterator[str]:
    kind = marker.kind if marker.kind in _SHAPES else "event"
    x, shape = x_axis(marker.x), _SHAPES[kind]
    yield f'<g class="marker {kind}"><title>{text(marker.text)}</title>'
    yield f'<path class="rule" d="M{x:.1f} {top:.1f}V{bottom:.1f}"/>'
    yield f'<path class="shape" d="{shape}" transform="translate({x:.1f} {top - 9:.1f})"/></g>'


def heat_map(labels: Sequence[Any], matrix: Sequence[Sequence[int]], title: str) -> str:
    """Draw a confusion matrix: rows are the true classes.

    The shade of a cell is its share of the row; hits and errors have different colors.
    """
    counts = np.asarray(matrix, np.int64).reshape(len(labels), len(labels))
    names = [_short(label) for label in labels]
    size = next((side for most, side in _CELLS if len(names) <= most), max(3.0, 720 / max(1, len(names))))
    left = 30 + 6.6 * max((len(name) for name in names), default=1)
    slanted = any(len(name) > 4 for name in names)
    top = 30 + (4.8 * max((len(name) for name in names), default=1) if slanted else 8)
    side = size * len(names)
    middle = left + side / 2
    parts = [f'<text class="label" x="{middle:.1f}" y="12" text-anchor="middle">predicted</text>']
    parts.append(_upright("true", top + side / 2))
    if size >= 12:
        for index, name in enumerate(names):
            label, middle_of = f"<title>{text(labels[index])}</title>{text(name)}", (index + 0.5) * size
            parts.append(_row_label(label, left - 6, top + middle_of + 4))
            parts.append(_column_label(label, left + middle_of, top - 7, slanted))
    parts += _cells(counts, labels, left, top, size)
    parts.append(f'<rect class="frame" x="{left:.1f}" y="{top:.1f}" width="{side:.1f}" height="{side:.1f}"/>')
    right = int(np.trace(counts))
    desc = f"{right} of {int(counts.sum())} rows lie on the diagonal. {_confusions(counts, labels)}"
    width = round(left + side + (6 + 4.8 * len(names[-1]) if slanted else 4), 1)
    # A matrix of few classes is small: stretched over the page, its letters would be larger than headlines.
    fixed = f' style="max-width:{1.25 * width:.0f}px"'
    return svg("heat", (width, round(top + side + 4, 1)), (title, desc), parts, fixed)


def _confusions(counts: Array, labels: Sequence[Any]) -> str:
    """Describe the most frequent confusions."""
    off = counts - np.diag(np.diag(counts))
    worst = [divmod(int(index), len(labels)) for index in np.argsort(-off, axis=None, kind="stable")[:3]]
    pairs = [f"{labels[i]} taken for {labels[j]} {off[i, j]} times" for i, j in worst if off[i, j] > 0]
    return f"Most often confused: {', '.join(pairs)}." if pairs else "Nothing is confused."


def _row_label(name: str, x: float, y: float) -> str:
    return f'<text class="tick" x="{x:.1f}" y="{y:.1f}" text-anchor="end">{name}</text>'


def _column_label(name: str, x: float, y: float, slanted: bool) -> str:
    how = f'transform="rotate(-40 {x:.1f} {y:.1f})"' if slanted else 'text-anchor="middle"'
    return f'<text class="tick" x="{x:.1f}" y="{y:.1f}" {how}>{name}</text>'


def _cells(counts: Array, labels: Sequence[Any], left: float, top: float, size: float) -> Iterator[str]:
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    for i, j in zip(*np.nonzero(counts), strict=True):
        share, hit = float(shares[i, j]), i == j
        shade = 0.12 + 0.78 * (share if hit else min(1.0, 2 * share) ** 0.5)
        x, y = left + j * size, top + i * size
        words = f"{counts[i, j]} rows of {labels[i]} predicted as {labels[j]} ({share:.1%})"
        yield (
            f"<g><title>{text(words)}</title>"
            f'<rect class="{"hit" if hit else "miss"}" fill-opacity="{shade:.2f}" '
            f'x="{x:.1f}" y="{y:.1f}" width="{size:.1f}" height="{size:.1f}"/>'
        )
        if size >= 20:
            strong = " strong" if shade > 0.6 else ""
            small = ' font-size="9"' if counts[i, j] > 9999 or size < 30 else ""
            yield (
                f'<text class="count{strong}"{small} x="{x + size / 2:.1f}" y="{y + size / 2 + 4:.1f}" '
                f'text-anchor="middle">{_brief(int(counts[i, j]))}</text>'
            )
        yield "</g>"


def _brief(count: int) -> str:
    return str(count) if count < 10_000 else tick_label(float(f"{count:.3g}"))


def _short(label: object) -> str:
    name = str(label)
    return name if len(name) <= 14 else f"{name[:13]}…"


def scatter(true: Sequence[float], predicted: Sequence[float], title: str, target: str) -> str:
    """Draw predicted against true values on equal axes; on the diagonal the prediction is exact."""
    x, y = _finite(true, predicted)
    width, height = 420.0, 400.0
    left, right, top, bottom = 58.0, width - 10, 8.0, height - 38
    both = central(np.concatenate([x, y]))
    x_axis, y_axis = fitted(both, left, right), fitted(both, bottom, top)
    parts = [*axes(x_axis, y_axis, f"true {target}", f"predicted {target}")]
    parts.append(f'<path class="exact" d="M{left:.1f} {bottom:.1f}L{right:.1f} {top:.1f}"/>')
    parts += dots(x, y, x_axis, y_axis)
    correlation = (
        float(np.corrcoef(x, y)[0, 1]) if len(x) > 1 and x.std() > 0 and y.std() > 0 else float("nan")
    )
    facts = f"{len(x)} points; correlation {number(correlation)}."
    desc = f"{facts} The dashed diagonal is where the prediction is exact."
    return svg("scatter", (width, height), (title, desc), parts)


def _finite(first: Sequence[float], second: Sequence[float]) -> tuple[Array, Array]:
    x, y = np.asarray(first, np.float64), np.asarray(second, np.float64)
    real = np.isfinite(x) & np.isfinite(y)
    return x[real], y[real]


def central(values: Array) -> Array:
    """Return the values that an axis is fitted to: without outliers that would squeeze all others."""
    if len(values) < 20:
        return values
    low, high = np.quantile(values, [0.01, 0.99])
    reach = 0.75 * (high - low)
    inside = values[(values >= low - reach) & (values <= high + reach)]
    return inside if high > low and np.ptp(values) > 3 * (high - low) else values


def dots(x: Array, y: Array, x_axis: Scale, y_axis: Scale) -> Iterator[str]:
    """Draw points; those beyond the axes are triangles at the frame, with their values."""
    beyond = (x < x_axis.low) | (x > x_axis.high) | (y < y_axis.low) | (y > y_axis.high)
    inside = zip(x[~beyond], y[~beyond], strict=True)
    drawn = "".join(f"M{x_axis(a):.1f} {y_axis(b):.1f}h0" for a, b in inside)
    yield f'<path class="points{" many" if len(x) > 400 else ""}" d="{drawn}"/>'
    for a, b in zip(x[beyond][:100], y[beyond][:100], strict=True):
        words = f"{number(float(a))}, {number(float(b))}"
        shape = f"M{x_axis(a) - 4:.1f} {y_axis(b) + 4:.1f}l4-8 4 8Z"
        yield f'<path class="outlier" d="{shape}"><title>{text(words)}</title></path>'


def errors(xs: Sequence[float], ys: Sequence[float], title: str, labels: tuple[str, str]) -> str:
    """Draw errors against predictions, with a line at 0; `labels` are those of the axes."""
    x, y = _finite(xs, ys)
    width, height = 420.0, 260.0
    x_axis, y_axis = (
        fitted(central(x), 58.0, width - 10),
        fitted(central(np.append(y, 0.0)), height - 38, 8.0),
    )
    parts = [*axes(x_axis, y_axis, *labels)]
    parts.append(f'<path class="exact" d="M58 {y_axis(0.0):.1f}H{width - 10:.1f}"/>')
    parts += dots(x, y, x_axis, y_axis)
    return svg("scatter", (width, height), (title, f"{len(x)} points around the line at 0."), parts)
