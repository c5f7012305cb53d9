"""Write the HTML page of a run from its directory: at any time, and complete even if the run is not."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from trainwright.reports import (
    compression,
    diagnosis,
    evaluations,
    explanations,
    next_steps,
    pages,
    verdict,
)
from trainwright.reports.rundir import RunFiles, read_run, understanding
from trainwright.reports.templates import template, write_page

Section = Callable[[RunFiles], Any]

_SECTIONS: dict[str, Section] = {
    "headline": pages.headline,
    "verdict": verdict.section,
    "diagnosis": diagnosis.section,
    "next_steps": next_steps.section,
    "compression": compression.section,
    "retraining": pages.retraining,
    "curves": pages.curves,
    "evaluations": evaluations.section,
    "unevaluated": evaluations.unevaluated,
    "explanations": explanations.section,
    "data": pages.data,
    "repeat": pages.repeat,
    "inputs": pages.inputs,
    "attempts": pages.attempts,
    "processes": pages.processes,
    "config": pages.config,
}


def write_report(run_dir: Path, path: Path | None = None, *, keep_fuller: bool = False) -> Path:
    """Write the page of a run to a file, by default `report.html` in the run directory, and return its path.

    The run may be unfinished, and parts of it may be missing or damaged: the page says so and shows the rest.

    Args:
        run_dir: The run directory.
        path: The file.
        keep_fuller: Refuse to replace a page that may show more, as a part was not damaged then.

    Raises:
        CheckpointError: A table of its evaluation has a form that cannot be shown, or the page is kept.
        OSError: The file cannot be written.
    """
    path = run_dir / "report.html" if path is None else path
    with understanding(run_dir):
        run = read_run(run_dir)
        if keep_fuller:
            run.check_replaces(path)
        page = _rendered(run)
    write_page(path, page)
    return path


def _rendered(run: RunFiles) -> str:
    problems = [*run.problems, *run.history.problems]
    sections = {name: _built(name, section, run, problems) for name, section in _SECTIONS.items()}
    made = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    return template("report.html.j2").render(
        **sections, run_id=run.run_id, experiment=run.experiment, problems=problems, made=made
    )


def _built(name: str, section: Section, run: RunFiles, problems: list[str]) -> Any:
    """Return one section; damage in it costs only this section."""
    try:
        return section(run)
    except Exception as error:
        problems.append(
            f"{name}: could not be drawn, as its records are damaged ({type(error).__name__}: {error})"
        )
        return None
