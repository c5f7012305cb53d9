"""The key facts of a run in a few rows, for the command line and for notebooks."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from pathlib import Path

from trainwright.numerals import number
from trainwright.reports.rundir import read_run
from trainwright.reports.scales import duration


def summary_table(run_dir: Path) -> list[tuple[str, str]]:
    """Return the name and value of each fact; what is not known yet is left out.

    The journal is read only where the result does not answer.
    """
    return list(_facts(run_dir))


def damage(run_dir: Path) -> list[str]:
    """Read a run's records and its whole journal, and return a sentence for each damage."""
    run = read_run(run_dir)
    return [*run.problems, *run.history.problems]


def _facts(run_dir: Path) -> Iterator[tuple[str, str]]:
    run = read_run(run_dir)
    yield "run", run.run_id
    yield "experiment", run.experiment
    yield "status", run.status
    if run.status == "failed" and run.result and run.result.error:
        yield "error", run.result.error.splitlines()[0]
    yield "steps", number(run.steps)
    for name, value in run.metrics.items():
        yield name, number(value)
    if best := run.best:
        yield "best step", f"{number(best.step)} ({best.metric} {number(best.value)})"
    if result := run.result:
        yield "training time", duration(result.train_seconds)
        if result.digest:
            yield "digest", result.digest + (" (of the averaged weights)" if result.weights == "ema" else "")
    if run.determinism:
        yield "determinism", run.determinism.tier


def html_table(run_dir: Path) -> str:
    """Return the same facts as an HTML table, for `_repr_html_`."""
    rows = (
        f'<tr><th style="text-align:left">{escape(name)}</th><td>{escape(value)}</td></tr>'
        for name, value in _facts(run_dir)
    )
    return f"<table>{''.join(rows)}</table>"
