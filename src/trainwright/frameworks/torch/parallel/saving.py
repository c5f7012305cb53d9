"""Checkpoints that several processes write together: each the parts of the state that it owns.

Each process copies and writes its parts while training goes on. The main one says which of the copies are
written, and where, and puts the records together. A process on another machine writes into the same folder if
it sees it, as on a file system that the machines share; else it sends its files to the main process.
"""

from __future__ import annotations

import contextlib
import os
import platform
import secrets
import socket
import struct
import threading
from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from multiprocessing import AuthenticationError
from multiprocessing.connection import (
    Client,
    Connection,
    Listener,
    answer_challenge,
    deliver_challenge,
)
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from weakref import WeakValueDictionary

from trainwright.digest import FileRecord, PartHashes, damage, join_parts
from trainwright.errors import WorldError
from trainwright.frameworks.base import Snapshot
from trainwright.frameworks.torch.state.snapshot import TorchSnapshot, Written
from trainwright.process.machine import machine_id
from trainwright.world import World

_HANDSHAKE_SECONDS = 10  # seconds in which a connection shows that it has the key
_ANSWER_SECONDS = 600.0  # seconds that the main process waits for another's parts
_FRAME_BYTES = 16 << 20  # of a file, in one message
_NAMESPACES = Path("/proc/self/ns")


class SaveGroup:
    """The processes that write checkpoints together.

    Constructing it is a collective call. Later, background threads coordinate the saves over sockets, since
    only the loop's thread may make collective calls: local ones, or TCP at the address of the main process.

    Args:
        world: All processes.
        everyone: Whether all of them save, or only those on the main process's machine.
    """

    def __init__(self, world: World, *, everyone: bool) -> None:
        self._world = world
        places = world.gather(_machine())
        self.ranks = [rank for rank, place in enumerate(places) if everyone or place == places[0]]
        self._is_local = len({places[rank] for rank in self.ranks}) == 1
        self._taken = 0  # snapshots so far, in every process
        # In the main process: the snapshots that its writer still holds. Dropping one there removes it here.
        self._alive: WeakValueDictionary[int, _GroupSnapshot] = WeakValueDictionary()
        self._waiting: dict[int, TorchSnapshot] = {}  # in the others: their copies, until written or dropped
        self._changed = threading.Condition()
        self._connections: dict[int, Connection] = {}
        if len(self.ranks) > 1:
            self._connect()

    def _connect(self) -> None:
        listeners: list[Listener] = []

        def listen() -> tuple[Any, bytes]:
            key = secrets.token_bytes(32)
            listeners.append(_listener(len(self.ranks), is_local=self._is_local))
            return listeners[0].address, key

        address, key = self._world.from_main(listen)
        if listeners:
            with listeners[0] as listener:
                connections = [_accepted(listener, key) for _ in self.ranks[1:]]
            self._connections = dict(sorted((one.recv(), one) for one in connections))
        elif self._world.rank in self.ranks:
            connection = Client(address, authkey=key)
            connection.send(self._world.rank)
            threading.Thread(
                target=self._serve, args=(connection,), name="trainwright-save", daemon=True
            ).start()

    @property
    def index(self) -> int | None:
        """The number of this process among those that save; None if it does not."""
        return self.ranks.index(self._world.rank) if self._world.rank in self.ranks else None

    def take(self, snapshot: TorchSnapshot) -> Snapshot:
        """Register this process's copy of its parts; a collective call.

        Returns:
            In the main process, a snapshot that all processes write; in the others, `snapshot`.
        """
        alive = set(self._world.from_main(lambda: list(self._alive)))
        number = self._taken + 1
        if self._world.is_main:
            self._taken = number
            shared = self._alive[number] = _GroupSnapshot(self, number, snapshot)
            return shared
        with self._changed:
            for dropped in set(self._waiting) - alive:  # a newer one was saved instead
                self._waiting.pop(dropped).release()
            self._waiting[number] = snapshot
            self._taken = number
            self._changed.notify()
        return snapshot

    def write(self, number: int, snapshot: TorchSnapshot, folder: Path) -> list[FileRecord]:
        """Write this process's parts into a folder, and let the others write theirs; return all files.

        Raises:
            OSError: A process cannot write its parts, or is gone.
        """
        for rank, connection in self._connections.items():
            try:
                connection.send((number, str(folder)))
            except OSError as error:
                raise OSError(f"process {rank} is gone") from error
        try:
            written = snapshot.write_parts(folder)
        finally:  # even after an error, wait for the others: the caller deletes the folder
            answers = {rank: self._answer(rank, number, folder) for rank in self._connections}
        for rank, answer in answers.items():
            if isinstance(answer, str):
                raise OSError(f"process {rank}: {answer}")
            written.files.extend(answer.files)
            written.parts.extend(answer.parts)
            written.names.update(answer.names)
        return _with_records(written)

    def _answer(self, rank: int, number: int, folder: Path) -> Written | str:
        """Return what another process has written, or sent to be written, or why it could not."""
        connection = self._connections[rank]
        try:
            while connection.poll(_ANSWER_SECONDS):
                answered, answer, sends = connection.recv()
                is_late = answered != number  # of an earlier save, which timed out
                for record in answer.files if sends else []:
                    path = Path(os.devnull) if is_late else folder / record.name
                    answer = _receive(connection, record, path) or answer
                if not is_late:
                    return answer  # type: ignore[no-any-return]
        except (EOFError, OSError):
            return "it is gone"
        return f"no answer in {_ANSWER_SECONDS:.0f} s"

    def _serve(self, connection: Connection) -> None:
        """Write what the main process asks for, until it is gone; runs in a thread of another process."""
        with connection, contextlib.suppress(EOFError, OSError):
            while True:
                number, folder = connection.recv()
                if _sees(Path(folder)):
                    connection.send((number, self._written(number, Path(folder)), False))
                else:
                    self._send(connection, number)

    def _send(self, connection: Connection, number: int) -> None:
        """Write this process's parts of a snapshot here, and send the files to the main process."""
        with ExitStack() as stack:
            try:
                folder = Path(stack.enter_context(TemporaryDirectory(prefix="trainwright-")))
                answer = self._written(number, folder)
            except OSError as error:
                answer = str(error)
            connection.send((number, answer, isinstance(answer, Written)))
            for record in answer.files if isinstance(answer, Written) else []:
                with open(folder / record.name, "rb", buffering=0) as file:
                    while frame := file.read(_FRAME_BYTES):
                        connection.send_bytes(frame)

    def _written(self, number: int, folder: Path) -> Written | str:
        """Write this process's parts of a snapshot; return what was written, or why it could not be."""
        with self._changed:
            self._changed.wait_for(lambda: self._taken >= number)
            snapshot = self._waiting.get(number)
        if snapshot is None:
            return "its copy is not there any more"
        try:
            written = snapshot.write_parts(folder)
        except Exception as error:  # the main process may ask again, or drop it
            return str(error) if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
        with self._changed:
            self._waiting.pop(number, None)
        snapshot.release()
        return written


