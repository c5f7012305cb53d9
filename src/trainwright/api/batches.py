"""Predict for many files: a file of predictions for each, continued where a call was killed."""

from __future__ import annotations

import json
import logging
import os
import selectors
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from trainwright.api.predicting import Options, Predictions, predictions_of
from trainwright.api.results import versions_folder
from trainwright.digest import WEIGHTS_FILE, files_of, sha256_file, sha256_json
from trainwright.errors import DataError, InputError, TrainwrightError, WorldError
from trainwright.records.artifact import ArtifactDir
from trainwright.records.listing import has_model
from trainwright.runs.data.versions import local_path
from trainwright.runs.lookup import RunName, find
from trainwright.runs.processes.calls import ONE
from trainwright.safe_files import make_folders, usable_path

if TYPE_CHECKING:
    from trainwright.inference.bad_rows import OnError
    from trainwright.inference.batches import BatchFile, BatchRecord
    from trainwright.inference.predictor import Predictor
    from trainwright.studies.tuning.workers import WorkerProcess

log = logging.getLogger("trainwright")
Event = Mapping[
    str, Any
]  # of a file: the `rows` so far; what was `made`; an `error` of it, or a `fault` of all


class BatchProgress(NamedTuple):
    """The progress of a batch: files with predictions of all, and rows predicted in this call."""

    files: int
    total: int
    rows: int
    rows_per_second: float
    seconds_left: float | None


class Batch(NamedTuple):
    """The predictions for files.

    Attributes:
        files: The number of files with predictions.
        kept: The number of those that an earlier call had finished.
        rows: The number of their rows.
        failed: The number of rows without a prediction.
        unusual: The numbers of rows that have values outside of the range of the training rows
            (`outside_range`), or a category that none of these has (`never_seen`).
        errors: What is wrong with each file that cannot be predicted.
    """

    files: int
    kept: int
    rows: int
    failed: int
    unusual: Mapping[str, int]
    errors: Mapping[str, str]


def predict_files(
    run: RunName,
    data: Path | str | Sequence[Path | str],
    output: Path | str,
    *,
    to: str | None = None,
    processes: int = 1,
    force: bool = False,
    watch: Callable[[BatchProgress], object] | None = None,
    keep: Sequence[str] = (),
    threshold: float | None = None,
    proba: bool | None = None,
    interval: float | None = None,
    on_error: OnError | None = None,
    params: Mapping[str, Any] | None = None,
    runs_dir: Path | str | None = None,
    model: Any = None,
    trust: bool = False,
) -> Batch:
    """Write the predictions for each of many files into a folder; the same call continues after a kill.

    Each output has the bytes that `predict_file` gives it, and appears when it is whole. A record in the
    folder, `.trainwright-predict.jsonl`, says which are finished, and of which content of their inputs: the
    same call predicts only files that are new or have changed. A file that cannot be read is named in
    `errors`, and the others go on; with `on_error="stop"` it ends the call.

    Args:
        run: A run, a path, an id, a unique prefix, or `last`.
        data: Files, folders or patterns of files, or versions of data; each file as in `predict`.
        output: The folder. Files have the folders below it that they have below the one that holds all of
            `data`, and their own names.
        to: The format of the predictions: `csv`, `csv.gz`, `parquet`, `jsonl` or `xlsx`. Default: that of
            each file.
        processes: The number of processes that predict, each a file at a time; outputs have the same bytes.
        force: Begin anew, in place of what is in the folder.
        watch: Called with the progress, after each chunk of rows.
        keep: As in `predict`, like all that follows.
        threshold: As in `predict`.
        proba: As in `predict`.
        interval: As in `predict`.
        on_error: As in `predict`.
        params: As in `predict`.
        runs_dir: The folder of the runs.
        model: The model object, if `train` was given one.
        trust: As in `load`.

    Raises:
        RunNotFoundError: There is no such run.
        InputError: As in `predict`; or the folder holds other files, or predictions of another model or with
            other options; or two files would have one output.
        DataError: There is no such file; or one cannot be read, and `on_error` is `stop`.
        RunLockedError: Another process predicts into the folder.
        WorldError: One of the processes has died.
        CheckpointError: A file that predictions depend on is damaged.
    """
    from trainwright.inference.batches import batch_files, batch_record

    folder = usable_path(output)
    found = find(run, runs_dir, has_model)
    given = [data] if isinstance(data, str | Path) else [*data]
    if not given or processes < 1:
        raise InputError(f"{len(given)} files and {processes} processes given: give one of each at least")
    if processes > 1 and model is not None:
        raise InputError("a model object cannot be sent to other processes: leave out processes")
    paths = [str(local_path(one, versions_folder(found, runs_dir))) for one in given]
    files = batch_files(paths, folder, to)
    options = Options([*keep], threshold, proba, interval, on_error, params and {**params})
    job = _Job(str(found.path), None if runs_dir is None else str(runs_dir), options, trust, str(folder))
    about = {"run": found.id, "options": {"to": to, **dict(zip(Options._fields, options[:6], strict=False))}}
    with (
        _predicting(job, min(processes, len(files)), model) as team,
        batch_record(folder, {**about, "model": team.model}, force=force) as record,
    ):
        batch = _Batch(files, record, options.on_error, watch)
        team.predict(batch.waiting, batch.hear)
        return batch.end()


