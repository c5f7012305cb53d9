"""Use the trained models of runs, and compare results."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from trainwright.errors import CheckpointError, InputError
from trainwright.integrations.foreign import refuse_foreign_run
from trainwright.records.listing import has_model
from trainwright.runs.lookup import RunName, find
from trainwright.runs.objects import passed_objects, require_objects
from trainwright.runs.run import Run
from trainwright.runs.workdir import working_directory, working_for
from trainwright.safe_files import usable_path

if TYPE_CHECKING:
    from trainwright.inference.bad_rows import OnError
    from trainwright.inference.file_predictions import PredictionColumns, Tally
    from trainwright.inference.predictor import Predictor
    from trainwright.inference.written_tables import Written
    from trainwright.records.run_dir import RunDir
    from trainwright.runs.comparison import Comparison
    from trainwright.types import Metrics, SplitName

log = logging.getLogger("trainwright")
T = TypeVar("T")
MOST_OVERLAID = 12  # runs on one page: there are as many colors


def load(
    run: RunName = "last", *, runs_dir: Path | str | None = None, model: Any = None, trust: bool = False
) -> Predictor:
    """Return the model of a run, ready to predict: `trainwright.load("last").predict(frame)`.

    Many threads may use it at once, together with other models. Loading and predicting change nothing in the
    process: no thread count, determinism flag or random generator. So its outputs may differ from those
    of the run's own evaluation in the last bits (by 1e-5 at most, relative to the largest); `predict`,
    `evaluate` and `explain` pin the process as the training did, and give its bits.

    A run directory may come from someone else, so not everything that its config names is imported: only a
    framework's own model classes, and code in the caller's own working directory. That holds for all
    functions here; `docs/security.md` has the rules.

    Args:
        run: A run, a path, an id, a unique prefix, or `last`.
        runs_dir: The folder of the runs.
        model: The model object, if `train` was given one; it gets the weights of the run.
        trust: Import all that the run's config names; each import is announced in the log.

    Raises:
        RunNotFoundError: There is no such run.
        InputError: The run has no weights, an object is missing, or the run names code that is not imported.
        CheckpointError: A file that predictions depend on is damaged.
    """
    return _load(find(run, runs_dir, has_model), "load", model, trust=trust, pinned=False)


def _load(run: RunDir, verb: str, model: Any, *, trust: bool, pinned: bool = True, **data: Any) -> Predictor:
    from trainwright.runs.predictor import open_predictor

    refuse_foreign_run(run, verb)
    require_objects(run, verb, model=model, **data)
    with working_for(run, trust=trust):
        predictor = open_predictor(run, model, pinned=pinned)
    _warn_of_changes(run)
    return predictor


def changed_code(run: RunDir) -> dict[str, Path]:
    """Return the user's modules that were imported for a run and are not what it was trained with."""
    from trainwright.runs.code_identity import changed_modules

    manifest = run.manifest()
    return {} if manifest is None else changed_modules(manifest.code)


def _warn_of_changes(run: RunDir, said: Collection[str] = ()) -> None:
    """Warn of code that has changed since a run was trained, but for the modules in `said`."""
    for name, file in changed_code(run).items():
        if name not in said:
            log.warning(
                "module %s (%s) has changed since run %s was trained: results may differ from those of "
                "the trained model; restore the module, or train again",
                name,
                file,
                run.id,
            )


