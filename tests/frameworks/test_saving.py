"""Checkpoints that several processes write together; here, they are threads with a world of their own."""

import socket
import struct
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from trainwright.digest import FileRecord, TensorRecord, write_file
from trainwright.errors import WorldError
from trainwright.frameworks.torch.parallel import saving as saving_module
from trainwright.frameworks.torch.parallel.ddp import DataParallel
from trainwright.frameworks.torch.parallel.saving import SaveGroup
from trainwright.frameworks.torch.state.snapshot import OPTIMIZER_FILE, Written
from trainwright.world import World


class ThreadWorld(World):
    """One of some threads that agree."""

    def __init__(self, rank: int, values: list[Any], barrier: threading.Barrier) -> None:
        self.rank, self.size = rank, len(values)
        self._values, self._barrier = values, barrier

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all threads."""
        self._values[self.rank] = value
        self._barrier.wait(30)
        values = list(self._values)
        self._barrier.wait(30)
        return values

    def from_main(self, function: Callable[[], Any]) -> Any:
        """Return what the function returns in the first thread."""
        return self.gather(function() if self.is_main else None)[0]


class Copy:
    """A snapshot that counts what is done with it."""

    def __init__(self, name: str, error: Exception | None = None) -> None:
        self.name, self.error, self.released = name, error, False

    def write_parts(self, folder: Path) -> Written:
        """Write one file."""
        if self.error:
            raise self.error
        return Written([write_file(folder / self.name, self.name.encode())], [[]], set())

    def release(self) -> None:
        """Remember it."""
        self.released = True


class Group:
    """Three processes."""

    def __init__(self, *, everyone: bool = False) -> None:
        values, barrier = [None] * 3, threading.Barrier(3)
        self.pool = ThreadPoolExecutor(3)
        self.groups = self.all(lambda rank: SaveGroup(ThreadWorld(rank, values, barrier), everyone=everyone))

    def all(self, function: Callable[[int], Any]) -> list[Any]:
        """Call a function in all of them at once."""
        return list(self.pool.map(function, range(3)))

    def take(self, copies: list[Copy]) -> Any:
        """Let all take a snapshot, and return that of the main one."""
        return self.all(lambda rank: self.groups[rank].take(copies[rank]))[0]


@pytest.fixture
def group() -> Group:
    return Group()


def test_all_write_their_share_into_one_folder(group: Group, tmp_path: Path) -> None:
    copies = [Copy(name) for name in "abc"]
    files = group.take(copies).write(tmp_path)
    assert [file.name for file in files] == ["a", "b", "c"]
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"a": "a", "b": "b", "c": "c"}
    assert [copy.released for copy in copies] == [False, True, True], "the saver releases its own"


def test_what_the_main_process_drops_the_others_release(group: Group, tmp_path: Path) -> None:
    dropped, kept, last = ([Copy(name) for name in "abc"] for _ in range(3))
    first = group.take(dropped)
    del first
    second = group.take(kept)
    assert [copy.released for copy in dropped] == [False, True, True]
    third = group.take(last)
    assert not kept[1].released, "the main process may still write it"
    (tmp_path / "2").mkdir()
    (tmp_path / "3").mkdir()
    second.write(tmp_path / "2")
    third.write(tmp_path / "3")
    assert kept[1].released
    assert last[1].released


def test_a_share_that_cannot_be_written_is_named_and_the_next_save_works(
    group: Group, tmp_path: Path
) -> None:
    broken = group.take([Copy("a"), Copy("b", OSError(28, "No space left on device")), Copy("c")])
    with pytest.raises(OSError, match=r"process 1: .*No space left"):
        broken.write(tmp_path)
    mine = group.take([Copy("a", ValueError("mine")), Copy("b"), Copy("c")])
    with pytest.raises(ValueError, match="mine"):
        mine.write(tmp_path)
    assert len(group.take([Copy(name) for name in "abc"]).write(tmp_path)) == 3


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_process_that_is_gone_is_named(group: Group, tmp_path: Path) -> None:
    class Dies(Copy):
        def write_parts(self, folder: Path) -> Written:
            raise SystemExit  # ends its thread, as the end of its process would

    with pytest.raises(OSError, match="process 2: it is gone"):
        group.take([Copy("a"), Copy("b"), Dies("c")]).write(tmp_path)


def saver(index: int, count: int) -> DataParallel:
    """One of the processes that save."""
    saving: Any = SimpleNamespace(index=index, ranks=range(count))
    return DataParallel(World(), saving)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_shares_have_equally_many_bytes_and_make_up_the_whole(count: int) -> None:
    files = {
        "weights.safetensors": {"a": torch.zeros(100), "b": torch.zeros(30)},
        OPTIMIZER_FILE: {
            f"{name}.{key}": torch.zeros(size) for name, size in (("a", 100), ("b", 30)) for key in "mv"
        },
    }
    shares = [saver(index, count).owned(files).files for index in range(count)]
    tensors = [
        (file.split(".")[0], name) for share in shares for file, held in share.items() for name in held
    ]
    assert sorted(tensors) == sorted(
        (file.split(".")[0], name) for file, held in files.items() for name in held
    )
    sizes = [sum(tensor.nbytes for held in share.values() for tensor in held.values()) for share in shares]
    assert max(sizes) <= sum(sizes) / count + 4 * 100
    assert {"weights.safetensors", OPTIMIZER_FILE} <= set(shares[0])


def test_large_tensors_are_shared_out_first() -> None:
    """Weights of 4, and a state of 5, 3, 3 and 1: 8 for each of two processes, whatever their names."""
    state = {name: torch.zeros(size) for name, size in (("a", 1), ("b", 3), ("c", 3), ("d", 5))}
    files = {"weights.safetensors": {"w": torch.zeros(4)}, OPTIMIZER_FILE: state}
    for index in range(2):
        held = saver(index, 2).owned(files).files.values()
        assert sum(tensor.numel() for tensors in held for tensor in tensors.values()) == 8


@pytest.fixture
def machines(monkeypatch: pytest.MonkeyPatch) -> Group:
    """Three processes on as many machines, which talk over TCP."""
    names = iter("abc")
    monkeypatch.setattr(saving_module, "_machine", lambda: next(names))
    return Group(everyone=True)


def test_processes_that_see_the_folder_write_into_it(machines: Group, tmp_path: Path) -> None:
    assert machines.groups[0].ranks == [0, 1, 2]
    files = machines.take([Copy(name) for name in "abc"]).write(tmp_path)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"a": "a", "b": "b", "c": "c"}
    assert [file.name for file in files] == ["a", "b", "c"]


def test_processes_that_do_not_see_the_folder_send_their_files(
    machines: Group, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saving_module, "_FRAME_BYTES", 1)
    monkeypatch.setattr(saving_module, "_sees", lambda _: False)
    copies = [Copy(name) for name in ("a", "bbb", "cc")]
    files = machines.take(copies).write(tmp_path)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        one.name: one.name for one in copies
    }
    assert [(file.name, file.bytes) for file in files] == [("a", 1), ("bbb", 3), ("cc", 2)]
    assert copies[1].released


def test_a_sent_file_that_cannot_be_kept_is_named_and_the_next_save_works(
    machines: Group, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saving_module, "_sees", lambda _: False)
    (tmp_path / "b").mkdir()
    with pytest.raises(OSError, match=r"process 1: .*Is a directory"):
        machines.take([Copy(name) for name in "abc"]).write(tmp_path)
    (tmp_path / "b").rmdir()
    assert len(machines.take([Copy(name) for name in "abc"]).write(tmp_path)) == 3


def test_a_file_that_was_changed_on_its_way_is_named(
    machines: Group, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saving_module, "_sees", lambda _: False)

    class Changed(Copy):
        def write_parts(self, folder: Path) -> Written:
            written = super().write_parts(folder)
            (folder / self.name).write_text("?")
            return written

    with pytest.raises(OSError, match="process 1: b: bytes 0 to 1 are not those that were written"):
        machines.take([Copy("a"), Changed("b"), Copy("c")]).write(tmp_path)


def test_an_address_of_another_machine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_ADDR", "192.0.2.1")
    with pytest.raises(WorldError, match=r"cannot listen at 192\.0\.2\.1"):
        saving_module._listener(2, is_local=False)


def http(address: Any) -> socket.socket:
    """A client of another protocol."""
    sent = socket.create_connection(address)
    sent.sendall(b"GET / HTTP/1.1\r\n\r\n")
    return sent


def silent(address: Any) -> socket.socket:
    """A client that sends nothing."""
    return socket.create_connection(address)


def half(address: Any) -> socket.socket:
    """A client that sends less than it promises."""
    sent = socket.create_connection(address)
    sent.sendall(struct.pack("!i", 100) + b"abc")
    return sent


def with_another_key(address: Any) -> None:
    """A client that does not know the key."""
    with pytest.raises(AuthenticationError):
        Client(address, authkey=b"another")


@pytest.mark.parametrize("foreign", [http, silent, half, with_another_key])
def test_a_foreign_connection_does_not_keep_the_processes_apart(
    foreign: Callable[[Any], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saving_module, "_HANDSHAKE_SECONDS", 1)
    with ThreadPoolExecutor(2) as pool, saving_module._listener(2, is_local=False) as listener:
        accepted = pool.submit(saving_module._accepted, listener, b"key")
        other = foreign(listener.address)
        with Client(listener.address, authkey=b"key") as client, accepted.result(30) as connection:
            client.send(1)
            assert connection.recv() == 1
        if isinstance(other, socket.socket):
            other.close()


def written(*files: tuple[str, dict[str, torch.Tensor]], names: set[str]) -> Written:
    """Several processes have written whole tensors of weights."""
    records = [
        FileRecord(file, 1, "", [], [TensorRecord(name, "F32", (1,), "") for name in tensors])
        for file, tensors in files
    ]
    return Written(records, [[] for _ in records], names)


@pytest.mark.parametrize(
    ("second", "problem"),
    [({"a", "b"}, "weights.a would be saved more than once"), (set(), "weights.b would be saved by no")],
)
def test_each_tensor_is_saved_once(second: set[str], problem: str) -> None:
    one = torch.ones(1)
    files = ("weights.safetensors", {"a": one}), ("weights.1.safetensors", dict.fromkeys(second, one))
    with pytest.raises(ValueError, match=problem):
        saving_module._with_records(written(*files, names={"weights.a", "weights.b"}))
    good = saving_module._with_records(written(*files, names={"weights.a"})) if not second else []
    assert [file.name for file in good] == [file for file, _ in files] * (not second)
