"""The section of a compressed run: its layers, and both models side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from trainwright.numerals import number
from trainwright.reports import charts
from trainwright.reports.rundir import Json, RunFiles, numbers, part

_TITLES = {
    "bytes": "size",
    "latency_1": "latency, 1 row",
    "latency_64": "latency, 64 rows",
    "memory": "peak memory",
}
_MEGA = 1e6
_WIDTH, _LEFT, _RIGHT, _ROW = 560.0, 130.0, 90.0, 40.0
_BAR = 12.0  # the height of one
_MOST_LAYERS = 60


def section(run: RunFiles) -> dict[str, Any] | None:
    """Return the tables and the picture of a compressed run; None for others."""
    if not run.compression:
        return None
    parent, child = (numbers(part(run.compression, one)) for one in ("parent", "child"))
    layers = run.compression.get("layers") or []
    trials = run.compression.get("search") or []
    return {
        "parent": str(part(run.compression, "parent").get("run_id", "")),
        "picture": Markup(picture(parent, child)),
        "rows": [_row(name, parent.get(name), value) for name, value in child.items()],
        "layers": [_layer(one) for one in layers[:_MOST_LAYERS]],
        "more": max(0, len(layers) - _MOST_LAYERS),
        "gate": str(part(run.compression, "gate").get("said", "")),
        "trials": [[_cell(value) for value in one.values()] for one in trials],
        "trial_head": [str(name) for name in trials[0]] if trials else [],
    }


def picture(parent: Mapping[str, float], child: Mapping[str, float]) -> str:
    """Draw size, latencies and memory of both models, each pair of bars by its larger one."""
    shown = [name for name in _TITLES if name in parent and name in child]
    parts = [piece for i, name in enumerate(shown) for piece in _pair(i, name, parent[name], child[name])]
    said = "; ".join(
        f"{_TITLES[name]}: {shown_value(name, parent[name])}, then {shown_value(name, child[name])}"
        for name in shown
    )
    size = (_WIDTH, _ROW * max(1, len(shown)))
    return charts.svg("bars", size, ("The parent, and the compressed model below it", said), parts)


def _pair(position: int, name: str, before: float, after: float) -> Iterator[str]:
    top, scale = position * _ROW + 5, (_WIDTH - _LEFT - _RIGHT) / max(before, after, 1e-300)
    at = f'x="{_LEFT - 8:g}" y="{top + _BAR + 5:g}" text-anchor="end"'
    yield f'<text class="label" {at}>{_TITLES[name]}</text>'
    for row, (kind, value) in enumerate((("other", before), ("val", after))):
        y, width = top + row * (_BAR + 2), max(1.0, value * scale)
        yield f'<rect class="bars {kind}" x="{_LEFT:g}" y="{y:g}" width="{width:.1f}" height="{_BAR:g}"/>'
        label = charts.text(shown_value(name, value))
        yield f'<text class="value" x="{_LEFT + width + 5:.1f}" y="{y + _BAR - 2:g}">{label}</text>'


def shown_value(name: str, value: float) -> str:
    """Return a measure with its unit."""
    if name in ("bytes", "memory"):
        return f"{number(value / _MEGA)} MB" if value >= _MEGA / 10 else f"{number(value / 1000)} kB"
    return f"{value:.3g} ms" if name.startswith("latency_") else number(value)


def _row(name: str, before: float | None, after: float) -> tuple[str, str, str, str]:
    ratio = f"{after / before:.2f}" if before else ""
    was = "" if before is None else shown_value(name, before)
    return _TITLES.get(name, name), was, shown_value(name, after), ratio


def _layer(one: Json) -> Sequence[str]:
    before, after = (shown_value("bytes", float(one[key])) for key in ("before", "after"))
    return [
        str(one["name"]),
        str(one["kind"]),
        str(one["scheme"] or "as it was"),
        before,
        after,
        str(one["note"]),
    ]


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return number(value) if isinstance(value, int | float) else str(value)