def evaluate(
    run: RunName,
    *,
    split: SplitName = "test",
    data: Any = None,
    on_error: OnError = "stop",
    params: Mapping[str, Any] | None = None,
    runs_dir: Path | str | None = None,
    model: Any = None,
    trust: bool = False,
) -> Metrics:
    """Compute the metrics of a run's model on one of its splits, or on other rows.

    Relative paths in the run's config are relative to where it was started; code is imported as `load` does.

    Args:
        run: A run, a path, an id, a unique prefix, or `last`.
        split: A split of the run's own data.
        data: Other rows: a file as `predict` takes it, or a data frame; for a language model a text file, or
            a folder of them. For a run that was given its data as objects, these again (then `split` is one
            of theirs), or a file.
        on_error: What becomes of a row of a file that cannot be read: `stop`: it is an error; `skip`: it is
            left out, and a warning says how many are.
        params: As in `predict`.
        runs_dir: The folder of the runs.
        model: The model object, if `train` was given one.
        trust: As in `load`.

    Raises:
        RunNotFoundError: There is no such run.
        InputError: The run has no weights or no such split, an object is missing, or the data are not the
            run's own.
        CheckpointError: A file that predictions depend on is damaged.
    """
    found = find(run, runs_dir, has_model)
    is_file = isinstance(data, Path | str)
    predictor = _load(found, "evaluate", model, trust=trust, data=data)
    said = changed_code(found)
    if is_file:
        _warn_of_training_rows(found, predictor, Path(data))
    from trainwright.inference.bad_rows import check_on_error

    check_on_error(on_error)
    _read_with(predictor, params)
    samples = predictor.files.samples(data) if is_file else None  # before the working directory changes
    rows = predictor.files.read(data, on_error) if is_file and samples is None else data
    with working_for(found, working_directory(found), trust=trust):
        bundle = None
        if "data" in passed_objects(found) and not is_file:
            from trainwright.runs.data.bundles import bundle_of_objects

            rows, bundle = None, bundle_of_objects(found, predictor, data)
        metrics = predictor.evaluate(split, rows, samples=samples, bundle=bundle, on_error=on_error).metrics
    _warn_of_changes(found, said)  # in what was imported for the data and the metrics
    return metrics


def _warn_of_training_rows(run: RunDir, predictor: Predictor, file: Path) -> None:
    """Warn if a file to evaluate on is the one that the run was trained on."""
    data, folder = predictor.config.data, working_directory(run)
    trained = [path for path in (data.path, data.train_path) if path] if data else []
    if file.resolve() in [(folder / path).resolve() for path in trained]:
        log.warning(
            "%s holds the rows that the model was trained on, so these metrics flatter it; for rows that it "
            "has not seen: trainwright evaluate %s --split test",
            file,
            run.id,
        )


def predict(
    run: RunName,
    data: Path | str,
    *,
    keep: Sequence[str] = (),
    threshold: float | None = None,
    proba: bool | None = None,
    interval: float | None = None,
    on_error: OnError | None = None,
    params: Mapping[str, Any] | None = None,
    runs_dir: Path | str | None = None,
    model: Any = None,
    trust: bool = False,
) -> Any:
    """Return the predictions for the rows of a file, as a data frame.

    It is a CSV file (which may be compressed), a Parquet, JSON Lines, Excel or npz file, or a folder or a
    pattern of such files. It is read as the training data were; another delimiter is found. An npz file holds
    X, or the arrays that the model takes by name, as in training.

    A language model takes a text file, or a folder of them. The rows are then windows of the length that the
    run was trained with, and the columns sums over each: its loss in `nats`, the `tokens` and the `hits`.

    Args:
        run: A run, a path, an id, a unique prefix, or `last`.
        data: The file, or its URL.
        keep: Columns of the file to carry over.
        threshold: Predict the positive one of two classes, or a label, where its probability is at
            least this.
        proba: Whether to return the probabilities of classes and labels, too. Default: if there are any.
        interval: Add the ends of prediction intervals of this level, such as 0.9: `lower` and `upper`. They
            are calibrated on the run's validation rows, which are read for that.
        on_error: What becomes of a row that cannot be read, such as one with text in a column of numbers, or
            with too few cells. `null`: its prediction is empty, and a column `error` says why; `skip`: it is
            left out; `stop`: it is an error. Default: `null`, and the column is there only if there is such a
            row. A warning says how many there are, and another one how many rows have values outside of the
            range seen in training.
        params: Options of reading the file that replace those of the run's data: `delimiter`, `encoding`,
            `missing` ..., `sheet`; and `decimal`, the decimal mark of numbers in text.
        runs_dir: The folder of the runs.
        model: The model object, if `train` was given one.
        trust: As in `load`.

    Raises:
        RunNotFoundError: There is no such run.
        InputError: The run has no weights, an object is missing, the run names code that is not imported, or
            an option does not fit its task.
        DataError: The file cannot be read, or lacks a column of the training data.
        CheckpointError: A file that predictions depend on is damaged.
    """
    options = _Options(keep, threshold, proba, interval, on_error, params)
    predictions = _predicted(run, options, runs_dir=runs_dir, model=model, trust=trust)
    if not isinstance(data, str | Path):
        raise InputError(
            f"predict reads a file, not a {type(data).__name__}; for rows in memory: "
            "trainwright.load(run).predict(rows)"
        )
    frames = predictions.written(data, list)
    if len(frames) == 1:
        return frames[0]
    import pandas as pd

    return pd.concat(frames, ignore_index=True)


