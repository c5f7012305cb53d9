"""`evaluate`, `predict`, `explain`, `export`, `report`: the commands that use a trained model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

import trainyard
from trainyard.cli import options
from trainyard.cli.errors import to_stderr
from trainyard.cli.output import json_document, say_data, show, table


@click.command()
@options.run_argument
@click.option(
    "--split",
    type=click.Choice(["test", "val", "train"]),
    help="A split of the run's own data.  [default: test]",
)
@click.option(
    "--data",
    metavar="FILE",
    help="A CSV or Parquet file to evaluate on instead; it must have the target column.",
)
@options.trust
@options.runs_dir
@options.as_json
def evaluate(
    run: str, split: Any, data: str | None, trust: bool, runs_dir: str | None, as_json: bool
) -> None:
    """Compute the metrics of a run's model."""
    if split and data:
        raise click.UsageError("--split uses the run's own data and --data other rows: give one of them")
    from trainyard.records.listing import has_model
    from trainyard.runs.lookup import find

    run_id = find(run, runs_dir, has_model).id
    metrics = trainyard.evaluate(run, split=split or "test", data=data, runs_dir=runs_dir, trust=trust)
    show(
        {"run_id": run_id, "data": data, "split": None if data else split or "test", "metrics": metrics},
        table(metrics.items()),
        as_json,
    )


@click.command()
@options.run_argument
@click.argument("file")
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="A .csv or .parquet file.  [default: CSV to stdout]",
)
@click.option("--force", is_flag=True, help="Replace the output if it exists.")
@options.trust
@options.runs_dir
@options.as_json
def predict(
    run: str, file: str, output: Path | None, force: bool, trust: bool, runs_dir: str | None, as_json: bool
) -> None:
    """Predict for the rows of a CSV or Parquet FILE."""
    if output is not None:
        _refuse_output(output, force)
    frame = trainyard.predict(run, file, runs_dir=runs_dir, trust=trust)
    if output is None:
        document = frame.to_dict(orient="records")
        say_data(json_document(document) if as_json else frame.to_csv(index=False).rstrip("\n"))
        return
    if output.suffix == ".csv":
        frame.to_csv(output, index=False)
    else:
        frame.to_parquet(output, index=False)
    show(
        {"rows": len(frame), "columns": list(frame.columns), "output": str(output)},
        [f"{len(frame)} predictions: {output}"],
        as_json,
    )


@click.command()
@options.run_argument
@options.trust
@options.runs_dir
@options.as_json
def explain(run: str, trust: bool, runs_dir: str | None, as_json: bool) -> None:
    """Explain a run's model by importance, SHAP values and partial dependence; update its report."""
    from trainyard.records.listing import has_model
    from trainyard.reports.explanations import ranking
    from trainyard.runs.lookup import find

    path = find(run, runs_dir, has_model).path / "report.html"
    explanation = trainyard.explain(run, runs_dir=runs_dir, trust=trust)
    rows = ranking(explanation)
    lines = table(rows, ("column", "permutation", "mean |SHAP|")) if rows else []
    show(explanation, [*lines, *explanation["notes"], f"report: {path}"], as_json)


@click.command()
@options.run_argument
@click.argument("path", type=click.Path(path_type=Path))
@click.option(
    "--format",
    "form",
    help="ubj, txt, skops ...  [default: by the suffix of PATH; without one, the library's usual format]",
)
@click.option("--force", is_flag=True, help="Replace PATH if it exists.")
@options.trust
@options.runs_dir
@options.as_json
def export(
    run: str, path: Path, form: str | None, force: bool, trust: bool, runs_dir: str | None, as_json: bool
) -> None:
    """Write a run's model to PATH in its library's own format, for use without Trainyard."""
    if path.exists() and not force:
        raise click.BadParameter(
            f"{path} already exists: choose another name, or replace it with --force", param_hint="PATH"
        )
    predictor = trainyard.load(run, runs_dir=runs_dir, trust=trust)
    chosen = predictor.export_format(path, form)
    made = predictor.export(path, chosen)
    show({"path": str(made), "format": chosen}, [f"{made} ({chosen})"], as_json)


@click.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
@click.option("--card", is_flag=True, help="Write a model card instead: Markdown with metadata for hubs.")
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The file of the card, or of the page of several runs.  "
    "[default: model-card.md in the run directory, runs.html]",
)
@options.runs_dir
@options.as_json
def report(
    runs: tuple[str, ...], card: bool, output: Path | None, runs_dir: str | None, as_json: bool
) -> None:
    """Write a run's report.html again, and say what is wrong with the run.

    Of several runs, write one page that overlays their curves and shows first what differs.
    """
    path = trainyard.report(*runs, output=output, card=card, runs_dir=runs_dir)
    if card or len(runs) > 1:
        show({"card" if card else "report": str(path)}, [str(path)], as_json)
        return
    from trainyard.reports.diagnosis import diagnose
    from trainyard.reports.rundir import read_run

    findings = diagnose(read_run(path.parent))
    document = {"report": str(path), "diagnosis": [one._asdict() for one in findings]}
    show(document, [str(path)], as_json)
    for one in [] if as_json else findings:
        to_stderr(f"{one.title}\n  seen: {one.seen}\n  try:  {one.mend}")


def _refuse_output(output: Path, force: bool) -> None:
    """Refuse an output that cannot be written before the work begins."""
    if output.suffix not in (".csv", ".parquet"):
        raise click.BadParameter(f"{output}: the name must end in .csv or .parquet", param_hint="-o")
    if not output.absolute().parent.is_dir():
        raise click.BadParameter(f"{output}: there is no folder {output.parent}", param_hint="-o")
    if output.exists() and not force:
        raise click.BadParameter(
            f"{output} already exists: choose another name, or replace it with --force", param_hint="-o"
        )
