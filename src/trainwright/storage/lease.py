"""The lease of a run: the right of one attempt to write to it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Sequence
from typing import Protocol

from trainwright.errors import CheckpointError, RunLockedError, RunLostError
from trainwright.storage.heartbeats import Heartbeats
from trainwright.storage.log import WRITERS, Entry, Kind, Log, StoredFile, new_writer

log = logging.getLogger("trainwright")
_BEAT = 15.0  # seconds between two heartbeats


class Upload(Protocol):
    """The operations of a run's store that its attempt needs; a run on the local disk has none."""

    def upload(
        self, folder: str, checkpoints: Collection[str], best: Collection[str]
    ) -> dict[str, StoredFile]:
        """Store the files that have changed, and return all files of the run.

        Args:
            folder: The beginning of the keys of new objects.
            checkpoints: The checkpoints to include.
            best: The best models to include.

        Raises:
            OSError: A file cannot be stored.
        """

    def published(self, entry: Entry) -> None:
        """Note that the entry is in the log: objects that it does not name may be deleted."""

    def fetch(self, folder: str) -> None:
        """Download the files of a checkpoint, given as `checkpoints/NAME` or `best/NAME`, that are not here.

        Raises:
            CheckpointError: They are damaged in the store.
            TrainingError: The store cannot be read now.
        """

    @property
    def heartbeats(self) -> Heartbeats:
        """The signs of life that others see between commits; used by a thread of its own."""


class Sealing(Protocol):
    """The files of a run on the local disk, as its attempt seals them."""

    def files(self, kind: Kind, checkpoints: Collection[str]) -> dict[str, StoredFile]:
        """Return what an entry of a kind seals; `checkpoints` are the folders of those that it names.

        Raises:
            OSError: A file cannot be read.
        """