def predict_file(
    run: RunName,
    data: Path | str,
    output: Path | str,
    *,
    keep: Sequence[str] = (),
    threshold: float | None = None,
    proba: bool | None = None,
    interval: float | None = None,
    on_error: OnError | None = None,
    params: Mapping[str, Any] | None = None,
    runs_dir: Path | str | None = None,
    model: Any = None,
    trust: bool = False,
) -> Written:
    """Write the predictions for the rows of a file to another one; both may be larger than memory.

    Args:
        run: A run, a path, an id, a unique prefix, or `last`.
        data: The file, as in `predict`.
        output: The file to write, `.csv` (also `.csv.gz`, `.bz2`, `.xz` or `.zst`), `.parquet`, `.jsonl` or
            `.xlsx`; one of this name is replaced. From a CSV file to
            another one, the cells of columns in `keep` are carried over as they are written. Masks are
            written as PNG files into a folder.
        keep: As in `predict`, like all that follows.
        threshold: As in `predict`.
        proba: As in `predict`.
        interval: As in `predict`.
        on_error: As in `predict`.
        params: As in `predict`.
        runs_dir: The folder of the runs.
        model: The model object, if `train` was given one.
        trust: As in `load`.

    Returns:
        The number of `rows`, the names of the `columns`, the number of rows that `failed`, and the counts of
        `unusual` values.

    Raises:
        RunNotFoundError: There is no such run.
        InputError: As in `predict`; or the output cannot be written.
        DataError: The file cannot be read, or lacks a column of the training data.
        CheckpointError: A file that predictions depend on is damaged.
    """
    from trainwright.inference.mask_files import write_masks
    from trainwright.inference.written_tables import is_csv, write_predictions

    output = usable_path(output)
    options = _Options(keep, threshold, proba, interval, on_error, params, as_written=is_csv(output))
    predictions = _predicted(run, options, runs_dir=runs_dir, model=model, trust=trust)
    if predictions.predictor.gives_masks:
        return write_masks(predictions.frames(data), data, output)
    written = predictions.written(data, lambda frames: write_predictions(frames, output))
    tally = predictions.tally
    return written._replace(failed=tally.failures.failed, unusual=tally.unusual.to_json())


def predict_chunks(
    run: RunName,
    data: Path | str,
    *,
    keep: Sequence[str] = (),
    threshold: float | None = None,
    proba: bool | None = None,
    interval: float | None = None,
    on_error: OnError | None = None,
    params: Mapping[str, Any] | None = None,
    runs_dir: Path | str | None = None,
    trust: bool = False,
) -> Iterator[Any]:
    """Yield the predictions of `predict` as data frames, one for each chunk of the file's rows.

    The cells of columns in `keep` are carried over from a CSV file as they are written.

    Raises:
        InputError: As in `predict`; or the predictions are masks, which no row of a table holds.
    """
    options = _Options(keep, threshold, proba, interval, on_error, params, as_written=True, restarts=False)
    predictions = _predicted(run, options, runs_dir=runs_dir, model=None, trust=trust)
    if predictions.predictor.gives_masks:
        raise InputError(
            "the predictions are masks, which do not fit into a table: write them to a folder (--output "
            "FOLDER, or trainwright.predict_file)"
        )
    yield from predictions.frames(data)


class _Options(NamedTuple):
    """The options of predictions; see `predict`."""

    keep: Sequence[str]
    threshold: float | None
    proba: bool | None
    interval: float | None
    on_error: OnError | None = None
    params: Mapping[str, Any] | None = None
    as_written: bool = False
    restarts: bool = True


