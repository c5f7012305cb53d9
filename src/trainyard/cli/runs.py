"""`runs`: list, show, compare, sync and clean."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import trainyard
from trainyard.cli import options
from trainyard.cli.output import run_document, show, size, table
from trainyard.errors import CheckpointError

if TYPE_CHECKING:
    from trainyard.evaluation.significance import Significance
    from trainyard.runs.comparison import Comparison
    from trainyard.runs.run import Run

_STATUSES = ("created", "crashed", "failed", "preempted", "interrupted", "completed")


@click.group()
def runs() -> None:
    """Look at the runs that there are, and tidy up."""


@runs.command("list")
@click.option("--experiment", metavar="NAME", help="Only the runs of this experiment.")
@options.runs_dir
@options.as_json
def list_runs(experiment: str | None, runs_dir: str | None, as_json: bool) -> None:
    """List the runs, newest first."""
    documents = [_listed(run) for run in trainyard.list_runs(runs_dir, experiment)]
    head = ("run", "experiment", "status", "steps", "result")
    rows = [
        [document.get(key) for key in ("run_id", "experiment", "status", "steps")] for document in documents
    ]
    results = [_brief(document.get("metrics", {})) for document in documents]
    lines = table([[*row, result] for row, result in zip(rows, results, strict=True)], head)
    show(documents, lines if documents else ["no runs"], as_json)


def _listed(run: Run) -> dict[str, Any]:
    """A run in a list; a damaged one must not hide the others."""
    try:
        return run_document(run)
    except CheckpointError as error:
        return {
            "run_id": run.id,
            "experiment": run.experiment,
            "path": str(run.path),
            "status": "damaged",
            "error": str(error),
        }


def _brief(metrics: dict[str, Any], count: int = 3) -> str:
    """The first metrics of the test, or where there are none of the validation."""
    chosen = [name for name in metrics if name.startswith("test_")] or list(metrics)
    return "  ".join(f"{name} {float(metrics[name]):.4g}" for name in chosen[:count])


@runs.command("show")
@options.run_argument
@options.runs_dir
@options.as_json
def show_run(run: str, runs_dir: str | None, as_json: bool) -> None:
    """Show what a run is, what went into it and what came out."""
    from trainyard.reports.summary import summary_table

    found = trainyard.get(run, runs_dir=runs_dir)
    document = run_document(found) | {"manifest": found.manifest}
    rows = [
        *summary_table(found.path),
        *_inputs(found.manifest),
        ("directory", found.path),
        ("report", document["report"]),
    ]
    show(document, table(rows), as_json)


def _inputs(manifest: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, name in (("created", "created"), ("seed", "seed"), ("computation_hash", "config")):
        yield name, manifest.get(key)
    for name in ("data", "code", "environment"):
        yield name, manifest.get(name, {}).get("hash")
    yield "initial weights", manifest.get("weights", {}).get("initial")


@runs.command()
@click.argument("first")
@click.argument("second")
@options.trust
@options.runs_dir
@options.as_json
def compare(first: str, second: str, trust: bool, runs_dir: str | None, as_json: bool) -> None:
    """Show in what two runs differ: config, other inputs, metrics, digests.

    Where both were tested on the same rows, their models predict them again, and a test says whether chance explains the
    difference.
    """
    found = trainyard.compare(first, second, runs_dir=runs_dir, trust=trust)
    show(found.to_json(), _compared(found), as_json)


def _compared(found: Comparison) -> Iterator[str]:
    config = [(item.what, _short(item.before), _short(item.now)) for item in found.config]
    yield from _section("config", config, ("key", *found.runs), "no differences")
    inputs = [
        (f"{item.input}: {item.what}", _short(item.before), _short(item.now)) for item in found.inputs or ()
    ]
    unknown = "not known: a run ended before they were recorded"
    yield from _section(
        "other inputs", inputs, ("input", *found.runs), unknown if found.inputs is None else "no differences"
    )
    numbers = [(item.name, item.first, item.second, item.delta) for item in found.numbers]
    yield from _section("results", numbers, ("", *found.runs, "delta"), "none yet")
    tests = [
        (test.metric, test.effect, _interval(test), test.p_value, test.test, test.pairs)
        for test in found.tests
    ]
    head = ("metric", "difference", "95% interval", "p-value", "test", "rows")
    yield from _section(
        "significance, on the same test rows", tests, head, f"no test: {found.untested or 'no metrics'}"
    )
    missing = None in found.digests
    yield f"digests: {'not there yet' if missing else 'the same' if found.same_digest else 'different'}"
    yield from (f"  {line}" for line in table(zip(found.runs, found.digests, strict=True)))


def _interval(test: Significance) -> str:
    return f"{test.low:.4g} to {test.high:.4g}"


def _section(name: str, rows: Sequence[Sequence[Any]], head: Sequence[str], empty: str) -> Iterator[str]:
    yield f"{name}:" if rows else f"{name}: {empty}"
    yield from (f"  {line}" for line in (table(rows, head) if rows else ()))
    yield ""


def _short(value: Any, width: int = 40) -> Any:
    text = str(value)
    return value if len(text) <= width else f"{text[: width - 1]}…"


@runs.command()
@options.run_argument
@options.runs_dir
@options.as_json
@click.pass_context
def sync(ctx: click.Context, run: str, runs_dir: str | None, as_json: bool) -> None:
    """Send to the trackers what they have not got yet; the exit code is 1 if they still lack something."""
    reports = trainyard.sync(run, runs_dir=runs_dir)
    rows = [(report.tracker, report.sent, report.pending, report.error or "complete") for report in reports]
    lines = (
        table(rows, ("tracker", "values sent", "still to send", "state"))
        if rows
        else ["this run has no trackers"]
    )
    show([report._asdict() for report in reports], lines, as_json)
    ctx.exit(1 if any(report.pending or report.error for report in reports) else 0)


@runs.command()
@click.option(
    "--status",
    "statuses",
    multiple=True,
    type=click.Choice(_STATUSES),
    help="Which runs, whatever they hold; may be given several times.  [default: created, crashed and failed ones that hold "
    "no checkpoint to resume from]",
)
@click.option("--yes", is_flag=True, help="Delete them; without it, nothing is deleted.")
@options.runs_dir
@options.as_json
def clean(statuses: Sequence[str], yes: bool, runs_dir: str | None, as_json: bool) -> None:
    """Delete runs that came to nothing. Says what it would delete, until it gets --yes."""
    chosen = [
        (run, run.status, _bytes(run.path)) for run in trainyard.clean(runs_dir, statuses=statuses or None)
    ]
    if yes:
        deleted = {run.path for run in trainyard.clean(runs_dir, statuses=statuses or None, dry_run=False)}
        chosen = [row for row in chosen if row[0].path in deleted]
    total = sum(count for *_, count in chosen)
    listed = [
        {"run_id": run.id, "path": str(run.path), "status": status, "bytes": count}
        for run, status, count in chosen
    ]
    lines = (
        table([(run.id, run.experiment, status, size(count)) for run, status, count in chosen])
        if chosen
        else []
    )
    did = "deleted" if yes else "would delete"
    last = f"{did} {len(chosen)} runs, {size(total)}{'' if yes or not chosen else '; add --yes to do it'}"
    show({"deleted": yes, "bytes": total, "runs": listed}, [*lines, last], as_json)


def _bytes(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file())
