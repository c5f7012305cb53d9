"""`runs`: list, show, compare, sync, clean and delete."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import trainwright
from trainwright.api.documents import existing, run_details
from trainwright.cli import options
from trainwright.cli.cleaning import clean, delete
from trainwright.cli.output import show, size, table
from trainwright.numerals import number
from trainwright.records.queries import FIELDS, check_names, values

if TYPE_CHECKING:
    from trainwright.evaluation.significance import Significance
    from trainwright.records.manifest import Difference, Manifest
    from trainwright.records.run_dir import RunDir
    from trainwright.runs.comparison import Comparison
    from trainwright.runs.prediction_comparison import PredictionComparison
    from trainwright.runs.run import Run

_STATE = "weights: initial state, "  # of the facts of an initial state among the inputs that differ
_READ = 8  # names of what the user's code has read
_RESULTS = 3  # metrics in the column of results
_HASH = re.compile("[0-9a-f]{64}")


@click.group()
def runs() -> None:
    """List, show, compare, sync, clean up and delete runs."""


@runs.command("list")
@click.option("--experiment", metavar="NAME", help="Only the runs of this experiment.")
@click.option("--all", "everything", is_flag=True, help="List the runs of studies, too, below their study.")
@click.option("--tree", is_flag=True, help="List forks and repetitions below the run that they come from.")
@click.option(
    "--filter",
    "where",
    metavar="EXPRESSION",
    help="Only the runs that satisfy a condition, such as 'val_f1 > 0.9 and model = lightgbm'. "
    "Comparisons are = != < <= > >= and ~ (contains), joined by and, or, not and brackets.",
)
@click.option("--sort", metavar="NAME", help="Sort by a value, smallest first; -NAME: largest first.")
@click.option(
    "--columns",
    metavar="NAMES",
    help=f"The columns, separated by commas: {', '.join(FIELDS)}, result, or a metric (val_f1).",
)
@click.option(
    "--gpu-price",
    type=click.FloatRange(min=0),
    envvar="TRAINWRIGHT_GPU_PRICE",
    help="The price of one GPU for an hour, for the column cost.  [default: $TRAINWRIGHT_GPU_PRICE]",
)
@options.runs_dir
@options.as_json
def list_runs(
    tree: bool,
    everything: bool,
    columns: str | None,
    as_json: bool,
    experiment: str | None,
    runs_dir: str | None,
    **how: Any,
) -> None:
    """List the runs, newest first.

    The runs of a search, cross-validation or benchmark are one line, that of their study; with --all, they
    are below it. With --filter or --sort, each run has a line of its own.
    """
    from trainwright.api import summaries

    if tree and how["sort"]:
        raise click.UsageError("--tree has an order of its own: leave out --sort")
    documents = summaries(runs_dir, experiment, **how)
    depths = [0] * len(documents)
    if tree:
        from trainwright.records.lineage import as_forest

        documents, depths = as_forest(documents)
    if as_json:
        for document in documents:
            document["report"] = existing(Path(document["path"]) / "report.html")
    rows = [*zip(documents, depths, strict=True)]
    if not (as_json or how["where"] or how["sort"]):
        from trainwright.records.listing import runs_folder
        from trainwright.records.study_list import grouped, listed_studies

        rows = grouped(rows, listed_studies(runs_folder(runs_dir), experiment), everything=everything)
    names = _columns([document for document, _ in rows], columns, tree=tree)
    cells = ([_list_cell(document, name, depth) for name in names] for document, depth in rows)
    show(
        documents,
        table(cells, [_HEADS.get(name, name) for name in names]) if documents else ["no runs"],
        as_json,
    )


_HEADS = {"gpu_hours": "GPU hours"}


def _columns(documents: Sequence[dict[str, Any]], wanted: str | None, *, tree: bool) -> list[str]:
    """Return the names of the columns of a list."""
    if wanted is not None:
        names = [name.strip() for name in wanted.split(",") if name.strip()]
        metrics = {name for document in documents for name in document.get("metrics", {})}
        if documents:
            check_names(names, {*FIELDS, "result", "origin", *metrics}, "--columns")
        return names
    having = [name for name in ("gpu_hours", "cost") if any(document.get(name) for document in documents)]
    base = ("run", "experiment", "status", "steps", "model", "data", "duration")
    return [*base, *having, "result", *(["origin"] if tree else [])]


def _list_cell(document: dict[str, Any], name: str, depth: int) -> Any:
    """Return the value of a column for a run."""
    match name:
        case "run":
            return "  " * depth + str(document["run_id"])
        case "result":
            return document.get("summary") or _brief(document.get("metrics", {}))
        case "origin":
            return _origin(document)
        case "duration" if document.get("duration") is not None:
            from trainwright.reports.scales import duration

            return duration(document["duration"])
        case _:
            return document.get(name) if name in FIELDS else values(document).get(name)


def _origin(document: dict[str, Any]) -> str | None:
    """Return the relation of a run to its parent, the step, and the parent if it is not listed above it."""
    if (parent := document.get("parent")) is None:
        return None
    step = "" if parent["step"] is None else f" at step {parent['step']}"
    return f"{parent['relation']}{step}" + ("" if document.get("depth") else f" of {parent['run_id']}")


def _brief(metrics: dict[str, Any]) -> str:
    """Return the first test metrics as text, or the first validation metrics if there are none."""
    names = [name for name in metrics if name.startswith("test_")] or list(metrics)
    return "  ".join(f"{name} {number(float(metrics[name]), zeros=False)}" for name in names[:_RESULTS])


@runs.command("show")
@options.run_argument
@options.runs_dir
@options.as_json
def show_run(run: str, runs_dir: str | None, as_json: bool) -> None:
    """Show a run: its status, inputs and results."""
    from trainwright.records.run_dir import RunDir
    from trainwright.reports.summary import damage, summary_table

    shown = trainwright.get(run, runs_dir=runs_dir)
    problems = damage(shown.path)
    for problem in problems:
        logging.getLogger("trainwright").warning("%s", problem)
    manifest = RunDir(shown.path).manifest()
    document = run_details(shown, manifest, problems)
    places = [("url", document["url"]), ("directory", shown.path), ("report", document["report"])]
    rows = [
        *summary_table(shown.path),
        *_lineage(RunDir(shown.path)),
        *_decisions(shown),
        *(_inputs(manifest) if manifest else ()),
        *_exports(document["exports"]),
        ("size", _sizes(document["bytes"])),
        *((name, place) for name, place in places if place),
    ]
    show(document, table(rows), as_json)


def _exports(exports: Sequence[Mapping[str, str]]) -> Iterator[tuple[str, str]]:
    """Yield the models that were exported from a run and are still where they were written."""
    for one in exports:
        gone = "" if Path(one["path"]).exists() else ", no longer there"
        yield "export", f"{one['path']} ({one['format']}, {one['made']}{gone})"


def _sizes(sizes: Mapping[str, int]) -> str:
    """Return the size of a run's files in words, the largest kind first."""
    kinds = sorted(((count, kind) for kind, count in sizes.items() if count), reverse=True)
    return f"{size(sum(sizes.values()))}: {', '.join(f'{kind} {size(count)}' for count, kind in kinds)}"


