"""The run directory: its files, its owner and its status.

runs/<experiment>/<run-id>/
    config.yaml         the resolved config
    created.json        where and when the run was created, and its signature
    parent.json         the run that it was forked from, goes on after, repeats, or is compressed from; if
                        there is one
    initial/            the checkpoint of the parent that it starts from, and the parent's config; or the
                        initial weights of a model that was given as an object
    manifest.json       the inputs of the computation; written before step 1
    data.json           how raw rows become features, and outputs classes; data-0002.json after a change
    attempts/0001.json  one process life: when, where, how it ended
    attempts/0001.stop  asks this attempt to stop
    journal/0001.jsonl  metrics and events of that attempt
    log/                what is committed, which attempt may write, and the seals
    checkpoints/        what the run resumes from
    best/               the best models, weights only
    evaluation/         the tables of the final evaluation, residuals for intervals, what the data are like,
                        and the explanation
    trackers/           how far each tracker is
    exports.json        what was exported from the run
    result.json         status, metrics and digest; written at each orderly end
    report.html
    lock                held by the process that owns the run
"""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trainwright import plugins
from trainwright.digest import sha256_bytes
from trainwright.errors import CheckpointError, InputError, OtherFormatError, TrainwrightError
from trainwright.records.creation import Creation
from trainwright.records.document import Document, dump, parse_json
from trainwright.records.lineage import Lineage
from trainwright.records.manifest import Manifest
from trainwright.records.result import AttemptRecord, Result
from trainwright.records.status import FINAL, Ended, Status
from trainwright.redact import without_literals
from trainwright.safe_files import (
    TEMPORARY_SUFFIX,
    fsync_folder,
    make_folders,
    open_regular,
    read_regular,
    write_atomically,
    write_together,
)
from trainwright.storage.heartbeats import has_owner
from trainwright.storage.lock import Lock, locked_error
from trainwright.storage.log import Log
from trainwright.storage.ownership import signature

log = logging.getLogger("trainwright")
Json = dict[str, Any]


def _without_dots(path: Path) -> Path:
    """Return an absolute path without `..`, unless that is of a link, and leads elsewhere."""
    if ".." not in path.parts:
        return path
    plain = Path(os.path.normpath(path))
    return plain if plain.resolve() == path.resolve() else path