class _GroupSnapshot:
    """A snapshot whose parts are in several processes; the main one has it written by all of them."""

    def __init__(self, group: SaveGroup, number: int, snapshot: TorchSnapshot) -> None:
        self._group = group
        self._number = number
        self._snapshot = snapshot

    def write(self, folder: Path) -> list[FileRecord]:
        """Write the files of all processes."""
        return self._group.write(self._number, self._snapshot, folder)

    def release(self) -> None:
        """Give the memory to a later snapshot."""
        self._snapshot.release()


def _with_records(written: Written) -> list[FileRecord]:
    """Return the files, of which the first of each kind has the records of the divided tensors.

    Raises:
        ValueError: The processes have not saved each element of their state once.
    """
    parts: dict[str, list[PartHashes]] = {}
    for file, some in zip(written.files, written.parts, strict=True):
        parts.setdefault(file.stem, []).extend(some)
    files = []
    for file in written.files:
        records = join_parts(parts.pop(file.stem, []))
        files.append(replace(file, tensors=[*file.tensors, *records]) if records else file)
    saved = Counter(tensor.name for file in files for tensor in file.state())
    if wrong := sorted((written.names - saved.keys()) | {name for name, count in saved.items() if count > 1}):
        how = "by no process" if wrong[0] not in saved else "more than once"
        raise ValueError(f"the tensor {wrong[0]} would be saved {how}: see the strategy's `owned`")
    return files


def _machine() -> str:
    """Return what identifies this machine, or container: processes with the same see the same files."""
    return machine_id("mnt", "net") or platform.node()


def _listener(count: int, *, is_local: bool) -> Listener:
    """Return a socket for the others; a local one has no file on Linux, else one in a temporary folder.

    Raises:
        WorldError: `MASTER_ADDR`, where the processes find the main one, is no address of this machine.
    """
    if is_local:
        address = f"\0trainwright-{secrets.token_hex(16)}" if _NAMESPACES.exists() else None
        return Listener(address, "AF_UNIX", count)
    host = os.environ.get("MASTER_ADDR", "127.0.0.1")
    try:
        return Listener((host, 0), "AF_INET", count)
    except OSError as error:
        raise WorldError(
            f"process 0 cannot listen at {host} ({error.strerror}), where the others are to send their parts "
            "of checkpoints; set MASTER_ADDR to an address of its machine"
        ) from error


def _accepted(listener: Listener, key: bytes) -> Connection:
    """Return the next connection with the right key; others, such as a port scanner's, are closed."""
    while True:
        connection = listener.accept()
        try:
            _limit_reads(connection, _HANDSHAKE_SECONDS)
            deliver_challenge(connection, key)
            answer_challenge(connection, key)
            _limit_reads(connection, 0)
        except (AuthenticationError, EOFError, OSError):
            connection.close()
        else:
            return connection


def _limit_reads(connection: Connection, seconds: int) -> None:
    """Let a read of a connection fail that waits longer than this; 0: let it wait."""
    with socket.socket(fileno=os.dup(connection.fileno())) as same:
        same.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("@ll", seconds, 0))


def _sees(folder: Path) -> bool:
    """Return whether a folder of the main process is here, too: its name is random."""
    return folder.is_dir()


def _receive(connection: Connection, record: FileRecord, path: Path) -> str | None:
    """Write a file that another process sends, durably; return what is wrong with it.

    All of it is taken even if it cannot be written, so that the next message is found.

    Raises:
        EOFError: The other process is gone.
        OSError: The same.
    """
    problem, left = None, record.bytes
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o666)
    except OSError as error:
        descriptor, problem = -1, str(error)
    try:
        while left > 0:
            if not connection.poll(_ANSWER_SECONDS):
                raise EOFError
            frame = memoryview(connection.recv_bytes())
            left -= len(frame)
            try:
                while frame and problem is None:
                    frame = frame[os.write(descriptor, frame) :]
            except OSError as error:
                problem = str(error)
        if problem is None and path != Path(os.devnull):
            os.fsync(descriptor)
            problem = damage(path, record)
    finally:
        if descriptor >= 0:
            os.close(descriptor)
    return problem