def _lineage(run: RunDir) -> Iterator[tuple[str, str]]:
    """Yield where a run comes from, what is changed, and why it does not go on exactly."""
    if (lineage := run.lineage()) is None:
        return
    yield "origin", lineage.in_words()
    if lineage.relation != "reproduce":
        yield from (("changed", one) for one in lineage.changed)
    manifest = run.manifest()
    if manifest is not None and manifest.initial is not None:
        yield from (("not exact", one) for one in manifest.initial.differs)


def _decisions(run: Run) -> Iterator[tuple[str, str]]:
    """Yield the decisions but for the verdicts that changed nothing."""
    from trainwright.reports.journal import in_words

    for decision in run.decisions:
        if decision["kind"] != "keep":
            yield "decision", f"step {decision['step']}: {in_words(decision['kind'], decision['detail'])}"


def _inputs(manifest: Manifest) -> list[tuple[str, Any]]:
    return [
        ("created", manifest.created),
        ("seed", manifest.seed),
        ("config", manifest.computation_hash),
        ("data", manifest.data.hash),
        ("code", manifest.code.hash),
        *([("read by the code", ", ".join(read))] if (read := _read(manifest)) else []),
        ("environment", manifest.environment.hash),
        ("initial weights", manifest.weights.initial),
        *([("initial state", manifest.initial.state_digest)] if manifest.initial else []),
    ]


def _read(manifest: Manifest) -> list[str]:
    """Return the names of the first files and variables that the user's code has read."""
    names = [*manifest.observed.files, *(f"${name}" for name in manifest.observed.variables)]
    more = len(names) - _READ
    return [*names[:_READ], *([f"{more} more"] if more > 0 else [])]


