"""`evaluate`, `predict`, `explain`, `export`, `report`: the commands that use a trained model."""

from __future__ import annotations

import csv
import logging
from pathlib import Path
from typing import Any

import click

import trainwright
from trainwright.api.documents import json_document
from trainwright.cli import options
from trainwright.cli.errors import to_stderr
from trainwright.cli.output import say_data, show, table
from trainwright.errors import InputError

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
@click.argument("file")
@options.mesh
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="A .csv, .csv.gz, .parquet, .jsonl or .xlsx file; for masks a folder, which gets a PNG file for "
    "each image.  [default: CSV to stdout]",
)
@click.option(
    "--keep",
    metavar="COLUMNS",
    help="Columns of FILE to carry over, separated by commas: --keep id,name; may be given several times.",
    multiple=True,
)
@click.option(
    "--threshold",
    type=click.FloatRange(0, 1),
    help="Predict the positive one of two classes, or a label, where its probability is at least this.  "
    "[default: the most probable class]",
)
@click.option(
    "--proba/--no-proba",
    default=None,
    help="Write the probabilities of the classes, or leave them out.  [default: write them, where there "
    "are any]",
)
@click.option(
    "--interval",
    metavar="LEVEL",
    type=float,
    help="Add the ends of prediction intervals of this level, such as 0.9; they are calibrated on the run's "
    "validation rows.",
)
@click.option(
    "--on-error",
    type=click.Choice(["null", "skip", "stop"]),
    help="What becomes of a row that cannot be read, such as one with text in a column of numbers: null: its "
    "prediction is empty, and a column `error` says why; skip: it is left out; stop: it ends the command.  "
    "[default: null, with the column only if there is such a row]",
)
@options.reading
@click.option("--force", is_flag=True, help="Replace the output if it exists.")
@options.trust
@options.runs_dir
@options.as_json
def predict(
    run: str,
    file: str,
    output: Path | None,
    keep: tuple[str, ...],
    force: bool,
    as_json: bool,
    **how: Any,
) -> int:
    """Predict for the rows of FILE.

    FILE is a table: CSV (also .gz, .bz2, .xz or .zst), Parquet, JSON Lines, Excel or npz, or a folder or a
    quoted pattern of such files, or a version of data (churn@v3). It is read as the training data were. A
    language model says how well it predicts a text FILE. A model of images also takes an image, or a folder
    of images.

    The rows are read, and predictions written, chunk by chunk: FILE may be larger than memory.

    Several processes can share the model out: `trainwright predict RUN FILE -o OUTPUT distributed.nproc=2
    distributed.strategy=fsdp`. Without -o, all predictions are then in memory at the end.
    """
    names = next(csv.reader([",".join(keep)]), [])
    if output is None:
        return _print_predictions(run, file, as_json, keep=names, **how)
    _refuse_output(output, force)
    from trainwright.api.results import changed_code, changed_files
    from trainwright.records.listing import has_model
    from trainwright.runs.lookup import find

    found = find(run, how["runs_dir"], has_model)
    written = trainwright.predict_file(run, file, output, keep=names, **how)
    changed = sorted(changed_code(found))
    show(
        {
            "rows": written.rows,
            "columns": list(written.columns),
            "output": str(output),
            "failed": written.failed,
            "unusual": written.unusual,
            "changed_code": changed,
            "changed_files": changed_files(found),
        },
        [f"{written.rows} predictions: {output}"],
        as_json,
    )
    return _code(written.rows, written.failed, how["on_error"])


def _code(rows: int, failed: int, on_error: str | None) -> int:
    """Return the exit code: 1 if no row could be predicted."""
    return int(failed > 0 and rows == (0 if on_error == "skip" else failed))


def _print_predictions(run: str, file: str, as_json: bool, **how: Any) -> int:
    """Print predictions as CSV chunk by chunk, or as one JSON document; return the exit code."""
    if as_json:
        frame = trainwright.predict(run, file, **how)
        say_data(json_document(frame.to_dict(orient="records")))
        return _code(len(frame), _failed(frame, how["on_error"]), how["on_error"])
    from trainwright.api import predict_chunks
    from trainwright.inference.written_tables import csv_text

    rows = failed = 0
    for number, frame in enumerate(predict_chunks(run, file, **how)):
        say_data(csv_text(frame, header=number == 0).rstrip("\n"))
        rows, failed = rows + len(frame), failed + _failed(frame, how["on_error"])
    return _code(rows, failed, how["on_error"])


def _failed(frame: Any, on_error: str | None) -> int:
    """Return the number of rows without a prediction; of those that are left out, whether no row is left."""
    if on_error == "skip":
        return int(not len(frame))
    return int(frame["error"].notna().sum()) if on_error != "stop" and "error" in frame else 0


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


def _refuse_output(output: Path, force: bool) -> None:
    """Refuse an output that cannot be written before the work begins; masks take the place of older ones."""
    if not output.suffix:  # a folder, which only masks need
        if output.exists() and not (output.is_dir() and (force or not any(output.iterdir()))):
            raise click.BadParameter(
                f"{output} already exists and is not an empty folder: choose another name, or write into it "
                "with --force",
                param_hint="-o",
            )
        return
    from trainwright.inference.written_tables import check_output

    try:
        check_output(output)
    except InputError as error:
        raise click.BadParameter(str(error), param_hint="-o") from None
    if not output.absolute().parent.is_dir():
        raise click.BadParameter(f"{output}: there is no folder {output.parent}", param_hint="-o")
    if output.exists() and not force:
        raise click.BadParameter(
            f"{output} already exists: choose another name, or replace it with --force", param_hint="-o"
        )