class _Job(NamedTuple):
    """The arguments of a batch that are the same for all files; they can be sent as JSON."""

    run: str
    runs_dir: str | None
    options: Options
    trust: bool
    folder: str


class _Batch:
    """The files of a batch, and what has become of each."""

    def __init__(
        self,
        files: Sequence[BatchFile],
        record: BatchRecord,
        on_error: OnError | None,
        watch: Callable[[BatchProgress], object] | None,
    ) -> None:
        self._files = files
        self._record = record
        self._on_error = on_error
        self._watch = watch
        self._errors: dict[str, str] = {}
        self._made: dict[BatchFile, Mapping[str, Any]] = {}
        for one in files:
            entry = record.finished(one)
            with suppress(DataError):  # which is said when the file is predicted again
                if entry is not None and _sha256(one.source) == entry["sha256"]:
                    self._made[one] = entry
        self._kept = len(self._made)
        self.waiting = deque(one for one in files if one not in self._made)
        self._bytes = {one: _size(one.source) for one in self.waiting}
        self._left = self._all = sum(self._bytes.values())
        self._rows = 0  # of files that this call has finished
        self._started: dict[BatchFile, int] = {}  # the same of those in work
        self._began = time.monotonic()

    def hear(self, one: BatchFile, event: Event) -> None:
        """Take in what has become of a file.

        Raises:
            InputError, TrainwrightError: It ends the batch.
        """
        if "fault" in event:
            raise (InputError if event["is_input"] else TrainwrightError)(event["fault"])
        if "rows" not in event:
            self._left -= self._bytes[one]
            self._started.pop(one, None)
        if "error" in event:
            if self._on_error == "stop":
                raise DataError(event["error"])
            self._errors[one.source] = event["error"]
            log.warning("not predicted: %s", event["error"])
        elif "made" in event:
            self._record.add(one, event["made"])
            self._made[one] = event["made"]
            self._rows += event["made"]["rows"]
        else:
            self._started[one] = event["rows"]
        if self._watch is not None:
            self._watch(self._progress())

    def _progress(self) -> BatchProgress:
        seconds, rows = time.monotonic() - self._began, self._rows + sum(self._started.values())
        done = self._all - self._left
        remaining = seconds / done * self._left if done else None
        return BatchProgress(len(self._made), len(self._files), rows, rows / max(seconds, 1e-9), remaining)

    def end(self) -> Batch:
        """Return the result, and warn of rows that could not be predicted, or are unusual."""
        made = self._made.values()
        rows, failed = (sum(entry[key] for entry in made) for key in ("rows", "failed"))
        unusual = {
            key: sum(entry["unusual"].get(key, 0) for entry in made)
            for key in ("outside_range", "never_seen")
        }
        said = {
            "without a prediction": failed,
            "with a value outside the range seen in training": unusual["outside_range"],
            "with a category never seen in training": unusual["never_seen"],
        }
        read = rows + failed if self._on_error == "skip" else rows
        for what, count in said.items():
            if count:
                words = f"{count:,} of {read:,} rows {what}"
                log.warning("%s; %s has their numbers by file", words, self._record.path)
        return Batch(len(self._made), self._kept, rows, failed, unusual, self._errors)