class RunDir:
    """One run directory."""

    LOCK = "lock"

    def __init__(self, path: Path) -> None:
        self.path = _without_dots(path.absolute())
        self._lock = Lock(self.path / self.LOCK)

    @staticmethod
    def create(
        runs_dir: Path,
        experiment: str,
        config: str,
        fill: Callable[[RunDir], None] | None = None,
        created: Creation | None = None,
    ) -> RunDir:
        """Make a new run directory for the run of a resolved config (YAML).

        A config with secrets in clear text is for its owner only to read.

        Args:
            runs_dir: The folder of the run directories.
            experiment: The name of the experiment.
            config: The content of the config file, with which the run begins to exist.
            fill: Writes what must be there by then; if it fails, there is no run.
            created: What else is recorded of its creation; the folder and the time are added.

        Raises:
            InputError: The directory cannot be written.
        """
        run = RunDir(_new_folder(runs_dir / experiment))
        try:
            fsync_folder(run.path.parent)
            created = (created or Creation()).model_copy(
                update={"working_directory": str(Path.cwd()), "time": time.time()}
            )
            signed = signature(run.path, config.encode(), created.places)
            created = created.model_copy(update={"signature": signed})
            if fill is not None:
                fill(run)
            # The config comes last: a folder without one is no run.
            files = {run.path / Creation.FILE: created.encoded(), run.config_file: config.encode()}
            write_together(files, modes={run.config_file: _config_mode(config)})
        except TrainwrightError:
            shutil.rmtree(run.path, ignore_errors=True)
            raise
        except OSError as error:
            shutil.rmtree(run.path, ignore_errors=True)
            raise _cannot_make(run.path, error) from error
        return run

    @property
    def id(self) -> str:
        """The run id, which is the folder's name."""
        return self.path.name

    @property
    def experiment(self) -> str:
        """The experiment, which is the name of the folder above."""
        return self.path.parent.name

    @property
    def journal(self) -> Path:
        """The folder of the journal."""
        return self.path / "journal"

    @property
    def config_file(self) -> Path:
        """The file of the resolved config."""
        return self.path / "config.yaml"

    def config_sha256(self) -> str:
        """Return the SHA-256 of the file of the resolved config.

        Raises:
            OSError: It cannot be read.
        """
        return sha256_bytes(read_regular(self.config_file))

    def checked_config_file(self) -> Path:
        """Return the file of the resolved config, to be read now.

        Raises:
            CheckpointError: It is a symbolic link, or not a regular file.
        """
        try:
            open_regular(self.config_file).close()
        except (FileNotFoundError, PermissionError):
            pass  # the caller that reads it reports that
        except OSError as error:
            raise CheckpointError(f"{self.config_file} cannot be read: {error.strerror}") from error
        return self.config_file

    # -- records

    def check_format(self) -> None:
        """Check that this version of Trainwright reads the records of the run.

        Raises:
            OtherFormatError: Another version wrote one.
        """
        for kind in (Creation, Manifest, Result):
            try:
                kind.load(self.path / kind.FILE)
            except OtherFormatError:
                raise
            except CheckpointError:  # whatever needs the record says so
                pass

    def lineage(self) -> Lineage | None:
        """Return where the run comes from, or None if it has no parent.

        Raises:
            CheckpointError: The record is damaged.
        """
        return Lineage.load(self.path / Lineage.FILE)

    def manifest(self) -> Manifest | None:
        """Return the manifest, or None before it is written.

        Raises:
            CheckpointError: It is damaged.
        """
        return Manifest.load(self.path / Manifest.FILE)

    def require_manifest(self) -> Manifest:
        """Return the manifest of a run that must have one.

        Raises:
            CheckpointError: It is damaged or missing.
        """
        manifest = self.manifest()
        if manifest is None:
            raise CheckpointError(
                f"{self.path / Manifest.FILE} is missing: what the run was made from is unknown"
            )
        return manifest

    def result(self) -> Result | None:
        """Return the result, or None before the first orderly end.

        Raises:
            CheckpointError: It is damaged.
        """
        return Result.load(self.path / Result.FILE)

    def test_metrics(self) -> dict[str, float]:
        """Return the metrics of the test split; none before the first orderly end.

        Raises:
            CheckpointError: The result is damaged.
        """
        found = self.result()
        return {} if found is None else found.test_metrics

    def require_result(self) -> Result:
        """Return the result of a run that must have one.

        Raises:
            CheckpointError: It is damaged or missing.
        """
        result = self.result()
        if result is None:
            raise CheckpointError(
                f"{self.path / Result.FILE} is missing: the run has not ended yet, or it was removed"
            )
        return result

    def creation(self) -> Creation | None:
        """Return how the run was created; None if that is damaged, or not there, as in an exported run."""
        try:
            return Creation.load(self.path / Creation.FILE)
        except CheckpointError as error:
            log.warning("%s", error)
            return None

    def attempts(self) -> list[AttemptRecord]:
        """Return the records of the attempts, oldest first.

        One that is damaged is left out and named in a warning.
        """
        records = []
        for path in self._attempt_files():
            try:
                record = AttemptRecord.load(path, depth=2)
            except CheckpointError as error:
                log.warning("%s", error)
            else:
                records += [record] if record else []
        return records

    def check_attempts(self) -> None:
        """Read the record of every attempt.

        Raises:
            CheckpointError: One is damaged.
        """
        for path in self._attempt_files():
            AttemptRecord.load(path, depth=2)

    def write(self, name: str, record: Document) -> None:
        """Write a record as a file of the run.

        Raises:
            OSError: The file cannot be written.
        """
        self._make_folder(name)
        record.save(self.path / name, depth=_depth(name))

    def write_attempt(self, record: AttemptRecord) -> None:
        """Write the record of an attempt."""
        self.write(f"attempts/{record.attempt:04d}.json", record)

    def read_json(self, name: str) -> Json:
        """Return the content of a JSON file that is not a record (a table, a position).

        Empty if it is not there.

        Raises:
            CheckpointError: It is damaged.
        """
        try:
            return parse_json(read_regular(self.path / name, depth=_depth(name)))
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise CheckpointError(f"{self.path / name} cannot be read: {error.strerror}") from error
        except (ValueError, RecursionError) as error:
            raise CheckpointError(f"{self.path / name} is damaged: {error}") from error

    def write_json(self, name: str, data: Json) -> None:
        """Write a JSON file of the run, with the SHA-256 of its content.

        After a crash there is the old or the new content, whole.
        """
        self.write_encoded({name: dump(data)})

    def write_encoded(self, files: Mapping[str, bytes]) -> None:
        """Write what `dump` or `Document.encoded` returned into files of one folder, at once.

        After a crash, each has the old or the new content, whole.
        """
        name = next(iter(files))
        self._make_folder(name)
        write_together({self.path / name: data for name, data in files.items()}, depth=_depth(name))

    def _make_folder(self, name: str) -> None:
        """Make the folder of a file of the run, but never the run directory.

        If that is gone, it stays away.
        """
        if "/" in name and not (folder := (self.path / name).parent).is_dir():
            folder.mkdir(exist_ok=True)

    def sweep(self) -> None:
        """Remove the temporary files of processes that died; only the owner of the run calls it."""
        folders = [
            self.path,
            *(path for path in self.path.iterdir() if path.is_dir() and not path.is_symlink()),
        ]
        for path in (path for folder in folders for path in folder.glob(f".*{TEMPORARY_SUFFIX}")):
            path.unlink(missing_ok=True)

    # -- ownership

    def acquire(self, kind: str = "run") -> None:
        """Make this process the owner, until it ends (however it ends) or calls `release`.

        Args:
            kind: What this is the folder of, for the message.

        Raises:
            RunLockedError: Another process owns it.
        """
        if not self._lock.acquire():
            raise locked_error(f"{kind} {self.id}", self._lock)

    def release(self) -> None:
        """Give the run up."""
        self._lock.release()

    def is_owned(self) -> bool:
        """Return whether some process owns the run now: here or, of a run in a store, elsewhere."""
        return self.is_locked() or has_owner(self.path)

    def is_locked(self) -> bool:
        """Return whether some process of this machine owns the run directory now."""
        return self._lock.is_held()

    # -- status

    def next_attempt(self) -> int:
        """Return the number of the attempt that begins now."""
        taken = [*self._attempt_files(), *self.journal.glob("[0-9]*.jsonl")]
        return max((int(path.stem) for path in taken), default=0) + 1

    def status(self) -> Status:
        """Return the status of the run now."""
        return "running" if self.is_owned() else self.status_on_disk()

    def status_on_disk(self) -> Status:
        """Return how the newest attempt ended, or `crashed` if its record or the log does not say."""
        if not self._attempt_files():
            return "created"
        ended = self.recorded_end()
        if ended is None or (ended in FINAL and self._is_open()):
            return "crashed"
        return ended

    def recorded_end(self) -> Ended | None:
        """Return how the newest attempt ended by its record; while it ends, the log does not say so yet."""
        newest = max(self._attempt_files(), default=None)
        if newest is None:
            return None
        try:
            record = AttemptRecord.load(newest, depth=2)
            return record.status if record else None
        except CheckpointError:
            result = self.result()  # it says of which attempt it is
            return result.status if result and result.attempts == int(newest.stem) else None

    def _is_open(self) -> bool:
        """Return whether the log lacks the end of an attempt: nothing seals the result then."""
        try:
            head = Log(plugins.adapter("store", "file")(self.path)).head()
        except CheckpointError:  # which is named as damage
            return False
        return head is not None and head.has_owner

    # -- requests

    def stop_request(self, attempt: int) -> Path:
        """Return the file that asks an attempt to stop, if it is there; it is empty."""
        return self.path / "attempts" / f"{attempt:04d}.stop"

    def _attempt_files(self) -> list[Path]:
        try:
            paths = [*(self.path / "attempts").iterdir()]
        except OSError:
            return []
        return sorted(path for path in paths if path.suffix == ".json" and path.stem.isdecimal())