class _Predictions:
    """A model, and the columns of its predictions that are wanted; `tally` is of the last file."""

    def __init__(self, predictor: Predictor, columns: PredictionColumns, as_written: bool) -> None:
        self.predictor = predictor
        self._columns = columns
        self._as_written = as_written
        self.tally = self._new_tally()

    def _new_tally(self) -> Tally:
        from trainwright.inference.bad_rows import Failures
        from trainwright.inference.file_predictions import Tally

        return Tally(Failures(self._columns.on_error), self.predictor.unusual())

    def frames(self, data: Path | str, *, with_error: bool = False) -> Iterator[Any]:
        """Yield the predictions for a file, and say at the end what was counted."""
        from trainwright.inference.file_predictions import predicted_chunks

        self.tally = self._new_tally()
        columns = replace(self._columns, with_error=self._columns.with_error or with_error)
        yield from predicted_chunks(self.predictor, data, columns, self.tally, as_written=self._as_written)
        self.tally.say()

    def written(self, data: Path | str, write: Callable[[Iterator[Any]], T]) -> T:
        """Return what a function makes of the predictions; again, if the first error comes late."""
        from trainwright.inference.file_predictions import LateError

        try:
            return write(self.frames(data))
        except LateError:
            return write(self.frames(data, with_error=True))


def _predicted(
    run: RunName, options: _Options, *, runs_dir: Path | str | None, model: Any, trust: bool
) -> _Predictions:
    from trainwright.inference.bad_rows import check_on_error
    from trainwright.inference.file_predictions import PredictionColumns

    check_on_error(options.on_error or "null")
    directory = find(run, runs_dir, has_model)
    predictor = _load(directory, "predict", model, trust=trust)
    intervals = None
    if options.interval is not None:
        with working_for(directory, working_directory(directory), trust=trust):
            intervals = predictor.intervals(options.interval)
    _read_with(predictor, options.params)
    on_error = options.on_error or "null"
    if on_error == "skip" and predictor.gives_masks:
        on_error = "null"  # each mask has the name of its image
    columns = PredictionColumns(
        options.keep,
        options.threshold,
        options.proba,
        intervals,
        on_error,
        with_error=options.on_error == "null",
        restarts=options.restarts,
    )
    return _Predictions(predictor, columns, options.as_written)


def _read_with(predictor: Predictor, params: Mapping[str, Any] | None) -> None:
    """Read files with other options than those of the run's data.

    Raises:
        InputError: No reader has such an option.
    """
    from trainwright.inference.input_files import set_options

    set_options(predictor.files, params or {})


def export(
    run: RunName,
    path: Path | str,
    form: str | None = None,
    *,
    max_shard_size: int | None = None,
    runs_dir: Path | str | None = None,
    model: Any = None,
    trust: bool = False,
) -> Path:
    """Write a run's model in its library's own format (`model.ubj`, `model.skops`, a SavedModel ...).

    Three formats hold the preparation of raw rows, too: `native` (a booster's own file, and a file of columns
    beside it), `sklearn` (a pipeline that takes data frames) and `mlflow` (a folder that MLflow serves). See
    docs/export.md.

    Args:
        run: A run, a path, an id, a unique prefix, or `last`.
        path: The file or folder to write; an existing one is replaced.
        form: `native`, `sklearn`, `mlflow`, or one of the framework's formats; default: that of the path's
            suffix, or the framework's default for a path without one.
        max_shard_size: With `safetensors`, `path` is a folder that gets files of at most so many bytes, and
            an index of them, as transformers writes it.
        runs_dir: The folder of the runs.
        model: The model object, if `train` was given one.
        trust: As in `load`.

    Returns:
        The path.

    Raises:
        RunNotFoundError: There is no such run.
        InputError: The run has no weights, an object is missing, the framework has no such format, or the
            path cannot be written.
        CheckpointError: A file that predictions depend on is damaged.
    """
    path, found = usable_path(path), find(run, runs_dir, has_model)
    if _holds_safetensors(found) and (form or path.suffix) in ("safetensors", ".safetensors"):
        from trainwright.inference.library_formats import export_weights
        from trainwright.runs.weights import stored_model
        from trainwright.types import DataInfo

        refuse_foreign_run(found, "export")
        stored = stored_model(found)
        export_weights(stored.folder, DataInfo.from_json(stored.data.info), path, max_shard_size)
        return path
    if max_shard_size is not None:
        raise InputError("max_shard_size is for models of PyTorch, in the format safetensors")
    predictor = _load(found, "export", model, trust=trust, pinned=False)
    if form in ("mlflow", "native"):
        from trainwright.inference import exports

        write = exports.export_mlflow if form == "mlflow" else exports.export_native
        return write(predictor, path)
    if form == "sklearn":
        from trainwright.integrations.sklearn import export_pipeline

        return export_pipeline(predictor, path)
    return predictor.export(path, form)