class Lease:
    """Write the entries of one attempt into the log of its run.

    Taking the lease is an entry, and so is each commit and each end. An attempt that finds its next number
    taken by another has lost the run. Methods may not be called from several threads at once.

    Args:
        log: The log.
        number: The number of the newest entry that was read.
        attempt: The number of this attempt.
        upload: The store of the run, if it is in one.
        seals: Seals the files of a run on the local disk.
    """

    def __init__(
        self,
        log: Log,
        number: int,
        attempt: int,
        upload: Upload | None = None,
        seals: Sealing | None = None,
    ) -> None:
        self.attempt = attempt
        self._log = log
        self._number = number
        self._upload = upload
        self._seals = seals
        self._writer = new_writer()
        self._serial = 0
        self.is_asked_to_stop = False  # through the store; set by the thread of the heartbeats
        self._ended = threading.Event()
        self._has_beaten = False
        self._names: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())

    def create(self) -> None:
        """Record that the run exists, and that no attempt has been made yet.

        Raises:
            RunLostError: It exists already.
            OSError: The entry cannot be written.
        """
        self._append("create", (), ())

    def take(self, checkpoints: Collection[str], best: Collection[str]) -> None:
        """Take the lease; the checkpoints and best models are those that exist.

        Raises:
            RunLockedError: Another process has just taken the run.
            OSError: The entry cannot be written.
        """
        try:
            self._append("lease", checkpoints, best)
        except RunLostError as error:
            raise RunLockedError(
                f"another process has just taken the run ({error.owner}): "
                "this one has written nothing; wait for the other, or end it and resume"
            ) from error
        WRITERS.add(self._writer)
        if self._upload:
            threading.Thread(target=self._keep_alive, name="trainwright-heartbeat", daemon=True).start()

    def _keep_alive(self) -> None:
        """Store heartbeats, and look for a request to stop, until the lease is released."""
        assert self._upload
        while not self._ended.wait(_BEAT):
            self._has_beaten = True
            self._upload.heartbeats.beat(self.attempt)
            self.is_asked_to_stop |= self._upload.heartbeats.is_asked_to_stop(self.attempt)

    def release(self) -> None:
        """Stop the heartbeats; the attempt writes nothing more."""
        self._ended.set()
        WRITERS.discard(self._writer)
        if self._upload and self._has_beaten:
            self._has_beaten = False
            self._upload.heartbeats.stop_beating(self.attempt)

    @property
    def is_in_store(self) -> bool:
        """True if the run is in a store, and not on the local disk alone."""
        return self._upload is not None

    def fetch(self, folder: str) -> None:
        """Bring the files of a checkpoint here, if the run is in a store; errors as in `Upload.fetch`."""
        if self._upload:
            self._upload.fetch(folder)

    def renew(self) -> None:
        """Store what has changed, if the run is in a store; if that fails, the next commit does it.

        Raises:
            RunLostError: Another attempt has taken the run over.
        """
        if self._upload:
            try:
                self._append("commit", *self._names)
            except OSError as error:
                log.warning("the store cannot be reached now: %s", error)

    def commit(self, checkpoints: Collection[str], best: Collection[str]) -> None:
        """Record that these checkpoints and best models exist from now on, and no others.

        Raises:
            RunLostError: Another attempt has taken the run over; nothing was committed.
            OSError: Writing the entry failed. It may be in the log all the same; the next one replaces it.
        """
        self._append("commit", checkpoints, best)

    def go_on(self) -> None:
        """Record that the attempt writes again after its end, so that nothing seals what it changes.

        Errors as in `commit`.
        """
        self._append("commit", *self._names)

    def end(self, status: str) -> None:
        """Record how the attempt has ended; errors as in `commit`."""
        self._append("end", *self._names, status)

    def check(self) -> None:
        """Make sure that no other attempt has taken the run over, and that it was not deleted from its store.

        Raises:
            RunLostError: One has, or it was.
            OSError: The log cannot be read.
        """
        try:
            numbers = self._log.numbers()
            newest = self._log.head() if numbers and numbers[-1] > self._number else None
        except CheckpointError as error:
            raise OSError(str(error)) from error
        if self._is_deleted(numbers, self._number):
            raise self._lost(None)
        if newest is not None and newest.writer != self._writer:
            raise self._lost(newest)

    def _is_deleted(self, numbers: Sequence[int], known: int) -> bool:
        """Return whether the run was deleted from its store: its log has lost what it held."""
        return self._upload is not None and max(numbers, default=0) < known

    def _append(
        self, kind: Kind, checkpoints: Collection[str], best: Collection[str], status: str | None = None
    ) -> None:
        if self._upload:
            self.check()  # before anything is uploaded
        names = (tuple(sorted(checkpoints)), tuple(sorted(best)))
        self._serial += 1
        folder = f"{self.attempt:04d}-{self._serial:06d}/"
        entry = Entry(
            number=0,
            writer=self._writer,
            serial=self._serial,
            attempt=self.attempt,
            kind=kind,
            time=time.time(),
            checkpoints=names[0],
            best=names[1],
            files=self._files(kind, folder, *names),
            status=status,
        )
        numbers = self._write(entry)
        self._names = names
        self._log.fold(self._number, numbers)

    def _files(
        self, kind: Kind, folder: str, checkpoints: Collection[str], best: Collection[str]
    ) -> dict[str, StoredFile]:
        """Return the files that an entry names: all of a run in a store, else those that it seals."""
        if self._upload:
            return self._upload.upload(folder, checkpoints, best)
        folders = [*(f"checkpoints/{name}" for name in checkpoints), *(f"best/{name}" for name in best)]
        return self._seals.files(kind, folders) if self._seals else {}

    def _write(self, entry: Entry) -> Sequence[int]:
        """Write an entry under the next number that is free of entries of this attempt.

        Return the numbers of the entries that there are now.
        """
        serial = before = 0
        while serial != entry.serial:
            before = self._number
            entry = entry.model_copy(update={"number": self._number + 1})
            written = self._log.write(entry)
            if written.writer != self._writer:
                raise self._lost(written)
            # The number may hold an earlier entry of ours, whose answer was lost: try the next one.
            self._number, serial = written.number, written.serial
        try:
            numbers = self._log.numbers()
        except CheckpointError as error:
            raise OSError(str(error)) from error
        others = [number for number in numbers if number != self._number]
        # Either our number had been taken and folded, or the run was deleted meanwhile.
        if max(others, default=0) > self._number or self._is_deleted(others, before):
            self._log.delete(self._number)
            raise self._lost(self._log.head())
        if self._upload:
            self._upload.published(entry)
        return numbers

    def _lost(self, entry: Entry | None) -> RunLostError:
        if entry is None:
            message = f"the run was deleted from its store: attempt {self.attempt} writes nothing more there"
            return RunLostError(message, "its log is gone")
        owner = entry.writer.partition(",")[0]
        return RunLostError(
            f"attempt {entry.attempt} has taken the run over ({owner}): attempt {self.attempt} has lost it "
            "and writes nothing more; what was committed is untouched, and the run goes on there",
            owner,
        )
