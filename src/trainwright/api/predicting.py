"""Predict with the trained models of runs: for the rows of files, and the next words of texts."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

from trainwright.api.results import load_for, read_with, versions_folder
from trainwright.config import Overrides
from trainwright.errors import InputError
from trainwright.records.listing import has_model
from trainwright.runs.data.versions import local_path
from trainwright.runs.lookup import RunName, find
from trainwright.runs.processes.calls import ONE, Members, over_mesh
from trainwright.runs.workdir import working_directory, working_for
from trainwright.safe_files import usable_path

if TYPE_CHECKING:
    from trainwright.inference.bad_rows import OnError
    from trainwright.inference.file_predictions import PredictionColumns, Tally
    from trainwright.inference.predictor import Predictor
    from trainwright.inference.written_tables import Written
    from trainwright.records.run_dir import RunDir

T = TypeVar("T")


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
    overrides: Overrides = (),
) -> Any:
    """Return the predictions for the rows of a file, as a data frame.

    It is a CSV file (which may be compressed), a Parquet, JSON Lines, Excel or npz file, or a folder or a
    pattern of such files. It is read as the training data were; another delimiter is found. An npz file holds
    X, or the arrays that the model takes by name, as in training.

    A language model takes a text file, or a folder of them. The rows are then windows of the length that the
    run was trained with, and the columns sums over each: its loss in `nats`, the `tokens` and the `hits`.

    Args:
        run: A run, a path, an id, a unique prefix, or `last`.
        data: The file, its URL, or a version of data (`churn@v3`).
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
        overrides: The mesh of processes that share the model out (`distributed.nproc=2`), as in training; by
            default this process has it whole. The predictions are the same.

    Raises:
        RunNotFoundError: There is no such run.
        InputError: The run has no weights, an object is missing, the run names code that is not imported, or
            an option does not fit its task.
        DataError: The file cannot be read, or lacks a column of the training data.
        CheckpointError: A file that predictions depend on is damaged.
    """
    options = Options(keep, threshold, proba, interval, on_error, params)
    found = find(run, runs_dir, has_model)
    data = local_path(data, versions_folder(found, runs_dir))
    how = found, options, model, trust
    return over_mesh(found, overrides, "predict", _predict, how, data, file=data, trust=trust)


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
    overrides: Overrides = (),
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
        overrides: As in `predict`.

    Returns:
        The number of `rows`, the names of the `columns`, the number of rows that `failed`, and the counts of
        `unusual` values.

    Raises:
        RunNotFoundError: There is no such run.
        InputError: As in `predict`; or the output cannot be written.
        DataError: The file cannot be read, or lacks a column of the training data.
        CheckpointError: A file that predictions depend on is damaged.
    """
    from trainwright.inference.written_tables import is_csv

    output = usable_path(output)
    options = Options(keep, threshold, proba, interval, on_error, params, as_written=is_csv(output))
    found = find(run, runs_dir, has_model)
    data = local_path(data, versions_folder(found, runs_dir))
    how = found, options, model, trust
    written: Written = over_mesh(
        found, overrides, "predict", _predict_file, how, data, output, file=data, trust=trust
    )
    return written


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
    overrides: Overrides = (),
) -> Iterator[Any]:
    """Yield the predictions of `predict` as data frames, one for each chunk of the file's rows.

    The cells of columns in `keep` are carried over from a CSV file as they are written. Where several
    processes predict, all chunks are in memory before the first one comes.

    Raises:
        InputError: As in `predict`; or the predictions are masks, which no row of a table holds.
    """
    options = Options(keep, threshold, proba, interval, on_error, params, as_written=True, restarts=False)
    found = find(run, runs_dir, has_model)
    data = local_path(data, versions_folder(found, runs_dir))
    how = found, options, None, trust
    if overrides:
        yield from over_mesh(found, overrides, "predict", _listed_chunks, how, data, file=data, trust=trust)
    else:
        yield from _chunks(ONE, how, data)