def write_config(path: Path, config: str) -> None:
    """Write a resolved config (YAML); one with secrets in clear text is for its owner only to read.

    Raises:
        OSError: The file cannot be written.
    """
    write_atomically(path, config.encode(), mode=_config_mode(config))


def _config_mode(config: str) -> int:
    return 0o600 if without_literals(config) != config else 0o666


def make_id() -> str:
    """Return a new id, which begins with the time in UTC: the order of ids is that of time everywhere.

    After the second come three digits for its fraction, in units of 1/4096 s, and five random ones.
    """
    seconds, nanoseconds = divmod(time.time_ns(), 10**9)
    fraction = nanoseconds * 4096 // 10**9
    date = time.strftime("%Y%m%d-%H%M%S", time.gmtime(seconds))
    return f"{date}-{fraction:03x}{secrets.randbits(20):05x}"


def _new_folder(experiment: Path) -> Path:
    """Make the folder of a new run.

    Raises:
        InputError: It cannot be made.
    """
    while True:
        path = experiment / make_id()
        try:
            make_folders(experiment)
            path.mkdir()
            return path
        except OSError as error:
            if not path.is_dir():  # else it is another run's, which has just been made
                raise _cannot_make(path, error) from error


def _cannot_make(path: Path, error: OSError) -> InputError:
    return InputError(
        f"cannot make the run directory {path}: {error.strerror}; choose another folder with --runs-dir"
    )


def _depth(name: str) -> int:
    """Return how many names of a file's path are inside the run directory."""
    return len(Path(name).parts)
