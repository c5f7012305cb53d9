"""`predict`: predictions for the rows of a file, or of many."""

from __future__ import annotations

import csv
import logging
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import trainwright
from trainwright.api.documents import json_document
from trainwright.cli import options
from trainwright.cli.output import say_data, show
from trainwright.errors import InputError

if TYPE_CHECKING:
    from trainwright.api.batches import BatchProgress


@click.command()
@options.run_argument
@click.argument("words", nargs=-1, metavar="FILE... [distributed.KEY=VALUE]...")
@click.option(
    "-o",
    "--output",
    metavar="PATH",
    help="A .csv, .csv.gz, .parquet, .jsonl or .xlsx file; or a folder, which gets a file for each FILE, and "
    "for masks a PNG file for each image.  [default: CSV to stdout]",
)
@click.option(
    "--to",
    metavar="FORMAT",
    help="The format of the predictions in a folder: csv, csv.gz, parquet, jsonl or xlsx.  [default: that of "
    "each FILE]",
)
@click.option(
    "--processes",
    type=click.IntRange(1),
    help="Processes that predict into a folder, each a FILE at a time; the outputs have the same bytes.  "
    "[default: 1]",
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
@options.quiet
@options.as_json
def predict(
    run: str,
    words: tuple[str, ...],
    output: str | None,
    keep: tuple[str, ...],
    to: str | None,
    processes: int | None,
    force: bool,
    quiet: bool,
    as_json: bool,
    **how: Any,
) -> int:
    """Predict for the rows of FILE, or of many.

    FILE is a table: CSV (also .gz, .bz2, .xz or .zst), Parquet, JSON Lines, Excel or npz, or a folder or a
    quoted pattern of such files, or a version of data (churn@v3). It is read as the training data were. A
    language model says how well it predicts a text FILE. A model of images also takes an image, or a folder
    of images.

    The rows are read, and predictions written, chunk by chunk: FILE may be larger than memory.

    Several processes can share the model out: `trainwright predict RUN FILE -o OUTPUT distributed.nproc=2
    distributed.strategy=fsdp`. Without -o, all predictions are then in memory at the end.

    With a folder as OUTPUT, each FILE, and each file of a folder or a pattern, gets a file of predictions
    there: `trainwright predict RUN data/*.parquet -o out/`. The same command continues where it was killed,
    and later predicts only the files that are new or have changed.
    """
    names = next(csv.reader([",".join(keep)]), [])
    overrides = [word for word in words if options.is_override(word)]
    files = [word for word in words if word not in overrides]
    if not files:
        raise click.UsageError("Missing argument 'FILE'.")
    if _is_batch(files, output):
        if overrides:
            raise click.UsageError(f"{overrides[0]}: several files are predicted by --processes N")
        batch = {"to": to, "processes": processes or 1, "force": force, "keep": names}
        return _predict_into(run, files, str(output), quiet, as_json, **batch, **how)
    if to or processes:
        raise click.UsageError("--to and --processes are for several files, and a folder: -o FOLDER")
    how["overrides"] = overrides
    if output is None:
        return _print_predictions(run, files[0], as_json, keep=names, **how)
    return _predict_file(run, files[0], Path(output), force, as_json, keep=names, **how)


def _is_batch(files: list[str], output: str | None) -> bool:
    """Return whether each file gets a file of predictions in a folder.

    Raises:
        UsageError: There is no folder for them.
    """
    from trainwright.config.file_types import ENDINGS, file_type, holds_tables
    from trainwright.datasets.samples.files import is_pattern

    if output is None or not (output.endswith("/") or Path(output).is_dir() or not Path(output).suffix):
        if len(files) > 1:
            raise click.UsageError(
                f"{len(files)} files given: give a folder for the predictions of each, -o FOLDER. Quote a "
                "pattern of files, so that the shell leaves it alone, for one table of all: 'part-*.csv'"
            )
        return False
    (file, *others) = files
    return bool(others) or is_pattern(file) or file_type(file) in (*ENDINGS, "text") or holds_tables(file)


def _predict_file(run: str, file: str, output: Path, force: bool, as_json: bool, **how: Any) -> int:
    """Write the predictions for a file to another one; return the exit code."""
    _refuse_output(output, force)
    from trainwright.api.results import changed_code, changed_files
    from trainwright.records.listing import has_model
    from trainwright.runs.lookup import find

    found = find(run, how["runs_dir"], has_model)
    written = trainwright.predict_file(run, file, output, **how)
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


def _predict_into(run: str, files: list[str], output: str, quiet: bool, as_json: bool, **how: Any) -> int:
    """Write the predictions for files into a folder; return the exit code: 1 if a file has none."""
    from trainwright.api.results import changed_code, changed_files
    from trainwright.records.listing import has_model
    from trainwright.runs.lookup import find

    found = find(run, how["runs_dir"], has_model)
    shown = None if quiet else _Shown()
    try:
        batch = trainwright.predict_files(run, files, output, watch=shown, **how)
    finally:
        if shown is not None:
            shown.close()
    kept = f" ({batch.kept} were there already)" if batch.kept else ""
    show(
        {
            **batch._asdict(),
            "output": output,
            "changed_code": sorted(changed_code(found)),
            "changed_files": changed_files(found),
        },
        [f"{batch.rows} predictions of {batch.files} files: {output}{kept}"],
        as_json,
    )
    return 1 if batch.errors else _code(batch.rows, batch.failed, how["on_error"])


class _Shown:
    """The progress of a batch on stderr: one line that is drawn again on a terminal, or plain lines."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._next = 0.0
        self._width = 0

    def __call__(self, now: BatchProgress) -> None:
        """Show the progress, at most once a second, and where the last file is finished."""
        from trainwright.callbacks.progress import LINE_SECONDS, hours, line

        if time.monotonic() < self._next and now.files < now.total:
            return
        self._next = time.monotonic() + LINE_SECONDS
        values = {"rows": now.rows, "rows_per_second": round(now.rows_per_second)}
        if now.seconds_left is not None:
            values["eta_seconds"] = round(now.seconds_left)
        if not self._is_terminal:
            sys.stderr.write(line({"event": "predict", "files": f"{now.files}/{now.total}"}, values) + "\n")
        else:
            left = f"  {hours(now.seconds_left)} left" if now.seconds_left is not None else ""
            text = (
                f"{now.files}/{now.total} files  {now.rows:,} rows  {now.rows_per_second:,.0f} rows/s{left}"
            )
            sys.stderr.write("\r" + text.ljust(self._width))
            self._width = len(text)
        sys.stderr.flush()

    def close(self) -> None:
        """End the line."""
        if self._width:
            sys.stderr.write("\n")
            self._width = 0


@click.command("predict-files", hidden=True)
@click.argument("answers", type=int)
@click.argument("parent", type=int)
@click.argument("log_level", type=int)
def predict_files(answers: int, parent: int, log_level: int) -> None:
    """Predict the files that arrive on stdin, and write to the descriptor ANSWERS what becomes of each."""
    from trainwright.api.batches import predict_as_worker
    from trainwright.runs.processes.started import end_with

    end_with(parent)
    logging.getLogger("trainwright").setLevel(log_level)
    predict_as_worker(answers)


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