def generate(
    run: RunName,
    prompt: str,
    max_tokens: int = 200,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    seed: int = 0,
    runs_dir: Path | str | None = None,
    trust: bool = False,
    overrides: Overrides = (),
) -> str:
    """Return a text that continues `prompt`, by the language model of a run.

    Args:
        run: A run, a path, an id, a unique prefix, or `last`.
        prompt: How the text begins.
        max_tokens: The number of tokens at most.
        temperature: Below 1, probable tokens are drawn more often; 0 always takes the most probable one.
        top_k: Draw only from this many of the most probable tokens; default: from all.
        seed: The seed of the random numbers.
        runs_dir: The folder of the runs.
        trust: As in `load`.
        overrides: As in `predict`.

    Raises:
        RunNotFoundError: There is no such run.
        InputError: The run is no language model, or an option makes no sense.
        CheckpointError: A file that predictions depend on is damaged.
    """
    found = find(run, runs_dir, has_model)
    how = {"temperature": temperature, "top_k": top_k, "seed": seed}
    text: str = over_mesh(
        found, overrides, "generate", _generate, found, prompt, max_tokens, how, trust, trust=trust
    )
    return text


# --- the same in each of the processes that share a model out


def _predict(members: Members, how: How, data: Path | str) -> Any:
    predictions = predictions_of(members, how)
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


def _predict_file(members: Members, how: How, data: Path | str, output: Path) -> Written | None:
    """Write the predictions in the main process; the others only take their part in them."""
    from trainwright.inference.mask_files import write_masks
    from trainwright.inference.written_tables import write_predictions

    predictions = predictions_of(members, how)
    if not members.world.is_main:
        predictions.written(data, lambda frames: deque(frames, maxlen=0))
        return None
    if predictions.predictor.gives_masks:
        return write_masks(predictions.frames(data), data, output)
    written = predictions.written(data, lambda frames: write_predictions(frames, output))
    tally = predictions.tally
    return written._replace(failed=tally.failures.failed, unusual=tally.unusual.to_json())


def _chunks(members: Members, how: How, data: Path | str) -> Iterator[Any]:
    predictions = predictions_of(members, how)
    if predictions.predictor.gives_masks:
        raise InputError(
            "the predictions are masks, which do not fit into a table: write them to a folder (--output "
            "FOLDER, or trainwright.predict_file)"
        )
    yield from predictions.frames(data)


def _listed_chunks(members: Members, how: How, data: Path | str) -> list[Any]:
    return list(_chunks(members, how, data))


def _generate(
    members: Members, found: RunDir, prompt: str, max_tokens: int, how: Mapping[str, Any], trust: bool
) -> str:
    predictor = load_for(found, "generate", None, trust=trust, members=members)
    return predictor.generate(prompt, max_tokens, **how)


class Options(NamedTuple):
    """The options of predictions; see `predict`."""

    keep: Sequence[str]
    threshold: float | None
    proba: bool | None
    interval: float | None
    on_error: OnError | None = None
    params: Mapping[str, Any] | None = None
    as_written: bool = False
    restarts: bool = True


How: TypeAlias = "tuple[RunDir, Options, Any, bool]"  # the run, the model object, and whether it is trusted


class Predictions:
    """A model, and the columns of its predictions that are wanted; `tally` is of the last file."""

    def __init__(self, predictor: Predictor, columns: PredictionColumns, as_written: bool) -> None:
        self.predictor = predictor
        self._columns = columns
        self.as_written = as_written
        self.warns = True  # of rows that cannot be predicted, or are unusual
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
        yield from predicted_chunks(self.predictor, data, columns, self.tally, as_written=self.as_written)
        if self.warns:
            self.tally.say()

    def written(self, data: Path | str, write: Callable[[Iterator[Any]], T]) -> T:
        """Return what a function makes of the predictions; again, if the first error comes late."""
        from trainwright.inference.file_predictions import LateError

        try:
            return write(self.frames(data))
        except LateError:
            return write(self.frames(data, with_error=True))


def predictions_of(members: Members, how: How) -> Predictions:
    """Open the model of a run, and check the options of its predictions."""
    from trainwright.inference.bad_rows import check_on_error
    from trainwright.inference.file_predictions import PredictionColumns

    directory, options, model, trust = how
    check_on_error(options.on_error or "null")
    predictor = load_for(directory, "predict", model, trust=trust, members=members)
    intervals = None
    if options.interval is not None:
        with working_for(directory, working_directory(directory), trust=trust):
            intervals = predictor.intervals(options.interval)
    read_with(predictor, options.params)
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
    return Predictions(predictor, columns, options.as_written)