@runs.command()
@click.argument("first")
@click.argument("others", nargs=-1, required=True)
@click.option("--all", "everything", is_flag=True, help="Show results that are equal, and digests, too.")
@click.option("--data", metavar="FILE", help="Compare the predictions for the rows of this file.")
@options.reading
@options.trust
@options.runs_dir
@options.as_json
def compare(first: str, others: Sequence[str], everything: bool, as_json: bool, **how: Any) -> None:
    """Show how runs differ from the first one.

    Config, other inputs, then results, and only what differs. If two were tested on the same rows, their
    models predict these again, and a significance test says whether chance explains the difference.

    The path of an exported model can be given for a run. Then predictions are compared, for the rows of the
    test split of its run, or of --data: the differences, the rows that differ most, metrics, the time of a
    call and the size.
    """
    pairs = [trainwright.compare(first, other, **how) for other in others]
    documents = [pair.to_json() for pair in pairs]
    from trainwright.runs.comparison import Comparison

    of_runs = [pair for pair in pairs if isinstance(pair, Comparison)]
    of_predictions = [pair for pair in pairs if not isinstance(pair, Comparison)]
    lines = [*(_compared(of_runs, everything=everything) if of_runs else ())]
    for pair in of_predictions:
        lines += ["", *_predictions(pair)] if lines else _predictions(pair)
    show(documents[0] if len(pairs) == 1 else documents, lines, as_json)


def _predictions(pair: PredictionComparison) -> Iterator[str]:
    """Yield the lines about the predictions of two models."""
    labels = "" if pair.equal_labels is None else f"; {pair.equal_labels:.2%} of labels equal"
    yield f"predictions of {' and '.join(pair.models)} for {pair.rows:,} rows ({pair.source}):"
    yield (f"  largest difference {pair.largest_difference:.3g}, mean {pair.mean_difference:.3g}{labels}")
    yield ""
    worst = [(one.row, _short(one.first), _short(one.second), one.difference) for one in pair.worst]
    head = ("row", *pair.models, "difference")
    yield from _section("rows that differ most", worst, head, "none", everything=True)
    numbers = [(one.name, one.first, one.second, one.delta) for one in pair.numbers]
    yield from _section("results", numbers, ("", *pair.models, "delta"), "none")


def _compared(pairs: Sequence[Comparison], *, everything: bool) -> Iterator[str]:
    runs = [pairs[0].runs[0], *(pair.runs[1] for pair in pairs)]
    config = _side_by_side([pair.config for pair in pairs])
    yield from _section("config", config, ("key", *runs), "no differences", everything=everything)
    inputs = _side_by_side([pair.inputs or () for pair in pairs])
    inputs = inputs if everything else _in_words(inputs)
    unknown = [pair for pair in pairs if pair.inputs is None]
    empty = "not known: a run ended before they were recorded" if unknown else "no differences"
    always = everything or bool(unknown)
    yield from _section("other inputs", inputs, ("input", *runs), empty, everything=always)
    if inputs and unknown:
        yield from (f"other inputs, of {' and '.join(pair.runs[1] for pair in unknown)}: not known", "")
    if not (config or inputs or unknown or everything):
        yield from ("inputs: no differences", "")
    yield from _results(pairs, runs, everything=everything)
    for pair in pairs:
        yield from _tests_of(pair, runs, everything=everything)
    missing = any(None in pair.digests for pair in pairs)
    same = all(pair.same_digest for pair in pairs)
    yield f"digests: {'not there yet' if missing else 'the same' if same else 'different'}"
    if everything:
        digests = [pairs[0].digests[0], *(pair.digests[1] for pair in pairs)]
        yield from (f"  {line}" for line in table(zip(runs, digests, strict=True)))


def _side_by_side(differences: Sequence[Sequence[Difference]]) -> list[list[Any]]:
    """Return a row for each thing that differs: its name, and its value in the first run and in all others.

    Args:
        differences: Of each other run from the first.
    """
    names = {(one.input, one.what): one.before for of_run in differences for one in of_run}
    rows = []
    for (kind, what), before in names.items():
        changed = [{(one.input, one.what): one.now for one in of_run} for of_run in differences]
        name = what if kind == "config" else f"{kind}: {what}"
        rows.append([name, _short(before), *(_short(one.get((kind, what), before)) for one in changed)])
    return rows


