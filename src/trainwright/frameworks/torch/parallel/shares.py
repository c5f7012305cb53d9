"""Checkpoints that several processes write together, each a share of the files.

Every process holds the whole state, so each one on the main process's machine copies and writes a part of it
while training goes on. The main one says which of the copies are written, and where.
"""

from __future__ import annotations

import contextlib
import platform
import secrets
import threading
from collections.abc import Sequence
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from weakref import WeakValueDictionary

from trainwright.digest import FileRecord
from trainwright.frameworks.base import Snapshot
from trainwright.machine import machine_id
from trainwright.world import World

_SHARE_SECONDS = 600.0  # seconds that the main process waits for another's share
_NAMESPACES = Path("/proc/self/ns")


class Shares:
    """The processes on the main process's machine, which write checkpoints together.

    Constructing it is a collective call. Later, background threads coordinate the saves over local sockets,
    since only the loop's thread may make collective calls.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        places = world.gather(_machine())
        self.ranks = [rank for rank, place in enumerate(places) if place == places[0]]
        self._taken = 0  # snapshots so far, in every process
        # In the main process: the snapshots that its writer still holds. Dropping one there removes it here.
        self._alive: WeakValueDictionary[int, _Shared] = WeakValueDictionary()
        self._waiting: dict[int, Snapshot] = {}  # in the others: their shares, until written or dropped
        self._changed = threading.Condition()
        self._connections: dict[int, Connection] = {}
        if len(self.ranks) > 1:
            self._connect()

    def _connect(self) -> None:
        listeners: list[Listener] = []

        def listen() -> tuple[str, bytes]:
            address, key = _address(), secrets.token_bytes(32)
            listeners.append(Listener(address, "AF_UNIX", len(self.ranks), key))
            return address or str(listeners[0].address), key

        address, key = self._world.from_main(listen)
        if listeners:
            with listeners[0] as listener:
                connections = [listener.accept() for _ in self.ranks[1:]]
            self._connections = dict(sorted((one.recv(), one) for one in connections))
        elif self._world.rank in self.ranks:
            connection = Client(address, "AF_UNIX", key)
            connection.send(self._world.rank)
            threading.Thread(
                target=self._serve, args=(connection,), name="trainwright-share", daemon=True
            ).start()

    @property
    def index(self) -> int | None:
        """The index of this process's share; None if it is on another machine, and writes nothing."""
        return self.ranks.index(self._world.rank) if self._world.rank in self.ranks else None

    def take(self, snapshot: Snapshot) -> Snapshot:
        """Register this process's share of a snapshot; a collective call.

        Returns:
            In the main process, a snapshot that writes all shares; in the others, `snapshot`.
        """
        alive = set(self._world.from_main(lambda: list(self._alive)))
        number = self._taken + 1
        if self._world.is_main:
            self._taken = number
            shared = self._alive[number] = _Shared(self, number, snapshot)
            return shared
        with self._changed:
            for dropped in set(self._waiting) - alive:  # a newer one was saved instead
                self._waiting.pop(dropped).release()
            self._waiting[number] = snapshot
            self._taken = number
            self._changed.notify()
        return snapshot

    def write(self, number: int, snapshot: Snapshot, folder: Path) -> list[FileRecord]:
        """Write this process's share into a folder, and let the others write theirs; return all files.

        Raises:
            OSError: A share cannot be written, or a process is gone.
        """
        for rank, connection in self._connections.items():
            try:
                connection.send((number, str(folder)))
            except OSError as error:
                raise OSError(f"process {rank} is gone") from error
        try:
            files = snapshot.write(folder)
        finally:  # even after an error, wait for the others: the caller deletes the folder
            answers = {rank: self._answer(rank, number) for rank in self._connections}
        for rank, answer in answers.items():
            if isinstance(answer, str):
                raise OSError(f"process {rank}: {answer}")
            files += [FileRecord.from_json(file) for file in answer]
        return files

    def _answer(self, rank: int, number: int) -> Sequence[object] | str:
        """Return the files that another process has written, or why it could not."""
        connection = self._connections[rank]
        try:
            while connection.poll(_SHARE_SECONDS):
                answered, answer = connection.recv()
                if answered == number:  # else it answers an earlier save, which timed out
                    return answer  # type: ignore[no-any-return]
        except (EOFError, OSError):
            return "it is gone"
        return f"no answer in {_SHARE_SECONDS:.0f} s"

    def _serve(self, connection: Connection) -> None:
        """Write what the main process asks for, until it is gone; runs in a thread of another process."""
        with connection, contextlib.suppress(EOFError, OSError):
            while True:
                number, folder = connection.recv()
                connection.send((number, self._written(number, Path(folder))))

    def _written(self, number: int, folder: Path) -> Sequence[object] | str:
        """Write this process's share of a snapshot; return the files, or why it could not."""
        with self._changed:
            self._changed.wait_for(lambda: self._taken >= number)
            snapshot = self._waiting.get(number)
        if snapshot is None:
            return "its copy is not there any more"
        try:
            files = [file.to_json() for file in snapshot.write(folder)]
        except Exception as error:  # the main process may ask again, or drop it
            return str(error) if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
        with self._changed:
            self._waiting.pop(number, None)
        snapshot.release()
        return files


class _Shared:
    """A snapshot whose shares are in several processes; the main one has it written by all of them."""

    def __init__(self, shares: Shares, number: int, snapshot: Snapshot) -> None:
        self._shares = shares
        self._number = number
        self._snapshot = snapshot

    def write(self, folder: Path) -> list[FileRecord]:
        """Write the files of all shares."""
        return self._shares.write(self._number, self._snapshot, folder)

    def release(self) -> None:
        """Give the memory to a later snapshot."""
        self._snapshot.release()


def _machine() -> str:
    """Return what identifies this machine, or container: processes with the same see the same files."""
    return machine_id("mnt", "net") or platform.node()


def _address() -> str | None:
    """Return an address that leaves no file, on Linux; None: one in a temporary folder."""
    return f"\0trainwright-{secrets.token_hex(16)}" if _NAMESPACES.exists() else None
