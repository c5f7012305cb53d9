"""The right of one attempt to write to a run."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Collection
from typing import Protocol

from trainyard.errors import CheckpointError, RunLockedError, RunLostError
from trainyard.records.log import WRITERS, Entry, Kind, Log, StoredFile

log = logging.getLogger("trainyard")
_BEAT = 15.0  # seconds between two signs of life


class Upload(Protocol):
    """What brings the files of a run into a store; on a local disk there is nothing to bring."""

    def upload(
        self, folder: str, checkpoints: Collection[str], best: Collection[str]
    ) -> dict[str, StoredFile]:
        """Store what has changed, in objects under `folder` and with these checkpoints; return all files.

        Raises:
            OSError: Something cannot be stored.
        """

    def published(self, entry: Entry) -> None:
        """Note that the entry is in the log: what it does not name may be deleted."""

    def beat(self, attempt: int) -> bool:
        """Give a sign of life, and return whether the attempt is asked to stop.

        It is called from another thread.
        """

    def stop_beating(self, attempt: int) -> None:
        """Take the sign of life back."""


class Lease:
    """The entries of one attempt in the log of its run.

    Taking the lease is an entry, and so is each commit and each end. An attempt that finds its next number
    taken by another has lost the run. Not for several threads at a time.

    Args:
        log: The log.
        number: The number of the newest entry that was read.
        attempt: The number of this attempt.
        upload: Brings the files of the run into its store, if it is in one.
    """

    def __init__(self, log: Log, number: int, attempt: int, upload: Upload | None = None) -> None:
        self.attempt = attempt
        self._log = log
        self._number = number
        self._upload = upload
        self._writer = f"process {os.getpid()} on {socket.gethostname()}, {secrets.token_hex(8)}"
        self._serial = 0
        self.is_asked_to_stop = False  # by somebody who reaches only the store
        self._ended = threading.Event()
        self._has_beaten = False
        self._names: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())

    def create(self) -> None:
        """Say that the run exists, and that no attempt of it was made yet.

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
            threading.Thread(target=self._live, name="trainyard-heartbeat", daemon=True).start()

    def _live(self) -> None:
        """Give signs of life until the lease is released."""
        assert self._upload
        while not self._ended.wait(_BEAT):
            self._has_beaten = True
            self.is_asked_to_stop |= self._upload.beat(self.attempt)

    def release(self) -> None:
        """End the signs of life."""
        self._ended.set()
        WRITERS.discard(self._writer)
        if self._upload and self._has_beaten:
            self._has_beaten = False
            self._upload.stop_beating(self.attempt)

    def renew(self) -> None:
        """Bring what has changed into the store, if the run is in one; if it is away, the next commit does.

        Raises:
            RunLostError: Another attempt has taken the run over.
        """
        if self._upload:
            try:
                self._append("commit", *self._names)
            except OSError as error:
                log.warning("the store cannot be reached now: %s", error)

    def commit(self, checkpoints: Collection[str], best: Collection[str]) -> None:
        """Say that these checkpoints and best models exist from now on, and no others.

        Raises:
            RunLostError: Another attempt has taken the run over; nothing was committed.
            OSError: The entry cannot be written. It may be in the log all the same; the next one replaces it.
        """
        self._append("commit", checkpoints, best)

    def end(self, status: str) -> None:
        """Say how the attempt has ended; errors as in `commit`."""
        self._append("end", *self._names, status)

    def check(self) -> None:
        """Make sure that no other attempt has taken the run over.

        Raises:
            RunLostError: One has.
            OSError: The log cannot be read.
        """
        try:
            newest = None if self._log.is_newest(self._number) else self._log.head()
        except CheckpointError as error:
            raise OSError(str(error)) from error
        if newest is not None and newest.writer != self._writer:
            raise self._lost(newest)

    def _append(
        self, kind: Kind, checkpoints: Collection[str], best: Collection[str], status: str | None = None
    ) -> None:
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
            files=self._upload.upload(folder, *names) if self._upload else {},
            status=status,
        )
        self._write(entry)
        self._names = names
        self._log.fold(self._number)

    def _write(self, entry: Entry) -> None:
        """Write an entry under the next number that is free of entries of this attempt."""
        serial = 0
        while serial != entry.serial:
            entry = entry.model_copy(update={"number": self._number + 1})
            written = self._log.write(entry)
            if written.writer != self._writer:
                raise self._lost(written)
            # An entry whose answer was lost may be there already: go on behind it.
            self._number, serial = written.number, written.serial
        try:
            is_newest = self._log.is_newest(self._number)
        except CheckpointError as error:
            raise OSError(str(error)) from error
        if not is_newest:  # our number had been taken and folded
            self._log.delete(self._number)
            raise self._lost(self._log.head())
        if self._upload:
            self._upload.published(entry)

    def _lost(self, entry: Entry | None) -> RunLostError:
        owner = entry.writer.partition(",")[0] if entry else "its log is gone"
        other = f"attempt {entry.attempt}" if entry else "something"
        return RunLostError(
            f"{other} has taken the run over ({owner}): attempt {self.attempt} has lost it "
            "and writes nothing more; what was committed is untouched, and the run goes on there",
            owner,
        )
