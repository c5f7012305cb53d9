"""`drift` and `monitor`: the commands that watch models in use."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import trainwright
from trainwright.cli import options
from trainwright.cli.output import show, table

if TYPE_CHECKING:
    from trainwright.monitoring.drift import Drift, DriftReport

_DRIFTED = 3  # the exit code
_SHOWN = 10  # columns of a table


@click.command()
@options.run_argument
@click.argument("file", required=False)
@click.option("--against", metavar="OTHER", help="Compare the training rows of run OTHER instead of a file.")
@click.option(
    "--alarm-rate",
    type=float,
    default=0.01,
    show_default=True,
    help="The probability of an alarm for a window without drift, over all columns together.",
)
@click.option(
    "--window", type=click.IntRange(min=1), help="Compare windows of so many rows.  [default: all rows]"
)
@options.reading
@options.trust
@options.runs_dir
@options.as_json
def drift(run: str, file: str | None, as_json: bool, **how: Any) -> None:
    """Compare the rows of FILE with the training rows of RUN.

    The exit code is 3 if they have drifted.

    FILE is a table as `predict` takes it. Each column is compared, and so are the predictions. The thresholds
    are calibrated on the training rows, for the number of columns and rows. The run keeps what it needs for
    that (monitoring/reference.json), so its data are read once.
    """
    found = trainwright.drift(run, file, **how)
    show(found.to_json(), _lines(found), as_json)
    click.get_current_context().exit(_DRIFTED if found.drifted else 0)


@click.command()
@click.argument("source", metavar="URL|LOG", required=False)
@click.option("--run", metavar="RUN", help="The run that a LOG is of.")
@click.option(
    "-o", "--output", metavar="FILE", default="drift.html", show_default=True, help="The page to write."
)
@click.option("--window", type=click.IntRange(min=1), help="The rows of a window of a LOG.  [default: 1000]")
@click.option("--alarm-rate", type=float, default=0.01, show_default=True, help="For a LOG, as in `drift`.")
@click.option("--key-file", type=click.Path(dir_okay=False), help="The file of the API key.")
@click.option("--alerts", metavar="FILE", help="Write alert rules for Prometheus, too.")
@options.trust
@options.runs_dir
@options.as_json
def monitor(source: str | None, key_file: str | None, alerts: str | None, as_json: bool, **how: Any) -> None:
    """Write a page of drift and latency of a model in use.

    URL is a running service. LOG is a table of served rows (a file, or a folder of them) with the columns of
    the predictions, or what `trainwright drift --json` printed (a .json file).
    """
    if source is None and alerts is None:
        raise click.UsageError("give the URL of a service or a LOG, or --alerts FILE")
    written: dict[str, str] = {}
    if source is not None:
        key = None if key_file is None else options.key_in(Path(key_file))
        written["page"] = str(trainwright.monitor(source, key=key, **how))
    if alerts is not None:
        written["alerts"] = str(trainwright.alert_rules(alerts))
    show(written, [f"wrote {path}" for path in written.values()], as_json)


def _lines(found: DriftReport) -> Iterator[str]:
    first = found.windows[0]
    yield (
        f"compared with the {first.training_rows:,} training rows of run {found.run}, at a false-alarm rate "
        f"of {first.alarm_rate:.3g} for each window"
    )
    yield from found.lines
    if len(found.windows) == 1:
        yield from ("", *_table(first))
    yield from (f"note: {note}" for note in first.notes)


def _table(one: Drift) -> Iterator[str]:
    rows = []
    for column in one.columns[:_SHOWN]:
        found = column.statistics
        shape = found.get("ks") if column.kind != "category" else found["chi2"]
        name = f"{column.name} ({column.role})" if column.role != "input" else column.name
        rows.append(
            (name, column.score, column.p, column.test, shape, found["psi"], found["js"], found["missing"][1])
        )
    yield from table(rows, ("column", "score", "p", "by", "KS or chi2", "PSI", "JS", "missing"))
    if len(one.columns) > _SHOWN:
        yield f"and {len(one.columns) - _SHOWN} columns with smaller scores"