class _Team(Protocol):
    """The processes that predict files: this one, or others."""

    @property
    def model(self) -> str:
        """The identity of the model."""

    def predict(self, files: deque[BatchFile], hear: Callable[[BatchFile, Event], None]) -> None:
        """Predict files, and say what becomes of each."""


@contextmanager
def _predicting(job: _Job, processes: int, model: Any) -> Iterator[_Team]:
    if processes == 1:
        yield _Alone(job, model)
        return
    workers = _Workers()
    try:
        workers.start(job, processes)
        yield workers
    except BaseException:
        workers.close(at_once=True)
        raise
    workers.close()


class _Alone:
    """This process, which predicts one file after another."""

    def __init__(self, job: _Job, model: Any = None) -> None:
        found = find(Path(job.run), job.runs_dir, has_model)
        self._folder = Path(job.folder)
        self._predictions = predictions_of(ONE, (found, job.options, model, job.trust))
        self._predictions.warns = False  # for all files at the end
        predictor = self._predictions.predictor
        if predictor.gives_masks or (predictor.preparation and not predictor.preparation.has_columns):
            raise InputError(
                f"run {predictor.run.id} predicts images or texts in files, which are given as one folder, "
                "with one output: leave out the others"
            )
        self.model = _identity(predictor)

    def predict(self, files: Iterable[BatchFile], hear: Callable[[BatchFile, Event], None]) -> None:
        """Predict files; see `_Team`."""
        for one in files:
            hear(one, self._event(one, partial(hear, one)))

    def _event(self, one: BatchFile, hear: Callable[[Event], None]) -> Event:
        try:
            return {"made": _written(self._predictions, one, self._folder / one.output, hear)}
        except DataError as error:
            return {"error": str(error)}
        except TrainwrightError as error:
            return {"fault": str(error), "is_input": isinstance(error, InputError)}


def _identity(predictor: Predictor) -> str:
    """Return the hash of what predictions are computed from."""
    if isinstance(predictor.run, ArtifactDir):
        known = predictor.run.certificate
        return sha256_json([known.files, known.data])
    stored = predictor.stored
    return sha256_json(
        [sha256_file(file) for file in (*files_of(stored.folder, WEIGHTS_FILE), stored.data_file)]
    )


def _written(
    predictions: Predictions, one: BatchFile, output: Path, hear: Callable[[Event], None]
) -> Mapping[str, Any]:
    """Write the predictions for a file, and return what is recorded of it.

    Raises:
        DataError: The file cannot be read, or changes meanwhile.
    """
    from trainwright.inference.written_tables import is_csv, write_predictions

    sha256, before = _sha256(one.source), _stamp(one.source)

    def heard(frames: Iterator[Any]) -> Iterator[Any]:
        rows = 0
        for frame in frames:
            yield frame
            rows += len(frame)
            hear({"rows": rows})
        if _stamp(one.source) != before:
            raise DataError(f"{one.source} has changed while it was read: predict it again")

    make_folders(output.parent)
    predictions.as_written, path = is_csv(output), one.with_partition
    try:
        written = predictions.written(path, lambda frames: write_predictions(heard(frames), output))
    except DataError as error:
        raise DataError(str(error).replace(path, one.source)) from error
    tally = predictions.tally
    counts = tally.unusual.to_json()
    unusual = {key: counts[key] for key in ("outside_range", "never_seen")}
    made = {"sha256": sha256, "rows": written.rows, "failed": tally.failures.failed, "unusual": unusual}
    return {**made, "first_failed": tally.failures.first} if tally.failures.failed else made


