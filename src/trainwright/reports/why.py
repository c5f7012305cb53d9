"""Make the page of a study of two runs: the answer, the shares as a picture, and every measurement."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from markupsafe import Markup

from trainwright.errors import CheckpointError
from trainwright.numerals import number
from trainwright.records.run_dir import RunDir
from trainwright.records.study import StudyRecord, study_problems
from trainwright.reports.history import title as metric_title
from trainwright.reports.rundir import Json
from trainwright.reports.study_charts import Spread, dot_plot
from trainwright.reports.templates import style, template, write_page

HEAD = ("change", "before", "after", "share", "of it", "95% interval", "alone", "added last", "p")


def write_report(folder: Path) -> Path:
    """Write `report.html` into the folder of a study of two runs, and return its path.

    Raises:
        OSError: The file cannot be written.
    """
    path = folder / "report.html"
    write_page(path, _rendered(folder))
    return path


def _rendered(folder: Path) -> str:
    record, result = _read(folder)
    name = metric_title(str(result.get("metric", "")))
    return template("why.html.j2").render(
        style=style(),
        study_id=folder.name,
        experiment=folder.parent.name,
        status=record.status if record else "unknown",
        error="; ".join([*([record.error] if record and record.error else []), *study_problems(folder)]),
        result=result,
        name=name,
        figures=_figures(result, name) if result else [],
        picture=Markup(_picture(result, name)) if result.get("shares") else None,
        **_table(share_rows(result) if result else []),
        runs=_runs(result),
        made=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
    )


def _table(rows: list[list[str]]) -> dict[str, Any]:
    """Return the table of shares without columns that are empty, and which of them are words."""
    kept = [i for i in range(len(HEAD)) if any(row[i] for row in rows)]
    return {
        "head": [HEAD[i] for i in kept],
        "rows": [[row[i] for i in kept] for row in rows],
        "words": HEAD[:3],
    }


def _read(folder: Path) -> tuple[StudyRecord | None, Json]:
    """Return the record and the result of a study; empty where they are missing or damaged."""
    try:
        record = StudyRecord.load(folder / StudyRecord.FILE)
    except CheckpointError:
        record = None
    try:
        return record, RunDir(folder).read_json(StudyRecord.RESULT)
    except CheckpointError:
        return record, {}


def _figures(result: Json, name: str) -> list[dict[str, str]]:
    seeds = "seeds change nothing" if result["exact"] else f"{result['seeds']} seeds"
    return [
        {"kind": "metric", "name": f"{name}, before", "value": number(result["before"])},
        {"kind": "metric", "name": f"{name}, after", "value": number(result["after"])},
        {"kind": "metric", "name": "difference", "value": _signed(result["difference"])},
        {
            "kind": "cost",
            "name": f"runs trained, of at most {result['max_runs']}",
            "value": str(result["trained"]),
        },
        {"kind": "cost", "name": f"noise between seeds, {seeds}", "value": _noise(result["noise"])},
    ]


def share_rows(result: Json) -> list[list[str]]:
    """Return the rows of the table of shares, as texts: the changes, then what they do not explain.

    The shares, the other changes, the seed and what cannot be substituted add up to the difference.
    """
    factors = {factor["name"]: factor for factor in result["factors"]}
    rows = [_share_row(share, factors[share["name"]], result) for share in result["shares"]]
    if result["others"] is not None:
        rows.append(_effect_row(f"the others: {', '.join(result['other_names'])}", result["others"], result))
    elif not result["shares"]:
        rows += [[name, factor["before"], factor["after"], *[""] * 6] for name, factor in factors.items()]
    if not result["shares"] and result["total"] is not None:
        rows.append(_effect_row("all changes", result["total"], result))
    if result["seed"] is not None:
        rows.append(["seed (chance)", "", "", _signed(result["seed"]), *[""] * 5])
    rest = result["rest"]
    if rest is not None and (rest["difference"] or rest["differences"]):
        rows.append(["what cannot be substituted", "", "", _signed(rest["difference"]), *[""] * 5])
    return rows


def _share_row(share: Json, factor: Json, result: Json) -> list[str]:
    effect = share["effect"]
    return [
        share["name"],
        factor["before"],
        factor["after"],
        _signed(effect and effect["mean"]),
        _part(effect, result),
        _interval(effect),
        _signed(share["alone"]),
        _signed(share["last"]),
        _p(share["p"]),
    ]


def _effect_row(name: str, effect: Json, result: Json) -> list[str]:
    return [name, "", "", _signed(effect["mean"]), _part(effect, result), _interval(effect), "", "", ""]


def _part(effect: Json | None, result: Json) -> str:
    total = (result["total"] or {}).get("mean")
    return f"{effect['mean'] / total:.0%}" if effect and total else ""


def _interval(effect: Mapping[str, Any] | None) -> str:
    known = effect is not None and effect["low"] is not None
    return f"{_signed(effect['low'])} to {_signed(effect['high'])}" if effect is not None and known else ""


def _signed(value: float | None) -> str:
    return "" if value is None else f"{value:+.3g}"


def _p(value: float | None) -> str:
    return "" if value is None else "< 0.001" if value < 0.001 else f"{value:.2g}"


def _picture(result: Json, name: str) -> str:
    rows = list(_spreads(result))
    return dot_plot(rows, f"What moved {name}", f"share of the difference in {name}")


def _spreads(result: Json) -> Iterator[Spread]:
    for share in result["shares"]:
        if share["effect"] is not None:
            yield _spread(share["name"], share["effect"], "val" if share["stands_out"] else "other")
    if result["others"] is not None:
        yield _spread("the other changes", result["others"], "other")
    if result["seed"] is not None:
        yield Spread("seed (chance)", [], result["seed"], kind="other")
    rest = result["rest"]
    if rest is not None and rest["difference"]:
        kind = "val" if rest["stands_out"] else "other"
        yield Spread("not substituted", [], rest["difference"], kind=kind)


def _spread(label: str, effect: Json, kind: str) -> Spread:
    low, high = (math.nan if effect[end] is None else effect[end] for end in ("low", "high"))
    return Spread(label, effect["values"], effect["mean"], low, high, kind)


def _runs(result: Json) -> Sequence[tuple[list[str], str]]:
    return [
        (
            [one["label"], str(one["seed"]), "" if one["value"] is None else number(one["value"])],
            one["run_id"],
        )
        for one in result.get("measured", [])
    ]


def _noise(noise: float | None) -> str:
    return "not known, from one run on each side" if noise is None else number(noise)
