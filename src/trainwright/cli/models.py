"""`evaluate`, `predict`, `explain`, `export`, `report`: the commands that use a trained model."""

from __future__ import annotations

import csv
import logging
from collections.abc import Sequence
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
    from trainwright.api.results import changed_code
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
    quoted pattern of such files. It is read as the training data were. A language model says how well it
    predicts a text FILE. A model of images also takes an image, or a folder of images.

    The rows are read, and predictions written, chunk by chunk: FILE may be larger than memory.

    Several processes can share the model out: `trainwright predict RUN FILE -o OUTPUT distributed.nproc=2
    distributed.strategy=fsdp`. Without -o, all predictions are then in memory at the end.
    """
    names = next(csv.reader([",".join(keep)]), [])
    if output is None:
        return _print_predictions(run, file, as_json, keep=names, **how)
    _refuse_output(output, force)
    from trainwright.api.results import changed_code
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
@options.run_argument
@click.argument("path", type=click.Path(path_type=Path), required=False)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="The same as PATH.")
@click.option(
    "--format",
    "form",
    help="A format of the model's library: ubj, txt, skops ...; or one that includes the preparation of "
    "raw rows: onnx, native, sklearn, mlflow.  [default: by the suffix of PATH; without one, the library's "
    "usual format]",
)
@click.option(
    "--tolerance",
    type=click.FloatRange(min=0),
    help="With --format onnx: the largest difference of an output, beside its size where that is above 1.  "
    "[default: 1e-5]",
)
@click.option("--licence", "--license", help="With --format onnx: the terms of use, for the certificate.")
@click.option(
    "--option",
    "chosen_options",
    metavar="NAME=VALUE",
    multiple=True,
    help="An option of the format, as docs/export.md lists them; may be given several times.",
)
@click.option(
    "--max-shard-size",
    metavar="SIZE",
    callback=options.size,
    help="With --format safetensors: make PATH a folder with files of at most this size, such as 5GB, and an "
    "index of them, as transformers does.",
)
@click.option("--force", is_flag=True, help="Replace PATH if it exists.")
@options.trust
@options.runs_dir
@options.as_json
def export(
    run: str,
    path: Path | None,
    output: Path | None,
    form: str | None,
    tolerance: float | None,
    licence: str | None,
    chosen_options: tuple[str, ...],
    max_shard_size: int | None,
    force: bool,
    trust: bool,
    runs_dir: str | None,
    as_json: bool,
) -> None:
    """Export a run's model for use without Trainwright.

    It is written to PATH, for ONNX Runtime, its own library, scikit-learn or MLflow.
    """
    if (path is None) == (output is None):
        raise click.UsageError("say once where to write it: export RUN PATH, or -o PATH")
    path = path or output
    assert path is not None
    if path.exists() and not force:
        raise click.BadParameter(
            f"{path} already exists: choose another name, or replace it with --force", param_hint="PATH"
        )
    if form is None and (path.suffix == ".safetensors" or max_shard_size is not None):
        form = "safetensors"
    from trainwright.api.results import certified_form

    certified = certified_form(path, form)
    if certified is not None or tolerance is not None or licence is not None or chosen_options:
        where: dict[str, Any] = {"runs_dir": runs_dir, "trust": trust, "options": _pairs(chosen_options)}
        made = trainwright.export(run, path, certified or form, tolerance=tolerance, licence=licence, **where)
        _show_certificate(made, as_json)
        return
    if form in ("native", "sklearn", "mlflow", "safetensors"):
        chosen = form
        made = trainwright.export(
            run, path, form, max_shard_size=max_shard_size, runs_dir=runs_dir, trust=trust
        )
    else:
        predictor = trainwright.load(run, runs_dir=runs_dir, trust=trust)
        chosen = predictor.export_format(path, form)
        made = predictor.export(path, chosen)
    show({"path": str(made), "format": chosen}, [f"{made} ({chosen})", *_advice(made, chosen)], as_json)


def _pairs(words: Sequence[str]) -> dict[str, str]:
    """Return the values of options by name."""
    for word in words:
        if "=" not in word:
            raise click.BadParameter(f"{word}: give NAME=VALUE", param_hint="--option")
    return dict(word.split("=", 1) for word in words)


def _show_certificate(made: Path, as_json: bool) -> None:
    """Say what the certificate of an exported model says."""
    from trainwright.exporters.certificates.certify import certificate_of, read_certificate, reader_of

    known = read_certificate(made)
    compared, latency = known.compared, known.latency_seconds
    counts = " and ".join(f"{count} {name}" for name, count in compared["rows"].items())
    lines = [
        f"{made} ({known.format}, {sum(one['bytes'] for one in known.files.values()):,} bytes)",
        f"compared with the run on {counts} rows, in batches of {', '.join(map(str, compared['batches']))}: "
        f"largest difference {compared['largest_difference']:.3g}, mean {compared['mean_difference']:.3g}; "
        f"{compared['equal_labels']:.2%} of labels equal",
        f"a call takes {latency['1'] * 1e3:.3g} ms for 1 row, {latency['64'] * 1e3:.3g} ms for 64",
        f"certificate: {certificate_of(made)}",
        f"verify it anywhere: python {reader_of(made)} verify",
    ]
    show({"path": str(made), "format": known.format, "certificate": known.to_json()}, lines, as_json)


def _advice(made: Path, form: str) -> list[str]:
    """Return what to know of a model that was exported with its preparation."""
    if form == "mlflow":
        return [f"serve it: mlflow models serve -m {made} --env-manager local"]
    if form == "native":
        import json

        columns = made.with_name(f"{made.name}.columns.json")
        lacks = json.loads(columns.read_text(encoding="utf-8"))["lacks"]
        notes = [f"not included, so prepare it yourself: {line}" for line in lacks]
        return [f"{columns} (the columns; examples/predict_native.py reads both)", *notes]
    return []


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