def _in_words(rows: Sequence[Sequence[Any]]) -> list[list[Any]]:
    """Say in one row which states runs start from, instead of a row for each fact of these states."""
    facts = {row[0].removeprefix(_STATE): row[1:] for row in rows if row[0].startswith(_STATE)}
    others = [list(row) for row in rows if not row[0].startswith(_STATE)]
    if not facts:
        return others
    count = len(next(iter(facts.values())))
    said = [_start({fact: values[i] for fact, values in facts.items()}) for i in range(count)]
    return [["starts from", *said], *others]


def _start(facts: Mapping[str, Any]) -> str:
    """Return what a run starts from, by what differs of its initial state from others'."""
    if facts.get("step") is not None:
        return f"another run, step {facts['step']}"
    if "step" in facts:
        return "the beginning"
    known = next((str(value) for value in facts.values() if value is not None), "")
    return f"another state, {known[:12]}" if known else "another state"


def _results(pairs: Sequence[Comparison], runs: Sequence[str], *, everything: bool) -> Iterator[str]:
    """Yield the section of metrics, steps and speed; of two runs with their differences."""
    numbers = [{one.name: one for one in pair.numbers} for pair in pairs]
    rows = []
    for name in dict.fromkeys(name for of_run in numbers for name in of_run):
        every = [of_run[name] for of_run in numbers if name in of_run]
        if everything or any(one.first != one.second for one in every):
            values = [of_run[name].second if name in of_run else None for of_run in numbers]
            deltas = [every[0].delta] if len(pairs) == 1 else []
            rows.append([name, every[0].first, *values, *deltas])
    head = ("", *runs, *(["delta"] if len(pairs) == 1 else []))
    known = any(numbers)
    yield from _section("results", rows, head, "no differences" if known else "none yet")


def _tests_of(pair: Comparison, runs: Sequence[str], *, everything: bool) -> Iterator[str]:
    """Yield the section of significance tests of two runs."""
    tests = [
        (test.metric, test.effect, _interval(test), test.p_value, test.test, test.pairs)
        for test in pair.tests
    ]
    head = ("metric", "difference", "95% interval", "p-value", "test", "rows")
    of = f" of {pair.runs[1]}" if len(runs) > 2 else ""
    empty = f"no test: {pair.untested or 'no metrics'}"
    always = everything or not pair.same_digest
    yield from _section(f"significance{of}, on the same test rows", tests, head, empty, everything=always)
    if pair.simpler:
        one, other = sorted(pair.model_bytes, key=lambda count: count or 0)
        sizes = f"its weights have {size(one or 0)}, the other's {size(other or 0)}"
        yield f"equal within the noise of these rows: use the simpler one, {pair.simpler} ({sizes})"
        yield ""


def _interval(test: Significance) -> str:
    return f"{number(test.low, zeros=False)} to {number(test.high, zeros=False)}"


def _section(
    name: str, rows: Sequence[Sequence[Any]], head: Sequence[str], empty: str, *, everything: bool = True
) -> Iterator[str]:
    """Yield the lines of a section; without rows, only where everything is shown."""
    if not rows and not everything:
        return
    yield f"{name}:" if rows else f"{name}: {empty}"
    yield from (f"  {line}" for line in (table(rows, head) if rows else ()))
    yield ""


def _short(value: Any, width: int = 40) -> Any:
    text = str(value)
    if _HASH.fullmatch(text):
        return f"{text[:12]}…"
    return value if len(text) <= width else f"{text[: width - 1]}…"


@runs.command()
@options.run_argument
@options.trust
@options.runs_dir
@options.as_json
@click.pass_context
def sync(ctx: click.Context, run: str, trust: bool, runs_dir: str | None, as_json: bool) -> None:
    """Send to the trackers what they do not have yet.

    The exit code is 1 if anything is still missing.
    """
    reports = trainwright.sync(run, runs_dir=runs_dir, trust=trust)
    rows = [(report.tracker, report.sent, report.pending, report.error or "complete") for report in reports]
    lines = (
        table(rows, ("tracker", "values sent", "still to send", "state"))
        if rows
        else ["this run has no trackers"]
    )
    show([report._asdict() for report in reports], lines, as_json)
    ctx.exit(1 if any(report.pending or report.error for report in reports) else 0)


runs.add_command(clean)
runs.add_command(delete)