def _holds_safetensors(run: RunDir) -> bool:
    """Return whether the format `safetensors` of a run's model is that of its checkpoints."""
    manifest = run.manifest()
    return manifest is not None and "torch" in manifest.semantics


def explain(
    run: RunName,
    *,
    data: Any = None,
    runs_dir: Path | str | None = None,
    model: Any = None,
    trust: bool = False,
) -> dict[str, Any]:
    """Explain a run's model: importance, permutation importance, SHAP values and partial dependence.

    They are written into the run directory, and its report is written again; where that cannot be done, the
    entry `not_kept` says why. `data` and `model` are what `train` was given as objects, if it was; paths and
    imported code are as in `evaluate`.

    Raises:
        RunNotFoundError: There is no such run.
        InputError: The run has no weights, an object is missing, or the data are not the run's own.
        CheckpointError: A file that predictions depend on is damaged.
    """
    found = find(run, runs_dir, has_model)
    predictor = _load(found, "explain", model, trust=trust, data=data)
    from trainwright.runs.data.bundles import bundle_of_objects

    bundle = bundle_of_objects(found, predictor, data) if data is not None else None
    with working_for(found, working_directory(found), trust=trust):
        explanation = predictor.explain(bundle)
    if "not_kept" not in explanation:
        try:
            report(Run(found))
        except CheckpointError as error:
            log.warning("the report is not written again: %s", error)
    return explanation


def report(
    run: RunName,
    *others: RunName,
    output: Path | str | None = None,
    card: bool = False,
    runs_dir: Path | str | None = None,
) -> Path:
    """Write the run's `report.html` again, its model card, or a page that overlays several runs.

    Args:
        run: A run, a path, an id, a unique prefix, or `last`.
        others: More runs, up to 11: the page shows first what differs, then all curves.
        output: The file to write. By default, report.html or model-card.md in the run directory, or runs.html
            here for several runs.
        card: Write the model card instead: Markdown with the metadata that hubs read.
        runs_dir: The folder of the runs.

    Returns:
        The path of what was written.

    Raises:
        RunNotFoundError: There is no such run.
        InputError: These arguments do not go together.
        CheckpointError: A table of an evaluation has a form that cannot be shown; or a file of the run is
            damaged, and what was written into its directory before is kept, as it may show more.
        OSError: The file cannot be written.
    """
    path = None if output is None else usable_path(output)
    _check_report(len(others) + 1, output, card=card)
    folders = [find(one, runs_dir).path for one in (run, *others)]
    if card:
        from trainwright.reports.card import write_card

        return write_card(folders[0], path)
    if others:
        from trainwright.reports.overlay import FILE, write_overlay

        return write_overlay(folders, path or Path(FILE))
    from trainwright.reports.html import write_report
    from trainwright.reports.studies import link_from_study

    written = write_report(folders[0], path, keep_fuller=path is None)
    if path is None:
        link_from_study(folders[0])  # so that the page of a search links to this one
    return written


def _check_report(runs: int, output: Path | str | None, *, card: bool) -> None:
    if card and runs > 1:
        raise InputError(f"{runs} runs given, but a model card describes one run; leave the others out")
    if runs > MOST_OVERLAID:
        raise InputError(f"{runs} runs given; one page overlays {MOST_OVERLAID} at most: name fewer")
    if output is not None and not Path(output).absolute().parent.is_dir():
        raise InputError(f"{output}: there is no folder {Path(output).parent}")


def compare(
    first: RunName, second: RunName, *, runs_dir: Path | str | None = None, trust: bool = False
) -> Comparison:
    """Compare the configs, inputs and results of two runs.

    `trust` is as in `load`.

    Raises:
        RunNotFoundError: There is no such run.
        ConfigError: The config of a run cannot be read any more.
        CheckpointError: A file of a run is damaged.
    """
    from trainwright.runs.comparison import compare as compare_runs

    return compare_runs(find(first, runs_dir), find(second, runs_dir), trust=trust)
