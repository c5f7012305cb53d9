"""`evaluate`, `predict`, `report`: what one does with a trained run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

import trainyard
from trainyard.cli import options
from trainyard.cli.output import show, table


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
    help="The rows of a CSV or Parquet file instead; it must have the target column.",
)
@options.trust
@options.runs_dir
@options.as_json
def evaluate(
    run: str, split: Any, data: str | None, trust: bool, runs_dir: str | None, as_json: bool
) -> None:
    """Compute the metrics of a run's model."""
    if split and data:
        raise click.UsageError("--split means the run's own data, --data other rows: give one of them")
    metrics = trainyard.evaluate(run, split=split or "test", data=data, runs_dir=runs_dir, trust=trust)
    found = trainyard.get(run, runs_dir=runs_dir)
    show(
        {"run_id": found.id, "data": data, "split": None if data else split or "test", "metrics": metrics},
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
@click.option("--force", is_flag=True, help="Replace the output, if it is there.")
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
        show(
            frame.to_dict(orient="records") if as_json else None,
            [frame.to_csv(index=False).rstrip("\n")],
            as_json,
        )
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
    """Tell what a run's model looks at, and put it into its report: importance, SHAP values, partial dependence."""
    from trainyard.reports.explanations import ranking

    found = trainyard.explain(run, runs_dir=runs_dir, trust=trust)
    path = trainyard.get(run, runs_dir=runs_dir).path / "report.html"
    rows = ranking(found)
    lines = table(rows, ("column", "permutation", "mean |SHAP|")) if rows else []
    show(found, [*lines, *found["notes"], f"report: {path}"], as_json)


@click.command()
@options.run_argument
@click.argument("path", type=click.Path(path_type=Path))
@click.option(
    "--format",
    "form",
    help="ubj, txt, skops ...  [default: what PATH ends with; the usual one if it has no ending]",
)
@click.option("--force", is_flag=True, help="Replace what is at PATH.")
@options.trust
@options.runs_dir
@options.as_json
def export(
    run: str, path: Path, form: str | None, force: bool, trust: bool, runs_dir: str | None, as_json: bool
) -> None:
    """Write a run's model to PATH as its library itself writes one, to be used without Trainyard."""
    if path.exists() and not force:
        raise click.BadParameter(
            f"{path} is there already: choose another name, or replace it with --force", param_hint="PATH"
        )
    predictor = trainyard.load(run, runs_dir=runs_dir, trust=trust)
    chosen = predictor.export_format(path, form)
    made = predictor.export(path, chosen)
    show({"path": str(made), "format": chosen}, [f"{made} ({chosen})"], as_json)


@click.command()
@options.run_argument
@options.runs_dir
@options.as_json
def report(run: str, runs_dir: str | None, as_json: bool) -> None:
    """Write a run's report.html anew."""
    path = trainyard.report(run, runs_dir=runs_dir)
    show({"report": str(path)}, [str(path)], as_json)


def _refuse_output(output: Path, force: bool) -> None:
    """Says before the work begins that its result has no place."""
    if output.suffix not in (".csv", ".parquet"):
        raise click.BadParameter(f"{output}: the name must end in .csv or .parquet", param_hint="-o")
    if not output.absolute().parent.is_dir():
        raise click.BadParameter(f"{output}: there is no folder {output.parent}", param_hint="-o")
    if output.exists() and not force:
        raise click.BadParameter(
            f"{output} is there already: choose another name, or replace it with --force", param_hint="-o"
        )
