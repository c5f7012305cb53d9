"""The distributions of the target and of columns in training, validation and test, side by side."""

from __future__ import annotations

from typing import Any

from markupsafe import Markup

from trainwright.reports import figures
from trainwright.reports.rundir import Json, RunFiles, numbers, part

Section = dict[str, Any]
_VERSION = 1
_APART = 0.1  # from this distance on, a caption says that a split differs


def section(run: RunFiles) -> Section | None:
    """Return the figures; None where the run did not describe its data."""
    profile = run.profile
    if profile.get("version") != _VERSION:
        return None
    target = part(profile, "target")
    splits = list(target["counts"])
    return {
        "legend": figures.split_legend(splits),
        "target": _figure(target),
        "columns": [_figure(column) for column in profile["columns"]],
        "more": int(profile["more"]),
    }


def _figure(described: Json) -> Section:
    said = [
        f"{'validation' if split == 'val' else split} differs from training by {shift:.2f}"
        for split, shift in numbers(part(described, "shift")).items()
        if shift >= _APART
    ]
    said += [
        f"{share:.0%} missing in {split}"
        for split, share in numbers(part(described, "missing")).items()
        if share
    ]
    return {
        "title": str(described["name"]),
        "chart": Markup(figures.distribution(described)),
        "caption": "; ".join(said),
        "legend": [],
    }