def _sha256(source: str) -> str:
    from trainwright.datasets.samples.file_hashes import hash_of
    from trainwright.datasets.samples.files import existing_file

    try:
        return hash_of(str(existing_file(source, mapped=True)))
    except OSError as error:
        raise DataError(f"{source} cannot be read: {error.strerror or error}") from error


def _stamp(source: str) -> tuple[int, ...]:
    from trainwright.datasets.samples.files import existing_file

    status = existing_file(source, mapped=True).stat()
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _size(source: str) -> int:
    with suppress(OSError):
        return Path(source).expanduser().stat().st_size
    return 0


class _Workers:
    """Processes that predict a file at a time; each gets the next one when it has finished its last."""

    def __init__(self) -> None:
        self._workers: list[WorkerProcess] = []
        self._busy: dict[int, BatchFile] = {}  # by the pipe of the process
        self.model = ""

    def start(self, job: _Job, count: int) -> None:
        """Start the processes, and wait until each has the model.

        Raises:
            InputError, TrainwrightError: The model cannot be opened.
            WorldError: One has died.
        """
        from trainwright.studies.tuning.workers import WorkerProcess

        for number in range(count):
            level = logging.ERROR if number else log.getEffectiveLevel()  # what all say is said once
            self._workers.append(WorkerProcess.start("predict-files", level))
            self._workers[-1].send(job)
        models = set[str]()
        for worker in self._workers:
            answer = worker.read_whole()
            if not answer:
                raise self._died(worker)
            if "fault" in answer:
                raise (InputError if answer["is_input"] else TrainwrightError)(answer["fault"])
            models.add(answer["model"])
        if len(models) > 1:
            raise InputError("the run was trained on while its model was opened: predict when it has ended")
        (self.model,) = models

    def predict(self, files: deque[BatchFile], hear: Callable[[BatchFile, Event], None]) -> None:
        """Predict files; see `_Team`."""
        while files or self._busy:
            for worker in self._workers:
                if files and worker.messages not in self._busy:
                    self._busy[worker.messages] = files.popleft()
                    worker.send(self._busy[worker.messages])
            for worker in self._answering():
                self._hear(worker, hear)
                while worker.has_read:
                    self._hear(worker, hear)

    def _answering(self) -> list[WorkerProcess]:
        with selectors.DefaultSelector() as selector:
            for worker in self._workers:
                if worker.messages in self._busy:
                    selector.register(worker.messages, selectors.EVENT_READ, worker)
            return [key.data for key, _ in selector.select()]

    def _hear(self, worker: WorkerProcess, hear: Callable[[BatchFile, Event], None]) -> None:
        event = worker.read()
        if event is None:
            return
        if not event:
            raise self._died(worker)
        one = self._busy[worker.messages]
        if "rows" not in event:
            del self._busy[worker.messages]
        hear(one, event)

    def _died(self, worker: WorkerProcess) -> WorldError:
        self._workers.remove(worker)
        one = self._busy.get(worker.messages)
        at = f" at {one.source}" if one is not None else ""
        return WorldError(
            f"a process that predicts has ended{at} {worker.end()}; what is finished stays, and the same "
            "command continues with the rest"
        )

    def close(self, *, at_once: bool = False) -> None:
        """Wait for the ends of the processes; they finish nothing more if they are to end at once."""
        for worker in self._workers if at_once else ():
            worker.terminate()
        for worker in self._workers:
            worker.end()
        self._workers.clear()


def predict_as_worker(answers: int) -> None:
    """Predict the files that arrive on stdin, and write what becomes of each to a descriptor."""
    from trainwright.inference.batches import BatchFile
    from trainwright.studies.tuning.workers import received

    def tell(event: Event) -> None:
        os.write(answers, json.dumps(event).encode() + b"\n")

    messages = received()
    job = _Job(*next(messages))
    try:
        alone = _Alone(job._replace(options=Options(*job.options)))
    except TrainwrightError as error:
        tell({"fault": str(error), "is_input": isinstance(error, InputError)})
        return
    tell({"model": alone.model})
    alone.predict((BatchFile(*message) for message in messages), lambda _, event: tell(event))
