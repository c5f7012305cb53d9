"""`evaluate`, `explain`, `report`: commands that use a trained model."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import click

import trainwright
from trainwright.cli import options
from trainwright.cli.errors import to_stderr
from trainwright.cli.output import show, table

log = logging.getLogger("trainwright")


@click.command()
@options.run_argument
@click.argument("words", nargs=-1, metavar="[FILE] [distributed.KEY=VALUE]...")
@click.option(
    "--split",
    type=click.Choice(["test", "val", "train"]),
    help="A split of the run's own data.  [default: test]",
)
@click.option(
    "--data",
    metavar="FILE",
    help="The same as FILE.",
)
@click.option(
    "--on-error",
    type=click.Choice(["skip", "stop"]),
    default="stop",
    show_default=True,
    help="What becomes of a row of FILE that cannot be read: it is left out and counted, or an error.",
)
@options.reading
@options.trust
@options.runs_dir
@options.as_json
def evaluate(
    run: str,
    words: tuple[str, ...],
    split: Any,
    data: str | None,
    on_error: Any,
    params: dict[str, Any],
    trust: bool,
    runs_dir: str | None,
    as_json: bool,
) -> None:
    """Compute a run's metrics on a split, or on FILE.

    FILE is a table as `predict` takes it, with the target column. A language model takes a text file, or a
    folder of them.

    Several processes can share the model out: `trainwright evaluate RUN distributed.nproc=2
    distributed.strategy=fsdp`.
    """
    overrides = [word for word in words if options.is_override(word)]
    files = [word for word in words if word not in overrides]
    if len(files) > 1:
        raise click.UsageError(f"{files[1]}: give one FILE at a time, and distributed.KEY=VALUE")
    file = next(iter(files), None)
    if file and data:
        raise click.UsageError("FILE and --data are the same: give one of them")
    data = file or data
    if split and data:
        raise click.UsageError("--split uses the run's own data and --data other rows: give one of them")
    from trainwright.api.results import changed_code, changed_files
    from trainwright.records.listing import has_model
    from trainwright.runs.lookup import find

    found = find(run, runs_dir, has_model)
    metrics = trainwright.evaluate(
        run,
        split=split or "test",
        data=data,
        on_error=on_error,
        params=params,
        runs_dir=runs_dir,
        trust=trust,
        overrides=overrides,
    )
    show(
        {
            "run_id": found.id,
            "data": data,
            "split": None if data else split or "test",
            "metrics": metrics,
            "changed_code": sorted(changed_code(found)),
            "changed_files": changed_files(found),
        },
        table(metrics.items()),
        as_json,
    )


@click.command()
@options.run_argument
@options.trust
@options.runs_dir
@options.as_json
def explain(run: str, trust: bool, runs_dir: str | None, as_json: bool) -> None:
    """Explain a run's model, and add that to its report.

    It computes the importance of features, SHAP values and partial dependence.
    """
    from trainwright.records.listing import has_model
    from trainwright.reports.explanations import ranking
    from trainwright.runs.lookup import find

    path = find(run, runs_dir, has_model).path / "report.html"
    explanation = trainwright.explain(run, runs_dir=runs_dir, trust=trust)
    rows = ranking(explanation)
    lines = table(rows, ("column", "permutation", "mean |SHAP|")) if rows else []
    kept = f"report: {path}"
    if "not_kept" in explanation:
        kept = f"not in the report: {explanation['not_kept']}"
    show(explanation, [*lines, *explanation["notes"], kept], as_json)


@click.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
@click.option("--card", is_flag=True, help="Write a model card instead: Markdown with metadata for hubs.")
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The file to write.  [default: report.html or model-card.md in the run directory; runs.html here "
    "for several runs]",
)
@options.runs_dir
@options.as_json
def report(
    runs: tuple[str, ...], card: bool, output: Path | None, runs_dir: str | None, as_json: bool
) -> None:
    """Write a run's report.html, and say what is wrong.

    Of several runs, write one page that overlays their curves and shows first what differs.
    """
    path = trainwright.report(*runs, output=output, card=card, runs_dir=runs_dir)
    if card or len(runs) > 1:
        show({"card" if card else "report": str(path)}, [str(path)], as_json)
        return
    from trainwright.reports.diagnosis import diagnose
    from trainwright.reports.rundir import read_run, understanding

    folder = trainwright.get(runs[0], runs_dir=runs_dir).path
    with understanding(folder):
        files = read_run(folder)
        findings = diagnose(files)
    problems = [*files.problems, *files.history.problems]
    document = {
        "report": str(path),
        "intervals": files.evaluations.get(files.judged_split, {}).get("intervals") or {},
        "diagnosis": [one.to_json() for one in findings],
        "problems": problems,
    }
    show(document, [str(path)], as_json)
    for problem in problems:
        log.warning("%s", problem)
    for one in [] if as_json else findings:
        lines = [one.title, f"  seen: {one.seen}"]
        lines += [f"  try:  {line}" for line in one.mend.splitlines()]
        lines += [f"  note: {one.otherwise}"] if one.otherwise else []
        lines += [f"  expect: {one.expected.words}"] if one.expected else []
        to_stderr("\n".join(lines))
